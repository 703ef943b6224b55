//! The hash ring: which members a slot meets, in which order.
//!
//! Consistent hashing (Karger et al., "Consistent Hashing and Random Trees", STOC 1997). Each member has 512 tokens
//! per unit of weight at pseudo-random places on a circle of 2^64 positions; the slots stand on it at even distances;
//! a slot belongs to the first token clockwise. A member that leaves takes only its own tokens with it, so only its
//! slots move, each to whoever comes next.
//!
//! Three things would let two nodes see two rings, and are kept out here:
//!
//! - *What is hashed.* A derived `Hash` writes lengths and integers as the machine and the compiler like. A token's
//!   position is SipHash-2-4 with a zero key over explicit bytes: the name, then the token's number as four bytes,
//!   big end first. Golden vectors freeze it; whoever changes it raises [`RING_VERSION`].
//! - *Equal tokens.* The `hashring` crate keeps both and lets its binary search meet either. Here the tokens of one
//!   position are ordered by name and number, and the search sees each position once.
//! - *Order of insertion.* The tokens are made from members sorted by name, in one batch.

use std::fmt;
use std::hash::{BuildHasher, Hash, Hasher};

use hashring::{DefaultHashBuilder, HashRing};

use crate::{Member, SLOTS, Slot};

/// Names the way in which this crate turns members into positions. Two nodes that differ in it would place slots
/// differently, so it is part of [`Settings`](crate::Settings), of their digest, and of the check at a node's start.
pub const RING_VERSION: u32 = 1;

/// How far apart two slots stand on the circle.
const SLOT_DISTANCE: u64 = u64::MAX / SLOTS as u64 + 1;

/// The sorted tokens of all members.
pub struct Ring {
    /// All tokens, clockwise; those of one position by member and number.
    tokens: Vec<Token>,
    /// Finds where the walk of a slot starts.
    search: HashRing<Start, Verbatim>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Token {
    position: u64,
    member: u32,
    number: u32,
}

impl Ring {
    /// Builds the ring of `members`, which must be sorted by name, each name once (see
    /// [`by_name`](crate::member::by_name)). Costs one sort of all tokens.
    pub fn new(members: &[Member], tokens_per_weight: u32) -> Self {
        Self::with_positions(members, tokens_per_weight, position)
    }

    fn with_positions(members: &[Member], tokens_per_weight: u32, position: fn(&str, u32) -> u64) -> Self {
        let mut tokens = Vec::new();
        for (index, member) in (0..).zip(members) {
            let count = member
                .weight
                .min(Member::MAX_WEIGHT)
                .saturating_mul(tokens_per_weight);
            tokens.extend((0..count).map(|number| Token {
                position: position(&member.name, number),
                member: index,
                number,
            }));
        }
        tokens.sort_unstable();

        let mut starts: Vec<_> = (0..)
            .zip(&tokens)
            .map(|(index, token)| Start {
                position: token.position,
                token: index,
            })
            .collect();
        starts.dedup_by_key(|start| start.position);
        let mut search = HashRing::with_hasher(Verbatim);
        search.batch_add(starts);

        Self { tokens, search }
    }

    /// The members that a slot meets going clockwise, as indices into the members that the ring was built from; each
    /// once, and every member that has tokens. The first is the slot's owner on the plain ring.
    pub fn walk(&self, slot: Slot) -> Walk<'_> {
        let position = u64::from(slot.get()) * SLOT_DISTANCE;
        let start = self
            .search
            .get(&Start { position, token: 0 })
            .map_or(0, |start| start.token as usize);
        let (before, after) = self.tokens.split_at(start);
        Walk {
            ahead: after.iter().chain(before),
            met: Vec::new(),
        }
    }
}

impl fmt::Debug for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ring")
            .field("tokens", &self.tokens.len())
            .finish_non_exhaustive()
    }
}

/// Iterates over the members that a slot meets; see [`Ring::walk`].
#[derive(Clone)]
pub struct Walk<'a> {
    ahead: std::iter::Chain<std::slice::Iter<'a, Token>, std::slice::Iter<'a, Token>>,
    /// Walks are short (one step, unless the load bound bites), so a list is faster than a set.
    met: Vec<u32>,
}

impl Iterator for Walk<'_> {
    type Item = usize;

    fn next(&mut self) -> Option<usize> {
        let member = self.ahead.find(|token| !self.met.contains(&token.member))?.member;
        self.met.push(member);
        Some(member as usize)
    }
}

