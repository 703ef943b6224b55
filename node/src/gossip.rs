//! Who is there: the members of the mesh, by gossip.
//!
//! Gossip only says who should own slots; Postgres says who does (design rule 1). So nothing here needs to be right at every
//! moment: a wrong view moves slots for no reason or late, and never lets two nodes commit for one slot.
//!
//! This file and its folder are the only ones that know chitchat. What they add to it:
//!
//! - identity is the incarnation that Postgres gave to this start of the node: a clock can step back, a sequence cannot;
//! - every datagram is sealed (`seal`), and an error of the socket is survived (`transport`);
//! - a failure detector that finds a silent node in 7 to 12 gossip intervals, whatever its age;
//! - seeds that are resolved again and again, joined by addresses that the node learned elsewhere ([`Gossip::suggest`]);
//! - a leave that is told, so that a planned stop is not mistaken for a death.

#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
#[cfg(any(test, feature = "fuzzing"))]
mod messages;
mod seal;
mod transport;

#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use chitchat::{
    ChitchatConfig, ChitchatHandle, ChitchatId, FailureDetectorConfig, NodeState, ProtocolVersion,
    spawn_chitchat,
};
use ringmesh_ring::Incarnation;
use tokio::net::UdpSocket;
use tokio::sync::watch;
use tokio::time::{MissedTickBehavior, interval, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;
use tracing::{debug, info, warn};

use self::seal::Channel;
pub use self::seal::Reason;
pub use self::transport::Dropped;
use self::transport::{Opener, SealedSocket};
use crate::secret::Secret;
use crate::telemetry::metric;

/// chitchat's phi is the time since the last heartbeat over the mean interval between heartbeats.
const PHI: f64 = 8.0;

/// How many intervals the mean looks back on, beside the prior of five.
///
/// Heartbeats also come with each message and through third nodes, so the measured mean is below the gossip interval and falls with the
/// node's age: with a long memory, nodes ten seconds old were called dead after 0.8 s of silence, which a busy CPU can cause.
/// With a memory of one the prior decides: eight times (5 intervals + the last one) / 6, so between 6.7 and 8 intervals
/// since the last beat that came by any way. Measured in meshes of 2 to 10 nodes at 200 ms, young and old: 1.4 to 2.4 s
/// from the kill until all had noticed.
const REMEMBERED_INTERVALS: usize = 1;

/// How many intervals a dead node is remembered; for half of them peers are told of it.
///
/// Long enough that all have noticed before the first one stops to tell, so that nobody learns of it again; and no longer:
/// all remembered ids travel in each digest, which must fit a datagram, and a node that crash-loops adds one at each start. Whoever
/// starts while peers are still told counts anew, so under starts that follow closely on each other an id is passed on for
/// longer. A node that was cut off or stopped for longer comes back all the same: its heartbeats went on.
const DEAD_NODE_GRACE_INTERVALS: u32 = 100;

/// How long a deleted key is remembered; no key is ever deleted here.
const DELETED_KEY_GRACE: Duration = Duration::from_secs(120);

/// How often the names of the seeds are resolved again.
const RESOLVE_EVERY: Duration = Duration::from_secs(5);

/// How long one resolution may take.
const RESOLVE_LIMIT: Duration = Duration::from_secs(2);

/// Known addresses are greeted every that many intervals; by a node that sees nobody at each.
const GREET_INTERVALS: u32 = 10;

/// How many addresses are greeted at once.
const GREETED_AT_ONCE: usize = 16;

/// How long chitchat may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(2);

/// The keys that a node tells about itself. Other nodes read them, older and newer ones too: never change a meaning.
mod key {
    pub(super) const SERVING: &str = "serving";
    pub(super) const DRAINING: &str = "draining";
    pub(super) const WEIGHT: &str = "weight";
    pub(super) const HTTP: &str = "http";
    pub(super) const LEFT: &str = "left";
}

/// How a node gossips.
#[derive(Clone, Debug)]
pub struct Config {
    /// Nodes of another cluster are not heard.
    pub cluster_id: String,
    /// Shared by all nodes of the cluster; those with another one are not heard either.
    pub secret: Secret,
    /// The UDP address to bind; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The UDP address at which peers reach this node; port 0 stands for the bound one.
    pub advertise: SocketAddr,
    /// Some nodes of the mesh, as `host:port`, this one among them or not. Names are resolved again and again.
    pub seeds: Vec<String>,
    /// The time between two rounds. A longer one costs less and finds deaths later: after 7 to 12 intervals.
    pub interval: Duration,
}

/// What this node tells about itself.
#[derive(Clone, Debug)]
pub struct Me {
    /// A label; two live nodes of one name count once.
    pub name: String,
    /// The identity of this start.
    pub incarnation: Incarnation,
    /// Its share of slots, relative to the others'.
    pub weight: u32,
    /// The HTTP address at which peers reach it.
    pub http: String,
}

/// One live member as gossip sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its label.
    pub name: String,
    /// The identity of its present start.
    pub incarnation: Incarnation,
    /// Its share of slots, relative to the others'.
    pub weight: u32,
    /// Its HTTP address.
    pub http: String,
    /// Its gossip address.
    pub gossip: SocketAddr,
    /// It takes slots.
    pub serving: bool,
    /// It hands its slots on and will leave.
    pub draining: bool,
}

