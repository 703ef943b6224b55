//! I10: tasks neither come from nowhere nor go anywhere, and an end is an end.
//!
//! **Promise** (P1). Whatever moment one looks: all tasks in all states together are as many as were accepted. A task that has ended
//! never changes again.
//!
//! **Algorithm.** In the log: a set of ended tasks; a second end, or a change of what ended, is a violation. For each snapshot: the
//! sum over all states is at least what had been answered before it was asked for, and at most what had been sent before
//! it was answered, repetitions under one idempotency key not counted; the ended ones never get fewer. Tasks that stood in the baseline are added to both.
//!
//! **Excluded.** After a failover (a second baseline) the sums of snapshots are not compared: what an asynchronous standby lost, I1
//! counts. Retention removes ended tasks days later than any run lasts.

use std::collections::HashSet;

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, At, History, Row};

pub(super) struct Conservation;

const ENDED: [&str; 3] = ["succeeded", "dead", "cancelled"];

impl Checker for Conservation {
    fn id(&self) -> &'static str {
        "I10"
    }

    fn title(&self) -> &'static str {
        "tasks are neither made up nor mislaid, and an end is final"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut ended: HashSet<TaskId> = HashSet::new();
        let (mut baselines, mut baseline, mut stood) = (0, 0, 0);
        for change in &history.changes {
            match &change.row {
                Row::Baseline => {
                    baselines += 1;
                    baseline = change.transaction;
                    ended.clear();
                }
                Row::Task { id, .. } if ended.contains(id) => {
                    found.push(
                        Violation::new("revived", format!("{id} had ended and is open again")).row(change),
                    );
                }
                Row::Finished { id, .. } if !ended.insert(*id) => {
                    found.push(Violation::new("twice", format!("{id} ended a second time")).row(change));
                }
                Row::FinishedTouched { id } => {
                    found.push(Violation::new("touched", format!("the end of {id} was changed")).row(change));
                }
                Row::Truncated { table } => {
                    found.push(Violation::new("touched", format!("{table} was emptied")).row(change));
                }
                Row::Task { .. } | Row::Finished { .. } if change.transaction == baseline => stood += 1,
                _ => {}
            }
        }
        if baselines <= 1 {
            sums(history, stood, &mut found);
        }
        found
    }
}

fn sums(history: &History, stood: i64, found: &mut Vec<Violation>) {
    // When each task was first answered, and when each request that may have made one was sent.
    let mut ids: HashSet<TaskId> = HashSet::new();
    let mut answered: Vec<At> = Vec::new();
    let mut sent: Vec<At> = Vec::new();
    let mut accepted: Vec<(At, TaskId)> = Vec::new();
    let mut names: HashSet<(&str, &str, &str)> = HashSet::new();
    for submit in &history.submits {
        match submit.answer {
            Answer::Accepted { id, .. } => accepted.push((submit.answered, id)),
            Answer::Unknown { .. } => {}
            Answer::Refused { .. } => continue,
        }
        let name = submit.idempotency_key.as_deref();
        if name.is_none_or(|name| names.insert((&submit.key, &submit.kind, name))) {
            sent.push(submit.sent);
        }
    }
    accepted.sort_unstable();
    answered.extend(
        accepted
            .iter()
            .filter(|(_, id)| ids.insert(*id))
            .map(|(at, _)| *at),
    );
    sent.sort_unstable();
    let mut ends = [0; ENDED.len()];
    for sample in &history.samples {
        let sum: i64 = sample.states.values().sum();
        let least = stood + answered.partition_point(|at| *at < sample.at) as i64;
        let most = stood + sent.partition_point(|at| *at < sample.answered) as i64;
        if !(least..=most).contains(&sum) {
            let text =
                format!("a snapshot holds {sum} tasks, {least} were accepted before it and {most} sent");
            found.push(Violation::new("sum", text).row(sample));
        }
        for (state, last) in ENDED.iter().zip(&mut ends) {
            let now = sample.states.get(*state).copied().unwrap_or(0);
            if now < *last {
                let text = format!("{last} tasks were {state}, and in a later snapshot {now}");
                found.push(Violation::new("fewer", text).row(sample));
            }
            *last = now;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, finished, task};
    use super::*;
    use crate::history::{Sample, State};

    fn sample(build: &mut Build, states: &[(&str, i64)]) {
        build.history.samples.push(Sample {
            at: build.now,
            answered: build.now,
            states: states
                .iter()
                .map(|(state, count)| ((*state).into(), *count))
                .collect(),
            bank: None,
        });
    }

    fn good() -> Build {
        let mut build = Build::mesh();
        sample(&mut build, &[]);
        build.done("a", 1);
        build.done("a", 2);
        build.submit("b", 1);
        let sent = build.now;
        build.request("b", 2, sent, Answer::Unknown { why: "reset".into() });
        build.tick(1);
        build
    }

    #[test]
    fn as_many_as_were_accepted_pass() {
        for pending in [1, 2] {
            let mut build = good();
            sample(&mut build, &[("succeeded", 2), ("pending", pending)]);
            build.passes(&Conservation);
        }
    }

    #[test]
    fn too_few_and_too_many_are_seen() {
        for pending in [0, 3] {
            let mut build = good();
            sample(&mut build, &[("succeeded", 2), ("pending", pending)]);
            build.fails(&Conservation, "sum");
        }
    }

    #[test]
    fn repetitions_under_one_idempotency_key_allow_no_second_task() {
        for (pending, kinds) in [(2, 0), (3, 1)] {
            let mut build = good();
            for submit in &mut build.history.submits {
                submit.idempotency_key = Some(format!("{}/{}", submit.key, submit.seq).into());
            }
            let again = build.history.submits.last().unwrap().clone();
            build.history.submits.push(again);
            sample(&mut build, &[("succeeded", 2), ("pending", pending)]);
            assert_eq!(Conservation.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn ended_tasks_do_not_get_fewer() {
        let mut build = good();
        sample(&mut build, &[("succeeded", 2), ("running", 1)]);
        sample(&mut build, &[("succeeded", 1), ("running", 2)]);
        build.fails(&Conservation, "fewer");
    }

    #[test]
    fn an_end_is_final() {
        let mut build = good();
        let claim = build.done("c", 1);
        build.commit([finished(&claim, State::Dead)]);
        build.fails(&Conservation, "twice");
        let mut build = good();
        let claim = build.done("c", 1);
        build.commit([task(claim.id, "c")]);
        build.fails(&Conservation, "revived");
        let mut build = good();
        let claim = build.done("c", 1);
        build.commit([Row::FinishedTouched { id: claim.id }]);
        build.fails(&Conservation, "touched");
        let mut build = good();
        build.commit([Row::Truncated { table: "task".into() }]);
        build.fails(&Conservation, "touched");
    }
}
