//! What a run came to, in numbers.

use std::collections::BTreeMap;

use serde::Serialize;

use super::Violation;
use super::detection::{Age, detections};
use super::gap::{gaps, others};
use super::trust::late_starts;
use super::vacuity::{refused_writes, takeovers};
use super::windows::windows;
use crate::history::{Answer, History, Row};

/// Counts of one run; those of several add up, but for percentiles, which are computed from `gaps`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Figures {
    /// Faults that were begun.
    pub faults: u64,
    /// Tasks that were accepted.
    pub tasks: u64,
    /// Effects that were committed, and that no failover took back.
    pub effects: u64,
    /// Accepted tasks without an end.
    pub lost: u64,
    /// The same where the product declares that it may lose them.
    pub lost_declared: u64,
    /// Tasks with more than one effect, and keys with more tasks than were asked for.
    pub doubled: u64,
    /// Writes under an epoch that was not their slot's.
    pub stale: u64,
    /// Effects out of the order of their key.
    pub reordered: u64,
    /// Writes that fences refused, at least.
    pub refused_writes: u64,
    /// Writes that were refused since their task had ended elsewhere, at most.
    pub ended_elsewhere: u64,
    /// Claims that found a slot not theirs, or shut for them.
    pub refused_claims: u64,
    /// Slots that went on from a dead owner.
    pub takeovers: u64,
    /// Commits whose reply was lost.
    pub unknown_commits: u64,
    /// Submits that nodes answered as unknown.
    pub unknown_outcomes: u64,
    /// Starts outside of a trust window that only a stop of the process explains.
    pub late_starts: u64,
    /// How often each kind of fault began.
    pub faults_by_kind: BTreeMap<String, u64>,
    /// The p99.9 of how long slots stood still before the first fault, µs; of several runs the longest.
    pub quiet_gap: Option<i64>,
    /// The longest standstill of a slot that no fault had hit, while kills or pauses hit others, µs.
    pub other_gap: Option<i64>,
    /// For each slot that a fault hit while it had something to do: the fault, and for how long it stood still, µs.
    #[serde(skip)]
    pub gaps: Vec<(String, i64)>,
    /// For each node that was killed: its age, and how long it took until it was declared dead, µs.
    #[serde(skip)]
    pub detections: Vec<(Age, i64)>,
}

impl Figures {
    /// Those of a run, and of what all its checkers found.
    pub fn of(history: &History, violations: &[Violation]) -> Figures {
        let count = |kind: &str| {
            violations
                .iter()
                .filter(|violation| violation.kind == kind)
                .count() as u64
        };
        let accepted = history
            .submits
            .iter()
            .filter(|submit| matches!(submit.answer, Answer::Accepted { replay: false, .. }));
        let effects = history.changes.iter().fold(0, |count, change| match change.row {
            // It holds all that there are.
            Row::Baseline => 0,
            Row::Effect { .. } => count + 1,
            _ => count,
        });
        let (refused_writes, ended_elsewhere) = refused_writes(history);
        let windows = windows(history);
        let mut faults_by_kind = BTreeMap::new();
        for window in &windows {
            *faults_by_kind.entry(window.id.to_owned()).or_default() += 1;
        }
        let (quiet_gap, other_gap) = others(history);
        Figures {
            faults: windows.len() as u64,
            faults_by_kind,
            quiet_gap,
            other_gap,
            tasks: accepted.count() as u64,
            effects,
            lost: count("lost") + count("vanished"),
            lost_declared: 0,
            doubled: count("doubled"),
            stale: count("stale"),
            reordered: count("reordered"),
            refused_writes,
            ended_elsewhere,
            refused_claims: history.end.refused_claims,
            takeovers: takeovers(history),
            unknown_commits: history.end.unknown_commits,
            unknown_outcomes: history.end.unknown_outcomes,
            late_starts: late_starts(history).0.len() as u64,
            detections: detections(history),
            gaps: gaps(history)
                .into_iter()
                .map(|(fault, gap)| (fault.to_owned(), gap))
                .collect(),
        }
    }

    /// Adds another run's.
    pub fn add(&mut self, other: Figures) {
        self.faults += other.faults;
        self.tasks += other.tasks;
        self.effects += other.effects;
        self.lost += other.lost;
        self.lost_declared += other.lost_declared;
        self.doubled += other.doubled;
        self.stale += other.stale;
        self.reordered += other.reordered;
        self.refused_writes += other.refused_writes;
        self.ended_elsewhere += other.ended_elsewhere;
        self.refused_claims += other.refused_claims;
        self.takeovers += other.takeovers;
        self.unknown_commits += other.unknown_commits;
        self.unknown_outcomes += other.unknown_outcomes;
        self.late_starts += other.late_starts;
        for (kind, count) in other.faults_by_kind {
            *self.faults_by_kind.entry(kind).or_default() += count;
        }
        self.quiet_gap = self.quiet_gap.max(other.quiet_gap);
        self.other_gap = self.other_gap.max(other.other_gap);
        self.gaps.extend(other.gaps);
        self.detections.extend(other.detections);
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, effect};
    use super::*;

    #[test]
    fn a_run_is_counted() {
        let mut build = Build::mesh();
        build.done("b", 1);
        let mut claim = build.submit("a", 1);
        build.kill_and_take_over();
        (claim.epoch, claim.attempt, claim.node) = (2, 2, 2);
        build.finish(&claim);
        let violations = [Violation::new("lost", ""), Violation::new("other", "")];
        let mut figures = Figures::of(&build.history, &violations);
        assert_eq!(
            (figures.faults, figures.tasks, figures.effects, figures.lost),
            (1, 2, 2, 1)
        );
        assert_eq!(figures.takeovers, 9);
        assert_eq!(figures.faults_by_kind, [("N1".to_owned(), 1)].into());
        assert_eq!(figures.gaps.len(), 1);
        assert!(figures.gaps[0].0 == "N1" && figures.gaps[0].1 > 0);
        // A failover that kept one of two effects.
        build.commit([Row::Baseline, effect(&claim)]);
        assert_eq!(Figures::of(&build.history, &[]).effects, 1);
        figures.add(figures.clone());
        assert_eq!((figures.tasks, figures.gaps.len()), (4, 2));
    }
}
