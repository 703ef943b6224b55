//! What the benchmark asks of Postgres: databases of its own, backlogs, and the times that tasks left in the archive.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use ringmesh_ring::{Epoch, Incarnation, Slot};
use sqlx::postgres::PgConnectOptions;
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::slots::slot;
use super::submit::{CHUNK, Row, insert};
use super::{Error, Store};
use crate::task::TaskId;

/// A server on which databases come and go.
#[derive(Debug, Clone)]
pub(crate) struct Server(PgConnectOptions);

/// What a figure depends on.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    /// The version of Postgres.
    pub(crate) version: String,
    /// Each as `name value`.
    pub(crate) settings: Vec<String>,
}

/// A backlog that has just been put in.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backlog {
    /// The lowest number of its tasks.
    pub(crate) first_id: i64,
    /// The database's clock right before its COMMIT.
    pub(crate) committed_at: DateTime<Utc>,
}

/// How far the tasks of a backlog are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Drained {
    /// How many ended well.
    pub(crate) count: usize,
    /// When the first one started.
    pub(crate) first_start: Option<DateTime<Utc>>,
    /// When the last one ended.
    pub(crate) last_end: Option<DateTime<Utc>>,
}

/// The slots of one node.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    /// The node.
    pub(crate) owner: Incarnation,
    /// Its slots.
    pub(crate) slots: Vec<(Slot, Epoch)>,
}

/// A slot that lost its owner.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Orphan {
    /// The slot.
    pub(crate) slot: Slot,
    /// Its epoch before.
    pub(crate) epoch: Epoch,
    /// Until when it surely had no new owner.
    pub(crate) until: DateTime<Utc>,
}

impl Server {
    /// # Errors
    /// `Refused` if the URL does not parse.
    pub(crate) fn new(url: &str) -> Result<Self, Error> {
        Ok(Self(url.parse().map_err(Error::Refused)?))
    }

    /// Creates an empty database and answers with its URL. The name must be of lower-case letters, digits and `_`.
    ///
    /// # Errors
    /// `Refused` also if the user may not create databases.
    pub(crate) async fn create_database(&self, name: &str) -> Result<(), Error> {
        self.execute("create database", name, " template template0 encoding 'UTF8'")
            .await
    }

    /// Drops a database, ending what sessions it still has.
    ///
    /// # Errors
    /// It may be there still.
    pub(crate) async fn drop_database(&self, name: &str) -> Result<(), Error> {
        self.execute("drop database if exists", name, " with (force)")
            .await
    }

    /// The names of databases cannot be parameters.
    async fn execute(&self, verb: &str, name: &str, rest: &str) -> Result<(), Error> {
        let harmless = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '_';
        assert!(
            name.chars().all(harmless),
            "the name of a database must be harmless"
        );
        let mut connection = PgConnection::connect_with(&self.0).await?;
        sqlx::raw_sql(AssertSqlSafe(format!("{verb} {name}{rest}")))
            .execute(&mut connection)
            .await?;
        connection.close().await?;
        Ok(())
    }

    /// The databases of benchmarks that are there.
    #[cfg(test)]
    pub(crate) async fn databases(&self) -> Result<Vec<String>, Error> {
        let mut connection = PgConnection::connect_with(&self.0).await?;
        let names =
            sqlx::query_scalar("select datname from pg_database where datname like 'ringmesh_bench_%'")
                .fetch_all(&mut connection)
                .await?;
        connection.close().await?;
        Ok(names)
    }

    /// What the server says of itself.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn facts(&self) -> Result<Facts, Error> {
        let mut connection = PgConnection::connect_with(&self.0).await?;
        let row = sqlx::query_file!("src/store/sql/bench_facts.sql")
            .fetch_one(&mut connection)
            .await?;
        connection.close().await?;
        Ok(Facts {
            version: row.version,
            settings: row.settings,
        })
    }
}

impl Store {
    /// Writes a checkpoint, so that a measurement starts without the writes of what came before. A user who may not do so
    /// measures without.
    ///
    /// # Errors
    /// Nothing was changed.
    pub(crate) async fn checkpoint(&self) -> Result<(), Error> {
        match sqlx::query("checkpoint").execute(&self.patient()).await {
            Ok(_) => Ok(()),
            Err(error) => match error.into() {
                Error::Refused(_) => Ok(()),
                other => Err(other),
            },
        }
    }

    /// Puts rows in by one transaction, so that they appear at once.
    ///
    /// # Errors
    /// All of the rows or none. `Unknown`: the answer to the commit was lost.
    pub(crate) async fn backlog(&self, rows: &[Row]) -> Result<Backlog, Error> {
        let mut session = self.patient().begin().await?;
        let mut first_id = i64::MAX;
        for chunk in rows.chunks(CHUNK) {
            let chunk: Vec<&Row> = chunk.iter().collect();
            let ids = insert(&mut session, &chunk).await?;
            first_id = ids.into_iter().fold(first_id, i64::min);
        }
        let row = sqlx::query_file!("src/store/sql/bench_now.sql")
            .fetch_one(&mut session)
            .await?;
        session.commit().await?;
        Ok(Backlog {
            first_id,
            committed_at: row.now,
        })
    }

