//! I6: little moves.
//!
//! **Promise** (P5). When a node dies, only its slots get new owners. When one joins, only the slots that it takes do.
//!
//! **Algorithm.** That owner maps have this property is tested of the ring itself, for all numbers of members up to 64
//! (`ring/src/placement_tests.rs`). Here, what really moved: one pass over the grants. A slot may leave
//!
//! - an owner that was declared dead, or that a fault hits; where all are killed at once, all join anew, each at its time;
//! - an owner that leaves: it is declared *left* later on;
//! - any owner for a newcomer: a node that gets its first slots, without a pause in between of two TTLs and of what a task may go on
//!   for when its slot moves, by Postgres' clock. How long that takes in all depends on the machine. Only what owners that live hand
//!   to it keeps it new: it may get the slots of the dead at any age;
//! - once more, within that time, whoever took it from the dead or the leaving: a slot that lies for two ticks is taken by any
//!   node, and then handed to whom the ring gives it.
//!
//! Every other move is one too many. And while all nodes are restarted in turn, once or twice, each slot moves at most twice in
//! each round.
//!
//! **Excluded.** Moves during faults other than kills, pauses and fail points, and shortly after: where gossip is cut, nodes rightly differ about who
//! is there. Meshes of more than 20 nodes, in which the bound on each node's load may move a few slots.

use std::collections::{HashMap, HashSet};

use super::windows::{Window, aftermath, windows};
use super::{Checker, Violation};
use crate::history::{FencingKind, History, Row, Step};

pub(super) struct Movement;

/// Up to so many nodes the bound on each node's load moves nothing.
const UNBOUND: usize = 20;

/// For so long a running task keeps its slot from moving: the default of `drain_deadline`, µs.
const HAND_OFF: i64 = 10_000_000;

impl Checker for Movement {
    fn id(&self) -> &'static str {
        "I6"
    }

    fn title(&self) -> &'static str {
        "only the slots of the dead, the leaving and the new move"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        let windows = windows(history);
        let after = aftermath(history) / 1000;
        let joins = 2 * history.terms.ttl / 1000 + HAND_OFF;
        let leaving = leaving(history);
        let mut owners: HashMap<i32, i64> = HashMap::new();
        // When a newcomer got its latest slot from the living; `None`: it is none any more.
        let mut joining: HashMap<i64, Option<i64>> = HashMap::new();
        // When a slot was taken that no owner handed on who stays.
        let mut taken: HashMap<i32, i64> = HashMap::new();
        let mut living: HashSet<i64> = HashSet::new();
        let mut born: HashMap<i64, i64> = HashMap::new();
        let mut baseline = 0;
        let mut moves: HashMap<(usize, i32), u32> = HashMap::new();
        for change in &history.changes {
            let at = change.committed_at;
            match &change.row {
                Row::Baseline => {
                    baseline = change.transaction;
                    owners.clear();
                    living.clear();
                    born.clear();
                    joining.clear();
                    taken.clear();
                }
                Row::Node {
                    incarnation, fenced, ..
                } => {
                    if fenced.is_none() {
                        living.insert(*incarnation);
                        born.entry(*incarnation).or_insert(at);
                    } else {
                        living.remove(incarnation);
                    }
                }
                Row::NodeGone { incarnation } => {
                    living.remove(incarnation);
                }
                Row::Slot {
                    slot, owner: None, ..
                } => {
                    owners.remove(slot);
                }
                Row::Slot {
                    slot,
                    owner: Some(to),
                    epoch,
                } => {
                    let from = owners.insert(*slot, *to);
                    if from == Some(*to) {
                        continue;
                    }
                    let handed = from.is_some_and(|from| living.contains(&from) && !leaving.contains(&from));
                    let latest = joining.entry(*to).or_insert(Some(at));
                    *latest = latest.filter(|latest| at - *latest <= joins);
                    let newcomer = latest.is_some();
                    if handed && newcomer {
                        *latest = Some(at);
                    }
                    let settles = taken.remove(slot).is_some_and(|taken| at - taken <= joins);
                    if !handed {
                        taken.insert(*slot, at);
                    }
                    let Some(from) = from else { continue };
                    for (place, window) in windows.iter().enumerate() {
                        let began = window.before.map_or(i64::MIN, |before| before.committed_at);
                        // Who came back from another fault, just before, takes its slots besides.
                        let besides = newcomer && born.get(to).is_some_and(|born| *born < began);
                        if rounds(window).is_some() && window.covers_commit(at, 0) && !besides {
                            *moves.entry((place, *slot)).or_default() += 1;
                        }
                    }
                    let explained = !handed
                        || newcomer
                        || settles
                        || change.transaction == baseline
                        || living.len() > UNBOUND
                        || windows.iter().any(|window| {
                            let nodes_alone = window.is_kill() || window.is_pause() || window.is_fail_point();
                            let explains = !nodes_alone || window.hits_all || window.hits(from);
                            window.covers_commit(at, after) && explains
                        });
                    if !explained {
                        let text =
                            format!("slot {slot} moved from {from} to {to} at epoch {epoch} without need");
                        found.push(Violation::new("moved", text).row(change));
                    }
                }
                _ => {}
            }
        }
        let mut moves: Vec<_> = moves.into_iter().collect();
        moves.sort_unstable();
        for ((place, slot), times) in moves {
            let most = 2 * rounds(&windows[place]).unwrap_or_default();
            if times > most {
                let text = format!(
                    "slot {slot} moved {times} times while all nodes restarted in turn, {most} at most"
                );
                found.push(Violation::new("moved often", text));
            }
        }
        found
    }
}

