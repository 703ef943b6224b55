//! How much this machine can do: faults are injected at half of it, so that what is late is late by the fault.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result};
use ringmesh::sqlx::{self, PgPool};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::report::Progress;
use super::runner::{load, prepare, targets};
use crate::lab::{self, Lab};
use crate::workload;

/// Before anything is measured: connections, caches, plans.
const WARM_UP: Duration = Duration::from_secs(5);
/// How long is measured.
const MEASURED: Duration = Duration::from_secs(15);
/// The part of the capacity that fault runs use.
const PART: f64 = 0.5;

/// What was measured once, by this very program.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Capacity {
    /// Effects of W1 a second that the mesh can commit when half of them are of one key.
    pub effects_per_second: f64,
    /// When the program was built, in seconds since 1970.
    program: u64,
}

impl Capacity {
    /// The load of fault runs.
    pub fn load(self) -> f64 {
        (self.effects_per_second * PART).max(10.0)
    }
}

/// What was measured earlier on this machine by this program, or a new measurement.
///
/// # Errors
/// The lab did not start, or Postgres did not answer.
pub async fn capacity(progress: &Progress) -> Result<Capacity> {
    let program = built()?;
    let file = file();
    let known = std::fs::read(&file)
        .ok()
        .and_then(|text| serde_json::from_slice::<Capacity>(&text).ok());
    if let Some(known) = known.filter(|known| known.program == program) {
        return Ok(known);
    }
    progress.say("measures what this machine can do");
    let capacity = Capacity {
        effects_per_second: measure().await?,
        program,
    };
    std::fs::write(&file, serde_json::to_vec(&capacity)?)
        .with_context(|| format!("cannot write {}", file.display()))?;
    Ok(capacity)
}

fn file() -> PathBuf {
    std::env::temp_dir().join("ringmesh-faults-capacity.json")
}

fn built() -> Result<u64> {
    let program = std::env::current_exe().context("find the path of this program")?;
    let modified = program.metadata()?.modified()?;
    Ok(modified.duration_since(UNIX_EPOCH)?.as_secs())
}

/// W1 with clients that send as fast as they are answered.
async fn measure() -> Result<f64> {
    let lab = Lab::start_with(lab::Options::default(), async |url| prepare(url, &[]).await).await?;
    let db = PgPool::connect(&lab.database_url()).await?;
    let stop = CancellationToken::new();
    let workloads = workload::by_name("W1").into_iter().collect();
    let mut clients = load(workloads, &targets(&lab)?, 0, None, &stop);
    sleep(WARM_UP).await;
    let (all, hot) = effects(&db).await?;
    sleep(MEASURED).await;
    let (all_after, hot_after) = effects(&db).await?;
    stop.cancel();
    while clients.join_next().await.is_some() {}
    let rate = |before: i64, after: i64| (after - before) as f64 / MEASURED.as_secs_f64();
    // One key runs one task at a time: it may be full before the mesh is, and in fault runs it gets half of all.
    Ok(rate(all, all_after).min(2.0 * rate(hot, hot_after)))
}

async fn effects(db: &PgPool) -> Result<(i64, i64)> {
    Ok(
        sqlx::query_as("select count(*), count(*) filter (where key = 'hot') from ringmesh_faults.effect")
            .fetch_one(db)
            .await?,
    )
}
