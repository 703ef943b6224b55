//! Stands between a client and Postgres, knows the messages that pass, and can do to them what networks do.
//!
//! | it can | as |
//! |---|---|
//! | pass, with a delay | [`Rules::delay`] |
//! | hold what passes, in one direction or both, without a word; it goes on when healed | [`Rules::hold`] |
//! | hold the connections of now for ever, and serve new ones | [`Proxy::black_hole_established`] |
//! | break the connection instead of passing a request | [`Rules::cut_before`] |
//! | pass a request, let Postgres do it, and break the connection instead of passing the reply | [`Rules::cut_after`] |
//! | the same for the reply to a commit only, explicit or not | [`Rules::lose_commits`] |
//! | reset all connections | [`Proxy::reset`] |
//! | move to another server | [`Proxy::retarget`] |

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::wire::{Reply, Session, Stream};

/// What is done to what passes. The default: nothing.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Rules {
    /// Each request and each reply waits so long, and at random up to the second time longer.
    pub delay: Option<(Duration, Duration)>,
    /// What stands still.
    pub hold: Hold,
    /// The probability that a request is not passed on and its connection is reset.
    pub cut_before: f64,
    /// The probability that a request is done but its connection is reset instead of the reply.
    pub cut_after: f64,
    /// The same, for replies to commits of writes.
    pub lose_commits: f64,
    /// Connections with lower numbers stand still.
    held_below: u64,
}

/// Which way nothing passes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Hold {
    /// Everything passes.
    #[default]
    Nothing,
    /// What the client sends, and what it is answered.
    Both,
    /// What the client sends.
    Requests,
    /// What it is answered: Postgres does what it was asked.
    Replies,
}

/// What a proxy has done.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Connections that were accepted.
    pub connections: u64,
    /// Commits that Postgres made and whose replies were not passed on.
    pub lost_commits: u64,
    /// Requests that were not passed on.
    pub cut_before: u64,
    /// Requests that were done and whose replies were not passed on; commits are among them.
    pub cut_after: u64,
    /// Connections that were reset, by whatever rule.
    pub resets: u64,
    /// Requests that reached Postgres only after they had been held.
    pub late: u64,
}

impl std::iter::Sum for Counts {
    fn sum<I: Iterator<Item = Counts>>(counts: I) -> Counts {
        counts.fold(Counts::default(), |sum, next| Counts {
            connections: sum.connections + next.connections,
            lost_commits: sum.lost_commits + next.lost_commits,
            cut_before: sum.cut_before + next.cut_before,
            cut_after: sum.cut_after + next.cut_after,
            resets: sum.resets + next.resets,
            late: sum.late + next.late,
        })
    }
}

#[derive(Debug, Default)]
struct Counters {
    connections: AtomicU64,
    lost_commits: AtomicU64,
    cut_before: AtomicU64,
    cut_after: AtomicU64,
    resets: AtomicU64,
    late: AtomicU64,
}

/// One listener and its connections. Dropping it ends them.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    shared: Arc<Shared>,
    _end: DropGuard,
}

#[derive(Debug)]
struct Shared {
    rules: watch::Sender<Rules>,
    target: Mutex<SocketAddr>,
    /// Cancelled when all connections are to be reset; then there is a new one.
    present: Mutex<CancellationToken>,
    end: CancellationToken,
    dice: Mutex<StdRng>,
    counters: Counters,
}

