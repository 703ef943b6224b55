//! Statements on their way to Postgres, and what Postgres does with them at READ COMMITTED.
//!
//! A statement is *sent*; it *begins*, when it has its locks and its snapshot; it *commits*, when it has re-checked its
//! target rows and changed them; its answer reaches the node, or does not. Between two of these steps anything else may
//! happen, except what the locks keep out: the node's row `FOR KEY SHARE`, the slot's row `FOR SHARE` (a write by the
//! owner) or one that conflicts with it (grant, transfer, settle).
//!
//! Left out: that a statement that waits for a lock has its snapshot from before the wait. What the protocol reads by
//! a snapshot it writes into the target's own condition (ADR 1), which is what is modelled.

use std::fmt;

use super::rows::{Effect, Epoch, Incarnation, Node, Rows, TASKS, Task, Ticket, Token, slot_of};
use super::rules::Variant;

/// One of the statements in `node/src/store/sql`, with its parameters.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Statement {
    /// `grant.sql`: takes an orphaned slot whose epoch was read as this one.
    Grant { slot: usize, epoch: Epoch },
    /// `transfer.sql`: hands the slot on.
    Transfer {
        slot: usize,
        epoch: Epoch,
        to: Incarnation,
    },
    /// `claim.sql`: takes all due tasks of the slot.
    Claim {
        slot: usize,
        epoch: Epoch,
        ticket: Ticket,
    },
    /// `settle.sql` and `claimed.sql`, in one transaction: shuts the slot to claims up to a ticket, and reads what is claimed.
    Settle {
        slot: usize,
        epoch: Epoch,
        ticket: Ticket,
    },
    /// `finish.sql`, of a batch or on the handler's own connection: ends the task, together with its effect.
    Finish {
        task: usize,
        token: Token,
        succeeded: bool,
    },
    /// `retry.sql`: sends the task back to wait, and holds its key.
    Retry { task: usize, token: Token },
    /// `give_back.sql`: returns the task.
    GiveBack { task: usize, token: Token },
}

impl Statement {
    pub(super) fn slot(&self) -> usize {
        match *self {
            Statement::Grant { slot, .. }
            | Statement::Transfer { slot, .. }
            | Statement::Claim { slot, .. }
            | Statement::Settle { slot, .. } => slot,
            Statement::Finish { task, .. }
            | Statement::Retry { task, .. }
            | Statement::GiveBack { task, .. } => slot_of(task),
        }
    }

    /// The epoch that it has to find.
    pub(super) fn epoch(&self) -> Epoch {
        match *self {
            Statement::Grant { epoch, .. }
            | Statement::Transfer { epoch, .. }
            | Statement::Claim { epoch, .. }
            | Statement::Settle { epoch, .. } => epoch,
            Statement::Finish { token, .. }
            | Statement::Retry { token, .. }
            | Statement::GiveBack { token, .. } => token.epoch,
        }
    }

    pub(super) fn ticket(&self) -> Option<Ticket> {
        match *self {
            Statement::Claim { ticket, .. } | Statement::Settle { ticket, .. } => Some(ticket),
            _ => None,
        }
    }
}

impl fmt::Debug for Statement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Statement::Grant { slot, epoch } => write!(f, "grant S{slot} read at e{epoch}"),
            Statement::Transfer { slot, epoch, to } => write!(f, "transfer S{slot} e{epoch} to N{to}"),
            Statement::Claim { slot, epoch, ticket } => write!(f, "claim S{slot} e{epoch} ticket {ticket}"),
            Statement::Settle { slot, epoch, ticket } => write!(f, "settle S{slot} e{epoch} ticket {ticket}"),
            Statement::Finish {
                task,
                token,
                succeeded,
            } => {
                write!(
                    f,
                    "finish T{task} {token:?} {}",
                    if succeeded { "succeeded" } else { "dead" }
                )
            }
            Statement::Retry { task, token } => write!(f, "retry T{task} {token:?}"),
            Statement::GiveBack { task, token } => write!(f, "give back T{task} {token:?}"),
        }
    }
}

/// By task: the attempt after which a claim took it, or would.
pub(super) type Picked = [Option<u8>; TASKS];

/// What Postgres says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Answer {
    /// 0 rows: fenced, stale, or ended already.
    Nothing,
    /// Done.
    Done,
    /// The tasks that the claim took, with their new attempts; or those that a settling found claimed.
    Claimed(Picked),
}

