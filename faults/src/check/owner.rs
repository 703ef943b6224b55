//! I4: a slot has one owner, and only the dead lose theirs.
//!
//! **Promise** (P3, P7). A slot's epochs are 1, 2, 3 and so on, each given to one owner, who is registered and not declared dead. A declaration is
//! final: such a node never renews and is never granted anything again, its number is never used again, and of one name at
//! most one node lives. A slot leaves an owner that lives only by the owner's own handing on.
//!
//! **Algorithm.** One pass over slots and nodes. Each kind of declaration has a rule of its own:
//!
//! | kind | by | rule |
//! |---|---|---|
//! | expired | another node | it comes no sooner than TTL − margin after the last renewal, both by Postgres' clock; a fault explains it |
//! | noticed | another node | a fault explains it |
//! | replaced | the row's own number: a start has none yet | a later start under this name follows, and the process had ended |
//! | left | the node itself | |
//!
//! A node's renewals are those of its lease, as soon as it has one; its row says how many there were when it was written last.
//! Neither goes back, and where the row says another number than before, or that the node is dead, it says the lease's.
//!
//! TTL − margin and not TTL: the declaring node counts the TTL on its own clock, and the margin is there for the drift between
//! two. *Explained* means that a fault which hits this node began before, and was not healed for longer than two TTLs and 5 s:
//! no healthy node is thrown out. *Had ended* means the same of a fault that ends processes or, in a failover, lives; without one,
//! that the process noted nothing any more from a second after the declaration on. While another process claims its name, silence
//! shows nothing: it is thrown out, and soon silent.
//!
//! **Excluded.** A grant by an owner that lives cannot be told from a theft, as the log does not say who wrote: that the former
//! owner commits nothing afterwards is I3. Where Postgres' clock stepped back since the last renewal, the rule of *expired* says
//! nothing. A baseline is a beginning: what was before binds nobody.

use std::collections::{HashMap, HashSet};

use super::windows::{Window, aftermath, windows};
use super::{Checker, Violation};
use crate::history::{At, Change, FAIL_POINT, Fencing, FencingKind, History, Row, What};

pub(super) struct SingleOwner;

/// Faults that end processes; after a failover (N21) a process begins a new life.
const ENDINGS: [&str; 9] = ["N1", "N3", "N5", "N6", "N7", "N16", "N21", "N30", FAIL_POINT];
/// Another process under a node's name.
const IMPOSTOR: &str = "N8";
/// So long after a declaration a process may still note something by the clocks, which are compared through moments: ns.
const SLACK: At = 1_000_000_000;

#[derive(Debug)]
struct Node<'a> {
    name: &'a str,
    /// By whichever of the two says more.
    renewals: i64,
    renewed_at: i64,
    /// By its row.
    shown: i64,
    /// By its lease.
    leased: Option<i64>,
    fenced: Option<(Fencing, &'a Change)>,
    /// Whether the clock stepped back since the last renewal.
    clock_stepped: bool,
}

impl Node<'_> {
    /// It has renewed, if this is another number.
    fn on_counter(&mut self, renewals: i64, at: i64) {
        if renewals > self.renewals {
            (self.renewals, self.renewed_at, self.clock_stepped) = (renewals, at, false);
        }
    }
}

struct Pass<'a> {
    history: &'a History,
    windows: Vec<Window<'a>>,
    slots: HashMap<i32, (Option<i64>, i64)>,
    nodes: HashMap<i64, Node<'a>>,
    /// All numbers that starts were given. Two that start at once may commit in the other order.
    numbers: HashSet<i64>,
    /// The unfenced node of each name.
    living: HashMap<&'a str, i64>,
    /// Names declared *replaced* whose next start has not come yet.
    awaited: HashMap<&'a str, &'a Change>,
    baseline: u64,
    clock: i64,
    /// When the process of each life noted something last.
    last_notes: HashMap<i64, At>,
    found: Vec<Violation>,
}

