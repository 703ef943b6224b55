//! `ringmesh-faults`: runs the scenarios. It is also the program of its own nodes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringmesh::{Mesh, config, telemetry};

/// Tries to make Ringmesh lie
#[derive(Debug, Parser)]
#[command(name = "ringmesh-faults", version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A node of a lab, told by its environment as `ringmesh node` is
    #[command(hide = true)]
    Node,
}

#[tokio::main]
async fn main() -> ExitCode {
    let done = match Arguments::parse().command {
        Command::Node => node().await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}

async fn node() -> anyhow::Result<()> {
    let config = config::load(None, std::env::vars_os(), &[])?.check()?;
    telemetry::log(config.log_format)?;
    Ok(Mesh::builder().config(config).run().await?)
}
