//! Inserts tasks. Each call is one transaction; what it answers is committed.

use chrono::{DateTime, Utc};
use ringmesh_ring::Slot;

use super::session::{Pool, Session};
use super::{Error, Store};
use crate::failpoint;
use crate::task::Submit;

/// SHA-256 over what makes two submits under one idempotency key the same.
pub(crate) type Fingerprint = [u8; 32];

/// A submit with its slot, and with a fingerprint if it carries an idempotency key.
#[derive(Debug, Clone)]
pub(crate) struct Row {
    pub(crate) submit: Submit,
    pub(crate) slot: Slot,
    pub(crate) fingerprint: Option<Fingerprint>,
}

/// What became of a row with an idempotency key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// It was inserted under this number.
    New(i64),
    /// Its id was there before, with the task of this number and the same fingerprint.
    Replayed(i64),
    /// Its id was there before, with the task of this number and another fingerprint.
    Mismatch { number: i64, stored: Fingerprint },
}

/// How often rows are looked for and inserted again whose idempotency id is removed just between the two statements.
const ROUNDS: usize = 3;

/// Rows in one statement: bounds what Postgres must keep in memory at once.
pub(super) const CHUNK: usize = 2_000;

impl Store {
    /// Inserts rows that carry no idempotency key, and answers with their numbers, which rise in the order of the rows.
    ///
    /// # Errors
    /// All of the rows or none. `Unknown`: the answer to the commit was lost.
    pub(crate) async fn insert(&self, rows: &[&Row]) -> Result<Vec<i64>, Error> {
        let mut session = self.pool.acquire().await.map_err(Error::Unavailable)?;
        insert(&mut session, rows).await
    }

    /// Inserts rows that all carry idempotency keys, each key once. Waits for other transactions with the same keys for
    /// at most `patience_ms`.
    ///
    /// # Errors
    /// Nothing is written, unless `Unknown`. `Unavailable` also if the patience ended: see [`waited_in_vain`].
    pub(crate) async fn insert_keyed(&self, rows: &[&Row], patience: Patience) -> Result<Vec<Placed>, Error> {
        let mut session = begin(&self.pool, patience).await?;
        let placed = insert_keyed(&mut session, rows, false)
            .await
            .map_err(before_commit)?;
        failpoint::at(failpoint::INSERTED).await?;
        session.commit().await?;
        Ok(placed)
    }

    /// Inserts all rows in one transaction, or none if one of them mismatches. Each idempotency key may occur once. New
    /// numbers rise in the order of the rows.
    ///
    /// # Errors
    /// Nothing is written, unless `Unknown`.
    pub(crate) async fn insert_all(&self, rows: &[&Row]) -> Result<Vec<Placed>, Error> {
        let mut session = begin(&self.pool, Patience::Long).await?;
        let placed = if rows.iter().all(|row| row.fingerprint.is_none()) {
            let mut placed = Vec::with_capacity(rows.len());
            for chunk in rows.chunks(CHUNK) {
                let numbers = insert(&mut session, chunk).await.map_err(before_commit)?;
                placed.extend(numbers.into_iter().map(Placed::New));
            }
            placed
        } else {
            // In one statement, so that its ids are locked in one order whatever other batch it meets.
            insert_keyed(&mut session, rows, true)
                .await
                .map_err(before_commit)?
        };
        if placed
            .iter()
            .any(|place| matches!(place, Placed::Mismatch { .. }))
        {
            // If this fails, the session ends, and with it the transaction.
            let _ = session.rollback().await;
        } else {
            failpoint::at(failpoint::INSERTED).await?;
            session.commit().await?;
        }
        Ok(placed)
    }
}

/// How long a keyed insert waits for locks and for its statements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Patience {
    /// About a second.
    Long,
    /// A tenth of a second: something is known to be in the way.
    Short,
}

