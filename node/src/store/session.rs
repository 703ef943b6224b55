//! Connections that neither a silent network nor a dropped future can keep.
//!
//! A connection may die without a word: a firewall forgets it, a cable is pulled. What was sent is then retried by the
//! kernel for a quarter of an hour, or for ever if something in between has acknowledged it, and sqlx waits as long: for the
//! answer to a statement, and for that to the ping with which it takes a connection back into its pool, which meanwhile is one
//! smaller. So everything goes through here:
//!
//! - each question to Postgres ends by an answer or after the session's limit;
//! - a session whose last question has no answer, be it late or its asker gone, or in an open transaction, is never used again
//!   and never tidied up: its socket is closed, and its place in the pool is free at once. What the server still does of it ends
//!   by itself: by its `statement_timeout`, `idle_in_transaction_session_timeout`, or the closed socket;
//! - a session that was refused a write because its server takes none is not kept either: it may have reached a standby, at an
//!   address that leads to the primary by now;
//! - once one session had no answer, those that lay idle at that time are not believed either: a silent network took them
//!   all, and each would cost another limit.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use futures::stream::{self, BoxStream, StreamExt as _, TryStreamExt as _};
use sqlx::error::BoxDynError;
use sqlx::pool::PoolConnection;
use sqlx::postgres::{PgArguments, PgPoolOptions, PgQueryResult, PgRow, PgStatement, PgTypeInfo};
use sqlx::{
    AssertSqlSafe, ConnectOptions as _, Connection as _, Either, Execute, Executor, PgConnection, PgPool,
    Postgres, SqlStr,
};
use tokio::time::error::Elapsed;
use tokio::time::timeout;

use super::pooler::{Terms, Way};
use crate::telemetry::metric;

/// How long a free connection is waited for, a new one included.
const ACQUIRE_WITHIN: Duration = Duration::from_secs(2);

/// What lay idle for longer is asked for a sign of life before it is used: something on the way may have forgotten it.
const BELIEVED_IDLE: Duration = Duration::from_secs(30);

/// How long that sign of life may take; less than a new connection may.
const SIGN_WITHIN: Duration = Duration::from_secs(1);

/// SQLSTATE of a write where none is taken.
const READ_ONLY: &str = "25006";

/// How long a session may take on its way back into its pool.
const BACK_WITHIN: Duration = Duration::from_secs(5);

/// When the network was silent last, as all sessions of a store saw it.
#[derive(Debug, Default)]
pub(crate) struct Silence(Mutex<Option<Instant>>);

impl Silence {
    /// Nothing that lies idle now is believed any more.
    pub(crate) fn noticed(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
    }

    /// Whether it was silent since then.
    pub(super) fn since(&self, then: Instant) -> bool {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .is_some_and(|at| at >= then)
    }
}

/// A pool of sessions; also the executor of single statements. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Pool {
    inner: PgPool,
    limit: Duration,
    terms: Arc<Terms>,
}

impl Pool {
    /// Connects only when first used. Each question may take as long as `limit`.
    pub(crate) fn new(size: u32, terms: Terms, limit: Duration) -> Self {
        Self::acquired_within(ACQUIRE_WITHIN, size, Arc::new(terms), limit)
    }

    fn acquired_within(acquire_within: Duration, size: u32, terms: Arc<Terms>, limit: Duration) -> Self {
        let inner = PgPoolOptions::new()
            .max_connections(size)
            .acquire_timeout(acquire_within)
            .max_lifetime(Duration::from_secs(1800))
            .test_before_acquire(false)
            .after_connect({
                let terms = terms.clone();
                move |connection, _| {
                    let settings = terms.after_connect();
                    Box::pin(async move {
                        match settings {
                            Some(settings) => told(connection, settings).await,
                            None => Ok(()),
                        }
                    })
                }
            })
            .before_acquire({
                let network = terms.network.clone();
                move |connection, past| {
                    let doubted = Instant::now()
                        .checked_sub(past.idle_for)
                        .is_some_and(|back| network.doubts(back));
                    Box::pin(async move {
                        if doubted {
                            return Ok(false);
                        }
                        if past.idle_for < BELIEVED_IDLE {
                            return Ok(true);
                        }
                        timeout(SIGN_WITHIN, connection.ping())
                            .await
                            .unwrap_or_else(|late| Err(silent(late)))
                            .map(|()| true)
                    })
                }
            })
            .connect_lazy_with(terms.connect());
        Pool { inner, limit, terms }
    }

