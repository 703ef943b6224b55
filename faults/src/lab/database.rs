//! Postgres, its standby, and the address that is always that of the present primary.

use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use ringmesh::dev::{Postgres, postgres};
use ringmesh::sqlx::postgres::{PgConnection, PgPoolOptions};
use ringmesh::sqlx::{AssertSqlSafe, Connection as _, PgPool, query_scalar, raw_sql};

use super::clock::{Clock, Offset};
use super::limits;
use super::proxy::Proxy;

/// How long a statement of the lab itself may take.
const STATEMENT: Duration = Duration::from_secs(20);
/// A copy of the data folder, a promotion.
const LONG: Duration = Duration::from_secs(120);

/// When the primary answers a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Replication {
    /// When the standby has it on disk.
    Synchronous,
    /// When it has it itself: a failover may lose commits.
    Asynchronous,
}

/// What becomes of the old primary in a failover.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Old {
    /// It is killed first.
    Killed,
    /// It lives on and takes no writes.
    ReadOnly,
    /// It lives on and would take writes from whoever still reaches it.
    Writable,
}

/// How the servers are started.
pub(super) struct Options {
    pub(super) dir: PathBuf,
    pub(super) durability: postgres::Durability,
    pub(super) settings: Vec<(String, String)>,
    pub(super) disk: Option<u64>,
    pub(super) standby: Option<Replication>,
    pub(super) clock: Option<Clock>,
    pub(super) seed: u64,
}

/// The servers of a lab.
pub struct Database {
    options: Options,
    pub(super) primary: Postgres,
    standby: Option<Postgres>,
    /// The old primary of the last failover, if it lives on.
    old: Option<Postgres>,
    /// Passes to the primary, without faults.
    front: Proxy,
    pool: PgPool,
    made: u32,
}

impl Database {
    pub(super) async fn start(options: Options) -> Result<Database> {
        let dir = options.dir.join("postgres-1");
        if let Some(bytes) = options.disk {
            limits::mount(&dir, bytes).await?;
            // The server's folder may be used only if it is empty or was made by it.
            std::fs::write(dir.join("lock"), "")?;
        }
        let primary = Postgres::start(server(&options, dir)).await?;
        let front = Proxy::start(loopback(0), loopback(primary.port()), options.seed).await?;
        let url = at(&primary, front.address());
        let pool = PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(STATEMENT)
            .connect_lazy(&url)?;
        let mut database = Database {
            options,
            primary,
            standby: None,
            old: None,
            front,
            pool,
            made: 1,
        };
        if database.options.standby.is_some() {
            database.make_standby().await?;
        }
        Ok(database)
    }

    /// Where the primary is reached, over failovers too. Its user is a superuser.
    pub fn url(&self) -> String {
        self.url_at(self.front.address())
    }

    /// The same database, by way of another address.
    pub(super) fn url_at(&self, address: SocketAddr) -> String {
        at(&self.primary, address)
    }

    /// The server that is the primary now.
    pub fn primary(&mut self) -> &mut Postgres {
        &mut self.primary
    }

    /// The old primary of the last failover, if it lives on.
    pub fn old_primary(&mut self) -> Option<&mut Postgres> {
        self.old.as_mut()
    }

    /// The fault-free address of the primary.
    pub(super) fn address(&self) -> SocketAddr {
        self.front.address()
    }

    /// The user and group that the primary runs as.
    pub(super) fn owner(&self) -> Result<(u32, u32)> {
        let pid = self.primary.pid().context("the primary does not run")?;
        let owner = std::fs::metadata(format!("/proc/{pid}"))?;
        Ok((owner.uid(), owner.gid()))
    }

