//! The matrix of fail points: every point with every action, each seen to have acted once, on one mesh under load.
//!
//! | file | has |
//! |---|---|
//! | [`plan`](mod@plan) | the cells, what makes a node pass each point, and what cannot be |
//! | `stage` | the mesh at work, and what is waited for |
//! | `cell` | one cell: arm, provoke, see it act, make the mesh whole |
//! | `fresh` | the cells of a node that starts on an empty database |
//! | [`report`] | what is shown |
//!
//! A cell is over when its point has acted, whoever was to end has ended and runs again, all nodes are ready, every slot has a living
//! owner, no other node began a new life, and every task that was there has ended. In the end all checkers judge the history of
//! the whole run. I7 says nothing here: cells follow each other without a pause, and what a cell may take is bounded by its waits.

mod cell;
mod fresh;
pub mod plan;
pub mod report;
mod stage;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use plan::{Cell, plan};
use report::{Done, Report};
use stage::Stage;

use crate::check::{self, Requirements};
use crate::run::report::Progress;
use crate::run::runner::{checked_all, keep_history};

/// What is asked for on the command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show all cells and what makes nodes pass their points
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// Decides the order of the cells, which nodes they hit, and all else that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Only this point, or this cell (`fence/crash`); may be given again
    #[arg(long, value_name = "CELL")]
    only: Vec<String>,
    /// Tasks a second
    #[arg(long, default_value_t = 90.0)]
    rate: f64,
    /// The length of leases in seconds; longer for a machine that does other things as well
    #[arg(long, default_value_t = 3)]
    ttl: u64,
    /// Keep the logs also if all goes well
    #[arg(long)]
    keep: bool,
    /// Write what became of each cell, and the sums, to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Does it; true: every cell that can be has acted and left a whole mesh, and every promise was kept.
///
/// # Errors
/// No such cell, or the mesh could not be made whole again.
pub async fn command(args: Args) -> Result<bool> {
    let cells = choose(plan(args.seed), &args.only)?;
    if args.list {
        println!("{}", report::list(&cells));
        return Ok(true);
    }
    crate::lab::check().await?;
    let progress = Progress::new();
    progress.say("starts the lab");
    let mut stage = Stage::start(args.seed, args.rate, Duration::from_secs(args.ttl)).await?;
    let done = match all(&mut stage, &cells, &progress).await {
        Ok(done) => done,
        Err(error) => {
            stage.lab.keep();
            let timeline = stage.timeline.join("\n  ");
            let logs = stage.lab.dir().display();
            return Err(error.context(format!(
                "  {timeline}\nseed {}, the logs are in {logs}",
                args.seed
            )));
        }
    };
    progress.say("drain and checks");
    let (history, mut lab, timeline) = stage.end().await?;
    let (violations, figures) = checked_all(&history);
    let needs = Requirements {
        takeovers: args.only.is_empty(),
        unknown_commits: args.only.is_empty(),
        refused_writes: false,
        isolation: false,
    };
    let mut report = Report {
        seed: args.seed,
        lacks: check::lacks(&history, needs),
        done,
        violations,
        figures,
        timeline,
        logs: None,
    };
    let passed = report.passed();
    if args.keep || !passed {
        keep_history(&history, &lab);
        lab.keep();
        report.logs = Some(lab.dir().to_owned());
    }
    drop(progress);
    if !passed {
        eprintln!("{}", report::failure(&report));
    }
    println!("{}", report::table(&report));
    if let Some(file) = &args.json {
        report::write(&report, file)?;
    }
    Ok(passed)
}

async fn all(stage: &mut Stage, cells: &[Cell], progress: &Progress) -> Result<Vec<Done>> {
    let mut done = Vec::new();
    for (number, cell) in cells.iter().enumerate() {
        let name = cell.name();
        progress.say(format!("{name} ({} of {})", number + 1, cells.len()));
        let began = Instant::now();
        let verdict = match cell.is_in_mesh() {
            true => cell::run(stage, cell).await?,
            false => fresh::run(stage, cell).await,
        };
        let ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        stage.say(format_args!(
            "{name} by {}, n{} armed: {verdict} after {ms} ms",
            cell.way.what(),
            cell.armed + 1
        ));
        done.push(Done {
            point: cell.point,
            action: cell.action,
            verdict,
            ms,
        });
    }
    Ok(done)
}

/// The cells that were asked for; none: all.
fn choose(cells: Vec<Cell>, only: &[String]) -> Result<Vec<Cell>> {
    let is = |cell: &Cell, name: &String| cell.point == *name || cell.name() == *name;
    if let Some(name) = only.iter().find(|name| !cells.iter().any(|cell| is(cell, name))) {
        bail!("there is no cell {name}, or it cannot be; see --list");
    }
    let wanted = |cell: &Cell| only.is_empty() || only.iter().any(|name| is(cell, name));
    Ok(cells.into_iter().filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_and_cells_are_chosen_by_name() {
        let of = |only: &[&str]| {
            let only: Vec<String> = only.iter().map(|name| (*name).to_owned()).collect();
            choose(plan(1), &only).map(|cells| cells.len())
        };
        assert_eq!(of(&[]).unwrap(), plan(1).len());
        assert_eq!(of(&["claimed"]).unwrap(), 4);
        assert_eq!(of(&["claimed", "handler/crash", "claimed/drop"]).unwrap(), 5);
        assert!(of(&["handler/drop"]).is_err());
        assert!(of(&["no-such"]).is_err());
    }
}