impl Checker for SingleOwner {
    fn id(&self) -> &'static str {
        "I4"
    }

    fn title(&self) -> &'static str {
        "a slot has one owner, and only the dead lose theirs"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut pass = Pass {
            history,
            windows: windows(history),
            slots: HashMap::new(),
            nodes: HashMap::new(),
            numbers: HashSet::new(),
            living: HashMap::new(),
            awaited: HashMap::new(),
            baseline: 0,
            clock: i64::MIN,
            last_notes: last_notes(history),
            found: Vec::new(),
        };
        for change in &history.changes {
            pass.on(change);
        }
        let mut awaited: Vec<_> = pass.awaited.into_iter().collect();
        awaited.sort_unstable_by_key(|(name, _)| *name);
        for (name, change) in awaited {
            let text = format!("{name} was declared replaced, but nothing came in its place");
            pass.found.push(Violation::new("fenced", text).row(change));
        }
        pass.found
    }
}

impl<'a> Pass<'a> {
    fn tell(&mut self, kind: &'static str, text: String, change: &Change) {
        self.found.push(Violation::new(kind, text).row(change));
    }

    fn on(&mut self, change: &'a Change) {
        if change.committed_at < self.clock {
            self.nodes.values_mut().for_each(|node| node.clock_stepped = true);
        }
        self.clock = change.committed_at;
        match &change.row {
            Row::Baseline => {
                self.baseline = change.transaction;
                self.slots.clear();
                self.nodes.clear();
                self.living.clear();
                self.awaited.clear();
                self.numbers.clear();
            }
            Row::Slot { slot, owner, epoch } => self.on_slot(change, *slot, *owner, *epoch),
            Row::Node {
                incarnation,
                name,
                renewals,
                fenced,
            } => self.on_node(change, *incarnation, name, *renewals, *fenced),
            Row::Lease {
                incarnation,
                renewals,
            } => self.on_lease(change, *incarnation, *renewals),
            Row::NodeGone { incarnation } => {
                let node = self.nodes.remove(incarnation);
                if node.is_some_and(|node| node.fenced.is_none()) {
                    let text = format!("the row of node {incarnation} was deleted while it lived");
                    self.tell("fenced", text, change);
                }
            }
            _ => {}
        }
    }

    fn on_slot(&mut self, change: &Change, slot: i32, owner: Option<i64>, epoch: i64) {
        let before = self.slots.insert(slot, (owner, epoch));
        if change.transaction == self.baseline {
            return;
        }
        let (had, last) = before.unwrap_or((None, 0));
        let Some(owner) = owner else {
            if epoch != last {
                self.tell(
                    "epoch",
                    format!("slot {slot} lost its owner and went from epoch {last} to {epoch}"),
                    change,
                );
            }
            return;
        };
        if epoch == last && had == Some(owner) {
            return;
        }
        if epoch != last + 1 {
            self.tell(
                "epoch",
                format!("slot {slot} went from epoch {last} to {epoch}"),
                change,
            );
        }
        match self.nodes.get(&owner) {
            None => self.tell(
                "owner",
                format!("slot {slot} was granted to {owner}, which is not registered"),
                change,
            ),
            Some(node) if node.fenced.is_some() => {
                self.tell(
                    "owner",
                    format!("slot {slot} was granted to {owner}, which was declared dead"),
                    change,
                );
            }
            Some(_) => {}
        }
    }

