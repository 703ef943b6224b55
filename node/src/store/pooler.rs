//! What stands between a node and Postgres, and what a session may then rely on: `docs/adr/0004-poolers.md`.

use std::fmt::{self, Write as _};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::{Duration, Instant};

use sqlx::postgres::PgConnectOptions;
use sqlx::{ConnectOptions as _, PgConnection};
use tokio::time::timeout;

use super::session::Silence;

/// What an operator says stands between the nodes and Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooler {
    /// The node finds out.
    Auto,
    /// Nothing.
    None,
    /// A pooler that gives a client a server for one transaction at a time.
    Transaction,
}

impl FromStr for Pooler {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "auto" => Ok(Pooler::Auto),
            "none" => Ok(Pooler::None),
            "transaction" => Ok(Pooler::Transaction),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Pooler {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pooler::Auto => "auto",
            Pooler::None => "none",
            Pooler::Transaction => "transaction",
        })
    }
}

/// How a session comes to Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Way {
    /// Nothing is in between.
    Direct,
    /// A pooler that gives each connection a server of its own.
    Session,
    /// A pooler that gives each transaction a server: nothing of a session lasts longer.
    Transaction,
}

/// How long each question about the way may take.
const SAYS_WITHIN: Duration = Duration::from_secs(5);

/// How often two connections are compared.
const ROUNDS: usize = 8;

impl Way {
    /// Finds out; see the page for how sure that is.
    pub(crate) async fn find(options: &PgConnectOptions) -> Result<Way, sqlx::Error> {
        let plain = options.clone().extra_float_digits(None);
        let (mut one, mut other) = (connect(&plain).await?, connect(&plain).await?);
        let first = (server(&mut one).await?, server(&mut other).await?);
        for _ in 0..ROUNDS {
            let next = (server(&mut one).await?, server(&mut other).await?);
            if next.0 == next.1 || next != first {
                return Ok(Way::Transaction);
            }
        }
        match connect(&plain.options([("statement_timeout", "12345ms")])).await {
            Ok(mut told) => {
                let limit = sqlx::raw_sql("show statement_timeout").fetch_one(&mut told);
                let limit = within(limit).await?;
                let counts = sqlx::Row::try_get::<&str, _>(&limit, 0)? == "12345ms";
                Ok(if counts { Way::Direct } else { Way::Session })
            }
            // Other connections went well just now: the settings are what it does not take.
            Err(sqlx::Error::Database(_)) => Ok(Way::Session),
            Err(error) => Err(error),
        }
    }
}

async fn connect(options: &PgConnectOptions) -> Result<PgConnection, sqlx::Error> {
    within(options.connect()).await
}

async fn server(connection: &mut PgConnection) -> Result<String, sqlx::Error> {
    // Without parameters, thus without a prepared statement, which not every pooler keeps.
    let row = within(sqlx::raw_sql("select pg_backend_pid()::text").fetch_one(connection)).await?;
    sqlx::Row::try_get(&row, 0)
}

async fn within<T>(asked: impl Future<Output = Result<T, sqlx::Error>>) -> Result<T, sqlx::Error> {
    timeout(SAYS_WITHIN, asked)
        .await
        .unwrap_or_else(|_| Err(sqlx::Error::Io(std::io::ErrorKind::TimedOut.into())))
}

/// What all sessions of one URL share. Cloning shares it.
#[derive(Debug, Clone)]
pub(crate) struct Network {
    way: Arc<AtomicU8>,
    silence: Arc<Silence>,
}

impl Network {
    pub(crate) fn new(way: Way, silence: &Arc<Silence>) -> Self {
        Network {
            way: Arc::new(AtomicU8::new(way as u8)),
            silence: silence.clone(),
        }
    }

    pub(crate) fn way(&self) -> Way {
        match self.way.load(Ordering::Acquire) {
            0 => Way::Direct,
            1 => Way::Session,
            _ => Way::Transaction,
        }
    }

    pub(crate) fn found(&self, way: Way) {
        self.way.store(way as u8, Ordering::Release);
    }

    /// Nothing that lies idle now is believed any more.
    pub(crate) fn doubt(&self) {
        self.silence.noticed();
    }

    /// Whether what lay idle since then is not to be believed.
    pub(crate) fn doubts(&self, since: Instant) -> bool {
        self.silence.since(since)
    }
}

/// How sessions are opened, and what holds in them.
#[derive(Debug)]
pub(crate) struct Terms {
    options: PgConnectOptions,
    settings: Vec<(&'static str, String)>,
    pub(crate) network: Network,
}

impl Terms {
    pub(crate) fn new(
        options: &PgConnectOptions,
        settings: Vec<(&'static str, String)>,
        network: &Network,
    ) -> Self {
        Terms {
            options: options.clone(),
            settings,
            network: network.clone(),
        }
    }

    /// How to connect, the way being what it is.
    pub(crate) fn connect(&self) -> PgConnectOptions {
        let options = self.options.clone();
        match self.network.way() {
            Way::Direct => options.options(self.settings.iter().map(|(name, value)| (*name, value.as_str()))),
            Way::Session => options.extra_float_digits(None),
            // Only handlers' own statements ask for a place in the cache, and the next transaction is elsewhere.
            Way::Transaction => options.extra_float_digits(None).statement_cache_capacity(0),
        }
    }

    /// Statements for a new session; none if its start has said it all.
    pub(crate) fn after_connect(&self) -> Option<String> {
        (self.network.way() == Way::Session).then(|| self.text("set"))
    }

    /// Statements that open a transaction and what `more` says about it.
    pub(crate) fn begin(&self, more: &str) -> String {
        match self.network.way() {
            Way::Direct | Way::Session => format!("begin; {more}"),
            // This transaction has begun by the database's default already.
            Way::Transaction => {
                let settings = self.text("set local");
                format!(
                    "begin; {}{more}",
                    settings.replace("default_transaction_", "transaction_")
                )
            }
        }
    }

    /// As `set NAME = 'VALUE'; …`. Neither names nor values come from outside.
    fn text(&self, set: &str) -> String {
        let mut text = String::new();
        for (name, value) in &self.settings {
            // Of the pooler's own connection, not of this transaction.
            if !name.starts_with("tcp_") {
                let _ = write!(text, "{set} {name} = '{value}'; ");
            }
        }
        text
    }
}
