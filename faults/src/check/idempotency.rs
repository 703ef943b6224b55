//! I13: whatever is repeated under one idempotency key is one task.
//!
//! **Promise.** All requests with one key, kind and idempotency key that are answered 2xx name one task, and one of them at most made it. Another
//! body under the same idempotency key is refused as such. A request without an answer changes nothing in this: its repetition
//! names the task that it may have made.
//!
//! **Algorithm.** Groups by (key, kind, idempotency key).
//!
//! **Excluded.** Which of several bodies was first: any of them may be the task's, but one only.

use std::collections::{HashMap, HashSet};

use super::{Checker, Violation};
use crate::history::{Answer, History, Submit};

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
        for submit in &history.submits {
            if let Some(name) = &submit.idempotency_key {
                groups
                    .entry((&submit.key, &submit.kind, name))
                    .or_default()
                    .push(submit);
            }
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_unstable_by_key(|(name, _)| *name);
        let mut found = Vec::new();
        for ((key, _, name), submits) in groups {
            if submits.len() > 1 {
                group(key, name, &submits, &mut found);
            }
        }
        found
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
    use super::super::build::{Build, id};
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

    #[test]
    fn another_body_that_is_accepted_is_seen() {
        asked(vec![(accepted(1, false), 1), (accepted(1, true), 2)]).fails(&Idempotency, "other body");
    }

    #[test]
    fn the_same_body_that_is_refused_is_seen() {
        asked(vec![(accepted(1, false), 1), (refused(422), 1)]).fails(&Idempotency, "refused");
    }
}
