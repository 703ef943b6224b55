//! The floor: the statements of submit, claim and finish in a bare loop, two in flight, without nodes.
//!
//! What a mesh reaches beside it shows what everything else costs: HTTP, JSON, hints, lanes, handlers.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use futures::future::try_join_all;
use ringmesh_ring::{Epoch, Slot};

use super::lab::{Database, Lab, spinner};
use super::submit::BATCH;
use super::{BenchArgs, Doing, Error, Result, drain};
use crate::store::submit::Row;
use crate::store::{Finish, Me, Probe, Registration, Ticket};

/// Statements in flight.
const IN_FLIGHT: usize = 2;
/// Slots and tasks of each in one claim.
const SLOTS: usize = 128;
const ROOM: i32 = 8;
/// Outlasts every loop: there is nobody to renew the lease.
const LEASE: Duration = Duration::from_secs(3600);

/// Per second.
#[derive(Debug, Clone, Copy)]
pub(super) struct Floor {
    pub(super) submit_per_s: f64,
    pub(super) drain_per_s: f64,
}

pub(super) async fn measure(lab: &Lab, args: &BenchArgs) -> Result<Floor> {
    let submit_per_s = lab
        .measure(async |database| {
            let bar = spinner("floor of batches");
            let time = Duration::from_secs(args.seconds.into());
            let per_s = submit(database, args.keys, time).await?;
            bar.finish_and_clear();
            Ok(per_s)
        })
        .await?;
    let drain_per_s = lab
        .measure(async |database| {
            let bar = spinner("floor of the drain");
            let per_s = drain_loop(database, args).await?;
            bar.finish_and_clear();
            Ok(per_s)
        })
        .await?;
    Ok(Floor {
        submit_per_s,
        drain_per_s,
    })
}

async fn submit(database: &Database, keys: u32, time: Duration) -> Result<f64> {
    let size = u32::try_from(BATCH).unwrap_or(u32::MAX);
    let rows = drain::rows(size, keys, true)?;
    let rows: Vec<&Row> = rows.iter().collect();
    let start = Instant::now();
    let lanes = (0..IN_FLIGHT).map(async |_| {
        let mut sent = 0;
        while start.elapsed() < time {
            let placed = database.store.insert_all(&rows).await;
            sent += placed.doing("insert a batch")?.len();
        }
        Ok::<_, Error>(sent)
    });
    let sent: usize = try_join_all(lanes).await?.iter().sum();
    Ok(sent as f64 / start.elapsed().as_secs_f64())
}

async fn drain_loop(database: &Database, args: &BenchArgs) -> Result<f64> {
    let store = &database.store;
    let boot = 1;
    let node = Registration {
        name: "floor".into(),
        http: "127.0.0.1:1".into(),
        gossip: "127.0.0.1:1".into(),
        weight: 1,
    };
    let incarnation = store.register(boot, &node, LEASE).await;
    let incarnation = incarnation.doing("register a node")?.ok_or(Error::Miscount {
        what: "node rows",
        expected: 1,
        found: 0,
    })?;
    let me = Me { incarnation, boot };
    let free: Vec<(Slot, Epoch)> = store
        .read_slots()
        .await
        .doing("read the slots")?
        .into_iter()
        .map(|row| (row.slot, row.epoch))
        .collect();
    let slots = store.grant(me, &free).await.doing("take the slots")?;
    // As the nodes, it has run before.
    let warm_up = drain::rows(5_000, args.keys, false)?;
    store.backlog(&warm_up).await.doing("put in the backlog")?;
    lanes(database, me, &slots).await?;

    let rows = drain::rows(args.tasks, args.keys, false)?;
    store.checkpoint().await.doing("write a checkpoint")?;
    let backlog = store.backlog(&rows).await.doing("put in the backlog")?;
    let ended = lanes(database, me, &slots).await?;
    if ended != rows.len() {
        return Err(Error::Miscount {
            what: "tasks of the backlog that ended",
            expected: rows.len(),
            found: ended,
        });
    }
    let drained = store.drained(backlog.first_id).await.doing("read the archive")?;
    let Some(last_end) = drained.last_end else {
        return Err(Error::Miscount {
            what: "tasks in the archive",
            expected: rows.len(),
            found: 0,
        });
    };
    Ok(rows.len() as f64 / (last_end - backlog.committed_at).as_seconds_f64())
}

/// Works off all that is due, each lane in its own slots; answers with how many tasks.
async fn lanes(database: &Database, me: Me, slots: &[(Slot, Epoch)]) -> Result<usize> {
    let lanes = slots.chunks(slots.len().div_ceil(IN_FLIGHT).max(1));
    let ended = try_join_all(lanes.map(|slots| lane(database, me, slots))).await?;
    Ok(ended.iter().sum())
}

async fn lane(database: &Database, me: Me, slots: &[(Slot, Epoch)]) -> Result<usize> {
    let mut starts: HashMap<Slot, i64> = HashMap::new();
    let mut ended = 0;
    loop {
        let before = ended;
        for chunk in slots.chunks(SLOTS) {
            let probes: Vec<Probe> = chunk
                .iter()
                .map(|(slot, epoch)| Probe {
                    slot: *slot,
                    epoch: *epoch,
                    start: starts.get(slot).copied().unwrap_or(0),
                    room: ROOM,
                })
                .collect();
            let claimed = database
                .store
                .claim(me, Ticket(1), &probes)
                .await
                .doing("claim")?
                .tasks;
            if claimed.is_empty() {
                continue;
            }
            let finishes: Vec<Finish> = claimed
                .iter()
                .map(|task| Finish {
                    token: task.token(),
                    end: Ok(None),
                    run: Duration::ZERO,
                    failed: false,
                    head: task.head,
                })
                .collect();
            for task in &claimed {
                starts.insert(task.id.slot, task.id.number + 1);
            }
            ended += database.store.finish(me, &finishes).await.doing("finish")?.len();
        }
        if ended == before {
            return Ok(ended);
        }
    }
}
