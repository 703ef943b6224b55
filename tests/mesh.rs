//! The promises of the mesh, on real processes and a real Postgres: one file per promise.
//!
//! All of them are one program, so that there is one link. That program is also a node: run with `node` it serves the kinds
//! of `mesh/worker.rs`, which have effects that can be checked. `ringmesh` itself is used where no such effect is needed.

#[path = "mesh/harness/mod.rs"]
mod harness;
#[path = "mesh/worker.rs"]
mod worker;

#[path = "mesh/busy.rs"]
mod busy;
#[path = "mesh/cancel.rs"]
mod cancel;
#[path = "mesh/cut.rs"]
mod cut;
#[path = "mesh/drain.rs"]
mod drain;
#[path = "mesh/effects.rs"]
mod effects;
#[path = "mesh/harm.rs"]
mod harm;
#[path = "mesh/idempotency.rs"]
mod idempotency;
#[path = "mesh/kill.rs"]
mod kill;
#[path = "mesh/order.rs"]
mod order;
#[path = "mesh/pause.rs"]
mod pause;
#[path = "mesh/pooler.rs"]
mod pooler;
#[path = "mesh/postgres.rs"]
mod postgres;
#[path = "mesh/privileges.rs"]
mod privileges;
#[path = "mesh/refused.rs"]
mod refused;
#[path = "mesh/restart.rs"]
mod restart;
#[path = "mesh/retry.rs"]
mod retry;
#[path = "mesh/secrets.rs"]
mod secrets;
#[path = "mesh/silent.rs"]
mod silent;
#[path = "mesh/start.rs"]
mod start;
#[path = "mesh/unknown_kind.rs"]
mod unknown_kind;
#[path = "mesh/views.rs"]
mod views;
#[path = "mesh/without_a_word.rs"]
mod without_a_word;

/// A node of the tests, as a process: its name is the argument with which a mesh starts its nodes.
#[test]
#[ignore = "a node, run by the other tests"]
fn node() {
    if std::env::var_os("RINGMESH_NAME").is_some() {
        worker::run();
    }
}
