//! I5: tasks of one key take effect in the order in which they were accepted.
//!
//! **Promise** (P4). If one submit was answered before the next of its key was sent, their effects are committed in that order,
//! retries included. And of two runs of one key that overlap, since one ignores its cancellation, only one commits.
//!
//! **Algorithm.** For each key, its tasks by the time they were first sent; a second finger walks by the time they were first answered,
//! and keeps the latest effect among those answered before the present one was sent: this must come later still. For runs:
//! those of a key that committed, by their start; each begins after all before it have ended.
//!
//! The end of a task that writes nothing is its effect.
//!
//! **Excluded.** Tasks that wait for a time: their order follows from when they are due. Tasks that end otherwise than well
//! have no place in the order of effects; a submit without an answer binds nobody. A run whose end nobody noted is counted as long as
//! its process noted anything. Repetitions under an idempotency key are one task: sent with the first, answered with the
//! first answer that names it.

use std::collections::HashMap;

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, At, History, Row, State, Submit, What};

pub(super) struct KeyOrder;

impl Checker for KeyOrder {
    fn id(&self) -> &'static str {
        "I5"
    }

    fn title(&self) -> &'static str {
        "tasks of one key take effect in their order, one at a time"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let effects = effects(history);
        let mut found = Vec::new();
        overtaken(history, &effects, &mut found);
        overlapping(history, &effects, &mut found);
        found
    }
}

/// The first effect of each task, or its end if it has none: its place in the log, its epoch and attempt.
fn effects(history: &History) -> HashMap<TaskId, (usize, i64, i32)> {
    let mut effects = HashMap::new();
    let mut baseline = 0;
    for (place, change) in history.changes.iter().enumerate() {
        match &change.row {
            Row::Baseline => baseline = change.transaction,
            // A snapshot has no order.
            Row::Effect { .. } | Row::Finished { .. } if change.transaction == baseline => {}
            Row::Effect {
                task, epoch, attempt, ..
            } => {
                effects.entry(*task).or_insert((place, *epoch, *attempt));
            }
            Row::Finished {
                id,
                state: State::Succeeded,
                epoch: Some(epoch),
                attempt,
                ..
            } => {
                effects.entry(*id).or_insert((place, *epoch, *attempt));
            }
            _ => {}
        }
    }
    effects
}

/// A task as its clients saw it.
#[derive(Clone, Copy)]
struct Seen<'a> {
    id: TaskId,
    sent: At,
    answered: At,
    effect: usize,
    submit: &'a Submit,
}

fn overtaken(history: &History, effects: &HashMap<TaskId, (usize, i64, i32)>, found: &mut Vec<Violation>) {
    // When something under an idempotency key was first sent.
    let mut first_sent: HashMap<(&str, &str, &str), At> = HashMap::new();
    for submit in &history.submits {
        if let Some(name) = &submit.idempotency_key {
            let sent = first_sent
                .entry((&submit.key, &submit.kind, name))
                .or_insert(submit.sent);
            *sent = submit.sent.min(*sent);
        }
    }
    let mut tasks: HashMap<TaskId, Seen<'_>> = HashMap::new();
    for submit in &history.submits {
        let Answer::Accepted { id, .. } = submit.answer else {
            continue;
        };
        let Some((effect, ..)) = effects.get(&id).filter(|_| !submit.scheduled) else {
            continue;
        };
        let sent = match &submit.idempotency_key {
            Some(name) => first_sent[&(&*submit.key, &*submit.kind, &**name)],
            None => submit.sent,
        };
        let seen = tasks.entry(id).or_insert(Seen {
            id,
            sent,
            answered: submit.answered,
            effect: *effect,
            submit,
        });
        seen.answered = seen.answered.min(submit.answered);
        seen.sent = seen.sent.min(sent);
    }
    let mut by_sent: Vec<Seen<'_>> = tasks.into_values().collect();
    by_sent.sort_unstable_by(|a, b| (&a.submit.key, a.sent, a.id).cmp(&(&b.submit.key, b.sent, b.id)));
    for key in by_sent.chunk_by(|a, b| a.submit.key == b.submit.key) {
        let mut by_answer: Vec<&Seen<'_>> = key.iter().collect();
        by_answer.sort_unstable_by_key(|seen| seen.answered);
        let mut answered = by_answer.into_iter().peekable();
        let mut latest: Option<&Seen<'_>> = None;
        for seen in key {
            while let Some(earlier) = answered.next_if(|earlier| earlier.answered < seen.sent) {
                if latest.is_none_or(|latest| earlier.effect > latest.effect) {
                    latest = Some(earlier);
                }
            }
            if let Some(latest) = latest.filter(|latest| latest.effect > seen.effect) {
                let text = format!(
                    "{} was sent after {} of its key {} was answered, and took effect before it",
                    seen.id, latest.id, seen.submit.key
                );
                found.push(
                    Violation::new("reordered", text)
                        .row(latest.submit)
                        .row(seen.submit),
                );
            }
        }
    }
}

/// A run that committed.
struct Run<'a> {
    key: &'a str,
    from: At,
    to: At,
    task: TaskId,
}

