//! I11: what counts against a task is what the task did.
//!
//! **Promise** (P2). A task ends dead after `max_attempts` failures and crashes, never later; sooner only if its handler said so for good.
//! Three crashes end it, whatever its limit is. Dead tasks say why. A lost lease, a drain, a handoff add nothing.
//!
//! **Algorithm.** One pass over ends, with the limits that the inserts named, and what submits expected. A task whose handler
//! never fails by itself must have no failures whatever befell its owners, and does not end dead.
//!
//! A crash is the loss of a suspect that ran alone, and a task becomes one only by two losses before: so a task has at least two
//! crashes less than its slot had grants since its insert. Where no node ended, froze or was cut off, slots stay, and no task has any.
//!
//! **Excluded.** Whether a crash was the task's fault: a node that is killed while it runs a suspect alone is one, as nobody could
//! tell. Grants after a failover (a second baseline): epochs may have gone back.

use std::collections::HashMap;

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, Expected, History, Row, State, Submit};

pub(super) struct Attempts;

/// So many crashes end a task.
const CRASHES: i32 = 3;
/// So many losses make a task a suspect that runs alone.
const LOSSES: i64 = 2;
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
        let (mut baseline, mut failed_over) = (None, false);
        let mut epochs: HashMap<i32, i64> = HashMap::new();
        // The epoch of its slot at each task's insert; of those in the baseline it is not known.
        let mut inserts: HashMap<TaskId, i64> = HashMap::new();
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
                Row::Baseline => {
                    failed_over |= baseline.replace(change.transaction).is_some();
                    continue;
                }
                Row::Slot { slot, epoch, .. } => {
                    epochs.insert(*slot, *epoch);
                    continue;
                }
                Row::Task { id, max_attempts, .. } => {
                    let known = limits.insert(*id, *max_attempts).is_some();
                    if !known && baseline != Some(change.transaction) {
                        inserts.insert(*id, epoch(&epochs, *id));
                    }
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
            let grants = inserts.remove(id).map(|insert| epoch(&epochs, *id) - insert);
            if let Some(grants) = grants
                && !failed_over
                && i64::from(crashes) > (grants - LOSSES).max(0)
            {
                tell(
                    "blamed",
                    format!("{id} has {crashes} crashes, and its slot was granted {grants} times"),
                );
            }
            if state == State::Succeeded && crashes >= CRASHES {
                tell(
                    "too often",
                    format!("{id} ran on after {crashes} crashes, and {CRASHES} end a task"),
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

/// That of the task's slot, as far as it was seen.
fn epoch(epochs: &HashMap<i32, i64>, id: TaskId) -> i64 {
    epochs.get(&i32::from(id.slot.get())).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, finished};
    use super::*;
    use crate::history::Change;

    /// A task whose slot changed its owner just as often as its crashes need.
    fn ended(expected: Expected, state: State, counts: (i32, i32), why: Option<&str>) -> Build {
        let grants = if counts.1 > 0 { counts.1 + 2 } else { 0 };
        ended_after(grants, expected, state, counts, why)
    }

    fn ended_after(
        grants: i32,
        expected: Expected,
        state: State,
        counts: (i32, i32),
        why: Option<&str>,
    ) -> Build {
        let mut build = Build::mesh();
        let claim = build.submit_as("a", 1, expected);
        for grant in 0..i64::from(grants) {
            build.grant(0, 2 + grant % 2, 2 + grant);
        }
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
        ended(Expected::Effect, State::Succeeded, (0, 2), None).passes(&Attempts);
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
        ended(Expected::Effect, State::Succeeded, (0, 3), None).fails(&Attempts, "too often");
    }

    #[test]
    fn a_loss_or_a_drain_alone_is_no_crash() {
        for grants in 0..3 {
            let build = ended_after(grants, Expected::Effect, State::Succeeded, (0, 1), None);
            build.fails(&Attempts, "blamed");
        }
        let mut build = ended_after(3, Expected::Effect, State::Succeeded, (0, 2), None);
        build.fails(&Attempts, "blamed");
        // Of what was before a failover nothing is known.
        let end = build.history.changes.len() - 1;
        let baseline = Change {
            row: Row::Baseline,
            ..build.history.changes[end].clone()
        };
        build.history.changes.insert(end, baseline);
        build.passes(&Attempts);
    }
}
