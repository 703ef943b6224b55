//! A Postgres server of its own under a data folder, on 127.0.0.1.
//!
//! | in the folder | is |
//! |---|---|
//! | `data/` | the server's data folder |
//! | `password` | the password of the user `ringmesh`, readable by its owner only |
//! | `port` | the port of the last start, taken again when it is free, so that a kept URL stays good |
//! | `postgres.log` | what the server says |
//! | `lock` | held by the process that uses the folder, which is named in it |
//!
//! **One way in**: TCP on loopback with a generated password (SCRAM). Trust on loopback would let every user of the machine
//! become the database's superuser, who can run programs as the server's user. A Unix socket would add a second URL and
//! a limit of 107 bytes on the folder's path, and nothing that is needed.
//!
//! **No client needed**: the database `ringmesh` is made by `postgres --single` right after `initdb`, since a minimal
//! install has no `psql` or `createdb`. A start is complete when the server itself has written `ready` into
//! `postmaster.pid` and its port accepts a connection.
//!
//! **As root**: Postgres refuses to run as root, so it runs as `postgres`, or `nobody` where there is no such user. When
//! that user cannot reach the folder (below `/root`, say), another one is used and named: [`Postgres::dir`].

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use super::home::{Account, Home, NAME, PREDECESSOR, TEST_FOLDER};
use super::process::{self, Process, Signal, Tied, wait_until};
use super::programs::Programs;
use super::{Doing, Error, Result, free_port, log_tail, tcp_is_free};

/// From the spawn to ready; includes crash recovery.
const START: Duration = Duration::from_secs(60);
/// A fast shutdown, which writes a checkpoint.
const FAST_STOP: Duration = Duration::from_secs(30);
/// An immediate shutdown; the server itself kills what is left after 5 s.
const IMMEDIATE_STOP: Duration = Duration::from_secs(8);

/// How a server is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// The folder that holds all of it; made if missing. It must be empty or have been made by an earlier start.
    pub dir: PathBuf,
    /// The TCP port. None: that of the last start in this folder if it is free, else any free one.
    pub port: Option<u16>,
    /// What survives a crash of the machine.
    pub durability: Durability,
    /// Server settings, as `("shared_buffers", "1GB")`; they win over those made here.
    pub settings: Vec<(String, String)>,
    /// More environment variables of the server.
    pub environment: Vec<(String, String)>,
    /// Whether the folder stays when the value is dropped. False removes it, for tests.
    pub keep: bool,
}

impl Default for Options {
    /// `.ringmesh/postgres`, durable, kept.
    fn default() -> Self {
        Self {
            dir: ".ringmesh/postgres".into(),
            port: None,
            durability: Durability::Real,
            settings: Vec::new(),
            environment: Vec::new(),
            keep: true,
        }
    }
}

impl Options {
    /// A new folder below the system's temporary one, removed at the end; [`Durability::FastForTests`].
    pub fn for_tests() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("{TEST_FOLDER}{}-{number}", std::process::id());
        Self {
            dir: std::env::temp_dir().join(name),
            durability: Durability::FastForTests,
            keep: false,
            ..Self::default()
        }
    }
}

/// What survives a crash of the machine. A crash of the server alone loses nothing under either.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Durability {
    /// Postgres's own defaults: every answered commit survives.
    Real,
    /// Nothing is synced to disk (`fsync = off`), and the first data folder is copied from a template. Commits still
    /// wait for their WAL to be written, so that a killed server loses none. Passwords are sent as they are.
    FastForTests,
}

/// A running (or stopped) server. Dropping it stops the server.
#[derive(Debug)]
pub struct Postgres {
    home: Home,
    programs: Programs,
    options: Options,
    port: u16,
    password: String,
    process: Option<Tied>,
    paused: bool,
}