/// Where a token stands. SipHash-2-4 under a zero key is what `hashring` uses by default; the golden vectors below
/// notice if that ever changes.
fn position(name: &str, number: u32) -> u64 {
    let mut hasher = DefaultHashBuilder.build_hasher();
    hasher.write(name.as_bytes());
    hasher.write(&number.to_be_bytes());
    hasher.finish()
}

/// What `hashring` searches: the first token at each position. Its hash is its position, taken as it is.
struct Start {
    position: u64,
    token: u32,
}

impl Hash for Start {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.position);
    }
}

struct Verbatim;

impl BuildHasher for Verbatim {
    type Hasher = VerbatimHasher;

    fn build_hasher(&self) -> VerbatimHasher {
        VerbatimHasher(0)
    }
}

struct VerbatimHasher(u64);

impl Hasher for VerbatimHasher {
    fn write_u64(&mut self, position: u64) {
        self.0 = position;
    }

    fn write(&mut self, _: &[u8]) {
        unreachable!("a start hashes its position only");
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Incarnation;

    fn members(names: &[&str]) -> Vec<Member> {
        let mut names = names.to_vec();
        names.sort_unstable();
        (1..)
            .zip(names)
            .map(|(n, name)| Member::new(name, Incarnation(n), 1))
            .collect()
    }

    fn names(ring: &Ring, members: &[Member], slot: Slot) -> Vec<String> {
        ring.walk(slot)
            .map(|member| members[member].name.clone())
            .collect()
    }

    /// Computed by an independent SipHash-2-4, checked against its authors' test vector. A change here moves slots on
    /// every mesh: raise `RING_VERSION`.
    #[test]
    fn golden_positions() {
        for (name, number, expected) in [
            ("n1", 0, 0x93d6_7ee1_3c6e_f080),
            ("n1", 1, 0x7fc9_43e9_e466_4ede),
            ("n1", 511, 0x8746_ecd3_d38d_91c3),
            ("n2", 0, 0x3ec5_96ca_84a6_2385),
            ("2", 0, 0x33e3_24d2_0e9d_639d),
            ("10", 0, 0xd50b_8150_4a4c_b486),
            ("A", 0, 0x1f47_ee4c_30a5_57a1),
            ("ä", 0, 0x874e_32df_a1ce_57da),
        ] {
            assert_eq!(position(name, number), expected, "{name} {number}");
        }
    }

    /// Computed by the same independent program, which sorts tuples and bisects.
    #[test]
    fn golden_walks() {
        let members = members(&["2", "10", "A", "ä"]);
        let ring = Ring::new(&members, 512);
        for (slot, expected) in [
            (0, ["10", "ä", "A", "2"]),
            (1, ["ä", "A", "10", "2"]),
            (17, ["2", "A", "ä", "10"]),
            (2048, ["10", "A", "ä", "2"]),
            (4095, ["10", "ä", "A", "2"]),
        ] {
            assert_eq!(
                names(&ring, &members, Slot::new(slot).unwrap()),
                expected,
                "S{slot}"
            );
        }
        let owned: Vec<_> = (0..members.len())
            .map(|index| {
                Slot::all()
                    .filter(|slot| ring.walk(*slot).next() == Some(index))
                    .count()
            })
            .collect();
        assert_eq!(owned, [1017, 1051, 1011, 1017]);
    }

    /// All that minimal movement needs: a member that leaves is taken out of each walk, and nothing else changes.
    /// Holds just so when nearly all tokens collide.
    #[test]
    fn a_walk_without_a_member_is_the_walk_with_it_left_out() {
        fn sixteen_positions(name: &str, number: u32) -> u64 {
            position(name, number) & 0xf << 60
        }
        let all = members(&["2", "10", "A", "ä", "node-1", "node-2"]);
        for position in [position, sixteen_positions] {
            let whole = Ring::with_positions(&all, 32, position);
            for leaver in &all {
                let rest: Vec<_> = all.iter().filter(|member| *member != leaver).cloned().collect();
                let ring = Ring::with_positions(&rest, 32, position);
                for slot in Slot::all().step_by(61) {
                    let mut expected = names(&whole, &all, slot);
                    assert_eq!(expected.len(), all.len());
                    expected.retain(|name| *name != leaver.name);
                    assert_eq!(
                        names(&ring, &rest, slot),
                        expected,
                        "{slot} without {}",
                        leaver.name
                    );
                }
            }
        }
    }
}