    /// The way to Postgres is known: new connections follow it.
    pub(crate) fn on_way(&self) {
        self.inner.set_connect_options(self.terms.connect());
    }

    /// The same pool for questions that may take longer.
    pub(crate) fn within(&self, limit: Duration) -> Self {
        Pool {
            limit,
            ..self.clone()
        }
    }

    /// A pool like this one that waits so long for connections and answers: a busy machine may take long for both.
    #[cfg(test)]
    pub(super) fn patient(&self, within: Duration) -> Self {
        let size = self.inner.options().get_max_connections();
        Self::acquired_within(within, size, self.terms.clone(), within)
    }

    /// A session for several statements.
    pub(crate) async fn acquire(&self) -> Result<Session, sqlx::Error> {
        let connection = self.inner.acquire().await?;
        Ok(Session::new(
            Link::Pooled(connection),
            self.limit,
            self.terms.clone(),
        ))
    }

    /// A session with an open transaction.
    pub(crate) async fn begin(&self) -> Result<Session, sqlx::Error> {
        self.begin_with("").await
    }

    /// A session with an open transaction, of which `more` sets something.
    pub(crate) async fn begin_with(&self, more: &str) -> Result<Session, sqlx::Error> {
        let mut session = self.acquire().await?;
        session.begin_with(more).await?;
        Ok(session)
    }

    /// How many of its connections are in use, and how many are idle.
    pub(crate) fn connections(&self) -> (usize, usize) {
        let idle = self.inner.num_idle();
        ((self.inner.size() as usize).saturating_sub(idle), idle)
    }

    /// Closes all sessions, those in use when they come back.
    pub(crate) async fn close(&self) {
        self.inner.close().await;
    }
}

/// What a session is to Postgres.
enum Link {
    Pooled(PoolConnection<Postgres>),
    Own(Box<PgConnection>),
}

/// A session with Postgres. It goes back into its pool, or ends, when it is dropped.
pub(crate) struct Session {
    link: Option<Link>,
    limit: Duration,
    terms: Arc<Terms>,
    /// The last question has its answer.
    answered: bool,
    /// A transaction is open.
    open: bool,
    /// Its server takes no writes.
    reads_only: bool,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").finish_non_exhaustive()
    }
}

impl Session {
    fn new(link: Link, limit: Duration, terms: Arc<Terms>) -> Self {
        Session {
            link: Some(link),
            limit,
            terms,
            answered: true,
            open: false,
            reads_only: false,
        }
    }

    /// A session of its own, outside every pool.
    pub(crate) async fn connect(terms: Terms, limit: Duration) -> Result<Self, sqlx::Error> {
        let connected = async {
            let mut connection = terms.connect().connect().await?;
            if let Some(settings) = terms.after_connect() {
                told(&mut connection, settings).await?;
            }
            Ok(connection)
        };
        let connection = timeout(limit, connected)
            .await
            .unwrap_or_else(|late| Err(silent(late)))?;
        let link = Link::Own(Box::new(connection));
        Ok(Session::new(link, limit, Arc::new(terms)))
    }

    /// Whether nothing of this session outlasts a transaction.
    pub(crate) fn is_per_transaction(&self) -> bool {
        self.terms.network.way() == Way::Transaction
    }

    /// Statements that open a transaction and what `more` says about it.
    pub(crate) fn beginning(&self, more: &str) -> String {
        self.terms.begin(more)
    }

    /// The connection itself, for what is no question of this module. Whoever uses it must bound its use.
    pub(crate) fn connection(&mut self) -> &mut PgConnection {
        match self.link.as_mut().expect("a session has a link until its end") {
            Link::Pooled(connection) => connection,
            Link::Own(connection) => connection,
        }
    }

