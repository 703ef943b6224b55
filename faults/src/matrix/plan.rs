//! The cells: which point is armed with which action, and what makes a node pass it. Decided before the run, from the seed alone.

use rand::rngs::StdRng;
use rand::seq::{IndexedRandom as _, SliceRandom as _};
use rand::{RngExt as _, SeedableRng as _};
use ringmesh::failpoint as point;
use serde::Serialize;

/// Nodes of the mesh: one is armed, one more may be killed, and one is left.
pub const NODES: u8 = 3;

/// What a point does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Action {
    /// The process aborts.
    Crash,
    /// The operation fails as if its answer had been lost.
    Error,
    /// The operation takes longer.
    Delay,
    /// The future of the operation is dropped.
    Drop,
}

impl Action {
    /// All actions.
    pub const ALL: [Action; 4] = [Action::Crash, Action::Error, Action::Delay, Action::Drop];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Action::Crash => "crash",
            Action::Error => "error",
            Action::Delay => "delay",
            Action::Drop => "drop",
        }
    }

    /// As a point is told it, and notes it.
    pub fn told(self) -> &'static str {
        match self {
            Action::Delay => "delay 300",
            other => other.name(),
        }
    }
}

/// What makes the armed node pass its point.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// The work that all nodes are given all the time, and what they do by the clock.
    Load,
    /// The answer to one of its claims is lost.
    LostClaim,
    /// It owns an idempotency id that is past its window.
    OldId,
    /// It owns a held key whose task is gone.
    Orphan,
    /// Another node is killed.
    Death,
    /// Another node is killed, and the third is slow to fence it.
    SlowerThird,
    /// Another node is killed while it runs tasks.
    DeathAtWork,
    /// The node is asked to drain.
    Drain,
    /// Another node, which was killed before, starts.
    Join,
    /// The node starts, and there is a day past its retention.
    OldDay,
    /// A node of another mesh starts on an empty database, on the same host.
    EmptyDatabase,
}

impl Way {
    /// In words.
    pub fn what(self) -> &'static str {
        match self {
            Way::Load => "the load",
            Way::LostClaim => "the answer to a claim is lost",
            Way::OldId => "an idempotency id past its window",
            Way::Orphan => "a held key whose task is gone",
            Way::Death => "another node is killed",
            Way::SlowerThird => "another node is killed, the third is slow to fence it",
            Way::DeathAtWork => "another node is killed while it runs tasks",
            Way::Drain => "the node drains",
            Way::Join => "another node starts",
            Way::OldDay => "the node starts, with a day past its retention",
            Way::EmptyDatabase => "a node starts on an empty database",
        }
    }
}

/// The ways to each point, in the order of [`point::ALL`]; where there are several, the seed chooses.
pub const WAYS: &[(&str, &[Way])] = &[
    (point::CLAIMED, &[Way::Load]),
    (point::SETTLE, &[Way::LostClaim]),
    (point::SETTLED, &[Way::LostClaim]),
    (point::TRIAL, &[Way::DeathAtWork]),
    (point::HANDLER, &[Way::Load]),
    (point::HANDLED, &[Way::Load]),
    (point::BEGUN, &[Way::Load]),
    (point::COMMIT, &[Way::Load]),
    (point::COMMITTED, &[Way::Load]),
    (point::RENEW, &[Way::Load]),
    (point::RENEWED, &[Way::Load]),
    (point::TRANSFER, &[Way::Drain, Way::Join]),
    (point::TRANSFERRED, &[Way::Drain, Way::Join]),
    (point::LEAVE, &[Way::Drain]),
    (point::FENCING, &[Way::SlowerThird]),
    (point::FENCE, &[Way::SlowerThird]),
    (point::FENCED, &[Way::SlowerThird]),
    (point::GRANT, &[Way::Death]),
    (point::GRANTED, &[Way::Death]),
    (point::PROMOTE, &[Way::Load]),
    (point::PROMOTED, &[Way::Load]),
    (point::SWEPT, &[Way::Load]),
    (point::ORPHANS, &[Way::Orphan]),
    (point::HELD, &[Way::Orphan]),
    (point::IDEMPOTENCY, &[Way::OldId]),
    (point::RETENTION, &[Way::OldDay]),
    (point::WRITE, &[Way::Load]),
    (point::WRITTEN, &[Way::Load]),
    (point::MIGRATE, &[Way::EmptyDatabase]),
    (point::MIGRATED, &[Way::EmptyDatabase]),
    (point::SCHEMA, &[Way::EmptyDatabase]),
    (point::SUBMIT, &[Way::Load]),
    (point::INSERTED, &[Way::Load]),
    (point::SUBMITTED, &[Way::Load]),
];

const RUN: &str =
    "a run is dropped only after it ignored its cancellation, and then its whole task is aborted";
const START: &str = "nobody gives a start up but by ending its process, which is what a crash tries";

