//! Postgres. The only folder that names sqlx; one statement per file in `sql/`.
//!
//! Every write by an owner carries its fence: the node's row, then its slots' rows, inside the same statement. An answer
//! that lacks a row means *fenced* for it and is a normal result.

pub(crate) mod bench;
#[cfg(test)]
mod blockers_tests;
#[cfg(test)]
mod claim_model_tests;
mod claims;
pub(crate) mod demo;
#[cfg(test)]
mod effects_races_tests;
#[cfg(test)]
mod effects_refused_tests;
#[cfg(test)]
mod effects_rights_tests;
#[cfg(test)]
mod effects_testing;
#[cfg(test)]
mod fence_races_tests;
#[cfg(test)]
mod horizon_tests;
#[cfg(test)]
pub(crate) mod hostile_tests;
mod inbox;
#[cfg(test)]
mod inbox_races_tests;
mod known;
mod lease;
mod migrate;
#[cfg(test)]
mod migrate_tests;
mod pooler;
#[cfg(test)]
mod races_tests;
mod read;
#[cfg(test)]
mod renewal_races_tests;
mod retention;
#[cfg(test)]
mod scale_tests;
mod session;
#[cfg(test)]
mod settle_races_tests;
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
mod url;
#[cfg(test)]
mod versions_tests;

use std::sync::Arc;
use std::time::Duration;

use pooler::{Network, Terms, Way};
use ringmesh_ring::Incarnation;
use session::{Pool, Session, Silence};
use sqlx::ConnectOptions as _;
use sqlx::postgres::PgConnectOptions;
use tokio::sync::{OnceCell, Semaphore};

pub use pooler::Pooler;
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
                // So does a pooler say that it lost its server, whatever that was doing.
                Some(code) if code.starts_with("08") => Error::Unknown(error),
                // Starting up or shutting down, too many connections, read-only after a failover, disk full, lock timeouts,
                // cancelled statements, deadlock and serialization, a guard of a barred node (RM003): nothing was written, and
                // later it may go well.
                Some(code)
                    if ["57P03", "25006", "55P03", "57014", "40001", "40P01", "RM003"].contains(&code)
                        || code.starts_with("53") =>
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
    /// For ownership: reads of slots, grants, transfers, fences. Of its own, so that no load of tasks delays a takeover. Finds
    /// rows by indexes, as the sessions of their own do.
    pub(crate) control: Pool,
    /// For claim, finish and their like: sessions that only ever take index plans, since the tables they were planned on
    /// may have been empty then.
    pub(crate) hot: Pool,
    /// How many of `pool` may be in handlers' hands at a time. They may keep them for long: ownership, submits and reads must
    /// still find one. Who waits here waits without failing, until its run's timeout.
    pub(crate) in_handlers: Arc<Semaphore>,
    /// For sessions of their own: the lease, the death notice, migrations, fencing.
    lease: PgConnectOptions,
    lease_network: Network,
    has_lease_url: bool,
    database: PgConnectOptions,
    network: Network,
    settings: Vec<(&'static str, String)>,
    pooler: Pooler,
    looked: Arc<OnceCell<()>>,
    ttl: Duration,
}

/// A session keeps the plans of its statements. Those that look for a node's newest lease must not have been made while all
/// leases lay on one page, which a scan reads sooner than an index: dead rows pile up there later. Statements that have no index
/// seem expensive then, so much so that Postgres would compile each of them, which takes longer than they do.
const BY_INDEX: [(&str, &str); 3] = [
    ("enable_seqscan", "off"),
    ("enable_bitmapscan", "off"),
    ("jit", "off"),
];

