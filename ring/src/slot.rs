//! Slots: the fixed buckets that keys fall into and that nodes own.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::Key;

/// How many slots there are.
///
/// A constant of the schema: changing it moves every key. It is good from 2 to about 400 nodes.
pub const SLOTS: u16 = 4096;

const BITS: u32 = SLOTS.trailing_zeros();

/// One of the [`SLOTS`] buckets, the unit of ownership. Prints as `S17`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u16", into = "u16")]
pub struct Slot(u16);

impl Slot {
    /// The slot with this number, or `None` from [`SLOTS`] on.
    pub const fn new(number: u16) -> Option<Self> {
        if number < SLOTS { Some(Self(number)) } else { None }
    }

    /// The slot of a key: the top 12 bits of the SHA-256 of its bytes.
    ///
    /// SHA-256 because Postgres has it built in and every language has it, so that a task inserted by plain SQL lands
    /// in the same slot as one submitted over HTTP.
    pub fn of(key: &Key) -> Self {
        Self::of_bytes(key.as_str().as_bytes())
    }

    /// The slot of a key's bytes, unchecked. See [`Slot::of`].
    pub fn of_bytes(key: &[u8]) -> Self {
        let digest = Sha256::digest(key);
        Self(u16::from_be_bytes([digest[0], digest[1]]) >> (u16::BITS - BITS))
    }

    /// Its number, below [`SLOTS`].
    pub const fn get(self) -> u16 {
        self.0
    }

    /// Its number as an index into a table of [`SLOTS`] entries.
    pub const fn index(self) -> usize {
        self.0 as usize
    }

    /// All slots, ascending.
    pub fn all() -> impl DoubleEndedIterator<Item = Self> + ExactSizeIterator + Clone {
        (0..SLOTS).map(Self)
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "S{}", self.0)
    }
}

impl From<Slot> for u16 {
    fn from(slot: Slot) -> Self {
        slot.0
    }
}

impl From<Slot> for i32 {
    fn from(slot: Slot) -> Self {
        Self::from(slot.0)
    }
}

/// A number that names no slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0} is not a slot, they go from 0 to {last}", last = SLOTS - 1)]
pub struct OutOfRange(
    /// The number.
    pub i64,
);

impl TryFrom<u16> for Slot {
    type Error = OutOfRange;

    fn try_from(number: u16) -> Result<Self, OutOfRange> {
        Self::new(number).ok_or(OutOfRange(number.into()))
    }
}

/// As Postgres has them: a slot is an `integer` there.
impl TryFrom<i32> for Slot {
    type Error = OutOfRange;

    fn try_from(number: i32) -> Result<Self, OutOfRange> {
        u16::try_from(number)
            .ok()
            .and_then(Self::new)
            .ok_or(OutOfRange(number.into()))
    }
}

/// A set of slots that prints in one short line: `S0-S3,S9`. Made by [`ranges`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ranges(Vec<(Slot, Slot)>);

/// Gathers slots, in any order, into ranges for a log line.
pub fn ranges(slots: impl IntoIterator<Item = Slot>) -> Ranges {
    let mut slots: Vec<_> = slots.into_iter().collect();
    slots.sort_unstable();
    slots.dedup();
    let mut ranges: Vec<(Slot, Slot)> = Vec::new();
    for slot in slots {
        match ranges.last_mut() {
            Some((_, last)) if last.0 + 1 == slot.0 => *last = slot,
            _ => ranges.push((slot, slot)),
        }
    }
    Ranges(ranges)
}

impl fmt::Display for Ranges {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (first, last) in &self.0 {
            f.write_str(separator)?;
            separator = ",";
            if first == last {
                write!(f, "{first}")?;
            } else {
                write!(f, "{first}-{last}")?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each from `printf %s KEY | sha256sum | cut -c1-3`. A change here moves every key of every user.
    #[test]
    fn golden_slots() {
        for (key, slot) in [
            ("a", 0xca9),
            ("tenant-1", 0x0a9),
            ("repo/42", 0x156),
            ("2", 0xd47),
            ("10", 0x4a4),
            ("A", 0x559),
            ("ä", 0x33e),
            ("caf\u{e9}", 0x850),
            ("cafe\u{301}", 0x81e),
        ] {
            assert_eq!(Slot::of(&Key::new(key).unwrap()).get(), slot, "{key}");
        }
    }

    #[test]
    fn a_slot_is_below_4096_wherever_it_comes_from() {
        assert_eq!(Slot::new(4095).map(Slot::get), Some(4095));
        assert_eq!(Slot::new(4096), None);
        assert_eq!(
            Slot::try_from(-1_i32).unwrap_err().to_string(),
            "-1 is not a slot, they go from 0 to 4095"
        );
        assert_eq!(serde_json::to_string(&Slot(17)).unwrap(), "17");
        assert!(serde_json::from_str::<Slot>("4096").is_err());
        assert_eq!(Slot::all().len(), usize::from(SLOTS));
    }

    #[test]
    fn ranges_print_short() {
        let slots = [9, 3, 0, 1, 2, 2, 11].map(Slot);
        assert_eq!(ranges(slots).to_string(), "S0-S3,S9,S11");
        assert_eq!(ranges([]).to_string(), "");
    }
}
