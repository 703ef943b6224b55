//! Reading what others insert, in the order of its numbers: where a probe may begin (ADR 2), or a reader go on.
//!
//! # What is modelled
//!
//! Transactions take a number of their own, then the number of an entry, and commit or roll back in any order (`submit.sql`). A reader
//! takes what it sees from its *start* on and moves its start (`claim.sql`). How far it may move it learns from polls
//! (`horizon.sql`). A read takes its snapshot in one step and is answered in a later one.
//!
//! # What is left out, and why
//!
//! - Crashes of Postgres, which give numbers out twice; held keys; claims that fill their room: `dispatch/lanes_tests.rs`.
//! - M9, the order of an outbox: there is none yet. Its reader will stand before the same question.

use stateright::{Model, Property};

/// The rules, or one of them broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The rules.
    Sound,
    /// The reader goes on after the highest number that it took.
    AfterTheLast,
    /// A transaction takes its own number after that of its entry.
    EntryBeforeTransaction,
    /// The start rises to the horizon that is known when the read is answered, not to that which was known when it was sent.
    HorizonAtTheAnswer,
}

/// The model.
#[derive(Debug, Clone, Copy)]
pub struct Cursor {
    /// The rules, or broken ones.
    pub variant: Variant,
    /// How many transactions insert.
    pub writers: usize,
    /// How many polls there are.
    pub polls: u8,
    /// How many reads there are.
    pub reads: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Writer {
    Idle,
    /// Has one of the two numbers, or both.
    Open {
        transaction: Option<u8>,
        entry: Option<u8>,
    },
    Committed {
        entry: u8,
        taken: bool,
    },
    RolledBack,
}

/// A read: what its snapshot shows, by writer as bits, and the horizon when it was sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Read {
    seen: u8,
    horizon: u8,
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    next_transaction: u8,
    next_entry: u8,
    writers: Vec<Writer>,
    /// What earlier polls read: the last entry number, and their own transaction number.
    polled: Vec<(u8, u8)>,
    /// Below it, each entry is visible or will never be.
    horizon: u8,
    read: Option<Read>,
    start: u8,
    polls: u8,
    reads: u8,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// A transaction takes its own number.
    TakeTransaction(usize),
    /// A transaction takes an entry's number.
    TakeEntry(usize),
    /// It commits.
    Commit(usize),
    /// It rolls back.
    RollBack(usize),
    /// `horizon.sql`.
    Poll,
    /// A read is sent and has its snapshot.
    Read,
    /// It is answered.
    Answered,
}

impl State {
    /// Every transaction below it has ended.
    fn xmin(&self) -> u8 {
        let running = self.writers.iter().filter_map(|writer| match writer {
            Writer::Open { transaction, .. } => *transaction,
            _ => None,
        });
        running.min().unwrap_or(self.next_transaction)
    }
}

