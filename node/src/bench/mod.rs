//! `ringmesh bench`: how fast this build is on this machine, and how fast the bare statements are.
//!
//! | file | does |
//! |---|---|
//! | `lab` | the server, a database and node processes for each measurement |
//! | `client` | an HTTP client that costs little beside what it measures |
//! | `load` | closed and open loops of submits |
//! | `submit`, `drain`, `start`, `kill`, `floor` | one measurement each |
//! | `report` | the table and the JSON |
//!
//! Each measurement has a database and a mesh of its own, so that none depends on what ran before it. The server, the
//! nodes and this process share the machine. Times of tasks are the database's: what the archive says.

use std::path::PathBuf;
use std::time::Duration;

use clap::ValueEnum;

mod client;
mod drain;
mod floor;
mod kill;
mod lab;
mod load;
mod report;
mod start;
mod submit;

use kill::Way;
use lab::Lab;
use report::Report;

/// Arguments of `ringmesh bench`.
#[derive(Debug, Clone, clap::Args)]
pub struct BenchArgs {
    /// Tasks in the backlog that is drained
    #[arg(long, default_value_t = 200_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub tasks: u32,

    /// Keys of the backlog
    #[arg(long, default_value_t = 20_000, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub keys: u32,

    /// HTTP connections that submit one task at a time
    #[arg(long, default_value_t = 64, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=2000))]
    pub connections: u16,

    /// How long submits are measured; starts twice as long
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=600))]
    pub seconds: u16,

    /// Nodes of the mesh that drains, starts and fails over
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(2..=50))]
    pub nodes: u16,

    /// How many times a node is killed, and drained
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub kills: u16,

    /// Measure only this; may be given several times
    #[arg(long, value_name = "WHAT", value_enum)]
    pub only: Vec<Measurement>,

    /// Write the figures to this file
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Measure this Postgres server instead of starting one; the user must be allowed to create databases
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,

    /// Folder for the server and the logs of the nodes
    #[arg(long, default_value = ".ringmesh/bench", value_name = "DIR")]
    pub data: PathBuf,
}

/// What can be measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Measurement {
    /// Submits over HTTP, single and in batches
    Submit,
    /// A backlog, by one node and by all
    Drain,
    /// From submit to start, at a light load
    Start,
    /// How long keys stand still when their node is killed
    Kill,
    /// How long keys stand still when their node is drained
    Leave,
    /// The same statements in a bare loop
    Floor,
}

/// Why a benchmark ended without its figures.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server or a node could not be started or stopped.
    #[error(transparent)]
    Dev(#[from] crate::dev::Error),
    /// Postgres did not do what was asked of it.
    #[error("cannot {doing}")]
    Store {
        /// What was tried.
        doing: &'static str,
        /// Why not.
        source: crate::store::Error,
    },
    /// The schema is not usable.
    #[error("cannot create the schema")]
    Migrate(#[from] crate::store::MigrateError),
    /// The operating system refused something.
    #[error("cannot {doing}")]
    Io {
        /// What was tried.
        doing: String,
        /// Why not.
        source: std::io::Error,
    },
    /// A node answered something else than it should.
    #[error("{node} answered {status} to a submit: {body}")]
    Answer {
        /// Its address.
        node: String,
        /// The HTTP status.
        status: u16,
        /// The body.
        body: String,
    },
    /// Something took too long.
    #[error("{what} within {within:?}")]
    TooLong {
        /// What did not happen.
        what: String,
        /// The time that was given.
        within: Duration,
    },
    /// What was found is not what was put in.
    #[error("{what}: expected {expected}, found {found}")]
    Miscount {
        /// What was counted.
        what: &'static str,
        /// How many there should be.
        expected: usize,
        /// How many there are.
        found: usize,
    },
    /// An option has a value that cannot work. Nothing was measured.
    #[error("{0}")]
    BadOption(String),
    /// Ctrl-C or SIGTERM.
    #[error("interrupted")]
    Interrupted,
}

type Result<T, E = Error> = std::result::Result<T, E>;

/// Names what was asked of Postgres when it does not do it.
trait Doing<T> {
    fn doing(self, what: &'static str) -> Result<T>;
}

impl<T> Doing<T> for Result<T, crate::store::Error> {
    fn doing(self, what: &'static str) -> Result<T> {
        self.map_err(|source| Error::Store { doing: what, source })
    }
}

/// Measures, prints a table, and writes the figures if a file is named.
///
/// # Errors
///
/// When any measurement fails; no figures are written then. Nothing runs after a return.
pub async fn run(args: BenchArgs) -> Result<()> {
    let wanted = |what| args.only.is_empty() || args.only.contains(&what);
    let mut lab = Lab::open(&args).await?;
    let mut report = Report::new(lab.facts(), &args);
    let measured = async {
        if wanted(Measurement::Submit) {
            report.submit = Some(submit::measure(&lab, &args).await?);
        }
        if wanted(Measurement::Drain) {
            report.drain_1 = Some(drain::measure(&lab, &args, 1).await?);
            report.drain_n = Some(drain::measure(&lab, &args, args.nodes.into()).await?);
        }
        if wanted(Measurement::Floor) {
            report.floor = Some(floor::measure(&lab, &args).await?);
        }
        if wanted(Measurement::Start) {
            report.start = Some(start::measure(&lab, &args).await?);
        }
        if wanted(Measurement::Kill) {
            report.kill = Some(kill::measure(&lab, &args, Way::Kill).await?);
        }
        if wanted(Measurement::Leave) {
            report.leave = Some(kill::measure(&lab, &args, Way::Drain).await?);
        }
        Ok(())
    }
    .await;
    let closed = lab.close().await;
    measured.and(closed)?;
    report.print().map_err(|source| Error::Io {
        doing: "write to stdout".into(),
        source,
    })?;
    if let Some(file) = &args.json {
        report.write(file).map_err(|source| Error::Io {
            doing: format!("write {}", file.display()),
            source,
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
