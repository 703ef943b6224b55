//! One run of a task: calls its handler, catches what goes wrong, and puts the outcome into words that Postgres takes.

use std::any::Any;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::FutureExt as _;

use crate::context::Context;
use crate::failpoint;
use crate::handler::{Answer, Failure, Handler, Handlers};
use crate::store::{Commit, Error, Finish, Me, ReadBack, Store};
use crate::telemetry::metric;

/// The longest result kept, in bytes of JSON.
pub const RESULT_BYTES: usize = 1 << 20;
/// The longest error text kept, in bytes.
pub const ERROR_BYTES: usize = 4096;

/// What a run came to.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// The handler answered; nothing is written yet.
    Answered(Answer),
    /// The handler's transaction committed, with the task's completion in it.
    Committed,
    /// The handler's transaction was refused: nothing of it was committed.
    Refused,
    /// So it was, since SQL had completed the task elsewhere.
    Ended,
    /// The handler's transaction gave no answer to its commit.
    Unknown,
    /// The task is not ours any more; the handler was not called.
    Gone,
    /// Its payload could not be read; the handler was not called.
    NotStarted(Error),
}

/// Calls the handler of a kind that has one of the kind `Task`.
pub(crate) async fn run(
    handlers: Arc<Handlers>,
    store: Arc<Store>,
    me: Me,
    context: Context,
    payload: Option<String>,
    head: bool,
) -> Outcome {
    let inner = context.inner.clone();
    let payload = match payload {
        Some(payload) => payload,
        None => match store.payload(inner.token).await {
            Ok(Some(payload)) => payload,
            Ok(None) => return Outcome::Gone,
            Err(error) => return Outcome::NotStarted(error),
        },
    };
    if let Err(error) = failpoint::at(failpoint::HANDLER).await {
        return Outcome::NotStarted(error);
    }
    let began = Instant::now();
    let answer = AssertUnwindSafe(async {
        match handlers.get(&inner.kind) {
            Some(Handler::Task(handler)) => handler(context, payload).await,
            Some(Handler::Quick(handler)) => handler(payload),
            None => Err(Failure::new("this node knows no handler for the kind")),
        }
    })
    .catch_unwind()
    .await
    .unwrap_or_else(|panic| {
        let failure = Failure::new(format_args!("panic: {}", panic_text(&*panic)));
        let_go(panic);
        Err(failure)
    });
    if failpoint::at(failpoint::HANDLED).await.is_err() {
        inner.transaction.end();
        return Outcome::Unknown;
    }
    if !inner.transaction.is_open() {
        return Outcome::Answered(answer);
    }
    // In a task of its own, which nobody drops half-way: an aborted run must not leave a COMMIT without a reader.
    let ending = tokio::spawn(async move {
        let result = match answer.and_then(|result| result.map(result_text).transpose()) {
            Ok(result) => result,
            Err(failure) => {
                inner.transaction.rollback().await;
                return Outcome::Answered(Err(failure));
            }
        };
        let finish = Finish {
            token: inner.token,
            end: Ok(result),
            run: began.elapsed(),
            failed: false,
            head,
        };
        match inner.transaction.commit(me, finish).await {
            Some(Ok(Commit::Done)) => Outcome::Committed,
            Some(Ok(Commit::Fenced)) => {
                let known = store.read_back(&[inner.token]).await;
                if known.is_ok_and(|known| known.iter().any(|(_, what)| *what == ReadBack::Ended)) {
                    return Outcome::Ended;
                }
                // Counted here: the life whose run this was may be over.
                metrics::counter!(metric::FENCED_WRITES).increment(1);
                tracing::info!(task = %inner.token.id, "the commit of a run was refused: fenced, or ended elsewhere");
                Outcome::Refused
            }
            Some(Err(Error::Unknown(_))) => Outcome::Unknown,
            // A full disk, a server in recovery, a deadlock: nothing was written, and the handler has not failed.
            Some(Err(Error::Unavailable(error))) => {
                tracing::warn!(task = %inner.token.id, %error, "a run could not be committed now, it is repeated");
                Outcome::Answered(Err(Failure::snooze(AGAIN)))
            }
            Some(Err(error)) => Outcome::Answered(Err(error.into())),
            None => {
                inner.transaction.end();
                Outcome::Answered(Err(Failure::new(
                    "the handler returned while its transaction was still in use: drop it first",
                )))
            }
        }
    });
    ending.await.unwrap_or(Outcome::Unknown)
}

/// Until a run is repeated that Postgres could not commit for lack of something.
const AGAIN: Duration = Duration::from_secs(1);

pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    panic
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| panic.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("without a text")
}

/// Drops what a handler made, which may panic at that: where it is dropped by others than the handler, it must not take them along.
pub(crate) fn let_go<T>(value: T) {
    if let Err(panic) = std::panic::catch_unwind(AssertUnwindSafe(|| drop(value))) {
        // It may panic once more.
        std::mem::forget(panic);
    }
}

