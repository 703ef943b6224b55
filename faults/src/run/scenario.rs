//! The scenarios: which work, which faults, in which rhythm, and what must be seen for a run to prove anything.

use std::time::Duration;

use anyhow::{Context as _, Result};

use super::schedule::Rhythm;
use crate::check::Requirements;
use crate::{fault, lab};

/// A kind of run.
#[derive(Debug, Clone)]
pub struct Scenario {
    /// Its name on the command line.
    pub name: &'static str,
    /// What is told of it in the list.
    pub what: &'static str,
    /// Names of workloads, which share the load.
    pub workloads: &'static [&'static str],
    /// Names of faults.
    pub faults: Vec<&'static str>,
    /// How they follow each other.
    pub rhythm: Rhythm,
    /// What it wants of the lab beyond the usual.
    pub options: fn(&mut lab::Options),
    /// What must be seen, or the run is invalid.
    pub needs: Requirements,
    /// Whether an idempotency key must have been refused for another body, or the run is invalid.
    pub needs_mismatches: bool,
    /// How long the fault phase lasts if nothing else is said, in seconds.
    pub seconds: u64,
    /// Whether nodes may end by themselves, and are started again: work that ends its process.
    pub nodes_end: bool,
    /// Whether accepted tasks may be lost: a limit that the product declares. They are counted and shown.
    pub may_lose: bool,
    /// Whether no node may be declared dead and no slot may move, whatever is broken.
    pub still: bool,
    /// Whether each minute must be about as good as the first: throughput, scans.
    pub steady: bool,
}

const fn turns(on: u64, off: u64) -> Rhythm {
    Rhythm::Turns(Duration::from_secs(on), Duration::from_secs(off))
}

fn usual(_: &mut lab::Options) {}

/// Nothing must be seen.
const NOTHING: Requirements = Requirements {
    refused_writes: false,
    takeovers: false,
    unknown_commits: false,
    isolation: false,
};
const TAKEOVERS: Requirements = Requirements {
    takeovers: true,
    ..NOTHING
};
const ZOMBIES: Requirements = Requirements {
    takeovers: true,
    refused_writes: true,
    ..NOTHING
};
const UNKNOWN_COMMITS: Requirements = Requirements {
    unknown_commits: true,
    ..NOTHING
};
const ISOLATION: Requirements = Requirements {
    isolation: true,
    ..TAKEOVERS
};
const ALL: Requirements = Requirements {
    refused_writes: true,
    takeovers: true,
    unknown_commits: true,
    isolation: false,
};

/// What most scenarios are.
const USUAL: Scenario = Scenario {
    name: "",
    what: "",
    workloads: &["W1"],
    faults: Vec::new(),
    rhythm: Rhythm::FIVES,
    options: usual,
    needs: NOTHING,
    needs_mismatches: false,
    seconds: 60,
    nodes_end: false,
    may_lose: false,
    still: false,
    steady: false,
};

/// The run that no other counts without: nothing is broken, and nothing may move.
pub const CALM: &str = "calm";

impl Scenario {
    /// Why it cannot be run on this machine.
    ///
    /// # Errors
    /// That is what it answers with.
    pub fn can(&self) -> Result<()> {
        for fault in self.faults.iter().filter_map(|name| fault::by_name(name)) {
            fault
                .can()
                .with_context(|| format!("{} cannot be done here", fault.name()))?;
        }
        Ok(())
    }
}

/// All scenarios: those written down here, and one for each fault that has none of its name.
pub fn all() -> Vec<Scenario> {
    let mut all = written();
    for fault in fault::all() {
        let name = fault.name();
        if all.iter().any(|scenario| scenario.name == name) {
            continue;
        }
        let still = moves_nothing(fault.id(), name);
        all.push(Scenario {
            name,
            what: if still {
                "this fault alone, and no slot moves"
            } else {
                "this fault alone"
            },
            faults: vec![name],
            still,
            needs: match fault.id() {
                "N1" => TAKEOVERS,
                // Those that are cut off for long enough find their lease lost.
                "N9" => ZOMBIES,
                "N29" => UNKNOWN_COMMITS,
                _ => NOTHING,
            },
            rhythm: turns(10, 10),
            seconds: 25,
            ..USUAL
        });
    }
    for scenario in &mut all {
        // A standby that has not got everything when it is promoted: what Postgres loses, the mesh has lost.
        scenario.may_lose = scenario.faults.contains(&"failover-asynchronous");
    }
    all
}

