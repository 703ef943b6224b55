//! Inputs that were made to hurt, each with the answer that it gets.

use std::collections::BTreeSet;
use std::io::Write as _;

use chrono::{DateTime, Utc};
use serde_json::json;

use super::*;
use crate::hostile::tasks::{self, Http};
use crate::json::MAX_BYTES;

/// How many inputs HTTP is given, those between nodes aside.
pub(crate) fn count() -> usize {
    let tasks = tasks::rows()
        .iter()
        .filter(|row| row.http != Http::Absent)
        .count();
    tasks + bodies().len() + batches().len() + super::targets::count() + super::framing::count()
}

/// A node, and how many tasks were taken by it: all that its database may hold.
pub(super) struct Besieged {
    pub(super) node: Node,
    pub(super) fresh: crate::store::testing::Fresh,
    pub(super) taken: i64,
}

impl Besieged {
    pub(super) async fn new() -> Self {
        let fresh = fresh().await;
        let node = start(&fresh.store, Setup::default()).await;
        Besieged {
            node,
            fresh,
            taken: 0,
        }
    }

    /// It lives, answers others, and nothing half-written is in the database.
    pub(super) async fn is_unharmed(&self, after: &str) {
        let live = self.node.get("/health/live").await;
        assert_eq!(live.status, 200, "after {after}");
        assert_eq!(self.written().await, self.taken, "after {after}");
    }

    /// How many tasks there are, and what nobody may have left behind.
    pub(super) async fn written(&self) -> i64 {
        let sql =
            "select (select count(*) from ringmesh.task) + (select count(*) from ringmesh.finished_task)
                       + (select count(*) from ringmesh.idempotency i where not exists
                           (select from ringmesh.task t where t.slot = i.slot and t.id = i.task))
                       + (select count(*) from ringmesh.held_key)";
        self.fresh.number(sql).await
    }
}

pub(super) fn with_payload(payload: &str) -> Vec<u8> {
    format!(r#"{{"kind":"k","key":"a","payload":{payload}}}"#).into_bytes()
}

#[tokio::test]
async fn every_value_of_every_field_is_taken_as_it_is_or_refused_by_name() {
    let mut besieged = Besieged::new().await;
    for row in tasks::rows() {
        let shown = format!("{} {:.80}", row.field, row.value);
        let (status, code, field) = match row.http {
            Http::Taken => (201, "", None),
            Http::Refused => (422, "invalid", Some(row.field)),
            Http::NoJson => (400, "bad_json", None),
            Http::TooLarge => (413, "too_large", None),
            Http::Absent => continue,
        };
        let answer = besieged.node.post("/v1/tasks", row.body()).await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, code),
            "{shown}: {:.300}",
            answer.body.to_string()
        );
        if field.is_some() {
            assert_eq!(answer.field(), field, "{shown}");
            assert!(
                answer.body["message"]
                    .as_str()
                    .is_some_and(|text| text.len() > 10 && text.len() < 400),
                "{shown}: {}",
                answer.body
            );
        }
        assert!(answer.headers.get("x-evil").is_none(), "{shown}");
        if row.http == Http::Taken {
            besieged.taken += 1;
            let id: TaskId = answer.body["id"].as_str().unwrap().parse().unwrap();
            let kept = match row.field {
                // Digit for digit, without the space around it.
                "payload" => "payload::text = btrim($2, e' \t\n\r')",
                "key" => "key = ($2::json #>> '{}') and slot = ringmesh.slot_of(key)",
                "kind" => "kind = ($2::json #>> '{}')",
                _ => "$2 <> ''",
            };
            let kept = format!("select count(*) from ringmesh.task where id = $1 and {kept}");
            assert_eq!(
                besieged.fresh.count(&kept, id.number, &row.value).await,
                1,
                "{shown} is not kept as it was sent"
            );
            if let (true, Ok(asked)) = (
                row.field == "run_at",
                serde_json::from_str::<DateTime<Utc>>(&row.value),
            ) {
                let due = besieged.node.get(&format!("/v1/tasks/{id}")).await.body["run_at"].clone();
                let due = serde_json::from_value::<Option<DateTime<Utc>>>(due).unwrap();
                assert!(
                    due.is_none_or(|due| due >= asked),
                    "{shown} is due early: {due:?}"
                );
            }
        }
        besieged.is_unharmed(&shown).await;
    }
}

