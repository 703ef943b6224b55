//! The slot table: what a node holds of the slots, kept by one writer.
//!
//! Only Postgres says who owns a slot. This table is a node's memory of what Postgres told it last, together with what
//! the node is doing about it. Its writer feeds it the answers of its own statements and, each tick, a read of all
//! rows; everybody else sees snapshots.
//!
//! # States of a slot
//!
//! - *not held*: not in the table.
//! - [`Owned`](State::Owned): granted to this node, which claims its tasks and runs them.
//! - [`Leaving`](State::Leaving): a handoff is agreed. Nothing is claimed any more, running tasks end and finish under
//!   the epoch that is still held.
//! - [`Moving`](State::Moving): nothing runs any more, the transfer statement is on its way to Postgres.
//! - [`InDoubt`](State::InDoubt): the answer to the transfer never came. It may have happened, or happen still.
//!
//! | event                   | from            | to                                         |
//! |-------------------------|-----------------|--------------------------------------------|
//! | granted                 | any             | `Owned` under the new epoch                |
//! | leaving                 | Owned, Leaving  | `Leaving`                                  |
//! | stay                    | Owned, Leaving  | `Owned`                                    |
//! | moving                  | Leaving         | `Moving`                                   |
//! | transferred             | Moving, InDoubt | not held                                   |
//! | refused                 | Moving, InDoubt | `Leaving`                                  |
//! | no answer               | Moving, InDoubt | `InDoubt`                                  |
//! | lost (stale epoch)      | any             | not held                                   |
//! | read, an old row        | any             | as before                                  |
//! | read, at the held epoch | any             | as before, but from `InDoubt` to `Leaving` |
//! | read, a later epoch     | any             | `Owned` under it if mine, else not held    |
//! | fenced                  | any             | not held, for ever                         |
//!
//! Everything else is an [`Error`] and changes nothing.
//!
//! # Invariants
//!
//! 1. At most one epoch is held per slot, and the epochs held of a slot only rise. The table remembers the highest
//!    epoch it ever heard of for each slot, also of those it lost; a row below that is an old read and is ignored. So
//!    a slow read that overtakes a transfer does not bring the slot back.
//! 2. A row above the held epoch always wins, whatever the state: somebody was granted the slot since. If that was
//!    this node (a grant whose answer was lost), the old epoch is dropped and the new one adopted, never swapped
//!    silently, because what was started under the old one is fenced.
//! 3. Work is claimed in `Owned` only.
//! 4. A slot that is `Moving` is left alone by a read that still shows it here: the read may be older than the
//!    transfer, whose own answer is about to say. Only when that answer is known never to come (`InDoubt`) does such
//!    a read count, and it leads to `Leaving`, not to `Owned`: claims stay stopped, and the transfer is simply sent
//!    again. Should the first one arrive at Postgres late after all, the second finds the epoch changed.
//! 5. Once fenced, always fenced. Another incarnation needs another table.
//!
//! None of this is what keeps two nodes from writing; the fence on each write does that. The table keeps a node
//! from wasting work, and from starting what it already knows to be void.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{Epoch, Incarnation, SLOTS, Slot};

/// A slot's row, as Postgres says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Row {
    /// Which slot.
    pub slot: Slot,
    /// Who was granted it last; it may have been fenced since.
    pub owner: Option<Incarnation>,
    /// The epoch of that grant.
    pub epoch: Epoch,
}

/// What a node is doing with a slot that it holds. See the [module](self).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum State {
    /// Claims and runs its tasks.
    Owned,
    /// Claims stopped; running tasks end.
    Leaving {
        /// Who will be given the slot.
        to: Incarnation,
    },
    /// The transfer is on its way.
    Moving {
        /// Whom it is given to.
        to: Incarnation,
    },
    /// The answer to the transfer never came.
    InDoubt {
        /// Whom it may have been given to.
        to: Incarnation,
    },
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Owned => f.write_str("owned"),
            Self::Leaving { to } => write!(f, "leaving to {to}"),
            Self::Moving { to } => write!(f, "moving to {to}"),
            Self::InDoubt { to } => write!(f, "in doubt, moving to {to}"),
        }
    }
}

