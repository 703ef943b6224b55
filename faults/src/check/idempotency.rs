//! I13: whatever is repeated under one idempotency key is one task.
//!
//! **Promise.** All requests with one key, kind and idempotency key that are answered 2xx name one task, and one of them at most made it. Another
//! body under the same idempotency key is refused as such. A request without an answer changes nothing in this: its repetition
//! names the task that it may have made. So no task is there that no request can have made, whether it has an effect or not.
//!
//! **Algorithm.** Groups by (key, kind, idempotency key). Then one pass over the log for inserted tasks that no answer names:
//! a key has no more of them than requests without an answer can have made, that is one for each idempotency key that no
//! answer resolved, and one for each such request without an idempotency key.
//!
//! **Excluded.** Which of several bodies was first: any of them may be the task's, but one only. Tasks that stood at the first
//! baseline: no request here made them. After a failover only those that are still open there, since what it lost may
//! rightly be made again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, History, Row, Submit};

pub(super) struct Idempotency;

/// How another body is refused.
const OTHER_BODY: u16 = 422;

impl Checker for Idempotency {
    fn id(&self) -> &'static str {
        "I13"
    }

    fn title(&self) -> &'static str {
        "repetitions are one task"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut groups: HashMap<(&str, &str, &str), Vec<&Submit>> = HashMap::new();
        // How many tasks that no answer names can have been made, by key.
        let mut unnamed: HashMap<&str, usize> = HashMap::new();
        for submit in &history.submits {
            if let Some(name) = &submit.idempotency_key {
                groups
                    .entry((&submit.key, &submit.kind, name))
                    .or_default()
                    .push(submit);
            } else if is_unknown(submit) {
                *unnamed.entry(&submit.key).or_default() += 1;
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_unstable_by_key(|(name, _)| *name);
        let mut found = Vec::new();
        for ((key, _, name), submits) in groups {
            if submits.len() > 1 {
                group(key, name, &submits, &mut found);
            }
            let resolved = submits
                .iter()
                .any(|submit| matches!(submit.answer, Answer::Accepted { .. }));
            if !resolved && submits.iter().any(|submit| is_unknown(submit)) {
                *unnamed.entry(key).or_default() += 1;
            }
        }
        doubled(history, &unnamed, &mut found);
        found
    }
}

fn is_unknown(submit: &Submit) -> bool {
    matches!(submit.answer, Answer::Unknown { .. })
}

/// Tasks of the log that no answer names, where there are more of them than can have been made.
fn doubled(history: &History, unnamed: &HashMap<&str, usize>, found: &mut Vec<Violation>) {
    let named: HashSet<TaskId> = history
        .submits
        .iter()
        .filter_map(|submit| match submit.answer {
            Answer::Accepted { id, .. } => Some(id),
            Answer::Refused { .. } | Answer::Unknown { .. } => None,
        })
        .collect();
    let mut strays: BTreeMap<&str, BTreeSet<TaskId>> = BTreeMap::new();
    let mut before: HashSet<TaskId> = HashSet::new();
    let mut baseline = 0;
    for change in &history.changes {
        match &change.row {
            Row::Baseline => {
                baseline = change.transaction;
                before = std::mem::take(&mut strays).into_values().flatten().collect();
            }
            Row::Task { id, key, attempt, .. } if !named.contains(id) => {
                // A row that was never claimed is one that was inserted; a baseline only says which are left.
                let made = match change.transaction == baseline {
                    true => before.contains(id),
                    false => *attempt == 0,
                };
                if made {
                    strays.entry(&**key).or_default().insert(*id);
                }
            }
            _ => {}
        }
    }
    for (key, tasks) in strays {
        let most = unnamed.get(key).copied().unwrap_or(0);
        if tasks.len() > most {
            let count = tasks.len();
            let text = format!(
                "{count} tasks of key {key} are named by no answer, and requests without one can have made {most}"
            );
            let mut violation = Violation::new("doubled", text);
            violation.rows = tasks.iter().map(TaskId::to_string).collect();
            found.push(violation);
        }
    }
}

