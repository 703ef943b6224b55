//! Keyed background work on a mesh of nodes over Postgres.

pub mod clock;
pub mod config;
pub mod dev;
pub mod directory;
pub mod gossip;
pub mod hint;
pub mod http;
pub mod json;
pub mod secret;
pub mod store;
pub mod submit;
pub mod task;
pub mod telemetry;
pub mod tls;
pub mod trust;
pub mod wait;
