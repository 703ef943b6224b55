//! The one cryptography provider (ring) of every TLS client in this process.
//!
//! reqwest is built without a provider of its own, so that ring is not joined by a second one; the trap: a
//! `reqwest::Client` built before a provider is installed panics, even one that only ever speaks plain HTTP.

/// The start of every HTTP client in this workspace, used instead of `reqwest::Client::builder()`.
pub fn http_client() -> reqwest::ClientBuilder {
    // An error says that one is installed already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    reqwest::Client::builder()
}
