//! The protocol of Ringmesh as state machines, small enough to be explored to their end.
//!
//! Tests of real nodes try some interleavings of some faults. A model has fewer nodes, slots and tasks, and of these
//! it tries *all*: every order in which statements can arrive, wait, commit, and lose their replies, with deaths,
//! pauses and moves anywhere in between. The checker is [`stateright`]; each model is one of its `Model`s.
//!
//! ```text
//!   mesh      fences, grants, handoffs, drains; claims, runs, finishes, retries, returns; hints
//!   lease     three clocks: when an owner may rely on its lease, when a peer may call it expired (the real code decides)
//!   submit    idempotency ids, lost replies
//!   cursor    where a probe may begin while others insert
//! ```
//!
//! They are apart because their product could not be explored, and may be, because each is pessimistic about the others: in the
//! mesh anybody may be fenced at any time, whatever the clocks say.
//!
//! # How to read a model
//!
//! Like a specification. `mesh/rows.rs` says what Postgres holds, `mesh/statement.rs` what each statement in
//! `node/src/store/sql` does with it, at READ COMMITTED; `mesh/life.rs` what a node remembers; `mesh/actions.rs` what may
//! happen next, and `mesh/steps.rs` what that changes. `mesh/properties.rs` names what is promised, and `mesh/audit.rs` sees
//! promises broken in the rows alone, as an observer of the WAL would. The head of each model says what it leaves out.
//!
//! A rule can be broken by a switch, `Variant`. For each there is a test in which the checker has to find the harm: the model can
//! fail.
//!
//! # How to run
//!
//! ```text
//! cargo test -p ringmesh-model                                    all, within bounds for every day
//! cargo test -p ringmesh-model -- --nocapture                     with the numbers of states, and the counterexamples
//! cargo run --release -p ringmesh-model --example explore -- suspicions=1 losses=1 late split
//!                                                                 the mesh, within bounds of your own
//! cargo run --release -p ringmesh-model --example explore -- --large
//!                                                                 what is too long for every day
//! ```
//!
//! The tests explore 3,700,000 states to their end, in little more than a minute on two busy cores, and find 25 broken rules.
//! `--large` explores more than 10,000,000 more, for eight minutes and more.
//!
//! # How to read a counterexample
//!
//! It is a list of actions, the shortest that leads to harm. A process goes by its place (`process: 0`), a start of it by its incarnation (`N0`), a slot is `S0`, a task `T0`, a claim's token `e1a2` (epoch 1, attempt 2).
//!
//! ```text
//! Claim { process: 0, slot: 0 }               the node sends a claim
//! GiveUp(N0: claim S0 e1 ticket 1)            and gets no answer; the claim is still on its way
//! Settle { process: 0, slot: 0 }              it asks what the claim took
//! Execute(N0: settle S0 e1 ticket 1)          nothing; and, as this rule is broken, nothing is shut
//! Execute(N0: claim S0 e1 ticket 1, given up) the claim arrives
//! ```
//!
//! # Where the properties are
//!
//! | property | model |
//! |---|---|
//! | M1 to M7, M10 to M12, S1, S2, S4 to S6, E1 to E3 | `mesh/properties.rs` |
//! | M4 and M8, S4 for submits | `submit.rs` |
//! | M9, for the starts of probes; an outbox, which there is not yet, would be another such reader | `cursor.rs` |
//! | S3; L1 to L3, who may be called expired | `lease.rs` |
//!
//! # What *eventually* means here
//!
//! The checker looks at an `eventually` where a path ends, and knows nothing of circles. So every fault takes from a budget, a
//! tick that would find nothing does not happen, and some day faults end ([`mesh::Action::FaultsEnd`]): each path is finite, which
//! [`check::ends`] proves for the bounds that are used. Then the three mean: however the faults fell, when nothing more
//! can happen every task has ended, every slot has a live owner, and no task is claimed that nobody runs.

pub mod check;
pub mod cursor;
pub mod lease;
pub mod mesh;
pub mod submit;