impl Proxy {
    /// Listens at an address and passes on to another.
    ///
    /// # Errors
    /// The address is taken.
    pub async fn start(listen: SocketAddr, target: SocketAddr, seed: u64) -> Result<Proxy> {
        let listener = TcpListener::bind(listen).await;
        let listener = listener.with_context(|| format!("listen at {listen}"))?;
        let end = CancellationToken::new();
        let shared = Arc::new(Shared {
            rules: watch::Sender::default(),
            target: Mutex::new(target),
            present: Mutex::new(end.child_token()),
            end: end.clone(),
            dice: Mutex::new(StdRng::seed_from_u64(seed)),
            counters: Counters::default(),
        });
        let address = listener.local_addr()?;
        let accepting = shared.clone();
        tokio::spawn(async move { end.run_until_cancelled(accept(listener, accepting)).await });
        Ok(Proxy {
            address,
            _end: shared.end.clone().drop_guard(),
            shared,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// What it does now.
    pub fn rules(&self) -> Rules {
        self.shared.rules.borrow().clone()
    }

    /// Changes what it does, for the connections there are as well.
    pub fn set(&self, change: impl FnOnce(&mut Rules)) {
        self.shared.rules.send_modify(change);
    }

    /// Passes everything again, also what was held.
    pub fn heal(&self) {
        self.shared.rules.send_replace(Rules::default());
    }

    /// The connections of now stand still without a reset; new ones pass.
    pub fn black_hole_established(&self) {
        let next = self.shared.counters.connections.load(Ordering::Relaxed);
        self.set(|rules| rules.held_below = next);
    }

    /// Resets all connections of now.
    pub fn reset(&self) {
        let mut present = lock(&self.shared.present);
        present.cancel();
        *present = self.shared.end.child_token();
    }

    /// Passes on to another server from now on, and resets all connections.
    pub fn retarget(&self, target: SocketAddr) {
        *lock(&self.shared.target) = target;
        self.reset();
    }

    /// What it has done so far.
    pub fn counts(&self) -> Counts {
        let counters = &self.shared.counters;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            connections: count(&counters.connections),
            lost_commits: count(&counters.lost_commits),
            cut_before: count(&counters.cut_before),
            cut_after: count(&counters.cut_after),
            resets: count(&counters.resets),
            late: count(&counters.late),
        }
    }
}

impl Shared {
    fn happens(&self, probability: f64) -> bool {
        probability > 0.0 && lock(&self.dice).random_bool(probability.min(1.0))
    }

    fn add(&self, counter: &AtomicU64) -> u64 {
        counter.fetch_add(1, Ordering::Relaxed)
    }
}

async fn accept(listener: TcpListener, shared: Arc<Shared>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) => {
                let number = shared.add(&shared.counters.connections);
                tokio::spawn(connection(client, number, shared.clone()));
            }
            // No file descriptors are left, for one: whoever has some must end first.
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// How passing on ends.
enum Ended {
    /// One side has closed the connection.
    Closed,
    /// A rule wants it reset.
    Reset,
}

async fn connection(mut client: TcpStream, number: u64, shared: Arc<Shared>) {
    let present = lock(&shared.present).clone();
    let target = *lock(&shared.target);
    let Ok(mut server) = TcpStream::connect(target).await else {
        // The client sees a connection that breaks at once, as with a server that has just died.
        return;
    };
    for stream in [&client, &server] {
        let _ = stream.set_nodelay(true);
    }
    let (client_in, client_out) = client.split();
    let (server_in, server_out) = server.split();
    let session = Mutex::new(Exchange::default());
    let link = Link {
        number,
        shared: &shared,
        rules: shared.rules.subscribe(),
        session: &session,
    };
    // The client's writer is used by both: a request for encryption is refused here.
    let client_out = tokio::sync::Mutex::new(client_out);
    let ended = tokio::select! {
        () = present.cancelled() => Ended::Reset,
        ended = link.clone().requests(client_in, server_out, &client_out) => ended,
        ended = link.replies(server_in, &client_out) => ended,
    };
    if let Ended::Reset = ended {
        shared.add(&shared.counters.resets);
        // Closed so, a connection ends by a reset.
        let _ = (client.set_zero_linger(), server.set_zero_linger());
    }
}

#[derive(Debug, Default)]
struct Exchange {
    session: Session,
    /// The request that is being done will not be answered.
    cut_after: bool,
}

#[derive(Clone)]
struct Link<'a> {
    number: u64,
    shared: &'a Shared,
    rules: watch::Receiver<Rules>,
    session: &'a Mutex<Exchange>,
}

impl Link<'_> {
    async fn requests(
        mut self,
        mut client: ReadHalf<'_>,
        mut server: WriteHalf<'_>,
        client_out: &tokio::sync::Mutex<WriteHalf<'_>>,
    ) -> Ended {
        let mut stream = Stream::of_client();
        // Up to here, `stream` holds whole messages that were looked at.
        let mut seen = 0;
        loop {
            if !matches!(client.read_buf(&mut stream.bytes).await, Ok(1..)) {
                return Ended::Closed;
            }
            // Messages go on when the request is whole, or is one of those that no Sync ends.
            let mut whole = 0;
            let mut requests = 0;
            while let Some(message) = stream.message(seen) {
                if message.kind == 0 && stream.asks_encryption(&message.body) {
                    if client_out.lock().await.write_all(b"N").await.is_err() {
                        return Ended::Closed;
                    }
                    stream.bytes.drain(message.all);
                    continue;
                }
                seen = message.all.end;
                let body = &stream.bytes[message.body];
                let mut exchange = lock(self.session);
                if exchange.session.on_request(message.kind, body) {
                    requests += 1;
                    let rules = self.rules.borrow();
                    if self.shared.happens(rules.cut_before) {
                        self.shared.add(&self.shared.counters.cut_before);
                        return Ended::Reset;
                    }
                    exchange.cut_after |= self.shared.happens(rules.cut_after);
                }
                if !matches!(message.kind, b'P' | b'B' | b'D' | b'E' | b'C') {
                    whole = seen;
                }
            }
            if whole == 0 {
                continue;
            }
            let number = self.number;
            let held = self
                .pass(|rules| matches!(rules.hold, Hold::Both | Hold::Requests) || rules.held_below > number)
                .await;
            if held {
                let late = &self.shared.counters.late;
                late.fetch_add(requests, Ordering::Relaxed);
            }
            if server.write_all(&stream.bytes[..whole]).await.is_err() {
                return Ended::Closed;
            }
            stream.bytes.drain(..whole);
            seen -= whole;
        }
    }

