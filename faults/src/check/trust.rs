//! I9: a node that cannot rely on its lease starts nothing.
//!
//! **Promise** (P3). A handler starts only inside the trust window: no later than TTL − margin after its process sent the last
//! renewal that succeeded.
//!
//! **Algorithm.** The nodes' notes, process by process, in their order. A start counts as late when the last renewal sent before
//! it, of those that succeeded, was sent longer ago than the window is long.
//!
//! **Excused.** A process may be stopped between its look at the window and the first line of the handler. No program can exclude that; the
//! fence is what catches it (I3). Such a start comes at once when the process goes on: within the margin of the first
//! thing that it notes after its window ended. A node that does not look at its window starts things later than that.

use std::collections::HashMap;

use super::{Checker, Violation};
use crate::history::{At, Event, History, What};

pub(super) struct SelfFence;

#[derive(Default)]
struct Process {
    /// When the last renewal that succeeded was sent.
    sent: Option<At>,
    /// The first note after the end of the window.
    awake: Option<At>,
}

/// Starts outside of the window: those that a stop of the process excuses, and the others.
pub(super) fn late_starts(history: &History) -> (Vec<&Event>, Vec<&Event>) {
    let window = history.terms.ttl - history.terms.margin;
    let mut processes: HashMap<(&str, u32), Process> = HashMap::new();
    let (mut excused, mut late) = (Vec::new(), Vec::new());
    for event in &history.events {
        let process = processes.entry((&event.node, event.pid)).or_default();
        if let What::Renewed { sent, .. } = event.what {
            process.sent = process.sent.max(Some(sent));
        }
        // Notes at the same instant may stand in any order; a renewal's note comes after trust has grown.
        if process.sent.is_some_and(|sent| event.at <= sent + window) {
            process.awake = None;
            continue;
        }
        let awake = *process.awake.get_or_insert(event.at);
        if matches!(event.what, What::RunStarted { .. }) {
            if process.sent.is_some() && event.at - awake <= history.terms.margin {
                excused.push(event);
            } else {
                late.push(event);
            }
        }
    }
    (excused, late)
}

impl Checker for SelfFence {
    fn id(&self) -> &'static str {
        "I9"
    }

    fn title(&self) -> &'static str {
        "nothing starts outside of the trust window"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let (_, late) = late_starts(history);
        late.into_iter()
            .map(|event| {
                let text = format!("{} started a run outside of its trust window", event.node);
                Violation::new("untrusted", text).row(event)
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, MS, S};
    use super::*;

    #[test]
    fn starts_inside_the_window_pass() {
        let mut build = Build::mesh();
        build.done("a", 1);
        build.tick(2 * S);
        build.renew(1, 2);
        build.tick(2 * S);
        build.done("a", 2);
        build.passes(&SelfFence);
    }

    #[test]
    fn a_start_after_the_window_is_seen() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.tick(3 * S);
        build.end(&claim);
        build.tick(501 * MS);
        build.start(&claim);
        build.fails(&SelfFence, "untrusted");
    }

    #[test]
    fn a_process_that_was_stopped_is_excused_once_it_goes_on() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.tick(10 * S);
        build.start(&claim);
        build.passes(&SelfFence);
        assert_eq!(late_starts(&build.history).0.len(), 1);
        build.tick(S);
        build.start(&claim);
        build.fails(&SelfFence, "untrusted");
    }

    #[test]
    fn a_process_without_any_renewal_may_start_nothing() {
        let mut build = Build::mesh();
        build.history.events.clear();
        let claim = build.submit("a", 1);
        build.start(&claim);
        build.fails(&SelfFence, "untrusted");
    }

    #[test]
    fn another_process_of_the_same_name_does_not_help() {
        let mut build = Build::mesh();
        build.renew(4, 1);
        build.history.events.retain(|event| event.pid != 1);
        let claim = build.submit("a", 1);
        build.start(&claim);
        build.fails(&SelfFence, "untrusted");
    }
}
