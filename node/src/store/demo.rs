//! The demo's tables. They are no part of the mesh's schema, so their statements are checked when they run.

use chrono::{DateTime, Utc};
use ringmesh_ring::{Epoch, Incarnation, Row, Slot};
use sqlx::PgConnection;

use super::{Error, Store};
use crate::context::Fence;
use crate::demo::flights::Aircraft;
use crate::demo::logbook::{Logbook, START};
use crate::task::TaskId;

/// What a node keeps in memory for an aircraft.
#[derive(Debug)]
pub(crate) struct Loaded {
    /// The run of the demo to which the tables belong.
    pub(crate) run: String,
    /// What is written so far.
    pub(crate) logbook: Logbook,
    /// Its description; empty when the register does not have it.
    pub(crate) aircraft: Aircraft,
}

/// Who writes an entry.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Author<'a> {
    pub(crate) node: &'a str,
    pub(crate) task: TaskId,
    pub(crate) fence: Fence,
    /// Whether the aircraft was in the node's memory.
    pub(crate) warm: bool,
}

/// All slots at one moment.
#[derive(Debug, Clone)]
pub(crate) struct Slots {
    /// By the database's clock.
    pub(crate) at: DateTime<Utc>,
    /// By slot.
    pub(crate) rows: Vec<Row>,
}

/// A name's latest incarnation.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct NodeRow {
    pub(crate) name: String,
    pub(crate) incarnation: i64,
    pub(crate) fenced_at: Option<DateTime<Utc>>,
    pub(crate) fenced_as: Option<String>,
}

/// A task that has not ended, or not well.
#[derive(Debug, sqlx::FromRow)]
pub(crate) struct Stuck {
    pub(crate) slot: i32,
    pub(crate) id: i64,
    pub(crate) key: String,
    pub(crate) state: String,
    pub(crate) failures: i32,
    pub(crate) error: Option<String>,
}

/// One effect.
#[derive(Debug, Clone, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Entry {
    pub(crate) line: i64,
    pub(crate) tailnum: String,
    pub(crate) warm: bool,
    pub(crate) written_at: DateTime<Utc>,
}

/// A slot of which it is asked how long it paused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Moved {
    pub(crate) slot: Slot,
    /// Under which it was owned before.
    pub(crate) epoch: Epoch,
    /// A moment at which it surely had not moved yet.
    pub(crate) until: DateTime<Utc>,
}

/// What stands before and after a pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, sqlx::FromRow)]
pub(crate) struct Pause {
    /// The last commit under the epoch before.
    pub(crate) last_before: Option<DateTime<Utc>>,
    /// When the first task after it was submitted.
    pub(crate) created_at: DateTime<Utc>,
    /// When that task was committed.
    pub(crate) first_after: DateTime<Utc>,
}

#[derive(sqlx::FromRow)]
struct LogbookRow {
    flights: i64,
    cancellations: i64,
    miles: i64,
    air_minutes: i64,
    punctual: i64,
    longest_run: i64,
    chain: Vec<u8>,
    last_line: i64,
}

impl TryFrom<LogbookRow> for Logbook {
    type Error = Error;

    fn try_from(row: LogbookRow) -> Result<Self, Error> {
        let bad = |_| Error::Refused(sqlx::Error::Decode("a chain of other than 32 bytes".into()));
        Ok(Logbook {
            flights: row.flights,
            cancellations: row.cancellations,
            miles: row.miles,
            air_minutes: row.air_minutes,
            punctual: row.punctual,
            longest_run: row.longest_run,
            chain: row.chain.try_into().map_err(bad)?,
            last_line: row.last_line,
        })
    }
}

#[derive(sqlx::FromRow)]
struct LoadedRow {
    run: String,
    #[sqlx(flatten)]
    logbook: LogbookRow,
    year: Option<i32>,
    manufacturer: Option<String>,
    model: Option<String>,
    seats: Option<i32>,
}

/// Reads an aircraft's record and logbook. `None`: this key has no logbook.
pub(crate) async fn load(connection: &mut PgConnection, tailnum: &str) -> Result<Option<Loaded>, Error> {
    let row: Option<LoadedRow> = sqlx::query_as(include_str!("sql/demo_load.sql"))
        .bind(tailnum)
        .fetch_optional(connection)
        .await?;
    let loaded = row.map(|row| {
        Ok(Loaded {
            run: row.run,
            logbook: row.logbook.try_into()?,
            aircraft: Aircraft {
                year: row.year,
                manufacturer: row.manufacturer,
                model: row.model,
                seats: row.seats,
            },
        })
    });
    loaded.transpose()
}

/// Writes one flight's effect: the logbook as it is after it, and an entry. False: the logbook is not as `before` says, and
/// nothing was written.
pub(crate) async fn write(
    connection: &mut PgConnection,
    tailnum: &str,
    before: &Logbook,
    after: &Logbook,
    author: Author<'_>,
) -> Result<bool, Error> {
    let done = sqlx::query(include_str!("sql/demo_write.sql"))
        .bind(tailnum)
        .bind(before.chain.as_slice())
        .bind(after.flights)
        .bind(after.cancellations)
        .bind(after.miles)
        .bind(after.air_minutes)
        .bind(after.punctual)
        .bind(after.longest_run)
        .bind(after.chain.as_slice())
        .bind(after.last_line)
        .bind(author.node)
        .bind(author.fence.epoch.0)
        .bind(i32::from(author.fence.slot.get()))
        .bind(author.task.number)
        .bind(author.fence.attempt)
        .bind(author.warm)
        .execute(connection)
        .await?;
    Ok(done.rows_affected() == 1)
}

