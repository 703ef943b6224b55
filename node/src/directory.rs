//! Who owns which slot and where its owner answers: a snapshot that everybody may read.
//!
//! It is as old as the node's last read of Postgres. Good for routing hints and for people; never for a decision.

use std::collections::BTreeMap;

use ringmesh_ring::{Epoch, Incarnation, Slot};

/// An unfenced node, as Postgres and gossip know it.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name, unique among the unfenced.
    pub name: String,
    /// Its HTTP address, host and port.
    pub http: String,
    /// Its weight on the ring.
    pub weight: u32,
    /// What people call its state: `serving`, `draining`, `joining` (in Postgres, not yet on the ring) or `silent` (no gossip).
    pub state: &'static str,
    /// How long its lease lasts still, by the database's clock; for people only.
    pub lease_ms: i64,
}

/// A snapshot of owners and nodes.
#[derive(Debug, Clone, Default)]
pub struct Directory {
    /// Owner and epoch of each slot, by slot number. Owners that are fenced stand here still.
    pub slots: Vec<(Option<Incarnation>, Epoch)>,
    /// The unfenced nodes.
    pub nodes: BTreeMap<Incarnation, Node>,
    /// This node's incarnation; none while it has none.
    pub me: Option<Incarnation>,
    /// How many slots the ring gives to this node.
    pub placed_here: usize,
    /// Whether Postgres has not answered for so long that this node's trust in its lease is over.
    pub stalled: bool,
    /// Whether this node may start work under its lease.
    pub leased: bool,
    /// Whether this node hands on its slots in order to leave.
    pub draining: bool,
    /// Whether this node holds all slots that the ring gives it, serves, and trusts its lease.
    pub ready: bool,
}

impl Directory {
    /// The owner of a slot, if it has an unfenced one.
    pub fn owner(&self, slot: Slot) -> Option<(Incarnation, &Node)> {
        let owner = self.slots.get(usize::from(slot.get()))?.0?;
        self.nodes.get(&owner).map(|node| (owner, node))
    }
}
