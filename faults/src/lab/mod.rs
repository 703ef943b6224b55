//! Hosts: where nodes and servers run, and what lies between them.
//!
//! | file | has |
//! |---|---|
//! | `net` | two networks, a namespace for each host |
//! | `host` | a host and its node: start, kill, pause, limits, clock |
//! | `firewall` | what the kernel of a host drops |
//! | `proxy`, `wire` | what stands between a node and Postgres, and knows its protocol |
//! | `pooler` | PgBouncer, between the proxies and Postgres |
//! | `relay` | what stands between nodes: delay, loss, doubles, disorder |
//! | `database` | Postgres, its standby, the address of the present primary |
//! | `clock` | wall clocks that are wrong |
//! | `limits` | processor, memory, file descriptors, disks |
//! | `command` | runs the system's programs |
//!
//! Needs root, on Linux. What a lab makes has names of its own, so that labs can run side by side, and goes when the lab is
//! dropped; what one that was killed left behind goes when the next one starts.

mod clock;
mod command;
mod database;
mod firewall;
mod host;
mod limits;
mod net;
mod pooler;
mod proxy;
mod relay;
mod wire;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
pub use ringmesh::dev::postgres::Durability;

pub use clock::{Offset, SEEN_WITHIN};
pub use database::{Database, Old, Replication};
pub use host::Host;
pub use pooler::{Pooler, Pooling};
pub use proxy::{Counts, Hold, Proxy, Rules};
pub use relay::Weather;

use clock::Clock;
use firewall::Firewall;
use limits::Group;
use net::Network;
use relay::{End, Relay};

/// The port of the first node's proxy on the data network; the others follow.
const PROXIES: u16 = 5400;
/// The lease that nodes have if they are told nothing.
const TTL: Duration = Duration::from_secs(3);

/// How a lab is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// How many nodes, 1 to 60.
    pub nodes: u8,
    /// The length of their leases. For less than 2 s, `env` must give them a shorter `RINGMESH_MARGIN` and others as well.
    pub ttl: Duration,
    /// Decides all that is random in proxies and relays.
    pub seed: u64,
    /// More variables for all nodes; they win over those of the lab.
    pub env: Vec<(String, String)>,
    /// The program that the nodes are, with a subcommand `node`. `None`: this one.
    pub binary: Option<PathBuf>,
    /// Settings of Postgres; they win over those of the lab.
    pub postgres: Vec<(String, String)>,
    /// What Postgres syncs to disk. Killed servers lose no commit under either.
    pub durability: Durability,
    /// Gives the first server a disk of its own, of so many bytes of memory, that can be filled.
    pub disk: Option<u64>,
    /// Whether there is a standby.
    pub standby: Option<Replication>,
    /// Whether the nodes reach Postgres through PgBouncer.
    pub pooler: Option<Pooling>,
    /// Whether what nodes send each other passes a relay, which [`Lab::weather`] acts on.
    pub relayed: bool,
    /// Whether wall clocks can be shifted. Costs every look at the time a little.
    pub clocks: bool,
    /// How long a node may take until it is ready.
    pub ready_within: Duration,
}

impl Default for Options {
    /// Five nodes, a Postgres that syncs nothing, nothing else.
    fn default() -> Options {
        Options {
            nodes: 5,
            ttl: TTL,
            seed: 0,
            env: Vec::new(),
            binary: None,
            postgres: Vec::new(),
            durability: Durability::FastForTests,
            disk: None,
            standby: None,
            pooler: None,
            relayed: false,
            clocks: false,
            ready_within: Duration::from_secs(240),
        }
    }
}

/// How a link is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// What is sent vanishes.
    Drop,
    /// What is sent is answered with a reset.
    Reject,
}

/// Hosts with their nodes, and a Postgres. Dropping it ends and removes all of it.
pub struct Lab {
    hosts: Vec<Host>,
    relay: Option<Relay>,
    pooler: Option<Pooler>,
    database: Database,
    token: String,
    ttl: Duration,
    events: PathBuf,
    network: Network,
    others_act: bool,
}

/// Says what is missing for a lab on this machine, if anything is.
///
/// # Errors
/// Not root, or a program is missing.
pub async fn check() -> Result<()> {
    net::check().await
}