    /// Runs statements.
    ///
    /// # Errors
    /// Postgres is away, or refuses.
    pub async fn execute(&self, sql: &str) -> Result<()> {
        let done = raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.pool);
        bounded(sql, done).await.map(drop)
    }

    /// A statement that answers with one number.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub async fn number(&self, sql: &str) -> Result<i64> {
        bounded(
            sql,
            query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.pool),
        )
        .await
    }

    /// A statement that answers with numbers.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub async fn numbers(&self, sql: &str) -> Result<Vec<i64>> {
        bounded(
            sql,
            query_scalar(AssertSqlSafe(sql.to_owned())).fetch_all(&self.pool),
        )
        .await
    }

    /// A session of its own, which may hold locks.
    ///
    /// # Errors
    /// Postgres is away.
    pub async fn session(&self) -> Result<PgConnection> {
        bounded("connect", PgConnection::connect(&self.url())).await
    }

    /// Shifts the servers' wall clock, from the lab's option `clocks` on.
    ///
    /// # Errors
    /// The lab was started without that option.
    pub fn shift_clock(&self, offset: Offset) -> Result<()> {
        let clock = self.options.clock.as_ref();
        clock.context("the lab has no shifted clocks")?.set(offset)
    }

    /// Fills the disk of the primary; [`Self::free_disk`] frees it again.
    ///
    /// # Errors
    /// The lab was started without the option `disk`.
    pub fn fill_disk(&self) -> Result<()> {
        if self.options.disk.is_none() {
            bail!("the database has no disk of its own");
        }
        let mut file = std::fs::File::create(self.balloon())?;
        let block = vec![0; 1 << 20];
        while std::io::Write::write_all(&mut file, &block).is_ok() {}
        Ok(())
    }

    /// Ends [`Self::fill_disk`].
    ///
    /// # Errors
    /// The file cannot be removed.
    pub fn free_disk(&self) -> Result<()> {
        match std::fs::remove_file(self.balloon()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn balloon(&self) -> PathBuf {
        self.primary.dir().join("balloon")
    }

    /// Makes a standby of the primary, and waits until it follows.
    ///
    /// # Errors
    /// It could not be made.
    pub async fn make_standby(&mut self) -> Result<()> {
        let replication = self.options.standby.context("the lab has no standby")?;
        if let Some(mut old) = self.old.take() {
            // One that stands still or is dead stops as well.
            let _ = old.stop().await;
        }
        self.standby = None;
        self.made += 1;
        let dir = self.options.dir.join(format!("postgres-{}", self.made));
        copy(&self.primary, &dir).await?;
        self.standby = Some(Postgres::start(server(&self.options, dir)).await?);
        if replication == Replication::Synchronous {
            self.execute("alter system set synchronous_standby_names = '*'")
                .await?;
            self.execute("select pg_reload_conf()").await?;
        }
        let follows = "select count(*) from pg_stat_replication where state = 'streaming'";
        let wanted = match replication {
            Replication::Synchronous => format!("{follows} and sync_state = 'sync'"),
            Replication::Asynchronous => follows.to_owned(),
        };
        let deadline = tokio::time::Instant::now() + LONG;
        while self.number(&wanted).await? == 0 {
            if tokio::time::Instant::now() >= deadline {
                bail!("the standby does not follow within {LONG:?}");
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Makes the standby the primary, and leads everybody there. Logical replication slots of the old primary are made anew
    /// on the new one before anybody can write to it.
    ///
    /// # Errors
    /// There is no standby, or it was not promoted.
    pub async fn promote(&mut self, old: Old) -> Result<()> {
        let Some(standby) = self.standby.take() else {
            bail!("there is no standby");
        };
        let slots: Vec<(String, String)> = bounded(
            "read slots",
            ringmesh::sqlx::query_as(
                "select slot_name::text, plugin::text from pg_replication_slots where slot_type = 'logical'",
            )
            .fetch_all(&self.pool),
        )
        .await?;
        match old {
            Old::Killed => self.primary.kill().await?,
            Old::ReadOnly => {
                self.execute("alter system set default_transaction_read_only = on")
                    .await?;
                self.execute("select pg_reload_conf()").await?;
            }
            Old::Writable => {}
        }
        let mut session = bounded("connect", PgConnection::connect(&standby.url())).await?;
        let promoted: bool = bounded(
            "promote",
            query_scalar("select pg_promote(true, 60)").fetch_one(&mut session),
        )
        .await?;
        if !promoted {
            bail!("the standby was not promoted within 60 s");
        }
        for (name, plugin) in slots {
            let make = ringmesh::sqlx::query("select pg_create_logical_replication_slot($1, $2)")
                .bind(name)
                .bind(plugin);
            bounded("make a slot", make.execute(&mut session)).await?;
        }
        let _ = session.close().await;
        let former = std::mem::replace(&mut self.primary, standby);
        self.front.retarget(loopback(self.primary.port()));
        self.old = (old != Old::Killed).then_some(former);
        Ok(())
    }
}

/// Adds what the statement was, and a bound in time.
async fn bounded<T>(what: &str, does: impl Future<Output = Result<T, ringmesh::sqlx::Error>>) -> Result<T> {
    let within = if what == "promote" { LONG } else { STATEMENT };
    let done = tokio::time::timeout(within, does).await;
    done.with_context(|| format!("{what}: no answer within {within:?}"))?
        .with_context(|| what.to_owned())
}

fn server(options: &Options, dir: PathBuf) -> postgres::Options {
    let mut settings: Vec<(String, String)> = [
        ("wal_level", "logical"),
        ("max_connections", "400"),
        ("max_wal_senders", "10"),
        ("max_replication_slots", "10"),
        ("shared_buffers", "256MB"),
        ("max_wal_size", "2GB"),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .into();
    settings.extend(options.settings.iter().cloned());
    let environment = options.clock.iter().flat_map(Clock::environment);
    postgres::Options {
        dir,
        durability: options.durability,
        settings,
        environment: environment.collect(),
        keep: false,
        ..postgres::Options::default()
    }
}

/// Copies the primary's data folder to where a standby will find it.
async fn copy(primary: &Postgres, dir: &Path) -> Result<()> {
    std::fs::create_dir_all(dir)?;
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o711))?;
    // By this, the folder is known for one of a server.
    std::fs::write(dir.join("lock"), "")?;
    std::fs::copy(primary.dir().join("password"), dir.join("password"))?;
    let data = dir.join("data");
    std::fs::create_dir(&data)?;
    std::fs::set_permissions(&data, PermissionsExt::from_mode(0o700))?;
    let pid = primary.pid().context("the primary does not run")?;
    let owner = std::fs::metadata(format!("/proc/{pid}"))?;
    chown(&data, Some(owner.uid()), Some(owner.gid()))?;
    let program = std::fs::read_link(format!("/proc/{pid}/exe"))?.with_file_name("pg_basebackup");
    let mut command = tokio::process::Command::new(&program);
    command
        .uid(owner.uid())
        .gid(owner.gid())
        .current_dir(&data)
        .kill_on_drop(true)
        .process_group(0)
        .arg(format!("--dbname={}", primary.url()))
        .arg(format!("--pgdata={}", data.display()))
        .args([
            "--write-recovery-conf",
            "--wal-method=stream",
            "--checkpoint=fast",
            "--no-sync",
        ]);
    let output = tokio::time::timeout(LONG, command.output()).await;
    let output = output.context("pg_basebackup took too long")??;
    if !output.status.success() {
        bail!(
            "{}: {}",
            program.display(),
            String::from_utf8_lossy(&output.stderr)
        );
    }
    Ok(())
}

fn loopback(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

fn at(server: &Postgres, address: SocketAddr) -> String {
    let own = loopback(server.port()).to_string();
    server.url().replace(&own, &address.to_string())
}
