//! I14: a poisonous key harms itself.
//!
//! **Promise.** While tasks of some key fail, crash or never return, those of other keys take effect as before: their p99 from commit to
//! end is at most twice that before the first harmful task. How many nodes a single task may take with it is bounded by its
//! attempts (I11).
//!
//! **Algorithm.** From the log: when each task was committed, and when its end was. Tasks of the keys that ever had a harmful task aside;
//! the rest in two classes, before and after the first harmful one was committed.
//!
//! **Excluded.** Runs without harmful tasks, or without a thousand ends before the first. Ends during faults and shortly after, which I7 judges. Below
//! a quarter of a second nothing is said: on a machine that nodes, server and clients share, that is noise.

use std::collections::{HashMap, HashSet};

use ringmesh::task::TaskId;

use super::gap::percentile;
use super::windows::{aftermath, windows};
use super::{Checker, Violation};
use crate::history::{Answer, Expected, History, Row};

pub(super) struct Isolation;

const ENOUGH: usize = 1000;
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
        let harmful: HashSet<&str> = history
            .submits
            .iter()
            .filter(|submit| submit.expected == Expected::Dead || submit.kind.as_ref() == "harm")
            .map(|submit| &*submit.key)
            .collect();
        if harmful.is_empty() {
            return Vec::new();
        }
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
        let mut first: Option<i64> = None;
        let mut committed: HashMap<TaskId, i64> = HashMap::new();
        let (mut before, mut beside) = (Vec::new(), Vec::new());
        for change in &history.changes {
            match &change.row {
                Row::Task { id, key, .. } => {
                    if harmful.contains(&**key) {
                        first.get_or_insert(change.committed_at);
                    } else if prompt.contains(id) {
                        committed.entry(*id).or_insert(change.committed_at);
                    }
                }
                Row::Finished { id, .. } => {
                    let Some(since) = committed.remove(id) else {
                        continue;
                    };
                    let now = change.committed_at;
                    if windows.iter().any(|window| window.covers_commit(now, after)) {
                        continue;
                    }
                    let class = if first.is_some() { &mut beside } else { &mut before };
                    class.push(now - since);
                }
                _ => {}
            }
        }
        if before.len() < ENOUGH || beside.len() < ENOUGH {
            return Vec::new();
        }
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

#[cfg(test)]
mod tests {
    use super::super::build::{Build, MS};
    use super::*;

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

    #[test]
    fn without_poison_nothing_is_said() {
        let mut build = poisoned(300 * MS);
        build
            .history
            .submits
            .retain(|submit| submit.expected != Expected::Dead);
        build.passes(&Isolation);
    }
}
