//! Reads the log of Postgres as it is written, through every restart, and hands on each transaction exactly once.
//!
//! By the replication protocol, not by the SQL functions of logical decoding: each call of those decodes anew all that was
//! written since the slot's restart point, which moves about each 15 s. Under load that is half a gigabyte per call.
//!
//! **Nothing is lost.** The slot keeps what was not confirmed, and a position is confirmed only after the transactions before it are
//! in memory here. The server sends only what is on its disk: a crash takes nothing back that was read.
//! **Nothing is doubled.** A transaction is taken when its commit was read, whole or not at all; after a new connection those
//! whose commit does not lie behind the last one taken are passed over.
//! **A failover is seen.** The slot does not exist on the promoted server. Then a new one is made, and a baseline, read in the very
//! snapshot at which the slot begins, stands for what led there.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::TryStreamExt as _;
use pgwire_replication::{
    Lsn, PgWireError, ReplicationClient, ReplicationConfig, ReplicationEvent, TlsConfig,
};
use ringmesh::sqlx::postgres::PgConnectOptions;
use ringmesh::sqlx::{self, AssertSqlSafe, Connection as _, PgConnection, Row as _};
use tokio::sync::watch;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use super::pgoutput;
use super::pgoutput::Value;
use super::rows::{Rows, Table};
use crate::history::Change;

/// The slot, the publication, and the prefix of marks.
pub(super) const NAME: &str = "ringmesh_faults";
/// Between two attempts to connect.
const PAUSE: Duration = Duration::from_millis(200);
/// For a step of connecting: a server that does not answer is asked again.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often the server is told what it need not keep.
const CONFIRM: Duration = Duration::from_millis(200);
/// Microseconds from 1970 to 2000, from where Postgres counts.
const EPOCH_2000: i64 = 946_684_800_000_000;

/// How far the record is.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Progress {
    /// The number of the last transaction.
    pub(super) number: u64,
    /// The last mark.
    pub(super) mark: u64,
    /// How many baselines there are: none until the record has begun.
    pub(super) baselines: u64,
}

/// The record.
pub(super) struct Stream {
    connect: PgConnectOptions,
    password: String,
    rows: Rows,
    changes: Vec<Change>,
    progress: watch::Sender<Progress>,
    /// The commit of the last transaction that was taken.
    last: Lsn,
    /// Whether the transaction that is being read was taken before.
    taken: bool,
    in_transaction: bool,
}

/// Why reading ended.
enum Ended {
    /// It was told to.
    Stopped,
    /// The slot is not there.
    NoSlot,
}

impl Stream {
    pub(super) fn new(connect: PgConnectOptions, password: String) -> (Stream, watch::Receiver<Progress>) {
        let (progress, seen) = watch::channel(Progress::default());
        let stream = Stream {
            connect,
            password,
            rows: Rows::default(),
            changes: Vec::new(),
            progress,
            last: Lsn(0),
            taken: false,
            in_transaction: false,
        };
        (stream, seen)
    }

    /// Reads until told to stop, and returns all that was read.
    ///
    /// # Errors
    /// The record has holes or cannot be understood. What does not answer is asked again and again.
    pub(super) async fn run(mut self, stop: CancellationToken) -> Result<Vec<Change>> {
        let mut slot = false;
        loop {
            let attempt = async {
                if slot {
                    self.resume().await
                } else {
                    self.begin().await
                }
            };
            let client = match stop.run_until_cancelled(attempt).await {
                None => break,
                Some(Ok(Some(client))) => client,
                Some(Ok(None)) => {
                    tracing::warn!("the slot is gone: the record is cut, and begins anew");
                    slot = false;
                    continue;
                }
                Some(Err(error)) => {
                    tracing::info!("the log cannot be read yet: {error:#}");
                    if stop.run_until_cancelled(sleep(PAUSE)).await.is_none() {
                        break;
                    }
                    continue;
                }
            };
            slot = true;
            match self.read(client, &stop).await? {
                Some(Ended::Stopped) => break,
                Some(Ended::NoSlot) => slot = false,
                None => {}
            }
        }
        Ok(self.changes)
    }

    fn config(&self, start: Lsn) -> ReplicationConfig {
        let database = self.connect.get_database().unwrap_or("postgres");
        let user = self.connect.get_username();
        ReplicationConfig::new(
            self.connect.get_host(),
            user,
            &self.password,
            database,
            NAME,
            NAME,
        )
        .with_port(self.connect.get_port())
        .with_tls(TlsConfig::disabled())
        .with_start_lsn(start)
        .with_status_interval(CONFIRM)
        .with_application_name(NAME)
    }

    /// Makes the slot and reads the baseline.
    async fn begin(&mut self) -> Result<Option<ReplicationClient>> {
        let mut client = within(ReplicationClient::connect_gated(self.config(Lsn(0)))).await?;
        let drop = format!(
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = '{NAME}' and not active"
        );
        within(client.simple_query(&drop)).await?;
        let create = format!("CREATE_REPLICATION_SLOT {NAME} LOGICAL pgoutput (SNAPSHOT 'export')");
        let made = within(client.simple_query(&create)).await?;
        // Its name, where it begins, its snapshot, its plugin.
        let field = |place: usize| {
            let value = made.first()?.get(place)?.as_deref()?;
            std::str::from_utf8(value).ok()
        };
        let point = field(1).context("the new slot has no beginning")?;
        let snapshot = field(2).context("the new slot has no snapshot")?;
        self.baseline(snapshot).await?;
        // A commit may stand right there.
        self.last = Lsn(Lsn::parse(point)?.0.saturating_sub(1));
        within(client.start()).await?;
        within(client.wait_started()).await?;
        Ok(Some(client))
    }

