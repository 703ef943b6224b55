//! Who should own which slot, and what to do about it.
//!
//! Everything that Ringmesh can decide from values alone is decided in this crate, and nothing else happens here: no
//! IO, no clock, no randomness. What it cannot import it cannot do. The node (`ringmesh`) reads Postgres, gossip and
//! the clock, hands the values over, and carries out what comes back.
//!
//! ```text
//!   this crate decides                                   the node acts
//!   ──────────────────────────────────────────────────   ────────────────────────────────────────────
//!   Slot::of(&key)             where does a task belong  inserts it there
//!   Placement::compute(…)      who should own each slot  passes on gossip's members
//!   lease::trusted_until(…)    may I still start work    renews, starts, cancels
//!   PeerWatch::on_read(…)      which peers have expired  fences them, by compare-and-set
//!   Table::on_read(…)          what do I hold            claims, runs, finishes under the epoch
//!   Plan::build(…)             what is to be done        is granted slots, transfers them
//! ```
//!
//! # From a key to a node
//!
//! A [`Key`] is hashed to one of 4096 [slots](Slot), for ever. The [`ring`] lays the tokens of all [members](Member)
//! on a circle, and [`Placement`] gives each slot to the first member clockwise that is not full. A placement is a
//! pure function of the set of members, so nodes that see the same members agree without talking; its
//! [digest](Placement::digest) tells whether they do.
//!
//! # From should to is
//!
//! Placement says who *should* own a slot. Who *does*, only Postgres says, in a [`Row`] per slot with the owner's
//! [`Incarnation`] and an [`Epoch`] that rises with each grant. A node keeps what it was told in its [`Table`], and
//! compares it at each tick and on each event with the placement. The difference is a [`Plan`].
//!
//! Gossip may be wrong and a node may be late: then a plan is tried in vain, because every step carries the epoch that
//! it expects to find. Nothing in this crate has to be right for the data to be safe. It has to be right for the
//! mesh to come to rest.
//!
//! # A small mesh
//!
//! Three nodes share the slots. The second one dies, and the first plans its part of the takeover.
//!
//! ```
//! use std::collections::BTreeSet;
//! use ringmesh_ring::plan::{Input, Orphans};
//! use ringmesh_ring::{Epoch, Incarnation, Key, Member, Placement, Plan, Row, Settings, Slot, Table};
//!
//! let [n1, n2, n3] = [1, 2, 3].map(Incarnation);
//! let members = [Member::new("ant", n1, 1), Member::new("bee", n2, 1), Member::new("cat", n3, 1)];
//! let before = Placement::compute(&members, &Settings::default());
//!
//! let key = Key::new("tenant-1")?;
//! assert_eq!(Slot::of(&key).to_string(), "S169");
//!
//! // Postgres granted each slot as it was placed.
//! let rows: Vec<_> =
//!     Slot::all().map(|slot| Row { slot, owner: before.owner(slot), epoch: Epoch(1) }).collect();
//! let mut table = Table::new(n1);
//! table.on_read(&rows);
//! assert_eq!(table.len(), before.count(n1));
//!
//! // N2 is gone from gossip and fenced in Postgres.
//! let left = BTreeSet::from([n1, n3]);
//! let after = Placement::compute(&[members[0].clone(), members[2].clone()], &Settings::default());
//! let plan = Plan::build(&Input {
//!     rows: &rows,
//!     unfenced: &left,
//!     table: &table,
//!     placement: &after,
//!     serving: &left,
//!     orphans: &Orphans::new(),
//! });
//!
//! // Only slots of the dead node move: what N1 held it keeps, and it takes its share of the rest.
//! assert_eq!(plan.takes.len(), after.count(n1) - before.count(n1));
//! assert!(plan.takes.iter().all(|take| before.owner(take.slot) == Some(n2)));
//! assert!(plan.hand_offs.is_empty());
//! # Ok::<(), ringmesh_ring::key::Error>(())
//! ```
//!
//! # Where to read on
//!
//! [`key`], [`slot`], [`member`]: the words. [`ring`] and [`placement`]: who should own what, and how little moves.
//! [`lease`]: two questions about time. [`table`]: the states of a slot. [`plan`]: the next steps, with reasons.

mod id;
pub mod key;
pub mod lease;
pub mod member;
pub mod placement;
pub mod plan;
pub mod ring;
pub mod slot;
pub mod table;

pub use id::{Epoch, Incarnation};
pub use key::Key;
pub use lease::PeerWatch;
pub use member::Member;
pub use placement::{Move, Placement, Settings};
pub use plan::Plan;
pub use ring::RING_VERSION;
pub use slot::{SLOTS, Slot};
pub use table::{Row, Table};