/// Whether it is promised of a fault that nobody is declared dead and nothing moves: all nodes live and reach Postgres, and what is
/// wrong decides nothing about leases.
fn moves_nothing(id: &str, name: &str) -> bool {
    match id {
        // Impostors; gossip that is cut, late, lost or forged; clocks; notifications; rude clients.
        "N8" | "N10" | "N12" | "N17" | "N18" | "N27" | "N28" => true,
        // This one is cut from Postgres as well.
        "N11" => name != "isolate-one",
        // Of this one nothing is promised.
        "N25" => name != "no-autovacuum",
        _ => false,
    }
}

fn written() -> Vec<Scenario> {
    vec![
        Scenario {
            name: CALM,
            what: "nothing is broken: no lease is lost, no slot moves",
            seconds: 30,
            ..USUAL
        },
        Scenario {
            name: "kill",
            what: "kill -9 of one node, again and again",
            faults: vec!["kill-one"],
            needs: TAKEOVERS,
            ..USUAL
        },
        Scenario {
            name: "kill-many",
            what: "kill -9 of one, of all but one, of all",
            workloads: &["W1", "W2"],
            faults: vec!["kill-one", "kill-all-but-one", "kill-all"],
            needs: TAKEOVERS,
            ..USUAL
        },
        Scenario {
            name: "pause",
            what: "SIGSTOP of one node for 0.5 to 10 leases",
            faults: vec!["pause-one"],
            needs: ZOMBIES,
            seconds: 90,
            ..USUAL
        },
        Scenario {
            name: "pause-many",
            what: "SIGSTOP of one, of a minority, of all but one",
            workloads: &["W1", "W2"],
            faults: vec!["pause-one", "pause-minority", "pause-all-but-one"],
            needs: ZOMBIES,
            rhythm: turns(5, 10),
            seconds: 120,
            ..USUAL
        },
        Scenario {
            name: "postgres-restart",
            what: "Postgres is killed, or stopped in order, and comes back",
            workloads: &["W1", "W2"],
            faults: vec!["postgres-kill", "postgres-stop"],
            ..USUAL
        },
        Scenario {
            name: "lost-commits",
            what: "replies to COMMIT are lost, some or all",
            workloads: &["W1", "W2"],
            faults: vec!["lost-commits"],
            needs: UNKNOWN_COMMITS,
            ..USUAL
        },
        Scenario {
            name: "database-cut",
            what: "nodes are cut from Postgres while gossip is fine, silently or with a reset",
            faults: vec!["no-database-drop", "no-database-reject"],
            needs: TAKEOVERS,
            rhythm: turns(8, 8),
            seconds: 90,
            ..USUAL
        },
        Scenario {
            name: "links",
            what: "nodes are cut from each other while Postgres is fine",
            faults: vec![
                "no-gossip-one",
                "no-gossip-all",
                "isolate-one",
                "halves",
                "majority-ring",
                "one-way",
                "one-pair",
            ],
            rhythm: turns(10, 10),
            seconds: 140,
            ..USUAL
        },
        Scenario {
            name: "durations",
            what: "runs of up to five leases, under kills and pauses",
            workloads: &["W4"],
            faults: vec!["kill-one", "pause-one"],
            needs: TAKEOVERS,
            rhythm: turns(5, 15),
            seconds: 120,
            ..USUAL
        },
        Scenario {
            name: "harm",
            what: "tasks that fail, panic, end their process and never return, beside ordinary ones, and no other fault",
            workloads: &["W1", "W5"],
            nodes_end: true,
            needs: ISOLATION,
            seconds: 120,
            ..USUAL
        },
        Scenario {
            name: "harm-kill",
            what: "the same under kills",
            workloads: &["W1", "W5"],
            faults: vec!["kill-one"],
            nodes_end: true,
            needs: TAKEOVERS,
            rhythm: turns(5, 15),
            seconds: 90,
            ..USUAL
        },
        Scenario {
            name: "storm",
            what: "64 clients with one idempotency key, under kills and pauses",
            workloads: &["W6"],
            faults: vec!["kill-one", "pause-one"],
            needs: TAKEOVERS,
            needs_mismatches: true,
            ..USUAL
        },
        Scenario {
            name: "scheduled",
            what: "run_at and delay, near and far, under kills",
            workloads: &["W7"],
            faults: vec!["kill-one"],
            needs: TAKEOVERS,
            ..USUAL
        },
        Scenario {
            name: "admin",
            what: "cancels and priorities, under kills and pauses",
            workloads: &["W9"],
            faults: vec!["kill-one", "pause-one"],
            needs: TAKEOVERS,
            ..USUAL
        },
        Scenario {
            name: "backlog",
            what: "1,000,000 open tasks, nothing broken",
            workloads: &["W8"],
            ..USUAL
        },
        Scenario {
            name: "backlog-10m",
            what: "10,000,000 open tasks, half of them in the future, nothing broken",
            workloads: &["W8-10m"],
            ..USUAL
        },
        Scenario {
            name: "pause-kill",
            what: "pauses and kills at the same time (N30)",
            workloads: &["W1", "W2", "W9"],
            faults: vec!["pause-one", "kill-one"],
            rhythm: Rhythm::Subsets,
            needs: TAKEOVERS,
            seconds: 120,
            ..USUAL
        },
        Scenario {
            name: "cut-kill",
            what: "cuts, kills and lost replies at the same time (N30)",
            workloads: &["W1", "W2", "W9"],
            faults: vec!["no-database-drop", "one-way", "lost-commits", "kill-one"],
            rhythm: Rhythm::Subsets,
            needs: UNKNOWN_COMMITS,
            seconds: 120,
            ..USUAL
        },
        Scenario {
            name: "ci",
            what: "kills, pauses, restarts of Postgres and lost replies to COMMIT, a minute of each",
            workloads: &["W1", "W2", "W1-batch", "W4"],
            faults: vec!["kill-one", "pause-one", "postgres-kill", "lost-commits"],
            needs: ALL,
            seconds: 240,
            ..USUAL
        },
        Scenario {
            name: "tour",
            what: "every fault that any lab allows, one after the other, for hundreds of them in one mesh",
            workloads: &["W1", "W2", "W1-batch", "W4"],
            faults: on_tour(),
            needs: ALL,
            seconds: 600,
            ..USUAL
        },
        Scenario {
            name: "multitude",
            what: "the faults of the tour, a little faster, while hundreds of tasks a second come in batches",
            workloads: &["W1-batch"],
            faults: on_tour(),
            rhythm: turns(4, 4),
            needs: ALL,
            seconds: 600,
            ..USUAL
        },
        Scenario {
            name: "hour",
            what: "an old snapshot is held all the time, and a node starts and dies all the time: nothing may slow down or grow",
            workloads: &["W1", "W1-batch"],
            faults: vec!["held-xmin", "crash-loop"],
            rhythm: Rhythm::Beneath(Duration::from_secs(1), Duration::from_secs(2)),
            needs: TAKEOVERS,
            steady: true,
            seconds: 3600,
            ..USUAL
        },
        Scenario {
            name: "starved",
            what: "all processors are busy with something else for ten minutes, and no slot moves",
            faults: vec!["cpu-busy"],
            rhythm: Rhythm::Beneath(Duration::ZERO, Duration::ZERO),
            still: true,
            seconds: 600,
            ..USUAL
        },
        Scenario {
            name: "black-hole-long",
            what: "connections to Postgres stand still for a quarter of an hour, and what they held arrives then",
            faults: vec!["black-hole"],
            rhythm: Rhythm::Beneath(Duration::ZERO, Duration::ZERO),
            seconds: 900,
            ..USUAL
        },
        Scenario {
            name: "failover-at-work",
            what: "a standby is promoted while tasks of up to five leases run",
            workloads: &["W4"],
            faults: vec!["failover-synchronous"],
            rhythm: turns(10, 20),
            seconds: 90,
            ..USUAL
        },
        Scenario {
            name: "all-at-once",
            what: "restarts of Postgres, pauses, kills, cuts and lost replies, begun one by one and healed in another order (N30)",
            workloads: &["W1", "W2", "W6", "W9"],
            faults: vec![
                "postgres-kill",
                "pause-one",
                "kill-one",
                "halves",
                "no-database-drop",
                "lost-commits",
            ],
            rhythm: Rhythm::Swizzle,
            needs: TAKEOVERS,
            seconds: 180,
            ..USUAL
        },
    ]
}