    fn on_node(
        &mut self,
        change: &'a Change,
        incarnation: i64,
        name: &'a str,
        renewals: i64,
        fenced: Option<Fencing>,
    ) {
        let at = change.committed_at;
        let Some(node) = self.nodes.get_mut(&incarnation) else {
            if !self.numbers.insert(incarnation) {
                let text = format!("a node started as {incarnation}, which was used before");
                self.tell("number", text, change);
            }
            self.awaited.remove(name);
            let node = Node {
                name,
                renewals,
                renewed_at: at,
                shown: renewals,
                leased: None,
                fenced: fenced.map(|fencing| (fencing, change)),
                clock_stepped: false,
            };
            self.nodes.insert(incarnation, node);
            if fenced.is_none()
                && let Some(other) = self.living.insert(name, incarnation)
            {
                self.tell(
                    "number",
                    format!("{name} lives as {other} and as {incarnation}"),
                    change,
                );
            }
            return;
        };
        if node.fenced.is_some() {
            if fenced != node.fenced.map(|(fencing, _)| fencing) {
                self.tell(
                    "fenced",
                    format!("what declared node {incarnation} dead was changed"),
                    change,
                );
            } else if renewals != node.shown {
                self.tell(
                    "fenced",
                    format!("node {incarnation} renewed after it was declared dead"),
                    change,
                );
            }
            return;
        }
        if renewals < node.shown {
            let text = format!(
                "the renewals of node {incarnation} went from {} to {renewals}",
                node.shown
            );
            return self.tell("number", text, change);
        }
        let says = renewals > node.shown || fenced.is_some();
        let denied = node.leased.filter(|leased| says && *leased != renewals);
        node.shown = renewals;
        node.on_counter(renewals, at);
        node.fenced = fenced.map(|fencing| (fencing, change));
        let name = node.name;
        let since = at - node.renewed_at;
        let timed = !node.clock_stepped;
        if let Some(leased) = denied {
            let text =
                format!("the row of node {incarnation} says {renewals} renewals, its lease says {leased}");
            self.tell("number", text, change);
        }
        let Some(fencing) = fenced else { return };
        self.living.remove(name);
        if change.transaction != self.baseline {
            self.on_fenced(change, incarnation, name, fencing, timed.then_some(since));
        }
    }

    fn on_lease(&mut self, change: &Change, incarnation: i64, renewals: i64) {
        let baseline = change.transaction == self.baseline;
        let Some(node) = self.nodes.get_mut(&incarnation) else {
            // Those of nodes that are long gone are forgotten later.
            if !baseline {
                let text = format!("a lease of node {incarnation}, which is not registered");
                self.tell("number", text, change);
            }
            return;
        };
        if node.fenced.is_some() && !baseline {
            let text = format!("node {incarnation} renewed after it was declared dead");
            return self.tell("fenced", text, change);
        }
        if renewals < node.renewals {
            let text = format!(
                "the lease of node {incarnation} went from {} renewals to {renewals}",
                node.renewals
            );
            return self.tell("number", text, change);
        }
        node.leased = Some(renewals);
        node.on_counter(renewals, change.committed_at);
    }

    fn on_fenced(
        &mut self,
        change: &'a Change,
        node: i64,
        name: &'a str,
        fencing: Fencing,
        since: Option<i64>,
    ) {
        let by_itself = fencing.by == Some(node);
        let kind = fencing.kind;
        let wanted = matches!(kind, FencingKind::Left | FencingKind::Replaced);
        if by_itself != wanted {
            let text = format!("node {node} was declared {kind:?} by {:?}", fencing.by);
            self.tell("fenced", text, change);
        }
        match kind {
            FencingKind::Left => {}
            FencingKind::Replaced => {
                self.awaited.insert(name, change);
                if !self.had_ended(change, node) {
                    let text = format!("node {node} was declared {kind:?}, and its process had not ended");
                    self.tell("healthy", text, change);
                }
            }
            FencingKind::Expired => {
                let terms = self.history.terms;
                let least = (terms.ttl - terms.margin) / 1000;
                if let Some(since) = since.filter(|since| *since < least) {
                    let text = format!(
                        "node {node} was declared expired {since} µs after its renewal, {least} at least"
                    );
                    self.tell("fenced", text, change);
                }
                self.explain(change, node, kind);
            }
            FencingKind::Noticed => self.explain(change, node, kind),
        }
    }

    fn explain(&mut self, change: &Change, node: i64, kind: FencingKind) {
        if !self.is_explained(change, node, |_| true) {
            let text = format!("node {node} was declared {kind:?}, and nothing had happened to it");
            self.tell("healthy", text, change);
        }
    }