/// Why gossip did not start, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another process has the port.
    #[error("the gossip port {0}/udp is in use by another process")]
    PortInUse(SocketAddr),
    /// The address cannot be bound for another reason.
    #[error("cannot listen for gossip on {address}/udp")]
    Bind {
        /// The configured address.
        address: SocketAddr,
        /// What the operating system said.
        source: io::Error,
    },
    /// Peers cannot reach that address.
    #[error("{0} cannot be advertised for gossip; name an address at which peers reach this node")]
    Advertise(SocketAddr),
    /// Not a number that Postgres gives.
    #[error("{0} is not an incarnation")]
    Incarnation(Incarnation),
    /// No randomness, or no loopback.
    #[error("cannot prepare the gossip socket")]
    Prepare(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// chitchat's loop ended by itself; the node is deaf.
    #[error("gossip ended: {0}")]
    Ended(String),
}

/// This node's part in the gossip. Dropping it ends that at once, which peers take for a death; see [`Gossip::leave`].
pub struct Gossip {
    handle: Arc<ChitchatHandle>,
    address: SocketAddr,
    interval: Duration,
    peers: watch::Receiver<Arc<Vec<Peer>>>,
    suggested: watch::Sender<Vec<SocketAddr>>,
    dropped: Arc<Dropped>,
    tasks: TaskTracker,
    stop: DropGuard,
}

impl Gossip {
    /// Binds and starts to gossip; the node does not serve yet.
    ///
    /// # Errors
    ///
    /// If the configuration cannot work or the port cannot be had. Nothing is left running then.
    pub async fn start(config: Config, me: Me) -> Result<Gossip, Error> {
        let (udp, address) = bind(&config).await?;
        let random = random()?;
        let id = ChitchatId::new(me.name.as_str(), generation(me.incarnation, random.1)?, address);
        let dropped = Arc::new(Dropped::default());
        let channel = Channel::new(key_of(&config), random.0);
        let socket = SealedSocket::new(udp, channel, Arc::clone(&dropped))
            .await
            .map_err(|error| Error::Prepare(error.into()))?;

        let handle = spawn_chitchat(
            chitchat_config(&config, id),
            first_words(&me),
            &Opener::new(socket),
        )
        .await
        .map_err(|error| Error::Prepare(error.into()))?;
        let handle = Arc::new(handle);
        let live = handle
            .with_chitchat(|chitchat| chitchat.live_nodes_watcher())
            .await;

        let (peers_tx, peers) = watch::channel(Arc::new(vec![myself(&me, address)]));
        let (suggested, suggested_rx) = watch::channel(Vec::new());
        let (resolved_tx, resolved) = watch::channel(Vec::new());
        let stop = CancellationToken::new();
        let tasks = TaskTracker::new();
        tasks.spawn(until(stop.clone(), follow(live, peers_tx)));
        tasks.spawn(until(stop.clone(), resolve(config.seeds, resolved_tx)));
        let greeter = Greeter {
            handle: Arc::clone(&handle),
            address,
            peers: peers.clone(),
            resolved,
            suggested: suggested_rx,
        };
        tasks.spawn(until(stop.clone(), greeter.run(config.interval)));
        tasks.close();
        info!(node = %me.name, incarnation = %me.incarnation, %address, "gossip started");

        Ok(Gossip {
            handle,
            address,
            interval: config.interval,
            peers,
            suggested,
            dropped,
            tasks,
            stop: stop.drop_guard(),
        })
    }

