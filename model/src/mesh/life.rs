//! What a node remembers: `ring/src/table.rs` and `node/src/dispatch/lanes.rs` in small.
//!
//! The real table has a place for each of 4096 slots, and the real lanes know kinds and priorities, so neither fits into
//! a state that is copied millions of times. Their rules are repeated here, and their own tests show that they
//! keep them.

use super::rows::{Epoch, Incarnation, Rows, SLOTS, TASKS, Ticket, Token, slot_of};

/// What has become of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Process {
    /// Runs, or is paused: the model decides each step when it may happen.
    Up,
    /// Its life is over; it may start again under the next number.
    Down,
    /// It has left for good.
    Gone,
}

/// What the node does with a slot. As `table::State`, with `No` for what the table does not list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Hold {
    No,
    Owned(Epoch),
    Leaving(Epoch, Incarnation),
    Moving(Epoch, Incarnation),
    InDoubt(Epoch, Incarnation),
}

impl Hold {
    pub(super) fn epoch(self) -> Option<Epoch> {
        match self {
            Hold::No => None,
            Hold::Owned(epoch)
            | Hold::Leaving(epoch, _)
            | Hold::Moving(epoch, _)
            | Hold::InDoubt(epoch, _) => Some(epoch),
        }
    }
}

/// What is to be written about a task. As `outbox::What`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum What {
    Finish {
        succeeded: bool,
    },
    Retry,
    GiveBack,
    /// A give-back of what a claim took whose answer never came; it is in no lane.
    Stray,
}

/// A task in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Work {
    No,
    /// Claimed. It runs if it is the first of its lane.
    Claimed(Token),
    /// Its run is over, and this is to be written. Unknown: no answer, or 0 rows; it has to be read back.
    Ending {
        token: Token,
        what: What,
        unknown: bool,
    },
}

impl Work {
    pub(super) fn token(self) -> Option<Token> {
        match self {
            Work::No => None,
            Work::Claimed(token) | Work::Ending { token, .. } => Some(token),
        }
    }

    /// Whether the task is on its way back to Postgres.
    pub(super) fn returns(self) -> bool {
        matches!(
            self,
            Work::Ending {
                what: What::Retry | What::GiveBack | What::Stray,
                ..
            }
        )
    }
}

/// A process with its present life.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Life {
    pub(super) me: Incarnation,
    pub(super) process: Process,
    pub(super) draining: bool,
    pub(super) holds: [Hold; SLOTS],
    /// By slot, the highest epoch ever heard of.
    pub(super) known: [Epoch; SLOTS],
    pub(super) work: [Work; TASKS],
    /// By task, a run that was cancelled and goes on.
    pub(super) zombies: [Option<Token>; TASKS],
    /// By slot, which here is its key: the lane is closed, since tasks are being sent back.
    pub(super) closed: [bool; SLOTS],
    /// By slot: a claim gave no answer, and has not been settled.
    pub(super) doubt: [bool; SLOTS],
    /// By slot: the ticket of the last claim.
    pub(super) tickets: [Ticket; SLOTS],
    /// By slot: a hint came, or the slot is new here.
    pub(super) dirty: [bool; SLOTS],
}

impl Life {
    pub(super) fn new(me: Incarnation) -> Self {
        Life {
            me,
            process: Process::Up,
            draining: false,
            holds: [Hold::No; SLOTS],
            known: [0; SLOTS],
            work: [Work::No; TASKS],
            zombies: [None; TASKS],
            closed: [false; SLOTS],
            doubt: [false; SLOTS],
            tickets: [0; SLOTS],
            dirty: [false; SLOTS],
        }
    }

    pub(super) fn up(&self) -> bool {
        self.process == Process::Up
    }

    /// The life is over: nothing of it is remembered.
    pub(super) fn end(&mut self, process: Process) {
        *self = Life {
            process,
            ..Life::new(self.me)
        };
    }

    pub(super) fn adopt(&mut self, slot: usize, epoch: Epoch, runs_go_on: bool) {
        self.drop_slot(slot, runs_go_on);
        self.holds[slot] = Hold::Owned(epoch);
        self.known[slot] = self.known[slot].max(epoch);
        self.dirty[slot] = true;
    }

    /// The slot is no longer held. What ran is cancelled; whether it heeds that is another matter.
    pub(super) fn drop_slot(&mut self, slot: usize, runs_go_on: bool) {
        for task in (0..TASKS).filter(|task| slot_of(*task) == slot) {
            if let Work::Claimed(token) = self.work[task]
                && runs_go_on
                && self.first_in_lane(task, false)
            {
                self.zombies[task] = Some(token);
            }
        }
        for task in (0..TASKS).filter(|task| slot_of(*task) == slot) {
            self.work[task] = Work::No;
        }
        self.holds[slot] = Hold::No;
        self.closed[slot] = false;
        self.doubt[slot] = false;
        self.dirty[slot] = false;
    }

    /// Whether the tasks of the slot have all left memory, and no claim may still bring any.
    pub(super) fn quiet(&self, slot: usize) -> bool {
        (0..TASKS).all(|task| slot_of(task) != slot || self.work[task] == Work::No) && !self.doubt[slot]
    }

    /// Whether the task's turn has come: those of its key before it have ended, and their ends are known to be
    /// committed. (`early`: it is enough that the ends were sent.)
    pub(super) fn first_in_lane(&self, task: usize, early: bool) -> bool {
        (0..task)
            .filter(|other| slot_of(*other) == slot_of(task))
            .all(|other| match self.work[other] {
                Work::No => true,
                Work::Ending {
                    what: What::Stray, ..
                } => true,
                Work::Ending {
                    what: What::Finish { .. },
                    ..
                } => early,
                Work::Claimed(_) | Work::Ending { .. } => false,
            })
    }

    /// Whether tasks of this slot are on their way back.
    pub(super) fn returning(&self, slot: usize) -> bool {
        (0..TASKS).any(|task| slot_of(task) == slot && self.work[task].returns())
    }

    /// Opens the lane again once all that was sent back is there and no claim is in flight, which began before.
    pub(super) fn reopen(&mut self, slot: usize, claim_in_flight: bool) {
        self.closed[slot] &= self.returning(slot) || claim_in_flight;
    }

    /// The slots whose row says something else than memory does: what a tick finds. With what becomes of each.
    pub(super) fn look(&self, rows: &Rows, slots: usize) -> [Option<Seen>; SLOTS] {
        let mut seen = [None; SLOTS];
        for (slot, seen) in seen.iter_mut().enumerate().take(slots) {
            let row = rows.slots[slot];
            let mine = row.owner == Some(self.me);
            let held = self.holds[slot].epoch();
            *seen = match self.holds[slot] {
                _ if row.epoch < self.known[slot] => None,
                Hold::InDoubt(epoch, to) if mine && epoch == row.epoch => Some(Seen::Kept(epoch, to)),
                _ if mine && held != Some(row.epoch) => Some(Seen::Mine(row.epoch)),
                _ if !mine && held.is_some() => Some(Seen::Lost(row.epoch)),
                _ => None,
            };
        }
        seen
    }
}

/// What a read says about a slot that memory did not know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// It is this node's under an epoch that it did not know.
    Mine(Epoch),
    /// It is somebody else's.
    Lost(Epoch),
    /// The transfer in doubt has not happened so far.
    Kept(Epoch, Incarnation),
}
