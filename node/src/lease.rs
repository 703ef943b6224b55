//! The node's lease: renewed on a thread of its own, through a session of its own.
//!
//! Neither a full pool, nor handlers that block every thread of the runtime, nor a slow queue of events may keep a healthy
//! node from renewing. The one thing that must stop it is a runtime that no longer runs at all: a node that renews but
//! does nothing would keep its slots for ever. So the runtime beats ([`Heartbeat`]) and the thread listens.
//!
//! The same thread reads its peers' renewal counters, without gaps, and says which of them have expired. The session holds
//! the node's advisory lock; when the process dies, Postgres frees it and a peer notices (see `notice.rs`).
//!
//! | event | trust | what follows |
//! |---|---|---|
//! | renewed | grows to *sent + ttl − margin* | |
//! | no answer, refused | stays as it was, runs out | the session is opened anew |
//! | fenced, or unknown to the server | ends now | this life ends |
//! | the server's history changed (a failover) | ends now | this life ends: the same numbers may be given out again |

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use ringmesh_ring::Incarnation;
use ringmesh_ring::lease::{PeerWatch, Terms, trusted_until};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::failpoint::{self, droppable};
use crate::store::{Answer, Backend, Error, Known, LeaseSession, Me, Peer, Renewal, Store};
use crate::telemetry::metric;
use crate::trust::Trust;

/// What the lease thread tells the ownership loop.
#[derive(Debug)]
pub enum Event {
    /// The unfenced nodes, read just now.
    Peers(Vec<Peer>),
    /// Peers whose lease has expired by this node's own reads, with the counter at which to fence them.
    Expired(Vec<(Incarnation, i64)>),
    /// This incarnation is fenced: the life ends.
    Fenced,
    /// The server has another history: the life ends.
    Failover,
}

/// How long the main runtime may stand still before its node stops renewing, in TTLs. Blocking handlers on all of its threads are
/// bad manners, not death; a deadlock is.
pub const WEDGED_TTLS: u32 = 10;

/// How often peers are read, as a part of the renewal period: well below the watch's longest gap.
const READS_PER_RENEWAL: u32 = 3;

/// A sign of life of the main runtime.
#[derive(Debug)]
pub struct Heartbeat(AtomicU64);

impl Default for Heartbeat {
    fn default() -> Self {
        Heartbeat(AtomicU64::new(nanos(clock::now())))
    }
}

impl Heartbeat {
    /// Beats until cancelled. To be spawned on the runtime that it vouches for.
    pub async fn beat(self: Arc<Self>, stop: CancellationToken) {
        let mut tick = tokio::time::interval(Duration::from_millis(100));
        while stop.run_until_cancelled(tick.tick()).await.is_some() {
            self.0.store(nanos(clock::now()), Ordering::Release);
        }
    }

