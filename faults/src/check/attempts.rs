//! I11: what counts against a task is what the task did.
//!
//! **Promise** (P2). A task ends dead after `max_attempts` failures and crashes, never later; sooner only if its handler said so for good.
//! Dead tasks say why. A lost lease, a drain, a handoff add nothing.
//!
//! **Algorithm.** One pass over ends, with the limits that the inserts named, and what submits expected. A task whose handler
//! never fails by itself must have no failures whatever befell its owners, and does not end dead.
//!
//! **Excluded.** Crashes: a node that is killed while it runs a suspect alone is one, as nobody could tell whose fault it was.

use std::collections::HashMap;

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, Expected, History, Row, State, Submit};

pub(super) struct Attempts;

/// The kind whose handler fails on purpose.
const HARMFUL: &str = "harm";

impl Checker for Attempts {
    fn id(&self) -> &'static str {
        "I11"
    }

    fn title(&self) -> &'static str {
        "only failures and crashes count against a task"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut limits: HashMap<TaskId, i32> = HashMap::new();
        let submits: HashMap<TaskId, &Submit> = history
            .submits
            .iter()
            .filter_map(|submit| match submit.answer {
                Answer::Accepted { id, .. } => Some((id, submit)),
                _ => None,
            })
            .collect();
        for change in &history.changes {
            let (id, state, failures, crashes, error) = match &change.row {
                Row::Task { id, max_attempts, .. } => {
                    limits.insert(*id, *max_attempts);
                    continue;
                }
                Row::Finished {
                    id,
                    state,
                    failures,
                    crashes,
                    error,
                    ..
                } => (id, *state, *failures, *crashes, error),
                _ => continue,
            };
            let mut tell = |kind, text| found.push(Violation::new(kind, text).row(change));
            let limit = limits.remove(id);
            let count = failures + crashes;
            if limit.is_some_and(|limit| count > limit) {
                tell(
                    "too often",
                    format!("{id} failed {failures} times and crashed {crashes} times, of {limit:?}"),
                );
            }
            if state == State::Dead && error.as_ref().is_none_or(|error| error.is_empty()) {
                tell("no reason", format!("{id} is dead, and nothing says why"));
            }
            let Some(submit) = submits.get(id) else { continue };
            if *submit.kind == *HARMFUL || submit.expected == Expected::Dead {
                continue;
            }
            if failures > 0 {
                tell(
                    "blamed",
                    format!("{id} has {failures} failures, though its handler never fails"),
                );
            }
            if state == State::Dead && limit.is_some_and(|limit| count < limit) {
                tell(
                    "given up",
                    format!("{id} is dead after {count} of {limit:?} attempts"),
                );
            }
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, finished};
    use super::*;

    fn ended(expected: Expected, state: State, counts: (i32, i32), why: Option<&str>) -> Build {
        let mut build = Build::mesh();
        let claim = build.submit_as("a", 1, expected);
        let mut row = finished(&claim, state);
        if let Row::Finished {
            failures,
            crashes,
            error,
            ..
        } = &mut row
        {
            (*failures, *crashes) = counts;
            *error = why.map(Into::into);
        }
        build.commit([row]);
        build
    }

    #[test]
    fn what_the_task_did_counts() {
        ended(Expected::Effect, State::Succeeded, (0, 0), None).passes(&Attempts);
        ended(Expected::Effect, State::Succeeded, (0, 3), None).passes(&Attempts);
        ended(Expected::Dead, State::Dead, (6, 4), Some("no")).passes(&Attempts);
        ended(Expected::Dead, State::Dead, (1, 0), Some("for good")).passes(&Attempts);
        let mut build = ended(Expected::Effect, State::Succeeded, (2, 0), None);
        build.history.submits[0].kind = HARMFUL.into();
        build.passes(&Attempts);
    }

    #[test]
    fn what_it_did_not_is_seen() {
        ended(Expected::Dead, State::Dead, (6, 5), Some("no")).fails(&Attempts, "too often");
        ended(Expected::Dead, State::Dead, (6, 4), None).fails(&Attempts, "no reason");
        ended(Expected::Dead, State::Dead, (6, 4), Some("")).fails(&Attempts, "no reason");
        ended(Expected::Effect, State::Succeeded, (1, 0), None).fails(&Attempts, "blamed");
        ended(Expected::Effect, State::Dead, (0, 1), Some("no")).fails(&Attempts, "given up");
    }
}
