//! When what was broken.

use crate::history::{History, Moment, Step};

/// A fault from its beginning to its healing.
#[derive(Debug, Clone)]
pub(super) struct Window<'a> {
    pub(super) id: &'a str,
    /// Whom it hits; empty: everybody.
    pub(super) incarnations: &'a [i64],
    /// The step before it: nothing of the fault is older. (That of the fault itself may have been noted when its first
    /// consequences were committed.)
    pub(super) before: Option<&'a Moment>,
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
}

/// All faults of a run, in the order of their beginning.
pub(super) fn windows(history: &History) -> Vec<Window<'_>> {
    let moments = &history.moments;
    let mut windows = Vec::new();
    for (place, begin) in moments.iter().enumerate() {
        let Step::Fault { id, incarnations, .. } = &begin.step else {
            continue;
        };
        let heal = moments[place..]
            .iter()
            .find(|moment| matches!(&moment.step, Step::Heal { id: healed } if healed == id));
        windows.push(Window {
            id,
            incarnations,
            before: place.checked_sub(1).map(|before| &moments[before]),
            heal,
        });
    }
    windows
}
