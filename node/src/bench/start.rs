//! From submit to start at a light load, over all nodes: most submits arrive at a node that does not own the key.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use super::lab::{Lab, addresses, spinner, stop};
use super::load::{self, quantile};
use super::{BenchArgs, Doing, Error, Result, drain};

/// Submits per second.
pub(super) const RATE: u32 = 200;

/// In ms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Start {
    /// Submits per second that were really sent.
    pub(super) rate: f64,
    pub(super) p50: f64,
    pub(super) p99: f64,
    pub(super) max: f64,
    /// From the send to the 201.
    pub(super) submit_p50: f64,
    pub(super) submit_p99: f64,
}

pub(super) async fn measure(lab: &Lab, args: &BenchArgs) -> Result<Start> {
    lab.measure(async |database| {
        let mesh = database.mesh(args.nodes.into()).await?;
        let addresses = addresses(&mesh);
        drain::warm_up(database, &addresses, args).await?;
        let store = &database.store;
        store.checkpoint().await.doing("write a checkpoint")?;
        let first_id = store.last_id().await.doing("read the last task's number")? + 1;

        let bar = spinner("starts at a light load");
        let stopping = Arc::new(AtomicBool::new(false));
        let time = Duration::from_secs(u64::from(args.seconds) * 2);
        let (sent, ()) = tokio::join!(
            load::open(&addresses, RATE, args.keys.into(), stopping.clone()),
            async {
                tokio::time::sleep(time).await;
                stopping.store(true, Ordering::Relaxed);
            }
        );
        let sent = sent?;
        database.wait_drained().await?;
        bar.finish_and_clear();

        let mut starts = store.start_delays(first_id).await.doing("read the archive")?;
        if starts.len() != sent.accepted.len() {
            return Err(Error::Miscount {
                what: "accepted tasks that ended well",
                expected: sent.accepted.len(),
                found: starts.len(),
            });
        }
        starts.sort_unstable_by(f64::total_cmp);
        stop(mesh).await?;
        Ok(Start {
            rate: starts.len() as f64 / time.as_secs_f64(),
            p50: quantile(&starts, 0.5),
            p99: quantile(&starts, 0.99),
            max: quantile(&starts, 1.0),
            submit_p50: quantile(&sent.latencies, 0.5),
            submit_p99: quantile(&sent.latencies, 0.99),
        })
    })
    .await
}
