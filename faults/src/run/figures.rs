//! What is counted of runs, for the report.

use std::collections::{BTreeMap, HashMap, HashSet};

use ringmesh::task::TaskId;
use serde::Serialize;

use crate::check::{self, Violation};
use crate::history::{Answer, History, Row, Step};
use crate::workload;

/// The counts of one run, or the sums of several; their names are those of the report.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Figures {
    /// Runs.
    pub runs: u64,
    /// Those of them that prove nothing.
    pub invalid_runs: u64,
    /// Faults that began.
    pub faults: u64,
    /// Accepted tasks.
    pub tasks: u64,
    /// Committed effects, without those that a failover took back.
    pub effects: u64,
    /// Accepted tasks that have no end.
    pub lost: u64,
    /// Tasks with more than one effect, and keys with more tasks than were asked for.
    pub doubled: u64,
    /// Effects under another epoch than that of their slot.
    pub stale: u64,
    /// Effects of one key in another order than that of their submits.
    pub reordered: u64,
    /// Writes that a fence refused, at least.
    pub refused_writes: u64,
    /// Slots that went on from an owner that had been declared dead.
    pub takeovers: u64,
    /// Commits whose reply was lost.
    pub unknown_commits: u64,
    /// For how long slots of killed nodes stood still that had something to do; p99 over slots and kills, milliseconds.
    pub gap_ms_p99_kill: Option<f64>,
    /// The same for nodes that stood still.
    pub gap_ms_p99_pause: Option<f64>,
    /// The longest of the former.
    pub gap_ms_max_kill: Option<f64>,
    /// The longest of the latter.
    pub gap_ms_max_pause: Option<f64>,
    /// Accepted tasks that have no end, where the product declares that it may lose them: in asynchronous failovers.
    pub lost_declared: u64,
    /// Writes that were refused since their task had ended elsewhere, at most.
    pub ended_elsewhere: u64,
    /// Claims that found a slot not theirs, or shut for them.
    pub refused_claims: u64,
    /// Submits that nodes answered as unknown, whatever lost the reply to their commits.
    pub unknown_outcomes: u64,
    /// All other violations.
    pub other_violations: u64,
    /// Starts outside of a trust window that only a stop of the process explains; what they wrote was refused.
    pub late_starts: u64,
    /// Submits that were refused since their idempotency key belongs to another body.
    pub mismatches: u64,
    /// Requests that were sent.
    pub requests: u64,
    /// Of these, not answered, or answered so that the outcome was unknown.
    pub unknown_answers: u64,
    /// From a submit's answer to its effect, before the first fault; milliseconds.
    pub quiet_ms_p99: Option<f64>,
    /// For how long slots that had something to do stood still, before the first fault: p99.9, milliseconds.
    pub quiet_gap_ms_p999: Option<f64>,
    /// The longest time that a slot stood still whose owner no fault had hit, while kills or pauses hit others; milliseconds.
    pub other_gap_ms_max: Option<f64>,
    /// How often each kind of fault began.
    pub faults_by_kind: BTreeMap<String, u64>,
    /// For how long slots stood still that it hit and that had something to do.
    pub gaps_ms: BTreeMap<String, Gaps>,
    /// From a kill to the commit that declares its node dead: of nodes younger than 30 s, `young`, and of others, `old`.
    pub detection_ms: BTreeMap<&'static str, Gaps>,
    /// What the percentiles are computed from.
    #[serde(skip)]
    pub raw: Raw,
}

/// Times in milliseconds, over slots and faults.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Gaps {
    /// How many.
    pub count: usize,
    /// Half of them are not above.
    pub p50: f64,
    /// 99 of 100 are not above.
    pub p99: f64,
    /// The longest.
    pub max: f64,
}

/// Single values, kept so that several runs have percentiles together.
#[derive(Debug, Clone, Default)]
pub struct Raw {
    counted: check::Figures,
    quiet: Vec<f64>,
}

