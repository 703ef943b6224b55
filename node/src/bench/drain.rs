//! How fast a mesh works off a backlog of tasks that do nothing, results kept.
//!
//! The backlog appears at once, by one transaction, while the nodes wait for work; no hint tells them. The rate counts from the
//! database's clock right before that COMMIT to the last end in the archive, so it includes the time in which the nodes
//! notice.

use chrono::{DateTime, Utc};
use ringmesh_ring::{Key, Slot};
use serde_json::value::RawValue;

use super::lab::{Database, Lab, addresses, plural, spinner, stop};
use super::{BenchArgs, Doing, Error, Result, client, load};
use crate::store::submit::Row;
use crate::task::Submit;

/// What the nodes run before, so that their sessions, plans and caches are in use.
const WARM_UP: usize = 5_000;

/// How a backlog was drained.
#[derive(Debug, Clone, Copy)]
pub(super) struct Drain {
    pub(super) per_s: f64,
    /// From the COMMIT to the first start, in ms.
    pub(super) noticed_ms: f64,
}

pub(super) async fn measure(lab: &Lab, args: &BenchArgs, nodes: usize) -> Result<Drain> {
    lab.measure(async |database| {
        let mesh = database.mesh(nodes).await?;
        warm_up(database, &addresses(&mesh), args).await?;
        let rows = rows(args.tasks, args.keys, false)?;
        database.store.checkpoint().await.doing("write a checkpoint")?;
        let drain = drain(
            database,
            &rows,
            &format!("drain by {nodes} {}", plural(nodes, "node")),
        )
        .await?;
        stop(mesh).await?;
        Ok(drain)
    })
    .await
}

/// Lets every node run some tasks.
pub(super) async fn warm_up(database: &Database, addresses: &[String], args: &BenchArgs) -> Result<()> {
    let bar = spinner("warming up");
    for address in addresses {
        let mut connection = load::connect(address).await?;
        let keys = (0..WARM_UP).map(|key| key as u64 % u64::from(args.keys));
        load::submit(&mut connection, address, &client::batch(address, keys, false)).await?;
    }
    database.wait_drained().await?;
    bar.finish_and_clear();
    Ok(())
}

async fn drain(database: &Database, rows: &[Row], what: &str) -> Result<Drain> {
    let bar = spinner("putting in the backlog");
    let backlog = database.store.backlog(rows).await.doing("put in the backlog")?;
    bar.finish_and_clear();
    let bar = spinner(what);
    database.wait_drained().await?;
    bar.finish_and_clear();
    let drained = database
        .store
        .drained(backlog.first_id)
        .await
        .doing("read the archive")?;
    if drained.count != rows.len() {
        return Err(Error::Miscount {
            what: "tasks of the backlog that ended well",
            expected: rows.len(),
            found: drained.count,
        });
    }
    let (Some(first_start), Some(last_end)) = (drained.first_start, drained.last_end) else {
        return Err(Error::Miscount {
            what: "tasks of the backlog that started and ended",
            expected: rows.len(),
            found: 0,
        });
    };
    Ok(Drain {
        per_s: rows.len() as f64 / seconds(backlog.committed_at, last_end),
        noticed_ms: seconds(backlog.committed_at, first_start) * 1000.0,
    })
}

fn seconds(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from).as_seconds_f64()
}

/// Tasks of the kind `noop`, keys in turn, due at once or after an hour: the same as the client's requests.
pub(super) fn rows(tasks: u32, keys: u32, later: bool) -> Result<Vec<Row>> {
    let run_at = later.then(|| Utc::now() + chrono::TimeDelta::hours(1));
    (0..tasks)
        .map(|number| {
            let key = client::key(u64::from(number % keys));
            let bad = |error: String| Error::BadOption(error);
            let key = Key::new(key).map_err(|error| bad(error.to_string()))?;
            let slot = Slot::of(&key);
            let payload = RawValue::from_string("null".into()).map_err(|error| bad(error.to_string()))?;
            let submit = Submit {
                kind: "noop".into(),
                key,
                payload,
                idempotency_key: None,
                run_at,
                priority: 0,
                max_attempts: 10,
                timeout: std::time::Duration::from_secs(300),
                waiter: None,
            };
            Ok(Row {
                submit,
                slot,
                fingerprint: None,
            })
        })
        .collect()
}
