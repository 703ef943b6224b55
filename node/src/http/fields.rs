//! Reads one task out of JSON. Each refusal names its field.

use std::borrow::Cow;
use std::fmt;
use std::time::Duration;

use chrono::{DateTime, Datelike, TimeDelta, Utc};
use ringmesh_ring::Key;
use serde::Deserialize;
use serde::de::{Deserializer, Error as _, MapAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;

use super::error::{Code, Failure};
use crate::json;
use crate::task::{DEFAULT_ATTEMPTS, DEFAULT_TIMEOUT, Submit, is_kind};

/// Room for the fields around a payload of the largest size.
pub(super) const MAX_TASK_BYTES: usize = json::MAX_BYTES + (32 << 10);

/// With key and kind it must fit a row of a Postgres index.
const MAX_IDEMPOTENCY_KEY: usize = 255;
/// Ten years.
const MAX_DELAY: Duration = Duration::from_secs(315_576_000);
const MIN_TIMEOUT: Duration = Duration::from_millis(1);
const MAX_TIMEOUT: Duration = Duration::from_secs(86_400);
/// More fields than there are names for; the rest need not be read.
const MAX_FIELDS: usize = 32;

/// The members of an object as they stand, unparsed.
struct Members<'a>(Vec<(Cow<'a, str>, &'a RawValue)>);

#[derive(Deserialize)]
struct Name<'a>(#[serde(borrow)] Cow<'a, str>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Vec<(Cow<'de, str>, &'de RawValue)>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with a task's fields")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut members = Vec::with_capacity(8);
                while let Some(Name(name)) = map.next_key()? {
                    if members.len() == MAX_FIELDS {
                        return Err(A::Error::custom("too many fields"));
                    }
                    members.push((name, map.next_value()?));
                }
                Ok(members)
            }
        }
        deserializer.deserialize_map(Collect).map(Members)
    }
}

#[derive(Default)]
struct Task<'a> {
    kind: Option<&'a RawValue>,
    key: Option<&'a RawValue>,
    payload: Option<&'a RawValue>,
    idempotency_key: Option<&'a RawValue>,
    run_at: Option<&'a RawValue>,
    delay: Option<&'a RawValue>,
    priority: Option<&'a RawValue>,
    max_attempts: Option<&'a RawValue>,
    timeout: Option<&'a RawValue>,
}

/// Reads a task. `now` is what a delay counts from.
pub(super) fn submit(text: &str, now: DateTime<Utc>) -> Result<Submit, Failure> {
    let Members(members) = serde_json::from_str(text).map_err(|error| not_an_object(&error))?;
    let mut task = Task::default();
    for (name, value) in members {
        let field = match &*name {
            "kind" => &mut task.kind,
            "key" => &mut task.key,
            "payload" => &mut task.payload,
            "idempotency_key" => &mut task.idempotency_key,
            "run_at" => &mut task.run_at,
            "delay" => &mut task.delay,
            "priority" => &mut task.priority,
            "max_attempts" => &mut task.max_attempts,
            "timeout" => &mut task.timeout,
            _ => {
                return Err(Failure::invalid(
                    shorten(&name),
                    "there is no such field; those of a task are kind, key, payload, idempotency_key, run_at, delay, priority, \
                     max_attempts and timeout",
                ));
            }
        };
        if field.replace(value).is_some() {
            return Err(Failure::invalid(
                name.into_owned(),
                "is given twice; give it once",
            ));
        }
    }
    // Null is a payload; anywhere else it means "not given".
    let given = |field: Option<&'_ RawValue>| {
        field
            .map(RawValue::get)
            .filter(|text| *text != "null")
            .map(str::to_owned)
    };
    let kind = kind(&required("kind", task.kind)?)?;
    let key =
        Key::new(required("key", task.key)?).map_err(|error| Failure::invalid("key", error.to_string()))?;
    let payload = task
        .payload
        .ok_or_else(|| Failure::invalid("payload", "is missing; give null for none"))?;
    let payload = json::raw(payload)?;
    let idempotency_key = match given(task.idempotency_key) {
        Some(value) => Some(idempotency_key(text_of("idempotency_key", &value)?)?),
        None => None,
    };
    let run_at = match (given(task.run_at), given(task.delay)) {
        (Some(_), Some(_)) => {
            return Err(Failure::invalid(
                "delay",
                "cannot be given together with run_at; give one of them",
            ));
        }
        (Some(value), None) => Some(run_at(&text_of("run_at", &value)?)?),
        (None, Some(value)) => delay(&value, now)?,
        (None, None) => None,
    };
    let priority = match given(task.priority) {
        Some(value) => whole("priority", &value, 0, 9)?,
        None => 0,
    };
    let max_attempts = match given(task.max_attempts) {
        Some(value) => whole("max_attempts", &value, 1, 1000)?,
        None => DEFAULT_ATTEMPTS,
    };
    let timeout = match given(task.timeout) {
        Some(value) => timeout(&value)?,
        None => DEFAULT_TIMEOUT,
    };
    Ok(Submit {
        kind,
        key,
        payload,
        idempotency_key,
        run_at,
        priority: priority as u8,
        max_attempts,
        timeout,
        waiter: None,
    })
}

