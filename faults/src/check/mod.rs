//! From a history to what in it was not as promised: one file per invariant.
//!
//! Checkers are pure. They take what Postgres committed for the truth, and the nodes' own notes only where a promise is about
//! the nodes. Each takes time about linear in the history, sorting aside. Each has tests that a small good history passes, and
//! that for every kind of violation a doctored one fails: a check that cannot fail shows nothing.

mod attempts;
#[cfg(test)]
mod build;
mod conservation;
mod detection;
mod drains;
mod ending;
mod exactly_once;
mod fence;
mod figures;
mod gap;
mod idempotency;
mod isolation;
#[cfg(test)]
mod large;
mod movement;
mod no_loss;
mod order;
mod owner;
mod trust;
mod vacuity;
mod views;
mod windows;

pub use detection::Age;
pub(crate) use ending::known;
pub use figures::Figures;
pub(crate) use gap::KILL;
pub use vacuity::{Requirements, lacks};

use crate::history::History;

/// One thing that was not as promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// Which kind, in a word or two: what reports count by.
    pub kind: &'static str,
    /// What, in a sentence.
    pub text: String,
    /// The rows that show it.
    pub rows: Vec<String>,
}

impl Violation {
    pub(crate) fn new(kind: &'static str, text: impl Into<String>) -> Self {
        Violation {
            kind,
            text: text.into(),
            rows: Vec::new(),
        }
    }

    fn row(mut self, row: impl std::fmt::Debug) -> Self {
        self.rows.push(format!("{row:?}"));
        self
    }
}

/// Checks one promise.
pub trait Checker: Sync {
    /// Its short name, such as `I3`.
    fn id(&self) -> &'static str;
    /// The promise in a few words.
    fn title(&self) -> &'static str;
    /// What was not as promised; empty: all was.
    fn check(&self, history: &History) -> Vec<Violation>;
}

/// All checkers. I17 is none of them: it says of a run that it shows nothing, see [`lacks`].
pub fn all() -> &'static [&'static dyn Checker] {
    &[
        &no_loss::NoLoss,
        &exactly_once::ExactlyOnce,
        &fence::Fence,
        &owner::SingleOwner,
        &order::KeyOrder,
        &movement::Movement,
        &gap::Gap,
        &ending::Liveness,
        &trust::SelfFence,
        &conservation::Conservation,
        &attempts::Attempts,
        &idempotency::Idempotency,
        &isolation::Isolation,
        &ending::Hygiene,
        &views::Views,
        &drains::Drains,
    ]
}

/// Promises that nothing checks yet, with the reason. Reports name them beside those that were checked.
pub const UNCHECKED: &[(&str, &str, &str)] = &[(
    "I12",
    "each effect leaves one message, delivered at least once and in order",
    "the product has no outbox; what arrives doubled is checked by I13",
)];