impl Lab {
    /// Starts everything, and returns when all nodes are ready.
    ///
    /// # Errors
    /// As [`check`]; something did not start, with the end of its log. Nothing is left.
    pub async fn start(options: Options) -> Result<Lab> {
        Lab::start_with(options, async |_| Ok(())).await
    }

    /// As [`Self::start`]; `prepare` is called with the database's address before any node starts.
    ///
    /// # Errors
    /// As [`Self::start`], and those of `prepare`.
    pub async fn start_with(options: Options, prepare: impl AsyncFnOnce(&str) -> Result<()>) -> Result<Lab> {
        check().await?;
        if !(1..=60).contains(&options.nodes) {
            bail!("a lab has 1 to 60 nodes, not {}", options.nodes);
        }
        let network = Network::start(options.nodes).await?;
        let dir = network.dir().to_owned();
        let events = dir.join("events");
        std::fs::create_dir_all(&events)?;
        let clock = |name: &str| match options.clocks {
            true => Clock::new(dir.join(format!("{name}.clock"))).map(Some),
            false => Ok(None),
        };
        let database = Database::start(database::Options {
            dir: dir.clone(),
            durability: options.durability,
            settings: options.postgres.clone(),
            disk: options.disk,
            standby: options.standby,
            clock: clock("postgres")?,
            seed: options.seed,
        })
        .await?;
        prepare(&database.url()).await?;
        let pooler = match options.pooler {
            Some(pooling) => {
                let owner = database.owner()?;
                Some(Pooler::start(dir.join("pgbouncer"), &database.url(), owner, pooling).await?)
            }
            None => None,
        };
        let mut lab = Lab {
            hosts: Vec::new(),
            relay: None,
            pooler,
            token: "the-token-of-a-lab-known-to-all".into(),
            ttl: options.ttl,
            database,
            events,
            network,
            others_act: false,
        };
        for number in 1..=options.nodes {
            let clock = clock(&format!("n{number}"))?;
            let host = lab.host(number, &options, clock).await?;
            lab.hosts.push(host);
        }
        if options.relayed {
            lab.start_relay(options.seed).await?;
        }
        for host in &mut lab.hosts {
            host.spawn().await?;
        }
        let within = options.ready_within;
        try_join_all(lab.hosts.iter_mut().map(|host| host.wait_ready(within))).await?;
        Ok(lab)
    }

    async fn start_relay(&mut self, seed: u64) -> Result<()> {
        let end = |host: &Host| End {
            data: host.data,
            voice: self.network.voice(host.number),
        };
        let ends: Vec<End> = self.hosts.iter().map(end).collect();
        self.relay = Some(Relay::start(&ends, host::HTTP, host::GOSSIP, seed).await?);
        for (from, host) in self.hosts.iter().enumerate() {
            let lines = relay::redirections(&ends, from, host::HTTP, host::GOSSIP);
            host.firewall.redirect(&lines).await?;
        }
        Ok(())
    }

