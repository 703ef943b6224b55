//! A node of a lab: `ringmesh node` with the kinds of [`handlers`](mod@super::handlers), and notes of what it does.

use anyhow::Context as _;
use ringmesh::{Mesh, config, telemetry};
use tracing_subscriber::filter::{EnvFilter, LevelFilter, Targets};
use tracing_subscriber::layer::{Layer as _, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;

use super::{handlers, note, points};

/// Runs a node, told by its environment, until it is drained.
///
/// # Errors
/// The node did not start, or ended by an error.
pub async fn run() -> anyhow::Result<()> {
    let config = config::load(None, std::env::vars_os(), &[])?.check()?;
    note::open(&config.name).context("cannot open the file for events")?;
    points::set_up();
    let filter = std::env::var("RINGMESH_LOG").unwrap_or_else(|_| telemetry::DEFAULT_FILTER.to_owned());
    let lines = tracing_subscriber::fmt::layer()
        .with_ansi(false)
        .with_writer(std::io::stderr)
        .with_filter(EnvFilter::try_new(filter)?);
    // Renewals are logged at the lowest level.
    let noted = Targets::new()
        .with_target("ringmesh::lease", LevelFilter::TRACE)
        .with_target("ringmesh", LevelFilter::INFO);
    tracing_subscriber::registry()
        .with(lines)
        .with(note::FromLog.with_filter(noted))
        .try_init()?;
    Ok(handlers(Mesh::builder().config(config)).run().await?)
}
