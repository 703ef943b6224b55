//! Handlers: what runs the tasks of a kind.

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::run::ERROR_BYTES;

/// What a handler's run came to, as JSON text; `None`: no result to keep.
pub(crate) type Answer = Result<Option<String>, Failure>;

type Run = Pin<Box<dyn Future<Output = Answer> + Send>>;

pub(crate) enum Handler {
    /// Neither waits nor blocks: is called where the lanes are kept, without a task of its own.
    Quick(fn(String) -> Answer),
    /// Runs as a tokio task.
    Task(Box<dyn Fn(Context, String) -> Run + Send + Sync>),
}

/// The handlers of a node, by kind.
///
/// ```
/// # use ringmesh::handler::{Failure, Handlers};
/// # use ringmesh::context::Context;
/// #[derive(serde::Deserialize)]
/// struct Mail { to: String }
///
/// let handlers = Handlers::new().add("mail", |ctx: Context, mail: Mail| async move {
///     println!("to {} for {}", mail.to, ctx.key());
///     Ok::<_, Failure>("sent")
/// });
/// assert!(handlers.knows("mail"));
/// ```
#[derive(Default)]
pub struct Handlers {
    by_kind: HashMap<String, Handler>,
}

impl fmt::Debug for Handlers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.kinds()).finish()
    }
}

impl Handlers {
    /// None yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds the handler of a kind, in place of a former one.
    ///
    /// The payload is read by serde; one that does not parse is a final failure with serde's text. The result is kept as
    /// JSON. Any error that is a `std::error::Error` turns into a [`Failure`] by `?`.
    #[must_use]
    pub fn add<P, R, E, F, Fut>(mut self, kind: impl Into<String>, handler: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        E: Into<Failure>,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        let handler = Arc::new(handler);
        let run = move |context: Context, payload: String| -> Run {
            let handler = handler.clone();
            Box::pin(async move {
                let payload = match serde_json::from_str::<P>(&payload) {
                    Ok(payload) => payload,
                    Err(error) => {
                        return Err(Failure::new(format_args!("the payload does not parse: {error}")).fatal());
                    }
                };
                let result = handler(context, payload).await.map_err(Into::into)?;
                match serde_json::to_string(&result) {
                    Ok(text) => Ok(if text == "null" { None } else { Some(text) }),
                    Err(error) => Err(Failure::new(format_args!("the result is not JSON: {error}")).fatal()),
                }
            })
        };
        self.by_kind.insert(kind.into(), Handler::Task(Box::new(run)));
        self
    }

    /// Adds a handler that neither waits nor blocks.
    #[must_use]
    pub(crate) fn add_quick(mut self, kind: impl Into<String>, handler: fn(String) -> Answer) -> Self {
        self.by_kind.insert(kind.into(), Handler::Quick(handler));
        self
    }

    /// Adds all handlers of `others`, in place of former ones of the same kinds.
    #[must_use]
    pub fn and(mut self, others: Handlers) -> Self {
        self.by_kind.extend(others.by_kind);
        self
    }

    /// Whether a kind has a handler.
    pub fn knows(&self, kind: &str) -> bool {
        self.by_kind.contains_key(kind)
    }

    /// The kinds that have a handler, sorted.
    pub fn kinds(&self) -> Vec<String> {
        let mut kinds: Vec<String> = self.by_kind.keys().cloned().collect();
        kinds.sort_unstable();
        kinds
    }

    pub(crate) fn get(&self, kind: &str) -> Option<&Handler> {
        self.by_kind.get(kind)
    }
}

/// Why a run did not succeed, and what shall follow.
///
/// Made by `?` from any `std::error::Error` (its whole chain is kept as text), or by [`Failure::new`]. It is not an error
/// itself, so that the former is possible.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Failure {
    pub(crate) text: String,
    pub(crate) then: Then,
}

/// What follows a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Then {
    /// The next run, after the usual backoff.
    Retry,
    /// The next run, after this time.
    RetryAfter(Duration),
    /// The next run, after this time; no failure is counted.
    Snooze(Duration),
    /// None: the task is dead.
    End,
}

impl Failure {
    /// A failure with this text. The task is tried again after the usual backoff, while it has attempts left.
    pub fn new(text: impl fmt::Display) -> Self {
        Failure {
            text: text.to_string(),
            then: Then::Retry,
        }
    }

    /// Makes it final: the task ends dead, whatever attempts are left.
    #[must_use]
    pub fn fatal(mut self) -> Self {
        self.then = Then::End;
        self
    }

    /// Sets when the next run comes, in place of the backoff.
    #[must_use]
    pub fn retry_after(mut self, delay: Duration) -> Self {
        self.then = Then::RetryAfter(delay);
        self
    }

    /// No failure: the task runs again after this time, and nothing is counted. Its key is held for it meanwhile.
    pub fn snooze(delay: Duration) -> Self {
        Failure {
            text: "snoozed".to_owned(),
            then: Then::Snooze(delay),
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl<E: std::error::Error + Send + Sync + 'static> From<E> for Failure {
    fn from(error: E) -> Self {
        let mut text = error.to_string();
        let mut source = error.source();
        // A chain may lead back to itself. No more is kept anyway.
        while let Some(cause) = source.filter(|_| text.len() <= ERROR_BYTES) {
            text.push_str(": ");
            text.push_str(&cause.to_string());
            source = cause.source();
        }
        Failure {
            text,
            then: Then::Retry,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_keeps_the_text_of_the_whole_chain() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::num::ParseIntError);
        let failure = Failure::from(Outer("x".parse::<i32>().unwrap_err()));
        assert_eq!(failure.text, "outer: invalid digit found in string");
        assert_eq!(failure.then, Then::Retry);
        assert_eq!(failure.fatal().then, Then::End);
    }
}
