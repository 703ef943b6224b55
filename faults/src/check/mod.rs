//! From a history to what in it was not as promised: one file per invariant.
//!
//! Checkers are pure. They take what Postgres committed for the truth, and the nodes' own notes only where a promise is about
//! the nodes. Each takes time about linear in the history, sorting aside. Each has tests that a small good history passes, and
//! that for every kind of violation a doctored one fails: a check that cannot fail shows nothing.

#[cfg(test)]
mod build;
mod conservation;
mod exactly_once;
mod fence;
mod no_loss;
mod order;
mod owner;
mod trust;
mod windows;

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
    fn new(kind: &'static str, text: impl Into<String>) -> Self {
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

/// All checkers.
pub fn all() -> &'static [&'static dyn Checker] {
    &[
        &no_loss::NoLoss,
        &exactly_once::ExactlyOnce,
        &fence::Fence,
        &owner::SingleOwner,
        &order::KeyOrder,
        &trust::SelfFence,
        &conservation::Conservation,
    ]
}
