//! Keyed background work on a mesh of nodes over Postgres.
