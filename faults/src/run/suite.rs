//! Many runs: lists of scenarios, and schedules drawn at random.

use std::time::Duration;

use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};

use super::scenario::{self, CALM, Scenario, by_name};

/// A list of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Suite {
    /// For each change: kills, SIGSTOP, restarts of Postgres and lost replies to COMMIT, a minute of each
    Ci,
    /// Every scenario but the longest, those about safety three times; under three hours
    Nightly,
    /// For hours: everything at once, again and again
    Soak,
}

/// A run to be done: its scenario, its seed, the length of its fault phase.
pub type Planned = (Scenario, u64, Duration);

/// What each change must pass: one mesh, so that most of the time goes into faults.
const CI: [&str; 1] = ["ci"];
/// Where a mistake of the product would cost data.
const SAFETY: [&str; 7] = [
    "pause",
    "pause-many",
    "database-cut",
    "clock-shift",
    "postgres-restart",
    "failover-synchronous",
    "lost-commits",
];
/// Too long for each night. (Of `multitude` the tour has the faults, of `starved` each night has a shorter run, `cpu-busy`.)
const LONG: [&str; 5] = ["backlog-10m", "black-hole-long", "hour", "multitude", "starved"];
/// Rounds of a soak, each of them all combinations.
const SOAK: u64 = 40;

impl Suite {
    /// Its runs; the first is the calm one, but for what must be quick: each run begins calmly, too. `length`: of each fault phase, in place of the usual one.
    pub fn planned(self, seed: u64, length: Option<Duration>) -> Vec<Planned> {
        let usual = |scenario: &Scenario| length.unwrap_or(Duration::from_secs(scenario.seconds));
        let mut planned: Vec<Planned> = Vec::new();
        let mut plan = |scenario: Scenario, seed| {
            let length = usual(&scenario);
            planned.push((scenario, seed, length));
        };
        if let Some(calm) = by_name(CALM).filter(|_| self != Suite::Ci) {
            plan(calm, seed);
        }
        match self {
            Suite::Ci => CI
                .iter()
                .filter_map(|name| by_name(name))
                .for_each(|scenario| plan(scenario, seed)),
            Suite::Nightly => {
                let broken = scenario::all()
                    .into_iter()
                    .filter(|scenario| scenario.name != CALM);
                for scenario in broken.filter(|scenario| !LONG.contains(&scenario.name)) {
                    let times = if SAFETY.contains(&scenario.name) { 3 } else { 1 };
                    (0..times).for_each(|time| plan(scenario.clone(), seed + time));
                }
            }
            Suite::Soak => {
                for round in 0..SOAK {
                    for scenario in scenario::all()
                        .into_iter()
                        .filter(|scenario| scenario.faults.len() > 1)
                    {
                        plan(scenario, seed + round);
                    }
                }
            }
        }
        planned
    }
}

/// Runs without end: scenarios with faults, drawn from the seed; the first is the calm one.
pub fn at_random(seed: u64, length: Option<Duration>) -> impl Iterator<Item = Planned> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut broken = scenario::all();
    broken.retain(|scenario| !scenario.faults.is_empty());
    let usual = move |scenario: &Scenario| length.unwrap_or(Duration::from_secs(scenario.seconds));
    let calm = by_name(CALM).map(|calm| {
        let length = usual(&calm);
        (calm, seed, length)
    });
    calm.into_iter().chain(std::iter::from_fn(move || {
        let scenario = broken.choose(&mut rng)?.clone();
        let length = usual(&scenario);
        // Short enough to be typed.
        Some((scenario, u64::from(rng.random::<u32>()), length))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn suites_begin_calmly_and_name_only_what_exists() {
        for suite in [Suite::Nightly, Suite::Soak] {
            assert_eq!(suite.planned(1, None)[0].0.name, CALM);
        }
        for name in CI.iter().chain(&SAFETY).chain(&LONG) {
            assert!(by_name(name).is_some(), "{name}");
        }
        assert_eq!(Suite::Ci.planned(1, None).len(), CI.len());
    }

    #[test]
    fn nightly_runs_take_less_than_three_hours() {
        /// The start of a lab, the quiet before the faults, drain and checks.
        const BESIDE: Duration = Duration::from_secs(35);
        let planned = Suite::Nightly.planned(1, None);
        let length = planned.iter().map(|(_, _, length)| *length + BESIDE);
        let sum: Duration = length.sum();
        assert!(
            sum < Duration::from_secs(3 * 3600),
            "{} runs, {sum:?}",
            planned.len()
        );
    }

    #[test]
    fn same_seed_draws_the_same_runs() {
        let of = |seed| {
            let runs = at_random(seed, None).take(20);
            runs.map(|(scenario, seed, _)| (scenario.name, seed))
                .collect::<Vec<_>>()
        };
        assert_eq!(of(5), of(5));
        assert_ne!(of(5), of(6));
    }
}
