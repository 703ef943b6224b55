//! Postgres. The only folder that names sqlx; one statement per file in `sql/`.
//!
//! Every write by an owner carries its fence: the node's row, then its slots' rows, inside the same statement. An answer
//! that lacks a row means *fenced* for it and is a normal result.

pub(crate) mod bench;
#[cfg(test)]
mod claim_model_tests;
mod claims;
pub(crate) mod demo;
mod lease;
mod migrate;
#[cfg(test)]
mod migrate_tests;
#[cfg(test)]
mod races_tests;
mod read;
mod retention;
#[cfg(test)]
mod scale_tests;
mod session;
mod slots;
pub(crate) mod submit;
#[cfg(test)]
mod submit_races_tests;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
pub(crate) mod testing_owner;
mod transaction;
#[cfg(test)]
mod upkeep_races_tests;

use std::sync::Arc;
use std::time::Duration;

use ringmesh_ring::Incarnation;
use session::{Pool, Session, Silence};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::Semaphore;

pub use read::{Held, KeyStatus};

use crate::telemetry::{field, metric};

/// What became of a statement that gave no answer.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Surely not written: no connection was to be had, or the server refused before it did anything. May be tried again.
    #[error("Postgres is not available")]
    Unavailable(#[source] sqlx::Error),
    /// The answer never came: written or not, only a read can tell.
    #[error("Postgres did not answer, the outcome is unknown")]
    Unknown(#[source] sqlx::Error),
    /// Surely not written: Postgres refused this statement or this data. Trying the same again is in vain.
    #[error("Postgres refused the statement")]
    Refused(#[source] sqlx::Error),
}

impl Error {
    /// The answer did not come within the time that its asker had.
    pub(crate) fn late() -> Self {
        Error::Unknown(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into()))
    }
}

impl From<sqlx::Error> for Error {
    fn from(error: sqlx::Error) -> Self {
        match &error {
            sqlx::Error::Database(refusal) => match refusal.code().as_deref() {
                // Ended by an administrator or a crash: it may have been while committing.
                Some("57P01" | "57P02" | "57P05" | "25P03") => Error::Unknown(error),
                // Starting up or shutting down, too many connections, read-only after a failover, disk full, lock timeouts,
                // cancelled statements, deadlock and serialization: nothing was written, and later it may go well.
                Some(code)
                    if ["57P03", "25006", "55P03", "57014", "40001", "40P01"].contains(&code)
                        || code.starts_with("53")
                        || code.starts_with("08") =>
                {
                    Error::Unavailable(error)
                }
                _ => Error::Refused(error),
            },
            sqlx::Error::PoolTimedOut | sqlx::Error::PoolClosed => Error::Unavailable(error),
            sqlx::Error::Io(io) if io.kind() == std::io::ErrorKind::ConnectionRefused => {
                Error::Unavailable(error)
            }
            sqlx::Error::Io(_)
            | sqlx::Error::Tls(_)
            | sqlx::Error::Protocol(_)
            | sqlx::Error::WorkerCrashed => Error::Unknown(error),
            _ => Error::Refused(error),
        }
    }
}

/// Who writes: the incarnation, and the random number that tells its start from another one with the same incarnation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Me {
    /// From a sequence of the database.
    pub incarnation: Incarnation,
    /// Random.
    pub boot: i64,
}

/// Access to the mesh's database.
#[derive(Debug, Clone)]
pub struct Store {
    /// For everything that may take its own plan: submits, reads, upkeep, handlers' transactions.
    pub(crate) pool: Pool,
    /// For ownership: reads of slots, grants, transfers, fences. Of its own, so that no load of tasks delays a takeover.
    pub(crate) control: Pool,
    /// For claim, finish and their like: sessions that only ever take index plans, since the tables they were planned on
    /// may have been empty then.
    pub(crate) hot: Pool,
    /// How many of `pool` may be in handlers' hands at a time. They may keep them for long: ownership, submits and reads must
    /// still find one. Who waits here waits without failing, until its run's timeout.
    pub(crate) in_handlers: Arc<Semaphore>,
    /// For sessions of their own: the lease, the death notice, migrations, fencing.
    direct: PgConnectOptions,
    ttl: Duration,
    silence: Arc<Silence>,
}

/// Ownership has few statements under way at a time.
const CONTROL_CONNECTIONS: u32 = 3;

