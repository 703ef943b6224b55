//! Handlers that answer with what hurts, and payloads that every reader must take alike.

use std::error::Error as StdError;
use std::fmt;

use serde::{Serialize, Serializer};
use serde_json::Value;
use serde_json::value::RawValue;

use super::tests::{FAR, Life};
use super::*;
use crate::handler::Failure;
use crate::hostile::tasks::{self, Http, Sql};
use crate::http::tests::submit_of;
use crate::run::ERROR_BYTES;
use crate::store::hostile_tests::call;
use crate::store::submit::Row;
use crate::store::testing_owner::slot_of;
use crate::task::{State, TaskId};

pub(crate) fn count() -> usize {
    let (handlers, expected) = hostile_handlers();
    assert_eq!(handlers.kinds().len(), expected.len());
    expected.len()
}

/// An error that is its own cause.
#[derive(Debug)]
struct Endless;

impl fmt::Display for Endless {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("endless")
    }
}

impl StdError for Endless {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self)
    }
}

/// As [`Endless`], without a word.
#[derive(Debug)]
struct Mute;

impl fmt::Display for Mute {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Ok(())
    }
}

impl StdError for Mute {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        Some(self)
    }
}

/// An error that cannot say what it is.
#[derive(Debug)]
struct Panicking;

impl fmt::Display for Panicking {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        panic!("no words")
    }
}

impl StdError for Panicking {}

/// As [`Panicking`], but refuses.
#[derive(Debug)]
struct Refusing;

impl fmt::Display for Refusing {
    fn fmt(&self, _: &mut fmt::Formatter<'_>) -> fmt::Result {
        Err(fmt::Error)
    }
}

impl StdError for Refusing {}

/// What panics when it is let go, even as the payload of a panic.
struct Grenade;

impl Drop for Grenade {
    fn drop(&mut self) {
        panic!("dropped");
    }
}

/// A result that panics, or fails, when it is written.
enum Unwritable {
    Panics,
    Fails,
    NoText,
}

impl Serialize for Unwritable {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Unwritable::Panics => panic!("while it was written"),
            Unwritable::Fails => Err(serde::ser::Error::custom("fails\0 while it was written")),
            Unwritable::NoText => {
                use serde::ser::SerializeMap as _;
                let mut map = serializer.serialize_map(None)?;
                map.serialize_entry(&[1], &1)?;
                map.end()
            }
        }
    }
}

