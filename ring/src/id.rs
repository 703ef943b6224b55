//! The two numbers that ownership is told by.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The number that Postgres gives to each start of a node, from a sequence; never reused. Prints as `N2`.
///
/// Names are labels, this is the identity: a node that restarts under its old name is another incarnation, and what
/// the former one held is not its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Incarnation(pub i64);

impl Incarnation {
    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }
}

impl fmt::Display for Incarnation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "N{}", self.0)
    }
}

/// A slot's fencing number. It rises by one at each grant and is never reset. Prints as `e5`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Epoch(pub i64);

impl Epoch {
    /// The number.
    pub const fn get(self) -> i64 {
        self.0
    }

    /// The epoch that the next grant of the slot gets.
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0 + 1)
    }
}

impl fmt::Display for Epoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}", self.0)
    }
}
