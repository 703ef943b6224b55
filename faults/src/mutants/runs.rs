//! The runs that must see a mutant: that the suite goes red when the product is broken, by the checker whose promise is.

use super::Mutant;

/// A run of the fault suite that a mutant must not survive.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// By its name in the [table](super::table::MUTANTS).
    pub mutant: &'static str,
    /// The scenario that provokes what it breaks.
    pub scenario: &'static str,
    /// The length of its fault phase.
    pub seconds: u64,
    /// The checker that must tell of it.
    pub checker: &'static str,
}

impl Run {
    pub(super) fn of(mutant: &Mutant) -> Option<&'static Run> {
        RUNS.iter().find(|run| run.mutant == mutant.name)
    }
}

const fn run(mutant: &'static str, scenario: &'static str, seconds: u64, checker: &'static str) -> Run {
    Run {
        mutant,
        scenario,
        seconds,
        checker,
    }
}

/// One for each promise that can be broken so that tasks still go through.
pub const RUNS: &[Run] = &[
    run("no-fence", "pause", 60, "I3"),
    run("next-before-the-finish", "kill", 60, "I5"),
    run("idempotency-without-unique-index", "storm", 30, "I13"),
    run("expiry-by-the-servers-clock", "clock-of-postgres", 60, "I4"),
    run("release-before-drain", "rolling-restart", 60, "I5"),
    run("hint-without-tick", "lost-commits", 60, "I8"),
    run("renewal-anchored-at-reply", "slow-database", 60, "I9"),
];
