//! How much this machine can do: faults are injected at half of it, so that what is late is late by the fault.

use std::path::PathBuf;
use std::time::{Duration, UNIX_EPOCH};

use anyhow::{Context as _, Result, ensure};
use ringmesh::sqlx::{self, PgPool};
use serde::{Deserialize, Serialize};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::report::Progress;
use super::runner::{load, prepare, targets};
use crate::lab::{self, Lab};
use crate::workload;

/// The rates that are tried, in effects of W1 a second: the first, and by how much each is above the one before.
const FIRST: f64 = 80.0;
const STEP: f64 = 1.25;
const STEPS: i32 = 14;
/// How long each is tried.
const TRIED: Duration = Duration::from_secs(8);
/// A rate is kept up if after that time no more tasks are open than arrive in this one, and so many of those meant were accepted.
const OPEN: f64 = 0.5;
const ACCEPTED: f64 = 0.95;
/// How long the mesh may take to end what a rate has left.
const DRAIN: Duration = Duration::from_secs(60);
/// The part of the capacity that fault runs use.
const PART: f64 = 0.5;

/// What was measured once, by this very program.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub struct Capacity {
    /// Effects of W1 a second that the mesh keeps up with; half of them are of one key.
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
        effects_per_second: measure(progress).await?,
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

/// W1 at one rate after the other, until the mesh falls behind. (Clients that send as fast as they are answered would measure how fast
/// tasks are accepted, and leave the key that gets half of them further and further behind.)
async fn measure(progress: &Progress) -> Result<f64> {
    let lab = Lab::start_with(lab::Options::default(), async |url| prepare(url, &[]).await).await?;
    let db = PgPool::connect(&lab.database_url()).await?;
    let targets = targets(&lab)?;
    let mut kept_up = 0.0;
    for step in 0..STEPS {
        let rate = FIRST * STEP.powi(step);
        progress.say(format!("measures what this machine can do: {rate:.0}/s"));
        let before = counted(&db).await?;
        let stop = CancellationToken::new();
        let workloads = workload::by_name("W1").into_iter().collect();
        let mut clients = load(workloads, &targets, 0, Some(rate), &stop);
        sleep(TRIED).await;
        let (open, done) = counted(&db).await?;
        stop.cancel();
        while clients.join_next().await.is_some() {}
        let accepted = (open + done - before.1) as f64 / TRIED.as_secs_f64();
        if open as f64 > rate * OPEN || accepted < rate * ACCEPTED {
            break;
        }
        kept_up = rate;
        let drained = async {
            while counted(&db).await?.0 > 0 {
                sleep(Duration::from_millis(100)).await;
            }
            anyhow::Ok(())
        };
        tokio::time::timeout(DRAIN, drained)
            .await
            .context("the mesh does not end its work")??;
    }
    ensure!(kept_up > 0.0, "this machine cannot do {FIRST} effects a second");
    Ok(kept_up)
}

/// Open tasks, and effects.
async fn counted(db: &PgPool) -> Result<(i64, i64)> {
    let count = "select (select count(*) from ringmesh.task), (select count(*) from ringmesh_faults.effect)";
    Ok(sqlx::query_as(count).fetch_one(db).await?)
}