    async fn replies(
        mut self,
        mut server: ReadHalf<'_>,
        client: &tokio::sync::Mutex<WriteHalf<'_>>,
    ) -> Ended {
        let mut stream = Stream::of_server();
        let mut seen = 0;
        // The reply that tells of a commit, and what follows it, waits for the commit itself.
        let mut lose = false;
        loop {
            if !matches!(server.read_buf(&mut stream.bytes).await, Ok(1..)) {
                return Ended::Closed;
            }
            let mut pass = 0;
            while let Some(message) = stream.message(seen) {
                let mut exchange = lock(self.session);
                let reply = exchange
                    .session
                    .on_reply(message.kind, &stream.bytes[message.body]);
                match reply {
                    Reply::Wrote => lose = lose || self.shared.happens(self.rules.borrow().lose_commits),
                    Reply::Ready { committed } => {
                        let counters = &self.shared.counters;
                        if committed && (lose || exchange.cut_after) {
                            self.shared.add(&counters.lost_commits);
                        }
                        if exchange.cut_after {
                            self.shared.add(&counters.cut_after);
                            return Ended::Reset;
                        }
                        if committed && lose {
                            return Ended::Reset;
                        }
                        lose = false;
                    }
                    Reply::Other => {}
                }
                seen = message.all.end;
                if !lose && !exchange.cut_after {
                    pass = seen;
                }
            }
            if pass == 0 {
                continue;
            }
            let number = self.number;
            self.pass(|rules| matches!(rules.hold, Hold::Both | Hold::Replies) || rules.held_below > number)
                .await;
            if client
                .lock()
                .await
                .write_all(&stream.bytes[..pass])
                .await
                .is_err()
            {
                return Ended::Closed;
            }
            stream.bytes.drain(..pass);
            seen -= pass;
        }
    }

    /// Waits as the rules want it; true: it was held.
    async fn pass(&mut self, holds: impl Fn(&Rules) -> bool) -> bool {
        let delay = self.rules.borrow().delay;
        if let Some((delay, jitter)) = delay {
            let jitter = jitter.mul_f64(lock(&self.shared.dice).random_range(0.0..=1.0));
            tokio::time::sleep(delay + jitter).await;
        }
        let held = holds(&self.rules.borrow());
        // The sender lives as long as what this borrows from.
        let _ = self.rules.wait_for(|rules| !holds(rules)).await;
        held
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