/// The faults that need nothing special of a lab, and that are over within seconds.
fn on_tour() -> Vec<&'static str> {
    const NOT_THOSE: [&str; 5] = [
        "black-hole",
        "postgres-slow-start",
        "cpu-busy",
        "swizzle-clog",
        // What a seed draws must not depend on what lies on the machine.
        "rolling-upgrade",
    ];
    let fits = |fault: &dyn fault::Fault| {
        let mut options = lab::Options::default();
        fault.prepare(&mut options);
        let special = options.standby.is_some()
            || options.pooler.is_some()
            || options.disk.is_some()
            || options.clocks
            || options.relayed
            || !options.postgres.is_empty()
            || !options.env.is_empty();
        !special && !NOT_THOSE.contains(&fault.name())
    };
    let faults = fault::all().into_iter().filter(|fault| fits(fault.as_ref()));
    faults.map(|fault| fault.name()).collect()
}

/// The scenario of this name.
pub fn by_name(name: &str) -> Option<Scenario> {
    all().into_iter().find(|scenario| scenario.name == name)
}

/// What of the workloads and faults is not here, and why.
pub const LEFT_OUT: &[(&str, &str)] = &[
    ("W3 outbox", "the product has no outbox and calls nobody"),
    (
        "W7 cron",
        "the product has no recurring tasks; run_at and delay are there",
    ),
    (
        "W9 retry, reschedule, pause by hand",
        "the product has no such calls; cancel and priority are there",
    ),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::workload;

    #[test]
    fn scenarios_name_only_what_exists_and_have_names_of_their_own() {
        let mut names = BTreeSet::new();
        for scenario in all() {
            assert!(names.insert(scenario.name), "{} twice", scenario.name);
            for name in scenario.workloads {
                assert!(workload::by_name(name).is_some(), "{}: {name}", scenario.name);
            }
            for name in &scenario.faults {
                assert!(fault::by_name(name).is_some(), "{}: {name}", scenario.name);
            }
        }
        assert!(by_name(CALM).is_some_and(|calm| calm.faults.is_empty()));
    }

    #[test]
    fn where_nothing_may_move_it_is_said() {
        for (name, still) in [
            ("bad-weather", true),
            ("one-way", true),
            ("held-xmin", true),
            ("clock-shift", true),
            ("isolate-one", false),
            ("no-autovacuum", false),
            ("kill-one", false),
        ] {
            let scenario = by_name(name).unwrap();
            assert_eq!(scenario.still, still, "{name}");
            assert_eq!(scenario.what.contains("no slot moves"), still, "{name}");
        }
    }

    #[test]
    fn every_workload_and_every_fault_is_used() {
        let all = all();
        for workload in workload::all() {
            let used = all
                .iter()
                .any(|scenario| scenario.workloads.contains(&workload.id()));
            assert!(used, "{}", workload.id());
        }
        for fault in fault::all() {
            let used = all.iter().any(|scenario| scenario.faults.contains(&fault.name()));
            assert!(used, "{}", fault.name());
        }
    }
}
