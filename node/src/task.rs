//! A task, as submitted, as claimed, and as readers see it.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ringmesh_ring::{Epoch, Incarnation, Key, Slot};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use crate::json;

/// A task's id: its slot, so that any node can find it, and its number, which orders it among the tasks of its key.
/// Written `SLOT-NUMBER`, a string in JSON.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskId {
    /// The slot of the task's key.
    pub slot: Slot,
    /// From one sequence of the database, above 0.
    pub number: i64,
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.slot.get(), self.number)
    }
}

/// Text that is no task id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("a task id is SLOT-NUMBER, with a slot from 0 to 4095 and a number from 1")]
pub struct BadTaskId;

impl FromStr for TaskId {
    type Err = BadTaskId;

    /// Takes only the one way in which an id is written: no sign, no leading zero.
    fn from_str(text: &str) -> Result<Self, BadTaskId> {
        let (slot, number) = text.split_once('-').ok_or(BadTaskId)?;
        let id = TaskId {
            slot: slot.parse().ok().and_then(Slot::new).ok_or(BadTaskId)?,
            number: number.parse().ok().filter(|n| *n > 0).ok_or(BadTaskId)?,
        };
        if id.to_string() == text {
            Ok(id)
        } else {
            Err(BadTaskId)
        }
    }
}

impl Serialize for TaskId {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TaskId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// How many failures and crashes end a task, unless it says otherwise.
pub const DEFAULT_ATTEMPTS: u32 = 10;

/// How long one run of a task may take, unless it says otherwise.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(300);

/// Whether a text is a kind: 1 to 128 letters, digits, or one of `_ . : / -`.
pub fn is_kind(text: &str) -> bool {
    (1..=128).contains(&text.len())
        && text
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || b"_.:/-".contains(&byte))
}

/// A checked submit: what the store inserts.
#[derive(Debug, Clone)]
pub struct Submit {
    /// Which handler runs it.
    pub kind: String,
    /// The routing value.
    pub key: Key,
    /// JSON text, checked, at most 1 MiB.
    pub payload: Box<RawValue>,
    /// Unique per kind and key within the idempotency window.
    pub idempotency_key: Option<String>,
    /// Not before this time; `None`: now.
    pub run_at: Option<DateTime<Utc>>,
    /// 0 (default) to 9; orders between keys only.
    pub priority: u8,
    /// How many failures and crashes end it.
    pub max_attempts: u32,
    /// How long one run may take.
    pub timeout: Duration,
    /// The incarnation whose client waits for the end.
    pub waiter: Option<Incarnation>,
}

impl Submit {
    /// A task with default options, due now.
    ///
    /// # Errors
    /// The kind is none, or the payload is no JSON that Postgres and every reader take alike. Nothing is written.
    pub fn new<P: Serialize>(kind: &str, key: Key, payload: &P) -> Result<Self, BadSubmit> {
        if !is_kind(kind) {
            return Err(BadSubmit::Kind);
        }
        let text = serde_json::to_string(payload).map_err(BadSubmit::Payload)?;
        Ok(Submit {
            kind: kind.to_owned(),
            key,
            payload: json::payload(&text)?,
            idempotency_key: None,
            run_at: None,
            priority: 0,
            max_attempts: DEFAULT_ATTEMPTS,
            timeout: DEFAULT_TIMEOUT,
            waiter: None,
        })
    }
}

/// Why a submit was not even sent.
#[derive(Debug, thiserror::Error)]
pub enum BadSubmit {
    /// No kind.
    #[error("a kind has 1 to 128 letters, digits, or one of _ . : / -")]
    Kind,
    /// serde could not write the payload.
    #[error("the payload cannot be written as JSON")]
    Payload(#[source] serde_json::Error),
    /// The payload's text is refused.
    #[error(transparent)]
    Json(#[from] json::Error),
}

/// A task that this node has claimed.
#[derive(Debug, Clone)]
pub struct Claimed {
    /// Its id.
    pub id: TaskId,
    /// The epoch of its slot under which it was claimed.
    pub epoch: Epoch,
    /// The number of its claims: with the epoch the token of this claim.
    pub attempt: i32,
    /// Its key.
    pub key: Key,
    /// Which handler runs it.
    pub kind: String,
    /// JSON text; `None`: too large to travel with a claim, read it before the run.
    pub payload: Option<String>,
    /// 0 to 9.
    pub priority: u8,
    /// Runs that failed so far.
    pub failures: i32,
    /// Runs that took their node with them so far.
    pub crashes: i32,
    /// How suspect it is: 0 not, -1 to be started among few suspects, -2 alone.
    pub trial: i16,
    /// Whether its last claim was lost with its owner, which makes it a suspect.
    pub lost: bool,
    /// Whether it is the head of a held key.
    pub head: bool,
    /// How many failures and crashes end it.
    pub max_attempts: i32,
    /// How long one run may take.
    pub timeout: Duration,
    /// The incarnation whose client waits for the end.
    pub waiter: Option<Incarnation>,
    /// When it was submitted, by the database's clock.
    pub created_at: DateTime<Utc>,
}

/// Where a task stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Waits for its time, or for its retry.
    Scheduled,
    /// Due; waits to be claimed.
    Pending,
    /// Claimed by the present owner of its slot.
    Running,
    /// Ended well.
    Succeeded,
    /// Ended after its last attempt.
    Dead,
    /// Ended by its submitter.
    Cancelled,
}

impl State {
    /// Whether the task has ended; such a state never changes again.
    pub fn is_final(self) -> bool {
        matches!(self, State::Succeeded | State::Dead | State::Cancelled)
    }
}

/// A task as readers see it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct View {
    /// Its id.
    pub id: TaskId,
    /// Which handler runs it.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// The slot of its key.
    pub slot: Slot,
    /// Where it stands.
    pub state: State,
    /// 0 to 9.
    pub priority: i16,
    /// The number of its claims.
    pub attempt: i32,
    /// Runs that failed.
    pub failures: i32,
    /// Runs that took their node with them.
    pub crashes: i32,
    /// What its handler answered.
    pub result: Option<Box<RawValue>>,
    /// The last error.
    pub error: Option<String>,
    /// When it was submitted.
    pub created_at: DateTime<Utc>,
    /// When its last run started, once it has ended.
    pub started_at: Option<DateTime<Utc>>,
    /// When it ended.
    pub finished_at: Option<DateTime<Utc>>,
    /// When it is due, if it waits for that.
    pub run_at: Option<DateTime<Utc>>,
    /// The name of the node that has claimed it or ended it.
    pub node: Option<String>,
    /// The epoch under which it is claimed or ended.
    pub epoch: Option<Epoch>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_has_one_spelling() {
        let id = TaskId {
            slot: Slot::new(163).unwrap(),
            number: 42,
        };
        assert_eq!(id.to_string(), "163-42");
        assert_eq!("163-42".parse(), Ok(id));
        for bad in [
            "",
            "-",
            "163",
            "163-",
            "-42",
            "0163-42",
            "163-042",
            "163-+42",
            "163--42",
            "4096-1",
            "163-0",
            "163-9223372036854775808",
            " 163-42",
        ] {
            assert_eq!(bad.parse::<TaskId>(), Err(BadTaskId), "{bad:?}");
        }
    }
}
