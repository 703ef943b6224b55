//! Members: the nodes that the ring is made of, as gossip sees them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::Incarnation;

/// A node that takes slots.
///
/// The ring places by `name`, so that a node that restarts under its name gets back the slots it had; ownership goes
/// by `incarnation`, so that it does not get them back before its former self is fenced.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Member {
    /// The name that the operator gave it, unique among the unfenced.
    pub name: String,
    /// Which start of that name.
    pub incarnation: Incarnation,
    /// Its share against the others': a member of weight 2 gets about twice the slots of one of weight 1. One of
    /// weight 0 gets none. Above [`Member::MAX_WEIGHT`] it counts as that.
    pub weight: u32,
}

impl Member {
    /// The largest weight that counts. Tokens are made per unit of weight, and a mistyped weight must not eat the
    /// memory of every node of the mesh.
    pub const MAX_WEIGHT: u32 = 256;

    /// A member.
    pub fn new(name: impl Into<String>, incarnation: Incarnation, weight: u32) -> Self {
        Self {
            name: name.into(),
            incarnation,
            weight,
        }
    }
}

/// The members sorted by name, each name once, with its highest incarnation.
///
/// Gossip may for a while show a dead incarnation beside its successor. Should it show one incarnation twice, with two
/// weights, the larger counts, so that the answer does not depend on the order.
pub fn by_name(members: impl IntoIterator<Item = Member>) -> Vec<Member> {
    let mut newest: BTreeMap<String, (Incarnation, u32)> = BTreeMap::new();
    for Member {
        name,
        incarnation,
        weight,
    } in members
    {
        let entry = newest.entry(name).or_insert((incarnation, weight));
        *entry = (*entry).max((incarnation, weight));
    }
    newest
        .into_iter()
        .map(|(name, (incarnation, weight))| Member {
            name,
            incarnation,
            weight,
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_counts_once_with_its_highest_incarnation() {
        let member = |name: &str, incarnation| Member::new(name, Incarnation(incarnation), 1);
        let seen = [
            member("ä", 4),
            member("2", 3),
            member("A", 7),
            member("10", 2),
            member("A", 1),
            member("2", 9),
        ];
        assert_eq!(
            by_name(seen),
            [member("10", 2), member("2", 9), member("A", 7), member("ä", 4)]
        );
    }
}