impl Model for Cursor {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            next_transaction: 1,
            next_entry: 1,
            writers: vec![Writer::Idle; self.writers],
            polled: Vec::new(),
            horizon: 0,
            read: None,
            start: 0,
            polls: self.polls,
            reads: self.reads,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let entry_first = self.variant == Variant::EntryBeforeTransaction;
        for (place, writer) in state.writers.iter().enumerate() {
            match writer {
                Writer::Idle if entry_first => actions.push(Action::TakeEntry(place)),
                Writer::Idle => actions.push(Action::TakeTransaction(place)),
                Writer::Open {
                    transaction: None, ..
                } => actions.push(Action::TakeTransaction(place)),
                Writer::Open { entry: None, .. } => actions.push(Action::TakeEntry(place)),
                Writer::Open { .. } => actions.extend([Action::Commit(place), Action::RollBack(place)]),
                Writer::Committed { .. } | Writer::RolledBack => {}
            }
        }
        if state.polls > 0 {
            actions.push(Action::Poll);
        }
        match state.read {
            Some(_) => actions.push(Action::Answered),
            None if state.reads > 0 => actions.push(Action::Read),
            None => {}
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::TakeTransaction(place) => {
                let entry = match state.writers[place] {
                    Writer::Open { entry, .. } => entry,
                    _ => None,
                };
                let transaction = Some(state.next_transaction);
                next.writers[place] = Writer::Open { transaction, entry };
                next.next_transaction += 1;
            }
            Action::TakeEntry(place) => {
                let transaction = match state.writers[place] {
                    Writer::Open { transaction, .. } => transaction,
                    _ => None,
                };
                let entry = Some(state.next_entry);
                next.writers[place] = Writer::Open { transaction, entry };
                next.next_entry += 1;
            }
            Action::Commit(place) => {
                let Writer::Open {
                    entry: Some(entry), ..
                } = state.writers[place]
                else {
                    return None;
                };
                next.writers[place] = Writer::Committed { entry, taken: false };
            }
            Action::RollBack(place) => next.writers[place] = Writer::RolledBack,
            Action::Poll => {
                next.polls -= 1;
                let xmin = state.xmin();
                for (last, here) in &state.polled {
                    if xmin >= *here {
                        next.horizon = next.horizon.max(last + 1);
                    }
                }
                next.polled.retain(|(_, here)| xmin < *here);
                next.polled.push((state.next_entry - 1, state.next_transaction));
                next.next_transaction += 1;
            }
            Action::Read => {
                next.reads -= 1;
                let mut seen = 0;
                for (place, writer) in state.writers.iter().enumerate() {
                    if matches!(writer, Writer::Committed { entry, .. } if *entry >= state.start) {
                        seen |= 1 << place;
                    }
                }
                let horizon = state.horizon;
                next.read = Some(Read { seen, horizon });
            }
            Action::Answered => {
                let read = next.read.take()?;
                let mut last = 0;
                for (place, writer) in next.writers.iter_mut().enumerate() {
                    if let Writer::Committed { entry, taken } = writer
                        && read.seen & 1 << place != 0
                    {
                        *taken = true;
                        last = last.max(*entry);
                    }
                }
                let start = match self.variant {
                    Variant::AfterTheLast => last + 1,
                    Variant::HorizonAtTheAnswer => state.horizon,
                    Variant::Sound | Variant::EntryBeforeTransaction => read.horizon,
                };
                next.start = state.start.max(start);
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(NOTHING_PASSED, |_, state| {
                state.writers.iter().all(|writer| match writer {
                    Writer::Open {
                        entry: Some(entry), ..
                    }
                    | Writer::Committed { entry, taken: false } => *entry >= state.start,
                    _ => true,
                })
            }),
            Property::<Self>::sometimes("the start passes what was taken", |_, state| {
                state
                    .writers
                    .iter()
                    .any(|writer| matches!(writer, Writer::Committed { entry, taken: true } if *entry < state.start))
            }),
            Property::<Self>::sometimes("an entry is taken before a lower one is committed", |_, state| {
                state.writers.iter().any(|taken| match taken {
                    Writer::Committed {
                        entry: taken,
                        taken: true,
                    } => state
                        .writers
                        .iter()
                        .any(|open| matches!(open, Writer::Open { entry: Some(entry), .. } if entry < taken)),
                    _ => false,
                })
            }),
        ]
    }
}

const NOTHING_PASSED: &str = "M9 no reader's start passes an entry that it has yet to take";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn cursor(variant: Variant) -> Cursor {
        Cursor {
            variant,
            writers: 3,
            polls: 2,
            reads: 2,
        }
    }

    #[test]
    fn starts_of_probes() {
        check::holds("starts of probes", cursor(Variant::Sound));
    }

    #[test]
    fn a_reader_that_goes_on_after_the_last_entry_passes_one_that_commits_later() {
        check::finds(cursor(Variant::AfterTheLast), NOTHING_PASSED);
    }

    #[test]
    fn an_entry_numbered_before_its_transaction_is_below_a_horizon_that_does_not_wait_for_it() {
        check::finds(cursor(Variant::EntryBeforeTransaction), NOTHING_PASSED);
    }

    #[test]
    fn a_horizon_learned_while_the_read_ran_passes_what_committed_meanwhile() {
        check::finds(cursor(Variant::HorizonAtTheAnswer), NOTHING_PASSED);
    }
}
