//! What happened in a run, as values: the only thing that checkers see.
//!
//! Two clocks, never compared with each other but through [`Moment`]: `at` is nanoseconds of this machine's
//! `CLOCK_BOOTTIME` (all hosts of a lab share the kernel), `committed_at` is microseconds of Postgres' clock.
//!
//! A run of some million tasks stays in memory: ids are numbers, and texts that come again and again are shared.

#![allow(missing_docs, reason = "fields are named by the words of the product")]

use std::collections::BTreeMap;
use std::sync::Arc;

use ringmesh::task::TaskId;
use serde::{Deserialize, Serialize};

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub type At = i64;

/// All that a run left behind.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct History {
    /// Committed changes, in the order of Postgres' log.
    pub changes: Vec<Change>,
    /// Each request of a client that submits, in the order of its being sent.
    pub submits: Vec<Submit>,
    /// What the nodes noted, in the order of `at`.
    pub events: Vec<Event>,
    /// Counts of tasks by state, each from one snapshot.
    pub samples: Vec<Sample>,
    /// Who owns how much, as each node has it in memory, each second.
    pub views: Vec<View>,
    /// What the run did, and when: quiet, faults, heals, drain.
    pub moments: Vec<Moment>,
    /// How things stood after the drain.
    pub end: End,
    /// What every node was told.
    pub terms: Terms,
}

/// A committed change of one row.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Change {
    /// Counts transactions in the order of their commits, from 1; equal for the changes of one transaction.
    pub transaction: u64,
    /// Microseconds since 1970 by Postgres' clock.
    pub committed_at: i64,
    /// Which row became what.
    pub row: Row,
}

/// A row as a change left it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Row {
    /// The other changes of this transaction are the whole state, as one snapshot saw it. What led from the changes before to
    /// this state is not known. It stands at the start of each history, and after a failover: the promoted server does not
    /// know where the observer was.
    Baseline,
    /// A slot.
    Slot {
        slot: i32,
        owner: Option<i64>,
        epoch: i64,
    },
    /// A node's row; `renewals` as when it was written last, which is not at each renewal.
    Node {
        incarnation: i64,
        name: Arc<str>,
        renewals: i64,
        fenced: Option<Fencing>,
    },
    /// A node's row was deleted.
    NodeGone { incarnation: i64 },
    /// A node's lease: its start, or a renewal. That a lease is deleted says nothing.
    Lease { incarnation: i64, renewals: i64 },
    /// An open task was inserted, or changed in more than its being claimed or returned.
    Task {
        id: TaskId,
        key: Arc<str>,
        attempt: i32,
        failures: i32,
        crashes: i32,
        max_attempts: i32,
    },
    /// An open task was claimed, or given back, under another epoch than its slot had at this place of the log: what an owner
    /// may not do. Only such changes are kept.
    Stale {
        task: TaskId,
        epoch: i64,
        slot_epoch: i64,
    },
    /// A task is no longer open, and did not end in the same transaction.
    TaskGone { id: TaskId },
    /// A task ended.
    Finished {
        id: TaskId,
        state: State,
        /// That of the claim under which it ended.
        epoch: Option<i64>,
        attempt: i32,
        failures: i32,
        crashes: i32,
        error: Option<Box<str>>,
    },
    /// A row of ended tasks was changed or deleted, which nothing may do before its retention is over.
    FinishedTouched { id: TaskId },
    /// A handler's effect, written in its task's transaction.
    Effect {
        task: TaskId,
        key: Arc<str>,
        seq: i64,
        slot: i32,
        epoch: i64,
        attempt: i32,
        node: Arc<str>,
    },
    /// A row of effects was changed or deleted, which nothing ever does.
    EffectTouched,
    /// A table was emptied, which nothing ever does.
    Truncated { table: Box<str> },
    /// The balance of a bank account after a transfer.
    Account { account: i32, balance: i64 },
}

/// How a node was declared dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fencing {
    pub kind: FencingKind,
    /// The incarnation that did it; none for a start that has no number yet.
    pub by: Option<i64>,
}

/// Why a node was declared dead.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FencingKind {
    Expired,
    Noticed,
    Replaced,
    Left,
}

/// How a task ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Succeeded,
    Dead,
    Cancelled,
}

/// One request that submits a task.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Submit {
    /// Which workload and client sent it.
    pub client: Arc<str>,
    /// The task's key.
    pub key: Arc<str>,
    /// Its number among the tasks of the key, by this client; repetitions have the same.
    pub seq: i64,
    /// The kind of task.
    pub kind: Arc<str>,
    /// What makes repetitions one task.
    pub idempotency_key: Option<Box<str>>,
    /// A digest of the body: another body under the same idempotency key is refused.
    pub body: u64,
    /// When it was sent.
    pub sent: At,
    /// When the answer was read, or the client gave up.
    pub answered: At,
    /// What came of it.
    pub answer: Answer,
    /// Whether it was to wait for a time: its place among its key's tasks follows from when it is due.
    pub scheduled: bool,
    /// What this task should come to.
    pub expected: Expected,
}

/// What a client knows of its submit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// 2xx with this task id; `replay`: it named a task that was there before.
    Accepted { id: TaskId, replay: bool },
    /// 4xx, or a 503 that says that nothing was written.
    Refused { status: u16, code: Box<str> },
    /// 503 that says so, a timeout, a broken connection: it may be there or not.
    Unknown { why: Box<str> },
}

