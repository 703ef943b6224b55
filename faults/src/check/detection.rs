//! How long it takes until a killed node is declared dead, by its age: failure detectors that learn a rhythm are slow, or hasty, with
//! the young.

use std::collections::HashMap;

use super::windows::{Window, windows};
use crate::history::{History, Row};

/// Younger nodes count as young, µs.
const YOUNG: i64 = 30_000_000;

/// How old a node was that is killed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Age {
    /// For less than 30 s registered.
    Young,
    /// For longer.
    Old,
}

/// For each node that a kill hits, where somebody is left to notice: its age, and the time from the kill to the commit that declares
/// it dead, µs by Postgres' clock.
pub(super) fn detections(history: &History) -> Vec<(Age, i64)> {
    let mut lives: HashMap<i64, (i64, Option<i64>)> = HashMap::new();
    for change in &history.changes {
        match &change.row {
            // Numbers may come again.
            Row::Baseline => lives.clear(),
            Row::Node {
                incarnation, fenced, ..
            } => {
                let (_, declared) = lives.entry(*incarnation).or_insert((change.committed_at, None));
                if fenced.is_some() {
                    declared.get_or_insert(change.committed_at);
                }
            }
            _ => {}
        }
    }
    let kills = windows(history)
        .into_iter()
        .filter(|window| window.is_kill() && !window.hits_all);
    let of = |window: Window<'_>| {
        let killed = window.begin.committed_at;
        let hit = window
            .incarnations
            .into_iter()
            .filter_map(|incarnation| lives.get(&incarnation));
        let seen = hit.filter_map(|(registered, declared)| {
            let age = if killed - registered < YOUNG {
                Age::Young
            } else {
                Age::Old
            };
            // Another fault may have declared it before.
            declared
                .map(|declared| (age, declared - killed))
                .filter(|(_, after)| *after >= 0)
        });
        seen.collect::<Vec<_>>()
    };
    kills.flat_map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S};
    use super::*;
    use crate::history::FencingKind;

    #[test]
    fn young_and_old_are_told_apart() {
        let mut build = Build::mesh();
        build.node(4, 0, None);
        build.tick(31 * S);
        build.node(5, 0, None);
        build.fault("N1", "kill", &[4, 5]);
        build.tick(2 * S);
        build.fence(4, 1, FencingKind::Noticed, 1);
        build.tick(S);
        build.fence(5, 1, FencingKind::Noticed, 1);
        let seen = detections(&build.history);
        let about: Vec<_> = seen
            .iter()
            .map(|(age, after)| (*age, after / 1_000_000))
            .collect();
        assert_eq!(about, [(Age::Old, 2), (Age::Young, 3)]);
    }

    #[test]
    fn where_nobody_is_left_nothing_is_noticed() {
        let mut build = Build::mesh();
        build.fault("N1", "kill", &[1, 2, 3]);
        build.fence(1, 1, FencingKind::Replaced, 1);
        assert_eq!(detections(&build.history), []);
    }
}
