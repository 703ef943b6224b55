//! I7: after a death its slots work again soon, and the others never stop.
//!
//! **Promise** (P6, P7). While a slot has something to do, the time from one end of a task to the next is bounded:
//!
//! - of slots whose owner is frozen or cut off, and of all after a suspension: a TTL and a second;
//! - of slots whose owner is killed: half a second, as the p99 over slots and kills. Each single one, also after a SIGTERM or where a
//!   task ended its process: a TTL, two ticks (the fencing, the claim) and a second;
//! - after a restart of Postgres: a second more than it was away;
//! - after a failover: two seconds more than the promotion took;
//! - of all others: twice the p99.9 before the first fault, and a second at least, since a machine has hiccups of its own.
//!
//! Time counts from the beginning of the fault; where it leaves nobody to take over (Postgres, all nodes), from its healing, or
//! from the promotion of a standby. All nodes and Postgres share one machine here, which halts them all now and then:
//! so each limit is longer by twice the p99.9 before the first fault of the same run.
//!
//! **Algorithm.** One pass. A slot waits from when its first open task was committed, or from its last end if more are open, to
//! its next end; that is a gap, and belongs to the slot's owner at its beginning. Then each gap is held against the faults
//! that it overlaps. Each further fault that begins while a slot waits grants it as much time again, by the largest of their
//! limits: the one that took the slot over may be the next to die. The p99 of kills is judged where nothing else was
//! injected, where somebody was left to take over, and if there are enough gaps; else it is reported only.
//!
//! **Excluded.** Tasks that wait for a time, run for long, fail on purpose or are cancelled do not count as something to do. A gap that
//! never ends is a lost task (I1, I8). Faults that only slow things down (no CPU, a bad network, clocks) promise no
//! bound; how long slots stood still under them is reported. Nor do fail points, which follow each other without a pause. Runs in
//! which Postgres' own clock is shifted: it is what gaps are measured by.

use std::collections::{HashMap, HashSet};

use ringmesh::task::TaskId;

use super::windows::{Window, aftermath, windows};
use super::{Checker, Violation};
use crate::history::{Answer, Expected, History, Moment, Row, Step, Terms};

pub(super) struct Gap;

/// What a slot of the living may wait at any time, µs.
const HICCUP: i64 = 1_000_000;
/// The p99 of gaps of the killed, µs.
pub(crate) const KILL: i64 = 500_000;
/// Fewer gaps than this have no p99 to speak of.
const ENOUGH: usize = 20;

/// For how long a slot that this fault hits may stand still, µs; `None`: nothing is promised.
fn bound(fault: &str, terms: Terms) -> Option<i64> {
    const SECOND: i64 = 1_000_000;
    let (ttl, tick) = (terms.ttl / 1000, terms.tick / 1000);
    match fault {
        // Deaths and stops.
        "N1" | "N3" => Some(ttl + 2 * tick + SECOND),
        // Pauses, cuts, a suspension.
        "N2" | "N9" | "N10" | "N11" | "N13" | "N19" => Some(ttl + SECOND),
        // A restart, a failover.
        "N20" => Some(SECOND),
        "N21" => Some(2 * SECOND),
        _ => None,
    }
}

/// A slot that had something to do, and did nothing; µs by Postgres' clock.
#[derive(Debug, Clone, Copy)]
struct Wait {
    slot: i32,
    owner: Option<i64>,
    from: i64,
    to: i64,
}

/// What a fault did to the slots that it hit.
#[derive(Debug, Clone, Copy)]
pub(super) struct Hit<'a> {
    pub(super) fault: &'a str,
    slot: i32,
    /// The longest: µs from its beginning, or from its healing where it hits all.
    pub(super) gap: i64,
    /// By how much one of them was longer than its limit, at worst; `None`: nothing is promised.
    over: Option<i64>,
    /// Whether it left nobody to take over.
    all: bool,
}