    async fn host(&self, number: u8, options: &Options, clock: Option<Clock>) -> Result<Host> {
        let network = &self.network;
        let name = format!("n{number}");
        let port = PROXIES + u16::from(number);
        let target = match &self.pooler {
            Some(pooler) => pooler.address(),
            None => self.database.address(),
        };
        let proxy = Proxy::start(
            SocketAddr::from((network.data(1), port)),
            target,
            options.seed.wrapping_add(u64::from(number)),
        )
        .await?;
        let data = network.data(10 + number);
        let seeds =
            (1..=options.nodes).map(|number| format!("{}:{}", network.data(10 + number), host::GOSSIP));
        let ttl = format!("{}ms", options.ttl.as_millis());
        let own = [
            ("RINGMESH_NAME", name.clone()),
            ("RINGMESH_DATABASE_URL", self.database.url_at(proxy.address())),
            ("RINGMESH_LISTEN", format!("0.0.0.0:{}", host::HTTP)),
            ("RINGMESH_ADVERTISE", format!("{data}:{}", host::HTTP)),
            ("RINGMESH_GOSSIP", format!("{data}:{}", host::GOSSIP)),
            ("RINGMESH_SEEDS", seeds.collect::<Vec<_>>().join(",")),
            (
                "RINGMESH_CLUSTER_SECRET",
                format!("the-secret-of-lab-{}", network.id()),
            ),
            ("RINGMESH_TOKEN", self.token.clone()),
            ("RINGMESH_TTL", ttl),
            // Faults follow each other faster than starts do where people run nodes.
            ("RINGMESH_REJOIN_DELAY", "0s".into()),
            ("FAULTS_EVENTS", self.events.display().to_string()),
        ];
        let own = own.map(|(name, value)| (name.to_owned(), value));
        let environment: BTreeMap<_, _> = own.into_iter().chain(options.env.iter().cloned()).collect();
        let client = ringmesh::tls::http_client()
            .no_proxy()
            .timeout(Duration::from_secs(2));
        let binary = match &options.binary {
            Some(binary) => binary.clone(),
            None => std::env::current_exe().context("find the path of this program")?,
        };
        Ok(Host {
            space: network.space(number),
            firewall: Firewall::new(network.space(number)),
            group: Group::new(network.space(number)),
            control: network.control(10 + number),
            log: network.dir().join(format!("{name}.log")),
            log_start: 0,
            points: network.dir().join(format!("{name}.points")),
            binary,
            ready_within: options.ready_within,
            client: client.build()?,
            process: None,
            stands_still: false,
            drains: false,
            starts: 0,
            number,
            data,
            name,
            environment,
            proxy,
            clock,
        })
    }

    /// The hosts, `n1` first; also those whose nodes do not run now.
    pub fn nodes(&self) -> &[Host] {
        &self.hosts
    }

    /// As [`Self::nodes`], to change them.
    pub fn nodes_mut(&mut self) -> &mut [Host] {
        &mut self.hosts
    }

    /// Where the present primary is reached without faults, as a superuser.
    pub fn database_url(&self) -> String {
        self.database.url()
    }

    /// Postgres and its standby.
    pub fn database(&self) -> &Database {
        &self.database
    }

    /// As [`Self::database`], to change it.
    pub fn database_mut(&mut self) -> &mut Database {
        &mut self.database
    }

    /// What clients send as their bearer token.
    pub fn token(&self) -> &str {
        &self.token
    }

    /// Whether more than one fault acts: a node that is started may not get ready before the others are healed.
    pub fn others_act(&self) -> bool {
        self.others_act
    }

    /// Says whether more than one fault acts.
    pub fn set_others_act(&mut self, others_act: bool) {
        self.others_act = others_act;
    }

    /// The length of a lease.
    pub fn ttl(&self) -> Duration {
        self.ttl
    }

    /// The folder of the nodes' event files.
    pub fn events_dir(&self) -> &Path {
        &self.events
    }

    /// The folder with all logs; removed with the lab unless [`Self::keep`] is called.
    pub fn dir(&self) -> &Path {
        self.network.dir()
    }

    /// Leaves the folder with all logs when the lab ends.
    pub fn keep(&mut self) {
        self.network.keep();
    }

    /// The last incarnation of this node that is not fenced, by Postgres.
    ///
    /// # Errors
    /// Postgres is away.
    pub async fn incarnation(&self, node: usize) -> Result<Option<i64>> {
        let name = &self.hosts[node].name;
        let sql = format!(
            "select incarnation from ringmesh.node where name = '{name}' and fenced_at is null order by 1 desc limit 1"
        );
        Ok(self.database.numbers(&sql).await?.first().copied())
    }

