//! W8: a large backlog, and a few clients that ask for the usual beside it.

use anyhow::Context as _;
use async_trait::async_trait;
use ringmesh::sqlx;
use ringmesh::sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use super::append::KeyedAppend;
use super::{Targets, Workload};
use crate::history::Submit;

/// Keys of the backlog.
const KEYS: i64 = 100_000;
/// Rows per statement.
const CHUNK: i64 = 500_000;
/// Tasks a second beside the backlog, if no rate is given.
const RATE: f64 = 200.0;

/// W8: so many open tasks before the mesh gets to work.
///
/// They go in by SQL, before the record of changes begins, and have no effects: what is checked of them is that all end, and
/// that the tasks beside them do not wait.
#[derive(Debug)]
pub(super) struct Backlog {
    /// Due at once.
    pub due: i64,
    /// Due in a hundred years.
    pub future: i64,
}

#[async_trait]
impl Workload for Backlog {
    fn id(&self) -> &'static str {
        "W8"
    }

    fn what(&self) -> &'static str {
        "backlog: 1,000,000 or 10,000,000 open tasks, up to half of them in the future, and 200/s of W1 beside it"
    }

    async fn prepare(&self, database_url: &str) -> anyhow::Result<()> {
        let pool = PgPoolOptions::new()
            .max_connections(1)
            .connect(database_url)
            .await?;
        for (count, scheduled) in [(self.due, false), (self.future, true)] {
            for from in (0..count).step_by(CHUNK as usize) {
                // The transaction takes its number before the first task does, as the product's own inserts do.
                sqlx::query(
                    "with number as materialized (select pg_current_xact_id() is not null as taken),
                          new as materialized (
                              select 'b' || n % $3 as key from number, generate_series($1, $2) n where taken)
                     insert into ringmesh.task (slot, key, kind, payload, wait, run_at)
                     select ringmesh.slot_of(key), key, 'noop', 'null',
                            case when $4 then 'scheduled' end, case when $4 then now() + interval '100 years' end
                     from new",
                )
                .bind(from)
                .bind((from + CHUNK).min(count) - 1)
                .bind(KEYS)
                .bind(scheduled)
                .execute(&pool)
                .await
                .context("the backlog could not be inserted")?;
            }
        }
        sqlx::query("vacuum analyze ringmesh.task").execute(&pool).await?;
        pool.close().await;
        Ok(())
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let rate = Some(rate.unwrap_or(RATE).min(RATE));
        KeyedAppend.run(targets, seed, rate, stop).await
    }
}
