//! The command line: one file per command.
//!
//! Data goes to standard output and everything else to standard error. Exit codes: see [`failure::code`].

mod cancel;
mod client;
mod config;
mod drain;
mod duration;
mod failure;
mod get;
mod health;
mod key;
mod mesh;
mod migrate;
mod node;
mod options;
mod output;
mod slots;
mod submit;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::Failure;

const AFTER_HELP: &str = "Exit codes: 0 done; 1 failed; 2 wrong use or configuration; 3 refused by the node, or not found; \
                          4 the node cannot be reached or cannot serve now. With --json errors are JSON too, on standard \
                          error.";

/// Keyed background work on a mesh of nodes over Postgres
#[derive(Debug, Parser)]
#[command(name = "ringmesh", version, after_help = AFTER_HELP, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node of the mesh
    Node(node::Args),
    /// Start a Postgres and a mesh on this machine, until Ctrl-C
    Dev(ringmesh::dev::DevArgs),
    /// Run a month of flights through a mesh that loses a node, and prove that nothing was lost
    Demo(ringmesh::demo::DemoArgs),
    /// Measure submits, drains, starts and failovers on this machine
    Bench(ringmesh::bench::BenchArgs),
    /// Submit a task, or a file of them
    Submit(submit::Args),
    /// Show a task
    Get(get::Args),
    /// Cancel a task
    Cancel(cancel::Args),
    /// Show the mesh: its nodes and how many slots each owns
    Mesh(mesh::Args),
    /// Show the owner and the epoch of each slot
    Slots(slots::Args),
    /// Show where a key is and what waits for it
    Key(key::Args),
    /// Let a node hand all its slots on and stop
    Drain(drain::Args),
    /// Bring the database's schema up to date
    Migrate(migrate::Args),
    /// Show the configuration in effect, and where each value comes from
    Config(config::Args),
    /// Succeed when a node is ready: it holds all slots that the ring gives it
    Health(health::Args),
}

/// Runs the command that the process was started with.
pub(crate) fn main() -> ExitCode {
    // Looked for in the arguments themselves, since wrong use is to be told in JSON too.
    let arguments = std::env::args_os()
        .skip(1)
        .take_while(|argument| argument != "--");
    let json = arguments.into_iter().any(|argument| argument == "--json");
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(wrong) if json && wrong.use_stderr() => {
            let text = wrong.to_string();
            let text = text.strip_prefix("error: ").unwrap_or(&text).trim_end();
            return Failure::usage(anyhow::anyhow!("{text}")).report(json);
        }
        Err(wrong) => wrong.exit(),
    };
    match run(cli.command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(json),
    }
}

fn run(command: Command) -> Result<(), Failure> {
    ringmesh::config::check_names(std::env::vars_os()).map_err(Failure::usage)?;
    if let Command::Config(args) = command {
        return config::run(args);
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(Failure::failed)?;
    runtime.block_on(async {
        match command {
            Command::Node(args) => node::run(args).await,
            Command::Dev(args) => ringmesh::dev::run(args).await.map_err(Failure::failed),
            Command::Demo(args) => match ringmesh::demo::run(args).await {
                Ok(true) => Ok(()),
                Ok(false) => Err(Failure::failed(anyhow::anyhow!(
                    "not all promises held; see the report"
                ))),
                Err(error @ ringmesh::demo::Error::Input(_)) => Err(Failure::usage(error)),
                Err(error) => Err(Failure::failed(error)),
            },
            Command::Bench(args) => ringmesh::bench::run(args).await.map_err(Failure::failed),
            Command::Submit(args) => submit::run(args).await,
            Command::Get(args) => get::run(args).await,
            Command::Cancel(args) => cancel::run(args).await,
            Command::Mesh(args) => mesh::run(args).await,
            Command::Slots(args) => slots::run(args).await,
            Command::Key(args) => key::run(args).await,
            Command::Drain(args) => drain::run(args).await,
            Command::Migrate(args) => migrate::run(args).await,
            Command::Health(args) => health::run(args).await,
            Command::Config(args) => config::run(args),
        }
    })
}

#[cfg(test)]
mod tests;