/// A result as Postgres takes it.
///
/// Its `json` stores the escape `\u0000`, but each reader that turns it into text would then fail; so the escape becomes the
/// visible text `\u0000`. A result that is too large is a final failure.
pub(crate) fn result_text(result: String) -> Result<String, Failure> {
    if result.len() > RESULT_BYTES {
        return Err(Failure::new(format_args!(
            "the result has {} bytes of JSON, at most {RESULT_BYTES} are kept",
            result.len()
        ))
        .fatal());
    }
    if !result.contains("\\u0000") {
        return Ok(result);
    }
    let mut text = String::with_capacity(result.len() + 8);
    let mut rest = result.as_str();
    while let Some(at) = rest.find('\\') {
        text.push_str(&rest[..at]);
        let escape = &rest[at..];
        if escape.starts_with("\\u0000") {
            text.push('\\');
        }
        // The character after the backslash belongs to it: `\\u0000` is a backslash and the text u0000.
        let length = 1 + escape[1..].chars().next().map_or(0, char::len_utf8);
        text.push_str(&escape[..length]);
        rest = &escape[length..];
    }
    text.push_str(rest);
    Ok(text)
}

/// An error text as Postgres takes it: NUL made visible, and cut.
pub(crate) fn error_text(text: &str) -> String {
    const CUT: &str = " … (cut)";
    let text = text.replace('\0', "\\0");
    if text.len() <= ERROR_BYTES {
        return text;
    }
    let at = text.floor_char_boundary(ERROR_BYTES - CUT.len());
    format!("{}{CUT}", &text[..at])
}

/// The delay after this many failures: doubles from `first` up to `most`, then takes a random part between a half and all of
/// it (`random` is any number), so that tasks which failed together do not come back together.
pub(crate) fn backoff(failures: i32, first: Duration, most: Duration, random: u64) -> Duration {
    let doublings = u32::try_from(failures.clamp(0, 62)).unwrap_or(0);
    let full = first
        .as_millis()
        .saturating_mul(1_u128 << doublings)
        .min(most.as_millis());
    let full = u64::try_from(full).unwrap_or(u64::MAX);
    let half = full / 2;
    Duration::from_millis(
        half + if full > half {
            random % (full - half + 1)
        } else {
            0
        },
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nul_in_a_result_becomes_visible_and_nothing_else_changes() {
        for (given, kept) in [
            (r#""a\u0000b""#, r#""a\\u0000b""#),
            (r#""a\\u0000b""#, r#""a\\u0000b""#),
            (r#""\\\u0000""#, r#""\\\\u0000""#),
            (
                r#"{"ä\n":"\u0001\u0000\u0000"}"#,
                r#"{"ä\n":"\u0001\\u0000\\u0000"}"#,
            ),
        ] {
            let text = result_text(given.to_owned()).unwrap();
            assert_eq!(text, kept);
            serde_json::from_str::<serde_json::Value>(&text).unwrap();
        }
        assert!(
            result_text("1".repeat(RESULT_BYTES + 1))
                .unwrap_err()
                .text
                .contains("1048577 bytes")
        );
    }

    #[test]
    fn an_error_text_is_cut_between_characters_and_says_so() {
        let text = error_text(&"ä".repeat(4000));
        assert!(text.len() <= ERROR_BYTES && text.ends_with("ä … (cut)"));
        assert_eq!(error_text("a\0b"), "a\\0b");
    }

    #[test]
    fn a_backoff_doubles_up_to_its_bound_and_never_overflows() {
        let (first, most) = (Duration::from_secs(1), Duration::from_secs(300));
        let full = |failures| backoff(failures, first, most, u64::MAX / 2);
        for (failures, seconds) in [(i32::MIN, 1), (0, 1), (1, 2), (5, 32), (9, 300), (i32::MAX, 300)] {
            let full = full(failures);
            assert!(
                full >= Duration::from_secs(seconds) / 2 && full <= Duration::from_secs(seconds),
                "{failures}"
            );
        }
        let mut before = Duration::ZERO;
        for failures in (0..=10_000).chain([i32::MAX - 1, i32::MAX]) {
            for random in [0, 1, u64::MAX / 2, u64::MAX] {
                let delay = backoff(failures, first, most, random);
                assert!(delay >= first / 2 && delay <= most, "{failures}: {delay:?}");
            }
            let least = backoff(failures, first, most, 0);
            assert!(least >= before, "{failures}: {least:?} after {before:?}");
            before = least;
        }
        assert_eq!(backoff(3, Duration::ZERO, most, 7), Duration::ZERO);
        assert!(backoff(i32::MAX, Duration::MAX, Duration::MAX, u64::MAX) > most);
    }
}
