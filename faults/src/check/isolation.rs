//! I14: a poisonous key harms itself.
//!
//! **Promise.** While tasks of some key fail, crash or never return, those of other keys take effect as before: their p99 from commit to
//! end is at most twice that before the first harmful task. How many nodes a single task may take with it is bounded by its
//! attempts (I11).
//!
//! **Algorithm.** From the log: when each task was committed, and when its end was. Tasks of the keys that ever had a harmful task aside;
//! the rest in two classes, before and after the first harmful one was committed.
//!
//! **Excluded.** Runs without harmful tasks, or with few ends before the first or after it: [`judges`] tells. Ends during faults and
//! shortly after, and those of tasks whose slot was taken over from the dead while they waited or less than a TTL before: I7 judges
//! these. Below a quarter of a second nothing is said: on a machine that nodes, server and clients share, that is noise.

use std::collections::{HashMap, HashSet};

use ringmesh::task::TaskId;

use super::gap::percentile;
use super::windows::{aftermath, windows};
use super::{Checker, Violation};
use crate::history::{Answer, Expected, History, Row};

pub(super) struct Isolation;

/// So many ends of each class, or nothing is said.
const ENOUGH: usize = 500;
/// µs.
const NOISE: i64 = 250_000;

impl Checker for Isolation {
    fn id(&self) -> &'static str {
        "I14"
    }

    fn title(&self) -> &'static str {
        "a poisonous key harms itself alone"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let Some((before, beside)) = classes(history) else {
            return Vec::new();
        };
        let (before, beside) = (percentile(before, 0.99), percentile(beside, 0.99));
        if beside <= NOISE.max(2 * before) {
            return Vec::new();
        }
        let text = format!(
            "beside harmful tasks p99 was {} ms, before them {} ms",
            beside / 1000,
            before / 1000
        );
        vec![Violation::new("slower", text)]
    }
}

/// Whether a run has enough of both classes for anything to be said.
pub(super) fn judges(history: &History) -> bool {
    classes(history).is_some()
}

/// How long tasks of keys without harm took, before the first harmful one and beside such, µs; `None`: of one there are too few.
fn classes(history: &History) -> Option<(Vec<i64>, Vec<i64>)> {
    let harmful: HashSet<&str> = history
        .submits
        .iter()
        .filter(|submit| submit.expected == Expected::Dead || submit.kind.as_ref() == "harm")
        .map(|submit| &*submit.key)
        .collect();
    let prompt: HashSet<TaskId> = history
        .submits
        .iter()
        .filter(|submit| !submit.scheduled && submit.expected == Expected::Effect)
        .filter(|submit| !harmful.contains(&*submit.key))
        .filter_map(|submit| match submit.answer {
            Answer::Accepted { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    let windows = windows(history);
    let after = aftermath(history) / 1000;
    let recently = history.terms.ttl / 1000;
    let mut first: Option<i64> = None;
    let mut committed: HashMap<TaskId, i64> = HashMap::new();
    let mut dead: HashSet<i64> = HashSet::new();
    let mut owners: HashMap<i32, i64> = HashMap::new();
    let mut taken: HashMap<i32, i64> = HashMap::new();
    let (mut before, mut beside) = (Vec::new(), Vec::new());
    for change in &history.changes {
        let now = change.committed_at;
        match &change.row {
            Row::Node {
                incarnation,
                fenced: Some(_),
                ..
            } => {
                dead.insert(*incarnation);
            }
            Row::Slot {
                slot,
                owner: Some(owner),
                ..
            } => {
                let from = owners.insert(*slot, *owner);
                if from.is_some_and(|from| from != *owner && dead.contains(&from)) {
                    taken.insert(*slot, now);
                }
            }
            Row::Task { id, key, .. } => {
                if harmful.contains(&**key) {
                    first.get_or_insert(now);
                } else if prompt.contains(id) {
                    committed.entry(*id).or_insert(now);
                }
            }
            Row::Finished { id, .. } => {
                let Some(since) = committed.remove(id) else {
                    continue;
                };
                let taken = taken.get(&i32::from(id.slot.get()));
                if taken.is_some_and(|taken| since - taken <= recently)
                    || windows.iter().any(|window| window.covers_commit(now, after))
                {
                    continue;
                }
                let class = if first.is_some() { &mut beside } else { &mut before };
                class.push(now - since);
            }
            _ => {}
        }
    }
    (before.len() >= ENOUGH && beside.len() >= ENOUGH).then_some((before, beside))
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, MS};
    use super::*;
    use crate::history::FencingKind;

    fn poisoned(each: i64) -> Build {
        let mut build = Build::mesh();
        let rounds = i64::try_from(ENOUGH).unwrap();
        for seq in 1..=rounds {
            build.done("a", seq);
        }
        build.submit_as("b", 1, Expected::Dead);
        for seq in 1..=rounds {
            let claim = build.submit("a", rounds + seq);
            build.tick(each);
            build.finish(&claim);
        }
        build
    }

    #[test]
    fn others_that_go_on_pass() {
        poisoned(MS).passes(&Isolation);
    }

    #[test]
    fn others_that_become_slow_are_seen() {
        poisoned(300 * MS).fails(&Isolation, "slower");
    }

    /// Tasks of `a` that wait while poison does its work, and perhaps kills their node.
    fn waiting(killed: bool) -> Build {
        let mut build = poisoned(MS);
        let seqs = 10_000..10_020;
        let claims: Vec<_> = seqs.map(|seq| build.submit("a", seq)).collect();
        if killed {
            build.fence(1, 1, FencingKind::Noticed, 2);
            build.grant(0, 2, 2);
        }
        build.tick(400 * MS);
        claims.iter().for_each(|claim| build.finish(claim));
        build
    }

    #[test]
    fn what_a_takeover_costs_is_for_others_to_judge() {
        waiting(true).passes(&Isolation);
        waiting(false).fails(&Isolation, "slower");
    }

    #[test]
    fn without_poison_nothing_is_said() {
        let mut build = poisoned(300 * MS);
        assert!(judges(&build.history));
        build
            .history
            .submits
            .retain(|submit| submit.expected != Expected::Dead);
        assert!(!judges(&build.history));
        build.passes(&Isolation);
    }
}