/// How long the pools wait for an answer: nobody has use for a later one, and a silent network must not keep a connection.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// How long the sessions of tools may take for one statement; longer than their `statement_timeout`.
const PATIENT: Duration = Duration::from_secs(35);

/// Connections that handlers' transactions leave to others.
const KEPT_FROM_HANDLERS: u32 = 4;

/// How a store connects.
#[derive(Debug, Clone)]
pub struct Options {
    /// `postgres://…`
    pub url: String,
    /// At most this many connections for submits and reads.
    pub connections: u32,
    /// At most this many for claims and finishes.
    pub hot_connections: u32,
    /// The lease's length: sessions that hold locks must be gone by then.
    pub ttl: Duration,
    /// Shown in `pg_stat_activity`.
    pub application: String,
}

impl Store {
    /// Prepares the pools. Connects only when first used.
    ///
    /// # Errors
    /// `Refused` if the URL does not parse.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let connect: PgConnectOptions = options.url.parse().map_err(Error::Refused)?;
        let connect = connect
            .application_name(&options.application)
            // A zombie frozen inside a transaction holds the locks that its fencer needs.
            .options([
                (
                    "idle_in_transaction_session_timeout",
                    format!("{}ms", options.ttl.as_millis()),
                ),
                ("statement_timeout", "30s".to_owned()),
                ("tcp_user_timeout", format!("{}ms", options.ttl.as_millis())),
                ("tcp_keepalives_idle", "5".to_owned()),
                ("tcp_keepalives_interval", "1".to_owned()),
                ("tcp_keepalives_count", "3".to_owned()),
            ]);
        let hot = connect.clone().options([
            ("enable_seqscan", "off"),
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("enable_bitmapscan", "off"),
            ("jit", "off"),
            ("plan_cache_mode", "force_generic_plan"),
        ]);
        let silence = Arc::new(Silence::default());
        Ok(Store {
            pool: Pool::new(options.connections, connect.clone(), ANSWER_WITHIN, &silence),
            control: Pool::new(CONTROL_CONNECTIONS, quick(&connect), ANSWER_WITHIN, &silence),
            hot: Pool::new(options.hot_connections, quick(&hot), ANSWER_WITHIN, &silence),
            in_handlers: Arc::new(Semaphore::new(
                options.connections.saturating_sub(KEPT_FROM_HANDLERS).max(1) as usize,
            )),
            // Waiting for a peer's lock is slow by design.
            direct: connect.disable_statement_logging(),
            ttl: options.ttl,
            silence,
        })
    }

    /// A session outside the pools, each of whose questions may take as long as `limit`; its start as well.
    async fn session(&self, limit: Duration) -> Result<Session, Error> {
        Ok(Session::connect(&self.direct, limit, &self.silence).await?)
    }

    /// For tools, which read much.
    fn patient(&self) -> Pool {
        self.pool.within(PATIENT)
    }

    /// What lies idle in the pools is not believed any more: the network is silent, as some other session saw.
    pub(crate) fn doubt_idle(&self) {
        self.silence.noticed();
    }

    /// Sets the metrics of the pools.
    pub(crate) fn report_connections(&self) {
        for (name, pool) in [
            ("main", &self.pool),
            ("hot", &self.hot),
            ("control", &self.control),
        ] {
            let (in_use, idle) = pool.connections();
            for (state, number) in [("in_use", in_use), ("idle", idle)] {
                metrics::gauge!(metric::POOL_CONNECTIONS, field::POOL => name, field::STATE => state)
                    .set(number as f64);
            }
        }
    }
}

/// Nobody waits longer for these statements: the server ends them before they are given up here.
fn quick(options: &PgConnectOptions) -> PgConnectOptions {
    options.clone().options([("statement_timeout", "9s")])
}

/// Runs to its end, also if nobody waits for it any more: a statement that is dropped half-way costs its connection, and
/// clients that come and go are many.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
) -> Result<T, Error> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|ended| Err(Error::Unknown(sqlx::Error::Io(std::io::Error::other(ended)))))
}

pub use claims::{ClaimAnswer, Finish, Holds, Horizon, Probe, Probed, ReadBack, Retry, Token};
pub use lease::{Answer, FenceKind, Fencing, LeaseSession, Peer, Registration, Renewal};
pub use migrate::{MigrateError, known as known_migration};
pub(crate) use session::Backend;
pub use slots::MeshSettings;
pub(crate) use transaction::TransactionCell;
pub use transaction::{Commit, Transaction, TransactionError};