    /// Whether one of these faults had hit the node.
    fn is_explained(&self, change: &Change, node: i64, of: impl Fn(&Window<'_>) -> bool) -> bool {
        let aftermath = aftermath(self.history) / 1000;
        self.windows.iter().any(|window| {
            let begun = window.before.is_none_or(|moment| change.transaction > moment.wal);
            let over = window.heal.is_some_and(|heal| {
                // A node that was killed stays dead, whatever is healed.
                !window.is_kill() && change.committed_at > heal.committed_at + aftermath
            });
            of(window) && window.hits(node) && begun && !over
        })
    }

    /// Whether the process of a life had ended when another start took its name.
    fn had_ended(&self, change: &Change, node: i64) -> bool {
        if self.is_explained(change, node, |window| ENDINGS.contains(&window.id)) {
            return true;
        }
        let claimed = self.windows.iter().any(|window| {
            window.id == IMPOSTOR && window.hits(node) && window.covers_commit(change.committed_at, 0)
        });
        let silent = || {
            let last = self.last_notes.get(&node);
            last.is_none_or(|last| *last <= self.when(change).saturating_add(SLACK))
        };
        !claimed && silent()
    }

    /// When this was committed by the clock of this machine: as long after the last moment before as by Postgres' clock.
    fn when(&self, change: &Change) -> At {
        let mut before = self.history.moments.iter().rev();
        let before = before.find(|moment| moment.wal < change.transaction);
        before.map_or(At::MAX, |moment| {
            moment.at + 1000 * (change.committed_at - moment.committed_at).max(0)
        })
    }
}

/// When the process of each life noted something last; a process tells by its renewals which life it has.
fn last_notes(history: &History) -> HashMap<i64, At> {
    let mut lives = HashMap::new();
    let mut last = HashMap::new();
    for event in &history.events {
        let process = (&*event.node, event.pid);
        if let What::Renewed { incarnation, .. } = event.what {
            lives.insert(incarnation, process);
        }
        last.insert(process, event.at);
    }
    let of_lives = lives.into_iter().map(|(life, process)| (life, last[&process]));
    of_lives.collect()
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, S};
    use super::*;

    const OWNER: &dyn Checker = &SingleOwner;

    #[test]
    fn takeover_handoff_leaving_and_restart_pass() {
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.node(4, 0, None);
        build.renew(4, 1);
        build.grant(0, 4, 3);
        build.fence(4, 1, FencingKind::Replaced, 4);
        build.commit([Row::NodeGone { incarnation: 1 }]);
        build.node(7, 0, None);
        build.fence(3, 1, FencingKind::Left, 3);
        build.fault("N2", "pause", &[7]);
        build.tick(3 * S);
        build.fence(7, 0, FencingKind::Expired, 2);
        build.commit([Row::Slot {
            slot: 0,
            owner: None,
            epoch: 3,
        }]);
        build.passes(OWNER);
    }

    #[test]
    fn an_epoch_is_neither_skipped_nor_repeated() {
        for epoch in [1, 3] {
            let mut build = Build::mesh();
            build.grant(0, 2, epoch);
            build.fails(OWNER, "epoch");
        }
        let mut build = Build::mesh();
        build.commit([Row::Slot {
            slot: 0,
            owner: None,
            epoch: 2,
        }]);
        build.fails(OWNER, "epoch");
    }

    #[test]
    fn nothing_is_granted_to_strangers_or_the_dead() {
        let mut build = Build::mesh();
        build.grant(0, 9, 2);
        build.fails(OWNER, "owner");
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.grant(0, 1, 3);
        build.fails(OWNER, "owner");
    }

    #[test]
    fn the_dead_stay_dead() {
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.fence(1, 2, FencingKind::Noticed, 2);
        build.fails(OWNER, "fenced");
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.node(1, 1, None);
        build.fails(OWNER, "fenced");
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.lease(1, 2);
        build.fails(OWNER, "fenced");
        let mut build = Build::mesh();
        build.commit([Row::NodeGone { incarnation: 1 }]);
        build.fails(OWNER, "fenced");
    }

    #[test]
    fn numbers_only_rise_and_a_name_lives_once() {
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.commit([Row::NodeGone { incarnation: 1 }]);
        build.node(1, 0, None);
        build.fails(OWNER, "number");
        let mut build = Build::mesh();
        build.node(4, 0, None);
        build.fails(OWNER, "number");
        let mut build = Build::mesh();
        build.lease(2, 0);
        build.fails(OWNER, "number");
        let mut build = Build::mesh();
        build.node(2, 1, None);
        build.node(2, 0, None);
        build.fails(OWNER, "number");
        let mut build = Build::mesh();
        build.lease(4, 0);
        build.fails(OWNER, "number");
    }

