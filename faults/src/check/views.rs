//! I16: all nodes see the same mesh, soon after it has changed.
//!
//! **Promise.** Five seconds after the last change, all nodes compute placement from the same, hold for the owners of slots who Postgres
//! says, and own what placement gives them.
//!
//! **Algorithm.** Each second all nodes and Postgres are asked at the same time who owns how many slots: nodes answer from memory. A round counts
//! when Postgres' own answer has been the same for five seconds. In it, the digests of all nodes that answer must be
//! equal to Postgres'; and of those that say that they hold what the ring gives them, the rings that they noted last must have one
//! digest. Equal rings, together with each node holding its share, are equal owner maps.
//!
//! **Excluded.** Rounds during a fault and up to five seconds after its healing: that is the last change which the fault itself makes.
//! What follows from it later, as a life that begins or a member that is back, is another answer of Postgres or another ring, and
//! starts the five seconds anew. A node that does not answer, or is not ready, says nothing: that it does at the end is I8.

use std::collections::HashMap;

use super::windows::windows;
use super::{Checker, Violation};
use crate::history::{At, History, Step, View, What};

pub(super) struct Views;

const SETTLES: i64 = 5_000_000_000;

impl Checker for Views {
    fn id(&self) -> &'static str {
        "I16"
    }

    fn title(&self) -> &'static str {
        "all nodes see the same mesh"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        each_settled(history, |round, digest, rings| {
            judge(round, digest, rings, &mut found);
        });
        found
    }
}

/// Whether views were judged after all that was broken was healed.
pub(super) fn are_judged_at_last(history: &History) -> bool {
    let heals = history
        .moments
        .iter()
        .filter(|moment| matches!(moment.step, Step::Heal { .. }));
    let healed = heals.map(|moment| moment.at).max().unwrap_or(At::MIN);
    let mut judged = false;
    each_settled(history, |round, _, _| {
        judged |= round.iter().any(|view| view.at > healed);
    });
    judged
}

/// Each round that counts, with Postgres' answer and the rings of that time.
fn each_settled<'a>(history: &'a History, mut judge: impl FnMut(&'a [View], u64, &Rings<'a>)) {
    let windows = windows(history);
    // Since when Postgres has given the same answer.
    let mut same: Option<(u64, At)> = None;
    let mut rings = Rings::of(history);
    for round in history.views.chunk_by(|a, b| a.round == b.round) {
        let Some(truth) = round.iter().find(|view| view.node.is_none()) else {
            continue;
        };
        let Some(digest) = truth.digest else {
            same = None;
            continue;
        };
        let since = match same {
            Some((before, since)) if before == digest => since,
            _ => truth.at,
        };
        same = Some((digest, since));
        rings.up_to(truth.at);
        let settled = truth.at - since >= SETTLES && truth.at - rings.changed >= SETTLES;
        if settled && !windows.iter().any(|window| window.covers(truth.at, SETTLES)) {
            judge(round, digest, &rings);
        }
    }
}

fn judge(round: &[View], digest: u64, rings: &Rings<'_>, found: &mut Vec<Violation>) {
    let mut ring: Option<(&str, &str)> = None;
    for view in round {
        let Some(node) = view.node.as_deref().filter(|_| view.ready) else {
            continue;
        };
        if view.digest != Some(digest) {
            let text = format!("{node} holds others for the owners than Postgres does");
            found.push(Violation::new("owners", text).row(view));
        }
        let Some(its) = rings.last.get(node) else { continue };
        match ring {
            Some((other, before)) if before != *its => {
                let text = format!("the rings of {other} and {node} differ: {before} and {its}");
                found.push(Violation::new("rings", text).row(view));
            }
            _ => ring = Some((node, its)),
        }
    }
}

/// The ring that each node noted last, walking along with the rounds.
struct Rings<'a> {
    notes: std::iter::Peekable<Box<dyn Iterator<Item = (At, &'a str, &'a str)> + 'a>>,
    last: HashMap<&'a str, &'a str>,
    changed: At,
}

