//! Short texts and their parsers.

use std::time::Duration;

use chrono::{DateTime, Datelike as _, Utc};

use super::{owned, text};
use crate::config::{DatabaseUrl, OPTIONS, Source, Value as _, load_text};
use crate::http::fuzzing;
use crate::run;
use crate::task::TaskId;

pub(super) fn run_id(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    if let Ok(id) = text.parse::<TaskId>() {
        assert_eq!(id.to_string(), text, "an id has one spelling");
        assert!(id.number > 0 && id.slot.get() < 4096);
        let json = serde_json::to_string(&id).expect("it can be written");
        assert_eq!(serde_json::from_str::<TaskId>(&json).expect("it can be read"), id);
    }
}

pub(super) fn id_seeds() -> Vec<Vec<u8>> {
    owned(&["163-42", "0-1", "4095-9223372036854775807", "7-1000000"])
}

pub(super) fn run_time(bytes: &[u8]) {
    let text = text(bytes);
    if let Ok(due) = fuzzing::run_at(text) {
        let asked = DateTime::parse_from_rfc3339(text).expect("a time");
        assert!(due >= asked, "never early");
        assert!(
            due - asked.to_utc() < chrono::TimeDelta::microseconds(1) && (1970..=9999).contains(&due.year())
        );
    }
    let now = DateTime::<Utc>::from_timestamp(1_900_000_000, 0).expect("within range");
    for value in [text.to_owned(), serde_json::Value::from(text).to_string()] {
        if let Ok(Some(due)) = fuzzing::delay(&value, now) {
            assert!(due > now && due.year() <= 2041, "{due}");
        }
        if let Ok(timeout) = fuzzing::timeout(&value) {
            assert!((Duration::from_millis(1)..=Duration::from_secs(86_400)).contains(&timeout));
            assert_eq!(timeout.subsec_nanos() % 1_000_000, 0);
        }
    }
    if let Ok(duration) = Duration::parse(text) {
        let shown = duration.show().expect("it has a text");
        assert_eq!(Duration::parse(&shown), Ok(duration), "{shown}");
    }
}

pub(super) fn time_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "2030-01-31T09:30:00Z",
        "2030-01-31t09:30:00.123456789+14:00",
        "1970-01-01T00:00:00-23:59",
        "9999-12-31T23:59:59.999999Z",
        "2016-12-31T23:59:60Z",
        "90s",
        "1h 30m 2s 500ms 3us 7ns",
        "9years 11months 3days",
        "3.25",
        "0.0000001",
        "1e-3",
    ])
}

pub(super) fn run_config(bytes: &[u8]) {
    let loaded = match load_text(text(bytes)) {
        Ok(loaded) => loaded,
        Err(error) => return assert!(!error.to_string().is_empty()),
    };
    let config = loaded.unchecked();
    let is_option = |name: &str| OPTIONS.iter().any(|option| option.name == name);
    assert!(config.problems().iter().all(|problem| is_option(problem.option)));
    // What is shown without a mask can be given again.
    for option in OPTIONS.iter().filter(|option| !option.from_file) {
        let Some(shown) = option.show(config) else {
            continue;
        };
        if loaded.source(option.name) == &Source::Default {
            continue;
        }
        let line = match option.name {
            "seeds" => {
                let seeds: Vec<String> = shown.split(',').map(|seed| format!("\"{seed}\"")).collect();
                format!("seeds = [{}]", seeds.join(","))
            }
            // A string of JSON is one of TOML, but for this character.
            name => format!(
                "{name} = {}",
                serde_json::Value::from(&*shown)
                    .to_string()
                    .replace('\u{7f}', "\\u007f")
            ),
        };
        let again = load_text(&line).unwrap_or_else(|error| panic!("{line}: {error}"));
        assert_eq!(option.show(again.unchecked()), Some(shown), "{line}");
    }
    let _ = loaded.check();
}

pub(super) fn config_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "ttl = \"5s\"\nmargin = \"700ms\"\nroom = 9000\nload_bound = 2\nseeds = [\"a:1\", \"[::1]:2\"]\nbuiltin_kinds = false\n",
        "name = \"n1\"\ndatabase_url = \"postgres://me:secret@db:5432/app\"\ntoken = \"hunter2hunter2hunter2\"\n",
        "# comment\nlisten = \"0.0.0.0:7101\"\nadvertise = 'node-1:7101'\ncluster_secret = \"0123456789abcdef\"\nload_bound = \"none\"\n",
        "weight = 256\ntokens = 4096\nretention = \"7days\"\nlog_format = \"json\"\npooler = \"transaction\"\nload_bound = 1.5\n",
    ])
}

pub(super) fn run_answer(bytes: &[u8]) {
    let any = String::from_utf8_lossy(bytes).into_owned();
    let error = run::error_text(&any);
    assert!(error.len() <= run::ERROR_BYTES && !error.contains('\0'));
    // As a handler's string, and as JSON that it made itself.
    let quoted = serde_json::to_string(&any).expect("text is JSON");
    for result in [quoted, any] {
        if result.len() > run::RESULT_BYTES || serde_json::from_str::<serde_json::Value>(&result).is_err() {
            continue;
        }
        let kept = run::result_text(result.clone()).expect("short enough");
        let value: serde_json::Value = serde_json::from_str(&kept).expect("it is JSON still");
        assert!(!value.to_string().contains("\\u0000") || kept.contains("\\\\u0000"));
        assert!(!has_nul(&value), "{kept}");
        assert!(
            result.contains("\\u0000") || result == kept,
            "nothing else changes"
        );
    }
}

fn has_nul(value: &serde_json::Value) -> bool {
    use serde_json::Value;
    match value {
        Value::String(text) => text.contains('\0'),
        Value::Array(values) => values.iter().any(has_nul),
        Value::Object(values) => values
            .iter()
            .any(|(key, value)| key.contains('\0') || has_nul(value)),
        Value::Null | Value::Bool(_) | Value::Number(_) => false,
    }
}

pub(super) fn answer_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "an error\0 text",
        r#"{"ä\n":"\u0001\u0000\u0000","\u0000":["\\u0000","\\\u0000"]}"#,
        r#""\\\\\\u0000""#,
        "[1,2,\"\\u00e9\\ud83d\\ude00\"]",
    ])
}

pub(super) fn run_url(bytes: &[u8]) {
    const SECRET: &str = "HUNTER2";
    let any = text(bytes);
    let (a, b) = any.split_at(any.floor_char_boundary(any.len() / 2));
    if any.contains(SECRET) {
        return;
    }
    for url in [
        format!("postgres://me:{a}{SECRET}{b}@db:5432/app"),
        format!("postgresql://me:{SECRET}{a}@db/app?sslmode=require&{b}"),
        format!("postgres://db/app?{a}&password={SECRET}{b}"),
        format!("postgres://me:{SECRET}"),
        format!("postgres://me:{SECRET}/{a}"),
    ] {
        let shown = DatabaseUrl::from(url.as_str()).to_string();
        assert!(!shown.contains(SECRET), "{url} is shown as {shown}");
    }
    let _ = DatabaseUrl::from(any).to_string();
}

pub(super) fn url_seeds() -> Vec<Vec<u8>> {
    owned(&[
        "postgres://me:secret@db:5432/app?sslmode=require&password=x",
        "p%40ss?w@rd/#:",
        "",
        "host=db&user=me&password=x",
    ])
}
