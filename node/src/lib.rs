//! Keyed background work on a mesh of nodes over Postgres.

pub mod clock;
pub mod dev;
pub mod directory;
pub mod gossip;
pub mod store;
pub mod task;
pub mod tls;
pub mod trust;