/// How often all nodes restart in turn during this fault; `None`: it is another one.
fn rounds(window: &Window<'_>) -> Option<u32> {
    match &window.begin.step {
        Step::Fault { id, name, .. } if id == "N7" => Some(if name == "rolling-restart" { 1 } else { 2 }),
        _ => None,
    }
}

fn leaving(history: &History) -> HashSet<i64> {
    let left = history.changes.iter().filter_map(|change| match &change.row {
        Row::Node {
            incarnation,
            fenced: Some(fencing),
            ..
        } if fencing.kind == FencingKind::Left => Some(*incarnation),
        _ => None,
    });
    left.collect()
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S};
    use super::*;
    use crate::history::FAIL_POINT;

    fn settled() -> Build {
        let mut build = Build::mesh();
        build.tick(17 * S);
        build
    }

    #[test]
    fn moves_of_the_dead_the_new_and_the_leaving_pass() {
        let mut build = settled();
        build.kill_and_take_over();
        build.tick(30 * S);
        build.node(4, 0, None);
        build.grant(0, 4, 3);
        build.grant(1, 4, 2);
        build.tick(30 * S);
        build.grant(2, 2, 2);
        build.fence(3, 1, FencingKind::Left, 3);
        build.passes(&Movement);
    }

    #[test]
    fn a_slot_of_the_living_that_moves_during_a_kill_is_seen() {
        for fault in ["N1", FAIL_POINT] {
            let mut build = settled();
            build.fault(fault, "kill", &[1]);
            build.grant(1, 3, 2);
            build.fails(&Movement, "moved");
        }
    }

    #[test]
    fn a_slot_that_moves_without_a_fault_is_seen() {
        let mut build = settled();
        build.grant(1, 3, 2);
        build.fails(&Movement, "moved");
    }

    #[test]
    fn a_newcomer_does_not_stay_new() {
        let mut build = settled();
        build.node(4, 0, None);
        build.grant(0, 4, 2);
        build.tick(17 * S);
        build.grant(1, 4, 2);
        build.fails(&Movement, "moved");
    }

    #[test]
    fn a_newcomer_stays_new_while_it_gets_slots() {
        let mut build = settled();
        build.node(4, 0, None);
        for slot in 0..3 {
            build.grant(slot, 4, 2);
            build.tick(4 * S);
        }
        build.passes(&Movement);
    }

    /// Every ten seconds node 1 is killed, node 2 takes its slots over, and hands them to its next life.
    fn killed_every_ten_seconds() -> Build {
        let mut build = settled();
        let mut epoch = 1;
        for life in [1, 4, 7, 10] {
            build.fault("N1", "kill", &[life]);
            build.fence(life, 1, FencingKind::Noticed, 2);
            for slot in (0..26).step_by(3) {
                build.grant(slot, 2, epoch + 1);
            }
            build.node(life + 3, 0, None);
            build.step(Step::Heal { id: "N1".into() });
            for slot in (0..26).step_by(3) {
                build.grant(slot, life + 3, epoch + 2);
            }
            epoch += 2;
            build.tick(10 * S);
        }
        build
    }

    #[test]
    fn what_it_takes_over_makes_no_survivor_new() {
        let mut build = killed_every_ten_seconds();
        build.passes(&Movement);
        build.grant(2, 2, 2);
        build.fails(&Movement, "moved");
    }

    #[test]
    fn a_newcomer_under_kills_passes() {
        let mut build = killed_every_ten_seconds();
        build.node(14, 0, None);
        build.grant(1, 14, 2);
        build.fault("N1", "kill", &[13]);
        build.fence(13, 1, FencingKind::Noticed, 2);
        build.grant(0, 14, 10);
        build.tick(9 * S);
        // A long run was under way in it.
        build.grant(2, 14, 2);
        build.passes(&Movement);
    }

    #[test]
    fn a_slot_of_the_dead_moves_on_once_from_whoever_took_it() {
        let mut build = settled();
        build.kill_and_take_over();
        build.tick(2 * S);
        build.grant(0, 3, 3);
        build.passes(&Movement);
        build.grant(0, 2, 4);
        build.fails(&Movement, "moved");
    }

    #[test]
    fn a_slot_that_moves_three_times_in_one_round_of_restarts_is_seen() {
        for (name, kinds) in [("rolling-restart", 1), ("rolling-upgrade", 0)] {
            let mut build = settled();
            build.fault("N7", name, &[1, 2, 3]);
            for (owner, epoch) in [(2, 2), (3, 3), (1, 4)] {
                build.grant(0, owner, epoch);
            }
            build.step(Step::Heal { id: "N7".into() });
            assert_eq!(Movement.check(&build.history).len(), kinds, "{name}");
        }
    }

    #[test]
    fn who_came_back_before_a_round_of_restarts_takes_its_slots_besides() {
        let mut build = settled();
        build.kill_and_take_over();
        build.node(4, 0, None);
        build.step(Step::Heal { id: "N1".into() });
        build.fault("N7", "rolling-restart", &[2, 3, 4]);
        for (owner, epoch) in [(4, 3), (2, 4), (3, 5)] {
            build.grant(0, owner, epoch);
        }
        build.passes(&Movement);
        build.grant(0, 2, 6);
        build.step(Step::Heal { id: "N7".into() });
        build.fails(&Movement, "moved often");
    }

    #[test]
    fn where_gossip_is_cut_nothing_is_said() {
        let mut build = settled();
        build.fault("N10", "gossip cut", &[1]);
        build.grant(1, 3, 2);
        build.step(Step::Heal { id: "N10".into() });
        build.passes(&Movement);
        build.tick(12 * S);
        build.grant(2, 2, 2);
        build.fails(&Movement, "moved");
    }
}