/// Bodies of `POST /v1/tasks` that are wrong as a whole.
fn bodies() -> Vec<(&'static str, Vec<u8>, u16, &'static str)> {
    let utf16 = |text: &str| {
        text.encode_utf16()
            .flat_map(u16::to_le_bytes)
            .collect::<Vec<u8>>()
    };
    let many: Vec<String> = (0..80_000).map(|n| format!("\"f{n}\":0")).collect();
    let deep_key: Vec<u8> =
        br#"{"kind":"k","payload":1,"key":"#.iter().copied().chain("[".repeat(900_000).bytes()).collect();
    let mut bomb = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
    let zeros = vec![b' '; 1 << 20];
    for _ in 0..64 {
        bomb.write_all(&zeros).unwrap();
    }
    let good = r#"{"kind":"k","key":"a","payload":1}"#;
    vec![
        ("nothing", b"".to_vec(), 400, "bad_json"),
        ("space", b" \t\r\n".to_vec(), 400, "bad_json"),
        ("NUL", b"\0".to_vec(), 400, "bad_json"),
        ("a byte order mark", b"\xef\xbb\xbf{}".to_vec(), 400, "bad_json"),
        ("UTF-16 without a mark", utf16(good), 400, "bad_json"),
        ("UTF-16", utf16(&format!("\u{feff}{good}")), 400, "bad_utf8"),
        (
            "UTF-32",
            good.chars().flat_map(|c| u32::from(c).to_be_bytes()).collect(),
            400,
            "bad_json",
        ),
        ("no UTF-8", b"{\"kind\":\"\xff\"}".to_vec(), 400, "bad_utf8"),
        (
            "overlong UTF-8",
            b"{\"key\":\"\xc0\xaf\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        (
            "overlong NUL",
            b"{\"key\":\"\xc0\x80\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        (
            "a surrogate in UTF-8",
            b"{\"key\":\"\xed\xa0\x80\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        (
            "a pair of surrogates in UTF-8",
            b"{\"key\":\"\xed\xa0\xbd\xed\xb8\x80\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        (
            "above U+10FFFF",
            b"{\"key\":\"\xf4\x90\x80\x80\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        ("cut UTF-8", b"{\"key\":\"\xe2\x82".to_vec(), 400, "bad_utf8"),
        (
            "Latin-1",
            b"{\"kind\":\"k\",\"key\":\"caf\xe9\",\"payload\":1}".to_vec(),
            400,
            "bad_utf8",
        ),
        ("gzip, not said", bomb.finish().unwrap(), 400, "bad_utf8"),
        ("MessagePack", b"\x83\xa4kind\xa1k".to_vec(), 400, "bad_utf8"),
        ("a form", b"kind=k&key=a&payload=1".to_vec(), 400, "bad_json"),
        (
            "XML",
            b"<?xml version=\"1.0\"?><!DOCTYPE a [<!ENTITY b \"c\">]><a>&b;</a>".to_vec(),
            400,
            "bad_json",
        ),
        (
            "trailing bytes",
            [with_payload("1"), b"{}".to_vec()].concat(),
            400,
            "bad_json",
        ),
        (
            "a trailing NUL",
            [with_payload("1"), b"\0".to_vec()].concat(),
            400,
            "bad_json",
        ),
        (
            "two tasks",
            [with_payload("1"), b"\n".to_vec(), with_payload("2")].concat(),
            400,
            "bad_json",
        ),
        ("an array", b"[]".to_vec(), 422, "invalid"),
        ("a string", b"\"task\"".to_vec(), 422, "invalid"),
        ("a number", b"7".to_vec(), 422, "invalid"),
        ("a number beyond all", b"1e400".to_vec(), 400, "bad_json"),
        ("null", b"null".to_vec(), 422, "invalid"),
        ("no field", b"{}".to_vec(), 422, "invalid"),
        (
            "many fields",
            format!("{{{}}}", many.join(",")).into_bytes(),
            422,
            "invalid",
        ),
        (
            "a long field",
            format!("{{\"{}\":1}}", "x".repeat(1_000_000)).into_bytes(),
            422,
            "invalid",
        ),
        (
            "a doubled field",
            br#"{"kind":"k","key":"a","payload":1,"key":"b"}"#.to_vec(),
            422,
            "invalid",
        ),
        (
            "a doubled field by escape",
            br#"{"kind":"k","key":"a","payload":1,"\u006bey":"b"}"#.to_vec(),
            422,
            "invalid",
        ),
        (
            "a doubled payload",
            br#"{"kind":"k","key":"a","payload":1,"payload":1}"#.to_vec(),
            422,
            "invalid",
        ),
        (
            "a time and a delay",
            br#"{"kind":"k","key":"a","payload":1,"run_at":"2030-01-01T00:00:00Z","delay":1}"#.to_vec(),
            422,
            "invalid",
        ),
        (
            "a control character in a field's name",
            b"{\"\\u001b[2J\":1}".to_vec(),
            422,
            "invalid",
        ),
        ("deep around", "[".repeat(1_000_000).into_bytes(), 422, "invalid"),
        ("a deep key", deep_key, 400, "bad_json"),
        (
            "space around, above the limit",
            [vec![b' '; MAX_BYTES + (64 << 10)], with_payload("1")].concat(),
            413,
            "too_large",
        ),
        ("16 MiB", vec![b'['; 16 << 20], 413, "too_large"),
    ]
}

#[tokio::test]
async fn hostile_bodies_are_refused_with_a_stable_code() {
    let besieged = Besieged::new().await;
    let mut wrong = Vec::new();
    for (what, body, status, code) in bodies() {
        let answer = besieged.node.post("/v1/tasks", body).await;
        let told = answer.body["message"]
            .as_str()
            .is_some_and(|text| text.len() < 400);
        if (answer.status, answer.code(), told) != (status, code, true) {
            wrong.push(format!(
                "{what}: {} {:.600}",
                answer.status,
                answer.body.to_string()
            ));
        }
        besieged.is_unharmed(what).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // 256 MiB, without a length: cut off at the limit.
    let chunks = futures::stream::iter((0..256).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1 << 20])));
    for path in ["/v1/tasks", "/v1/tasks/batch"] {
        let request = besieged
            .node
            .request(Method::POST, path)
            .header("content-type", "application/json");
        match request
            .body(reqwest::Body::wrap_stream(chunks.clone()))
            .send()
            .await
        {
            Ok(response) => assert_eq!(response.status(), 413),
            Err(error) => assert!(error.is_request(), "{error:?}"),
        }
        besieged.is_unharmed(path).await;
    }
}