/// One round trip. The limits end with the transaction.
async fn begin(pool: &Pool, patience: Patience) -> Result<Session, Error> {
    let limits = match patience {
        Patience::Long => "set local lock_timeout = '1s'; set local statement_timeout = '10s'",
        Patience::Short => "set local lock_timeout = '100ms'; set local statement_timeout = '10s'",
    };
    let begun = async {
        let session = pool.begin_with(limits).await?;
        failpoint::at(failpoint::BEGUN).await?;
        Ok(session)
    };
    begun.await.map_err(before_commit)
}

/// An answer that is lost before COMMIT is sent: the server rolls back, whatever it had done.
fn before_commit(error: Error) -> Error {
    match error {
        Error::Unknown(source) => Error::Unavailable(source),
        other => other,
    }
}

fn code(error: &Error) -> Option<String> {
    let (Error::Unavailable(source) | Error::Unknown(source) | Error::Refused(source)) = error;
    source
        .as_database_error()
        .and_then(|refusal| refusal.code())
        .map(|code| code.into_owned())
}

/// Whether Postgres refused some row's data (SQLSTATE classes 22, 23 and 54): the other rows of its statement may go well.
pub(crate) fn about_data(error: &Error) -> bool {
    matches!(error, Error::Refused(_))
        && code(error).is_some_and(|code| ["22", "23", "54"].iter().any(|class| code.starts_with(class)))
}

/// Whether some row waited too long for another transaction, or deadlocked with one.
pub(crate) fn waited_in_vain(error: &Error) -> bool {
    code(error).is_some_and(|code| ["55P03", "57014", "40P01"].contains(&&*code))
}

/// What Postgres says against a row's data.
pub(crate) fn objection(error: &Error) -> String {
    let (Error::Unavailable(source) | Error::Unknown(source) | Error::Refused(source)) = error;
    source
        .as_database_error()
        .map_or_else(|| source.to_string(), |refusal| refusal.message().to_owned())
}

/// The columns of rows as Postgres takes them.
#[derive(Default)]
struct Columns<'a> {
    slots: Vec<i32>,
    keys: Vec<&'a str>,
    kinds: Vec<&'a str>,
    payloads: Vec<&'a str>,
    priorities: Vec<i16>,
    max_attempts: Vec<i32>,
    timeouts: Vec<i64>,
    waiters: Vec<Option<i64>>,
    run_at: Vec<Option<DateTime<Utc>>>,
    id_keys: Vec<Option<&'a str>>,
    fingerprints: Vec<Option<&'a [u8]>>,
}

