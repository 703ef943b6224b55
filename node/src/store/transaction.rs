//! A task's own transaction: what its handler writes commits with the task's completion, or not at all.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use sqlx::PgConnection;
use tokio::sync::{Mutex, MutexGuard, OwnedSemaphorePermit};

use super::claims::finish_on;
use super::session::{Backend, Session};
use super::{Error, Finish, Me, PATIENT, Store};
use crate::failpoint::{self, droppable};

/// What became of a transaction that was to end its task.
#[derive(Debug)]
pub enum Commit {
    /// Task and effects are committed.
    Done,
    /// Nothing was committed: the run was fenced, or the task has ended, or the node was cut short.
    Fenced,
}

/// An open transaction whose session does not live on unless it was ended in order.
///
/// A handler may be dropped in the middle of a query. Then the protocol is in an unknown state: the session must not go back
/// to the pool, and what the server still executes must be ended, since it holds locks.
#[derive(Debug)]
struct Open {
    session: Option<Session>,
    store: Arc<Store>,
    backend: Backend,
    /// Given back after the connection.
    _permit: OwnedSemaphorePermit,
}

impl Drop for Open {
    fn drop(&mut self) {
        // A session in an open transaction closes when it is dropped.
        if self.session.take().is_some() {
            terminate(&self.store, self.backend);
        }
    }
}

/// Ends a server process, in the background. Without Postgres there is nothing to end.
fn terminate(store: &Store, backend: Backend) {
    let Ok(runtime) = tokio::runtime::Handle::try_current() else {
        return;
    };
    let pool = store.pool.clone();
    runtime.spawn(async move {
        if let Err(error) = backend.end(&pool).await {
            tracing::warn!(pid = backend.pid, %error, "a task's transaction could not be ended");
        }
    });
}

/// The place of a run's transaction; empty until the handler asks for it.
#[derive(Debug)]
pub(crate) struct TransactionCell {
    store: Arc<Store>,
    /// How long the handler may leave it idle.
    idle: Duration,
    open: Mutex<Option<Open>>,
    backend: OnceLock<Backend>,
    ended: AtomicBool,
}

/// A task's transaction in the handler's hands. See [`Context::transaction`](crate::context::Context::transaction).
#[derive(Debug)]
pub struct Transaction<'a>(MutexGuard<'a, Option<Open>>);

impl Deref for Transaction<'_> {
    type Target = PgConnection;

    fn deref(&self) -> &PgConnection {
        self.0
            .as_ref()
            .and_then(|open| open.session.as_ref())
            .expect("an open transaction has a session")
            .connection_ref()
    }
}

impl DerefMut for Transaction<'_> {
    fn deref_mut(&mut self) -> &mut PgConnection {
        self.0
            .as_mut()
            .and_then(|open| open.session.as_mut())
            .expect("an open transaction has a session")
            .connection()
    }
}

/// Why there is no transaction.
#[derive(Debug, thiserror::Error)]
pub enum TransactionError {
    /// Nothing was opened.
    #[error("the task's transaction could not be opened")]
    Store(#[from] Error),
    /// The run is over.
    #[error("the task's transaction has ended")]
    Ended,
}

impl TransactionCell {
    pub(crate) fn new(store: Arc<Store>, idle: Duration) -> Self {
        TransactionCell {
            store,
            idle,
            open: Mutex::default(),
            backend: OnceLock::new(),
            ended: AtomicBool::new(false),
        }
    }

    pub(crate) async fn open(&self) -> Result<Transaction<'_>, TransactionError> {
        let mut open = self.open.lock().await;
        if self.ended.load(Ordering::Acquire) {
            return Err(TransactionError::Ended);
        }
        if open.is_none() {
            let permit = Arc::clone(&self.store.in_handlers).acquire_owned().await;
            let permit = permit.map_err(|_| TransactionError::Ended)?;
            // From here on a drop closes the session. No backend is known yet: an idle one ends with its socket.
            let (session, backend) = droppable(begin(&self.store, self.idle)).await?;
            *open = Some(Open {
                session: Some(session),
                store: self.store.clone(),
                backend,
                _permit: permit,
            });
            let _ = self.backend.set(backend);
        }
        Ok(Transaction(open))
    }

