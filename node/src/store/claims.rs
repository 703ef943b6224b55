//! The owner's work on tasks: claim, finish, send back, and the upkeep of scheduled tasks and held keys.
//!
//! Each write carries its fence. A task that is missing in an answer was fenced, or has ended, or the node was cut short at that
//! moment; [`Store::read_back`] tells which.

use std::time::Duration;

use super::session::Session;
use super::slots::{columns, slot};
use super::{Error, Me, Store};
use crate::failpoint;
use crate::task::{Claimed, TaskId};
use ringmesh_ring::{Epoch, Incarnation, Key, Slot};

/// A claim of a task: what its owner's writes about it are fenced by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Token {
    /// The task.
    pub id: TaskId,
    /// Its slot's epoch at the claim.
    pub epoch: Epoch,
    /// The number of the claim.
    pub attempt: i32,
}

impl Claimed {
    /// What writes about this claim are fenced by.
    pub fn token(&self) -> Token {
        Token {
            id: self.id,
            epoch: self.epoch,
            attempt: self.attempt,
        }
    }
}

/// The place of a claim or promotion among those of its node's life. A slot refuses those up to the one that its owner
/// settled, see [`Store::settle`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(pub i64);

/// Where to look for due tasks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probe {
    /// The slot.
    pub slot: Slot,
    /// Its epoch.
    pub epoch: Epoch,
    /// The lowest task number to look at.
    pub start: i64,
    /// How many at most.
    pub room: i32,
}

/// What a probe found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Probed {
    /// The slot. It was ours, or it would not stand in the answer.
    pub slot: Slot,
    /// How many tasks were picked; fewer may have been claimed, if some were cancelled meanwhile.
    pub picked: i32,
    /// Whether the slot had held keys, behind which tasks may be hidden.
    pub holds: bool,
}

/// The answer to a claim.
#[derive(Debug, Clone, Default)]
pub struct ClaimAnswer {
    /// Ascending by task number.
    pub tasks: Vec<Claimed>,
    /// The slots that were ours.
    pub probed: Vec<Probed>,
}

/// What is certain of slots after claims or promotions without an answer.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settled {
    /// The slots for which it is. A slot that is missing is not ours, or the node was cut short.
    pub slots: Vec<Slot>,
    /// What Postgres holds as claimed in them.
    pub claimed: Vec<Token>,
}

/// How a task ends.
#[derive(Debug, Clone)]
pub struct Finish {
    /// Which claim of which task.
    pub token: Token,
    /// Its result, if it succeeded; else it is dead.
    pub end: Result<Option<String>, String>,
    /// How long its run took.
    pub run: Duration,
    /// Whether a failure is added to its count.
    pub failed: bool,
    /// Whether it is the head of a held key.
    pub head: bool,
}

/// How a task waits for its next run.
#[derive(Debug, Clone)]
pub struct Retry {
    /// Which claim of which task.
    pub token: Token,
    /// Its key, which is held for it.
    pub key: Key,
    /// How long it waits.
    pub delay: Duration,
    /// Whether a failure is added to its count.
    pub failed: bool,
    /// Why.
    pub error: Option<String>,
}

/// What became of a claimed task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ReadBack {
    /// Still open under this claim: what was written about it was not.
    Open,
    /// Ended by this claim.
    Ended,
    /// Open, but not under this claim: it waits, also for its retry, or is claimed anew. Those after it may not start.
    Waits,
    /// Ended otherwise: cancelled.
    Gone,
}

/// Where the start of probes stands; see `horizon.sql`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Horizon {
    /// The last number given to a task.
    pub last_id: i64,
    /// A transaction number above that of every transaction that holds a task number up to `last_id`.
    pub here: i64,
    /// Every transaction below it that may hold a task number has ended.
    pub xmin: i64,
}

/// What the held keys of a slot need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Holds {
    /// The slot.
    pub slot: Slot,
    /// Some are being lifted.
    pub lifting: bool,
    /// Some wait for a kind.
    pub kind: bool,
    /// Some have lost their head.
    pub orphaned: bool,
    /// Some are held for long.
    pub long: bool,
}

#[derive(Default)]
struct Tokens {
    slots: Vec<i32>,
    ids: Vec<i64>,
    epochs: Vec<i64>,
    attempts: Vec<i32>,
}

impl<'a> FromIterator<&'a Token> for Tokens {
    fn from_iter<I: IntoIterator<Item = &'a Token>>(tokens: I) -> Self {
        let mut columns = Tokens::default();
        for token in tokens {
            columns.slots.push(i32::from(token.id.slot));
            columns.ids.push(token.id.number);
            columns.epochs.push(token.epoch.0);
            columns.attempts.push(token.attempt);
        }
        columns
    }
}

