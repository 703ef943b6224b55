//! `ringmesh-faults`: runs the scenarios. It is also the program of its own nodes.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use ringmesh_faults::{matrix, mutants, run, workload};

/// Tries to make Ringmesh lie
#[derive(Debug, Parser)]
#[command(name = "ringmesh-faults", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Args,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// A node of a lab, told by its environment as `ringmesh node` is
    #[command(hide = true)]
    Node,
    /// Let every fail point of a mesh act in every way, once, and check the whole history
    Matrix(matrix::Args),
    /// Break a copy of the product in one place at a time and see whether a test fails
    Mutants(mutants::Args),
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let done = match arguments.command {
        Some(Command::Node) => workload::node::run().await.map(|()| true),
        Some(Command::Matrix(arguments)) => matrix::command(arguments).await,
        Some(Command::Mutants(arguments)) => mutants::command(arguments).await,
        None => run::command(arguments.run).await,
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("{error:#}");
            ExitCode::from(2)
        }
    }
}