    /// Cuts a node from Postgres, both ways; gossip and HTTP are not touched.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn cut_database(&mut self, node: usize, cut: Cut) -> Result<()> {
        let at = self.network.data(1);
        let host = &mut self.hosts[node];
        let port = host.proxy.address().port();
        let sent = match cut {
            Cut::Drop => firewall::drop_to(at, port),
            Cut::Reject => firewall::reject_to(at, port),
        };
        let lines = vec![sent, firewall::drop_port_from(at, port)];
        host.firewall.set("database", lines).await
    }

    /// Ends [`Self::cut_database`].
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn heal_database(&mut self, node: usize) -> Result<()> {
        self.hosts[node].firewall.remove("database").await
    }

    /// Drops what one node sends to another, with this probability; 1: all of it.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn lose(&mut self, from: usize, to: usize, probability: f64) -> Result<()> {
        let sender = &self.hosts[from];
        let sources = [sender.data, self.network.voice(sender.number)];
        let line = |source| match probability {
            1.0.. => firewall::drop_from(source),
            _ => firewall::lose_from(source, probability),
        };
        let (group, lines) = (sender.name.clone(), sources.map(line).into());
        self.hosts[to].firewall.set(group, lines).await
    }

    /// Drops what one node sends to another: one way only.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn cut_one_way(&mut self, from: usize, to: usize) -> Result<()> {
        self.lose(from, to, 1.0).await
    }

    /// Cuts two nodes from each other.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn cut(&mut self, a: usize, b: usize) -> Result<()> {
        self.cut_one_way(a, b).await?;
        self.cut_one_way(b, a).await
    }

    /// Gives a host another address on the network with faults, or its first one again, while its node does not run.
    ///
    /// # Errors
    /// `ip` failed, or the lab has a relay, which knows hosts by their addresses.
    pub async fn readdress(&mut self, node: usize) -> Result<()> {
        if self.relay.is_some() {
            bail!("with a relay, addresses stay");
        }
        let host = &mut self.hosts[node];
        let first = self.network.data(10 + host.number);
        let next = match host.data == first {
            true => self.network.data(170 + host.number),
            false => first,
        };
        let batch = format!(
            "addr del {}/24 dev data\naddr add {next}/24 dev data\n",
            host.data
        );
        command::run("ip", &["-n", &host.space, "-batch", "-"], &batch).await?;
        host.data = next;
        host.set_env("RINGMESH_ADVERTISE", &format!("{next}:{}", host::HTTP));
        host.set_env("RINGMESH_GOSSIP", &format!("{next}:{}", host::GOSSIP));
        Ok(())
    }

    /// What happens from now on to what one node sends to another, from the lab's option `relayed` on.
    ///
    /// # Errors
    /// The lab was started without that option.
    pub fn weather(&self, from: usize, to: usize, weather: Weather) -> Result<()> {
        let relay = self.relay.as_ref().context("the lab has no relay")?;
        relay.set(from, to, weather);
        Ok(())
    }

    /// The pooler, from the lab's option `pooler` on.
    ///
    /// # Errors
    /// The lab was started without that option.
    pub fn pooler(&mut self) -> Result<&mut Pooler> {
        self.pooler.as_mut().context("the lab has no pooler")
    }

    /// The longest packet that a node's link takes; 1500 is usual.
    ///
    /// # Errors
    /// `ip` failed.
    pub async fn limit_packets(&mut self, node: usize, bytes: u16) -> Result<()> {
        let (space, bytes) = (self.hosts[node].space.clone(), bytes.to_string());
        let arguments = ["-n", &space, "link", "set", "data", "mtu", &bytes];
        command::run("ip", &arguments, "").await.map(drop)
    }

    /// Lets a node receive no fragments of datagrams but the first of each.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn drop_fragments(&mut self, node: usize) -> Result<()> {
        let lines = vec![firewall::drop_fragments()];
        self.hosts[node].firewall.set("fragments", lines).await
    }

    /// Ends [`Self::drop_fragments`].
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn pass_fragments(&mut self, node: usize) -> Result<()> {
        self.hosts[node].firewall.remove("fragments").await
    }

    /// Heals both ways between two nodes.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn heal(&mut self, a: usize, b: usize) -> Result<()> {
        for (from, to) in [(a, b), (b, a)] {
            let name = self.hosts[from].name.clone();
            self.hosts[to].firewall.remove(&name).await?;
        }
        Ok(())
    }

    /// Heals all links, proxies and the relay.
    ///
    /// # Errors
    /// `iptables` failed.
    pub async fn heal_all(&mut self) -> Result<()> {
        for host in &mut self.hosts {
            host.proxy.heal();
            host.firewall.clear().await?;
        }
        if let Some(relay) = &self.relay {
            relay.heal();
        }
        Ok(())
    }

    /// What all proxies did so far.
    pub fn proxied(&self) -> Counts {
        self.hosts.iter().map(|host| host.proxy.counts()).sum()
    }
}