fn not_an_object(error: &serde_json::Error) -> Failure {
    let message = error.to_string();
    match error.classify() {
        Category::Data => Failure::new(Code::Invalid, message),
        Category::Syntax | Category::Eof | Category::Io => Failure::new(Code::BadJson, message),
    }
}

/// A name from outside, safe to show.
fn shorten(name: &str) -> String {
    name.chars().take(64).collect()
}

fn required(field: &'static str, value: Option<&RawValue>) -> Result<String, Failure> {
    text_of(
        field,
        value
            .ok_or_else(|| Failure::invalid(field, "is missing; every task has one"))?
            .get(),
    )
}

fn text_of(field: &'static str, value: &str) -> Result<String, Failure> {
    serde_json::from_str(value).map_err(|error| match error.classify() {
        Category::Data => Failure::invalid(field, "must be a string"),
        _ => Failure::invalid(field, "must be a string of whole Unicode characters"),
    })
}

fn kind(text: &str) -> Result<String, Failure> {
    if !is_kind(text) {
        return Err(Failure::invalid(
            "kind",
            "must have 1 to 128 letters, digits, or one of _ . : / -",
        ));
    }
    Ok(text.to_owned())
}

/// Checks an idempotency key from a body or a header.
pub(super) fn idempotency_key(text: String) -> Result<String, Failure> {
    if text.is_empty() || text.len() > MAX_IDEMPOTENCY_KEY || text.contains('\0') {
        return Err(Failure::invalid(
            "idempotency_key",
            "must have 1 to 255 bytes and no NUL",
        ));
    }
    Ok(text)
}

fn whole(field: &'static str, value: &str, low: u32, high: u32) -> Result<u32, Failure> {
    let number = serde_json::from_str::<u32>(value)
        .ok()
        .filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| Failure::invalid(field, format!("must be a whole number from {low} to {high}")))
}

/// A time, rounded up to what Postgres keeps: a task is never due early.
pub(super) fn run_at(text: &str) -> Result<DateTime<Utc>, Failure> {
    let refused = || {
        Failure::invalid(
            "run_at",
            "must be a time like 2030-01-31T09:30:00Z, from 1970 to 9999",
        )
    };
    let time = DateTime::parse_from_rfc3339(text).map_err(|_| refused())?;
    to_micros(time.to_utc())
        .filter(|time| (1970..=9999).contains(&time.year()))
        .ok_or_else(refused)
}

/// Rounded up to what Postgres keeps.
fn to_micros(time: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let micros = i64::from(time.timestamp_subsec_nanos().div_ceil(1_000));
    let whole = time.timestamp().checked_mul(1_000_000)?;
    DateTime::from_timestamp_micros(whole.checked_add(micros)?)
}

