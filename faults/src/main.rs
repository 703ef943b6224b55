//! `ringmesh-faults`: runs the scenarios. It is also the program of its own nodes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringmesh_faults::workload;

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
        Command::Node => workload::node::run().await,
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::FAILURE
        }
    }
}
