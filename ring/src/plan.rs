//! The plan: what a node has to do so that what is comes to be what should be.
//!
//! Computed anew at each tick and on each event from full state (the rows that Postgres has, this node's table, the
//! placement), never from what an event said. It reads like a log line, and tests assert on that line:
//!
//! ```text
//! take S0-S3,S9 (N2 fenced); hand off S7 to N4; stay S8
//! ```
//!
//! A plan says what is worth trying. Whether it comes true is decided in Postgres: each take carries the epoch that it
//! expects to find, so that of two nodes with the same plan one is granted the slot and the other sees no row.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use crate::slot::ranges;
use crate::table::State;
use crate::{Epoch, Incarnation, Placement, Row, SLOTS, Slot, Table};

/// For how many ticks a slot may lie without an owner before any serving node takes it.
pub const STRAY_TICKS: u32 = 2;

/// Everything that a plan is made from. The rows must have been given to the table already
/// ([`Table::on_read`]).
#[derive(Debug, Clone, Copy)]
pub struct Input<'a> {
    /// The rows of all slots, by Postgres.
    pub rows: &'a [Row],
    /// The incarnations that are not fenced, by Postgres, this one among them. One without a row counts as fenced.
    pub unfenced: &'a BTreeSet<Incarnation>,
    /// What this node holds.
    pub table: &'a Table,
    /// What should be.
    pub placement: &'a Placement,
    /// The members that take slots, by gossip. This node is not among them while it drains.
    pub serving: &'a BTreeSet<Incarnation>,
    /// How long each slot has had no owner.
    pub orphans: &'a Orphans,
}

impl Input<'_> {
    fn takes_slots(&self, incarnation: Incarnation) -> bool {
        self.serving.contains(&incarnation) && self.unfenced.contains(&incarnation)
    }
}

/// A slot to be granted to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Take {
    /// Which slot.
    pub slot: Slot,
    /// The epoch that its row must still have.
    pub expected: Epoch,
    /// Why it may be taken.
    pub reason: Reason,
}

/// Why a slot may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It is placed here and its owner is fenced.
    OwnerFenced(Incarnation),
    /// It is placed here and never had an owner.
    Unowned,
    /// It is placed at a node that let it lie for [`STRAY_TICKS`].
    Stray,
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnerFenced(owner) => write!(f, "{owner} fenced"),
            Self::Unowned => f.write_str("unowned"),
            Self::Stray => f.write_str("stray"),
        }
    }
}

/// A slot that this node should give to another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HandOff {
    /// Which slot.
    pub slot: Slot,
    /// The member that it is placed at.
    pub to: Incarnation,
}

/// What there is to do, each by slot, ascending.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Plan {
    /// Slots to be granted to this node.
    pub takes: Vec<Take>,
    /// Slots held here to be handed off, or to be handed to another node than agreed before.
    pub hand_offs: Vec<HandOff>,
    /// Slots whose handoff is to be called off.
    pub stays: Vec<Slot>,
}

impl Plan {
    /// Compares what is with what should be.
    ///
    /// - A slot that nobody owns, or a fenced node, is *taken* if it is placed here, or by any serving node once it has
    ///   lain for [`STRAY_TICKS`].
    /// - A slot held here and placed at another serving, unfenced member is *handed off* to it. One already leaving to
    ///   somebody else is aimed anew.
    /// - A slot that is leaving *stays* if it is placed here again, or if there is nobody who could take it.
    /// - A slot whose transfer is on its way, and one of another live owner, is left alone.
    ///
    /// A node that drains takes nothing and keeps nothing from leaving. A fenced node plans nothing.
    pub fn build(input: &Input<'_>) -> Self {
        let mut plan = Self::default();
        let me = input.table.me();
        if input.table.is_fenced() || !input.unfenced.contains(&me) {
            return plan;
        }
        for row in input.rows {
            match input.table.get(row.slot).map(|held| held.state) {
                None => plan.takes.extend(take(input, row)),
                Some(State::Owned) => plan.hand_offs.extend(hand_off(input, row.slot)),
                Some(State::Leaving { to }) => match hand_off(input, row.slot) {
                    Some(step) if step.to == to => {}
                    Some(step) => plan.hand_offs.push(step),
                    None if keeps(input, row.slot, to) => plan.stays.push(row.slot),
                    None => {}
                },
                Some(State::Moving { .. } | State::InDoubt { .. }) => {}
            }
        }
        plan.takes.sort_unstable_by_key(|take| take.slot);
        plan.hand_offs.sort_unstable_by_key(|hand_off| hand_off.slot);
        plan.stays.sort_unstable();
        plan
    }