/// No delay is no time: such a task is due at once.
pub(super) fn delay(value: &str, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Failure> {
    let refused = || {
        Failure::invalid(
            "delay",
            "must be a time like \"90s\" or \"1h30m\", or a number of seconds, up to 10 years",
        )
    };
    let delay = json_duration(value)
        .filter(|delay| *delay <= MAX_DELAY)
        .ok_or_else(refused)?;
    if delay.is_zero() {
        return Ok(None);
    }
    let micros = i64::try_from(delay.as_nanos().div_ceil(1_000)).map_err(|_| refused())?;
    let due = to_micros(now).and_then(|now| now.checked_add_signed(TimeDelta::microseconds(micros)));
    due.map(Some).ok_or_else(refused)
}

/// Rounded up to milliseconds.
pub(super) fn timeout(value: &str) -> Result<Duration, Failure> {
    let timeout = json_duration(value)
        .filter(|timeout| (MIN_TIMEOUT..=MAX_TIMEOUT).contains(timeout))
        .ok_or_else(|| {
            Failure::invalid(
                "timeout",
                "must be a time like \"90s\" or \"1h30m\", or a number of seconds, from 1 ms to 24 hours",
            )
        })?;
    Ok(Duration::from_millis(
        timeout.as_nanos().div_ceil(1_000_000) as u64
    ))
}

fn json_duration(value: &str) -> Option<Duration> {
    if value.starts_with('"') {
        duration(&serde_json::from_str::<String>(value).ok()?)
    } else {
        Duration::try_from_secs_f64(serde_json::from_str(value).ok()?).ok()
    }
}

/// A time like `90s` or `1h30m`, or a plain number of seconds.
pub(super) fn duration(text: &str) -> Option<Duration> {
    if text.len() > 64 {
        return None;
    }
    match text.parse() {
        Ok(seconds) => Duration::try_from_secs_f64(seconds).ok(),
        Err(_) => humantime::parse_duration(text).ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn now() -> DateTime<Utc> {
        "2030-01-01T00:00:00Z".parse().unwrap()
    }

    fn with(field: &str) -> Result<Submit, Failure> {
        submit(
            &format!(r#"{{"kind":"k","key":"a","payload":null,{field}}}"#),
            now(),
        )
    }

    #[test]
    fn a_time_is_never_rounded_to_an_earlier_one() {
        for (given, micros) in [
            ("2030-01-01T00:00:00.000000001Z", "2030-01-01T00:00:00.000001Z"),
            ("2030-01-01T00:00:00.123456Z", "2030-01-01T00:00:00.123456Z"),
            ("2030-01-01T00:00:00.999999999Z", "2030-01-01T00:00:01Z"),
            ("2030-01-01T02:00:00+14:00", "2029-12-31T12:00:00Z"),
            ("2030-01-01T02:00:00-23:59", "2030-01-02T01:59:00Z"),
            ("2016-12-31T23:59:60Z", "2017-01-01T00:00:00Z"),
            ("9999-12-31T23:59:59Z", "9999-12-31T23:59:59Z"),
            ("1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z"),
        ] {
            let due = with(&format!(r#""run_at":"{given}""#)).unwrap().run_at.unwrap();
            assert_eq!(due, micros.parse::<DateTime<Utc>>().unwrap(), "{given}");
        }
        assert_eq!(
            with(r#""delay":0.0000001"#).unwrap().run_at,
            Some(now() + TimeDelta::microseconds(1))
        );
        assert_eq!(
            with(r#""delay":"1h30m""#).unwrap().run_at,
            Some(now() + TimeDelta::minutes(90))
        );
        assert_eq!(with(r#""delay":0"#).unwrap().run_at, None);
        assert_eq!(
            with(r#""timeout":0.0011"#).unwrap().timeout,
            Duration::from_millis(2)
        );
    }

    #[test]
    fn each_refusal_names_its_field() {
        for (given, field) in [
            (r#""run_at":"0000-01-01T00:00:00Z""#, "run_at"),
            (r#""run_at":"1969-12-31T23:59:59Z""#, "run_at"),
            (r#""run_at":"9999-12-31T23:59:59.9999999Z""#, "run_at"),
            (r#""run_at":"9999-12-31T23:59:59-14:00""#, "run_at"),
            (r#""run_at":"10000-01-01T00:00:00Z""#, "run_at"),
            (r#""run_at":"294277-01-01T00:00:00Z""#, "run_at"),
            (r#""run_at":"-2030-01-01T00:00:00Z""#, "run_at"),
            (r#""run_at":"2030-01-01T00:00:00""#, "run_at"),
            (r#""run_at":"2030-01-01T00:00:00+24:00""#, "run_at"),
            (r#""run_at":"2030-02-30T00:00:00Z""#, "run_at"),
            (r#""run_at":1893456000"#, "run_at"),
            (r#""run_at":"2030-01-01T00:00:00Z","delay":"1s""#, "delay"),
            (r#""delay":-1"#, "delay"),
            (r#""delay":"-1s""#, "delay"),
            (r#""delay":315576001"#, "delay"),
            (r#""delay":"11years""#, "delay"),
            (r#""delay":1e308"#, "delay"),
            (r#""delay":1e400"#, "delay"),
            (r#""delay":"inf""#, "delay"),
            (r#""delay":"NaN""#, "delay"),
            (r#""delay":"99999999999999999999y""#, "delay"),
            (r#""delay":[]"#, "delay"),
            (r#""timeout":0"#, "timeout"),
            (r#""timeout":0.0005"#, "timeout"),
            (r#""timeout":86401"#, "timeout"),
            (r#""timeout":-1"#, "timeout"),
            (r#""timeout":"-1s""#, "timeout"),
            (r#""timeout":2147483648"#, "timeout"),
            (r#""timeout":9223372036854775808"#, "timeout"),
            (r#""timeout":1e308"#, "timeout"),
            (r#""timeout":"NaN""#, "timeout"),
            (r#""timeout":"1year""#, "timeout"),
            (r#""delay":-0.001"#, "delay"),
            (r#""delay":9223372036854775808"#, "delay"),
            (r#""delay":"9223372036854775807s""#, "delay"),
            (r#""max_attempts":-1"#, "max_attempts"),
            (r#""max_attempts":1e3"#, "max_attempts"),
            (r#""priority":-1"#, "priority"),
            (r#""priority":10"#, "priority"),
            (r#""priority":1.0"#, "priority"),
            (r#""priority":"1""#, "priority"),
            (r#""priority":32768"#, "priority"),
            (r#""priority":9223372036854775808"#, "priority"),
            (r#""max_attempts":0"#, "max_attempts"),
            (r#""max_attempts":1001"#, "max_attempts"),
            (r#""max_attempts":2147483648"#, "max_attempts"),
            (r#""idempotency_key":"""#, "idempotency_key"),
            (r#""idempotency_key":"a\u0000""#, "idempotency_key"),
            (r#""idempotency_key":7"#, "idempotency_key"),
            (r#""surprise":1"#, "surprise"),
            (r#""key":"b""#, "key"),
        ] {
            let failure = with(given).expect_err(given);
            assert_eq!(
                (failure.code, failure.field.as_deref()),
                (Code::Invalid, Some(field)),
                "{given}"
            );
        }
        assert_eq!(
            submit(r#"{"kind":"k","key":"a"}"#, now())
                .unwrap_err()
                .field
                .as_deref(),
            Some("payload")
        );
        assert_eq!(
            submit(r#"{"key":"a","payload":1}"#, now())
                .unwrap_err()
                .field
                .as_deref(),
            Some("kind")
        );
        assert_eq!(submit("[]", now()).unwrap_err().code, Code::Invalid);
    }
}
