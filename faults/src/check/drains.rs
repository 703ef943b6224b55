//! I18: nodes that end in order cost no request.
//!
//! **Promise.** While nodes are drained, or all are restarted in turn, as they are or with another version, a client that repeats what
//! was refused for now or not answered, at another node and under its idempotency key, fails with nothing: other nodes take its
//! tasks at all times.
//!
//! **Algorithm.** Groups requests by what they submit. The last of each must be answered by more than that nobody is there, within
//! 10 s of the first: five times as long as a client waits for one answer. And no answer is a 5xx other than 503, which nobody is
//! told to repeat.
//!
//! **Excluded.** Runs with any other fault. A single request that breaks off: a connection may be closed while the next
//! request is on its way, and a drain that is cut short ends as a kill does. Under an idempotency key it is repeated.

use std::collections::HashMap;

use super::{Checker, Violation};
use crate::history::{Answer, At, History, Step, Submit};

pub(super) struct Drains;

/// So long a submit may take with all its repetitions, ns.
const KNOWN_WITHIN: At = 10_000_000_000;

impl Checker for Drains {
    fn id(&self) -> &'static str {
        "I18"
    }

    fn title(&self) -> &'static str {
        "drains and restarts in turn fail no request"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        if !drains_alone(history) {
            return Vec::new();
        }
        let mut groups: HashMap<(&str, &str, i64), Vec<&Submit>> = HashMap::new();
        for submit in &history.submits {
            let group = groups.entry((&submit.client, &submit.key, submit.seq));
            group.or_default().push(submit);
        }
        let mut groups: Vec<_> = groups.into_iter().collect();
        groups.sort_unstable_by_key(|(name, _)| *name);
        let mut found = Vec::new();
        for ((_, key, seq), submits) in groups {
            // In the order of their being sent.
            if let (Some(first), Some(last)) = (submits.first(), submits.last()) {
                judge(key, seq, first, last, &mut found);
            }
        }
        for submit in history.submits.iter().filter(|submit| is_error(&submit.answer)) {
            let text = format!("{} of key {} was answered with an error", submit.seq, submit.key);
            found.push(Violation::new("error", text).row(submit));
        }
        found
    }
}

fn judge(key: &str, seq: i64, first: &Submit, last: &Submit, found: &mut Vec<Violation>) {
    let took = last.answered - first.sent;
    if is_unavailable(&last.answer) {
        let text = format!("{seq} of key {key} was given up after {} ms", took / 1_000_000);
        found.push(Violation::new("failed", text).row(last));
    } else if took > KNOWN_WITHIN {
        let text = format!("{seq} of key {key} took {} ms", took / 1_000_000);
        found.push(Violation::new("late", text).row(first));
    }
}

/// Whether there are faults, and each drains nodes.
fn drains_alone(history: &History) -> bool {
    let mut faults = history.moments.iter().filter_map(|moment| match &moment.step {
        Step::Fault { id, .. } => Some(matches!(&**id, "N3" | "N7")),
        _ => None,
    });
    faults.next() == Some(true) && faults.all(|drains| drains)
}

/// Whether it says no more than that nobody is there: not for now, not reached, not heard.
fn is_unavailable(answer: &Answer) -> bool {
    match answer {
        Answer::Accepted { .. } => false,
        Answer::Refused { status, .. } => matches!(status, 429 | 503),
        Answer::Unknown { .. } => true,
    }
}

/// Whether a node said that something went wrong in it; what was answered stands first in why it is not known.
fn is_error(answer: &Answer) -> bool {
    matches!(answer, Answer::Unknown { why } if why.starts_with('5') && !why.starts_with("503"))
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S, id};
    use super::*;

    fn refused(status: u16) -> Answer {
        Answer::Refused {
            status,
            code: "x".into(),
        }
    }

    fn unknown(why: &str) -> Answer {
        Answer::Unknown { why: why.into() }
    }

    fn accepted() -> Answer {
        Answer::Accepted {
            id: id("a", 1),
            replay: false,
        }
    }

    /// One submit with these answers, a second apart, while nodes restart in turn.
    fn answered(answers: Vec<Answer>) -> Build {
        let mut build = Build::mesh();
        build.done("b", 1);
        build.fault("N7", "rolling-restart", &[1, 2, 3]);
        for answer in answers {
            let sent = build.tick(S);
            build.request("a", 1, sent, answer);
        }
        build
    }

    #[test]
    fn what_is_repeated_and_accepted_passes() {
        let broken = unknown("the connection broke");
        let lost = unknown("503 outcome_unknown");
        answered(vec![refused(503), broken, lost, refused(429), accepted()]).passes(&Drains);
        answered(vec![refused(422)]).passes(&Drains);
    }

    #[test]
    fn what_is_given_up_is_seen() {
        for last in [refused(503), refused(429), unknown("no answer in time")] {
            answered(vec![last.clone()]).fails(&Drains, "failed");
            answered(vec![accepted(), last]).fails(&Drains, "failed");
        }
    }

    #[test]
    fn what_is_accepted_only_after_long_is_seen() {
        let mut answers = vec![refused(503); 12];
        answers.push(accepted());
        answered(answers).fails(&Drains, "late");
    }

    #[test]
    fn an_error_is_seen_though_its_repetition_is_accepted() {
        answered(vec![unknown("500 internal"), accepted()]).fails(&Drains, "error");
    }

    #[test]
    fn under_other_faults_nothing_is_said() {
        let mut build = answered(vec![refused(503)]);
        build.step(Step::Heal { id: "N7".into() });
        build.fault("N1", "kill", &[1]);
        build.passes(&Drains);
        let mut build = Build::mesh();
        let sent = build.now;
        build.request("a", 1, sent, refused(503));
        build.passes(&Drains);
    }
}