/// A part of the error text, or the whole result.
enum Ends {
    Dead(&'static str),
    Well(Option<&'static str>),
}

fn raw(text: String) -> Box<RawValue> {
    RawValue::from_string(text).unwrap()
}

type Expected = Vec<(&'static str, Ends)>;

/// Handlers by kind, and how their tasks end.
fn hostile_handlers() -> (Handlers, Expected) {
    let mut handlers = Handlers::new();
    let mut expected = Vec::new();
    macro_rules! fails {
        ($kind:literal, $error:expr, $part:literal) => {
            handlers = handlers.add($kind, |_, _: Value| async {
                Err::<(), Failure>($error.into())
            });
            expected.push(($kind, Ends::Dead($part)));
        };
    }
    macro_rules! panics {
        ($kind:literal, $panic:expr, $part:literal) => {
            handlers = handlers.add($kind, |_, _: Value| async {
                if true {
                    $panic;
                }
                Ok::<(), Failure>(())
            });
            expected.push(($kind, Ends::Dead($part)));
        };
    }
    macro_rules! answers {
        ($kind:literal, $result:expr, $end:expr) => {
            handlers = handlers.add($kind, |_, _: Value| async { Ok::<_, Failure>($result) });
            expected.push(($kind, $end));
        };
    }
    fails!("nul", Failure::new("a\0b\0"), "a\\0b\\0");
    fails!("only-nul", Failure::new("\0".repeat(10_000)), "(cut)");
    fails!("10-mib", Failure::new("e".repeat(10 << 20)), "eee … (cut)");
    fails!(
        "10-mib-wide",
        Failure::new("\u{1f4a3}".repeat(3 << 20)),
        "… (cut)"
    );
    fails!("no-words", Failure::new(""), "");
    fails!(
        "controls",
        Failure::new("\u{1b}[2J\u{7}\r\n\u{202e}"),
        "\u{1b}[2J"
    );
    fails!(
        "replaced",
        Failure::new(String::from_utf8_lossy(b"a\xff\xc0\xaf")),
        "a\u{fffd}"
    );
    fails!(
        "noncharacters",
        Failure::new("\u{ffff}\u{10ffff}\u{feff}"),
        "\u{10ffff}"
    );
    fails!(
        "sql",
        Failure::new("'; drop table ringmesh.task; --"),
        "'; drop table"
    );
    fails!("json", Failure::new(r#"{"a":"\u0000"}"#), r#"\u0000"#);
    fails!("own-cause", Endless, "endless: endless");
    fails!("own-mute-cause", Mute, ": : ");
    fails!("panics-in-words", Panicking, "panic: no words");
    fails!("refuses-words", Refusing, "panic: ");
    fails!(
        "waits-for-ever",
        Failure::new("later").retry_after(Duration::MAX).fatal(),
        "later"
    );
    panics!("panic-text", panic!("a\0text {}", 1), "panic: a\\0text 1");
    panics!("panic-long", panic!("{}", "p".repeat(10 << 20)), "(cut)");
    panics!("panic-number", std::panic::panic_any(7), "panic: without a text");
    panics!(
        "panic-bytes",
        std::panic::panic_any(vec![0_u8; 1 << 20]),
        "panic: without a text"
    );
    panics!(
        "panic-error",
        std::panic::panic_any(Box::new(Endless)),
        "panic: without a text"
    );
    panics!(
        "panic-grenade",
        std::panic::panic_any(Grenade),
        "panic: without a text"
    );
    panics!(
        "panic-again",
        std::panic::resume_unwind(Box::new("quiet")),
        "panic: quiet"
    );
    panics!(
        "unwrap",
        "no number".parse::<i32>().unwrap(),
        "panic: called `Result::unwrap()`"
    );
    answers!("result-nul", "a\0b", Ends::Well(Some(r#""a\\u0000b""#)));
    answers!(
        "result-nul-key",
        serde_json::json!({"\0": "\0\0"}),
        Ends::Well(Some(r#"{"\\u0000":"\\u0000\\u0000"}"#))
    );
    answers!("result-nan", f64::NAN, Ends::Well(None));
    answers!("result-infinite", [f64::INFINITY], Ends::Well(Some("[null]")));
    answers!("result-null", (), Ends::Well(None));
    answers!(
        "result-2-mib",
        "x".repeat(2 << 20),
        Ends::Dead("the result has 2097154 bytes")
    );
    answers!(
        "result-16-mib",
        vec![0_u8; 8 << 20],
        Ends::Dead("bytes of JSON, at most 1048576")
    );
    answers!(
        "result-deep",
        raw("[".repeat(100_000) + &"]".repeat(100_000)),
        Ends::Dead("stack depth limit")
    );
    answers!(
        "result-doubled",
        raw(r#"{"a":1,"a":2}"#.to_owned()),
        Ends::Well(Some(r#"{"a":1,"a":2}"#))
    );
    answers!(
        "result-number",
        raw("1e400".to_owned()),
        Ends::Well(Some("1e400"))
    );
    answers!(
        "result-panics",
        Unwritable::Panics,
        Ends::Dead("panic: while it was written")
    );
    answers!(
        "result-fails",
        Unwritable::Fails,
        Ends::Dead("the result is not JSON: fails\\0 while")
    );
    answers!(
        "result-no-text",
        Unwritable::NoText,
        Ends::Dead("the result is not JSON: key must be a string")
    );
    answers!(
        "result-escapes",
        "\u{1b}\u{7f}\u{202e}\u{2028}",
        Ends::Well(Some("\"\\u001b\u{7f}\u{202e}\u{2028}\""))
    );
    (handlers, expected)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whatever_a_handler_answers_its_task_ends_and_its_key_goes_on() {
    let (handlers, expected) = hostile_handlers();
    let life = Life::start(handlers, &["k", "other"]).await;
    let mut ids = Vec::new();
    for (kind, _) in &expected {
        let id = life.db.submit_with(kind, "k", "1", 0, 1, 300_000).await;
        ids.push((id, life.db.submit("noop", "k", "1").await));
    }
    let other = life.db.submit("noop", "other", "1").await;
    assert_eq!(life.db.end_of(other).await.state, State::Succeeded);
    for ((kind, ends), (id, next)) in expected.iter().zip(ids) {
        let end = life.db.end_of(id).await;
        let (state, error) = (end.state, end.error.clone().unwrap_or_default());
        match ends {
            Ends::Dead(part) => assert!(
                state == State::Dead && error.contains(part) && error.len() <= ERROR_BYTES,
                "{kind}: {end:.500?}"
            ),
            Ends::Well(result) => {
                let kept = end.result.as_ref().map(|result| result.get());
                assert_eq!((state, kept), (State::Succeeded, *result), "{kind}");
            }
        }
        assert_eq!(life.db.end_of(next).await.state, State::Succeeded, "after {kind}");
    }
    assert_eq!(life.db.count("select count(*) from ringmesh.task").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cached_value_that_panics_when_it_goes_ends_nothing_but_itself() {
    let handlers = Handlers::new().add("keep", |context: crate::Context, _: Value| async move {
        context.cache::<Grenade>().insert(Grenade);
        Ok::<(), Failure>(())
    });
    let mut life = Life::start(handlers, &["k", "other"]).await;
    let kept = life.db.submit("keep", "k", "1").await;
    assert_eq!(life.db.end_of(kept).await.state, State::Succeeded);
    let slot = slot_of("k");
    let leaving: Vec<_> = life.slots.iter().copied().filter(|(of, _)| *of == slot).collect();
    life.dispatch.leave(vec![slot], FAR);
    assert_eq!(life.left().await, leaving);
    life.dispatch.lost(leaving);
    let next = life.db.submit("noop", "other", "1").await;
    assert_eq!(life.db.end_of(next).await.state, State::Succeeded);
    life.dispatch.stop().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_payload_means_the_same_to_the_api_the_database_and_its_handler() {
    let life = Life::start(Handlers::new(), &["a"]).await;
    for row in tasks::rows().iter().filter(|row| row.field == "payload") {
        if row.http == Http::Taken {
            // As it was sent, digit for digit.
            let mut submit = submit_of(&row.body());
            submit.kind = "echo".to_owned();
            let inserted = Row {
                slot: slot_of("a"),
                submit,
                fingerprint: None,
            };
            let number = life.db.store.insert(&[&inserted]).await.unwrap()[0];
            let end = life
                .db
                .end_of(TaskId {
                    slot: slot_of("a"),
                    number,
                })
                .await;
            let given = row.value.trim_matches([' ', '\t', '\n', '\r']);
            assert!(
                end.result.as_ref().is_some_and(|result| result.get() == given),
                "{:.80}: {end:.300?}",
                row.value
            );
        }
        if row.sql == Sql::Taken {
            // As Postgres writes it.
            let call = call(row).replace("'k'", "'echo'");
            let id: String = sqlx::query_scalar(sqlx::AssertSqlSafe(call))
                .bind(&row.value)
                .fetch_one(&life.db.store.pool)
                .await
                .unwrap();
            let written: String = sqlx::query_scalar("select $1::jsonb::text")
                .bind(&row.value)
                .fetch_one(&life.db.store.pool)
                .await
                .unwrap();
            let end = life.db.end_of(id.parse().unwrap()).await;
            assert!(
                end.result.as_ref().is_some_and(|result| result.get() == written),
                "{:.80}: {end:.300?}",
                row.value
            );
            // Whoever parses it gets all of it.
            serde_json::from_str::<Value>(&written)
                .unwrap_or_else(|error| panic!("{:.80}: {error}", row.value));
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_keys_of_one_slot_run_and_starve_no_other() {
    let slot = slot_of("crowd-0");
    let mut crowd = vec!["crowd-0".to_owned()];
    for number in 1.. {
        let key = format!("crowd-{number}");
        if ringmesh_ring::Slot::of_bytes(key.as_bytes()) == slot {
            crowd.push(key);
        }
        if crowd.len() == 10_000 {
            break;
        }
    }
    let life = Life::start(Handlers::new(), &["crowd-0", "other"]).await;
    sqlx::query("select ringmesh.enqueue('noop', key, '1') from unnest($1::text[]) key")
        .bind(&crowd)
        .execute(&life.db.store.pool)
        .await
        .unwrap();
    let other = life.db.submit("noop", "other", "1").await;
    let end = life.db.end_of(other).await;
    assert_eq!(end.state, State::Succeeded);
    let deadline = tokio::time::Instant::now() + crate::store::testing::PATIENCE;
    while life.db.count("select count(*) from ringmesh.task").await > 0 {
        assert!(tokio::time::Instant::now() < deadline, "the crowd does not end");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let before: i64 = sqlx::query_scalar(
        "select count(*) from ringmesh.finished_task where finished_at >= $1 and kind = 'noop'",
    )
    .bind(end.finished_at)
    .fetch_one(&life.db.store.pool)
    .await
    .unwrap();
    assert_eq!(
        life.db
            .count("select count(*) from ringmesh.finished_task where state = 'succeeded'")
            .await,
        10_001
    );
    println!("{before} of 10,000 tasks of one slot ended after the one of another slot");
}