    /// Whether there is nothing to do.
    pub fn is_empty(&self) -> bool {
        self.takes.is_empty() && self.hand_offs.is_empty() && self.stays.is_empty()
    }
}

/// Whether and why this node takes a slot that it does not hold.
fn take(input: &Input<'_>, row: &Row) -> Option<Take> {
    let me = input.table.me();
    if !input.takes_slots(me) || input.table.known_epoch(row.slot) > Some(row.epoch) {
        return None;
    }
    let here = input.placement.owner(row.slot) == Some(me);
    let reason = match row.owner {
        Some(owner) if input.unfenced.contains(&owner) => return None,
        Some(owner) if here => Reason::OwnerFenced(owner),
        None if here => Reason::Unowned,
        Some(_) | None if input.orphans.ticks(row.slot) >= STRAY_TICKS => Reason::Stray,
        Some(_) | None => return None,
    };
    Some(Take {
        slot: row.slot,
        expected: row.epoch,
        reason,
    })
}

/// Whom this node gives a slot that it holds to.
fn hand_off(input: &Input<'_>, slot: Slot) -> Option<HandOff> {
    let to = input.placement.owner(slot)?;
    (to != input.table.me() && input.takes_slots(to)).then_some(HandOff { slot, to })
}

/// Whether a slot that is leaving to `to`, with nobody else to go to, is better kept.
fn keeps(input: &Input<'_>, slot: Slot, to: Incarnation) -> bool {
    let me = input.table.me();
    let here = input.placement.owner(slot) == Some(me);
    input.takes_slots(me) && (here || !input.takes_slots(to))
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing to do");
        }
        let mut separator = "";
        for (reason, slots) in grouped(self.takes.iter().map(|take| (take.reason, take.slot))) {
            write!(f, "{separator}take {} ({reason})", ranges(slots))?;
            separator = "; ";
        }
        for (to, slots) in grouped(self.hand_offs.iter().map(|hand_off| (hand_off.to, hand_off.slot))) {
            write!(f, "{separator}hand off {} to {to}", ranges(slots))?;
            separator = "; ";
        }
        if !self.stays.is_empty() {
            write!(f, "{separator}stay {}", ranges(self.stays.iter().copied()))?;
        }
        Ok(())
    }
}

fn grouped<K: Ord>(slots: impl Iterator<Item = (K, Slot)>) -> BTreeMap<K, Vec<Slot>> {
    let mut groups: BTreeMap<K, Vec<Slot>> = BTreeMap::new();
    for (key, slot) in slots {
        groups.entry(key).or_default().push(slot);
    }
    groups
}

/// Counts for how many ticks in a row each slot has had no owner, or a fenced one.
#[derive(Debug, Clone)]
pub struct Orphans {
    /// By slot: the epoch since which it lies, and the ticks.
    ticks: Vec<Option<(Epoch, u32)>>,
}

impl Orphans {
    /// No slot is known to be orphaned.
    pub fn new() -> Self {
        Self {
            ticks: vec![None; usize::from(SLOTS)],
        }
    }

    /// Takes the rows read by one tick. To be called once per tick, so not for reads that an event woke.
    pub fn on_tick(&mut self, rows: &[Row], unfenced: &BTreeSet<Incarnation>) {
        for row in rows {
            let ticks = &mut self.ticks[row.slot.index()];
            let owned = row.owner.is_some_and(|owner| unfenced.contains(&owner));
            *ticks = match *ticks {
                _ if owned => None,
                // Granted and orphaned again in between counts from one.
                Some((epoch, count)) if epoch == row.epoch => Some((epoch, count.saturating_add(1))),
                Some(_) | None => Some((row.epoch, 1)),
            };
        }
    }

    /// For how many ticks the slot has been without an owner; 0 if it has one.
    pub fn ticks(&self, slot: Slot) -> u32 {
        self.ticks[slot.index()].map_or(0, |(_, count)| count)
    }

    /// How many slots are without an owner.
    pub fn count(&self) -> usize {
        self.ticks.iter().flatten().count()
    }
}

impl Default for Orphans {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
#[path = "plan_tests.rs"]
mod tests;
