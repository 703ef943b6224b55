//! The trust window: until when this node may rely on its own lease.
//!
//! One writer (the lease thread), many readers. Past the window the node starts nothing (P3); what it
//! began still counts until it is fenced, or cut short by whoever fences it. From then on Postgres refuses its writes.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use crate::clock;

/// Until when the lease is trusted, and whether its session is held.
#[derive(Debug, Default)]
pub struct Trust {
    until_ns: AtomicU64,
    session: AtomicBool,
}

impl Trust {
    /// Trusts nothing yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Whether new work may start now: inside the window, with the lease session held.
    pub fn may_start(&self) -> bool {
        self.session.load(Ordering::Acquire) && self.holds()
    }

    /// Whether running work may go on now: inside the window.
    pub fn holds(&self) -> bool {
        clock::now() < self.until()
    }

    /// The end of the window, on [`clock::now`]'s scale.
    pub fn until(&self) -> Duration {
        Duration::from_nanos(self.until_ns.load(Ordering::Acquire))
    }

    /// A renewal succeeded. Windows only grow: a late answer to an early request changes nothing.
    pub(crate) fn extend(&self, until: Duration) {
        self.until_ns.fetch_max(
            u64::try_from(until.as_nanos()).unwrap_or(u64::MAX),
            Ordering::AcqRel,
        );
    }

    /// The lease is gone: trust ends now.
    pub(crate) fn end(&self) {
        self.session.store(false, Ordering::Release);
        self.until_ns.store(0, Ordering::Release);
    }

    /// Whether the session that holds the node's advisory lock stands. Without it new work waits, running work goes on.
    pub(crate) fn set_session(&self, held: bool) {
        self.session.store(held, Ordering::Release);
    }
}