impl Checker for Gap {
    fn id(&self) -> &'static str {
        "I7"
    }

    fn title(&self) -> &'static str {
        "slots of the dead work again soon, others never stop"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let most_of_dead = bound("N1", history.terms).unwrap_or_default();
        let windows = windows(history);
        if windows.iter().any(shifts_time) {
            return Vec::new();
        }
        let waits = waits(history);
        let slack = 2 * quiet(history, &windows, &waits);
        let hits = hits(history, &windows, &waits);
        let mut found = Vec::new();
        for hit in &hits {
            if let Some(over) = hit.over.filter(|over| *over > slack) {
                let (slot, fault, ms, over) = (hit.slot, hit.fault, hit.gap / 1000, (over - slack) / 1000);
                let text = format!("slot {slot} stood still for {ms} ms under {fault}, {over} ms too long");
                found.push(Violation::new("gap", text));
            }
        }
        if windows.iter().all(Window::is_kill) {
            let gaps: Vec<i64> = hits.iter().filter(|hit| !hit.all).map(|hit| hit.gap).collect();
            let count = gaps.len();
            let p99 = percentile(gaps, 0.99);
            if count >= ENOUGH && p99 > KILL + slack {
                let (ms, most) = (p99 / 1000, (KILL + slack) / 1000);
                let text =
                    format!("the p99 of {count} gaps of killed nodes' slots is {ms} ms, {most} at most");
                found.push(Violation::new("gap of kills", text));
            }
        }
        let most = HICCUP.max(slack);
        let deaths = deaths(history);
        let after = aftermath(history) / 1000;
        for wait in &waits {
            let concerned = windows.iter().any(|window| {
                // Where nobody is left, whoever starts anew has all to do.
                let hit = window.hits_all || wait.owner.is_none_or(|owner| window.hits(owner));
                // Other faults than of single nodes concern all, in some way.
                (hit || !(window.is_kill() || window.is_pause())) && overlaps(history, window, wait, after)
            });
            let died = wait.owner.and_then(|owner| deaths.get(&owner));
            let most = match died {
                Some(died) if (wait.from..=wait.to).contains(died) => most_of_dead.max(most),
                _ => most,
            };
            if !concerned && wait.to - wait.from > most {
                let ms = (wait.to - wait.from) / 1000;
                let text = format!(
                    "slot {} stood still for {ms} ms and nothing had happened to its owner",
                    wait.slot
                );
                found.push(Violation::new("gap of others", text).row(wait));
            }
        }
        found
    }
}

/// When each life was declared dead, by Postgres' clock.
fn deaths(history: &History) -> HashMap<i64, i64> {
    let deaths = history.changes.iter().filter_map(|change| match &change.row {
        Row::Node {
            incarnation,
            fenced: Some(_),
            ..
        } => Some((*incarnation, change.committed_at)),
        _ => None,
    });
    deaths.collect()
}

/// Of slots that no kill and no pause hit: the p99.9 of their gaps before the first fault, and the longest while only kills and pauses hit
/// others; µs.
pub(super) fn others(history: &History) -> (Option<i64>, Option<i64>) {
    let windows = windows(history);
    let waits = waits(history);
    let after = aftermath(history) / 1000;
    let other = waits.iter().filter(|wait| {
        let mut at_the_time = windows
            .iter()
            .filter(|window| overlaps(history, window, wait, after))
            .peekable();
        at_the_time.peek().is_some()
            && at_the_time.all(|window| {
                let alone = window.is_kill() || window.is_pause();
                alone && !window.hits_all && wait.owner.is_some_and(|owner| !window.hits(owner))
            })
    });
    let longest = other.map(|wait| wait.to - wait.from).max();
    let quiet = quiet(history, &windows, &waits);
    ((quiet > 0).then_some(quiet), longest)
}

fn overlaps(history: &History, window: &Window<'_>, wait: &Wait, after: i64) -> bool {
    let from = window.before.map_or(i64::MIN, |moment| moment.committed_at);
    let to = window.heal.map_or(i64::MAX, |heal| {
        healed_at(history, window, heal).saturating_add(after)
    });
    wait.to >= from && wait.from <= to
}