    /// As [`Self::connection`].
    pub(crate) fn connection_ref(&self) -> &PgConnection {
        match self.link.as_ref().expect("a session has a link until its end") {
            Link::Pooled(connection) => connection,
            Link::Own(connection) => connection,
        }
    }

    /// A question begins: until [`Self::heard`] this session is good for nothing.
    pub(crate) fn ask(&mut self) -> Result<(Duration, &mut PgConnection), sqlx::Error> {
        if !self.answered {
            return Err(sqlx::Error::Io(std::io::ErrorKind::NotConnected.into()));
        }
        self.answered = false;
        Ok((self.limit, self.connection()))
    }

    /// A question ends.
    pub(crate) fn heard<T>(
        &mut self,
        answer: Result<Result<T, sqlx::Error>, Elapsed>,
    ) -> Result<T, sqlx::Error> {
        let answer = answer.unwrap_or_else(|late| {
            metrics::counter!(metric::SILENCES).increment(1);
            Err(silent(late))
        });
        // A refusal is an answer.
        self.answered = !matches!(
            answer,
            Err(sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::Protocol(_)
                | sqlx::Error::WorkerCrashed)
        );
        if !self.answered {
            // What ended this one has most likely ended others.
            self.terms.network.doubt();
        }
        if let Err(sqlx::Error::Database(refusal)) = &answer {
            match refusal.code().as_deref() {
                Some(READ_ONLY) => self.reads_only = true,
                Some("26000" | "42P05") => tracing::error!(
                    error = %refusal,
                    "prepared statements are mixed up: is there a transaction pooler? Set `pooler = transaction`"
                ),
                _ => {}
            }
        }
        answer
    }

    /// Opens a transaction, of which `more` sets something, in one round trip. After an error nothing was written.
    pub(crate) async fn begin_with(&mut self, more: &str) -> Result<(), sqlx::Error> {
        self.open = true;
        self.simple(self.beginning(more)).await
    }

    /// Ends the transaction. An error other than a refusal: committed or not, only a read can tell.
    pub(crate) async fn commit(&mut self) -> Result<(), sqlx::Error> {
        self.simple("commit".to_owned()).await?;
        self.open = false;
        Ok(())
    }

    /// Takes the transaction back. After an error the server does so as well, as the session ends.
    pub(crate) async fn rollback(&mut self) -> Result<(), sqlx::Error> {
        self.simple("rollback".to_owned()).await?;
        self.open = false;
        Ok(())
    }

    /// Statements without parameters and answers, in one round trip. They are this module's, or constants.
    async fn simple(&mut self, statements: String) -> Result<(), sqlx::Error> {
        let (limit, connection) = self.ask()?;
        let answer = timeout(limit, told(connection, statements)).await;
        self.heard(answer)
    }

    /// All answers to a query. Where a session is a transaction, one by itself is given one.
    async fn answers<'q, E: Execute<'q, Postgres> + 'q>(
        &mut self,
        query: E,
    ) -> Result<Vec<Answer>, sqlx::Error> {
        if !self.is_per_transaction() {
            return self.put(query).await;
        }
        let query = Unnamed(query);
        if self.open {
            return self.put(query).await;
        }
        self.begin_with("").await?;
        let answers = self.put(query).await;
        match &answers {
            Ok(_) => self.commit().await?,
            // Without an answer the session ends anyway.
            Err(_) => self.rollback().await.unwrap_or_default(),
        }
        answers
    }

    async fn put<'q, E: Execute<'q, Postgres> + 'q>(&mut self, query: E) -> Result<Vec<Answer>, sqlx::Error> {
        let (limit, connection) = self.ask()?;
        let answer = timeout(limit, connection.fetch_many(query).try_collect()).await;
        self.heard(answer)
    }
}

/// A query whose statement is prepared without a name: a name would stay with a server that serves others next.
struct Unnamed<E>(E);

impl<'q, E: Execute<'q, Postgres>> Execute<'q, Postgres> for Unnamed<E> {
    fn sql(self) -> SqlStr {
        self.0.sql()
    }

    fn statement(&self) -> Option<&PgStatement> {
        self.0.statement()
    }

    fn take_arguments(&mut self) -> Result<Option<PgArguments>, BoxDynError> {
        self.0.take_arguments()
    }

    fn persistent(&self) -> bool {
        false
    }
}

