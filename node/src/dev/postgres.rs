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

use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::process::{self, Process, Signal, Tied, effective_uid, wait_until};
use super::programs::{Programs, output, private_folder};
use super::{Doing, Error, Result, free_port, hex, log_tail, random_hex, tcp_is_free};

/// The database's user and name.
const NAME: &str = "ringmesh";
/// From the spawn to ready; includes crash recovery.
const START: Duration = Duration::from_secs(60);
/// A fast shutdown, which writes a checkpoint.
const FAST_STOP: Duration = Duration::from_secs(30);
/// An immediate shutdown; the server itself kills what is left after 5 s.
const IMMEDIATE_STOP: Duration = Duration::from_secs(8);
/// `initdb` with its syncs, on a slow disk.
const INITIALISE: Duration = Duration::from_secs(120);
/// How long a server of an earlier process may take to end (it does so by itself on Linux).
const PREDECESSOR: Duration = Duration::from_secs(15);

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
            keep: true,
        }
    }
}

impl Options {
    /// A new folder below the system's temporary one, removed at the end; [`Durability::FastForTests`].
    pub fn for_tests() -> Self {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let name = format!("ringmesh-test-{}-{number}", std::process::id());
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
    /// wait for their WAL to be written, so that a killed server loses none.
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

/// Another user to run the server as.
#[derive(Debug, Clone, Copy)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// None: the server runs as this process's user.
    fn for_server() -> Result<Option<Self>> {
        if effective_uid() != 0 {
            return Ok(None);
        }
        let users = std::fs::read_to_string("/etc/passwd").doing(|| "read /etc/passwd".into())?;
        let find = |name: &str| {
            users.lines().find_map(|line| {
                let mut fields = line.split(':');
                let found = fields.next()? == name;
                let ids = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
                found.then_some(Self {
                    uid: ids.0,
                    gid: ids.1,
                })
            })
        };
        let account = find("postgres").or_else(|| find("nobody"));
        account.map(Some).ok_or_else(|| {
            Error::BadOption(
                "Postgres refuses to run as root, and there is no user postgres or nobody to run it as"
                    .into(),
            )
        })
    }

    /// Whether it can walk through a folder, by owner and mode.
    fn can_enter(self, folder: &Path) -> bool {
        let Ok(found) = std::fs::metadata(folder) else {
            return false;
        };
        let bit = match () {
            () if found.uid() == self.uid => 0o100,
            () if found.gid() == self.gid => 0o010,
            () => 0o001,
        };
        found.mode() & bit != 0
    }
}

/// The folder of one server, held by this process.
#[derive(Debug)]
struct Home {
    dir: PathBuf,
    account: Option<Account>,
    /// Locked until it is dropped.
    lock: File,
}

impl Home {
    fn open(wanted: PathBuf, account: Option<Account>) -> Result<Self> {
        let dir = match account {
            Some(account) => reachable(wanted, account)?,
            None => {
                std::fs::create_dir_all(&wanted).doing(|| format!("create {}", wanted.display()))?;
                wanted
            }
        };
        let mut entries = std::fs::read_dir(&dir).doing(|| format!("read {}", dir.display()))?;
        if entries.next().is_some() && !dir.join("lock").exists() {
            return Err(Error::NotOurs { dir });
        }
        let lock = lock(&dir)?;
        if account.is_some() {
            std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o711))
                .doing(|| format!("change the mode of {}", dir.display()))?;
        }
        Ok(Self { dir, account, lock })
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn password(&self) -> PathBuf {
        self.dir.join("password")
    }

    fn port(&self) -> PathBuf {
        self.dir.join("port")
    }