impl Figures {
    /// Counts a run.
    pub fn of(history: &History, violations: &[(&'static str, Violation)]) -> Figures {
        let found: Vec<Violation> = violations
            .iter()
            .map(|(_, violation)| violation.clone())
            .collect();
        let counted = check::Figures::of(history, &found);
        let told = counted.lost + counted.doubled + counted.stale + counted.reordered;
        let mut tasks = HashSet::new();
        let mut unknown_answers = 0;
        for submit in &history.submits {
            match &submit.answer {
                Answer::Accepted { id, .. } => {
                    tasks.insert(*id);
                }
                Answer::Unknown { .. } => unknown_answers += 1,
                Answer::Refused { .. } => {}
            }
        }
        Figures {
            runs: 1,
            tasks: tasks.len() as u64,
            other_violations: (found.len() as u64).saturating_sub(told),
            mismatches: workload::mismatches(&history.submits) as u64,
            requests: history.submits.len() as u64,
            unknown_answers,
            raw: Raw {
                counted,
                quiet: quiet_latencies(history),
            },
            ..Figures::default()
        }
        .sum_up()
    }

    /// Adds a run to these.
    #[must_use]
    pub fn and(mut self, other: &Figures) -> Figures {
        self.runs += other.runs;
        self.invalid_runs += other.invalid_runs;
        self.tasks += other.tasks;
        self.other_violations += other.other_violations;
        self.mismatches += other.mismatches;
        self.requests += other.requests;
        self.unknown_answers += other.unknown_answers;
        self.raw.counted.add(other.raw.counted.clone());
        self.raw.quiet.extend(&other.raw.quiet);
        self.sum_up()
    }

    /// The same, with all losses as the product declares them.
    #[must_use]
    pub fn losses_declared(mut self) -> Figures {
        let counted = &mut self.raw.counted;
        counted.lost_declared += std::mem::take(&mut counted.lost);
        self.sum_up()
    }

    fn sum_up(mut self) -> Figures {
        let counted = &self.raw.counted;
        self.faults = counted.faults;
        self.effects = counted.effects;
        self.lost = counted.lost;
        self.lost_declared = counted.lost_declared;
        self.doubled = counted.doubled;
        self.stale = counted.stale;
        self.reordered = counted.reordered;
        self.refused_writes = counted.refused_writes;
        self.ended_elsewhere = counted.ended_elsewhere;
        self.refused_claims = counted.refused_claims;
        self.takeovers = counted.takeovers;
        self.unknown_commits = counted.unknown_commits;
        self.unknown_outcomes = counted.unknown_outcomes;
        self.late_starts = counted.late_starts;
        self.faults_by_kind.clone_from(&counted.faults_by_kind);
        let mut values: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for (fault, gap) in &counted.gaps {
            values
                .entry(fault.clone())
                .or_default()
                .push(*gap as f64 / 1000.0);
        }
        let summed = |mut values: Vec<f64>| Gaps {
            count: values.len(),
            p50: quantile(&mut values, 0.5).unwrap_or_default(),
            p99: quantile(&mut values, 0.99).unwrap_or_default(),
            max: quantile(&mut values, 1.0).unwrap_or_default(),
        };
        let values = values.into_iter();
        self.gaps_ms = values.map(|(fault, values)| (fault, summed(values))).collect();
        let mut detections: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for (age, after) in &counted.detections {
            let age = match age {
                check::Age::Young => "young",
                check::Age::Old => "old",
            };
            detections.entry(age).or_default().push(*after as f64 / 1000.0);
        }
        let detections = detections.into_iter();
        self.detection_ms = detections.map(|(age, values)| (age, summed(values))).collect();
        let of = |fault: &str| self.gaps_ms.get(fault).map(|gaps| (gaps.p99, gaps.max)).unzip();
        (self.gap_ms_p99_kill, self.gap_ms_max_kill) = of("N1");
        (self.gap_ms_p99_pause, self.gap_ms_max_pause) = of("N2");
        let ms = |gap: i64| gap as f64 / 1000.0;
        self.quiet_gap_ms_p999 = counted.quiet_gap.map(ms);
        self.other_gap_ms_max = counted.other_gap.map(ms);
        self.quiet_ms_p99 = quantile(&mut self.raw.quiet, 0.99);
        self
    }
}

/// The value that so many of these are not above.
fn quantile(values: &mut [f64], part: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let place = (values.len() as f64 * part).ceil() as usize;
    values.get(place.saturating_sub(1)).copied()
}

/// From accepted to done, of tasks that ended before the first fault, in milliseconds.
///
/// Answers and commits are timed by two clocks; the first moment of the run gives their distance.
fn quiet_latencies(history: &History) -> Vec<f64> {
    let Some(moment) = history.moments.first() else {
        return Vec::new();
    };
    let distance = moment.committed_at - moment.at / 1000;
    let mut accepted: HashMap<TaskId, i64> = HashMap::new();
    for submit in &history.submits {
        if let Answer::Accepted { id, .. } = &submit.answer {
            accepted.entry(*id).or_insert(submit.answered / 1000 + distance);
        }
    }
    let disturbed = |step: &Step| matches!(step, Step::Fault { .. } | Step::Drain);
    let until = history.moments.iter().find(|moment| disturbed(&moment.step));
    let until = until.map_or(i64::MAX, |moment| moment.committed_at);
    let ended = history
        .changes
        .iter()
        .take_while(|change| change.committed_at < until);
    ended
        .filter_map(|change| match &change.row {
            Row::Effect { task, .. } => {
                Some((change.committed_at - accepted.get(task)?).max(0) as f64 / 1000.0)
            }
            _ => None,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_values_that_were_seen() {
        let mut values: Vec<f64> = (1..=200).map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.99), Some(198.0));
        assert_eq!(quantile(&mut values, 1.0), Some(200.0));
        assert_eq!(quantile(&mut [], 0.99), None);
    }

    #[test]
    fn declared_losses_are_counted_apart_also_in_sums() {
        let lossy = |lost| {
            let counted = check::Figures {
                lost,
                ..check::Figures::default()
            };
            let raw = Raw {
                counted,
                ..Raw::default()
            };
            Figures {
                raw,
                ..Figures::default()
            }
        };
        let sum = lossy(3).losses_declared().and(&lossy(2));
        assert_eq!((sum.lost, sum.lost_declared), (2, 3));
    }

    #[test]
    fn report_begins_with_the_names_that_are_promised() {
        let text = serde_json::to_string(&Figures::default()).unwrap();
        let names: Vec<&str> = text
            .split(['{', ','])
            .filter_map(|part| part.split_once(':'))
            .map(|(name, _)| name.trim_matches('"'))
            .collect();
        assert_eq!(
            names[..14],
            [
                "runs",
                "invalid_runs",
                "faults",
                "tasks",
                "effects",
                "lost",
                "doubled",
                "stale",
                "reordered",
                "refused_writes",
                "takeovers",
                "unknown_commits",
                "gap_ms_p99_kill",
                "gap_ms_p99_pause",
            ]
        );
    }
}