fn overlapping(history: &History, effects: &HashMap<TaskId, (usize, i64, i32)>, found: &mut Vec<Violation>) {
    let mut open: HashMap<(TaskId, i64, i32), usize> = HashMap::new();
    let mut runs: Vec<(Run<'_>, bool, u32)> = Vec::new();
    let mut last: HashMap<u32, At> = HashMap::new();
    for event in &history.events {
        last.insert(event.pid, event.at);
        match &event.what {
            What::RunStarted {
                task,
                key,
                epoch,
                attempt,
            } => {
                let committed = effects
                    .get(task)
                    .is_some_and(|(_, of, at)| (of, at) == (epoch, attempt));
                if committed {
                    open.insert((*task, *epoch, *attempt), runs.len());
                    let run = Run {
                        key,
                        from: event.at,
                        to: event.at,
                        task: *task,
                    };
                    runs.push((run, false, event.pid));
                }
            }
            What::RunEnded { task, epoch, attempt } => {
                if let Some(place) = open.remove(&(*task, *epoch, *attempt)) {
                    runs[place].0.to = event.at;
                    runs[place].1 = true;
                }
            }
            _ => {}
        }
    }
    let mut runs: Vec<Run<'_>> = runs
        .into_iter()
        .map(|(mut run, ended, pid)| {
            if !ended {
                run.to = last[&pid];
            }
            run
        })
        .collect();
    runs.sort_unstable_by(|a, b| (a.key, a.from, a.task).cmp(&(b.key, b.from, b.task)));
    for key in runs.chunk_by(|a, b| a.key == b.key) {
        let mut latest: Option<&Run<'_>> = None;
        for run in key {
            if let Some(before) = latest.filter(|before| before.to > run.from) {
                let text = format!(
                    "{} and {} of key {} ran at the same time, and both committed",
                    before.task, run.task, run.key
                );
                found.push(Violation::new("overlap", text));
            }
            if latest.is_none_or(|latest| run.to > latest.to) {
                latest = Some(run);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, Claim, MS, finished};
    use super::*;
    use crate::history::Expected;

    #[test]
    fn effects_in_the_order_of_answers_pass() {
        let mut build = Build::mesh();
        build.done("a", 1);
        build.done("a", 2);
        // Sent before the other was answered: either order is right.
        let (first, second) = (build.submit("b", 1), build.submit("b", 2));
        let submits = &mut build.history.submits;
        let place = submits.len() - 1;
        submits[place].sent = submits[place - 1].sent;
        build.run(&second);
        build.run(&first);
        // Another key, and one that waits for a time.
        let (first, second) = (build.submit("c", 1), build.submit("c", 2));
        build.history.submits.last_mut().unwrap().scheduled = true;
        build.done("d", 1);
        build.run(&second);
        build.run(&first);
        build.passes(&KeyOrder);
    }

    #[test]
    fn an_effect_that_overtakes_is_reordered() {
        let mut build = Build::mesh();
        let (first, second, third) = (build.submit("a", 1), build.submit("a", 2), build.submit("a", 3));
        build.run(&first);
        build.run(&third);
        build.run(&second);
        build.fails(&KeyOrder, "reordered");
    }

    #[test]
    fn the_end_of_a_task_that_writes_nothing_has_a_place_too() {
        let mut build = Build::mesh();
        let of = |claim: &Claim| [finished(claim, State::Succeeded)];
        let first = build.submit_as("a", 1, Expected::NoEffect);
        let second = build.submit_as("a", 2, Expected::NoEffect);
        build.commit(of(&second));
        build.commit(of(&first));
        build.fails(&KeyOrder, "reordered");
    }

    #[test]
    fn repetitions_are_one_task_sent_with_the_first() {
        let mut build = Build::mesh();
        let sent = build.now;
        let unknown = Answer::Unknown { why: "reset".into() };
        build.request("a", 1, sent, unknown).idempotency_key = Some("k".into());
        let second = build.submit("a", 2);
        let first = build.submit("a", 1);
        build.history.submits.last_mut().unwrap().idempotency_key = Some("k".into());
        // The first was accepted by the request without an answer.
        build.run(&first);
        build.run(&second);
        build.passes(&KeyOrder);
        // Without it, this is overtaking.
        build.history.submits.remove(0);
        build.fails(&KeyOrder, "reordered");
    }

    #[test]
    fn two_runs_at_once_that_both_commit_are_seen() {
        let mut build = Build::mesh();
        let (first, second) = (build.submit("a", 1), build.submit("a", 2));
        build.start(&first);
        build.start(&second);
        build.finish(&first);
        build.finish(&second);
        build.end(&first);
        build.end(&second);
        build.fails(&KeyOrder, "overlap");
    }

    #[test]
    fn a_run_without_a_noted_end_lasts_as_long_as_its_process_notes_anything() {
        let mut build = Build::mesh();
        let (first, second) = (build.submit("a", 1), build.submit("a", 2));
        build.start(&first);
        build.finish(&first);
        build.tick(MS);
        let mut elsewhere = second.clone();
        (elsewhere.node, elsewhere.epoch) = (2, 2);
        build.run(&elsewhere);
        build.passes(&KeyOrder);
        build.renew(1, 2);
        build.fails(&KeyOrder, "overlap");
    }

    #[test]
    fn of_two_runs_at_once_one_may_commit() {
        let mut build = Build::mesh();
        let stale = build.submit("a", 1);
        let mut again = stale.clone();
        (again.epoch, again.attempt, again.node) = (2, 2, 2);
        build.start(&stale);
        build.run(&again);
        build.end(&stale);
        build.passes(&KeyOrder);
    }
}
