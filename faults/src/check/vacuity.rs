//! I17: a run in which nothing happened shows nothing.
//!
//! **Promise.** This one is about the suite. A scenario says what its faults must have brought about; a run without it is *invalid*: neither
//! green nor red.
//!
//! **Algorithm.** Counts. Fine are answers 2xx and those 4xx that say something about the request; a request counts as planned
//! if it was sent outside of faults and not shortly after. Where views were looked at, some must have been judged after all was healed.

use std::collections::HashMap;

use super::windows::{aftermath, windows};
use super::{isolation, views};
use crate::history::{Answer, History, Row, State};

/// What a run must show.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Requirements {
    /// A write that a fence refused.
    pub refused_writes: bool,
    /// A slot that went on from a dead owner.
    pub takeovers: bool,
    /// A commit whose reply was lost.
    pub unknown_commits: bool,
    /// Enough ends before and beside harmful tasks to compare them (I14).
    pub isolation: bool,
}

/// So many in a hundred requests outside of faults are fine.
const FINE_PERCENT: usize = 90;

/// What a run did not show; not empty: it is invalid.
pub fn lacks(history: &History, required: Requirements) -> Vec<String> {
    let mut lacks = Vec::new();
    if required.refused_writes && refused_writes(history).0 == 0 {
        lacks.push("no write was refused by a fence".to_owned());
    }
    if required.takeovers && takeovers(history) == 0 {
        lacks.push("no slot was taken over from the dead".to_owned());
    }
    if required.unknown_commits && history.end.unknown_commits == 0 {
        lacks.push("no reply to a commit was lost".to_owned());
    }
    if !history.views.is_empty() && !views::are_judged_at_last(history) {
        lacks.push("after the last fault no views of the mesh were judged".to_owned());
    }
    if required.isolation && !isolation::judges(history) {
        lacks.push("too few tasks ended before harmful ones, or beside them".to_owned());
    }
    let windows = windows(history);
    let after = aftermath(history);
    let (mut planned, mut fine) = (0, 0);
    for submit in &history.submits {
        if windows.iter().any(|window| window.covers(submit.sent, after)) {
            continue;
        }
        planned += 1;
        fine += usize::from(match &submit.answer {
            Answer::Accepted { .. } => true,
            Answer::Refused { status, .. } => (400..500).contains(status) && *status != 429,
            Answer::Unknown { .. } => false,
        });
    }
    if history.submits.is_empty() {
        lacks.push("nothing was submitted".to_owned());
    } else if fine * 100 < planned * FINE_PERCENT {
        lacks.push(format!(
            "of {planned} requests outside of faults only {fine} were fine"
        ));
    }
    lacks
}

/// How many writes a fence refused, at least, and how many were refused since the task had ended elsewhere, at most.
///
/// Nodes log both alike. But the end of a claimed task that is not its run's is a cancel, and one cancel refuses at most one
/// write.
pub(super) fn refused_writes(history: &History) -> (u64, u64) {
    let (mut cancels, mut baseline) = (0, 0);
    for change in &history.changes {
        match &change.row {
            Row::Baseline => baseline = change.transaction,
            Row::Finished {
                state: State::Cancelled,
                epoch: Some(_),
                ..
            } if change.transaction != baseline => cancels += 1,
            _ => {}
        }
    }
    let all = history.end.refused_writes;
    let elsewhere = all.min(cancels);
    (all - elsewhere, elsewhere)
}

/// How many slots went on from an owner that was declared dead.
pub(super) fn takeovers(history: &History) -> u64 {
    let mut fenced: HashMap<i64, bool> = HashMap::new();
    let mut owners: HashMap<i32, i64> = HashMap::new();
    let (mut count, mut baseline) = (0, 0);
    for change in &history.changes {
        match &change.row {
            Row::Baseline => baseline = change.transaction,
            Row::Node {
                incarnation,
                fenced: how,
                ..
            } => {
                fenced.insert(*incarnation, how.is_some());
            }
            Row::Slot {
                slot,
                owner: Some(owner),
                ..
            } => {
                let before = owners.insert(*slot, *owner);
                let dead =
                    before.is_some_and(|before| before != *owner && fenced.get(&before) == Some(&true));
                count += u64::from(dead && change.transaction != baseline);
            }
            _ => {}
        }
    }
    count
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S, finished};
    use super::*;
    use crate::history::View;

    const ALL: Requirements = Requirements {
        refused_writes: true,
        takeovers: true,
        unknown_commits: true,
        isolation: false,
    };

    fn eventful() -> Build {
        let mut build = Build::mesh();
        build.done("b", 1);
        build.kill_and_take_over();
        build.history.end.refused_writes = 1;
        build.history.end.unknown_commits = 1;
        build
    }

    #[test]
    fn a_run_in_which_it_happened_is_valid() {
        assert_eq!(lacks(&eventful().history, ALL), Vec::<String>::new());
        assert_eq!(takeovers(&eventful().history), 9);
    }

    #[test]
    fn a_run_in_which_it_did_not_is_invalid() {
        let mut build = Build::mesh();
        build.done("b", 1);
        assert_eq!(lacks(&build.history, ALL).len(), 3);
        let isolation = Requirements {
            isolation: true,
            ..Requirements::default()
        };
        assert_eq!(lacks(&build.history, isolation).len(), 1);
        assert_eq!(
            lacks(&build.history, Requirements::default()),
            Vec::<String>::new()
        );
        assert_eq!(lacks(&Build::mesh().history, Requirements::default()).len(), 1);
    }

    #[test]
    fn a_run_whose_views_are_not_judged_is_invalid() {
        let mut build = Build::mesh();
        build.done("b", 1);
        for (rounds, lacking) in [(3, 1), (7, 0)] {
            build.history.views = (0..rounds)
                .map(|round| View {
                    round,
                    at: build.now + i64::try_from(round).unwrap() * S,
                    node: None,
                    digest: Some(1),
                    ready: true,
                })
                .collect();
            assert_eq!(lacks(&build.history, Requirements::default()).len(), lacking);
        }
    }

    #[test]
    fn a_write_that_a_cancel_may_have_refused_is_none_of_a_fence() {
        let mut build = eventful();
        let claim = build.submit("b", 2);
        build.commit([finished(&claim, State::Cancelled)]);
        assert_eq!(refused_writes(&build.history), (0, 1));
        assert_eq!(lacks(&build.history, ALL).len(), 1);
        build.history.end.refused_writes = 3;
        assert_eq!(refused_writes(&build.history), (2, 1));
        build.history.end.refused_claims = 9;
        assert_eq!(refused_writes(&build.history), (2, 1));
    }

    #[test]
    fn a_run_whose_requests_fail_without_faults_is_invalid() {
        let mut build = Build::mesh();
        for seq in 1..=8 {
            build.submit("a", seq);
        }
        let refused = |status| Answer::Refused {
            status,
            code: "x".into(),
        };
        let sent = build.now;
        build.request("a", 9, sent, refused(422));
        build.request("a", 10, sent, refused(503));
        assert_eq!(
            lacks(&build.history, Requirements::default()),
            Vec::<String>::new()
        );
        build.request("a", 11, sent, Answer::Unknown { why: "late".into() });
        assert_eq!(lacks(&build.history, Requirements::default()).len(), 1);
        // During a fault that is to be expected.
        let mut build = eventful();
        let sent = build.now;
        build.request("a", 11, sent, refused(503));
        assert_eq!(lacks(&build.history, ALL), Vec::<String>::new());
    }
}