impl<'a> Rings<'a> {
    fn of(history: &'a History) -> Self {
        let notes = history.events.iter().filter_map(|event| match &event.what {
            What::Ring { digest } => Some((event.at, &*event.node, &**digest)),
            _ => None,
        });
        let notes: Box<dyn Iterator<Item = _>> = Box::new(notes);
        Rings {
            notes: notes.peekable(),
            last: HashMap::new(),
            changed: 0,
        }
    }

    fn up_to(&mut self, at: At) {
        while let Some((when, node, digest)) = self.notes.next_if(|(when, ..)| *when <= at) {
            self.changed = when;
            self.last.insert(node, digest);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S};
    use super::*;

    /// Ten rounds in which all agree.
    fn agreeing() -> Build {
        let mut build = Build::mesh();
        for node in 1..=3 {
            build.event(node, What::Ring { digest: "r".into() });
        }
        for round in 1..=10 {
            build.tick(S);
            for node in [Some("n1"), Some("n2"), None] {
                build.history.views.push(View {
                    round,
                    at: build.now,
                    node: node.map(Into::into),
                    digest: Some(1),
                    ready: true,
                });
            }
        }
        build
    }

    fn view<'a>(build: &'a mut Build, round: u64, node: Option<&str>) -> &'a mut View {
        let views = build.history.views.iter_mut();
        let mut found = views.filter(|view| view.round == round && view.node.as_deref() == node);
        found.next().unwrap()
    }

    #[test]
    fn agreement_passes() {
        agreeing().passes(&Views);
        // A change is seen by one node before the other.
        let mut build = agreeing();
        for round in 4..=10 {
            view(&mut build, round, None).digest = Some(2);
            view(&mut build, round, Some("n1")).digest = Some(2);
            if round > 5 {
                view(&mut build, round, Some("n2")).digest = Some(2);
            }
        }
        build.passes(&Views);
        // Silence, and a node that is not ready, say nothing.
        let mut build = agreeing();
        let quiet = view(&mut build, 10, Some("n1"));
        (quiet.digest, quiet.ready) = (None, false);
        build.passes(&Views);
    }

    #[test]
    fn a_node_that_sees_other_owners_is_seen() {
        let mut build = agreeing();
        view(&mut build, 10, Some("n2")).digest = Some(2);
        build.fails(&Views, "owners");
    }

    #[test]
    fn a_change_that_one_node_misses_for_long_is_seen() {
        let mut build = agreeing();
        for round in 4..=10 {
            view(&mut build, round, None).digest = Some(2);
            view(&mut build, round, Some("n1")).digest = Some(2);
        }
        let found = Views.check(&build.history);
        assert!(!found.is_empty() && found.iter().all(|violation| violation.kind == "owners"));
    }

    #[test]
    fn rings_that_differ_are_seen() {
        let mut build = agreeing();
        let note = build
            .history
            .events
            .iter_mut()
            .find(|event| matches!(event.what, What::Ring { .. }));
        note.unwrap().what = What::Ring {
            digest: "other".into(),
        };
        let found = Views.check(&build.history);
        assert!(!found.is_empty() && found.iter().all(|violation| violation.kind == "rings"));
    }

    #[test]
    fn during_a_fault_nothing_is_said() {
        let mut build = agreeing();
        view(&mut build, 10, Some("n2")).digest = Some(2);
        build.now = view(&mut build, 1, None).at;
        build.fault("N10", "gossip cut", &[2]);
        build.passes(&Views);
        assert!(!are_judged_at_last(&build.history));
    }

    #[test]
    fn five_seconds_after_the_healing_views_that_differ_are_seen() {
        for (healed_in, kinds) in [(4, 1), (6, 0)] {
            let mut build = agreeing();
            view(&mut build, 10, Some("n2")).digest = Some(2);
            build.now = view(&mut build, 1, None).at;
            build.fault("N10", "gossip cut", &[2]);
            build.now = view(&mut build, healed_in, None).at;
            build.step(Step::Heal { id: "N10".into() });
            assert_eq!(
                Views.check(&build.history).len(),
                kinds,
                "healed in round {healed_in}"
            );
            assert_eq!(are_judged_at_last(&build.history), kinds == 1);
        }
    }
}
