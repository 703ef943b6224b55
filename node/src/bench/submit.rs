//! Submits over HTTP to one node.
//!
//! The figures proper are of tasks that are due in an hour, so that submitting alone is measured; beside them stands what is
//! accepted while the same node runs what it accepts.

use std::time::Duration;

use super::lab::{Lab, addresses, spinner, stop};
use super::load::{self, Closed};
use super::{BenchArgs, Doing, Result, client};

/// Tasks in a batch.
pub(super) const BATCH: usize = 5_000;
/// Connections that send batches.
pub(super) const BATCH_CONNECTIONS: usize = 3;

/// What was accepted.
#[derive(Debug)]
pub(super) struct Submits {
    pub(super) single: Closed,
    pub(super) single_running: Closed,
    pub(super) batch_per_s: f64,
}

pub(super) async fn measure(lab: &Lab, args: &BenchArgs) -> Result<Submits> {
    lab.measure(async |database| {
        let mesh = database.mesh(1).await?;
        let addresses = addresses(&mesh);
        let address = &addresses[0];
        let time = Duration::from_secs(args.seconds.into());
        let connections = usize::from(args.connections);

        let bar = spinner("single submits");
        let single = load::closed(address, connections, time, 0, true).await?;
        bar.set_message("batches");
        checkpoint(database).await?;
        let requests = (0..BATCH_CONNECTIONS)
            .map(|number| {
                let keys =
                    (number * BATCH..(number + 1) * BATCH).map(|key| key as u64 % u64::from(args.keys));
                client::batch(address, keys, true)
            })
            .collect();
        let batch_per_s = load::batches(address, requests, BATCH, time).await?;
        bar.set_message("single submits that run at once");
        checkpoint(database).await?;
        let first_key = 1_000_000_000;
        let single_running = load::closed(address, connections, time, first_key, false).await?;
        bar.finish_and_clear();
        stop(mesh).await?;
        Ok(Submits {
            single,
            single_running,
            batch_per_s,
        })
    })
    .await
}

async fn checkpoint(database: &super::lab::Database) -> Result<()> {
    database.store.checkpoint().await.doing("write a checkpoint")
}
