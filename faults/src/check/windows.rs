//! When what was broken.

use std::collections::HashSet;

use crate::history::{At, FAIL_POINT, History, Moment, Row, Step};

/// A fault from its beginning to its healing.
#[derive(Debug, Clone)]
pub(super) struct Window<'a> {
    pub(super) id: &'a str,
    /// Whom it hits; empty: everybody.
    pub(super) incarnations: Vec<i64>,
    /// Whether it leaves nobody who could take over: it hits Postgres, or each node that lives.
    pub(super) hits_all: bool,
    /// The step before it: nothing of the fault is older. (That of the fault itself may have been noted when its first
    /// consequences were committed.)
    pub(super) before: Option<&'a Moment>,
    pub(super) begin: &'a Moment,
    /// When all of it was broken. `None`: it is not known.
    pub(super) begun: Option<&'a Moment>,
    /// `None`: it was not healed.
    pub(super) heal: Option<&'a Moment>,
}

impl Window<'_> {
    pub(super) fn hits(&self, incarnation: i64) -> bool {
        self.incarnations.is_empty() || self.incarnations.contains(&incarnation)
    }

    /// Whether it is a `kill -9` of nodes alone.
    pub(super) fn is_kill(&self) -> bool {
        self.id == "N1"
    }

    /// Whether it freezes nodes.
    pub(super) fn is_pause(&self) -> bool {
        self.id == "N2"
    }

    /// Whether it is something that a fail point did to nodes.
    pub(super) fn is_fail_point(&self) -> bool {
        self.id == FAIL_POINT
    }

    /// Whether it acts at a time of this machine, or its healing is not `after` ago.
    pub(super) fn covers(&self, at: At, after: i64) -> bool {
        let from = self.before.map_or(0, |moment| moment.at);
        let to = self
            .heal
            .map_or(At::MAX, |moment| moment.at.saturating_add(after));
        (from..=to).contains(&at)
    }

    /// The same by Postgres' clock, in microseconds.
    pub(super) fn covers_commit(&self, committed_at: i64, after: i64) -> bool {
        let from = self.before.map_or(i64::MIN, |moment| moment.committed_at);
        let to = self
            .heal
            .map_or(i64::MAX, |moment| moment.committed_at.saturating_add(after));
        (from..=to).contains(&committed_at)
    }
}

/// All faults of a run, in the order of their beginning.
pub(super) fn windows(history: &History) -> Vec<Window<'_>> {
    let moments = &history.moments;
    let mut windows = Vec::new();
    let mut living: HashSet<i64> = HashSet::new();
    let mut changes = history.changes.iter().peekable();
    for (place, begin) in moments.iter().enumerate() {
        let Step::Fault {
            id,
            name,
            hosts,
            incarnations,
        } = &begin.step
        else {
            continue;
        };
        let mut incarnations = incarnations.clone();
        let heal = moments[place..]
            .iter()
            .find(|moment| matches!(&moment.step, Step::Heal { id: healed } if healed == id));
        let begun = moments[place..]
            .iter()
            .find(|moment| matches!(&moment.step, Step::Begun { id: begun } if begun == id));
        let before = place.checked_sub(1).map(|before| &moments[before]);
        let wal = before.map_or(0, |moment| moment.wal);
        while let Some(change) = changes.next_if(|change| change.transaction <= wal) {
            match &change.row {
                Row::Baseline => living.clear(),
                Row::Node {
                    incarnation,
                    fenced: None,
                    ..
                } => {
                    living.insert(*incarnation);
                }
                Row::Node { incarnation, .. } | Row::NodeGone { incarnation } => {
                    living.remove(incarnation);
                }
                _ => {}
            }
        }
        let hits_all = living.iter().all(|node| incarnations.contains(node)) || incarnations.is_empty();
        let makes_lives = name.contains("crash-loop") || id == "N16";
        if makes_lives && !incarnations.is_empty() {
            incarnations.extend(started(history, hosts, wal, heal));
        }
        windows.push(Window {
            id,
            incarnations,
            hits_all,
            before,
            begin,
            begun,
            heal,
        });
    }
    windows
}

/// The lives that hosts began during a fault: such a fault makes them itself.
fn started(history: &History, hosts: &[String], from: u64, heal: Option<&Moment>) -> Vec<i64> {
    let during = from..=heal.map_or(u64::MAX, |heal| heal.wal);
    let lives = history.changes.iter().filter_map(|change| match &change.row {
        Row::Node {
            incarnation, name, ..
        } if during.contains(&change.transaction) && hosts.iter().any(|host| **host == **name) => {
            Some(*incarnation)
        }
        _ => None,
    });
    let lives: HashSet<i64> = lives.collect();
    lives.into_iter().collect()
}

/// How long after the end of a fault its consequences may come, beside what the terms of leases explain: ns.
const AFTERMATH: i64 = 5_000_000_000;

/// How long after its healing a fault explains what happens: two TTLs, and 5 s for what starts anew; ns.
pub(super) fn aftermath(history: &History) -> i64 {
    2 * history.terms.ttl + AFTERMATH
}
