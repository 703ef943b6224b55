//! What readers ask for, and the cancel.

use chrono::{DateTime, Utc};
use ringmesh_ring::{Epoch, Incarnation, Key, Slot};
use serde_json::value::RawValue;

use super::{Error, Store, to_its_end};
use crate::task::{State, TaskId, View};

/// Where a key stands.
#[derive(Debug, Clone)]
pub struct KeyStatus {
    /// The key's slot.
    pub slot: Slot,
    /// The slot's epoch.
    pub epoch: Epoch,
    /// The slot's unfenced owner, with its name.
    pub owner: Option<(Incarnation, String)>,
    /// How many tasks of the key are due and not claimed.
    pub waiting: i64,
    /// How many are claimed by the owner.
    pub running: i64,
    /// How many wait for their time.
    pub scheduled: i64,
    /// Why only one task of the key may run.
    pub held: Option<Held>,
}

/// A hold of a key.
#[derive(Debug, Clone)]
pub struct Held {
    /// `retry`, `kind` or `lifting`.
    pub reason: String,
    /// The only task that may run; none while the hold is being lifted.
    pub task: Option<TaskId>,
    /// When that task is due, as far as known.
    pub until: Option<DateTime<Utc>>,
    /// That task's kind.
    pub kind: Option<String>,
}

fn state(text: &str) -> State {
    match text {
        "scheduled" => State::Scheduled,
        "running" => State::Running,
        "succeeded" => State::Succeeded,
        "dead" => State::Dead,
        "cancelled" => State::Cancelled,
        _ => State::Pending,
    }
}

/// A read changes nothing, so one without an answer may simply be tried again.
fn lost_read(error: sqlx::Error) -> Error {
    match Error::from(error) {
        Error::Unknown(source) => Error::Unavailable(source),
        other => other,
    }
}

impl Store {
    /// Reads tasks, open or finished, in the order of the ids; `None` for those that are unknown.
    ///
    /// # Errors
    /// `Unavailable`, or `Refused` if the schema is not as expected.
    pub async fn tasks(&self, ids: &[TaskId]) -> Result<Vec<Option<View>>, Error> {
        let slots: Vec<i32> = ids.iter().map(|id| id.slot.into()).collect();
        let numbers: Vec<i64> = ids.iter().map(|id| id.number).collect();
        let rows = sqlx::query_file!("src/store/sql/get_tasks.sql", &slots, &numbers)
            .fetch_all(&self.pool)
            .await
            .map_err(lost_read)?;
        let mut views = vec![None; ids.len()];
        for row in rows {
            let at = usize::try_from(row.place).expect("WITH ORDINALITY counts from 1") - 1;
            views[at] = Some(View {
                id: ids[at],
                kind: row.kind,
                key: row.key,
                slot: ids[at].slot,
                state: state(&row.state),
                priority: row.priority,
                attempt: row.attempt,
                failures: row.failures,
                crashes: row.crashes,
                result: row.result.and_then(|text| RawValue::from_string(text).ok()),
                error: row.error,
                created_at: row.created_at,
                started_at: row.started_at,
                finished_at: row.finished_at,
                run_at: row.run_at,
                node: row.node,
                epoch: row.epoch.map(Epoch),
            });
        }
        Ok(views)
    }

    /// Reads where a key stands.
    ///
    /// # Errors
    /// As [`Store::tasks`].
    pub async fn key_status(&self, key: &Key) -> Result<KeyStatus, Error> {
        let slot = Slot::of(key);
        let (pool, text) = (self.pool.clone(), key.as_str().to_owned());
        let row = to_its_end(async move {
            sqlx::query_file!("src/store/sql/key_status.sql", i32::from(slot), text)
                .fetch_one(&pool)
                .await
                .map_err(lost_read)
        })
        .await?;
        Ok(KeyStatus {
            slot,
            epoch: Epoch(row.epoch),
            owner: row.incarnation.map(Incarnation).zip(row.owner),
            waiting: row.waiting,
            running: row.running,
            scheduled: row.scheduled,
            held: row.held_for.map(|reason| Held {
                reason,
                task: row
                    .held_task
                    .filter(|number| *number > 0)
                    .map(|number| TaskId { slot, number }),
                until: row.held_until,
                kind: row.held_kind,
            }),
        })
    }

    /// Cancels an open task. `false`: there is no open task of this id; it has ended or never was.
    ///
    /// # Errors
    /// As [`Store::tasks`], and `Unknown` if the answer was lost: then a read tells.
    pub async fn cancel(&self, id: TaskId) -> Result<bool, Error> {
        let pool = self.pool.clone();
        to_its_end(async move {
            let mut session = pool.acquire().await.map_err(Error::Unavailable)?;
            let rows = sqlx::query_file!("src/store/sql/cancel.sql", i32::from(id.slot), id.number)
                .fetch_all(&mut session)
                .await?;
            Ok(!rows.is_empty())
        })
        .await
    }

    /// About how many tasks are open, as the statistics know it. Scans nothing.
    ///
    /// # Errors
    /// As [`Store::tasks`].
    pub async fn open_tasks(&self) -> Result<i64, Error> {
        let pool = self.pool.clone();
        let row = to_its_end(async move {
            sqlx::query_file!("src/store/sql/counts.sql")
                .fetch_one(&pool)
                .await
                .map_err(lost_read)
        })
        .await?;
        Ok(row.open)
    }
}
