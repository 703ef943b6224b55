//! Tries to make Ringmesh lie.
//!
//! A run starts a mesh of real nodes, each on a host of its own, gives it work whose effects can be counted, breaks
//! things, heals them, waits until all work has ended, and then checks what Postgres committed against what was promised.
//!
//! ```text
//! lab ──── hosts: network namespaces, nodes, Postgres and its standby, pooler, proxies, relays, clocks
//! fault ── what is broken, and how it is healed; acts on the lab
//! workload  what the mesh is given to do: handlers in the nodes, clients outside
//! observe ─ what happened: the log of Postgres decoded, the nodes' event files, samples
//!     └──▶ history ── all of it, as values
//! check ── one file per invariant: from a history to violations; pure
//! run ──── scenarios, schedules from a seed, reports
//! matrix ─ every fail point with every action, once
//! mutants   whether the tests fail when the product is broken in one place
//! ```

pub mod check;
pub mod fault;
pub mod history;
pub mod lab;
pub mod matrix;
pub mod mutants;
pub mod observe;
pub mod run;
pub mod workload;