/// What the statements of owners are written for, whatever the database's default: they look again when they have waited, and
/// renewals, which read all leases, do not fail for each other's sake.
const LOOKS_AGAIN: [(&str, &str); 1] = [("default_transaction_isolation", "read committed")];

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
    /// The same database by another way, for the lease and whatever else needs a session.
    pub lease_url: Option<String>,
    /// What stands in between.
    pub pooler: Pooler,
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
    /// `Refused` if a URL does not parse.
    pub fn new(options: &Options) -> Result<Self, Error> {
        let connect = |url: &str| -> Result<PgConnectOptions, Error> {
            let connect: PgConnectOptions = url::known(url).parse().map_err(Error::Refused)?;
            Ok(connect.application_name(&options.application))
        };
        let database = connect(&options.url)?;
        let lease = match &options.lease_url {
            Some(url) => connect(url)?,
            None => database.clone(),
        };
        let ttl = format!("{}ms", options.ttl.as_millis());
        let settings = vec![
            // A zombie frozen inside a transaction holds the locks that its fencer needs.
            ("idle_in_transaction_session_timeout", ttl.clone()),
            ("statement_timeout", "30s".to_owned()),
            ("tcp_user_timeout", ttl),
            ("tcp_keepalives_idle", "5".to_owned()),
            ("tcp_keepalives_interval", "1".to_owned()),
            ("tcp_keepalives_count", "3".to_owned()),
        ];
        let mut quick = settings.clone();
        // Nobody waits longer for these statements: the server ends them before they are given up here.
        quick.retain(|(name, _)| *name != "statement_timeout");
        quick.extend(written([("statement_timeout", "9s")]));
        quick.extend(written(BY_INDEX));
        quick.extend(written(LOOKS_AGAIN));
        let mut indexed = quick.clone();
        indexed.extend(written([
            ("enable_hashjoin", "off"),
            ("enable_mergejoin", "off"),
            ("plan_cache_mode", "force_generic_plan"),
        ]));
        let silence = Arc::new(Silence::default());
        let network = Network::new(
            match options.pooler {
                Pooler::Transaction => Way::Transaction,
                Pooler::Auto | Pooler::None => Way::Direct,
            },
            &silence,
        );
        let pool = |size: u32, settings: Vec<_>| {
            Pool::new(size, Terms::new(&database, settings, &network), ANSWER_WITHIN)
        };
        Ok(Store {
            pool: pool(options.connections, settings.clone()),
            control: pool(CONTROL_CONNECTIONS, quick),
            hot: pool(options.hot_connections, indexed),
            in_handlers: Arc::new(Semaphore::new(
                options.connections.saturating_sub(KEPT_FROM_HANDLERS).max(1) as usize,
            )),
            has_lease_url: options.lease_url.is_some(),
            lease_network: match &options.lease_url {
                Some(_) => Network::new(Way::Direct, &silence),
                None => network.clone(),
            },
            // Waiting for a peer's lock is slow by design.
            lease: lease.disable_statement_logging(),
            database,
            network,
            settings,
            pooler: options.pooler,
            looked: Arc::default(),
            ttl: options.ttl,
        })
    }

    /// Finds out, once, what stands between this node and Postgres, and says so.
    ///
    /// # Errors
    /// Postgres is not available, or refuses us.
    async fn find_way(&self) -> Result<(), Error> {
        self.looked
            .get_or_try_init(|| async {
                if self.pooler == Pooler::None {
                    return Ok(());
                }
                if self.pooler == Pooler::Auto {
                    self.network.found(Way::find(&self.database).await?);
                    for pool in [&self.pool, &self.hot, &self.control] {
                        pool.on_way();
                    }
                }
                if self.has_lease_url {
                    self.lease_network.found(Way::find(&self.lease).await?);
                }
                match (self.network.way(), self.lease_network.way()) {
                    (_, Way::Transaction) => tracing::warn!(
                        "the lease is kept through a transaction pooler: the death of a node is noticed by its lease alone, \
                         after a TTL. A direct `lease_url` makes it milliseconds"
                    ),
                    (Way::Transaction, _) => {
                        tracing::info!("Postgres is reached through a transaction pooler, the lease without one");
                    }
                    (Way::Session, _) => tracing::info!("Postgres is reached through a pooler in session mode"),
                    (Way::Direct, _) => {}
                }
                Ok(())
            })
            .await
            .copied()
    }

    /// Whether the end of a session is a sign here.
    pub(crate) fn has_notices(&self) -> bool {
        self.lease_network.way() != Way::Transaction
    }

    /// A session outside the pools, each of whose questions may take as long as `limit`; its start as well.
    async fn session(&self, limit: Duration, more: &[(&'static str, String)]) -> Result<Session, Error> {
        let mut settings = self.settings.clone();
        settings.extend(written(BY_INDEX));
        settings.extend(written(LOOKS_AGAIN));
        settings.extend_from_slice(more);
        let terms = Terms::new(&self.lease, settings, &self.lease_network);
        Ok(Session::connect(terms, limit).await?)
    }

    /// For tools, which read much.
    fn patient(&self) -> Pool {
        self.pool.within(PATIENT)
    }

    /// What lies idle in the pools is not believed any more: the network is silent, as some other session saw.
    pub(crate) fn doubt_idle(&self) {
        self.network.doubt();
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

/// Settings as sessions take them.
fn written<const N: usize>(settings: [(&'static str, &str); N]) -> [(&'static str, String); N] {
    settings.map(|(name, value)| (name, value.to_owned()))
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

pub use claims::{
    ClaimAnswer, Finish, Holds, Horizon, Probe, Probed, ReadBack, Retry, Settled, Ticket, Token,
};
pub use known::{Ask, Known};
pub use lease::{Answer, FenceKind, Fencing, LeaseSession, Peer, Registration, Renewal};
pub use migrate::{MigrateError, known as known_migration};
pub(crate) use session::Backend;
pub use slots::MeshSettings;
pub(crate) use transaction::TransactionCell;
pub use transaction::{Commit, Transaction, TransactionError};