    /// The database's clock.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn now(&self) -> Result<DateTime<Utc>, Error> {
        Ok(sqlx::query_file_scalar!("src/store/sql/bench_now.sql")
            .fetch_one(&self.patient())
            .await?)
    }

    /// Whether some task is open.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn has_open(&self) -> Result<bool, Error> {
        Ok(sqlx::query_file_scalar!("src/store/sql/bench_open.sql")
            .fetch_one(&self.patient())
            .await?)
    }

    /// The size of the archive in bytes.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn archived_bytes(&self) -> Result<i64, Error> {
        Ok(sqlx::query_file_scalar!("src/store/sql/bench_archived_bytes.sql")
            .fetch_one(&self.patient())
            .await?)
    }

    /// How far the tasks from `first_id` on are.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn drained(&self, first_id: i64) -> Result<Drained, Error> {
        let row = sqlx::query_file!("src/store/sql/bench_drained.sql", first_id)
            .fetch_one(&self.patient())
            .await?;
        Ok(Drained {
            count: usize::try_from(row.count).unwrap_or(0),
            first_start: row.first_start,
            last_end: row.last_end,
        })
    }

    /// How long after its submit each task from `first_id` on started, in ms.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn start_delays(&self, first_id: i64) -> Result<Vec<f64>, Error> {
        Ok(
            sqlx::query_file_scalar!("src/store/sql/bench_starts.sql", first_id)
                .fetch_all(&self.patient())
                .await?,
        )
    }

    /// The last number given to a task.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn last_id(&self) -> Result<i64, Error> {
        Ok(sqlx::query_file_scalar!("src/store/sql/bench_last_id.sql")
            .fetch_one(&self.patient())
            .await?)
    }

    /// The slots of the unfenced node of this name; `None`: it owns none.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn owned_by(&self, name: &str) -> Result<Option<Owned>, Error> {
        let rows = sqlx::query_file!("src/store/sql/bench_owned.sql", name)
            .fetch_all(&self.patient())
            .await?;
        let Some(first) = rows.first() else {
            return Ok(None);
        };
        Ok(Some(Owned {
            owner: Incarnation(first.owner),
            slots: rows
                .iter()
                .filter_map(|row| Some((slot(row.slot)?, Epoch(row.epoch))))
                .collect(),
        }))
    }

    /// The slots of everybody else, with their epochs.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn epochs_of_others(&self, owner: Incarnation) -> Result<BTreeMap<Slot, Epoch>, Error> {
        let rows = sqlx::query_file!("src/store/sql/bench_others.sql", owner.0)
            .fetch_all(&self.patient())
            .await?;
        Ok(rows
            .iter()
            .filter_map(|row| Some((slot(row.slot)?, Epoch(row.epoch))))
            .collect())
    }

    /// How many ended tasks were claimed more than once, and how many had a run that failed.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn claimed_again(&self) -> Result<(usize, usize), Error> {
        let row = sqlx::query_file!("src/store/sql/bench_claimed_again.sql")
            .fetch_one(&self.patient())
            .await?;
        let count = |count: i64| usize::try_from(count).unwrap_or(0);
        Ok((count(row.claimed_again), count(row.failed)))
    }

    /// Which of these slots still belong to `owner`, and a time at which they did.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn still_owned(
        &self,
        owner: Incarnation,
        slots: &[Slot],
    ) -> Result<(DateTime<Utc>, Vec<Slot>), Error> {
        let row = sqlx::query_file!("src/store/sql/bench_orphaned.sql", &numbers(slots), owner.0)
            .fetch_one(&self.patient())
            .await?;
        Ok((row.at, row.slots.into_iter().filter_map(slot).collect()))
    }

    /// How long each slot in which tasks waited stood still, in ms.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn gaps(&self, killed_at: DateTime<Utc>, orphans: &[Orphan]) -> Result<Vec<f64>, Error> {
        let slots: Vec<i32> = orphans.iter().map(|orphan| orphan.slot.into()).collect();
        let epochs: Vec<i64> = orphans.iter().map(|orphan| orphan.epoch.0).collect();
        let until: Vec<DateTime<Utc>> = orphans.iter().map(|orphan| orphan.until).collect();
        Ok(
            sqlx::query_file_scalar!("src/store/sql/bench_gaps.sql", killed_at, &slots, &epochs, &until)
                .fetch_all(&self.patient())
                .await?,
        )
    }

    /// The longest wait for a start, in ms, of the tasks submitted in this time outside of these slots.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn longest_start(
        &self,
        from: DateTime<Utc>,
        to: DateTime<Utc>,
        outside: &[Slot],
    ) -> Result<Option<f64>, Error> {
        Ok(
            sqlx::query_file_scalar!("src/store/sql/bench_other_gap.sql", from, to, &numbers(outside))
                .fetch_one(&self.patient())
                .await?,
        )
    }

    /// How many of these tasks ended well.
    ///
    /// # Errors
    /// Nothing was to change.
    pub(crate) async fn ended_well(&self, tasks: &[TaskId]) -> Result<usize, Error> {
        let slots: Vec<i32> = tasks.iter().map(|task| task.slot.into()).collect();
        let ids: Vec<i64> = tasks.iter().map(|task| task.number).collect();
        let count = sqlx::query_file_scalar!("src/store/sql/bench_ended.sql", &slots, &ids)
            .fetch_one(&self.patient())
            .await?;
        Ok(usize::try_from(count).unwrap_or(0))
    }

    /// Ends all its sessions.
    pub(crate) async fn close(&self) {
        self.pool.close().await;
        self.hot.close().await;
    }
}

fn numbers(slots: &[Slot]) -> Vec<i32> {
    slots.iter().map(|slot| i32::from(*slot)).collect()
}
