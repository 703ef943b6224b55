//! Keyed background work on a mesh of nodes over Postgres.
pub mod dev;