/// A slot that the node holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Held {
    /// Under which epoch.
    pub epoch: Epoch,
    /// What is being done with it.
    #[serde(flatten)]
    pub state: State,
}

/// What a read of the rows changed, each by slot, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Changes {
    /// Held now, and not before under this epoch.
    pub adopted: Vec<(Slot, Epoch)>,
    /// No longer held under this epoch: what runs under it is fenced. A slot may be in both lists.
    pub dropped: Vec<(Slot, Epoch)>,
}

impl Changes {
    /// Whether nothing changed.
    pub fn is_empty(&self) -> bool {
        self.adopted.is_empty() && self.dropped.is_empty()
    }
}

/// An event that does not fit the slot's state. Nothing was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The node does not hold the slot.
    #[error("{slot} is not held")]
    NotHeld {
        /// Which slot.
        slot: Slot,
    },
    /// The event is not for this state.
    #[error("{slot} is {state}, which does not go with: {event}")]
    Unfit {
        /// Which slot.
        slot: Slot,
        /// Its state, which stays.
        state: State,
        /// What happened.
        event: &'static str,
    },
    /// The grant is older than what is known of the slot.
    #[error("{slot} was granted at {granted}, and {known} is known already")]
    Old {
        /// Which slot.
        slot: Slot,
        /// The epoch of the grant.
        granted: Epoch,
        /// The highest epoch known.
        known: Epoch,
    },
    /// The whole incarnation is fenced.
    #[error("{0} is fenced and holds nothing any more")]
    Fenced(Incarnation),
}

/// What a node holds. See the [module](self).
#[derive(Debug, Clone)]
pub struct Table {
    me: Incarnation,
    fenced: bool,
    held: BTreeMap<Slot, Held>,
    /// By slot, the highest epoch ever heard of.
    known: Vec<Epoch>,
}

/// All that can happen to one slot.
#[derive(Debug, Clone, Copy)]
enum Event {
    Read {
        owner: Option<Incarnation>,
        epoch: Epoch,
    },
    Granted(Epoch),
    Leaving(Incarnation),
    Stay,
    Moving,
    Transferred,
    Refused,
    NoAnswer,
    Lost(Epoch),
}

impl Event {
    fn name(self) -> &'static str {
        match self {
            Self::Read { .. } => "read",
            Self::Granted(_) => "granted",
            Self::Leaving(_) => "leaving",
            Self::Stay => "stay",
            Self::Moving => "moving",
            Self::Transferred => "transferred",
            Self::Refused => "refused",
            Self::NoAnswer => "no answer",
            Self::Lost(_) => "lost",
        }
    }
}

/// What an event leads to.
enum Next {
    /// Nothing changes.
    Same,
    /// Held as before, in another state.
    State(State),
    /// Held under this epoch from now on; what was held before is dropped.
    Adopt(Epoch),
    /// Not held any more; nothing below this epoch is believed from now on.
    Drop(Epoch),
}

impl Table {
    /// The table of a node that holds nothing.
    pub fn new(me: Incarnation) -> Self {
        Self {
            me,
            fenced: false,
            held: BTreeMap::new(),
            known: vec![Epoch(i64::MIN); usize::from(SLOTS)],
        }
    }

    /// Whose table it is.
    pub fn me(&self) -> Incarnation {
        self.me
    }

    /// Whether [`Table::on_fenced`] was called.
    pub fn is_fenced(&self) -> bool {
        self.fenced
    }

    /// The slot, if it is held.
    pub fn get(&self, slot: Slot) -> Option<Held> {
        self.held.get(&slot).copied()
    }

    /// The epoch under which the slot is held, and under which its tasks may finish.
    pub fn epoch(&self, slot: Slot) -> Option<Epoch> {
        self.get(slot).map(|held| held.epoch)
    }

    /// Whether tasks of this slot may be claimed.
    pub fn may_claim(&self, slot: Slot) -> bool {
        self.get(slot).is_some_and(|held| held.state == State::Owned)
    }

