//! Leases: how long a node relies on its own, and when it may call a peer's expired.
//!
//! A node renews its lease in Postgres twice a second. Two questions follow, and no clock is shared by those who ask:
//!
//! - *May I still start work?* The answer must err towards no. My renewal took effect at some unknown moment after I
//!   sent it, so my [trust window](trusted_until) is counted from the moment of sending, and ends a margin early.
//! - *Is my peer dead?* The answer must err towards no as well. A [`PeerWatch`] counts from the moment when a read
//!   had come back, to the moment when a later one was sent, and only over reads without a gap.
//!
//! Each question is answered on the asker's own clock, from its own exchanges with Postgres. Had the database's clock
//! decided instead (`lease_until < now()`), a stall of Postgres of two TTLs would end with healthy nodes fenced: they
//! all missed their renewals, and the first to get an answer would see the others expired. With a watch, that first
//! answer is itself the gap that starts every observation anew.
//!
//! All times are [`Duration`]s since boot on a clock that runs on through suspend (`CLOCK_BOOTTIME`), read by the
//! caller.

use std::collections::BTreeMap;
use std::mem;
use std::time::Duration;

use crate::Incarnation;

/// How a lease is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Terms {
    /// How long a lease lasts from a renewal on. Longer rides out longer stalls; shorter takes over sooner from a host
    /// that is lost without notice.
    pub ttl: Duration,
    /// How often it is renewed.
    pub renew_every: Duration,
    /// How much earlier than its lease the node's own trust ends. It covers the drift of two clocks over a TTL and the
    /// time that handlers need to stop.
    pub margin: Duration,
}

impl Default for Terms {
    fn default() -> Self {
        Self {
            ttl: Duration::from_secs(3),
            renew_every: Duration::from_millis(500),
            margin: Duration::from_millis(500),
        }
    }
}

impl Terms {
    /// Checks that the three fit together.
    ///
    /// # Errors
    ///
    /// The first rule that does not hold.
    pub fn validate(&self) -> Result<(), Error> {
        let Self {
            ttl,
            renew_every,
            margin,
        } = *self;
        if renew_every.is_zero() {
            return Err(Error::NoRenewal);
        }
        if margin.is_zero() {
            return Err(Error::NoMargin);
        }
        if ttl < renew_every.saturating_mul(3) {
            return Err(Error::ShortTtl { ttl, renew_every });
        }
        if margin >= ttl - renew_every {
            return Err(Error::LongMargin {
                margin,
                left: ttl - renew_every,
            });
        }
        Ok(())
    }
}

/// Terms under which a healthy node would lose its trust or its lease.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// A lease must be renewed.
    #[error("renew_every must be above zero")]
    NoRenewal,
    /// Without a margin a drifting clock makes a zombie.
    #[error("margin must be above zero")]
    NoMargin,
    /// One lost renewal would cost the lease.
    #[error("ttl must be at least three times renew_every: {ttl:?} against {renew_every:?}")]
    ShortTtl {
        /// The TTL given.
        ttl: Duration,
        /// The renewal period given.
        renew_every: Duration,
    },
    /// The trust window would close between two renewals.
    #[error("margin must be below ttl - renew_every: {margin:?} against {left:?}")]
    LongMargin {
        /// The margin given.
        margin: Duration,
        /// What the TTL leaves after one renewal period.
        left: Duration,
    },
}

/// When the trust window ends that a successful renewal, sent at `sent`, opened: past it the node starts nothing and
/// cancels what runs.
///
/// Counted from the request and not from its reply, since the lease began somewhere between the two.
pub fn trusted_until(sent: Duration, terms: &Terms) -> Duration {
    sent + terms.ttl.saturating_sub(terms.margin)
}

/// Decides from this node's own reads of its peers' renewal counters which of them have expired.
///
/// A peer is expired when its counter stayed the same for a whole TTL, over reads that followed each other without a
/// gap. A gap is more than `max_gap` between the sending of one read and the answer to the next: in it a healthy peer
/// too may have found Postgres silent, so every observation starts again. A read that is slow by itself is a gap.
///
/// The caller fences by compare-and-set on the counter reported here, so a peer that renews in the last moment wins.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct PeerWatch {
    ttl: Duration,
    max_gap: Duration,
    last_sent: Option<Duration>,
    peers: BTreeMap<Incarnation, Observation>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Observation {
    renewals: i64,
    /// When the first read to show this counter had been answered: the latest moment at which it can have been seen.
    since: Duration,
}

impl PeerWatch {
    /// The longest gap that the product uses.
    pub const MAX_GAP: Duration = Duration::from_millis(500);

    /// A watch that has seen nothing yet.
    pub fn new(ttl: Duration, max_gap: Duration) -> Self {
        Self {
            ttl,
            max_gap,
            last_sent: None,
            peers: BTreeMap::new(),
        }
    }

