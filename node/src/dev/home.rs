//! The folder of a local Postgres: who holds it, whom it belongs to, and how its data folder is made.

use std::fs::{File, TryLockError};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use tokio::io::AsyncWriteExt;

use super::process::{self, effective_uid, wait_until};
use super::programs::{Programs, output, private_folder};
use super::{Doing, Error, Result, hex, random_hex};

/// The database's user and name.
pub(super) const NAME: &str = "ringmesh";
/// The names of test folders: this, the process's id, a dash and a number.
pub(super) const TEST_FOLDER: &str = "ringmesh-test-";
/// `initdb` with its syncs, on a slow disk.
const INITIALISE: Duration = Duration::from_secs(120);
/// How long a server of an earlier process may take to end (it does so by itself on Linux).
pub(super) const PREDECESSOR: Duration = Duration::from_secs(15);

/// Another user to run the server as.
#[derive(Debug, Clone, Copy)]
pub(super) struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    /// None: the server runs as this process's user.
    pub(super) fn for_server() -> Result<Option<Self>> {
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
pub(super) struct Home {
    pub(super) dir: PathBuf,
    account: Option<Account>,
    /// Locked until it is dropped.
    pub(super) lock: File,
}

impl Home {
    pub(super) fn open(wanted: PathBuf, account: Option<Account>) -> Result<Self> {
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

    pub(super) fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    pub(super) fn password(&self) -> PathBuf {
        self.dir.join("password")
    }

    pub(super) fn port(&self) -> PathBuf {
        self.dir.join("port")
    }

    pub(super) fn log(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    /// The major version that made the data folder; None: there is none yet.
    pub(super) fn made_by(&self) -> Result<Option<u32>> {
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
    pub(super) fn command(&self, programs: &Programs, program: &str) -> Command {
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
    /// another process or a zombie, which Postgres would take for a server. Never ends a server itself: this process did not
    /// start it.
    pub(super) async fn await_predecessor(&self) -> Result<()> {
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
            // Postgres itself knows how to start over such a file.
            return Ok(());
        }
        let theirs = std::fs::read_link(format!("/proc/{pid}/cwd"));
        let elsewhere = match (theirs, self.data().canonicalize()) {
            (Ok(theirs), Ok(ours)) => theirs != ours,
            // A server of this folder would run as this user.
            (Err(error), _) => error.kind() == std::io::ErrorKind::PermissionDenied,
            (Ok(_), Err(_)) => false,
        };
        let runs = || process::process(pid).is_some_and(|process| process.runs());
        if !elsewhere && !wait_until(PREDECESSOR, || !runs()).await {
            let by = format!(
                "a Postgres server, process {pid}, that this command did not start; to stop it: kill -INT {pid}"
            );
            return Err(Error::InUse {
                dir: self.dir.clone(),
                by,
            });
        }
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                Err(error).doing(|| format!("remove {}", path.display()))
            }
            _ => Ok(()),
        }
    }

    /// Makes the data folder under another name and renames it at the end: an interrupted one is never taken for whole.
    pub(super) async fn initialise(&self, programs: &Programs, synced: bool) -> Result<()> {
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
            initdb.arg("-D").arg(&unfinished).args(["-U", NAME, "-E", "UTF8"]);
            // SCRAM costs an unoptimised client so much that many connections at once hold each other up for seconds.
            initdb.args(["-A", if synced { "scram-sha-256" } else { "password" }]);
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
    pub(super) async fn copy_template(&self, programs: &Programs) -> Result<()> {
        sweep_test_folders();
        let build = format!(
            "2 {} {} {:?}",
            programs.version,
            programs.bin.display(),
            self.account
        );
        let key = &hex(&Sha256::digest(build))[..12];
        let folder = std::env::temp_dir().join(format!("ringmesh-{}-template-{key}", effective_uid()));
        private_folder(&folder)?;
        self.make_template(programs, &folder).await?;
        let unfinished = self.dir.join("data.unfinished");
        remove_dir_all(&unfinished)?;
        for (from, to) in [
            (folder.join("password"), self.password()),
            (folder.join("data"), unfinished.clone()),
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

    /// One process makes it, the others wait for that. It never changes once it is there, so copies need no lock: behind one
    /// another they would take minutes on a busy machine.
    async fn make_template(&self, programs: &Programs, folder: &Path) -> Result<()> {
        let deadline = Instant::now() + INITIALISE * 2;
        while !folder.join("data").exists() {
            let lock = match lock(folder) {
                Ok(lock) => lock,
                Err(Error::InUse { .. }) if Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            let template = Self {
                dir: folder.to_owned(),
                account: self.account,
                lock,
            };
            if template.made_by()?.is_none() {
                template.initialise(programs, false).await?;
            }
        }
        Ok(())
    }

    /// Removes what a start has made, and the folder if nothing else is in it.
    pub(super) fn remove(&self) {
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

/// Removes the folders of test processes that ended without dropping their servers, as one does that is killed or keeps a
/// server in a static.
fn sweep_test_folders() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let owner = name
            .to_str()
            .and_then(|name| name.strip_prefix(TEST_FOLDER)?.split_once('-')?.0.parse().ok());
        let is_own = entry
            .metadata()
            .is_ok_and(|found| found.is_dir() && found.uid() == effective_uid());
        if is_own && owner.is_some_and(|pid| !process::exists(pid)) {
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
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