fn task_id(number: i32, id: i64) -> Option<TaskId> {
    Some(TaskId {
        slot: slot(number)?,
        number: id,
    })
}

macro_rules! ids {
    ($rows:expr) => {
        Ok($rows
            .into_iter()
            .filter_map(|row| task_id(row.slot, row.id))
            .collect())
    };
}

macro_rules! claim_answer {
    ($rows:expr) => {{
        let mut answer = ClaimAnswer::default();
        for row in $rows {
            let Some(slot) = slot(row.slot) else { continue };
            if row.id == 0 {
                answer.probed.push(Probed { slot, picked: row.attempt, holds: row.head });
                continue;
            }
            // The table's own checks allow more than a key does; a row with such a key waits for whoever put it there.
            let Ok(key) = Key::new(row.key) else {
                tracing::warn!(task = row.id, slot = row.slot, "a task has a key that is none");
                continue;
            };
            answer.tasks.push(Claimed {
                id: TaskId { slot, number: row.id },
                epoch: Epoch(row.epoch),
                attempt: row.attempt,
                key,
                kind: row.kind,
                payload: row.payload,
                priority: u8::try_from(row.priority).unwrap_or(0),
                failures: row.failures,
                crashes: row.crashes,
                trial: row.trial,
                lost: row.lost,
                head: row.head,
                max_attempts: row.max_attempts,
                timeout: Duration::from_millis(u64::try_from(row.timeout_ms).unwrap_or(1)),
                waiter: row.waiter.map(Incarnation),
                created_at: row.created_at,
            });
        }
        answer.tasks.sort_unstable_by_key(|task| task.id.number);
        answer
    }};
}

struct ProbeColumns(Vec<i32>, Vec<i64>, Vec<i64>, Vec<i32>);

fn probe_columns(probes: &[Probe]) -> ProbeColumns {
    ProbeColumns(
        probes.iter().map(|probe| i32::from(probe.slot)).collect(),
        probes.iter().map(|probe| probe.epoch.0).collect(),
        probes.iter().map(|probe| probe.start).collect(),
        probes.iter().map(|probe| probe.room).collect(),
    )
}

impl Error {
    /// Whether the data of the statement was refused, so that another row of the same batch may pass.
    pub(crate) fn is_about_data(&self) -> bool {
        let Error::Refused(error) = self else { return false };
        match error {
            sqlx::Error::Database(refusal) => refusal
                .code()
                .is_some_and(|code| code.starts_with("22") || code.starts_with("54")),
            sqlx::Error::Encode(_) => true,
            _ => false,
        }
    }
}

impl Store {
    /// Claims due tasks, oldest first. A slot that is missing in `probed` was not ours, or was settled, or the node was cut short.
    ///
    /// # Errors
    /// `Unknown`: tasks may have been claimed; [`Store::settle`] finds them.
    pub async fn claim(&self, me: Me, ticket: Ticket, probes: &[Probe]) -> Result<ClaimAnswer, Error> {
        let ProbeColumns(slots, epochs, starts, rooms) = probe_columns(probes);
        let rows = sqlx::query_file!(
            "src/store/sql/claim.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs,
            &starts,
            &rooms,
            ticket.0
        )
        .fetch_all(&self.hot)
        .await?;
        Ok(claim_answer!(rows))
    }

    /// Claims due tasks with a priority, each with those of its key before it. `probed` has only slots with such tasks.
    ///
    /// # Errors
    /// As [`Store::claim`].
    pub async fn claim_urgent(&self, me: Me, ticket: Ticket, probes: &[Probe]) -> Result<ClaimAnswer, Error> {
        let ProbeColumns(slots, epochs, starts, rooms) = probe_columns(probes);
        let rows = sqlx::query_file!(
            "src/store/sql/claim_urgent.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs,
            &starts,
            &rooms,
            ticket.0
        )
        .fetch_all(&self.hot)
        .await?;
        Ok(claim_answer!(rows))
    }