/// What a task is meant to come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Expected {
    /// Succeeds, with one effect.
    Effect,
    /// Succeeds, with no effect to count.
    NoEffect,
    /// Ends dead, with no effect.
    Dead,
    /// May be cancelled by somebody: an effect and `succeeded`, or none and `cancelled`.
    Race,
    /// Waits beyond the end of the run.
    Future,
}

/// What a node noted of itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Event {
    /// When.
    pub at: At,
    /// The name of the node.
    pub node: Arc<str>,
    /// Its process.
    pub pid: u32,
    /// What.
    pub what: What,
}

/// A kind of event of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum What {
    /// A handler began.
    RunStarted {
        task: TaskId,
        key: Arc<str>,
        epoch: i64,
        attempt: i32,
    },
    /// A handler returned, was cancelled or was aborted.
    RunEnded { task: TaskId, epoch: i64, attempt: i32 },
    /// A renewal that was sent at this time succeeded.
    Renewed { sent: At, incarnation: i64 },
    /// The members changed, or what else placement is computed from; equal digests mean equal owners of all slots.
    Ring { digest: Box<str> },
    /// This many writes of this node were refused by their fence.
    Refused { rows: u64, what: Box<str> },
    /// A fail point acted.
    FailPoint { name: Box<str>, action: Box<str> },
    /// Its fail points were told this, and follow it from now on.
    Told { points: Box<str> },
}

/// Counts from one snapshot.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Sample {
    /// When it was asked for.
    pub at: At,
    /// When it was answered.
    pub answered: At,
    /// The tasks in each state: `pending`, `scheduled`, `behind`, `kind`, `running`, `succeeded`, `dead`, `cancelled`.
    pub states: BTreeMap<String, i64>,
    /// The sum of all bank accounts; `None`: no bank in this run.
    pub bank: Option<i64>,
}

/// What a node answers when it is asked for the mesh, from its memory.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct View {
    /// The round: views of one round were asked for at the same time.
    pub round: u64,
    /// When it was asked.
    pub at: At,
    /// The name of the node; `None`: Postgres itself.
    pub node: Option<Arc<str>>,
    /// A digest of how many slots each incarnation owns; `None`: no answer.
    pub digest: Option<u64>,
    /// Whether the node says that it holds all slots that the ring gives it.
    pub ready: bool,
}

/// A step of the run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Moment {
    /// When.
    pub at: At,
    /// The number of the last transaction that was committed before, by the observer; 0 where it is not known.
    pub wal: u64,
    /// Microseconds of Postgres' clock, as far as the lab knows it.
    pub committed_at: i64,
    /// What.
    pub step: Step,
}

/// The id of what a fail point does to nodes, among those of faults.
pub const FAIL_POINT: &str = "FP";

/// A step of a run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Step {
    /// Load without faults begins.
    Quiet,
    /// A fault begins on these hosts.
    Fault {
        id: String,
        name: String,
        hosts: Vec<String>,
        /// Whom it hits. Empty: everybody, as a fault of Postgres does.
        incarnations: Vec<i64>,
    },
    /// It has begun: what it takes to break something is done.
    Begun { id: String },
    /// It is healed.
    Heal { id: String },
    /// All faults are healed; clients stop submitting.
    Drain,
    /// All work has ended, or the time for it.
    End,
}

/// How things stood after the drain.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct End {
    /// Open tasks that should have ended.
    pub open: Vec<TaskId>,
    /// Tasks that are claimed under an epoch that is no live owner's.
    pub orphans: Vec<TaskId>,
    /// Slots without a live owner.
    pub unowned: Vec<i32>,
    /// The last answers of each node: (node, status); 0: none came.
    pub answers: Vec<(String, u16)>,
    /// Sessions that are idle in a transaction.
    pub idle_in_transaction: i64,
    /// Advisory locks that belong to no live incarnation.
    pub stray_locks: i64,
    /// Open file descriptors of each process that lived through the run: (node, at the start, at the end).
    pub descriptors: Vec<(String, u64, u64)>,
    /// Its resident memory in KiB.
    pub memory: Vec<(String, u64, u64)>,
    /// Nodes that each node's gossip state holds.
    pub gossip_nodes: Vec<(String, u64)>,
    /// Live nodes.
    pub live: u64,
    /// Dead row versions in `slot` and `node`.
    pub dead_rows: BTreeMap<String, i64>,
    /// Writes of ends, over all processes, that were refused by a fence, or since the task had ended elsewhere.
    pub refused_writes: u64,
    /// Claims that found a slot not theirs, or shut for them, over all processes.
    pub refused_claims: u64,
    /// Commits whose reply was lost, as whoever lost it counted them: proxies, or where fail points did it, nodes.
    pub unknown_commits: u64,
    /// Submits that nodes answered as unknown.
    pub unknown_outcomes: u64,
}

/// What every node was told.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize)]
pub struct Terms {
    /// Length of a lease, ns.
    pub ttl: i64,
    /// What trust ends earlier by, ns.
    pub margin: i64,
    /// Period of the tick, ns.
    pub tick: i64,
}