impl Store {
    /// Makes the demo's schema anew: all aircraft, an empty logbook for each key, no entries.
    ///
    /// # Errors
    /// `Unknown`: call again. Else nothing has changed.
    pub(crate) async fn demo_create(
        &self,
        run: &str,
        register: &[(String, Aircraft)],
        keys: &[&str],
    ) -> Result<(), Error> {
        let mut session = self.patient().begin().await?;
        sqlx::raw_sql(include_str!("sql/demo_create.sql"))
            .execute(&mut session)
            .await?;
        sqlx::query(include_str!("sql/demo_fill_run.sql"))
            .bind(run)
            .execute(&mut session)
            .await?;
        let column = |of: fn(&Aircraft) -> Option<String>| -> Vec<Option<String>> {
            register.iter().map(|(_, aircraft)| of(aircraft)).collect()
        };
        let tailnums: Vec<&str> = register.iter().map(|(tailnum, _)| tailnum.as_str()).collect();
        let years: Vec<Option<i32>> = register.iter().map(|(_, aircraft)| aircraft.year).collect();
        let seats: Vec<Option<i32>> = register.iter().map(|(_, aircraft)| aircraft.seats).collect();
        sqlx::query(include_str!("sql/demo_fill_aircraft.sql"))
            .bind(tailnums)
            .bind(years)
            .bind(column(|aircraft| aircraft.manufacturer.clone()))
            .bind(column(|aircraft| aircraft.model.clone()))
            .bind(seats)
            .execute(&mut session)
            .await?;
        sqlx::query(include_str!("sql/demo_fill_logbook.sql"))
            .bind(keys)
            .bind(START.as_slice())
            .execute(&mut session)
            .await?;
        session.commit().await?;
        Ok(())
    }

    /// All slots now.
    pub(crate) async fn demo_slots(&self) -> Result<Slots, Error> {
        let (at, owners, epochs): (DateTime<Utc>, Vec<i64>, Vec<i64>) =
            sqlx::query_as(include_str!("sql/demo_slots.sql"))
                .fetch_one(&self.patient())
                .await?;
        let rows = Slot::all().zip(owners.into_iter().zip(epochs));
        let rows = rows.map(|(slot, (owner, epoch))| Row {
            slot,
            owner: (owner != 0).then_some(Incarnation(owner)),
            epoch: Epoch(epoch),
        });
        Ok(Slots {
            at,
            rows: rows.collect(),
        })
    }

    /// The latest incarnation of each name.
    pub(crate) async fn demo_nodes(&self) -> Result<Vec<NodeRow>, Error> {
        Ok(sqlx::query_as(include_str!("sql/demo_nodes.sql"))
            .fetch_all(&self.patient())
            .await?)
    }

    /// How many flights each node has written.
    pub(crate) async fn demo_counts(&self) -> Result<Vec<(String, i64)>, Error> {
        Ok(sqlx::query_as(include_str!("sql/demo_counts.sql"))
            .fetch_all(&self.patient())
            .await?)
    }

    /// The database's clock.
    pub(crate) async fn demo_now(&self) -> Result<DateTime<Utc>, Error> {
        Ok(sqlx::query_scalar(include_str!("sql/demo_now.sql"))
            .fetch_one(&self.patient())
            .await?)
    }

    /// How many tasks of a run have not ended.
    pub(crate) async fn demo_open(&self, run: &str) -> Result<i64, Error> {
        let open = sqlx::query_scalar(include_str!("sql/demo_open.sql")).bind(run);
        Ok(open.fetch_one(&self.patient()).await?)
    }

    /// A few tasks of a run that have not ended, or not well.
    pub(crate) async fn demo_stuck(&self, run: &str) -> Result<Vec<Stuck>, Error> {
        let stuck = sqlx::query_as(include_str!("sql/demo_stuck.sql")).bind(run);
        Ok(stuck.fetch_all(&self.patient()).await?)
    }

    /// All effects.
    pub(crate) async fn demo_entries(&self) -> Result<Vec<Entry>, Error> {
        Ok(sqlx::query_as(include_str!("sql/demo_entries.sql"))
            .fetch_all(&self.patient())
            .await?)
    }

    /// All logbooks, with their tail numbers.
    pub(crate) async fn demo_logbooks(&self) -> Result<Vec<(String, Logbook)>, Error> {
        #[derive(sqlx::FromRow)]
        struct Keyed {
            tailnum: String,
            #[sqlx(flatten)]
            logbook: LogbookRow,
        }
        let rows: Vec<Keyed> = sqlx::query_as(include_str!("sql/demo_logbooks.sql"))
            .fetch_all(&self.patient())
            .await?;
        rows.into_iter()
            .map(|row| Ok((row.tailnum, row.logbook.try_into()?)))
            .collect()
    }

    /// For each slot that moved and had a task waiting: what stands before and after its pause.
    pub(crate) async fn demo_pauses(&self, moved: &[Moved]) -> Result<Vec<Pause>, Error> {
        let slots: Vec<i32> = moved.iter().map(|moved| i32::from(moved.slot.get())).collect();
        let epochs: Vec<i64> = moved.iter().map(|moved| moved.epoch.0).collect();
        let until: Vec<DateTime<Utc>> = moved.iter().map(|moved| moved.until).collect();
        let pauses = sqlx::query_as(include_str!("sql/demo_pauses.sql"))
            .bind(slots)
            .bind(epochs)
            .bind(until);
        Ok(pauses.fetch_all(&self.patient()).await?)
    }
}

#[cfg(test)]
#[path = "demo_tests.rs"]
mod tests;