/// What cannot happen, and why.
pub const IMPOSSIBLE: &[(&str, Action, &str)] = &[
    (point::HANDLER, Action::Drop, RUN),
    (point::HANDLED, Action::Drop, RUN),
    (point::MIGRATE, Action::Drop, START),
    (point::MIGRATED, Action::Drop, START),
    (point::SCHEMA, Action::Drop, START),
];

/// Why a cell cannot be, if it cannot.
pub fn impossible(point: &str, action: Action) -> Option<&'static str> {
    let row = IMPOSSIBLE.iter().find(|row| (row.0, row.1) == (point, action));
    row.map(|row| row.2)
}

/// One point with one action.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// Which point.
    pub point: &'static str,
    /// What it does, once.
    pub action: Action,
    /// What makes the node pass it.
    pub way: Way,
    /// The node that is armed, from 0.
    pub armed: usize,
    /// The node that is killed, or starts, where the way asks for one.
    pub other: usize,
}

impl Cell {
    /// Its name, by which it can be chosen: `claimed/crash`.
    pub fn name(&self) -> String {
        format!("{}/{}", self.point, self.action.name())
    }

    /// The node that is neither.
    pub fn third(&self) -> usize {
        (0..usize::from(NODES))
            .find(|node| *node != self.armed && *node != self.other)
            .unwrap_or(self.other)
    }

    /// What the armed node's points are told.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = vec![format!("{}=1*return({})->off", self.point, self.action.told())];
        if self.way == Way::LostClaim {
            lines.push(format!("{}=1*return(error)->off", point::CLAIMED));
        }
        lines
    }

    /// Whether the armed node ends by it, once it has acted.
    pub fn ends_armed(&self) -> bool {
        self.action == Action::Crash || self.way == Way::Drain
    }

    /// Whether it touches the mesh at all.
    pub fn is_in_mesh(&self) -> bool {
        self.way != Way::EmptyDatabase
    }
}

/// All cells that can be, each once, in an order that the seed decides, as all else in them that is random.
pub fn plan(seed: u64) -> Vec<Cell> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut cells = Vec::new();
    for (point, ways) in WAYS {
        for action in Action::ALL {
            // Drawn also for what cannot be, so that one reason more or less does not change all other cells.
            let nodes = usize::from(NODES);
            let armed = rng.random_range(0..nodes);
            let other = (armed + rng.random_range(1..nodes)) % nodes;
            let Some(way) = ways.choose(&mut rng).copied() else {
                continue;
            };
            if impossible(point, action).is_none() {
                cells.push(Cell {
                    point,
                    action,
                    way,
                    armed,
                    other,
                });
            }
        }
    }
    cells.shuffle(&mut rng);
    cells
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_point_has_a_way() {
        let points: Vec<&str> = point::ALL.iter().map(|(point, _)| *point).collect();
        let ways: Vec<&str> = WAYS.iter().map(|(point, _)| *point).collect();
        assert_eq!(ways, points);
        assert!(WAYS.iter().all(|(_, ways)| !ways.is_empty()));
    }

    #[test]
    fn dropping_is_impossible_where_the_product_says_so_and_nothing_else_is() {
        for (point, droppable) in point::ALL {
            for action in Action::ALL {
                let possible = action != Action::Drop || *droppable;
                assert_eq!(
                    impossible(point, action).is_none(),
                    possible,
                    "{point} {action:?}"
                );
            }
        }
    }

    #[test]
    fn each_cell_comes_once_and_hits_different_nodes() {
        let cells = plan(7);
        let names: BTreeSet<String> = cells.iter().map(Cell::name).collect();
        assert_eq!(names.len(), cells.len());
        assert_eq!(
            cells.len(),
            point::ALL.len() * Action::ALL.len() - IMPOSSIBLE.len()
        );
        for cell in &cells {
            let nodes = BTreeSet::from([cell.armed, cell.other, cell.third()]);
            assert_eq!(nodes, BTreeSet::from([0, 1, 2]), "{}", cell.name());
        }
    }

    #[test]
    fn a_seed_decides_the_order_the_nodes_and_the_ways() {
        assert_eq!(plan(1), plan(1));
        assert_ne!(plan(1), plan(2));
        let ways: BTreeSet<&str> = (0..20)
            .flat_map(plan)
            .filter(|cell| cell.point == point::TRANSFER)
            .map(|cell| cell.way.what())
            .collect();
        assert_eq!(ways.len(), 2);
    }

    #[test]
    fn a_point_is_told_to_act_once() {
        let mut cell = Cell {
            point: point::SETTLED,
            action: Action::Delay,
            way: Way::LostClaim,
            armed: 0,
            other: 1,
        };
        let lines = ["settled=1*return(delay 300)->off", "claimed=1*return(error)->off"];
        assert_eq!(cell.lines(), lines);
        assert_eq!(cell.name(), "settled/delay");
        assert!(!cell.ends_armed());
        cell.action = Action::Crash;
        assert!(cell.ends_armed());
    }
}
