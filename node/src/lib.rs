//! Keyed background work on a mesh of nodes over Postgres.

pub mod bench;
pub mod builtin;
pub mod cache;
pub mod clock;
pub mod config;
pub mod context;
pub mod demo;
pub mod dev;
pub mod directory;
pub mod dispatch;
pub mod failpoint;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod gossip;
pub mod handler;
pub mod hint;
#[cfg(test)]
mod hostile;
pub mod http;
pub mod json;
pub mod lease;
pub mod life;
pub mod members;
pub mod mesh;
pub mod node;
pub mod notice;
pub mod ownership;
pub mod run;
pub mod secret;
pub mod shutdown;
pub mod store;
pub mod submit;
pub mod task;
pub mod telemetry;
pub mod tls;
pub mod trust;
mod upkeep;
pub mod wait;

pub use context::Context;
pub use handler::Failure;
pub use mesh::{Error, Mesh};
pub use ringmesh_ring::Key;

/// The database library of a handler's own transaction, at the version that this crate uses.
pub use ::sqlx;
