//! Scenarios, schedules from a seed, reports.
//!
//! | file | is |
//! |---|---|
//! | [`scenario`] | the list: which work, which faults, what must be seen |
//! | [`schedule`](mod@schedule) | when which fault begins and is healed |
//! | [`runner`] | one run: quiet, faults, heal, drain, checks |
//! | [`suite`] | many runs |
//! | `calm` | whether nothing moved while nothing was broken |
//! | `ageing` | whether each minute is as good as the first |
//! | [`calibrate`] | how much the machine can do |
//! | [`figures`], [`report`] | what is counted and shown |

mod ageing;
pub mod calibrate;
mod calm;
pub mod figures;
pub mod report;
pub mod runner;
pub mod scenario;
pub mod schedule;
pub mod suite;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};

use figures::Figures;
use report::Progress;
use runner::{Job, Outcome};
use suite::{Planned, Suite};

/// What is asked for on the command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show all scenarios, and what must hold
    #[arg(long, exclusive = true)]
    list: bool,
    /// Run this scenario
    #[arg(long, value_name = "NAME", group = "runs")]
    run: Option<String>,
    /// Run scenarios drawn at random for so many minutes
    #[arg(long, value_name = "M", group = "runs")]
    minutes: Option<u64>,
    /// Run a list of scenarios
    #[arg(long, group = "runs")]
    suite: Option<Suite>,
    /// Decides all that is random
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// The length of each fault phase in seconds, in place of the scenario's own
    #[arg(long)]
    seconds: Option<u64>,
    /// Run it so often, each time with the next seed
    #[arg(long, default_value_t = 1, requires = "run")]
    repeat: u64,
    /// Tasks a second, in place of half of what this machine can do
    #[arg(long)]
    rate: Option<f64>,
    /// Keep the logs of runs that pass, too
    #[arg(long)]
    keep: bool,
    /// Write the sums to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Does it; true: everything passed.
///
/// # Errors
/// No such scenario, or a lab could not be started.
pub async fn command(args: Args) -> Result<bool> {
    if args.list {
        println!("{}", report::list());
        return Ok(true);
    }
    let length = args.seconds.map(Duration::from_secs);
    let end = args
        .minutes
        .map(|minutes| Instant::now() + Duration::from_secs(60 * minutes));
    let planned: Box<dyn Iterator<Item = Planned>> = if let Some(name) = &args.run {
        let scenario = scenario::by_name(name)
            .with_context(|| format!("no scenario is called {name}; --list shows them"))?;
        let length = length.unwrap_or(Duration::from_secs(scenario.seconds));
        Box::new((0..args.repeat).map(move |more| (scenario.clone(), args.seed + more, length)))
    } else if let Some(suite) = args.suite {
        Box::new(suite.planned(args.seed, length).into_iter())
    } else if args.minutes.is_some() {
        Box::new(suite::at_random(args.seed, length))
    } else {
        bail!("say what to do: --list, --run NAME, --suite NAME or --minutes M");
    };
    crate::lab::check().await?;

    let progress = Progress::new();
    let rate = match args.rate {
        Some(rate) => rate,
        None => {
            let capacity = calibrate::capacity(&progress).await?;
            let load = capacity.load();
            progress.line(&format!(
                "this machine can do {:.0} effects a second, half of them of one key; the load is {load:.0}/s",
                capacity.effects_per_second
            ));
            load
        }
    };
    let mut outcomes = Vec::new();
    let mut left_out = Vec::new();
    let mut broken = 0;
    for (scenario, seed, length) in planned.take_while(|_| end.is_none_or(|end| Instant::now() < end)) {
        let name = scenario.name;
        if let Err(why) = scenario.can() {
            if args.run.is_some() {
                return Err(why);
            }
            left_out.push(format!("left out: {name}: {why:#}"));
            continue;
        }
        let job = Job {
            scenario,
            seed,
            length,
            rate,
            keep: args.keep,
        };
        match runner::run(job, &progress).await {
            Ok(outcome) => {
                progress.line(&summary(&outcome));
                outcomes.push(outcome);
            }
            Err(error) => {
                broken += 1;
                progress.line(&format!("INVALID: {name} with seed {seed}: {error:#}"));
            }
        }
        if !is_calm(&outcomes) {
            progress.line(&VOID.repeat(3));
        }
    }
    drop(progress);

    let sum = outcomes
        .iter()
        .fold(Figures::default(), |sum, outcome| sum.and(&outcome.figures));
    // A run of which nothing is known proves nothing.
    let sum = Figures {
        runs: sum.runs + broken,
        invalid_runs: sum.invalid_runs + broken,
        ..sum
    };
    println!("{}", report::table(&outcomes, &sum));
    println!("{}", report::gaps(&sum));
    left_out.iter().for_each(|line| println!("{line}"));
    if let Some(file) = &args.json {
        report::write(&sum, file)?;
    }
    Ok(broken == 0 && outcomes.iter().all(Outcome::passed))
}

const VOID: &str = "ALL RESULTS ARE VOID: leases were lost or slots moved while nothing was broken. This machine has too much to do.\n";

/// Whether the run without faults, if there was one, showed that the machine can bear the load.
fn is_calm(outcomes: &[Outcome]) -> bool {
    let mut calm = outcomes
        .iter()
        .filter(|outcome| outcome.job.scenario.name == scenario::CALM);
    calm.all(Outcome::passed)
}

fn summary(outcome: &Outcome) -> String {
    let failure = report::failure(outcome);
    if failure.is_empty() {
        let figures = &outcome.figures;
        return format!(
            "passed: {} with seed {}: {} faults, {} tasks\n{}",
            outcome.job.scenario.name,
            outcome.job.seed,
            figures.faults,
            figures.tasks,
            ageing::table(&outcome.minutes)
        );
    }
    failure
}
