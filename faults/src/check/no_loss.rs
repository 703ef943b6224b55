//! I1: what was accepted is there.
//!
//! **Promise** (P1). A task that was answered 2xx is committed, and stays until it has succeeded, is dead or was cancelled. After
//! the drain each has ended, but those that wait for a time beyond it.
//!
//! **Algorithm.** A set of the ids that were ever seen open, one of those that ended; then a look-up for each answer. Whatever
//! is missing is told apart by where it stood among its key's accepted tasks: lost at the *head* points at a reader that
//! began too late, at the *tail* at one that stopped too early, in the *middle* at a single write. And a task may leave the open ones only by
//! ending in the same transaction, whoever submitted it.
//!
//! **Not checked.** That the row was committed before the answer was sent: the two clocks cannot be compared so finely. A
//! server that loses commits in a failover shows here as loss, as it should.

use std::collections::{HashMap, HashSet};

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, Expected, History, Row, Submit};

pub(super) struct NoLoss;

impl Checker for NoLoss {
    fn id(&self) -> &'static str {
        "I1"
    }

    fn title(&self) -> &'static str {
        "nothing that was accepted is lost"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut seen: HashSet<TaskId> = HashSet::new();
        let mut ended: HashSet<TaskId> = HashSet::new();
        for change in &history.changes {
            match &change.row {
                Row::Task { id, .. } => {
                    seen.insert(*id);
                }
                Row::Finished { id, .. } => {
                    ended.insert(*id);
                }
                Row::TaskGone { id } => {
                    found.push(
                        Violation::new("vanished", format!("{id} was deleted without an end")).row(change),
                    );
                }
                _ => {}
            }
        }
        for (key, tasks) in by_key(&history.submits) {
            let lost = |(id, submit): &(TaskId, &Submit)| {
                !ended.contains(id) && (submit.expected != Expected::Future || !seen.contains(id))
            };
            let first_kept = tasks.iter().position(|task| !lost(task));
            let last_kept = tasks.iter().rposition(|task| !lost(task));
            for (place, task) in tasks.iter().enumerate().filter(|(_, task)| lost(task)) {
                let (id, submit) = task;
                let part = match (first_kept, last_kept) {
                    (Some(first), _) if place < first => "at the head",
                    (_, Some(last)) if place > last => "at the tail",
                    (Some(_), Some(_)) => "in the middle",
                    _ => "with all",
                };
                let how = if seen.contains(id) {
                    "never ended"
                } else {
                    "was never there"
                };
                let text = format!("{id} was accepted and {how}: lost {part} of key {key}");
                found.push(Violation::new("lost", text).row(submit));
            }
        }
        found
    }
}

/// The accepted tasks of each key in the order of the first answers that name them.
fn by_key(submits: &[Submit]) -> Vec<(&str, Vec<(TaskId, &Submit)>)> {
    let mut accepted: Vec<(TaskId, &Submit)> = submits
        .iter()
        .filter_map(|submit| match submit.answer {
            Answer::Accepted { id, .. } => Some((id, submit)),
            Answer::Refused { .. } | Answer::Unknown { .. } => None,
        })
        .collect();
    accepted.sort_by_key(|(_, submit)| submit.answered);
    let mut met = HashSet::with_capacity(accepted.len());
    let mut keys: HashMap<&str, Vec<(TaskId, &Submit)>> = HashMap::new();
    for task in accepted {
        if met.insert(task.0) {
            keys.entry(&task.1.key).or_default().push(task);
        }
    }
    let mut keys: Vec<_> = keys.into_iter().collect();
    keys.sort_unstable_by_key(|(key, _)| *key);
    keys
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, id};
    use super::*;

    fn four() -> Build {
        let mut build = Build::mesh();
        for seq in 1..=4 {
            build.done("a", seq);
        }
        build.submit_as("b", 1, Expected::Future);
        build
    }

    fn without(number: i64) -> Build {
        let mut build = four();
        let gone = id("a", number);
        build
            .history
            .changes
            .retain(|change| !matches!(&change.row, Row::Finished { id, .. } if *id == gone));
        build
    }

    #[test]
    fn all_that_ended_is_not_lost() {
        four().passes(&NoLoss);
    }

    #[test]
    fn a_task_that_never_ended_is_lost() {
        for (number, part) in [(1, "head"), (2, "middle"), (4, "tail")] {
            let found = without(number).fails(&NoLoss, "lost");
            assert!(found.text.contains(part), "{found:?}");
        }
    }

    #[test]
    fn an_answer_without_a_row_is_lost() {
        let mut build = four();
        build.request(
            "b",
            2,
            0,
            Answer::Accepted {
                id: id("b", 99),
                replay: false,
            },
        );
        build.history.submits.last_mut().unwrap().expected = Expected::Future;
        let found = build.fails(&NoLoss, "lost");
        assert!(found.text.contains("never there"), "{found:?}");
    }

    #[test]
    fn a_task_that_was_deleted_is_lost_also_if_nobody_asks() {
        let mut build = four();
        build.commit([Row::TaskGone { id: id("c", 77) }]);
        build.fails(&NoLoss, "vanished");
    }
}
