//! The fast death notice.
//!
//! A node's lease session holds an advisory lock. When the process dies, its sockets close, Postgres ends the session, and
//! whoever waits for that lock wakes within milliseconds. Each node waits for its next two in the order of incarnations,
//! through sessions apart from its own lock: lock and wait in one session would close a ring of waiters.
//!
//! A lock that is free is a sign only in a session that has itself seen it held: after a restart of Postgres every lock is
//! free. And it is only a sign: the peer may have lost nothing but its session. So its HTTP port is asked once, naming the
//! incarnation; refused, silent, or another incarnation means dead.
//!
//! Of several that die at once, some are watched only after the first ones are fenced, when their locks are free already. Then
//! a connection that is *refused* is a sign as good: a node listens before it registers, and until it has been told as left. Silence
//! is none, since whoever cuts a network cuts Postgres too.

use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::time::Duration;

use ringmesh_ring::Incarnation;
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

use crate::store::{Answer, Error, Peer, Store};

/// How many peers each node watches.
const WATCHED: usize = 2;

/// How long a peer may take to say that it lives.
const SILENCE: Duration = Duration::from_millis(250);

/// How long a watch rests when there is nothing to wait for, or after an error.
const REST: Duration = Duration::from_millis(500);

/// The peers that `me` watches: its next two in the order of incarnations, around the circle.
pub fn watched<'a>(me: Incarnation, peers: impl Iterator<Item = &'a Peer>) -> Vec<&'a Peer> {
    let mut circle: Vec<&Peer> = peers.filter(|peer| peer.incarnation != me).collect();
    circle.sort_by_key(|peer| (peer.incarnation < me, peer.incarnation));
    circle.truncate(WATCHED);
    circle
}

/// Asks a node once whether it lives: `true` only if it answers with this incarnation.
pub async fn answers(http: &reqwest::Client, address: &str, incarnation: Incarnation) -> bool {
    let url = format!("http://{address}/internal/v1/alive?incarnation={}", incarnation.0);
    let asked = http.get(url).timeout(SILENCE).send();
    timeout(SILENCE, asked)
        .await
        .is_ok_and(|answer| answer.is_ok_and(|answer| answer.status().is_success()))
}

/// Whether a connection is refused there: the host is up, and no process listens.
async fn refuses(address: &str) -> bool {
    let connected = timeout(SILENCE, TcpStream::connect(address)).await;
    connected
        .is_ok_and(|connected| connected.is_err_and(|error| error.kind() == ErrorKind::ConnectionRefused))
}

/// The watches of one life.
#[derive(Debug)]
pub struct Notices {
    store: Store,
    http: reqwest::Client,
    deaths: mpsc::UnboundedSender<Incarnation>,
    watches: BTreeMap<Incarnation, JoinHandle<()>>,
}

impl Notices {
    /// Watches nobody yet; deaths go to `deaths`.
    pub fn new(store: Store, http: reqwest::Client, deaths: mpsc::UnboundedSender<Incarnation>) -> Self {
        Notices {
            store,
            http,
            deaths,
            watches: BTreeMap::new(),
        }
    }

    /// Watches those peers that are to be watched now, and no others.
    pub fn on_peers<'a>(&mut self, me: Incarnation, peers: impl Iterator<Item = &'a Peer>) {
        if !self.store.has_notices() {
            return;
        }
        let wanted = watched(me, peers);
        self.watches.retain(|incarnation, watch| {
            let keep = wanted.iter().any(|peer| peer.incarnation == *incarnation) && !watch.is_finished();
            if !keep {
                watch.abort();
            }
            keep
        });
        for peer in wanted {
            self.watches.entry(peer.incarnation).or_insert_with(|| {
                let watch = Watch {
                    store: self.store.clone(),
                    http: self.http.clone(),
                    peer: peer.incarnation,
                    address: peer.http.clone(),
                };
                let deaths = self.deaths.clone();
                tokio::spawn(async move {
                    watch.until_dead().await;
                    deaths.send(watch.peer).ok();
                })
            });
        }
    }
}

impl Drop for Notices {
    fn drop(&mut self) {
        for watch in self.watches.values() {
            watch.abort();
        }
    }
}

struct Watch {
    store: Store,
    http: reqwest::Client,
    peer: Incarnation,
    address: String,
}

impl Watch {
    /// Returns when the peer's session has ended and the peer does not answer.
    async fn until_dead(&self) {
        loop {
            match self.until_free().await {
                Ok(()) if answers(&self.http, &self.address, self.peer).await => {
                    tracing::info!(node = %self.peer, "a peer lost its session and lives");
                }
                Ok(()) => return,
                Err(error) => {
                    tracing::debug!(node = %self.peer, error = &error as &dyn std::error::Error, "a watch lost its session");
                }
            }
            sleep(REST).await;
        }
    }

    /// Returns when the peer's lock is free, and this session has seen it held or nobody listens at the peer's address.
    async fn until_free(&self) -> Result<(), Error> {
        let mut session = self.store.lease_session().await?;
        while session.peer_lock(self.peer).await? == Answer::Free {
            if refuses(&self.address).await {
                return Ok(());
            }
            sleep(REST).await;
        }
        while session.wait_for_peer(self.peer).await? == Answer::Held {}
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(incarnation: i64) -> Peer {
        Peer {
            incarnation: Incarnation(incarnation),
            boot: 0,
            name: format!("n{incarnation}"),
            http: String::new(),
            gossip: String::new(),
            weight: 1,
            renewals: 0,
            lease_ms: 0,
        }
    }

    fn watched_by(me: i64, all: &[i64]) -> Vec<i64> {
        let peers: Vec<_> = all.iter().map(|n| peer(*n)).collect();
        watched(Incarnation(me), peers.iter())
            .iter()
            .map(|peer| peer.incarnation.0)
            .collect()
    }

    #[tokio::test]
    async fn only_a_refused_connection_is_refused() {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        assert!(!refuses(&address).await);
        drop(listener);
        assert!(refuses(&address).await);
        // No address at all: nothing is known of the peer.
        assert!(!refuses("no port").await);
    }

    #[test]
    fn each_node_watches_its_next_two_around_the_circle() {
        let all = [9, 1, 4, 7];
        assert_eq!(watched_by(1, &all), [4, 7]);
        assert_eq!(watched_by(7, &all), [9, 1]);
        assert_eq!(watched_by(9, &all), [1, 4]);
        assert_eq!(watched_by(1, &[1]), Vec::<i64>::new());
        assert_eq!(watched_by(1, &[1, 4]), [4]);
    }
}