    #[test]
    fn a_row_may_be_behind_its_lease_until_it_says_a_new_number() {
        let mut build = Build::mesh();
        build.renew(2, 2);
        // Cut short, and barred no more.
        build.node(2, 0, None);
        // Shown to nodes of the version before.
        build.renew(2, 3);
        build.node(2, 3, None);
        build.passes(OWNER);
        build.node(2, 4, None);
        build.fails(OWNER, "number");
        let mut build = Build::mesh();
        build.fault("N1", "kill", &[1]);
        build.renew(1, 2);
        build.fence(1, 1, FencingKind::Noticed, 2);
        build.fails(OWNER, "number");
    }

    #[test]
    fn a_node_of_the_version_before_renews_by_its_row() {
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.node(4, 0, None);
        build.node(4, 1, None);
        build.fault("N2", "pause", &[4]);
        build.tick(3 * S);
        build.node(4, 2, None);
        build.tick(S);
        build.fence(4, 2, FencingKind::Expired, 2);
        build.fails(OWNER, "fenced");
    }

    #[test]
    fn expired_means_a_lease_without_renewal() {
        let mut build = Build::mesh();
        build.fault("N2", "pause", &[2]);
        build.tick(2 * S);
        build.fence(2, 1, FencingKind::Expired, 3);
        build.fails(OWNER, "fenced");
        // Where the clock stepped back, nobody knows.
        build.history.changes.last_mut().unwrap().committed_at -= 10_000_000;
        build.passes(OWNER);
    }

    #[test]
    fn nobody_is_declared_dead_by_whom_it_does_not_concern() {
        for (kind, by) in [
            (FencingKind::Noticed, 1),
            (FencingKind::Expired, 1),
            (FencingKind::Left, 2),
            (FencingKind::Replaced, 2),
        ] {
            let mut build = Build::mesh();
            build.fault("N1", "kill", &[1]);
            build.tick(3 * S);
            build.fence(1, 1, kind, by);
            build.node(4, 0, None);
            build.fails(OWNER, "fenced");
        }
    }

    #[test]
    fn replaced_means_that_a_start_follows() {
        let mut build = Build::mesh();
        build.fence(1, 1, FencingKind::Replaced, 1);
        build.fails(OWNER, "fenced");
    }

    #[test]
    fn only_whose_process_has_ended_is_replaced() {
        // Another process under its name is no reason.
        let mut build = Build::mesh();
        build.fault("N8", "clone", &[1]);
        build.fence(1, 1, FencingKind::Replaced, 1);
        build.node(4, 0, None);
        build.fails(OWNER, "healthy");
        // It goes on, and lives again.
        let mut build = Build::mesh();
        build.fence(1, 1, FencingKind::Replaced, 1);
        build.node(4, 0, None);
        build.passes(OWNER);
        build.tick(2 * S);
        build.done("a", 1);
        build.fails(OWNER, "healthy");
        for (fault, kinds) in [("N1", 0), ("N7", 0), ("N21", 0), ("N2", 1), ("N9", 1)] {
            let mut build = Build::mesh();
            build.fault(fault, "", &[1]);
            build.fence(1, 1, FencingKind::Replaced, 1);
            build.node(4, 0, None);
            build.tick(2 * S);
            build.done("a", 1);
            assert_eq!(OWNER.check(&build.history).len(), kinds, "{fault}");
        }
    }

    #[test]
    fn a_healthy_node_is_never_thrown_out() {
        let mut build = Build::mesh();
        build.fence(2, 1, FencingKind::Noticed, 3);
        build.fails(OWNER, "healthy");
        let mut build = Build::mesh();
        build.kill_and_take_over();
        build.tick(3 * S);
        build.fence(2, 1, FencingKind::Expired, 3);
        build.fails(OWNER, "healthy");
        let mut build = Build::mesh();
        build.fault("N20", "pause of Postgres", &[]);
        build.step(crate::history::Step::Heal { id: "N20".into() });
        build.tick(12 * S);
        build.fence(2, 1, FencingKind::Noticed, 3);
        build.fails(OWNER, "healthy");
    }
}
