//! Who should own which slot.
//!
//! Everything here is decided from values alone: no IO, no clock, no randomness. `ringmesh` (the node) acts on it.

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