    /// Takes a read of all unfenced peers with their renewal counters, and the moments when it was sent and answered.
    ///
    /// Returns the peers that have expired, with the counter to fence them at. A peer is returned again by each read
    /// for as long as it holds; one that the read no longer shows is forgotten.
    pub fn on_read(
        &mut self,
        sent: Duration,
        answered: Duration,
        peers: &[(Incarnation, i64)],
    ) -> Vec<(Incarnation, i64)> {
        let before = self.last_sent.unwrap_or(sent);
        // A time that runs backwards cannot be reasoned with either.
        let gapless = before <= sent && sent <= answered && answered - before <= self.max_gap;
        if !gapless {
            self.on_gap();
        }
        self.last_sent = Some(sent);

        let known = mem::take(&mut self.peers);
        let mut expired = Vec::new();
        for &(peer, renewals) in peers {
            let observation = known
                .get(&peer)
                .filter(|observation| observation.renewals == renewals)
                .copied()
                .unwrap_or(Observation {
                    renewals,
                    since: answered,
                });
            if sent.saturating_sub(observation.since) >= self.ttl {
                expired.push((peer, renewals));
            }
            self.peers.insert(peer, observation);
        }
        expired
    }

    /// Forgets all observations: a read failed, or the caller knows of a gap that the times do not show.
    pub fn on_gap(&mut self) {
        self.last_sent = None;
        self.peers.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn terms_must_fit_together() {
        let terms = |ttl, renew_every, margin| Terms {
            ttl: ms(ttl),
            renew_every: ms(renew_every),
            margin: ms(margin),
        };
        assert_eq!(Terms::default().validate(), Ok(()));
        for (terms, error) in [
            (terms(3000, 0, 500), "renew_every must be above zero"),
            (terms(3000, 500, 0), "margin must be above zero"),
            (
                terms(1400, 500, 100),
                "ttl must be at least three times renew_every: 1.4s against 500ms",
            ),
            (
                terms(3000, 500, 2500),
                "margin must be below ttl - renew_every: 2.5s against 2.5s",
            ),
        ] {
            assert_eq!(terms.validate().unwrap_err().to_string(), error);
        }
    }

    #[test]
    fn trust_is_anchored_where_the_renewal_was_sent() {
        assert_eq!(trusted_until(ms(10_000), &Terms::default()), ms(12_500));
    }

    const A: Incarnation = Incarnation(1);
    const B: Incarnation = Incarnation(2);

    /// Feeds reads `(sent, answered, counter of A, counter of B)` to a watch of TTL 3 s and gap 0.5 s; returns when
    /// the first expiry of each was reported.
    fn first_expiries(reads: impl IntoIterator<Item = (u64, u64, i64, i64)>) -> [Option<u64>; 2] {
        let mut watch = PeerWatch::new(ms(3000), PeerWatch::MAX_GAP);
        let mut first = [None; 2];
        for (sent, answered, a, b) in reads {
            for (peer, renewals) in watch.on_read(ms(sent), ms(answered), &[(A, a), (B, b)]) {
                let (index, counter) = if peer == A { (0, a) } else { (1, b) };
                assert_eq!(renewals, counter);
                first[index].get_or_insert(sent);
            }
        }
        first
    }

    /// Reads each 250 ms that take 10 ms; A has stopped, B renews each 500 ms.
    fn steady(from: u64, until: u64) -> impl Iterator<Item = (u64, u64, i64, i64)> {
        (from..until)
            .step_by(250)
            .map(|at| (at, at + 10, 7, (at / 500) as i64))
    }

    #[test]
    fn a_dead_peer_expires_after_one_ttl_and_a_live_one_never() {
        // Seen first at 10, so not yet at 3000.
        assert_eq!(first_expiries(steady(0, 20_000)), [Some(3250), None]);
    }

    #[test]
    fn an_expired_peer_is_reported_on_each_read_until_it_is_gone() {
        let mut watch = PeerWatch::new(ms(3000), PeerWatch::MAX_GAP);
        let mut read = |at: u64, peers: &[_]| watch.on_read(ms(at), ms(at), peers);
        for at in (0..3000).step_by(500) {
            assert_eq!(read(at, &[(A, 7)]), []);
        }
        assert_eq!(read(3000, &[(A, 7)]), [(A, 7)]);
        assert_eq!(read(3500, &[(A, 7)]), [(A, 7)]);
        assert_eq!(read(4000, &[]), []);
        assert_eq!(read(4500, &[(A, 7)]), []);
    }

    #[test]
    fn a_stall_of_the_database_of_two_ttls_expires_nobody() {
        // B's counter stands still from 2000 to 8000, because its renewals hang just like this node's read.
        let stall = steady(0, 2000)
            .chain([(2000, 8000, 7, 3), (8000, 8010, 7, 3), (8250, 8260, 7, 4)])
            .chain(
                (8500..12_000)
                    .step_by(250)
                    .map(|at| (at, at + 10, 7, (at / 500) as i64)),
            );
        // A really is dead. Its TTL starts at the answer of 8010: the one of 8000 was slow, and the read after it still
        // reaches back over the stall.
        assert_eq!(first_expiries(stall), [Some(11_250), None]);
    }

    #[test]
    fn reads_with_a_gap_above_half_a_second_decide_nothing() {
        for (period, expiry) in [(490, Some(3430)), (491, None), (600, None)] {
            let reads = (0..60).map(|n| (n * period, n * period + 10, 7, n as i64));
            assert_eq!(first_expiries(reads), [expiry, None], "a read each {period} ms");
        }
    }

    #[test]
    fn a_clock_that_steps_back_decides_nothing() {
        assert_eq!(
            first_expiries([(9000, 9010, 7, 1), (100, 110, 7, 1), (9000, 9010, 7, 1)]),
            [None, None]
        );
    }
}
