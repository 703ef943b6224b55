//! Gossip: datagrams under their seal, and the messages within.

pub(super) use crate::gossip::fuzzing::{message_seeds, run, run_message, seeds};
