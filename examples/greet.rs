//! A worker of your own: a node that knows one kind of task.
//!
//! Run it against any Postgres; it makes its own schema there:
//!
//!     export RINGMESH_DATABASE_URL=postgres://user:password@localhost/database
//!     cargo run -p ringmesh-examples --example greet
//!
//! Submit to it from a second terminal, and watch the count of each key rise:
//!
//!     cargo run -p ringmesh -- submit greet tenant-1 '"Ada"' --wait 5s
//!     cargo run -p ringmesh -- submit greet tenant-2 '"Grace"' --wait 5s
//!
//! Run it again with other ports, and the two are a mesh: half of the keys move to the new one.
//!
//!     RINGMESH_NAME=second RINGMESH_LISTEN=127.0.0.1:7102 RINGMESH_GOSSIP=127.0.0.1:7202 \
//!     RINGMESH_SEEDS=127.0.0.1:7201 cargo run -p ringmesh-examples --example greet

use std::sync::atomic::{AtomicU64, Ordering};

use ringmesh::config::LogFormat;
use ringmesh::{Context, Failure, Mesh, telemetry};

/// What this node remembers of a key, for as long as it owns it.
#[derive(Default)]
struct Greeted(AtomicU64);

/// The payload is any type that serde reads, the result any that serde writes.
async fn greet(ctx: Context, name: String) -> Result<String, Failure> {
    if name.is_empty() {
        // No later run can go better: the task ends dead at once, without retries.
        return Err(Failure::new("there is no name to greet").fatal());
    }
    let greeted = ctx.cache::<Greeted>();
    let greeted = greeted
        .get()
        .unwrap_or_else(|| greeted.insert(Greeted::default()));
    let count = greeted.0.fetch_add(1, Ordering::Relaxed) + 1;
    Ok(format!(
        "good day, {name}: greeting {count} of {} here",
        ctx.key()
    ))
}

#[tokio::main]
async fn main() -> Result<(), ringmesh::Error> {
    telemetry::log(LogFormat::Text)?;
    // Options come from the environment, as those of `ringmesh node`: see docs/configuration.md. Ends when a SIGTERM or
    // Ctrl-C has drained the node.
    Mesh::builder().handler("greet", greet).run().await
}