fn group(key: &str, name: &str, submits: &[&Submit], found: &mut Vec<Violation>) {
    let (mut ids, mut bodies, mut made) = (HashSet::new(), HashSet::new(), 0);
    for submit in submits {
        if let Answer::Accepted { id, replay } = submit.answer {
            ids.insert(id);
            bodies.insert(submit.body);
            made += usize::from(!replay);
        }
    }
    let mut tell = |kind, text: String| {
        let mut violation = Violation::new(kind, format!("{name} of key {key}: {text}"));
        violation.rows = submits.iter().map(|submit| format!("{submit:?}")).collect();
        found.push(violation);
    };
    if ids.len() > 1 {
        tell("two tasks", format!("{} tasks", ids.len()));
    } else if made > 1 {
        tell("two tasks", format!("{made} requests made it"));
    }
    if bodies.len() > 1 {
        tell("other body", format!("{} bodies were accepted", bodies.len()));
    }
    let same = |submit: &&&Submit| bodies.contains(&submit.body);
    let refused = |submit: &&&Submit| {
        matches!(
            submit.answer,
            Answer::Refused {
                status: OTHER_BODY,
                ..
            }
        )
    };
    if submits.iter().filter(same).any(|submit| refused(&submit)) {
        tell(
            "refused",
            "a repetition of what was accepted was refused as another body".into(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, id, task};
    use super::*;

    fn accepted(number: i64, replay: bool) -> Answer {
        Answer::Accepted {
            id: id("a", number),
            replay,
        }
    }

    fn refused(status: u16) -> Answer {
        Answer::Refused {
            status,
            code: "x".into(),
        }
    }

    fn asked(answers: Vec<(Answer, u64)>) -> Build {
        let mut build = Build::mesh();
        for (answer, body) in answers {
            let sent = build.now;
            let submit = build.request("a", 1, sent, answer);
            submit.idempotency_key = Some("k".into());
            submit.body = body;
        }
        build
    }

    #[test]
    fn one_task_and_one_body_pass() {
        let unknown = Answer::Unknown { why: "reset".into() };
        asked(vec![
            (unknown, 1),
            (refused(503), 1),
            (accepted(1, true), 1),
            (accepted(1, true), 1),
            (refused(422), 2),
        ])
        .passes(&Idempotency);
    }

    #[test]
    fn two_tasks_are_seen() {
        asked(vec![(accepted(1, false), 1), (accepted(2, true), 1)]).fails(&Idempotency, "two tasks");
        asked(vec![(accepted(1, false), 1), (accepted(1, false), 1)]).fails(&Idempotency, "two tasks");
    }

    /// A request without an answer that made a task, and then its repetition, which is told of that task or of a second one.
    fn repeated(second: bool) -> Build {
        let mut build = Build::mesh();
        let sent = build.now;
        build.commit([task(id("a", 1), "a")]);
        let unknown = Answer::Unknown { why: "reset".into() };
        build.request("a", 1, sent, unknown).idempotency_key = Some("k".into());
        let sent = build.now;
        if second {
            build.commit([task(id("a", 2), "a")]);
        }
        let answer = accepted(if second { 2 } else { 1 }, !second);
        build.request("a", 1, sent, answer).idempotency_key = Some("k".into());
        build
    }

    #[test]
    fn a_repetition_that_names_the_first_task_passes() {
        let mut build = repeated(false);
        // One more under a key that nothing resolved, and one without a key.
        for (number, name) in [(3, Some("l".into())), (4, None)] {
            build.commit([task(id("a", number), "a")]);
            let sent = build.now;
            let unknown = Answer::Unknown { why: "reset".into() };
            build.request("a", number, sent, unknown).idempotency_key = name;
        }
        build.passes(&Idempotency);
        // Each of them again: a failure, then a failover.
        build.commit([task(id("a", 3), "a")]);
        build.commit([Row::Baseline, task(id("a", 4), "a"), task(id("b", 9), "b")]);
        build.passes(&Idempotency);
    }

    #[test]
    fn a_second_task_of_a_repetition_is_doubled_without_any_effect() {
        let found = repeated(true).fails(&Idempotency, "doubled");
        assert_eq!(found.rows, [id("a", 1).to_string()]);
    }

    #[test]
    fn a_task_of_a_refused_request_is_doubled() {
        let mut build = asked(vec![(refused(503), 1)]);
        build.commit([task(id("a", 1), "a")]);
        build.fails(&Idempotency, "doubled");
    }

    #[test]
    fn another_body_that_is_accepted_is_seen() {
        asked(vec![(accepted(1, false), 1), (accepted(1, true), 2)]).fails(&Idempotency, "other body");
    }

    #[test]
    fn the_same_body_that_is_refused_is_seen() {
        asked(vec![(accepted(1, false), 1), (refused(422), 1)]).fails(&Idempotency, "refused");
    }
}
