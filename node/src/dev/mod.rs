//! A Postgres and a mesh of nodes on this machine, for development, demos, benchmarks and tests.
//!
//! | file | does |
//! |---|---|
//! | [`postgres`] | a Postgres server of its own, under a data folder |
//! | [`mesh`] | some node processes that form a mesh, with their logs |
//! | [`command`] | `ringmesh dev`: both of them until Ctrl-C |
//! | `keep` | starts again what ended while `ringmesh dev` runs |
//! | `home` | the server's folder: who holds it, how it is made |
//! | `programs` | finds the Postgres programs, or fetches them |
//! | [`process`] | children that end with this process, and signals |
//!
//! Everything listens on 127.0.0.1 only. What is started here ends with this process, even when it is killed
//! (on Linux; elsewhere a SIGKILL of this process leaves its children running).

use std::collections::HashSet;
use std::io::{Read, Seek, SeekFrom};
use std::net::{Ipv4Addr, TcpListener, UdpSocket};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

pub mod command;
mod home;
mod keep;
pub mod mesh;
pub mod postgres;
pub mod process;
mod programs;

pub use command::{DevArgs, run};
pub use mesh::Mesh;
pub use postgres::Postgres;

/// Why a local Postgres or a local mesh could not be started, changed or stopped.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No Postgres programs on this machine, and none could be fetched. Nothing was changed.
    #[error(
        "found no Postgres programs (initdb and postgres), and could not fetch any.\n\
         Install a Postgres server (Debian and Ubuntu: apt install postgresql; Fedora: dnf install postgresql-server; \
         macOS: brew install postgresql), or set RINGMESH_PG_BIN to the folder that holds its programs, \
         or use a server that you have already (--database-url).\nTried:\n{tried}"
    )]
    NoPostgres {
        /// One line for each place or way that was tried.
        tried: String,
    },
    /// The data folder belongs to another major version of Postgres than the programs found. Nothing was changed.
    #[error(
        "{} was made by Postgres {made_by}, but only these were found: {found}. Set RINGMESH_PG_BIN to the programs of \
         Postgres {made_by}, or choose another data folder", dir.display()
    )]
    OtherVersion {
        /// The folder given to the start.
        dir: PathBuf,
        /// The major version that made it.
        made_by: u32,
        /// The programs found, with their versions.
        found: String,
    },
    /// Another process uses the folder. Nothing was changed.
    #[error("{} is in use by {by}", dir.display())]
    InUse {
        /// The folder.
        dir: PathBuf,
        /// Who uses it, and what to do.
        by: String,
    },
    /// The folder holds files that are not of a local Postgres. Nothing was changed.
    #[error("{} is neither empty nor a folder of a local Postgres; choose another one", dir.display())]
    NotOurs {
        /// The folder.
        dir: PathBuf,
    },
    /// A port is taken by somebody else. Nothing was started.
    #[error(
        "port {port} on 127.0.0.1 ({what}) is in use by another process; choose another one or stop that process"
    )]
    PortTaken {
        /// The port.
        port: u16,
        /// What wanted it.
        what: String,
    },
    /// An option has a value that cannot work. Nothing was started.
    #[error("{0}")]
    BadOption(String),
    /// A program ended although it should go on. Its log is kept.
    #[error("{name} ended early ({status}); the end of its log, {}:\n{tail}", log.display())]
    Ended {
        /// `postgres`, or the node's name.
        name: String,
        /// Its exit status.
        status: std::process::ExitStatus,
        /// The log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A program runs but was not ready in time.
    #[error("{name} was not ready within {within:?}; the end of its log, {}:\n{tail}", log.display())]
    NotReady {
        /// `postgres`, or the node's name.
        name: String,
        /// The time that was given.
        within: Duration,
        /// The log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// A program did not end when it was asked to, and was killed.
    #[error("{name} did not end within {within:?} and was killed; the end of its log, {}:\n{tail}", log.display())]
    DidNotStop {
        /// `postgres`, or the node's name.
        name: String,
        /// The time that was given.
        within: Duration,
        /// The log file.
        log: PathBuf,
        /// The last lines of the log.
        tail: String,
    },
    /// Postgres ended again and again right after its start, and is not started any more.
    #[error("Postgres ended {times} times in a row within {within:?} of its start")]
    KeepsEnding {
        /// How often.
        times: u32,
        /// The time from a start in which an end counts.
        within: Duration,
        /// How it ended the last time.
        source: Box<Error>,
    },
    /// A program that prepares something failed, or took too long.
    #[error("{program} failed: {output}")]
    Program {
        /// The program.
        program: String,
        /// What it said.
        output: String,
    },
    /// The call needs a running process, and there is none. Nothing was changed.
    #[error("{name} does not run")]
    NotRunning {
        /// `postgres`, or the node's name.
        name: String,
    },
    /// The operating system refused something.
    #[error("cannot {doing}")]
    Io {
        /// What was tried.
        doing: String,
        /// The reason.
        source: std::io::Error,
    },
}

/// Shorthand of this module.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Names what was tried when the operating system says no.
trait Doing<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> Doing<T> for std::io::Result<T> {
    fn doing(self, what: impl FnOnce() -> String) -> Result<T> {
        self.map_err(|source| Error::Io {
            doing: what(),
            source,
        })
    }
}

/// A port that is free for TCP and UDP on 127.0.0.1 and that this process has not given out before.
///
/// It lies below the range from which systems take the ports of outgoing connections, so that it is still free when a
/// server that was stopped wants it again.
fn free_port() -> Result<u16> {
    static GIVEN: Mutex<Option<HashSet<u16>>> = Mutex::new(None);
    const FIRST: u16 = 20_000;
    const COUNT: u16 = 12_000;
    for _ in 0..1000 {
        let mut bytes = [0; 2];
        fill_random(&mut bytes)?;
        let port = FIRST + u16::from_le_bytes(bytes) % COUNT;
        let mut given = GIVEN.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let given = given.get_or_insert_default();
        if !given.contains(&port) && tcp_is_free(port) && udp_is_free(port) {
            given.insert(port);
            return Ok(port);
        }
    }
    Err(Error::BadOption(format!(
        "found no free port from {FIRST} to {}",
        FIRST + COUNT - 1
    )))
}

fn tcp_is_free(port: u16) -> bool {
    TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn udp_is_free(port: u16) -> bool {
    UdpSocket::bind((Ipv4Addr::LOCALHOST, port)).is_ok()
}

fn fill_random(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(std::io::Error::other)
        .doing(|| "read random bytes".into())
}

/// A secret of `N` random bytes, in hexadecimal.
fn random_hex<const N: usize>() -> Result<String> {
    let mut bytes = [0; N];
    fill_random(&mut bytes)?;
    Ok(hex(&bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The last lines of a log file from `start` (in bytes) on, or a word that there are none.
fn log_tail(path: &Path, start: u64) -> String {
    const BYTES: u64 = 16 * 1024;
    const LINES: usize = 25;
    let read = || -> std::io::Result<String> {
        let mut file = std::fs::File::open(path)?;
        let end = file.metadata()?.len();
        file.seek(SeekFrom::Start(start.max(end.saturating_sub(BYTES))))?;
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes)?;
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = read().unwrap_or_default();
    let lines: Vec<&str> = text.lines().collect();
    match lines.len() {
        0 => "(it is empty)".into(),
        n => lines[n.saturating_sub(LINES)..].join("\n"),
    }
}