    /// Which slots have due tasks that nobody claimed, and whether some of them have a priority. Reads only.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn news(&self, probes: &[Probe]) -> Result<Vec<(Slot, bool)>, Error> {
        let ProbeColumns(slots, epochs, starts, _) = probe_columns(probes);
        let rows = sqlx::query_file!("src/store/sql/news.sql", &slots, &epochs, &starts)
            .fetch_all(&self.hot)
            .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((slot(row.slot)?, row.urgent)))
            .collect())
    }

    /// The payload of a claimed task as JSON text; `None`: it is not ours any more.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn payload(&self, token: Token) -> Result<Option<String>, Error> {
        Ok(sqlx::query_file_scalar!(
            "src/store/sql/payload.sql",
            i32::from(token.id.slot),
            token.id.number,
            token.epoch.0,
            token.attempt
        )
        .fetch_optional(&self.pool)
        .await?)
    }

    /// Notes that suspects start: 1 among few, 2 alone. Answers with those that may.
    ///
    /// # Errors
    /// `Unknown`: some may be noted; noting them again does no harm.
    pub async fn start_trial(&self, me: Me, tokens: &[Token], mark: i16) -> Result<Vec<TaskId>, Error> {
        let t: Tokens = tokens.iter().collect();
        let rows = sqlx::query_file!(
            "src/store/sql/start_trial.sql",
            me.incarnation.0,
            me.boot,
            &t.slots,
            &t.ids,
            &t.epochs,
            mark,
            &t.attempts
        )
        .fetch_all(&self.hot)
        .await?;
        ids!(rows)
    }

    /// Ends tasks. Answers with those that ended.
    ///
    /// # Errors
    /// `Unknown`: some may have ended; trying again does no harm, and [`Store::read_back`] tells.
    pub async fn finish(&self, me: Me, rows: &[Finish]) -> Result<Vec<TaskId>, Error> {
        finish_on(&mut self.hot.acquire().await?, me, rows).await
    }

    /// Lets tasks wait for their next run and holds their keys for them; a key at most once. Answers with those that do.
    ///
    /// # Errors
    /// As [`Store::finish`].
    pub async fn retry(&self, me: Me, rows: &[Retry]) -> Result<Vec<TaskId>, Error> {
        let t: Tokens = rows.iter().map(|row| &row.token).collect();
        let keys: Vec<String> = rows.iter().map(|row| row.key.as_str().to_owned()).collect();
        let delays: Vec<i64> = rows
            .iter()
            .map(|row| i64::try_from(row.delay.as_millis()).unwrap_or(i64::MAX))
            .collect();
        let failed: Vec<i32> = rows.iter().map(|row| i32::from(row.failed)).collect();
        let errors: Vec<Option<String>> = rows.iter().map(|row| row.error.clone()).collect();
        let rows = sqlx::query_file!(
            "src/store/sql/retry.sql",
            me.incarnation.0,
            me.boot,
            &t.slots,
            &t.ids,
            &t.epochs,
            &t.attempts,
            &keys,
            &delays,
            &failed,
            &errors as &[Option<String>]
        )
        .fetch_all(&self.hot)
        .await?;
        ids!(rows)
    }

    /// Returns claimed tasks that did not run to their end: neither a failure nor a crash.
    ///
    /// # Errors
    /// As [`Store::finish`].
    pub async fn give_back(&self, me: Me, tokens: &[Token]) -> Result<Vec<TaskId>, Error> {
        let t: Tokens = tokens.iter().collect();
        let rows = sqlx::query_file!(
            "src/store/sql/give_back.sql",
            me.incarnation.0,
            me.boot,
            &t.slots,
            &t.ids,
            &t.epochs,
            &t.attempts
        )
        .fetch_all(&self.hot)
        .await?;
        ids!(rows)
    }

    /// Sets aside tasks whose kind is not known here and holds their keys; a key at most once.
    ///
    /// # Errors
    /// As [`Store::finish`].
    pub async fn set_aside(&self, me: Me, tokens: &[Token]) -> Result<Vec<TaskId>, Error> {
        let t: Tokens = tokens.iter().collect();
        let rows = sqlx::query_file!(
            "src/store/sql/set_aside.sql",
            me.incarnation.0,
            me.boot,
            &t.slots,
            &t.ids,
            &t.epochs,
            &t.attempts
        )
        .fetch_all(&self.pool)
        .await?;
        ids!(rows)
    }

    /// What became of claimed tasks. One snapshot.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn read_back(&self, tokens: &[Token]) -> Result<Vec<(TaskId, ReadBack)>, Error> {
        let t: Tokens = tokens.iter().collect();
        let rows = sqlx::query_file!(
            "src/store/sql/read_back.sql",
            &t.slots,
            &t.ids,
            &t.epochs,
            &t.attempts
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                let what = match (row.open, row.there, row.ours) {
                    (true, _, _) => ReadBack::Open,
                    (false, true, _) => ReadBack::Waits,
                    (false, false, true) => ReadBack::Ended,
                    (false, false, false) => ReadBack::Gone,
                };
                Some((task_id(row.slot, row.id)?, what))
            })
            .collect())
    }

    /// Makes scheduled tasks due whose time has come, at most so many per slot.
    ///
    /// # Errors
    /// `Unknown`: some may be due now, or soon, unless their slots are [settled](Store::settle); a full probe finds them.
    pub async fn promote(
        &self,
        me: Me,
        ticket: Ticket,
        slots: &[(Slot, Epoch)],
        per_slot: i32,
    ) -> Result<Vec<(TaskId, u8)>, Error> {
        let (slots, epochs) = columns(slots);
        let rows = sqlx::query_file!(
            "src/store/sql/promote.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs,
            per_slot,
            ticket.0
        )
        .fetch_all(&self.hot)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                Some((
                    task_id(row.slot, row.id)?,
                    u8::try_from(row.priority).unwrap_or(0),
                ))
            })
            .collect())
    }

    /// In how many milliseconds each slot's next scheduled task is due, within the next minute; 0 or less: now.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn next_due(&self, slots: &[Slot]) -> Result<Vec<(Slot, i64)>, Error> {
        let slots: Vec<i32> = slots.iter().map(|slot| i32::from(*slot)).collect();
        let rows = sqlx::query_file!("src/store/sql/next_due.sql", &slots)
            .fetch_all(&self.hot)
            .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((slot(row.slot)?, row.in_ms)))
            .collect())
    }

    /// What the held keys of these slots need.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn holds(&self, slots: &[Slot]) -> Result<Vec<Holds>, Error> {
        let slots: Vec<i32> = slots.iter().map(|slot| i32::from(*slot)).collect();
        let rows = sqlx::query_file!("src/store/sql/holds.sql", &slots)
            .fetch_all(&self.pool)
            .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| {
                Some(Holds {
                    slot: slot(row.slot)?,
                    lifting: row.lifting,
                    kind: row.kind,
                    orphaned: row.orphaned,
                    long: row.long,
                })
            })
            .collect())
    }

    /// Makes tasks due that were set aside and whose kind is known now; a chunk.
    ///
    /// # Errors
    /// `Unknown`: some may be due now.
    pub async fn take_up_kinds(
        &self,
        me: Me,
        slots: &[(Slot, Epoch)],
        kinds: &[String],
    ) -> Result<Vec<TaskId>, Error> {
        let (slots, epochs) = columns(slots);
        let rows = sqlx::query_file!(
            "src/store/sql/take_up_kinds.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs,
            kinds
        )
        .fetch_all(&self.pool)
        .await?;
        ids!(rows)
    }

    /// Moves a chunk of what waits behind long-held keys out of the way of probes. Answers with how many.
    ///
    /// # Errors
    /// `Unknown`: some may be moved, which the next round reads.
    pub async fn move_behind(&self, me: Me, slots: &[(Slot, Epoch)]) -> Result<usize, Error> {
        let (slots, epochs) = columns(slots);
        let rows = sqlx::query_file!(
            "src/store/sql/move_behind.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.len())
    }

    /// Begins to lift the holds whose head is gone. Answers with how many.
    ///
    /// # Errors
    /// `Unknown`: some may be, which the next round reads.
    pub async fn lift_orphans(&self, me: Me, slots: &[(Slot, Epoch)]) -> Result<usize, Error> {
        let (slots, epochs) = columns(slots);
        let rows = sqlx::query_file!(
            "src/store/sql/lift_orphans.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.len())
    }

    /// Makes a chunk of the tasks behind holds that are being lifted due again. Answers with how many.
    ///
    /// # Errors
    /// `Unknown`: some may be, which the next round reads.
    pub async fn lift_behind(&self, me: Me, slots: &[(Slot, Epoch)]) -> Result<usize, Error> {
        let (slots, epochs) = columns(slots);
        let rows = sqlx::query_file!(
            "src/store/sql/lift_behind.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.len())
    }

    /// Ends the lifting of holds that have nothing behind them any more. Answers with their slots.
    ///
    /// # Errors
    /// `Unknown`: some may have ended; a full probe finds what they hid.
    pub async fn lift_done(&self, me: Me, slots: &[(Slot, Epoch)]) -> Result<Vec<Slot>, Error> {
        let (slots, epochs) = columns(slots);
        let rows = sqlx::query_file!(
            "src/store/sql/lift_done.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs
        )
        .fetch_all(&self.pool)
        .await?;
        Ok(rows.into_iter().filter_map(|row| slot(row.slot)).collect())
    }

    /// Shuts slots to claims and promotions up to a ticket: those that run end first, and those that arrive later are refused.
    /// Then reads what Postgres holds as claimed under these epochs, each from a number on. So what a claim took that
    /// gave no answer, and looked from there on, is in the answer for certain.
    ///
    /// # Errors
    /// `Unknown`: slots may be shut, which only matters for claims up to the ticket. Settle again.
    pub async fn settle(
        &self,
        me: Me,
        ticket: Ticket,
        slots: &[(Slot, Epoch, i64)],
    ) -> Result<Settled, Error> {
        let numbers: Vec<i32> = slots.iter().map(|(slot, _, _)| i32::from(*slot)).collect();
        let epochs: Vec<i64> = slots.iter().map(|(_, epoch, _)| epoch.0).collect();
        let starts: Vec<i64> = slots.iter().map(|(_, _, start)| *start).collect();
        let mut session = self.pool.begin().await?;
        failpoint::at(failpoint::SETTLE).await?;
        let shut = sqlx::query_file!(
            "src/store/sql/settle.sql",
            me.incarnation.0,
            me.boot,
            &numbers,
            &epochs,
            ticket.0
        )
        .fetch_all(&mut session)
        .await?;
        // A statement of its own, so that its snapshot is younger than the locks.
        let claimed = sqlx::query_file!("src/store/sql/claimed.sql", &numbers, &epochs, &starts)
            .fetch_all(&mut session)
            .await?;
        session.commit().await?;
        failpoint::at(failpoint::SETTLED).await?;
        let slots: Vec<Slot> = shut.into_iter().filter_map(|row| slot(row.slot)).collect();
        let claimed = claimed
            .into_iter()
            .filter_map(|row| {
                Some(Token {
                    id: task_id(row.slot, row.id)?,
                    epoch: Epoch(row.epoch),
                    attempt: row.attempt,
                })
            })
            .filter(|token| slots.contains(&token.id.slot))
            .collect();
        Ok(Settled { slots, claimed })
    }

    /// For the start of probes; see `horizon.sql`.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn horizon(&self) -> Result<Horizon, Error> {
        let row = sqlx::query_file!("src/store/sql/horizon.sql")
            .fetch_one(&self.hot)
            .await?;
        Ok(Horizon {
            last_id: row.last_id,
            here: row.here,
            xmin: row.xmin,
        })
    }

    /// Deletes a chunk of idempotency ids past their window. Answers with how many.
    ///
    /// # Errors
    /// `Unknown`: some may be deleted.
    pub async fn forget_idempotency(
        &self,
        me: Me,
        slots: &[(Slot, Epoch)],
        window: Duration,
    ) -> Result<u64, Error> {
        let (slots, epochs) = columns(slots);
        let done = sqlx::query_file!(
            "src/store/sql/forget_idempotency.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs,
            i64::try_from(window.as_millis()).unwrap_or(i64::MAX)
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected())
    }
}

/// Ends tasks on a given connection: a pooled one, or that of the task's own transaction.
pub(super) async fn finish_on(session: &mut Session, me: Me, rows: &[Finish]) -> Result<Vec<TaskId>, Error> {
    let t: Tokens = rows.iter().map(|row| &row.token).collect();
    let states: Vec<String> = rows
        .iter()
        .map(|row| if row.end.is_ok() { "succeeded" } else { "dead" }.to_owned())
        .collect();
    let results: Vec<Option<String>> = rows.iter().map(|row| row.end.clone().ok().flatten()).collect();
    let errors: Vec<Option<String>> = rows.iter().map(|row| row.end.clone().err()).collect();
    let runs: Vec<i64> = rows
        .iter()
        .map(|row| i64::try_from(row.run.as_micros()).unwrap_or(i64::MAX))
        .collect();
    let failed: Vec<i32> = rows.iter().map(|row| i32::from(row.failed)).collect();
    let heads: Vec<bool> = rows.iter().map(|row| row.head).collect();
    let rows = sqlx::query_file!(
        "src/store/sql/finish.sql",
        me.incarnation.0,
        me.boot,
        &t.slots,
        &t.ids,
        &t.epochs,
        &t.attempts,
        &states,
        &results as &[Option<String>],
        &errors as &[Option<String>],
        &runs,
        &failed,
        &heads
    )
    .fetch_all(session)
    .await?;
    ids!(rows)
}

#[cfg(test)]
#[path = "claims_tests.rs"]
mod tests;
