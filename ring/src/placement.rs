//! Placement: the intended owner of every slot, a pure function of the members.
//!
//! Each slot goes to the first member on its walk round the [ring](crate::ring). On top of that stands a *load bound*
//! (Mirrokni, Thorup, Zadimoghaddam, "Consistent Hashing with Bounded Loads", SODA 2018): no member gets more than
//! `ceil(c × SLOTS × w / Σw)` slots, and what would be more walks on to the next member with room.
//!
//! **Which slots have to walk on** decides how many move when the members change. They are placed in rounds. In the
//! first, every slot asks the first member on its walk; a full member turns away those with the highest numbers. In
//! the second, the slots turned away ask their second member, which gives what room it still has; and so on. So a
//! slot at the first member of its walk is never pushed out by one that came there second: an overflow stays an
//! overflow and starts no cascade, and where the bound does not bite the placement is the plain ring's.
//!
//! What moves in addition to the leaver's or the joiner's own slots is overflow alone. With c = 1.25 and nodes of one
//! weight there was none in 150 sets of names each of 5, 10 and 20 nodes; at 100 nodes one death moved 0.04 % of all
//! slots more than it had to in the mean, 0.2 % at worst. `cargo run -p ringmesh-ring --example placement` prints such
//! figures.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::ring::{RING_VERSION, Ring};
use crate::{Incarnation, Member, SLOTS, Slot, member};

/// What a placement is computed from, besides the members.
///
/// Every node of a mesh must have the same; they stand in a row in Postgres, and a node that differs is refused at its
/// start.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// Tokens per unit of weight, 512 by default. More spread the slots more evenly and cost memory and time in
    /// proportion; fewer do the opposite.
    pub tokens: u32,
    /// How many times its fair share a member may get, at least 1, 1.25 by default. Lower is more even, and moves
    /// more slots that would not have to. `None` (written `"none"`) is the strict ring: a change moves nothing else,
    /// and nothing limits the unevenness.
    #[serde(with = "load_bound")]
    pub load_bound: Option<f64>,
    /// The way of placing, [`RING_VERSION`].
    pub version: u32,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            tokens: 512,
            load_bound: Some(1.25),
            version: RING_VERSION,
        }
    }
}

impl Settings {
    /// The most tokens per unit of weight.
    pub const MAX_TOKENS: u32 = 4096;

    /// Checks the values.
    ///
    /// # Errors
    ///
    /// The first value that no placement can be computed with.
    pub fn validate(&self) -> Result<(), Error> {
        if !(1..=Self::MAX_TOKENS).contains(&self.tokens) {
            return Err(Error::Tokens(self.tokens));
        }
        if let Some(bound) = self.load_bound
            && !(bound.is_finite() && bound >= 1.0)
        {
            return Err(Error::LoadBound(bound));
        }
        if self.version != RING_VERSION {
            return Err(Error::Version(self.version));
        }
        Ok(())
    }

    /// The most slots that `weight` of `total` may get.
    fn room(&self, weight: u32, total: u64) -> u32 {
        // The same on every machine: IEEE 754 rounds each of these steps in one way only. Since c >= 1 the rooms add
        // up to SLOTS or more, so every slot finds a member with room.
        match self.load_bound {
            Some(bound) => {
                (bound.max(1.0) * f64::from(SLOTS) * f64::from(weight) / total as f64).ceil() as u32
            }
            None => u32::MAX,
        }
    }
}

/// Settings that no placement can be computed with.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Error {
    /// The number of tokens is out of range.
    #[error("tokens must be from 1 to {max}, not {0}", max = Settings::MAX_TOKENS)]
    Tokens(u32),
    /// Below 1 not all slots would find an owner.
    #[error("load_bound must be \"none\" or a number from 1 on, not {0}")]
    LoadBound(f64),
    /// Another way of placing, from an older or a newer binary.
    #[error("ring version {0} is not known here, this binary has {RING_VERSION}")]
    Version(u32),
}

/// The intended owner of every slot.
///
/// It says who should own a slot; who does, only Postgres says.
#[derive(Clone, PartialEq)]
pub struct Placement {
    settings: Settings,
    members: Vec<Member>,
    /// By slot, the index of its member.
    owners: Vec<Option<u32>>,
}

impl Placement {
    /// Places every slot.
    ///
    /// The answer depends on the set of members alone, never on their order; a name counts once, with its highest
    /// incarnation. Without members, or with none that has a weight, nobody owns anything.
    pub fn compute(members: &[Member], settings: &Settings) -> Self {
        let members = member::by_name(members.iter().cloned());
        let weights = || members.iter().map(|member| member.weight.min(Member::MAX_WEIGHT));
        let total = weights().map(u64::from).sum();
        let rooms = weights().map(|weight| settings.room(weight, total)).collect();
        let ring = Ring::new(&members, settings.tokens);
        Self {
            settings: *settings,
            owners: place(&ring, rooms),
            members,
        }
    }

