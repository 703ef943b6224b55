//! Who should own which slot.
//!
//! Everything here is decided from values alone: no IO, no clock, no randomness. `ringmesh` (the node) acts on it.
