//! Bodies of HTTP requests.

use chrono::{DateTime, Datelike as _, Utc};
use serde::de::IgnoredAny;
use serde_json::Value;

use super::owned;
use crate::hint::{Message, Offer};
use crate::http::error::{Code, Failure};
use crate::http::fuzzing;
use crate::json;
use crate::task::{Submit, is_kind};

const FIELDS: [&str; 9] = [
    "kind",
    "key",
    "payload",
    "idempotency_key",
    "run_at",
    "delay",
    "priority",
    "max_attempts",
    "timeout",
];

fn now() -> DateTime<Utc> {
    DateTime::from_timestamp(1_900_000_000, 0).expect("within range")
}

pub(super) fn run_task(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match fuzzing::submit(text, now()) {
        Ok(submit) => check(&submit),
        Err(failure) => check_refusal(&failure, text),
    }
}

/// All limits of a task that was taken.
fn check(submit: &Submit) {
    assert!(is_kind(&submit.kind));
    let key = submit.key.as_str();
    assert!((1..=1024).contains(&key.len()) && !key.contains('\0'));
    let payload = submit.payload.get();
    assert!(payload.len() <= json::MAX_BYTES);
    serde_json::from_str::<Value>(payload).expect("a handler can read it");
    assert!(submit.priority <= 9 && (1..=1000).contains(&submit.max_attempts));
    assert!((1..=86_400_000).contains(&submit.timeout.as_millis()));
    if let Some(key) = &submit.idempotency_key {
        assert!((1..=255).contains(&key.len()) && !key.contains('\0'));
    }
    if let Some(due) = submit.run_at {
        assert!((1970..=9999).contains(&due.year()) && due.timestamp_subsec_nanos() % 1_000 == 0);
    }
}

fn check_refusal(failure: &Failure, text: &str) {
    assert!(
        !failure.message.is_empty() && failure.message.len() < 1_000,
        "{}",
        failure.message
    );
    match failure.code {
        Code::BadJson => assert!(
            serde_json::from_str::<Box<serde_json::value::RawValue>>(text).is_err()
                || failure.field.is_some()
        ),
        Code::Invalid => {
            if let Some(field) = &failure.field {
                assert!(!field.is_empty() || text.contains("\"\""), "no field is named");
                let known = FIELDS.contains(&&**field);
                assert!(known || failure.message.contains("no such field"), "{failure:?}");
            }
        }
        Code::TooLarge => assert!(text.len() > json::MAX_BYTES),
        other => panic!("{other:?} for {text}"),
    }
}

pub(super) fn task_seeds() -> Vec<Vec<u8>> {
    owned(&[
        r#"{"kind":"k","key":"a","payload":1}"#,
        r#"{"kind": "mail/send", "key": "tenant-1", "payload": {"to": ["a@b", {"c": null}], "n": 1.50e3}, "priority": 9}"#,
        r#"{"kind":"k","key":"caf\u00e9 \ud83d\ude00","payload":"\u0001\"\\","idempotency_key":"once-1","max_attempts":1000}"#,
        r#"{"kind":"k","key":"a","payload":[],"run_at":"2030-01-31T09:30:00.123456789+02:00","timeout":"1h30m"}"#,
        r#"{"kind":"k","key":"a","payload":{},"delay":"90s","timeout":0.5,"priority":null}"#,
        r#"{"delay":3.000001,"timeout":"500ms","key":"x","kind":"a::b","payload":[[[[[[[[0]]]]]]]]}"#,
    ])
}

pub(super) fn run_batch(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    for lines in [true, false] {
        match fuzzing::batch(text, lines) {
            Ok((submits, places)) => {
                assert!(!submits.is_empty() && submits.len() == places.len());
                assert!(places.is_sorted());
                submits.iter().for_each(check);
            }
            Err(failure) => assert!(
                matches!(failure.code, Code::BadJson | Code::Invalid | Code::TooLarge),
                "{failure:?}"
            ),
        }
    }
}

pub(super) fn batch_seeds() -> Vec<Vec<u8>> {
    let tasks: Vec<String> = task_seeds()
        .iter()
        .map(|task| String::from_utf8_lossy(task).into_owned())
        .collect();
    vec![
        tasks.join("\n").into_bytes(),
        tasks.join("\r\n\r\n").into_bytes(),
        format!("[{}]", tasks.join(",")).into_bytes(),
        format!(" [ {} ] ", tasks[0]).into_bytes(),
    ]
}

pub(super) fn run_hint(bytes: &[u8]) {
    if let Ok(message) = serde_json::from_slice::<Message>(bytes) {
        let text = serde_json::to_vec(&message).expect("it can be written");
        let again: Message = serde_json::from_slice(&text).expect("it can be read again");
        assert_eq!(serde_json::to_vec(&again).expect("it can be written"), text);
        assert!(
            message
                .cancelled
                .iter()
                .chain(&message.ended)
                .all(|id| id.number > 0)
        );
    }
    if let Ok(offer) = serde_json::from_slice::<Offer>(bytes) {
        assert!(offer.slots.iter().all(|slot| slot.get() < 4096));
    }
}

pub(super) fn hint_seeds() -> Vec<Vec<u8>> {
    owned(&[
        r#"{"to":1,"tasks":[{"slot":1,"lowest":1,"urgent":false},{"slot":4095,"lowest":900,"urgent":true}]}"#,
        r#"{"to":7,"passed":[{"slot":0,"lowest":1,"urgent":false}],"ended":["1-2","4095-77"],"cancelled":["3-4"],"moved":true}"#,
        r#"{"from":2,"to":1,"digest":"d1","slots":[1,2,3,4095]}"#,
    ])
}

pub(super) fn run_payload(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match json::check(text) {
        Ok(()) => {
            serde_json::from_str::<Value>(text).expect("serde_json reads it");
            let kept = json::payload(text).expect("it was taken");
            assert_eq!(kept.get(), text.trim_matches([' ', '\t', '\n', '\r']));
        }
        Err(json::Error::Syntax { at, .. }) => {
            assert!(at <= text.len());
            assert!(
                serde_json::from_str::<IgnoredAny>(text).is_err(),
                "serde_json takes it"
            );
        }
        Err(_) => {}
    }
}

pub(super) fn payload_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "null",
        " [1, -2.50, 3e8, true, false, null, \"a\"] ",
        r#"{"a":{"b":[{"c":"\u00e9\ud83d\ude00\n"}]},"":0,"A":{"a":{}}}"#,
        r#"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[{"deep":[]}]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]"#,
        "1.7976931348623157e308",
        "179769313486231570000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000",
        "123456789012345678901234567890.00001E-7",
        r#""'; drop table ringmesh.task; --""#,
    ])
}