    /// The address that peers are told.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The live members, this node among them, sorted by name, each name once, with its highest incarnation.
    ///
    /// A node that has told that it leaves is no member any more, this one neither.
    pub fn peers(&self) -> watch::Receiver<Arc<Vec<Peer>>> {
        self.peers.clone()
    }

    /// How many datagrams were dropped, by reason.
    pub fn dropped(&self) -> Arc<Dropped> {
        Arc::clone(&self.dropped)
    }

    /// Tells the peers whether this node takes slots.
    pub async fn set_serving(&self, serving: bool) {
        self.tell(key::SERVING, serving).await;
    }

    /// Tells the peers whether this node hands its slots on.
    pub async fn set_draining(&self, draining: bool) {
        self.tell(key::DRAINING, draining).await;
    }

    /// Gossip addresses that the node knows from elsewhere, such as the node rows in Postgres; they are greeted like seeds.
    ///
    /// They replace those of the call before. So a node with a stale list of seeds, or with none, still finds the others.
    pub fn suggest(&self, addresses: Vec<SocketAddr>) {
        self.suggested.send_if_modified(|suggested| {
            let is_new = *suggested != addresses;
            *suggested = addresses;
            is_new
        });
    }

    /// Waits until gossip has ended by itself: the socket is broken, or chitchat panicked. The node is deaf then: start anew, or
    /// end the process. Waits for ever if it ends by [`Gossip::leave`] or by dropping.
    pub fn stopped(&self) -> impl Future<Output = Error> + Send + use<> {
        let ended = self.handle.termination_watcher();
        async move {
            match ended.await {
                Ok(()) => std::future::pending().await,
                Err(error) => Error::Ended(format!("{error:#}")),
            }
        }
    }

    /// Tells the peers that this node leaves, gives that two intervals to spread if there is anybody, ends, and frees the port.
    pub async fn leave(self) {
        if self.peers.borrow().len() > 1 {
            self.take_leave().await;
        }
        drop(self.stop);
        let ended = self.handle.termination_watcher();
        // An error says that it has ended already.
        let _ = self.handle.initiate_shutdown();
        if timeout(STOP_LIMIT, ended).await.is_err() {
            warn!("gossip did not end in time");
            self.handle.abort();
        }
        self.tasks.wait().await;
        info!(address = %self.address, "gossip left");
    }

    async fn take_leave(&self) {
        for _ in 0..2 {
            self.tell(key::LEFT, true).await;
            sleep(self.interval).await;
        }
    }

    /// Changes a flag and pushes it to all live peers: by rounds alone it would need several to reach everybody.
    async fn tell(&self, key: &'static str, flag: bool) {
        self.handle
            .with_chitchat(|chitchat| chitchat.self_node_state().set(key, flag))
            .await;
        let peers = Arc::clone(&self.peers.borrow());
        for peer in peers.iter().filter(|peer| peer.gossip != self.address) {
            // An error says that gossip has ended, which `stopped` tells.
            let _ = self.handle.gossip(peer.gossip);
        }
    }
}

async fn bind(config: &Config) -> Result<(UdpSocket, SocketAddr), Error> {
    let failed = |source: io::Error| match source.kind() {
        io::ErrorKind::AddrInUse => Error::PortInUse(config.listen),
        _ => Error::Bind {
            address: config.listen,
            source,
        },
    };
    let udp = UdpSocket::bind(config.listen).await.map_err(failed)?;
    let mut address = config.advertise;
    if address.port() == 0 {
        address.set_port(udp.local_addr().map_err(failed)?.port());
    }
    if address.ip().is_unspecified() || address.ip().is_multicast() {
        return Err(Error::Advertise(address));
    }
    Ok((udp, address))
}

/// One key for each cluster: the secret may be shared by several.
fn key_of(config: &Config) -> [u8; 32] {
    let label = format!("ringmesh gossip in {}", config.cluster_id);
    config.secret.derive(&label)
}