    /// The placement of a test that says itself where each slot belongs.
    #[cfg(test)]
    pub(crate) fn with_owners(owners: &BTreeMap<Slot, Incarnation>) -> Self {
        let members: Vec<_> = owners
            .values()
            .map(|owner| Member::new(owner.to_string(), *owner, 1))
            .collect();
        let members = member::by_name(members);
        let index = |owner| {
            members
                .iter()
                .position(|member| member.incarnation == owner)
                .map(|index| index as u32)
        };
        let owners = Slot::all().map(|slot| index(*owners.get(&slot)?)).collect();
        Self {
            settings: Settings::default(),
            members,
            owners,
        }
    }

    /// The member that should own the slot, by its incarnation.
    pub fn owner(&self, slot: Slot) -> Option<Incarnation> {
        self.member(slot).map(|member| member.incarnation)
    }

    /// The member that should own the slot.
    pub fn member(&self, slot: Slot) -> Option<&Member> {
        self.owners[slot.index()].map(|index| &self.members[index as usize])
    }

    /// The slots that this incarnation should own, ascending.
    pub fn slots_of(&self, incarnation: Incarnation) -> impl Iterator<Item = Slot> + '_ {
        Slot::all().filter(move |slot| self.owner(*slot) == Some(incarnation))
    }

    /// How many slots this incarnation should own.
    pub fn count(&self, incarnation: Incarnation) -> usize {
        self.slots_of(incarnation).count()
    }

    /// How many slots each member should own, by incarnation; members without any are there with 0.
    pub fn counts(&self) -> BTreeMap<Incarnation, usize> {
        let mut counts: BTreeMap<_, _> = self
            .members
            .iter()
            .map(|member| (member.incarnation, 0))
            .collect();
        for owner in Slot::all().filter_map(|slot| self.owner(slot)) {
            *counts.entry(owner).or_default() += 1;
        }
        counts
    }

    /// The members, sorted by name.
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// What it was computed with.
    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// A short fingerprint (16 hex digits) of all that this was computed from. Two nodes with the same digest intend
    /// the same owner for every slot; a handoff between two that differ is declined.
    pub fn digest(&self) -> String {
        let mut hash = Sha256::new();
        hash.update(self.settings.version.to_be_bytes());
        hash.update(self.settings.tokens.to_be_bytes());
        hash.update(self.settings.load_bound.map_or(0, f64::to_bits).to_be_bytes());
        for Member {
            name,
            incarnation,
            weight,
        } in &self.members
        {
            hash.update((name.len() as u64).to_be_bytes());
            hash.update(name);
            hash.update(incarnation.get().to_be_bytes());
            hash.update(weight.to_be_bytes());
        }
        hex(&hash.finalize()[..8])
    }

    /// What moves from this placement to `next`, by slot.
    pub fn diff(&self, next: &Self) -> Vec<Move> {
        Slot::all()
            .map(|slot| Move {
                slot,
                from: self.owner(slot),
                to: next.owner(slot),
            })
            .filter(|step| step.from != step.to)
            .collect()
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A slot whose intended owner differs between two placements.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Which slot.
    pub slot: Slot,
    /// Who should have owned it.
    pub from: Option<Incarnation>,
    /// Who should own it now.
    pub to: Option<Incarnation>,
}

/// Gives each slot to a member with room, in rounds (see the module's text).
fn place(ring: &Ring, mut rooms: Vec<u32>) -> Vec<Option<u32>> {
    let mut owners = vec![None; usize::from(SLOTS)];
    let mut waiting: Vec<_> = Slot::all().map(|slot| (slot, ring.walk(slot))).collect();
    while !waiting.is_empty() {
        // A walk that ends has met every member. None had room, which only happens when none has tokens.
        waiting.retain_mut(|(slot, walk)| match walk.next() {
            Some(member) if rooms[member] > 0 => {
                rooms[member] -= 1;
                owners[slot.index()] = Some(member as u32);
                false
            }
            Some(_full) => true,
            None => false,
        });
    }
    owners
}

impl fmt::Debug for Placement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Placement")
            .field("settings", &self.settings)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// `load_bound = 1.25` or `load_bound = "none"`: TOML has no null.
mod load_bound {
    use serde::de::Error;
    use serde::{Deserialize, Deserializer, Serializer};

    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Written {
        Number(f64),
        Word(String),
        Null,
    }

    pub(super) fn serialize<S: Serializer>(bound: &Option<f64>, serializer: S) -> Result<S::Ok, S::Error> {
        match bound {
            Some(bound) => serializer.serialize_f64(*bound),
            None => serializer.serialize_str("none"),
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<f64>, D::Error> {
        match Written::deserialize(deserializer)? {
            Written::Number(bound) => Ok(Some(bound)),
            Written::Null => Ok(None),
            // From the environment and the command line everything comes as a word.
            Written::Word(word) if word == "none" => Ok(None),
            Written::Word(word) => word.parse().map(Some).map_err(|_| {
                D::Error::custom(format!("load_bound must be a number or \"none\", not {word:?}"))
            }),
        }
    }
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