    /// The slots whose tasks may be claimed, with their epochs, ascending.
    pub fn claimable(&self) -> impl Iterator<Item = (Slot, Epoch)> + '_ {
        self.iter()
            .filter(|(_, held)| held.state == State::Owned)
            .map(|(slot, held)| (slot, held.epoch))
    }

    /// The slots held, ascending.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, Held)> + '_ {
        self.held.iter().map(|(slot, held)| (*slot, *held))
    }

    /// How many slots are held.
    pub fn len(&self) -> usize {
        self.held.len()
    }

    /// Whether no slot is held.
    pub fn is_empty(&self) -> bool {
        self.held.is_empty()
    }

    /// The highest epoch ever heard of for the slot, or `None` before the first.
    pub fn known_epoch(&self, slot: Slot) -> Option<Epoch> {
        Some(self.known[slot.index()]).filter(|epoch| *epoch != Epoch(i64::MIN))
    }

    /// Takes rows read from Postgres: all of them, or any part.
    pub fn on_read(&mut self, rows: &[Row]) -> Changes {
        let mut changes = Changes::default();
        for &Row { slot, owner, epoch } in rows {
            // A row fits every state: a read is news, never a mistake. Only a fenced table takes none.
            let Ok(step) = self.transition(slot, Event::Read { owner, epoch }) else {
                continue;
            };
            changes.adopted.extend(step.adopted.map(|epoch| (slot, epoch)));
            changes.dropped.extend(step.dropped.map(|epoch| (slot, epoch)));
        }
        changes.adopted.sort_unstable();
        changes.dropped.sort_unstable();
        changes
    }

    /// Postgres answered a grant: the slot is this node's from now on. Returns the epoch that this replaces, if the
    /// slot was still held under an older one.
    ///
    /// # Errors
    ///
    /// [`Error::Old`] if a later grant of the slot is known already: then the slot is not held.
    pub fn on_granted(&mut self, slot: Slot, epoch: Epoch) -> Result<Option<Epoch>, Error> {
        Ok(self.transition(slot, Event::Granted(epoch))?.dropped)
    }

    /// A handoff is agreed, or is agreed with another node than before. Claims of the slot stop.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] once the transfer is on its way.
    pub fn on_leaving(&mut self, slot: Slot, to: Incarnation) -> Result<(), Error> {
        self.transition(slot, Event::Leaving(to)).map(drop)
    }

    /// The handoff is called off. Claims of the slot go on.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] once the transfer is on its way.
    pub fn on_stay(&mut self, slot: Slot) -> Result<(), Error> {
        self.transition(slot, Event::Stay).map(drop)
    }

    /// The transfer is about to be sent; nothing of the slot runs any more.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] unless the slot is leaving.
    pub fn on_moving(&mut self, slot: Slot) -> Result<(), Error> {
        self.transition(slot, Event::Moving).map(drop)
    }

    /// Postgres answered that the slot was transferred. Returns the epoch under which it was held.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] unless the slot is moving.
    pub fn on_transferred(&mut self, slot: Slot) -> Result<Option<Epoch>, Error> {
        Ok(self.transition(slot, Event::Transferred)?.dropped)
    }

    /// The transfer surely did not happen, and the slot is still held: the next owner is fenced, or the statement was
    /// never run. The slot is leaving again.
    ///
    /// If the reason was a stale epoch, the slot is lost instead: [`Table::on_lost`].
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] unless the slot is moving.
    pub fn on_refused(&mut self, slot: Slot) -> Result<(), Error> {
        self.transition(slot, Event::Refused).map(drop)
    }

    /// The answer to the transfer will never come (a cut connection, a timeout). The next read decides.
    ///
    /// # Errors
    ///
    /// [`Error::Unfit`] unless the slot is moving.
    pub fn on_no_answer(&mut self, slot: Slot) -> Result<(), Error> {
        self.transition(slot, Event::NoAnswer).map(drop)
    }

    /// A write under this epoch was refused because the epoch is stale. Returns the epoch dropped; `None` if the slot
    /// is no longer held under it anyway.
    pub fn on_lost(&mut self, slot: Slot, epoch: Epoch) -> Option<Epoch> {
        self.transition(slot, Event::Lost(epoch)).ok()?.dropped
    }

    /// This incarnation is fenced. Returns all that was held; nothing will be any more.
    pub fn on_fenced(&mut self) -> Vec<(Slot, Epoch)> {
        self.fenced = true;
        std::mem::take(&mut self.held)
            .into_iter()
            .map(|(slot, held)| (slot, held.epoch))
            .collect()
    }

    /// The only function that changes a slot.
    fn transition(&mut self, slot: Slot, event: Event) -> Result<Step, Error> {
        if self.fenced {
            return Err(Error::Fenced(self.me));
        }
        let known = self.known[slot.index()];
        let before = self.get(slot);

        let next = match event {
            Event::Read { epoch, .. } if epoch < known => Next::Same,
            Event::Read { owner, epoch } if owner == Some(self.me) => match before {
                Some(held) if held.epoch == epoch => match held.state {
                    State::InDoubt { to } => Next::State(State::Leaving { to }),
                    State::Owned | State::Leaving { .. } | State::Moving { .. } => Next::Same,
                },
                Some(_) | None => Next::Adopt(epoch),
            },
            Event::Read { epoch, .. } => Next::Drop(epoch),

            Event::Granted(epoch) if epoch < known => {
                return Err(Error::Old {
                    slot,
                    granted: epoch,
                    known,
                });
            }
            // A read was faster than the grant's own answer.
            Event::Granted(epoch) if before.is_some_and(|held| held.epoch == epoch) => Next::Same,
            Event::Granted(epoch) => Next::Adopt(epoch),

            Event::Lost(epoch) if before.is_some_and(|held| held.epoch == epoch) => Next::Drop(epoch.next()),
            Event::Lost(_) => Next::Same,

            Event::Leaving(_)
            | Event::Stay
            | Event::Moving
            | Event::Transferred
            | Event::Refused
            | Event::NoAnswer => {
                let Held { epoch, state } = before.ok_or(Error::NotHeld { slot })?;
                match (state, event) {
                    (State::Owned | State::Leaving { .. }, Event::Leaving(to)) => {
                        Next::State(State::Leaving { to })
                    }
                    (State::Owned | State::Leaving { .. }, Event::Stay) => Next::State(State::Owned),
                    (State::Leaving { to }, Event::Moving) => Next::State(State::Moving { to }),
                    (State::Moving { .. } | State::InDoubt { .. }, Event::Transferred) => {
                        Next::Drop(epoch.next())
                    }
                    (State::Moving { to } | State::InDoubt { to }, Event::Refused) => {
                        Next::State(State::Leaving { to })
                    }
                    (State::Moving { to } | State::InDoubt { to }, Event::NoAnswer) => {
                        Next::State(State::InDoubt { to })
                    }
                    (state, event) => {
                        return Err(Error::Unfit {
                            slot,
                            state,
                            event: event.name(),
                        });
                    }
                }
            }
        };

        Ok(match (next, before) {
            (Next::State(state), Some(held)) => {
                self.held.insert(slot, Held { state, ..held });
                Step::default()
            }
            (Next::Same | Next::State(_), _) => Step::default(),
            (Next::Adopt(epoch), before) => {
                self.known[slot.index()] = epoch;
                self.held.insert(
                    slot,
                    Held {
                        epoch,
                        state: State::Owned,
                    },
                );
                Step {
                    adopted: Some(epoch),
                    dropped: before.map(|held| held.epoch),
                }
            }
            (Next::Drop(epoch), before) => {
                self.known[slot.index()] = epoch;
                self.held.remove(&slot);
                Step {
                    adopted: None,
                    dropped: before.map(|held| held.epoch),
                }
            }
        })
    }
}

/// What a transition did to the epochs held of a slot.
#[derive(Default)]
struct Step {
    adopted: Option<Epoch>,
    dropped: Option<Epoch>,
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