/// A session for the channel and a mark for the id.
fn random() -> Result<([u8; 16], u16), Error> {
    let failed = |error: getrandom::Error| Error::Prepare(error.into());
    let mut session = [0; 16];
    getrandom::fill(&mut session).map_err(failed)?;
    let mut mark = [0; 2];
    getrandom::fill(&mut mark).map_err(failed)?;
    Ok((session, u16::from_be_bytes(mark)))
}

/// chitchat's number of a start: the incarnation, then 16 random bits. After a failover that lost WAL Postgres may give an incarnation
/// twice, and peers would hold the second process to be the first with a counter that ran back.
fn generation(incarnation: Incarnation, mark: u16) -> Result<u64, Error> {
    u64::try_from(incarnation.0)
        .ok()
        .filter(|number| *number < 1 << 47)
        .map(|number| number << 16 | u64::from(mark))
        .ok_or(Error::Incarnation(incarnation))
}

fn incarnation(id: &ChitchatId) -> Incarnation {
    Incarnation((id.generation_id >> 16).cast_signed())
}

fn chitchat_config(config: &Config, id: ChitchatId) -> ChitchatConfig {
    ChitchatConfig {
        chitchat_id: id,
        cluster_id: config.cluster_id.clone(),
        gossip_interval: config.interval,
        listen_addr: config.listen,
        // Ours are resolved more often, never block the start, and can be added to at run time.
        seed_nodes: Vec::new(),
        failure_detector_config: FailureDetectorConfig {
            phi_threshold: PHI,
            sampling_window_size: REMEMBERED_INTERVALS,
            // A longer gap is an absence, not a slow beat.
            max_interval: config.interval * 10,
            initial_interval: config.interval,
            dead_node_grace_period: config.interval * DEAD_NODE_GRACE_INTERVALS,
        },
        marked_for_deletion_grace_period: DELETED_KEY_GRACE,
        catchup_callback: None,
        extra_liveness_predicate: None,
        protocol_version: ProtocolVersion::V1,
    }
}

fn first_words(me: &Me) -> Vec<(String, String)> {
    [
        (key::HTTP, me.http.clone()),
        (key::WEIGHT, me.weight.to_string()),
        (key::SERVING, false.to_string()),
        (key::DRAINING, false.to_string()),
    ]
    .map(|(key, value)| (key.to_owned(), value))
    .into()
}

fn myself(me: &Me, address: SocketAddr) -> Peer {
    Peer {
        name: me.name.clone(),
        incarnation: me.incarnation,
        weight: me.weight,
        http: me.http.clone(),
        gossip: address,
        serving: false,
        draining: false,
    }
}

/// The members among the live states.
fn members(live: &BTreeMap<ChitchatId, NodeState>) -> Vec<Peer> {
    let mut newest: BTreeMap<&str, (&ChitchatId, &NodeState)> = BTreeMap::new();
    // Ascending by name, then by incarnation: the last of a name stays. It stays also if it has left: whatever still speaks under
    // its name is older.
    for (id, state) in live {
        newest.insert(&id.node_id, (id, state));
    }
    newest
        .into_values()
        .filter_map(|(id, state)| member(id, state))
        .collect()
}

/// None for a node that has left, or of which only the existence is known so far.
fn member(id: &ChitchatId, state: &NodeState) -> Option<Peer> {
    if flag(state, key::LEFT) {
        return None;
    }
    Some(Peer {
        name: id.node_id.to_string(),
        incarnation: incarnation(id),
        weight: state.get(key::WEIGHT)?.parse().ok()?,
        http: state.get(key::HTTP)?.to_owned(),
        gossip: id.gossip_advertise_addr,
        serving: flag(state, key::SERVING),
        draining: flag(state, key::DRAINING),
    })
}

fn flag(state: &NodeState, key: &str) -> bool {
    state.get(key).is_some_and(|value| value == "true")
}

async fn until(stop: CancellationToken, task: impl Future<Output = ()>) {
    stop.run_until_cancelled(task).await;
}

/// Keeps `peers` equal to what chitchat calls live.
async fn follow(
    mut live: watch::Receiver<BTreeMap<ChitchatId, NodeState>>,
    peers: watch::Sender<Arc<Vec<Peer>>>,
) {
    // The first value is chitchat's empty map from before its first round.
    while live.changed().await.is_ok() {
        let members = members(&live.borrow_and_update());
        peers.send_if_modified(|peers| {
            let has_changed = **peers != members;
            if has_changed {
                log_changes(peers, &members);
                *peers = Arc::new(members);
            }
            has_changed
        });
    }
}

