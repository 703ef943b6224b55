//! PgBouncer between the nodes' proxies and Postgres.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ringmesh::dev::process::{Signal, Tied};
use ringmesh::sqlx::postgres::{PgConnectOptions, PgConnection};
use ringmesh::sqlx::{ConnectOptions as _, Connection as _, raw_sql};

/// Debian's package `pgbouncer`.
const PROGRAM: &str = "/usr/sbin/pgbouncer";
const START: Duration = Duration::from_secs(20);

/// For how long a client keeps a session of the server.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pooling {
    /// For as long as it is connected.
    Session,
    /// For a transaction: locks and settings of sessions mean nothing.
    Transaction,
}

/// A pooler. Dropping it kills it.
#[derive(Debug)]
pub struct Pooler {
    dir: PathBuf,
    port: u16,
    user: String,
    password: String,
    /// Postgres refuses what is not its own user's, and PgBouncer does not run as root.
    owner: (u32, u32),
    process: Option<Tied>,
}

impl Pooler {
    /// Starts a pooler in front of a server.
    ///
    /// # Errors
    /// PgBouncer is not installed, or did not start.
    pub(super) async fn start(
        dir: PathBuf,
        server: &str,
        owner: (u32, u32),
        pooling: Pooling,
    ) -> Result<Pooler> {
        if !Path::new(PROGRAM).exists() {
            bail!("PgBouncer is not installed (Debian: pgbouncer)");
        }
        let options: PgConnectOptions = server.parse()?;
        let password = server
            .split_once("://")
            .and_then(|(_, rest)| rest.split_once('@'))
            .and_then(|(login, _)| login.split_once(':'));
        let (user, password) = password.context("the server's address has no password")?;
        std::fs::create_dir_all(&dir)?;
        let port = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
            .local_addr()?
            .port();
        let mode = match pooling {
            Pooling::Session => "session",
            Pooling::Transaction => "transaction",
        };
        let users = dir.join("users");
        std::fs::write(&users, format!("\"{user}\" \"{password}\"\n"))?;
        std::fs::write(
            dir.join("settings"),
            format!(
                "[databases]\n* = host={} port={}\n[pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\n\
                 unix_socket_dir =\nauth_type = plain\nauth_file = {}\nadmin_users = {user}\npool_mode = {mode}\n\
                 max_client_conn = 2000\nmax_db_connections = 300\n\
                 ignore_startup_parameters = extra_float_digits,options\n%include {}\n",
                options.get_host(),
                options.get_port(),
                users.display(),
                dir.join("pool").display(),
            ),
        )?;
        let mut pooler = Pooler {
            user: user.to_owned(),
            password: password.to_owned(),
            process: None,
            dir,
            port,
            owner,
        };
        pooler.write_pool(200)?;
        pooler.restart().await?;
        Ok(pooler)
    }

    pub(super) fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// Ends it, if it runs, with all connections through it, and starts it again.
    ///
    /// # Errors
    /// It did not start.
    pub async fn restart(&mut self) -> Result<()> {
        self.process = None;
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.dir.join("log"))?;
        let mut command = Command::new(PROGRAM);
        command.arg(self.dir.join("settings")).current_dir(&self.dir);
        command.uid(self.owner.0).gid(self.owner.1);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        self.process = Some(Tied::spawn(command, Signal::Kill).await?);
        let deadline = Instant::now() + START;
        while tokio::net::TcpStream::connect(self.address()).await.is_err() {
            let ended = self.process.as_mut().and_then(Tied::try_wait);
            if ended.is_some() || Instant::now() >= deadline {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                bail!("PgBouncer did not start:\n{log}");
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Ok(())
    }

    /// Lets it open so many sessions to the server, and makes it read its settings again.
    ///
    /// # Errors
    /// It does not answer.
    pub async fn reload(&self, sessions: u32) -> Result<()> {
        self.write_pool(sessions)?;
        let options = PgConnectOptions::new_without_pgpass()
            .host("127.0.0.1")
            .port(self.port)
            .username(&self.user)
            .password(&self.password)
            .database("pgbouncer")
            .statement_cache_capacity(0);
        let told = async {
            let mut session: PgConnection = options.connect().await?;
            raw_sql("reload").execute(&mut session).await?;
            session.close().await
        };
        let told = tokio::time::timeout(START, told).await;
        told.context("PgBouncer does not answer")?
            .context("make PgBouncer reload")
    }

    fn write_pool(&self, sessions: u32) -> Result<()> {
        let text = format!("default_pool_size = {sessions}\n");
        Ok(std::fs::write(self.dir.join("pool"), text)?)
    }
}
