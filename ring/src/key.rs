//! Routing keys.

use std::borrow::Borrow;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use serde::{Deserialize, Serialize, Serializer};

/// The routing value that the submitter gave to a task: a tenant, a repository, a device.
///
/// A key is its bytes. Ringmesh neither trims nor folds case nor normalizes, so the NFC and the NFD spelling of
/// "café" are two keys, in two slots: `ringmesh.slot_of` in Postgres and a client in any language must agree with
/// this type, and bytes are what they can agree on.
///
/// Cloning copies a pointer.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Deserialize)]
#[serde(try_from = "String")]
pub struct Key(Arc<str>);

impl Key {
    /// The longest key, in bytes of UTF-8.
    pub const MAX_BYTES: usize = 1024;

    /// Checks and takes a key.
    ///
    /// # Errors
    ///
    /// [`Error::Empty`], [`Error::TooLong`] above [`Key::MAX_BYTES`], and [`Error::Nul`], because Postgres stores no
    /// NUL in text.
    pub fn new(key: impl Into<String>) -> Result<Self, Error> {
        let key = key.into();
        if key.is_empty() {
            return Err(Error::Empty);
        }
        if key.len() > Self::MAX_BYTES {
            return Err(Error::TooLong { bytes: key.len() });
        }
        if let Some(at) = key.bytes().position(|byte| byte == 0) {
            return Err(Error::Nul { at });
        }
        Ok(Self(key.into()))
    }

    /// The key as it was given.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Why a text is not a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// The text has no bytes.
    #[error("a key has at least one byte")]
    Empty,
    /// The text is longer than [`Key::MAX_BYTES`].
    #[error("a key has at most {max} bytes, this one has {bytes}", max = Key::MAX_BYTES)]
    TooLong {
        /// Its length in bytes.
        bytes: usize,
    },
    /// The text contains U+0000.
    #[error("a key contains no NUL, this one does at byte {at}")]
    Nul {
        /// Where the first one stands, counted in bytes from 0.
        at: usize,
    },
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.0)
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl Serialize for Key {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

impl TryFrom<String> for Key {
    type Error = Error;

    fn try_from(key: String) -> Result<Self, Error> {
        Self::new(key)
    }
}

impl FromStr for Key {
    type Err = Error;

    fn from_str(key: &str) -> Result<Self, Error> {
        Self::new(key)
    }
}

impl AsRef<str> for Key {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl Borrow<str> for Key {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_1_to_1024_bytes_and_no_nul() {
        assert_eq!(Key::new(""), Err(Error::Empty));
        assert_eq!(Key::new("a\0b"), Err(Error::Nul { at: 1 }));
        assert!(Key::new("é".repeat(512)).is_ok());
        assert_eq!(Key::new("é".repeat(513)), Err(Error::TooLong { bytes: 1026 }));
        assert_eq!(
            Key::new("é".repeat(513)).unwrap_err().to_string(),
            "a key has at most 1024 bytes, this one has 1026"
        );
    }

    #[test]
    fn nfc_and_nfd_twins_are_two_keys() {
        assert_ne!(Key::new("caf\u{e9}"), Key::new("cafe\u{301}"));
    }

    #[test]
    fn json_is_the_plain_text_and_is_checked() {
        let key = Key::new("tenant-1").unwrap();
        assert_eq!(serde_json::to_string(&key).unwrap(), r#""tenant-1""#);
        assert_eq!(serde_json::from_str::<Key>(r#""tenant-1""#).unwrap(), key);
        assert!(serde_json::from_str::<Key>(r#""""#).is_err());
    }
}
