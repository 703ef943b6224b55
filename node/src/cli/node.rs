//! `ringmesh node`: one node, until it is drained.

use ringmesh::handler::Handlers;
use ringmesh::{Mesh, telemetry};

use super::failure::Failure;
use super::options::NodeOptions;

/// Run a node of the mesh
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    options: NodeOptions,
}

pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let config = args.options.load()?.check().map_err(Failure::usage)?;
    telemetry::log(config.log_format).map_err(Failure::usage)?;
    Mesh::builder()
        .config(config)
        .handlers(Handlers::new())
        .run()
        .await
        .map_err(Failure::failed)
}