/// The p99.9 of all gaps before the first fault, and before the first node is declared dead.
fn quiet(history: &History, windows: &[Window<'_>], waits: &[Wait]) -> i64 {
    let faults = windows.iter().map(|window| window.begin.committed_at);
    let end = faults
        .chain(deaths(history).into_values())
        .min()
        .unwrap_or(i64::MAX);
    let gaps = waits.iter().filter(|wait| wait.to < end);
    percentile(gaps.map(|wait| wait.to - wait.from).collect(), 0.999)
}

/// 0 if there are none.
pub(super) fn percentile(mut values: Vec<i64>, share: f64) -> i64 {
    if values.is_empty() {
        return 0;
    }
    values.sort_unstable();
    let place = (values.len() as f64 * share).ceil() as usize;
    values[place.clamp(1, values.len()) - 1]
}

/// Whether it makes the times of commits lie.
fn shifts_time(window: &Window<'_>) -> bool {
    matches!(&window.begin.step, Step::Fault { name, .. } if name == "clock-of-postgres")
}

/// The longest gap of each slot that a fault hits, for each fault.
pub(super) fn gaps(history: &History) -> Vec<(&str, i64)> {
    let windows = windows(history);
    if windows.iter().any(shifts_time) {
        return Vec::new();
    }
    let hits = hits(history, &windows, &waits(history));
    hits.into_iter().map(|hit| (hit.fault, hit.gap)).collect()
}

fn hits<'a>(history: &History, windows: &[Window<'a>], waits: &[Wait]) -> Vec<Hit<'a>> {
    let mut worst: HashMap<(usize, i32), Hit<'a>> = HashMap::new();
    for wait in waits {
        let mut overlapping = windows
            .iter()
            .enumerate()
            .filter(|(_, window)| overlaps(history, window, wait, 0))
            .peekable();
        if overlapping.peek().is_none() {
            continue;
        }
        let overlapping: Vec<_> = overlapping.collect();
        // The last moment at which all that was owed was owed anew.
        let owed = overlapping.iter().map(|(_, window)| match window.heal {
            // Some pauses are tried until they meet a transaction.
            _ if !window.hits_all && window.is_pause() => window
                .begun
                .map_or(window.begin.committed_at, |begun| begun.committed_at)
                .min(wait.to),
            _ if !window.hits_all => window.begin.committed_at.min(wait.to),
            // The new server is there once it is promoted; healing makes another standby.
            _ if window.id == "N21" => window
                .begun
                .map_or(wait.to, |begun| begun.committed_at.min(wait.to)),
            Some(heal) => healed_at(history, window, heal).min(wait.to),
            None => wait.to,
        });
        let gap = wait.to - owed.fold(wait.from, i64::max);
        let promised = |(_, window): &(usize, &Window<'a>)| bound(window.id, history.terms);
        let most = overlapping.iter().filter_map(promised).max();
        for hit in overlapping {
            let (place, window) = hit;
            if window.hits_all || wait.owner.is_some_and(|owner| window.hits(owner)) {
                let worst = worst.entry((place, wait.slot)).or_insert(Hit {
                    fault: window.id,
                    slot: wait.slot,
                    gap: 0,
                    over: None,
                    all: window.hits_all,
                });
                worst.gap = worst.gap.max(gap);
                if promised(&hit).is_some() {
                    worst.over = worst.over.max(most.map(|most| gap - most));
                }
            }
        }
    }
    let mut hits: Vec<_> = worst.into_iter().collect();
    hits.sort_unstable_by_key(|(place, _)| *place);
    hits.into_iter().map(|(_, hit)| hit).collect()
}