    /// Goes on where reading ended. `None`: there is no such slot.
    async fn resume(&mut self) -> Result<Option<ReplicationClient>> {
        let mut client = within(ReplicationClient::connect(self.config(self.last))).await?;
        match timeout(PATIENCE, client.wait_started()).await {
            Ok(Ok(())) => Ok(Some(client)),
            Ok(Err(PgWireError::Server(text))) if no_slot(&text) => Ok(None),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => bail!("no answer to the start of replication"),
        }
    }

    async fn baseline(&mut self, snapshot: &str) -> Result<()> {
        let mut session = timeout(PATIENCE, PgConnection::connect_with(&self.connect)).await??;
        let begin =
            format!("begin isolation level repeatable read read only; set transaction snapshot '{snapshot}'");
        sqlx::raw_sql(AssertSqlSafe(begin)).execute(&mut session).await?;
        self.rows.begin_baseline();
        for table in Table::ALL {
            let columns: Vec<String> = table
                .columns()
                .iter()
                .map(|name| format!("{name}::text"))
                .collect();
            let (schema, name) = table.name();
            let read = format!("select {} from {schema}.{name}", columns.join(", "));
            let mut found = sqlx::query(AssertSqlSafe(read)).fetch(&mut session);
            while let Some(row) = found.try_next().await? {
                let mut values = Vec::with_capacity(columns.len());
                for place in 0..columns.len() {
                    let value: Option<&str> = row.try_get(place)?;
                    values.push(value.map_or(Value::Null, Value::Text));
                }
                self.rows.standing(table, &values)?;
            }
        }
        let at = "select (extract(epoch from clock_timestamp()) * 1000000)::bigint";
        let at: i64 = sqlx::query_scalar(at).fetch_one(&mut session).await?;
        session.close().await.ok();
        self.take(at);
        self.progress.send_modify(|progress| progress.baselines += 1);
        Ok(())
    }

    /// The transaction is whole: it becomes a part of the record.
    fn take(&mut self, committed_at: i64) {
        let transaction = self.progress.borrow().number + 1;
        let before = self.changes.len();
        self.changes.extend(self.rows.commit().map(|row| Change {
            transaction,
            committed_at,
            row,
        }));
        if self.changes.len() > before {
            self.progress
                .send_modify(|progress| progress.number = transaction);
        }
    }

    /// Reads until the connection ends. `None`: it broke.
    async fn read(
        &mut self,
        mut client: ReplicationClient,
        stop: &CancellationToken,
    ) -> Result<Option<Ended>> {
        self.in_transaction = false;
        loop {
            let event = match stop.run_until_cancelled(client.recv()).await {
                None => {
                    client.shutdown().await.ok();
                    return Ok(Some(Ended::Stopped));
                }
                Some(Ok(Some(event))) => event,
                Some(Ok(None)) => return Ok(None),
                Some(Err(PgWireError::Server(text))) if no_slot(&text) => return Ok(Some(Ended::NoSlot)),
                Some(Err(error)) => {
                    tracing::info!("reading the log was broken off: {error}");
                    return Ok(None);
                }
            };
            if let Some(position) = self.on(event)? {
                client.update_applied_lsn(position);
            }
        }
    }

    /// Takes an event; returns up to where all is taken.
    fn on(&mut self, event: ReplicationEvent) -> Result<Option<Lsn>> {
        match event {
            ReplicationEvent::Begin { final_lsn, .. } => {
                self.in_transaction = true;
                self.taken = final_lsn.0 <= self.last.0;
                self.rows.begin();
            }
            ReplicationEvent::XLogData { data, .. } => {
                self.rows
                    .message(pgoutput::read(&data)?)
                    .context("the record cannot be understood")?;
            }
            ReplicationEvent::Commit {
                lsn,
                end_lsn,
                commit_time_micros,
            } => {
                ensure!(self.in_transaction, "a commit without its beginning");
                self.in_transaction = false;
                if !self.taken {
                    self.take(commit_time_micros + EPOCH_2000);
                    self.last = lsn;
                }
                return Ok(Some(end_lsn));
            }
            ReplicationEvent::Message { prefix, content, .. } if prefix == NAME => {
                let mark = std::str::from_utf8(&content)?.parse()?;
                self.progress.send_modify(|progress| progress.mark = mark);
            }
            // All before it was sent; an open transaction will be sent whole.
            ReplicationEvent::KeepAlive { wal_end, .. } if !self.in_transaction => return Ok(Some(wal_end)),
            ReplicationEvent::Message { .. }
            | ReplicationEvent::KeepAlive { .. }
            | ReplicationEvent::StoppedAt { .. } => {}
        }
        Ok(None)
    }
}

/// Whether the server says that there is no such slot.
fn no_slot(text: &str) -> bool {
    text.contains("42704") || (text.contains("replication slot") && text.contains("does not exist"))
}

async fn within<T, E: Into<anyhow::Error>>(work: impl Future<Output = Result<T, E>>) -> Result<T> {
    timeout(PATIENCE, work)
        .await
        .context("no answer in time")?
        .map_err(Into::into)
}
