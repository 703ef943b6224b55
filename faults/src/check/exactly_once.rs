//! I2: what a task writes through its transaction happens exactly once.
//!
//! **Promise** (P2). The effect of a task and its end as *succeeded* are one commit. So a succeeded task has one effect, every other
//! task none; no effect comes from a submit that was refused or never sent. Transfers between accounts keep the total.
//!
//! **Algorithm.** One pass counts effects by task and by (key, seq), and compares each with the end in its own transaction. Then
//! a look-up for each submit. The requests for one (key, seq) may have made as many tasks as there are ids among their
//! answers, one more for each idempotency key that no answer names, and one for each unknown answer without one. The total of all
//! accounts is compared after each transaction, and in each sample.
//!
//! **Excluded.** Effects in a baseline are counted, but not compared with an end: a snapshot says nothing about
//! transactions.

use std::collections::{HashMap, HashSet};

use ringmesh::task::TaskId;

use super::{Checker, Violation};
use crate::history::{Answer, Change, Expected, History, Row, State};

pub(super) struct ExactlyOnce;

impl Checker for ExactlyOnce {
    fn id(&self) -> &'static str {
        "I2"
    }

    fn title(&self) -> &'static str {
        "effects happen exactly once"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut effects: HashMap<TaskId, u32> = HashMap::new();
        let mut ends: HashMap<TaskId, State> = HashMap::new();
        let mut of_seq: HashMap<(&str, i64), u32> = HashMap::new();
        let mut bank = Bank::default();
        for transaction in history.changes.chunk_by(|a, b| a.transaction == b.transaction) {
            let baseline = transaction.iter().any(|change| change.row == Row::Baseline);
            if baseline {
                effects.clear();
                of_seq.clear();
                bank = Bank::default();
            }
            for change in transaction {
                match &change.row {
                    Row::Effect { task, key, seq, .. } => {
                        *effects.entry(*task).or_default() += 1;
                        *of_seq.entry((key, *seq)).or_default() += 1;
                        if !baseline && !ends_with(change, transaction) {
                            let text = format!("an effect of {task} was committed without its end");
                            found.push(Violation::new("apart", text).row(change));
                        }
                    }
                    Row::Finished { id, state, .. } => {
                        ends.insert(*id, *state);
                    }
                    Row::EffectTouched => {
                        found.push(Violation::new("touched", "an effect was changed or deleted").row(change));
                    }
                    Row::Account { account, balance } => bank.set(*account, *balance),
                    _ => {}
                }
            }
            if let Some((before, now)) = bank.moved(baseline) {
                let text = format!("all accounts together held {before}, and after this transaction {now}");
                found.push(Violation::new("total", text).row(&transaction[0]));
            }
        }
        samples(history, &mut found);
        let mut doubled: Vec<_> = effects.iter().filter(|(_, count)| **count > 1).collect();
        doubled.sort_unstable();
        for (task, count) in doubled {
            found.push(Violation::new("doubled", format!("{task} had {count} effects")));
        }
        by_answer(history, &effects, &ends, &mut found);
        by_request(history, &of_seq, &mut found);
        found
    }
}

/// Whether the effect's task ended well in the same transaction, under the same claim.
fn ends_with(change: &Change, transaction: &[Change]) -> bool {
    let Row::Effect {
        task, epoch, attempt, ..
    } = &change.row
    else {
        return true;
    };
    transaction.iter().any(|other| {
        matches!(&other.row, Row::Finished { id, state: State::Succeeded, epoch: of, attempt: at, .. }
            if id == task && *of == Some(*epoch) && at == attempt)
    })
}

/// The balances, and what they came to.
#[derive(Default)]
struct Bank {
    balances: HashMap<i32, i64>,
    sum: i64,
    total: Option<i64>,
}

impl Bank {
    fn set(&mut self, account: i32, balance: i64) {
        self.sum += balance - self.balances.insert(account, balance).unwrap_or(0);
    }

    /// After a transaction: the totals before and after it, if they differ. New accounts bring money in until the first
    /// transfer: the transaction that makes them must be in the baseline, or be the first.
    fn moved(&mut self, baseline: bool) -> Option<(i64, i64)> {
        if self.balances.is_empty() {
            return None;
        }
        let before = self.total.replace(self.sum).filter(|_| !baseline)?;
        (before != self.sum).then_some((before, self.sum))
    }
}

fn samples(history: &History, found: &mut Vec<Violation>) {
    let mut totals = history
        .samples
        .iter()
        .filter_map(|sample| Some((sample, sample.bank?)));
    let Some((_, total)) = totals.next() else {
        return;
    };
    for (sample, now) in totals.filter(|(_, now)| *now != total) {
        let text = format!("all accounts together held {total}, and in a later snapshot {now}");
        found.push(Violation::new("total", text).row(sample));
    }
}

/// Each accepted task has the effects that its end calls for.
fn by_answer(
    history: &History,
    effects: &HashMap<TaskId, u32>,
    ends: &HashMap<TaskId, State>,
    found: &mut Vec<Violation>,
) {
    let mut met = HashSet::new();
    for submit in &history.submits {
        let Answer::Accepted { id, .. } = submit.answer else {
            continue;
        };
        if !met.insert(id) {
            continue;
        }
        let count = effects.get(&id).copied().unwrap_or(0);
        let end = ends.get(&id).copied();
        let wanted = match (submit.expected, end) {
            (Expected::Effect | Expected::Race | Expected::Future, Some(State::Succeeded)) => 1,
            _ => 0,
        };
        // More than one is told already; a task that never ended is lost, which I1 tells.
        if count < wanted {
            found.push(Violation::new("missing", format!("{id} succeeded without its effect")).row(submit));
        } else if wanted == 0 && count == 1 {
            let text = format!("{id} had an effect, but should have none: it ended as {end:?}");
            found.push(Violation::new("uncalled", text).row(submit));
        }
    }
}