async fn told(connection: &mut PgConnection, statements: String) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(statements))
        .execute(connection)
        .await
        .map(drop)
}

impl Drop for Session {
    fn drop(&mut self) {
        let Some(Link::Pooled(mut connection)) = self.link.take() else {
            return;
        };
        match tokio::runtime::Handle::try_current() {
            // The way back asks for a sign of life as well. If none comes, the dropped future closes the socket and
            // frees the place.
            Ok(runtime) if self.answered && !self.open && !self.reads_only => {
                let network = self.terms.network.clone();
                runtime.spawn(async move {
                    if timeout(BACK_WITHIN, connection.return_to_pool()).await.is_err() {
                        network.doubt();
                    }
                });
            }
            Ok(_) | Err(_) => drop(connection.detach()),
        }
    }
}

/// One server process; its start tells it from a later one with the same number.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Backend {
    pub(super) pid: i32,
    pub(super) started: DateTime<Utc>,
    /// The start of the one transaction that is meant; `None`: whatever it does.
    pub(super) transaction: Option<DateTime<Utc>>,
}

impl Backend {
    /// Ends it, if it still is there.
    pub(super) async fn end<'c>(
        self,
        postgres: impl Executor<'c, Database = Postgres>,
    ) -> Result<(), sqlx::Error> {
        sqlx::query_file!(
            "src/store/sql/end_backend.sql",
            self.pid,
            self.started,
            self.transaction
        )
        .fetch_all(postgres)
        .await
        .map(drop)
    }
}

type Answer = Either<PgQueryResult, PgRow>;

fn silent(_: Elapsed) -> sqlx::Error {
    sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())
}

fn first(answers: Vec<Answer>) -> Option<PgRow> {
    answers.into_iter().find_map(Either::right)
}

fn stream_of<'e>(
    answers: BoxFuture<'e, Result<Vec<Answer>, sqlx::Error>>,
) -> BoxStream<'e, Result<Answer, sqlx::Error>> {
    stream::once(answers)
        .map_ok(|answers| stream::iter(answers).map(Ok))
        .try_flatten()
        .boxed()
}

impl<'c> Executor<'c> for &'c mut Session {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Answer, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        stream_of(Box::pin(self.answers(query)))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move { self.answers(query).await.map(first) })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async move {
            let (limit, connection) = self.ask()?;
            let answer = timeout(limit, connection.prepare_with(sql, parameters)).await;
            self.heard(answer)
        })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async move {
            let (limit, connection) = self.ask()?;
            let answer = timeout(limit, connection.describe(sql)).await;
            self.heard(answer)
        })
    }
}

impl<'c> Executor<'c> for &'c Pool {
    type Database = Postgres;

    fn fetch_many<'e, 'q: 'e, E>(self, query: E) -> BoxStream<'e, Result<Answer, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        stream_of(Box::pin(
            async move { self.acquire().await?.answers(query).await },
        ))
    }

    fn fetch_optional<'e, 'q: 'e, E>(self, query: E) -> BoxFuture<'e, Result<Option<PgRow>, sqlx::Error>>
    where
        'c: 'e,
        E: 'q + Execute<'q, Postgres>,
    {
        Box::pin(async move { self.acquire().await?.answers(query).await.map(first) })
    }

    fn prepare_with<'e>(
        self,
        sql: SqlStr,
        parameters: &'e [PgTypeInfo],
    ) -> BoxFuture<'e, Result<PgStatement, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async move { self.acquire().await?.prepare_with(sql, parameters).await })
    }

    fn describe<'e>(self, sql: SqlStr) -> BoxFuture<'e, Result<sqlx::Describe<Postgres>, sqlx::Error>>
    where
        'c: 'e,
    {
        Box::pin(async move { self.acquire().await?.describe(sql).await })
    }
}

#[cfg(test)]
#[path = "session_tests.rs"]
mod tests;
