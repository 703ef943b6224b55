//! The observer: sees the rows before and after each commit, in the order of the commits, and knows nothing of what any
//! node believes. As a reader of the WAL would.

use super::rows::{Incarnation, Rows, Task};
use super::statement::{Answer, Flight, Statement};

/// A promise that some commit broke.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Breach {
    /// A slot's epoch or a task's attempt went down, jumped, or stayed where it had to rise; or a fenced node came back.
    TokenFell = 1,
    /// A slot was taken from an owner that was not fenced, by somebody else.
    TakenFromLiveOwner = 2,
    /// An effect was committed under less than the greatest epoch or attempt given out.
    StaleEffect = 4,
    /// A node changed something after it had been fenced.
    WriteOfFenced = 8,
    /// A row was changed in the name of a run that it does not know.
    WrongRun = 16,
    /// A task that was claimed under the present epoch was claimed again.
    ClaimedTwice = 32,
    /// A task left a terminal state, or vanished.
    Resurrected = 64,
    /// A draining node's result was refused because it had handed the slot on.
    ResultDropped = 128,
    /// A claim was sent for a slot that leaves.
    ClaimAfterStop = 256,
}

/// All promises broken so far; none, in a run of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(super) struct Breaches(u16);

impl Breaches {
    pub(super) fn add(&mut self, breach: Breach) {
        self.0 |= breach as u16;
    }

    pub(super) fn has(self, breach: Breach) -> bool {
        self.0 & breach as u16 != 0
    }

    /// Takes a statement's commit.
    pub(super) fn see(&mut self, before: &Rows, after: &Rows, flight: &Flight, answer: Answer) {
        if before != after && before.fenced(flight.by) {
            self.add(Breach::WriteOfFenced);
        }
        self.see_slots(before, after, flight);
        self.see_tasks(before, after, flight, answer);
        self.see_ledger(before, after);
    }

    fn see_slots(&mut self, before: &Rows, after: &Rows, flight: &Flight) {
        for (slot, (old, new)) in before.slots.iter().zip(&after.slots).enumerate() {
            if (old.owner, old.epoch) == (new.owner, new.epoch) {
                continue;
            }
            if new.epoch != old.epoch + 1 {
                self.add(Breach::TokenFell);
            }
            if !before.orphaned(slot) && old.owner != Some(flight.by) {
                self.add(Breach::TakenFromLiveOwner);
            }
        }
    }

    fn see_tasks(&mut self, before: &Rows, after: &Rows, flight: &Flight, answer: Answer) {
        for (old, new) in before.tasks.iter().zip(&after.tasks) {
            match (old, new) {
                (Task::Ended { .. }, _) if old != new => self.add(Breach::Resurrected),
                (Task::Open { .. }, Task::Absent) => self.add(Breach::Resurrected),
                (Task::Open { attempt: old, .. }, Task::Open { attempt: new, .. }) if new < old => {
                    self.add(Breach::TokenFell);
                }
                _ => {}
            }
        }
        match flight.statement {
            Statement::Finish { task, token, .. }
            | Statement::Retry { task, token }
            | Statement::GiveBack { task, token }
                if answer == Answer::Done && !before.tasks[task].has(token) =>
            {
                self.add(Breach::WrongRun);
            }
            Statement::Claim { slot, .. } => {
                let epoch = before.slots[slot].epoch;
                for (old, new) in before.tasks.iter().zip(&after.tasks) {
                    if old != new && matches!(old, Task::Open { claim, .. } if *claim == Some(epoch)) {
                        self.add(Breach::ClaimedTwice);
                    }
                }
            }
            _ => {}
        }
    }

    fn see_ledger(&mut self, before: &Rows, after: &Rows) {
        for effect in &after.ledger[before.ledger.len()..] {
            let greatest = before.slots[super::rows::slot_of(effect.task)].epoch;
            let newest = match before.tasks[effect.task] {
                Task::Open { attempt, .. } => attempt,
                Task::Absent | Task::Ended { .. } => u8::MAX,
            };
            if effect.token.epoch != greatest || effect.token.attempt != newest {
                self.add(Breach::StaleEffect);
            }
        }
    }

    /// Takes the start of a node under this number.
    pub(super) fn see_start(&mut self, before: &Rows, node: Incarnation) {
        if usize::from(node) < before.nodes.len() {
            self.add(Breach::TokenFell);
        }
    }
}