impl Postgres {
    /// Starts a server, making its folder first if needed, and returns when it accepts connections.
    ///
    /// # Errors
    ///
    /// [`Error::NoPostgres`] without its programs, [`Error::InUse`] when the folder is used by a live process,
    /// [`Error::PortTaken`], [`Error::Ended`] with the end of the log. On an error no server runs; the folder may have
    /// been made.
    pub async fn start(options: Options) -> Result<Self> {
        if let Some(port) = options.port.filter(|port| !tcp_is_free(*port)) {
            return Err(Error::PortTaken {
                port,
                what: "Postgres".into(),
            });
        }
        let dir = std::path::absolute(&options.dir).doing(|| "find the current folder".into())?;
        let account = Account::for_server()?;
        let home = Home::open(dir, account)?;
        let programs = Programs::find(&home.dir, home.made_by()?).await?;
        Self::start_in(home, programs, options).await
    }

    /// As [`Self::start`] with programs that were found already.
    #[cfg(test)]
    pub(super) async fn start_with(programs: Programs, options: Options) -> Result<Self> {
        let home = Home::open(options.dir.clone(), Account::for_server()?)?;
        Self::start_in(home, programs, options).await
    }

    async fn start_in(home: Home, programs: Programs, options: Options) -> Result<Self> {
        home.await_predecessor().await?;
        if home.made_by()?.is_none() {
            match options.durability {
                Durability::Real => home.initialise(&programs, true).await?,
                Durability::FastForTests => home.copy_template(&programs).await?,
            }
        }
        let password =
            std::fs::read_to_string(home.password()).doing(|| "read the database's password".into())?;
        let mut server = Self {
            home,
            programs,
            options,
            port: 0,
            password: password.trim().into(),
            process: None,
            paused: false,
        };
        server.choose_port_and_launch().await?;
        Ok(server)
    }

    /// `postgres://ringmesh:PASSWORD@127.0.0.1:PORT/ringmesh`. Its user is a superuser.
    pub fn url(&self) -> String {
        self.url_of(NAME)
    }

    /// The URL of another database of this server (`postgres` always exists).
    pub fn url_of(&self, database: &str) -> String {
        format!(
            "postgres://{NAME}:{}@127.0.0.1:{}/{database}",
            self.password, self.port
        )
    }

    /// The TCP port on 127.0.0.1; the same over [`Self::restart`].
    pub fn port(&self) -> u16 {
        self.port
    }

