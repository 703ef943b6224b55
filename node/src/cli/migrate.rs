//! `ringmesh migrate`: brings the database's schema up to date. A node does the same when it starts.

use ringmesh::store::Store;

use super::failure::Failure;
use super::options::NodeOptions;
use super::output;

/// The options of a node, of which only the database matters.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    options: NodeOptions,
}

/// Applies what is missing. Running it again does nothing.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = args.options.load()?.check().map_err(Failure::usage)?;
    ringmesh::telemetry::log(config.log_format).map_err(Failure::usage)?;
    let store = Store::new(&config.store()).map_err(Failure::usage)?;
    let applied = store.migrate().await.map_err(Failure::failed)?;
    match (args.json, applied) {
        (true, applied) => output::json(&serde_json::json!({ "applied": applied })),
        (false, 0) => output::text("the schema is up to date"),
        (false, applied) => output::text(format!("{applied} migrations applied")),
    }
}