    /// How long ago the last beat was.
    pub fn age(&self) -> Duration {
        clock::now().saturating_sub(Duration::from_nanos(self.0.load(Ordering::Acquire)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// What a lease needs.
#[derive(Debug)]
pub struct Parts {
    /// Where it is kept.
    pub store: Store,
    /// Whose it is.
    pub me: Me,
    /// How it is kept.
    pub terms: Terms,
    /// Where the window is published.
    pub trust: Arc<Trust>,
    /// The main runtime's sign of life.
    pub heartbeat: Arc<Heartbeat>,
    /// The ownership loop.
    pub events: mpsc::UnboundedSender<Event>,
    /// Ends the thread; the lease then runs out, or is fenced by its own node.
    pub stop: CancellationToken,
}

/// Starts the lease thread.
///
/// # Errors
/// The system gives no thread or no runtime.
pub fn spawn(parts: Parts) -> std::io::Result<thread::JoinHandle<()>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    thread::Builder::new().name("lease".to_owned()).spawn(move || {
        runtime.block_on(async {
            let stop = parts.stop.clone();
            stop.run_until_cancelled(Keeper::new(parts).keep()).await;
        });
    })
}

struct Keeper {
    parts: Parts,
    session: Option<LeaseSession>,
    /// What the session, or the last one, is on the server.
    backend: Option<Backend>,
    /// The server's history as this life knows it.
    history: Option<String>,
    watch: PeerWatch,
    known: Known,
    /// Whether the session holds the node's lock, and a renewal went through since.
    locked: bool,
    renewed_at: Option<Duration>,
}

/// The life is over; the event was sent.
struct Over;

impl Keeper {
    fn new(parts: Parts) -> Self {
        let watch = PeerWatch::new(parts.terms.ttl, PeerWatch::MAX_GAP);
        Keeper {
            parts,
            session: None,
            backend: None,
            history: None,
            watch,
            known: Known::default(),
            locked: false,
            renewed_at: None,
        }
    }

    async fn keep(mut self) {
        let mut tick = tokio::time::interval(self.parts.terms.renew_every / READS_PER_RENEWAL);
        tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tick.tick().await;
            match self.step().await {
                Ok(Ok(())) => {}
                Ok(Err(Over)) => return,
                Err(error) => self.lose_session(&error),
            }
        }
    }

    /// One step; an error costs the session.
    async fn step(&mut self) -> Result<Result<(), Over>, Error> {
        if self.parts.heartbeat.age() > self.parts.terms.ttl * WEDGED_TTLS {
            tracing::error!("the runtime stands still, the lease is not renewed any more");
            return Ok(Ok(()));
        }
        if self.session.is_none() {
            let mut session = self.parts.store.lease_session().await?;
            if let Some(former) = self.backend {
                // Lost here, it may stand on the server for long, and with it the lock.
                session.end(former).await?;
            }
            self.backend = session.backend().await?;
            self.session = Some(session);
            // What was seen through the old session ended with a gap.
            self.watch.on_gap();
        }
        let due = self
            .renewed_at
            .is_none_or(|at| clock::now() >= at + self.parts.terms.renew_every);
        if due && self.renew().await?.is_err() {
            return Ok(Err(Over));
        }
        self.read_peers().await?;
        Ok(Ok(()))
    }

    async fn renew(&mut self) -> Result<Result<(), Over>, Error> {
        let Some(session) = self.session.as_mut() else {
            return Ok(Ok(()));
        };
        let (me, terms) = (self.parts.me, self.parts.terms);
        if !self.locked {
            // Not held: the old session is still ending, or a clone of this incarnation lives. Try at the next step.
            self.locked = session.hold_own_lock(me.incarnation).await? == Answer::Held;
        }
        let sent = clock::now();
        let renewal = droppable(async {
            failpoint::at(failpoint::RENEW).await?;
            let renewal = session.renew(me, terms.ttl).await?;
            failpoint::at(failpoint::RENEWED).await?;
            Ok(renewal)
        })
        .await?;
        let history = match renewal {
            Renewal::Fenced => return Ok(Err(self.end(Event::Fenced))),
            Renewal::Renewed { history } => history,
        };
        if self.history.get_or_insert_with(|| history.clone()) != &history {
            tracing::warn!(now = %history, "the server's history changed");
            return Ok(Err(self.end(Event::Failover)));
        }
        self.renewed_at = Some(sent);
        metrics::histogram!(metric::RENEWAL_SECONDS).record(clock::now().saturating_sub(sent));
        let sent_ns = sent.as_nanos() as u64;
        tracing::trace!(sent_ns, incarnation = me.incarnation.get(), "renewed the lease");
        self.parts.trust.extend(trusted_until(sent, &terms));
        self.parts.trust.set_session(self.locked);
        Ok(Ok(()))
    }

    async fn read_peers(&mut self) -> Result<(), Error> {
        let Some(session) = self.session.as_mut() else {
            return Ok(());
        };
        let ask = self.known.ask();
        let sent = clock::now();
        let peers = session.unfenced_nodes(&ask).await?;
        self.known.learn(&peers);
        let counters: Vec<_> = peers
            .iter()
            .filter(|peer| peer.incarnation != self.parts.me.incarnation)
            .map(|peer| (peer.incarnation, peer.renewals))
            .collect();
        let expired = self.watch.on_read(sent, clock::now(), &counters);
        self.tell(Event::Peers(peers));
        // A node whose own renewals do not go through has no say in others' (a disk that takes no writes, say).
        if !expired.is_empty() && self.parts.trust.holds() {
            self.tell(Event::Expired(expired));
        }
        Ok(())
    }

    fn lose_session(&mut self, error: &Error) {
        tracing::warn!(error = error as &dyn std::error::Error, "lost the lease session");
        self.session = None;
        self.parts.store.doubt_idle();
        self.locked = false;
        self.watch.on_gap();
        // Nothing new starts until the lock is held again; what runs goes on until the window ends.
        self.parts.trust.set_session(false);
    }

    fn end(&self, event: Event) -> Over {
        self.parts.trust.end();
        self.tell(event);
        Over
    }

    fn tell(&self, event: Event) {
        // A closed channel means that the life is ending; its token stops this thread.
        self.parts.events.send(event).ok();
    }
}

#[cfg(test)]
#[path = "lease_tests.rs"]
mod tests;