    /// The process id of the server's first process; None while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Tied::pid)
    }

    /// The folder really used; see the note on root at the top of this module.
    pub fn dir(&self) -> &Path {
        &self.home.dir
    }

    /// The version text of the programs used.
    pub fn version(&self) -> &str {
        &self.programs.version
    }

    /// The server's log file.
    pub fn log(&self) -> PathBuf {
        self.home.log()
    }

    /// The last lines of the server's log.
    pub fn log_tail(&self) -> String {
        log_tail(&self.home.log(), 0)
    }

    /// [`Error::Ended`], with the end of its log, when the server ended by itself or was killed by somebody else.
    pub fn ended(&mut self) -> Option<Error> {
        let status = self.process.as_mut()?.try_wait()?;
        let log = self.home.log();
        let tail = log_tail(&log, 0);
        Some(Error::Ended {
            name: "postgres".into(),
            status,
            log,
            tail,
        })
    }

    /// Stops the server in order (fast shutdown: sessions are ended, open transactions rolled back) and waits for its end.
    /// A stopped server stays stopped; that is no error.
    ///
    /// # Errors
    ///
    /// [`Error::DidNotStop`] when it had to be killed; it does not run any more in that case either.
    pub async fn stop(&mut self) -> Result<()> {
        self.resume()?;
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process
            .signal(Signal::Interrupt)
            .doing(|| "signal Postgres".into())?;
        if process.wait(FAST_STOP).await.is_some() {
            return Ok(());
        }
        kill_all(process).await?;
        let log = self.home.log();
        let tail = log_tail(&log, 0);
        Err(Error::DidNotStop {
            name: "postgres".into(),
            within: FAST_STOP,
            log,
            tail,
        })
    }

    /// Stops the server in order if it runs, then starts it again on the same port with the same settings. Also the way to
    /// start again after [`Self::kill`] or [`Self::stop`].
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; the server is stopped then.
    pub async fn restart(&mut self) -> Result<()> {
        self.stop().await?;
        self.launch().await
    }

    /// Kills the server's first process with SIGKILL, as a crash would, and waits until the other ones have noticed and
    /// ended.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub async fn kill(&mut self) -> Result<()> {
        let process = self.process.take().ok_or_else(not_running)?;
        self.paused = false;
        kill_all(process).await
    }

    /// Stops all processes of the server in their tracks (SIGSTOP): connections stay open, nothing answers. Returns when all
    /// of them stand still.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub async fn pause(&mut self) -> Result<()> {
        let process = self.process.as_mut().ok_or_else(not_running)?;
        self.paused = true;
        let first = process::process(process.pid());
        // The first process goes first, so that it starts no new ones meanwhile.
        process.signal(Signal::Stop).doing(|| "pause Postgres".into())?;
        wait_until(Duration::from_secs(2), || {
            first.as_ref().is_none_or(Process::stands_still)
        })
        .await;
        let children = process.children();
        for child in &children {
            child.signal(Signal::Stop).doing(|| "pause Postgres".into())?;
        }
        wait_until(Duration::from_secs(2), || {
            children.iter().all(Process::stands_still)
        })
        .await;
        Ok(())
    }

    /// Ends [`Self::pause`]; does nothing to a server that is not paused.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when a signal cannot be sent.
    pub fn resume(&mut self) -> Result<()> {
        if let (true, Some(process)) = (self.paused, self.process.as_mut()) {
            for child in process.children() {
                child
                    .signal(Signal::Continue)
                    .doing(|| "resume Postgres".into())?;
            }
            process
                .signal(Signal::Continue)
                .doing(|| "resume Postgres".into())?;
        }
        self.paused = false;
        Ok(())
    }

    async fn choose_port_and_launch(&mut self) -> Result<()> {
        if let Some(port) = self.options.port {
            if !tcp_is_free(port) {
                return Err(Error::PortTaken {
                    port,
                    what: "Postgres".into(),
                });
            }
            self.port = port;
            return self.launch().await;
        }
        let remembered = self.home.port();
        let last = std::fs::read_to_string(&remembered)
            .ok()
            .and_then(|text| text.trim().parse().ok());
        self.port = match last.filter(|port| *port != 0 && tcp_is_free(*port)) {
            Some(port) => port,
            None => free_port()?,
        };
        // Between the look and the server's bind another process may take the port.
        let mut tries = 3;
        loop {
            match self.launch().await {
                Err(Error::Ended { tail, .. }) if tries > 0 && tail.contains("Address already in use") => {
                    tries -= 1;
                    self.port = free_port()?;
                }
                Err(error) => return Err(error),
                Ok(()) => break,
            }
        }
        std::fs::write(&remembered, format!("{}\n", self.port))
            .doing(|| format!("write {}", remembered.display()))
    }

    /// Starts the server and waits until it is ready. After a crash of an earlier one its last processes may still hold the
    /// shared memory for a moment; then it tries again.
    async fn launch(&mut self) -> Result<()> {
        let deadline = Instant::now() + PREDECESSOR;
        loop {
            match self.launch_once().await {
                Err(Error::Ended { tail, .. })
                    if tail.contains("shared memory block") && Instant::now() < deadline =>
                {
                    tokio::time::sleep(Duration::from_millis(100)).await;
                }
                other => return other,
            }
        }
    }

    async fn launch_once(&mut self) -> Result<()> {
        let path = self.home.log();
        let log = File::options().create(true).append(true).open(&path);
        let log = log.doing(|| format!("open {}", path.display()))?;
        let log_start = log.metadata().map(|found| found.len()).unwrap_or(0);
        let errors = log.try_clone().doing(|| format!("open {}", path.display()))?;
        let mut command = self.home.command(&self.programs, "postgres");
        command.arg("-D").arg(self.home.data());
        for (name, value) in self.settings() {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        command.envs(self.options.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let at_our_death = if self.options.keep {
            Signal::Interrupt
        } else {
            Signal::Quit
        };
        let mut process = Tied::spawn(command, at_our_death)
            .await
            .doing(|| format!("start {}", self.programs.bin.display()))?;
        let deadline = Instant::now() + START;
        loop {
            if let Some(status) = process.try_wait() {
                let tail = log_tail(&path, log_start);
                return Err(Error::Ended {
                    name: "postgres".into(),
                    status,
                    log: path,
                    tail,
                });
            }
            if self.says_ready(process.pid()) && self.accepts().await {
                break;
            }
            if Instant::now() >= deadline {
                kill_all(process).await?;
                return Err(self.not_ready(START, log_start));
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tracing::debug!(port = self.port, pid = process.pid(), dir = %self.home.dir.display(), "Postgres is ready");
        self.process = Some(process);
        Ok(())
    }

    /// The eighth line of `postmaster.pid` is the state, padded with blanks; the first one the process.
    fn says_ready(&self, pid: u32) -> bool {
        let text = std::fs::read_to_string(self.home.data().join("postmaster.pid")).unwrap_or_default();
        let mut lines = text.lines();
        lines.next() == Some(&pid.to_string()) && lines.nth(6).is_some_and(|state| state.trim() == "ready")
    }

    async fn accepts(&self) -> bool {
        let connect = tokio::net::TcpStream::connect(("127.0.0.1", self.port));
        matches!(
            tokio::time::timeout(Duration::from_secs(1), connect).await,
            Ok(Ok(_))
        )
    }

    fn settings(&self) -> Vec<(String, String)> {
        let utc = self.programs.utc();
        let mut settings = vec![
            ("listen_addresses", "127.0.0.1".into()),
            ("port", self.port.to_string()),
            ("unix_socket_directories", String::new()),
            // Ten nodes with their pools, a test's own sessions, and room.
            ("max_connections", "200".into()),
            ("timezone", utc.into()),
            ("log_timezone", utc.into()),
            ("lc_messages", "C".into()),
            ("logging_collector", "off".into()),
            ("log_destination", "stderr".into()),
        ];
        if self.options.durability == Durability::FastForTests {
            settings.extend([("fsync", "off".into()), ("full_page_writes", "off".into())]);
        }
        let own = settings.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(self.options.settings.iter().cloned()).collect()
    }

    fn not_ready(&self, within: Duration, log_start: u64) -> Error {
        let log = self.home.log();
        let tail = log_tail(&log, log_start);
        Error::NotReady {
            name: "postgres".into(),
            within,
            log,
            tail,
        }
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        let _ = self.resume();
        if let Some(mut process) = self.process.take() {
            let children = process.children();
            let in_order = self.options.keep && {
                let _ = process.signal(Signal::Interrupt);
                process.wait_blocking(FAST_STOP).is_some()
            };
            if !in_order {
                let _ = process.signal(Signal::Quit);
                process.wait_blocking(IMMEDIATE_STOP);
            }
            drop(process);
            for child in children {
                let _ = child.signal(Signal::Kill);
            }
        }
        if !self.options.keep {
            self.home.remove();
        }
    }
}

fn not_running() -> Error {
    Error::NotRunning {
        name: "postgres".into(),
    }
}

/// SIGKILL to the first process; the others notice its death and end, or are killed too.
async fn kill_all(mut process: Tied) -> Result<()> {
    let first = process::process(process.pid());
    // Stopped, it can start no process that would be missed here.
    process.signal(Signal::Stop).doing(|| "kill Postgres".into())?;
    wait_until(Duration::from_secs(1), || {
        first.as_ref().is_none_or(Process::stands_still)
    })
    .await;
    let children = process.children();
    process.signal(Signal::Kill).doing(|| "kill Postgres".into())?;
    process.wait(IMMEDIATE_STOP).await;
    for child in &children {
        child.signal(Signal::Continue).doing(|| "kill Postgres".into())?;
    }
    let all_ended = || children.iter().all(|child| !child.runs());
    if !wait_until(Duration::from_secs(5), all_ended).await {
        for child in &children {
            child.signal(Signal::Kill).doing(|| "kill Postgres".into())?;
        }
        wait_until(Duration::from_secs(5), all_ended).await;
    }
    Ok(())
}

#[cfg(test)]
#[path = "postgres_tests.rs"]
mod tests;
