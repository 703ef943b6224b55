//! I8: after the healing all work ends; I15: and nothing is left behind.
//!
//! **Promises.** Once all faults are healed and clients are quiet, everything that is due ends, nothing counts as running under an owner that
//! does not live, every slot has a living owner, and each node says of itself that it is ready. No session stays idle in a transaction,
//! no lock outlives its node; open files, memory, gossip state and dead rows stay bounded.
//!
//! **Algorithm.** Both compare what was looked up after the drain with zero, or with a limit.
//!
//! **Limits of I15.** "Within a tenth of the start" alone cannot hold for a process that has just started: connections and caches
//! come with the first work. So a fixed allowance is added, of 64 files and 64 MiB. Gossip may remember whoever lives, and the dead
//! of the last minutes. Dead rows of `slot` and `node`: autovacuum looks once a minute, in which a mesh writes a `node` row for each renewal
//! and moves each slot some times.

use std::collections::HashSet;

use super::{Checker, Violation};
use crate::history::{Change, History, Row};

pub(super) struct Liveness;

impl Checker for Liveness {
    fn id(&self) -> &'static str {
        "I8"
    }

    fn title(&self) -> &'static str {
        "after the healing all work ends and all nodes are well"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let end = &history.end;
        let mut found = Vec::new();
        let open = end.open.iter().map(|id| ("open", format!("{id} is open still")));
        let orphans = end.orphans.iter();
        let orphans = orphans.map(|id| {
            (
                "orphan",
                format!("{id} counts as running, but its owner does not live"),
            )
        });
        for (kind, text) in open.chain(orphans) {
            found.push(Violation::new(kind, text));
        }
        if !end.unowned.is_empty() {
            let text = format!("{} slots have no living owner", end.unowned.len());
            found.push(Violation::new("unowned", text).row(&end.unowned));
        }
        let mut unwell: Vec<&str> = end
            .answers
            .iter()
            .filter(|(_, status)| *status != 200)
            .map(|(node, _)| node.as_str())
            .collect();
        unwell.dedup();
        for node in unwell {
            let answers = end.answers.iter().filter(|(of, _)| of == node);
            let text = format!("{node} does not say that it is ready");
            found.push(Violation::new("unwell", text).row(answers.collect::<Vec<_>>()));
        }
        found
    }
}

pub(super) struct Hygiene;

const FILES: u64 = 64;
const MEMORY_KIB: u64 = 64 * 1024;
const DEAD_ROWS: i64 = 20_000;
/// For so long a dead node may be remembered, µs: two minutes; one more by whoever heard of it late; and what it takes to notice.
const REMEMBERED: i64 = 200_000_000;

/// How many lives gossip may know of at a time of Postgres' clock: those that last, and those that ended not long before.
pub(crate) fn known(changes: &[Change], at: i64) -> u64 {
    let mut living: HashSet<i64> = HashSet::new();
    let mut recent = 0;
    for change in changes.iter().take_while(|change| change.committed_at <= at) {
        let ended = match &change.row {
            // After a failover everybody begins anew, and numbers may come again.
            Row::Baseline => living.drain().count(),
            Row::Node {
                incarnation,
                fenced: None,
                ..
            } => {
                living.insert(*incarnation);
                0
            }
            Row::Node { incarnation, .. } | Row::NodeGone { incarnation } => {
                usize::from(living.remove(incarnation))
            }
            _ => 0,
        };
        if at - change.committed_at <= REMEMBERED {
            recent += ended;
        }
    }
    (living.len() + recent) as u64
}

impl Checker for Hygiene {
    fn id(&self) -> &'static str {
        "I15"
    }

    fn title(&self) -> &'static str {
        "nothing is left behind"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let end = &history.end;
        let mut found = Vec::new();
        let mut tell = |kind, text| found.push(Violation::new(kind, text));
        if end.idle_in_transaction > 0 {
            tell(
                "sessions",
                format!("{} sessions are idle in a transaction", end.idle_in_transaction),
            );
        }
        if end.stray_locks > 0 {
            tell(
                "locks",
                format!("{} advisory locks are of no living node", end.stray_locks),
            );
        }
        for (what, held, allowance) in [
            ("files", &end.descriptors, FILES),
            ("memory", &end.memory, MEMORY_KIB),
        ] {
            for (node, before, now) in held {
                if *now > before + before / 10 + allowance {
                    tell(what, format!("{node} went from {before} to {now}"));
                }
            }
        }
        // Postgres' clock may have gone back.
        let times = history.changes.iter().map(|change| change.committed_at);
        let known = known(&history.changes, times.max().unwrap_or_default()).max(end.live);
        for (node, remembered) in &end.gossip_nodes {
            if *remembered > known {
                let text = format!("{node} remembers {remembered} nodes of {known}");
                tell("gossip", text);
            }
        }
        for (table, rows) in &end.dead_rows {
            if *rows > DEAD_ROWS {
                tell("dead rows", format!("{table} has {rows} dead rows"));
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S, id};
    use super::*;
    use crate::history::FencingKind;

    fn good() -> Build {
        let mut build = Build::mesh();
        let end = &mut build.history.end;
        end.answers = vec![("n1".into(), 200), ("n1".into(), 200), ("n2".into(), 200)];
        end.descriptors = vec![("n1".into(), 50, 100)];
        end.memory = vec![("n1".into(), 30_000, 60_000)];
        end.gossip_nodes = vec![("n1".into(), 3)];
        end.live = 3;
        end.dead_rows.insert("slot".into(), 500);
        build
    }

    #[test]
    fn a_mesh_at_rest_passes() {
        good().passes(&Liveness);
        good().passes(&Hygiene);
    }

    #[test]
    fn what_is_not_at_rest_is_seen() {
        let mut build = good();
        build.history.end.open.push(id("a", 1));
        build.fails(&Liveness, "open");
        let mut build = good();
        build.history.end.orphans.push(id("a", 1));
        build.fails(&Liveness, "orphan");
        let mut build = good();
        build.history.end.unowned.push(3);
        build.fails(&Liveness, "unowned");
        let mut build = good();
        build.history.end.answers[1].1 = 503;
        build.fails(&Liveness, "unwell");
        let mut build = good();
        build.history.end.answers[2].1 = 0;
        build.fails(&Liveness, "unwell");
    }

    #[test]
    fn what_is_left_behind_is_seen() {
        let mut build = good();
        build.history.end.idle_in_transaction = 1;
        build.fails(&Hygiene, "sessions");
        let mut build = good();
        build.history.end.stray_locks = 1;
        build.fails(&Hygiene, "locks");
        let mut build = good();
        build.history.end.descriptors[0].2 = 120;
        build.fails(&Hygiene, "files");
        let mut build = good();
        build.history.end.memory[0].2 = 100_000;
        build.fails(&Hygiene, "memory");
        let mut build = good();
        build.history.end.gossip_nodes[0].1 = 4;
        build.fails(&Hygiene, "gossip");
        // One that starts again is remembered beside what it was, but not for long.
        build.fence(1, 1, FencingKind::Replaced, 4);
        build.node(4, 0, None);
        build.passes(&Hygiene);
        build.tick(300 * S);
        build.lease(4, 1);
        build.fails(&Hygiene, "gossip");
        let mut build = good();
        build.history.end.dead_rows.insert("node".into(), 20_001);
        build.fails(&Hygiene, "dead rows");
    }
}
