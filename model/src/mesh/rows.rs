//! The rows of Postgres, as far as the protocol looks at them.
//!
//! Everything is small and fixed: two keys, each in a slot of its own, and three tasks, of which the first two share
//! a key. Which tasks and slots a run really uses, its [`Bounds`](super::Bounds) say.

use std::fmt;

/// A start of a node; its row's place in [`Rows::nodes`].
pub(super) type Incarnation = u8;
/// A slot's fencing number.
pub(super) type Epoch = u8;
/// The place of a claim among those of a slot in a node's life.
pub(super) type Ticket = u8;

/// How many slots there can be.
pub(super) const SLOTS: usize = 2;
/// How many tasks there can be. Their numbers are the order of their submits.
pub(super) const TASKS: usize = 3;

/// The slot of a task, which here also stands for its key: T0 and T1 share one.
pub(super) const fn slot_of(task: usize) -> usize {
    if task < 2 { 0 } else { 1 }
}

/// What a claim gives to a run, and what the run has to show for each write.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Token {
    pub(super) epoch: Epoch,
    pub(super) attempt: u8,
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "e{}a{}", self.epoch, self.attempt)
    }
}

/// `ringmesh.node`: only whether it is fenced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Node {
    Unfenced,
    Fenced,
}

/// `ringmesh.slot`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Slot {
    pub(super) owner: Option<Incarnation>,
    pub(super) epoch: Epoch,
    /// Claims up to this ticket are refused.
    pub(super) settled: Ticket,
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            Some(owner) => write!(f, "N{owner} e{}", self.epoch),
            None => write!(f, "nobody e{}", self.epoch),
        }
    }
}

/// A row of `ringmesh.task`, or of `ringmesh.finished_task`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Task {
    /// Not submitted yet.
    Absent,
    Open {
        /// `task.epoch`: that of the last claim; `None` when it was returned, or never claimed.
        claim: Option<Epoch>,
        attempt: u8,
        failures: u8,
        /// `task.wait = 'scheduled'`: waits for its retry.
        waits: bool,
    },
    Ended {
        succeeded: bool,
    },
}

impl Task {
    /// Whether this run is the one that the row knows.
    pub(super) fn has(&self, token: Token) -> bool {
        matches!(self, Task::Open { claim, attempt, .. } if *claim == Some(token.epoch) && *attempt == token.attempt)
    }
}

/// A row that a task's handler wrote in the transaction that completes it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Effect {
    pub(super) task: usize,
    pub(super) token: Token,
}

/// All committed rows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) struct Rows {
    pub(super) nodes: Vec<Node>,
    pub(super) slots: [Slot; SLOTS],
    pub(super) tasks: [Task; TASKS],
    /// `ringmesh.held_key`, by slot: the only task that may run.
    pub(super) held: [Option<usize>; SLOTS],
    /// The effects in the order of their commits.
    pub(super) ledger: Vec<Effect>,
}

impl Rows {
    /// Whether a node is fenced. A missing row counts as fenced.
    pub(super) fn fenced(&self, node: Incarnation) -> bool {
        self.nodes.get(usize::from(node)) != Some(&Node::Unfenced)
    }

    /// Whether nobody owns the slot, or a fenced node.
    pub(super) fn orphaned(&self, slot: usize) -> bool {
        self.slots[slot].owner.is_none_or(|owner| self.fenced(owner))
    }

    /// Gives the slot to another owner.
    pub(super) fn grant(&mut self, slot: usize, owner: Incarnation) {
        let epoch = self.slots[slot].epoch + 1;
        self.slots[slot] = Slot {
            owner: Some(owner),
            epoch,
            settled: 0,
        };
    }

    /// Whether a claim under this epoch would pick the task.
    pub(super) fn due(&self, task: usize, epoch: Epoch) -> bool {
        matches!(self.tasks[task], Task::Open { claim, waits: false, .. } if claim != Some(epoch))
            && self.held[slot_of(task)].is_none_or(|head| head == task)
    }
}