impl<'a> Columns<'a> {
    fn of(rows: &[&'a Row], keyed: bool) -> Self {
        let mut columns = Columns::default();
        for Row {
            submit,
            slot,
            fingerprint,
        } in rows
        {
            columns.slots.push((*slot).into());
            columns.keys.push(submit.key.as_str());
            columns.kinds.push(&submit.kind);
            columns.payloads.push(submit.payload.get());
            columns.priorities.push(submit.priority.into());
            columns
                .max_attempts
                .push(submit.max_attempts.try_into().unwrap_or(i32::MAX));
            columns
                .timeouts
                .push(submit.timeout.as_millis().try_into().unwrap_or(i64::MAX));
            columns.waiters.push(submit.waiter.map(|waiter| waiter.0));
            columns.run_at.push(submit.run_at);
            if keyed {
                columns.id_keys.push(submit.idempotency_key.as_deref());
                columns
                    .fingerprints
                    .push(fingerprint.as_ref().map(|print| &print[..]));
            }
        }
        columns
    }
}

/// A place as Postgres counts them, from 1, as an index.
fn index(place: i64) -> usize {
    usize::try_from(place).expect("WITH ORDINALITY counts from 1") - 1
}

pub(super) async fn insert(session: &mut Session, rows: &[&Row]) -> Result<Vec<i64>, Error> {
    let columns = Columns::of(rows, false);
    let inserted = sqlx::query_file!(
        "src/store/sql/submit.sql",
        &columns.slots,
        &columns.keys as &[&str],
        &columns.kinds as &[&str],
        &columns.payloads as &[&str],
        &columns.priorities,
        &columns.max_attempts,
        &columns.timeouts,
        &columns.waiters as &[Option<i64>],
        &columns.run_at as &[Option<DateTime<Utc>>],
    )
    .fetch_all(session)
    .await?;
    let mut numbers = vec![0; rows.len()];
    for row in inserted {
        numbers[index(row.place)] = row.id;
    }
    Ok(numbers)
}

/// With `mixed`, rows without an idempotency key may stand among the others.
async fn insert_keyed(session: &mut Session, rows: &[&Row], mixed: bool) -> Result<Vec<Placed>, Error> {
    let mut placed: Vec<Option<Placed>> = vec![None; rows.len()];
    for _ in 0..ROUNDS {
        let open: Vec<usize> = (0..rows.len()).filter(|at| placed[*at].is_none()).collect();
        if open.is_empty() {
            break;
        }
        let open_rows: Vec<&Row> = open.iter().map(|at| rows[*at]).collect();
        for (place, id) in insert_new(session, &open_rows, mixed).await? {
            placed[open[index(place)]] = Some(Placed::New(id));
        }
        let old: Vec<usize> = open.into_iter().filter(|at| placed[*at].is_none()).collect();
        if !old.is_empty() {
            find(session, rows, &old, &mut placed).await?;
        }
    }
    placed
        .into_iter()
        .collect::<Option<Vec<_>>>()
        .ok_or_else(|| Error::Unavailable(sqlx::Error::Protocol("an idempotency id came and went".into())))
}

async fn insert_new(session: &mut Session, rows: &[&Row], mixed: bool) -> Result<Vec<(i64, i64)>, Error> {
    let columns = Columns::of(rows, true);
    macro_rules! insert_with {
        ($file:literal) => {
            sqlx::query_file!(
                $file,
                &columns.slots,
                &columns.keys as &[&str],
                &columns.kinds as &[&str],
                &columns.payloads as &[&str],
                &columns.priorities,
                &columns.max_attempts,
                &columns.timeouts,
                &columns.waiters as &[Option<i64>],
                &columns.run_at as &[Option<DateTime<Utc>>],
                &columns.id_keys as &[Option<&str>],
                &columns.fingerprints as &[Option<&[u8]>],
            )
            .fetch_all(session)
            .await?
            .into_iter()
            .map(|row| (row.place, row.id))
            .collect()
        };
    }
    Ok(if mixed {
        insert_with!("src/store/sql/submit_mixed.sql")
    } else {
        insert_with!("src/store/sql/submit_keyed.sql")
    })
}

async fn find(
    session: &mut Session,
    rows: &[&Row],
    wanted: &[usize],
    placed: &mut [Option<Placed>],
) -> Result<(), Error> {
    let slots: Vec<i32> = wanted.iter().map(|at| rows[*at].slot.into()).collect();
    let keys: Vec<&str> = wanted.iter().map(|at| rows[*at].submit.key.as_str()).collect();
    let kinds: Vec<&str> = wanted.iter().map(|at| &*rows[*at].submit.kind).collect();
    let id_keys: Vec<Option<&str>> = wanted
        .iter()
        .map(|at| rows[*at].submit.idempotency_key.as_deref())
        .collect();
    let found = sqlx::query_file!(
        "src/store/sql/find_keyed.sql",
        &slots,
        &keys as &[&str],
        &kinds as &[&str],
        &id_keys as &[Option<&str>],
    )
    .fetch_all(session)
    .await?;
    for row in found {
        let at = wanted[index(row.place)];
        let stored = Fingerprint::try_from(&*row.fingerprint).unwrap_or_default();
        placed[at] = Some(if rows[at].fingerprint == Some(stored) {
            Placed::Replayed(row.task)
        } else {
            Placed::Mismatch {
                number: row.task,
                stored,
            }
        });
    }
    Ok(())
}
