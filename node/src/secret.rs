//! Secrets: the cluster secret and the API token, and what is derived from them.

use std::fmt;
use std::sync::Arc;

use hmac::{Hmac, KeyInit, Mac};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

/// A secret text. It never prints itself; cloning copies a pointer.
#[derive(Clone)]
pub struct Secret(Arc<str>);

impl Secret {
    /// Takes a secret. Whether it is long enough is the configuration's rule.
    pub fn new(text: impl Into<Arc<str>>) -> Self {
        Secret(text.into())
    }

    /// The text itself. For the few places that must send it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// A key for one purpose, named by the label: HMAC-SHA256 of the label under the secret. One purpose's key tells nothing
    /// about another's.
    pub fn derive(&self, label: &str) -> [u8; 32] {
        tag(self.0.as_bytes(), &[label.as_bytes()])
    }

    /// Whether the bytes are this secret. Takes as long for a near miss as for a far one, whatever their lengths.
    pub fn matches(&self, bytes: &[u8]) -> bool {
        Sha256::digest(self.0.as_bytes())
            .ct_eq(&Sha256::digest(bytes))
            .into()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(…)")
    }
}

/// HMAC-SHA256 over the parts, one after the other.
pub(crate) fn tag(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

/// Signs what nodes send each other over HTTP: a MAC over path and body under a key derived from the cluster secret.
#[derive(Clone)]
pub(crate) struct Signer {
    key: [u8; 32],
}

impl Signer {
    pub(crate) const HEADER: &str = "x-ringmesh-mac";
    /// How long a MAC is, in characters.
    pub(crate) const LENGTH: usize = 64;

    pub(crate) fn new(cluster: &Secret) -> Self {
        Signer {
            key: cluster.derive("ringmesh http between nodes"),
        }
    }

    pub(crate) fn sign(&self, path: &str, body: &[u8]) -> String {
        hex(&tag(&self.key, &[path.as_bytes(), b"\n", body]))
    }

    pub(crate) fn verify(&self, path: &str, body: &[u8], mac: &[u8]) -> bool {
        self.sign(path, body).as_bytes().ct_eq(mac).into()
    }
}

/// Lower-case hexadecimal.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    bytes
        .iter()
        .flat_map(|b| [b >> 4, b & 15])
        .map(|d| char::from(DIGITS[usize::from(d)]))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_never_prints_itself() {
        assert!(!format!("{:?}", Secret::new("hunter2-hunter2")).contains("hunter2"));
    }

    #[test]
    fn a_label_decides_the_key() {
        let secret = Secret::new("s");
        assert_ne!(secret.derive("a"), secret.derive("b"));
        assert_ne!(secret.derive("a"), Secret::new("t").derive("a"));
        // printf %s a | openssl dgst -sha256 -hmac s
        assert_eq!(hex(&secret.derive("a"))[..8], *"96594508");
    }

    #[test]
    fn only_the_whole_secret_matches() {
        let secret = Secret::new("abc");
        assert!(secret.matches(b"abc"));
        for other in [&b""[..], b"ab", b"abd", b"abcd", b"ABC"] {
            assert!(!secret.matches(other));
        }
    }

    #[test]
    fn a_mac_belongs_to_its_path_and_body() {
        let signer = Signer::new(&Secret::new("s"));
        let mac = signer.sign("/a", b"x");
        assert!(signer.verify("/a", b"x", mac.as_bytes()));
        assert!(!signer.verify("/b", b"x", mac.as_bytes()));
        assert!(!signer.verify("/a", b"y", mac.as_bytes()));
        assert!(!signer.verify("/a", b"x", b""));
    }
}
