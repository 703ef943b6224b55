//! `ringmesh node`: one node, until it is drained.

use ringmesh::handler::Handlers;
use ringmesh::{Mesh, demo, telemetry};

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
    let mut handlers = Handlers::new();
    if std::env::var_os(demo::ENV).is_some_and(|value| value == "1") {
        handlers = demo::handlers(handlers, &config.name);
    }
    Mesh::builder()
        .config(config)
        .handlers(handlers)
        .run()
        .await
        .map_err(Failure::failed)
}