/// How far a statement has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    Sent,
    /// Has its locks; and, if it is a claim, what its probe saw.
    Begun(Picked),
    Answered(Answer),
}

/// A statement and who sent it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Flight {
    pub(super) by: Incarnation,
    pub(super) statement: Statement,
    pub(super) stage: Stage,
    /// Whether its node still waits for the answer. One that it gave up may commit all the same.
    pub(super) awaited: bool,
}

impl fmt::Debug for Flight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "N{}: {:?}", self.by, self.statement)?;
        match self.stage {
            Stage::Sent => {}
            Stage::Begun(_) => f.write_str(", begun")?,
            Stage::Answered(answer) => write!(f, ", answered {answer:?}")?,
        }
        if self.awaited {
            Ok(())
        } else {
            f.write_str(", given up")
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Lock {
    Share,
    Update,
}

impl Flight {
    /// A statement by a process's present life, on its way.
    pub(super) fn sent(by: Incarnation, statement: Statement) -> Self {
        Flight {
            by,
            statement,
            stage: Stage::Sent,
            awaited: true,
        }
    }

    /// The lock that it takes on its slot's row.
    fn slot_lock(&self, variant: Variant) -> Option<Lock> {
        match self.statement {
            Statement::Grant { .. } if variant == Variant::GrantGuardedInCte => None,
            Statement::Grant { .. } | Statement::Transfer { .. } | Statement::Settle { .. } => {
                Some(Lock::Update)
            }
            Statement::Finish { .. } if unlocked(variant) => None,
            _ => Some(Lock::Share),
        }
    }

    /// Whether it has begun and holds this node's row `FOR KEY SHARE`.
    pub(super) fn locks_node(&self, node: Incarnation, variant: Variant) -> bool {
        let begun = matches!(self.stage, Stage::Begun(_));
        let takes = match self.statement {
            Statement::Transfer { to, .. } => node == self.by || node == to,
            Statement::Finish { .. } => node == self.by && !unlocked(variant),
            _ => node == self.by,
        };
        begun && takes
    }

    fn begun_lock(&self, slot: usize, variant: Variant) -> Option<Lock> {
        let begun = matches!(self.stage, Stage::Begun(_)) && self.statement.slot() == slot;
        begun.then(|| self.slot_lock(variant)).flatten()
    }

    /// Whether it has to wait for another statement's lock before it can begin. A grant skips slots that are locked; it is
    /// asked again until it does not, which is as if it waited.
    pub(super) fn waits(&self, others: &[Flight], variant: Variant) -> bool {
        let Some(mine) = self.slot_lock(variant) else {
            return false;
        };
        let slot = self.statement.slot();
        others
            .iter()
            .filter_map(|other| other.begun_lock(slot, variant))
            .any(|theirs| mine == Lock::Update || theirs == Lock::Update)
    }
}

/// Whether a finish holds no locks from its check on.
fn unlocked(variant: Variant) -> bool {
    matches!(variant, Variant::CheckThenWrite | Variant::FenceByAttempt)
}

/// The first half of a statement: takes locks and snapshot. `None` if its fence refuses it.
pub(super) fn begin(rows: &Rows, flight: &Flight, variant: Variant) -> Option<Picked> {
    let Flight { by, statement, .. } = *flight;
    let row = rows.slots[statement.slot()];
    let mine = row.owner == Some(by);
    let at = row.epoch == statement.epoch();
    let passes = match statement {
        Statement::Grant { slot, .. } => !rows.fenced(by) && at && rows.orphaned(slot),
        Statement::Transfer { to, .. } => !rows.fenced(by) && !rows.fenced(to) && mine && at,
        Statement::Finish { .. } if variant == Variant::FenceByAttempt => true,
        Statement::Finish { .. } if variant == Variant::FenceByOwner => !rows.fenced(by) && mine,
        Statement::Claim { ticket, .. } if ticket <= row.settled => false,
        Statement::Claim { .. }
        | Statement::Settle { .. }
        | Statement::Finish { .. }
        | Statement::Retry { .. }
        | Statement::GiveBack { .. } => !rows.fenced(by) && mine && at,
    };
    let mut picked = Picked::default();
    if let Statement::Claim { slot, epoch, .. } = statement {
        for (task, seen) in picked.iter_mut().enumerate() {
            if let Task::Open { attempt, .. } = rows.tasks[task]
                && slot_of(task) == slot
                && rows.due(task, epoch)
            {
                *seen = Some(attempt);
            }
        }
    }
    passes.then_some(picked)
}

/// The second half: re-checks the target rows, changes them and commits.
pub(super) fn commit(rows: &mut Rows, flight: &Flight, picked: Picked, variant: Variant) -> Answer {
    let Flight { by, statement, .. } = *flight;
    match statement {
        Statement::Grant { slot, epoch } => {
            let row = rows.slots[slot];
            let passes = row.epoch == epoch || variant == Variant::GrantGuardedInCte;
            if !passes || row.owner == Some(by) {
                return Answer::Nothing;
            }
            rows.grant(slot, by);
            Answer::Done
        }
        Statement::Transfer { slot, epoch, to } => {
            let row = rows.slots[slot];
            if row.epoch != epoch || row.owner != Some(by) {
                return Answer::Nothing;
            }
            rows.grant(slot, to);
            Answer::Done
        }
        Statement::Settle { slot, epoch, ticket } => {
            let row = &mut rows.slots[slot];
            if row.epoch != epoch || row.owner != Some(by) {
                return Answer::Nothing;
            }
            if variant != Variant::SettleByLockOnly {
                row.settled = row.settled.max(ticket);
            }
            Answer::Claimed(std::array::from_fn(|task| match rows.tasks[task] {
                Task::Open {
                    claim: Some(claim),
                    attempt,
                    ..
                } if slot_of(task) == slot && claim == epoch => Some(attempt),
                _ => None,
            }))
        }
        Statement::Claim { epoch, .. } => {
            let mut claimed = Picked::default();
            for (task, seen) in picked.into_iter().enumerate() {
                if let (
                    Some(seen),
                    Task::Open {
                        claim,
                        attempt,
                        waits: false,
                        ..
                    },
                ) = (seen, &mut rows.tasks[task])
                    && (variant == Variant::ClaimWithoutToken || *claim != Some(epoch) && *attempt == seen)
                {
                    *claim = Some(epoch);
                    *attempt += 1;
                    claimed[task] = Some(*attempt);
                }
            }
            Answer::Claimed(claimed)
        }
        Statement::Finish {
            task,
            token,
            succeeded,
        } => {
            let Task::Open { claim, attempt, .. } = rows.tasks[task] else {
                return Answer::Nothing;
            };
            let passes = (claim == Some(token.epoch) || variant == Variant::FenceByAttempt)
                && (attempt == token.attempt || variant == Variant::FinishWithoutAttempt);
            if !passes {
                return Answer::Nothing;
            }
            rows.tasks[task] = Task::Ended { succeeded };
            if succeeded {
                rows.ledger.push(Effect { task, token });
            }
            let held = &mut rows.held[slot_of(task)];
            *held = held.filter(|head| *head != task);
            Answer::Done
        }
        Statement::Retry { task, token } => {
            if !rows.tasks[task].has(token) {
                return Answer::Nothing;
            }
            if let Task::Open {
                claim,
                failures,
                waits,
                ..
            } = &mut rows.tasks[task]
            {
                *claim = None;
                *waits = true;
                *failures += 1;
            }
            rows.held[slot_of(task)] = Some(task);
            Answer::Done
        }
        Statement::GiveBack { task, token } => {
            let passes = rows.tasks[task].has(token) || variant == Variant::GiveBackById;
            match &mut rows.tasks[task] {
                Task::Open { claim, .. } if passes => {
                    *claim = None;
                    Answer::Done
                }
                _ => Answer::Nothing,
            }
        }
    }
}

/// Whether a node may be fenced now: `lock_node.sql` waits for its writers, then `set_fenced.sql` commits.
pub(super) fn may_fence(rows: &Rows, node: Incarnation, flights: &[Flight], variant: Variant) -> bool {
    let locked = flights.iter().any(|flight| flight.locks_node(node, variant));
    !rows.fenced(node) && (!locked || variant == Variant::BareFence)
}

/// Fences a node.
pub(super) fn fence(rows: &mut Rows, node: Incarnation) {
    rows.nodes[usize::from(node)] = Node::Fenced;
}