/// No more effects than tasks that the requests can have made.
fn by_request(history: &History, of_seq: &HashMap<(&str, i64), u32>, found: &mut Vec<Violation>) {
    #[derive(Default)]
    struct May<'a> {
        ids: HashSet<TaskId>,
        named: HashSet<&'a str>,
        unnamed: HashSet<&'a str>,
        unknown: usize,
    }
    let mut may: HashMap<(&str, i64), May<'_>> = HashMap::new();
    for submit in &history.submits {
        let entry = may.entry((&submit.key, submit.seq)).or_default();
        let name = submit.idempotency_key.as_deref();
        match (&submit.answer, name) {
            (Answer::Accepted { id, .. }, name) => {
                entry.ids.insert(*id);
                entry.named.extend(name);
            }
            (Answer::Unknown { .. }, Some(name)) => {
                entry.unnamed.insert(name);
            }
            (Answer::Unknown { .. }, None) => entry.unknown += 1,
            (Answer::Refused { .. }, _) => {}
        }
    }
    let mut of_seq: Vec<_> = of_seq.iter().collect();
    of_seq.sort_unstable();
    for ((key, seq), count) in of_seq {
        let most = may.get(&(*key, *seq)).map_or(0, |may| {
            may.ids.len() + may.unnamed.difference(&may.named).count() + may.unknown
        });
        if *count as usize > most {
            let text = format!("({key}, {seq}) had {count} effects, its requests can have made {most} tasks");
            found.push(Violation::new("uncalled", text));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, effect, finished};
    use super::*;
    use crate::history::Sample;

    fn account(account: i32, balance: i64) -> Row {
        Row::Account { account, balance }
    }

    fn good() -> Build {
        let mut build = Build::mesh();
        build.commit([account(1, 50), account(2, 50)]);
        build.done("a", 1);
        build.commit([account(1, 40), account(2, 60)]);
        let dead = build.submit_as("b", 1, Expected::Dead);
        build.commit([finished(&dead, State::Dead)]);
        let raced = build.submit_as("c", 1, Expected::Race);
        build.commit([finished(&raced, State::Cancelled)]);
        let sent = build.now;
        build.request("d", 1, sent, Answer::Unknown { why: "reset".into() });
        build
    }

    #[test]
    fn one_effect_for_each_success_passes() {
        let mut build = good();
        build.passes(&ExactlyOnce);
        // An unknown submit may have made a task.
        let mut claim = build.submit("d", 2);
        build.history.submits.pop();
        claim.seq = 1;
        build.finish(&claim);
        build.passes(&ExactlyOnce);
    }

    #[test]
    fn a_second_effect_is_doubled() {
        let mut build = good();
        let claim = build.done("a", 2);
        build.finish(&claim);
        let kinds: Vec<_> = ExactlyOnce.check(&build.history).iter().map(|v| v.kind).collect();
        assert_eq!(kinds, ["doubled", "uncalled"]);
    }

    #[test]
    fn a_success_without_its_effect_is_missing() {
        let mut build = good();
        let claim = build.submit("a", 2);
        build.commit([finished(&claim, State::Succeeded)]);
        build.fails(&ExactlyOnce, "missing");
    }

    #[test]
    fn an_effect_apart_from_the_end_is_seen() {
        let mut build = good();
        let claim = build.submit("a", 2);
        build.commit([effect(&claim)]);
        build.commit([finished(&claim, State::Succeeded)]);
        build.fails(&ExactlyOnce, "apart");
    }

    #[test]
    fn an_effect_of_another_claim_than_the_one_that_ended_is_seen() {
        let mut build = good();
        let claim = build.submit("a", 2);
        let mut later = claim.clone();
        later.attempt += 1;
        build.commit([effect(&claim), finished(&later, State::Succeeded)]);
        build.fails(&ExactlyOnce, "apart");
    }

    #[test]
    fn an_effect_of_what_should_have_none_is_seen() {
        let mut build = good();
        let claim = build.submit_as("a", 2, Expected::NoEffect);
        build.finish(&claim);
        build.fails(&ExactlyOnce, "uncalled");
    }

    #[test]
    fn an_effect_of_a_refused_submit_is_seen() {
        let mut build = good();
        let claim = build.submit("a", 2);
        build.history.submits.last_mut().unwrap().answer = Answer::Refused {
            status: 422,
            code: "bad".into(),
        };
        build.finish(&claim);
        build.fails(&ExactlyOnce, "uncalled");
    }

    #[test]
    fn an_effect_of_one_idempotency_key_too_many_is_seen() {
        let mut build = good();
        for answered in [true, false] {
            let claim = build.submit("a", 2);
            let submit = build.history.submits.last_mut().unwrap();
            submit.idempotency_key = Some("k".into());
            if !answered {
                submit.answer = Answer::Unknown { why: "late".into() };
            }
            build.finish(&claim);
        }
        build.fails(&ExactlyOnce, "uncalled");
    }

    #[test]
    fn money_from_nowhere_is_seen() {
        let mut build = good();
        build.commit([account(1, 41)]);
        build.fails(&ExactlyOnce, "total");
        let mut build = good();
        for bank in [100, 101] {
            build.history.samples.push(Sample {
                bank: Some(bank),
                ..Sample::default()
            });
        }
        build.fails(&ExactlyOnce, "total");
    }

    #[test]
    fn a_changed_effect_is_seen() {
        let mut build = good();
        build.commit([Row::EffectTouched]);
        build.fails(&ExactlyOnce, "touched");
    }
}