    fn log(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    /// The major version that made the data folder; None: there is none yet.
    fn made_by(&self) -> Result<Option<u32>> {
        let path = self.data().join("PG_VERSION");
        match std::fs::read_to_string(&path) {
            Ok(text) => text.trim().parse().map(Some).map_err(|_| Error::NotOurs {
                dir: self.dir.clone(),
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error).doing(|| format!("read {}", path.display())),
        }
    }

    /// A command for the server's user, in a folder that this user can enter.
    fn command(&self, programs: &Programs, program: &str) -> Command {
        let mut command = Command::new(programs.path(program));
        command.current_dir(&self.dir).envs(programs.environment());
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        command
    }

    /// Gives a path to the server's user.
    fn hand_over(&self, path: &Path) -> Result<()> {
        let Some(Account { uid, gid }) = self.account else {
            return Ok(());
        };
        std::os::unix::fs::chown(path, Some(uid), Some(gid))
            .doing(|| format!("change the owner of {}", path.display()))
    }

    /// Waits for the end of a server that an earlier process left in this folder, and clears away a pid file that names
    /// somebody else's process. Never ends a server itself: this process did not start it.
    async fn await_predecessor(&self) -> Result<()> {
        let path = self.data().join("postmaster.pid");
        let Ok(text) = std::fs::read_to_string(&path) else {
            return Ok(());
        };
        let Some(pid) = text
            .lines()
            .next()
            .and_then(|line| line.trim().parse::<u32>().ok())
        else {
            return Ok(());
        };
        if !process::exists(pid) {
            // Postgres itself knows how to start over a stale file.
            return Ok(());
        }
        let folder_of = |pid| std::fs::read_link(format!("/proc/{pid}/cwd"));
        if let (Ok(theirs), Ok(ours)) = (folder_of(pid), self.data().canonicalize())
            && theirs != ours
        {
            // The pid belongs to another process by now. The file goes, because Postgres would take that one for a server.
            return std::fs::remove_file(&path).doing(|| format!("remove {}", path.display()));
        }
        if wait_until(PREDECESSOR, || !process::exists(pid)).await {
            return Ok(());
        }
        let by = format!(
            "a Postgres server, process {pid}, that this command did not start; to stop it: kill -INT {pid}"
        );
        Err(Error::InUse {
            dir: self.dir.clone(),
            by,
        })
    }

    /// Makes the data folder under another name and renames it at the end: an interrupted one is never taken for whole.
    async fn initialise(&self, programs: &Programs, synced: bool) -> Result<()> {
        let password = self.password();
        write_secret(&password, &random_hex::<24>()?)?;
        self.hand_over(&password)?;
        let unfinished = self.dir.join("data.unfinished");
        let mut failure = None;
        for locale in ["C.UTF-8", "C"] {
            remove_dir_all(&unfinished)?;
            std::fs::create_dir(&unfinished).doing(|| format!("create {}", unfinished.display()))?;
            std::fs::set_permissions(&unfinished, PermissionsExt::from_mode(0o700))
                .doing(|| format!("change the mode of {}", unfinished.display()))?;
            self.hand_over(&unfinished)?;
            let mut initdb = self.command(programs, "initdb");
            initdb
                .arg("-D")
                .arg(&unfinished)
                .args(["-U", NAME, "-E", "UTF8", "-A", "scram-sha-256"]);
            initdb
                .arg(format!("--locale={locale}"))
                .arg("--pwfile")
                .arg(&password);
            if !synced {
                initdb.arg("--no-sync");
            }
            match output(initdb.into(), INITIALISE).await {
                Ok(_) => {
                    self.create_database(programs, &unfinished).await?;
                    let data = self.data();
                    return std::fs::rename(&unfinished, &data)
                        .doing(|| format!("create {}", data.display()));
                }
                // Some systems have no C.UTF-8.
                Err(output) => failure = failure.or(Some(output)),
            }
        }
        remove_dir_all(&unfinished)?;
        Err(Error::Program {
            program: "initdb".into(),
            output: failure.unwrap_or_default(),
        })
    }

    async fn create_database(&self, programs: &Programs, data: &Path) -> Result<()> {
        let mut single = tokio::process::Command::from(self.command(programs, "postgres"));
        single.args(["--single", "-D"]).arg(data).args([
            "-c",
            "exit_on_error=on",
            "-c",
            "log_min_messages=error",
        ]);
        single
            .arg("postgres")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        single.process_group(0).kill_on_drop(true);
        let failed = |output: String| Error::Program {
            program: "postgres --single".into(),
            output,
        };
        let run = async {
            let mut child = single.spawn()?;
            if let Some(mut stdin) = child.stdin.take() {
                stdin
                    .write_all(format!("CREATE DATABASE {NAME}\n").as_bytes())
                    .await?;
            }
            child.wait_with_output().await
        };
        let output = match tokio::time::timeout(INITIALISE, run).await {
            Ok(output) => output.doing(|| "run postgres --single".into())?,
            Err(_) => return Err(failed(format!("took longer than {INITIALISE:?}"))),
        };
        let said = String::from_utf8_lossy(&output.stderr);
        if output.status.success() && !said.contains("ERROR:") && !said.contains("FATAL:") {
            return Ok(());
        }
        Err(failed(format!("{}: {}", output.status, said.trim())))
    }

    /// Copies the data folder from a template that the first test on this machine makes, for each build of Postgres.
    async fn copy_template(&self, programs: &Programs) -> Result<()> {
        let build = format!(
            "1 {} {} {:?}",
            programs.version,
            programs.bin.display(),
            self.account
        );
        let key = &hex(&Sha256::digest(build))[..12];
        let folder = std::env::temp_dir().join(format!("ringmesh-{}-template-{key}", effective_uid()));
        private_folder(&folder)?;
        // One process makes it, the others wait for that.
        let deadline = Instant::now() + INITIALISE;
        let template = loop {
            match lock(&folder) {
                Ok(lock) => {
                    break Self {
                        dir: folder,
                        account: self.account,
                        lock,
                    };
                }
                Err(Error::InUse { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
                Err(error) => return Err(error),
            }
        };
        if template.made_by()?.is_none() {
            template.initialise(programs, false).await?;
        }
        let unfinished = self.dir.join("data.unfinished");
        remove_dir_all(&unfinished)?;
        for (from, to) in [
            (template.password(), self.password()),
            (template.data(), unfinished.clone()),
        ] {
            let mut copy = tokio::process::Command::new("cp");
            copy.arg("-a").arg(from).arg(to);
            let copied = output(copy, INITIALISE).await;
            copied.map_err(|output| Error::Program {
                program: "cp".into(),
                output,
            })?;
        }
        let data = self.data();
        std::fs::rename(&unfinished, &data).doing(|| format!("create {}", data.display()))
    }

    /// Removes what a start has made, and the folder if nothing else is in it.
    fn remove(&self) {
        for folder in [self.data(), self.dir.join("data.unfinished")] {
            let _ = std::fs::remove_dir_all(folder);
        }
        for file in [self.password(), self.port(), self.log(), self.dir.join("lock")] {
            let _ = std::fs::remove_file(file);
        }
        let _ = std::fs::remove_dir(&self.dir);
        let _ = self.lock.unlock();
    }
}

/// Takes the folder's lock file for this process.
///
/// # Errors
///
/// [`Error::InUse`] when another process, or another value in this one, has it.
pub(super) fn lock(dir: &Path) -> Result<File> {
    let path = dir.join("lock");
    let file = File::options().read(true).append(true).create(true).open(&path);
    let mut file = file.doing(|| format!("open {}", path.display()))?;
    match file.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => {
            let holder = std::fs::read_to_string(&path).unwrap_or_default();
            let by = format!("process {}", holder.trim());
            return Err(Error::InUse {
                dir: dir.to_owned(),
                by,
            });
        }
        Err(TryLockError::Error(error)) => return Err(error).doing(|| format!("lock {}", path.display())),
    }
    let written = file
        .set_len(0)
        .and_then(|()| writeln!(file, "{}", std::process::id()));
    written.doing(|| format!("write {}", path.display()))?;
    Ok(file)
}

/// Makes `wanted` if the server's user could reach it, else a folder in `/var/tmp` whose name follows from it, so that the next
/// start finds the same data.
fn reachable(wanted: PathBuf, account: Account) -> Result<PathBuf> {
    let existing = wanted
        .ancestors()
        .skip(1)
        .find(|folder| folder.exists())
        .unwrap_or(Path::new("/"));
    let existing = existing
        .canonicalize()
        .doing(|| format!("read {}", existing.display()))?;
    if existing.ancestors().all(|folder| account.can_enter(folder)) {
        let missing: Vec<&Path> = wanted.ancestors().take_while(|folder| !folder.exists()).collect();
        for folder in missing.into_iter().rev() {
            std::fs::create_dir(folder).doing(|| format!("create {}", folder.display()))?;
            std::fs::set_permissions(folder, PermissionsExt::from_mode(0o711))
                .doing(|| format!("change the mode of {}", folder.display()))?;
        }
        return Ok(wanted);
    }
    let base = private_folder(&Path::new("/var/tmp").join(format!("ringmesh-{}", effective_uid())))?;
    let name = &hex(&Sha256::digest(wanted.as_os_str().as_encoded_bytes()))[..12];
    let used = private_folder(&base.join(format!("postgres-{name}")))?;
    tracing::warn!(wanted = %wanted.display(), used = %used.display(), "the server's user cannot reach the folder");
    Ok(used)
}

fn remove_dir_all(path: &Path) -> Result<()> {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).doing(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn write_secret(path: &Path, secret: &str) -> Result<()> {
    let _ = std::fs::remove_file(path);
    let file = File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let written = file.and_then(|mut file| writeln!(file, "{secret}"));
    written.doing(|| format!("write {}", path.display()))
}

#[cfg(test)]
#[path = "postgres_tests.rs"]
mod tests;
