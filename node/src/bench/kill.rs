//! How long the keys of a node stand still when it leaves under a light load: killed (SIGKILL), or drained (SIGTERM).
//!
//! For each slot of that node in which a task waited: from the signal, or from the submit of that task if it came later, to the
//! first start in that slot under its new owner. The signal's time is read from the database right before it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use ringmesh_ring::Slot;
use tokio::time::sleep;

use super::lab::{Database, Lab, addresses, progress, stop};
use super::load::{self, quantile};
use super::{BenchArgs, Doing, Error, Result, drain};
use crate::dev::Mesh;
use crate::store::bench::Orphan;

/// Submits per second.
pub(super) const RATE: u32 = 1_000;
/// Keys of the load.
pub(super) const KEYS: u64 = 4_000;
/// Between the readiness of all nodes and the next kill: the slots are back, and the load is even.
const REST: Duration = Duration::from_secs(3);
/// Between two looks at the slots without an owner.
const LOOK: Duration = Duration::from_millis(2);
/// When a takeover has failed.
const TAKEOVER: Duration = Duration::from_secs(60);

/// How a node leaves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// SIGKILL: its session ends at once.
    Kill,
    /// SIGTERM: it hands everything on.
    Drain,
}

/// In ms.
#[derive(Debug, Clone, Copy)]
pub(super) struct Kills {
    pub(super) gap_p50: f64,
    pub(super) gap_p99: f64,
    pub(super) gap_max: f64,
    /// How many slots had tasks waiting.
    pub(super) slots: usize,
    /// Slots of other nodes that were granted anew meanwhile.
    pub(super) others_moved: usize,
    /// Tasks that were claimed more than once, and that failed.
    pub(super) claimed_again: usize,
    pub(super) failed: usize,
    /// The longest wait for a start in the slots of the other nodes meanwhile.
    pub(super) others_max: f64,
    /// From the send to the 201, over all the time, tries at other nodes included.
    pub(super) submit_p99: f64,
    pub(super) submit_max: f64,
}

/// What one kill left behind.
struct Outage {
    others_moved: usize,
    killed_at: DateTime<Utc>,
    over_at: DateTime<Utc>,
    orphans: Vec<Orphan>,
}

pub(super) async fn measure(lab: &Lab, args: &BenchArgs, way: Way) -> Result<Kills> {
    lab.measure(async |database| {
        let mut mesh = database.mesh(args.nodes.into()).await?;
        let addresses = addresses(&mesh);
        drain::warm_up(database, &addresses, args).await?;
        database.store.checkpoint().await.doing("write a checkpoint")?;

        let stopping = Arc::new(AtomicBool::new(false));
        let (sent, outages) = tokio::join!(load::open(&addresses, RATE, KEYS, stopping.clone()), async {
            let outages = leave_all(database, &mut mesh, args.kills, way).await;
            stopping.store(true, Ordering::Relaxed);
            outages
        });
        let (sent, outages) = (sent?, outages?);
        database.wait_drained().await?;
        let ended = database.store.ended_well(&sent.accepted).await;
        let ended = ended.doing("read the archive")?;
        if ended != sent.accepted.len() {
            return Err(Error::Miscount {
                what: "accepted tasks that ended well",
                expected: sent.accepted.len(),
                found: ended,
            });
        }
        let (gaps, others_max) = gaps(database, &outages).await?;
        let (claimed_again, failed) = database.store.claimed_again().await.doing("read the archive")?;
        stop(mesh).await?;
        Ok(Kills {
            gap_p50: quantile(&gaps, 0.5),
            gap_p99: quantile(&gaps, 0.99),
            gap_max: quantile(&gaps, 1.0),
            slots: gaps.len(),
            others_moved: outages.iter().map(|outage| outage.others_moved).sum(),
            claimed_again,
            failed,
            others_max,
            submit_p99: quantile(&sent.latencies, 0.99),
            submit_max: quantile(&sent.latencies, 1.0),
        })
    })
    .await
}

