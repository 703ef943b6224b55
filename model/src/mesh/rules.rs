//! What a run of the model is allowed to do: which rule is broken, and how much of everything there is.

/// The protocol as it is, or with one rule broken in one way. Each broken one has a test that shows its harm.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The protocol.
    Sound,
    /// The fence is read by one statement and the write made by the next one, with no lock in between.
    CheckThenWrite,
    /// A write shows the task's attempt and nothing of the slot.
    FenceByAttempt,
    /// A write shows who owns the slot and not under which epoch.
    FenceByOwner,
    /// A task is returned by its id, whoever runs it now.
    GiveBackById,
    /// A node's number comes from a clock that two starts may read alike.
    IncarnationFromClock,
    /// A slot is transferred while its tasks still run.
    TransferBeforeDrain,
    /// Claims go on after the slot began to leave.
    ClaimWhileLeaving,
    /// A node is fenced by an UPDATE of its row, which does not conflict with `FOR KEY SHARE`.
    BareFence,
    /// A grant's condition stands in a CTE that locks nothing, and not on the target.
    GrantGuardedInCte,
    /// A claim's target repeats neither epoch nor attempt.
    ClaimWithoutToken,
    /// A finish does not show its attempt.
    FinishWithoutAttempt,
    /// After a claim without an answer a node waits for the statements that run on its slots, and those that have yet to arrive
    /// pass afterwards.
    SettleByLockOnly,
    /// The next task of a key starts when the finish of the one before it was sent.
    NextBeforeCommit,
    /// Only hints lead to claims.
    HintWithoutTick,
    /// A node that computes placements by another ring version is let in.
    StrangerLetIn,
}

/// How large a run is. Every fault takes from a budget, so that each path ends.
#[derive(Debug, Clone, Copy)]
pub struct Bounds {
    /// Processes of the mesh, each with a name of its own.
    pub nodes: usize,
    /// Slots, 1 or 2.
    pub slots: usize,
    /// Tasks, up to 3. T0 and T1 share a key; T2 is in the second slot.
    pub tasks: usize,
    /// Processes that die.
    pub crashes: u8,
    /// Nodes fenced although they run: paused ones, cut off ones, or by mistake.
    pub suspicions: u8,
    /// Slots that the ring wants elsewhere while both owners live.
    pub moves: u8,
    /// Nodes that drain.
    pub drains: u8,
    /// Requests or replies without an answer.
    pub losses: u8,
    /// Runs that fail.
    pub failures: u8,
    /// Runs that outlast the drain deadline and go on although they are cancelled.
    pub overruns: u8,
    /// Whether a statement takes its locks and its snapshot in one step and writes in a later one. Otherwise it is one
    /// step, which hides what happens in between and makes other things affordable.
    pub split: bool,
    /// Whether a statement that its node gave up may still arrive, after any pause.
    pub late: bool,
    /// Whether other things may happen between a commit and its reply.
    pub slow_replies: bool,
    /// Whether submits tell the owner by a hint that may be lost, doubled or late.
    pub hints: bool,
    /// Whether one more process tries to join, with another ring version.
    pub stranger: bool,
    /// Whether faults stop at some moment, after which all must come right. Without it nothing is said about that.
    pub calm: bool,
}

impl Bounds {
    /// Nothing goes wrong. To be changed field by field.
    pub const QUIET: Bounds = Bounds {
        nodes: 2,
        slots: 1,
        tasks: 2,
        crashes: 0,
        suspicions: 0,
        moves: 0,
        drains: 0,
        losses: 0,
        failures: 0,
        overruns: 0,
        split: false,
        late: false,
        slow_replies: false,
        hints: false,
        stranger: false,
        calm: false,
    };
}