/// What is wrong, the body, and the status, the code and the line that are answered.
type Batch = (&'static str, Vec<u8>, u16, &'static str, Option<u64>);

/// Batches, as lines: what is wrong with them, and the line at fault.
fn batches() -> Vec<Batch> {
    let good = String::from_utf8(with_payload("1")).unwrap();
    let lines = |lines: &[&str]| lines.join("\n").into_bytes();
    let large = String::from_utf8(with_payload(&format!("\"{}\"", "x".repeat(MAX_BYTES)))).unwrap();
    vec![
        ("nothing", b"".to_vec(), 422, "invalid", None),
        ("empty lines", b"\n\r\n\t\n".to_vec(), 422, "invalid", None),
        (
            "a bad line among good ones",
            lines(&[&good, "", &good, "{}", &good]),
            422,
            "invalid",
            Some(4),
        ),
        (
            "a good line cut in two",
            lines(&[&good, r#"{"kind":"k","#, r#""key":"a","payload":1}"#]),
            400,
            "bad_json",
            Some(2),
        ),
        (
            "two tasks in a line",
            lines(&[&format!("{good}{good}")]),
            400,
            "bad_json",
            Some(1),
        ),
        (
            "an array in place of lines",
            lines(&[&format!("[{good}]")]),
            422,
            "invalid",
            Some(1),
        ),
        (
            "a payload too large",
            lines(&[&good, &large]),
            413,
            "too_large",
            Some(2),
        ),
        (
            "a line too large",
            lines(&[
                &good,
                &" ".repeat(2 << 20),
                &format!("{good}{}{good}", " ".repeat(2 << 20)),
            ]),
            413,
            "too_large",
            Some(3),
        ),
        (
            "a task too many",
            lines(&vec![&*good; 10_001]),
            413,
            "too_large",
            None,
        ),
        (
            "above 32 MiB",
            vec![b'\n'; (32 << 20) + 1],
            413,
            "too_large",
            None,
        ),
        (
            "no UTF-8",
            [good.as_bytes(), b"\n\xff"].concat(),
            400,
            "bad_utf8",
            None,
        ),
        (
            "Unicode's own line ends",
            lines(&[&format!("{good}\u{2028}{good}")]),
            400,
            "bad_json",
            Some(1),
        ),
        (
            "NUL between lines",
            lines(&[&good, "\0", &good]),
            400,
            "bad_json",
            Some(2),
        ),
        (
            "a key that says two things",
            lines(&[
                r#"{"kind":"k","key":"a","payload":1,"idempotency_key":"x"}"#,
                r#"{"kind":"k","key":"a","payload":2,"idempotency_key":"x"}"#,
            ]),
            422,
            "idempotency_mismatch",
            Some(2),
        ),
    ]
}

#[tokio::test]
async fn a_hostile_line_refuses_its_whole_batch_and_is_named() {
    let besieged = Besieged::new().await;
    for (what, body, status, code, line) in batches() {
        let request = besieged.node.request(Method::POST, "/v1/tasks/batch");
        let refused = answer(request.header("content-type", "application/x-ndjson").body(body)).await;
        let at = refused.body["line"].as_u64();
        assert_eq!(
            (refused.status, refused.code(), at),
            (status, code, line),
            "{what}: {:.300}",
            refused.body.to_string()
        );
        besieged.is_unharmed(what).await;
    }
}

#[tokio::test]
async fn a_key_is_found_by_its_bytes_whatever_they_are() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let mut stood = BTreeSet::new();
    for key in tasks::good_keys() {
        let created = node
            .submit(json!({"kind": "k", "key": key, "payload": null}))
            .await;
        assert_eq!(
            (created.status, &created.body["key"]),
            (201, &json!(key)),
            "{}",
            created.body
        );
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let mut paths = vec![format!("/v1/keys?key={encoded}")];
        // Clients take these for steps in a path.
        if ![".", ".."].contains(&&*key) {
            paths.push(format!("/v1/keys/{encoded}"));
        }
        for path in paths {
            let status = node.get(&path).await;
            assert_eq!(
                (status.status, &status.body["key"], &status.body["waiting"]),
                (200, &json!(key), &json!(1)),
                "{key:?} at {path}"
            );
            assert_eq!(status.body["slot"], created.body["slot"], "{key:?}");
        }
        assert!(stood.insert(key));
    }
    for (path, key) in [
        ("100%", "100%"),
        ("%zz%41", "%zzA"),
        ("a%2", "a%2"),
        ("a+b", "a+b"),
        ("%252F", "%2F"),
        ("a;b", "a;b"),
    ] {
        let read = node.get(&format!("/v1/keys/{path}")).await;
        assert_eq!((read.status, &read.body["key"]), (200, &json!(key)), "{path}");
    }
}