    /// A connection besides that of the transaction.
    #[cfg(test)]
    pub(crate) async fn other(&self) -> PgConnection {
        use sqlx::ConnectOptions as _;
        self.store.lease.connect().await.unwrap()
    }

    /// Whether the handler opened it.
    pub(crate) fn is_open(&self) -> bool {
        self.backend.get().is_some()
    }

    /// Ends the server's side, for a run that was aborted: it may be in the middle of a statement.
    pub(crate) fn end(&self) {
        self.ended.store(true, Ordering::Release);
        if let Some(backend) = self.backend.get() {
            terminate(&self.store, *backend);
        }
    }

    /// Rolls back, if it was opened.
    pub(crate) async fn rollback(&self) {
        self.ended.store(true, Ordering::Release);
        // Still in somebody's hands: it ends when they drop it, or by force here.
        let Ok(mut open) = self.open.try_lock() else {
            return self.end();
        };
        let Some(mut transaction) = open.take() else {
            return;
        };
        let Some(session) = &mut transaction.session else {
            return;
        };
        if session.rollback().await.is_ok() {
            // In order again: back to the pool, with the session's own settings (set local ended with the transaction).
            drop(transaction.session.take());
        }
    }

    /// Ends the task in its transaction and commits both. The fence's locks are taken only here.
    ///
    /// `None`: the handler opened no transaction, or still holds it; nothing was done.
    ///
    /// # Errors
    /// `Unknown`: committed or not, only a read can tell. Else nothing was committed.
    pub(crate) async fn commit(&self, me: Me, finish: Finish) -> Option<Result<Commit, Error>> {
        self.ended.store(true, Ordering::Release);
        let mut open = self.open.try_lock().ok()?;
        let mut transaction = open.take()?;
        let done = droppable(commit_on(transaction.session.as_mut()?, me, finish)).await;
        match done {
            Ok(_) => drop(transaction.session.take()),
            // A refused statement leaves the transaction aborted; an answer that never came leaves who knows what. The drop
            // closes the session either way.
            Err(_) => drop(transaction),
        }
        Some(done)
    }
}

async fn commit_on(session: &mut Session, me: Me, finish: Finish) -> Result<Commit, Error> {
    // A process frozen between the fence's locks and the COMMIT must not hold off its fencer.
    sqlx::raw_sql("set local idle_in_transaction_session_timeout to default")
        .execute(&mut *session)
        .await?;
    if finish_on(session, me, std::slice::from_ref(&finish))
        .await?
        .is_empty()
    {
        session.rollback().await?;
        return Ok(Commit::Fenced);
    }
    failpoint::at(failpoint::COMMIT).await?;
    match session.commit().await {
        Ok(()) => {
            failpoint::at(failpoint::COMMITTED).await?;
            Ok(Commit::Done)
        }
        // Only a refusal by the server says that nothing was committed.
        Err(error @ sqlx::Error::Database(_)) => Err(error.into()),
        Err(error) => Err(Error::Unknown(error)),
    }
}

async fn begin(store: &Store, idle: Duration) -> Result<(Session, Backend), Error> {
    // What the handler does before its commit may leave that much to do.
    let pool = store.pool.within(PATIENT);
    let mut session = pool.acquire().await?;
    let more = if session.is_per_transaction() {
        concat!(
            "set transaction isolation level read committed; ",
            include_str!("sql/forget_names.sql")
        )
    } else {
        "set transaction isolation level read committed"
    };
    session.begin_with(more).await?;
    failpoint::at(failpoint::BEGUN).await?;
    let row = sqlx::query_file!("src/store/sql/begin_task.sql", idle.as_millis().to_string())
        .fetch_one(&mut session)
        .await?;
    let backend = Backend {
        pid: row.pid,
        started: row.started,
        transaction: Some(row.transaction),
    };
    Ok((session, backend))
}