/// When a fault was healed, by Postgres' clock. A suspension lets that jump, and right after it Postgres may not have told the
/// lab: then the last commit before the healing was noted does.
fn healed_at(history: &History, window: &Window<'_>, heal: &Moment) -> i64 {
    if window.id != "N19" {
        return heal.committed_at;
    }
    let before = history
        .changes
        .partition_point(|change| change.transaction <= heal.wal);
    let last = history.changes[..before].last();
    last.map_or(heal.committed_at, |change| {
        change.committed_at.max(heal.committed_at)
    })
}

fn waits(history: &History) -> Vec<Wait> {
    let idle: HashSet<TaskId> = history
        .submits
        .iter()
        .filter(|submit| {
            submit.scheduled
                || !matches!(submit.expected, Expected::Effect | Expected::NoEffect)
                || matches!(&*submit.kind, "harm" | "last")
        })
        .filter_map(|submit| match submit.answer {
            Answer::Accepted { id, .. } => Some(id),
            _ => None,
        })
        .collect();
    // Only of submits that were answered is it known that they should run at once.
    let known: HashSet<TaskId> = history
        .submits
        .iter()
        .filter_map(|submit| match submit.answer {
            Answer::Accepted { id, .. } if !idle.contains(&id) => Some(id),
            _ => None,
        })
        .collect();
    #[derive(Default)]
    struct Slot {
        owner: Option<i64>,
        open: HashSet<TaskId>,
        since: i64,
        owner_then: Option<i64>,
    }
    let mut slots: HashMap<i32, Slot> = HashMap::new();
    let mut waits = Vec::new();
    for change in &history.changes {
        let at = change.committed_at;
        match &change.row {
            Row::Baseline => slots.clear(),
            Row::Slot { slot, owner, .. } => slots.entry(*slot).or_default().owner = *owner,
            Row::Task { id, .. } if known.contains(id) => {
                let slot = slots.entry(i32::from(id.slot.get())).or_default();
                if slot.open.is_empty() {
                    (slot.since, slot.owner_then) = (at, slot.owner);
                }
                slot.open.insert(*id);
            }
            Row::Finished { id, .. } => {
                let number = i32::from(id.slot.get());
                let slot = slots.entry(number).or_default();
                if slot.open.remove(id) {
                    waits.push(Wait {
                        slot: number,
                        owner: slot.owner_then,
                        from: slot.since,
                        to: at,
                    });
                    (slot.since, slot.owner_then) = (at, slot.owner);
                }
            }
            _ => {}
        }
    }
    waits
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, Claim, MS, S};
    use super::*;
    use crate::history::FencingKind;

    fn killed(takes: i64) -> (Build, Claim, Claim) {
        let mut build = Build::mesh();
        build.done("a", 1);
        build.done("b", 1);
        let (dead, living) = (build.submit("a", 2), build.submit("b", 2));
        build.fault("N1", "kill", &[1]);
        build.tick(takes);
        build.fence(1, 1, FencingKind::Noticed, 2);
        build.grant(0, 2, 2);
        (build, dead, living)
    }

    #[test]
    fn a_quick_takeover_passes() {
        let (mut build, dead, living) = killed(100 * MS);
        build.finish(&living);
        build.finish(&dead);
        build.step(Step::Heal { id: "N1".into() });
        build.passes(&Gap);
        let gaps = gaps(&build.history);
        assert_eq!(gaps.len(), 1, "one slot was hit: {gaps:?}");
        assert!((100_000..120_000).contains(&gaps[0].1), "{gaps:?}");
    }

    #[test]
    fn a_slow_takeover_is_seen() {
        let (mut build, dead, living) = killed(MS);
        build.finish(&living);
        build.tick(8 * S);
        build.finish(&dead);
        build.fails(&Gap, "gap");
    }

    #[test]
    fn a_living_slot_that_stands_still_is_seen() {
        let (mut build, dead, living) = killed(MS);
        build.finish(&dead);
        build.tick(2 * S);
        build.finish(&living);
        build.fails(&Gap, "gap of others");
        assert!(others(&build.history).1 > Some(2_000_000));
    }

    #[test]
    fn a_node_that_its_work_ended_is_owed_what_a_killed_one_is() {
        for (late, kinds) in [(2 * S, 0), (7 * S, 1)] {
            let mut build = Build::mesh();
            let claim = build.submit("a", 1);
            build.fence(1, 1, FencingKind::Noticed, 2);
            build.grant(0, 2, 2);
            build.tick(late);
            build.finish(&claim);
            assert_eq!(Gap.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn while_postgres_is_away_nobody_owes_anything() {
        for (late, kinds) in [(100 * MS, 0), (7 * S, 1)] {
            let mut build = Build::mesh();
            let claim = build.submit("a", 1);
            build.fault("N20", "restart", &[]);
            build.tick(20 * S);
            build.step(Step::Heal { id: "N20".into() });
            build.tick(late);
            build.finish(&claim);
            assert_eq!(Gap.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn from_a_promotion_on_work_is_owed() {
        for (late, kinds) in [(100 * MS, 0), (7 * S, 1)] {
            let mut build = Build::mesh();
            let claim = build.submit("a", 1);
            build.fault("N21", "failover", &[1, 2, 3]);
            build.tick(20 * S);
            build.step(Step::Begun { id: "N21".into() });
            build.tick(late);
            build.finish(&claim);
            build.step(Step::Heal { id: "N21".into() });
            assert_eq!(Gap.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn where_all_nodes_are_killed_the_healing_counts() {
        for (late, kinds) in [(100 * MS, 0), (7 * S, 1)] {
            let mut build = Build::mesh();
            let claim = build.submit("a", 1);
            build.fault("N1", "kill", &[1, 2, 3]);
            build.tick(20 * S);
            build.step(Step::Heal { id: "N1".into() });
            build.tick(late);
            build.finish(&claim);
            assert_eq!(Gap.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn whoever_starts_while_all_are_away_has_all_to_do() {
        let mut build = Build::mesh();
        build.fault("N1", "kill", &[1, 2, 3]);
        build.fence(1, 1, FencingKind::Replaced, 4);
        build.node(4, 0, None);
        build.grant(0, 4, 2);
        let claim = build.submit("a", 1);
        build.tick(2 * S);
        build.finish(&claim);
        build.step(Step::Heal { id: "N1".into() });
        build.passes(&Gap);
    }

    #[test]
    fn a_second_death_grants_as_much_time_again() {
        let (mut build, dead, living) = killed(4 * S);
        build.finish(&living);
        build.fault("N2", "pause", &[2]);
        build.tick(4 * S);
        build.finish(&dead);
        build.passes(&Gap);
    }

    /// A slot that waits from before a fault until so long after its beginning, or its healing.
    fn hit_by(id: &str, incarnations: &[i64], heals: bool, late: i64) -> Build {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.fault(id, "fault", incarnations);
        build.step(Step::Begun { id: id.into() });
        if heals {
            build.tick(20 * S);
            build.step(Step::Heal { id: id.into() });
        }
        build.tick(late);
        build.finish(&claim);
        build
    }

    #[test]
    fn each_fault_has_its_own_limit() {
        for (id, incarnations, heals, most) in [
            ("N1", &[1][..], false, 6 * S),
            ("N2", &[1][..], false, 4 * S),
            ("N9", &[1][..], false, 4 * S),
            ("N11", &[1][..], false, 4 * S),
            ("N19", &[1, 2, 3][..], true, 4 * S),
            ("N20", &[][..], true, S),
            ("N21", &[1, 2, 3][..], false, 2 * S),
        ] {
            hit_by(id, incarnations, heals, most - 100 * MS).passes(&Gap);
            hit_by(id, incarnations, heals, most + 100 * MS).fails(&Gap, "gap");
        }
    }

    #[test]
    fn of_faults_that_overlap_the_largest_limit_holds() {
        for (late, kinds) in [(3900 * MS, 0), (4100 * MS, 2)] {
            let mut build = Build::mesh();
            let claim = build.submit("a", 1);
            build.fault("N2", "pause", &[1]);
            build.fault("N20", "restart", &[]);
            build.step(Step::Heal { id: "N20".into() });
            build.tick(late);
            build.finish(&claim);
            assert_eq!(Gap.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn a_machine_that_halts_without_faults_is_given_that_time_twice() {
        for (late, kinds) in [(4900 * MS, 0), (5100 * MS, 1)] {
            let mut build = Build::mesh();
            let claim = build.submit("a", 1);
            build.tick(500 * MS);
            build.finish(&claim);
            let claim = build.submit("a", 2);
            build.fault("N2", "pause", &[1]);
            build.tick(late);
            build.finish(&claim);
            assert_eq!(Gap.check(&build.history).len(), kinds);
        }
    }

    #[test]
    fn a_suspension_may_let_the_clock_jump_unseen() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.fault("N19", "suspend", &[1, 2, 3]);
        build.tick(600 * S);
        build.lease(1, 2);
        let committed_at = build.now / 1000 - 600_000_000;
        build.step(Step::Heal { id: "N19".into() });
        build.history.moments.last_mut().unwrap().committed_at = committed_at;
        build.finish(&claim);
        build.passes(&Gap);
    }

    #[test]
    fn after_a_suspension_the_others_are_granted_its_aftermath() {
        let mut build = Build::mesh();
        build.fault("N19", "suspend", &[1, 2, 3]);
        build.tick(600 * S);
        build.lease(1, 2);
        let claim = build.submit("a", 1);
        let committed_at = build.now / 1000 - 600_000_000;
        build.step(Step::Heal { id: "N19".into() });
        build.history.moments.last_mut().unwrap().committed_at = committed_at;
        build.tick(2 * S);
        build.finish(&claim);
        build.passes(&Gap);
    }

    #[test]
    fn the_p99_of_enough_kills_is_judged_where_nothing_else_happens() {
        for (slots, takes, other, kinds) in [
            (20, 400 * MS, false, 0),
            (19, 600 * MS, false, 0),
            (20, 600 * MS, true, 0),
            (20, 600 * MS, false, 1),
        ] {
            let mut build = Build::mesh();
            // All slots are node 1's.
            for slot in (0..26).filter(|slot| slot % 3 != 0) {
                build.grant(slot, 1, 2);
            }
            let keys = (b'a'..=b'z').take(slots);
            let claims: Vec<Claim> = keys
                .map(|key| build.submit(&char::from(key).to_string(), 1))
                .collect();
            if other {
                build.fault("N25", "held", &[3]);
                build.step(Step::Heal { id: "N25".into() });
            }
            build.fault("N1", "kill", &[1]);
            build.tick(takes);
            claims.iter().for_each(|claim| build.finish(claim));
            let found = Gap.check(&build.history);
            assert_eq!(found.len(), kinds, "{found:#?}");
            assert!(found.iter().all(|violation| violation.kind == "gap of kills"));
        }
    }

    #[test]
    fn what_only_slows_down_is_reported_and_no_more() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.fault("N4", "no CPU", &[1]);
        build.tick(20 * S);
        build.finish(&claim);
        build.passes(&Gap);
        assert!(gaps(&build.history)[0].1 > 20_000_000);
    }

    #[test]
    fn what_need_not_run_is_no_gap() {
        let mut build = Build::mesh();
        let claim = build.submit_as("a", 1, Expected::Dead);
        build.tick(20 * S);
        build.finish(&claim);
        build.passes(&Gap);
    }

    #[test]
    fn percentiles_are_values_that_were_seen() {
        assert_eq!(percentile(vec![], 0.99), 0);
        assert_eq!(percentile(vec![3], 0.99), 3);
        assert_eq!(percentile((1..=1000).rev().collect(), 0.99), 990);
        assert_eq!(percentile((1..=1000).collect(), 0.999), 999);
    }
}
