//! From a history to what in it was not as promised: one file per invariant.
//!
//! Checkers are pure. They take what Postgres committed for the truth, and the nodes' own notes only where a promise is about the nodes.

use crate::history::History;

/// One thing that was not as promised.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// What, in a sentence.
    pub text: String,
    /// The rows that show it.
    pub rows: Vec<String>,
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
    &[]
}