async fn leave_all(database: &Database, mesh: &mut Mesh, times: u16, way: Way) -> Result<Vec<Outage>> {
    let bar = progress("leaves", times.into());
    let mut outages = Vec::new();
    for number in 0..usize::from(times) {
        sleep(REST).await;
        let at = number % mesh.nodes().len();
        let outage = leave(database, mesh, at, way).await?;
        // Started again only now: a restart also fences its predecessor, which would help the takeover.
        sleep(Duration::from_secs(1)).await;
        mesh.nodes_mut()[at].start_again().await?;
        outages.push(outage);
        bar.inc(1);
    }
    sleep(REST).await;
    bar.finish_and_clear();
    Ok(outages)
}

async fn leave(database: &Database, mesh: &mut Mesh, at: usize, way: Way) -> Result<Outage> {
    let store = &database.store;
    let node = &mut mesh.nodes_mut()[at];
    let owned = store
        .owned_by(node.name())
        .await
        .doing("read the slots of a node")?
        .ok_or(Error::Miscount {
            what: "slots of the node to leave",
            expected: 1,
            found: 0,
        })?;
    let killed_at = store.now().await.doing("read the database's clock")?;
    let others = store
        .epochs_of_others(owned.owner)
        .await
        .doing("read the slots")?;
    match way {
        Way::Kill => node.kill().await?,
        Way::Drain => node.terminate()?,
    }

    let begun = Instant::now();
    let mut left: Vec<Slot> = owned.slots.iter().map(|(slot, _)| *slot).collect();
    let mut until = std::collections::HashMap::new();
    let mut over_at = killed_at;
    while !left.is_empty() {
        if begun.elapsed() > TAKEOVER {
            return Err(Error::TooLong {
                what: format!("{} slots of the node got no new owner", left.len()),
                within: TAKEOVER,
            });
        }
        let (at, still) = store
            .still_owned(owned.owner, &left)
            .await
            .doing("read the slots of a node")?;
        until.extend(still.iter().map(|slot| (*slot, at)));
        (left, over_at) = (still, at);
        sleep(LOOK).await;
    }
    let orphans = owned.slots.into_iter().map(|(slot, epoch)| Orphan {
        slot,
        epoch,
        until: until.get(&slot).copied().unwrap_or(killed_at),
    });
    let others_after = store
        .epochs_of_others(owned.owner)
        .await
        .doing("read the slots")?;
    let others_moved = others
        .iter()
        .filter(|(slot, epoch)| others_after.get(slot) != Some(epoch))
        .count();
    if way == Way::Drain {
        while node.ended().is_none() && begun.elapsed() < TAKEOVER {
            sleep(LOOK).await;
        }
    }
    Ok(Outage {
        others_moved,
        killed_at,
        over_at,
        orphans: orphans.collect(),
    })
}

/// The gaps of all slots, ascending, and the longest wait in other slots.
async fn gaps(database: &Database, outages: &[Outage]) -> Result<(Vec<f64>, f64)> {
    let mut gaps = Vec::new();
    let mut others_max = f64::NAN;
    for outage in outages {
        let found = database.store.gaps(outage.killed_at, &outage.orphans).await;
        gaps.extend(found.doing("read the archive")?);
        let outside: Vec<Slot> = outage.orphans.iter().map(|orphan| orphan.slot).collect();
        let other = database
            .store
            .longest_start(outage.killed_at, outage.over_at, &outside)
            .await
            .doing("read the archive")?;
        others_max = others_max.max(other.unwrap_or(f64::NAN));
    }
    if gaps.is_empty() {
        return Err(Error::Miscount {
            what: "slots in which a task waited for a new owner",
            expected: 1,
            found: 0,
        });
    }
    gaps.sort_unstable_by(f64::total_cmp);
    Ok((gaps, others_max))
}