fn log_changes(before: &[Peer], after: &[Peer]) {
    let is_in = |peers: &[Peer], peer: &Peer| {
        peers
            .iter()
            .any(|other| other.name == peer.name && other.incarnation == peer.incarnation)
    };
    for peer in after.iter().filter(|peer| !is_in(before, peer)) {
        info!(peer = %peer.name, incarnation = %peer.incarnation, gossip = %peer.gossip, "member seen");
    }
    for peer in before.iter().filter(|peer| !is_in(after, peer)) {
        info!(peer = %peer.name, incarnation = %peer.incarnation, gossip = %peer.gossip, "member gone");
    }
}

/// Resolves the seeds again and again. A seed that does not resolve keeps its last addresses.
async fn resolve(seeds: Vec<String>, resolved: watch::Sender<Vec<SocketAddr>>) {
    let mut known: BTreeMap<&str, Vec<SocketAddr>> = BTreeMap::new();
    let mut failing = BTreeSet::new();
    let mut ticks = interval(RESOLVE_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for seed in &seeds {
            match lookup(seed).await {
                Ok(addresses) => {
                    failing.remove(seed.as_str());
                    known.insert(seed, addresses);
                }
                // A stale seed may stay in a configuration for years: say it once.
                Err(error) if failing.insert(seed.as_str()) => {
                    warn!(%seed, %error, "seed not resolved");
                }
                Err(error) => debug!(%seed, %error, "seed still not resolved"),
            }
            let mut addresses: Vec<_> = known.values().flatten().copied().collect();
            addresses.sort_unstable();
            addresses.dedup();
            resolved.send_if_modified(|resolved| {
                let is_new = *resolved != addresses;
                *resolved = addresses;
                is_new
            });
        }
    }
}

async fn lookup(seed: &str) -> io::Result<Vec<SocketAddr>> {
    let addresses = timeout(RESOLVE_LIMIT, tokio::net::lookup_host(seed)).await??;
    Ok(addresses.collect())
}

/// Speaks to addresses behind which no live member is known; chitchat itself cares for the members.
struct Greeter {
    handle: Arc<ChitchatHandle>,
    address: SocketAddr,
    peers: watch::Receiver<Arc<Vec<Peer>>>,
    resolved: watch::Receiver<Vec<SocketAddr>>,
    suggested: watch::Receiver<Vec<SocketAddr>>,
}

impl Greeter {
    async fn run(mut self, every: Duration) {
        let mut ticks = interval(every);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut round = 0u32;
        let mut greeted = 0;
        loop {
            // A closed channel means that its task has ended, and then all of them do.
            tokio::select! {
                _ = ticks.tick() => {}
                Ok(()) = self.resolved.changed() => round = 0,
                Ok(()) = self.suggested.changed() => round = 0,
            }
            let known = self.handle.with_chitchat(|chitchat| chitchat.node_states().len());
            metrics::gauge!(metric::GOSSIP_NODES).set(known.await as f64);
            let is_alone = self.peers.borrow().len() < 2;
            if is_alone || round.is_multiple_of(GREET_INTERVALS) {
                greeted = self.greet(greeted);
            }
            round = round.wrapping_add(1);
        }
    }

    /// Greets some addresses, after those of the last time; gives where to go on.
    fn greet(&self, start: usize) -> usize {
        let strangers = self.strangers();
        if strangers.is_empty() {
            return 0;
        }
        let count = strangers.len().min(GREETED_AT_ONCE);
        let start = start % strangers.len();
        for address in strangers.iter().cycle().skip(start).take(count) {
            debug!(%address, "greeting");
            let _ = self.handle.gossip(*address);
        }
        start + count
    }

    fn strangers(&self) -> Vec<SocketAddr> {
        let peers = self.peers.borrow();
        let is_known = |address: &SocketAddr| {
            *address == self.address || peers.iter().any(|peer| peer.gossip == *address)
        };
        let mut addresses = self.resolved.borrow().clone();
        addresses.extend(self.suggested.borrow().iter());
        addresses.sort_unstable();
        addresses.dedup();
        addresses.retain(|address| !is_known(address));
        addresses
    }
}
