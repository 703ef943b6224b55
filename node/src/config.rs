//! What a node is told: its options, their defaults, where each value came from.
//!
//! Every option stands once, in the list below: its name, type, default and text. From there come the fields of
//! [`Config`], the keys of the file, the environment variables (`RINGMESH_` and the name in capitals), the flags, and
//! `docs/configuration.md`.
//!
//! A library user starts from [`Config::default`] and sets fields; a node checks them with [`Config::validate`].

mod check;
mod docs;
mod load;
mod value;

use std::net::SocketAddr;
use std::time::Duration;

pub use check::Problem;
pub use docs::markdown;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) use load::load_text;
pub use load::{Broken, ENVIRONMENT, Error, Loaded, Source, check_names, load, token};
pub use value::{DatabaseUrl, HostPort, LogFormat, Value};

use crate::secret::Secret;
use crate::store::Pooler;

/// One option, as the loader, the command line and the documentation see it.
#[derive(Debug, Clone, Copy)]
pub struct Definition {
    /// Its name: the field, and the key in the file.
    pub name: &'static str,
    /// The lines of its text.
    pub doc: &'static [&'static str],
    /// What a value looks like.
    pub shape: &'static str,
    /// Never shown, and no flag: the command line of a process is public on its host.
    pub secret: bool,
    /// Whether a variable that ends in `_FILE` may name a file that holds it.
    pub from_file: bool,
    /// Its default in words, where it is not a constant; else empty.
    pub default_text: &'static str,
    set: fn(&mut Config, &str) -> Result<(), String>,
    set_toml: fn(&mut Config, &toml::Value) -> Result<(), String>,
    show: fn(&Config) -> Option<String>,
}

impl Definition {
    /// The environment variable that sets it.
    pub fn variable(&self) -> String {
        format!("RINGMESH_{}", self.name.to_uppercase())
    }

    /// The flag that sets it, without its dashes.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// Its value in `config` as text, secrets masked; `None`: not set.
    pub fn show(&self, config: &Config) -> Option<String> {
        (self.show)(config)
    }
}

macro_rules! options {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident: $type:ty = $default:expr $(, says $says:literal)?;
    )+) => {
        /// The options of a node. Made by [`load`], or from [`Config::default`].
        #[derive(Debug, Clone)]
        pub struct Config {
            $( $(#[doc = $doc])+ pub $name: $type, )+
        }

        impl Default for Config {
            fn default() -> Self {
                Config { $( $name: $default, )+ }
            }
        }

        /// All options, in the order in which they are documented.
        pub const OPTIONS: &[Definition] = &[$(
            Definition {
                name: stringify!($name),
                doc: &[$($doc),+],
                shape: <$type as Value>::SHAPE,
                secret: <$type as Value>::SECRET,
                from_file: <$type as Value>::FROM_FILE,
                default_text: concat!($($says)?),
                set: |config, text| { config.$name = Value::parse(text)?; Ok(()) },
                set_toml: |config, value| { config.$name = Value::from_toml(value)?; Ok(()) },
                show: |config| config.$name.show(),
            },
        )+];
    };
}

options! {
    /// The node's name, unique in the mesh. The ring places by it, so a node that restarts under its name gets its
    /// slots back; a second node under a name that is in use is refused.
    name: String = value::hostname(), says "the host's name";
    /// The mesh's database, `postgres://user:password@host:port/database`. A pooler may stand in between, in
    /// session mode or, with `lease_url` best, in transaction mode. Required.
    database_url: DatabaseUrl = DatabaseUrl::default();
    /// The same database by a way without a transaction pooler, for the lease, the death notice, fences, migrations and
    /// the upkeep of days: six sessions per node at most. Through a transaction pooler a death is noticed by the lease
    /// alone, after a TTL.
    lease_url: Option<DatabaseUrl> = None, says "`database_url`";
    /// What stands between this node and Postgres at `database_url`: `auto` finds out at the start, `none` does not
    /// look, `transaction` is a pooler in transaction mode. Say it where a busy pooler could hide.
    pooler: Pooler = Pooler::Auto;
    /// Where the HTTP API listens. Port 0 takes a free one. Any address but loopback needs `token` and
    /// `cluster_secret`.
    listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7101));
    /// Where the other nodes reach this node's HTTP API. Required when `listen` is an unspecified address such as
    /// `0.0.0.0`.
    advertise: Option<HostPort> = None, says "the address of `listen`";
    /// Where gossip listens, UDP. Port 0 takes a free one. Any address but loopback needs `cluster_secret`.
    gossip: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 7201));
    /// Where the other nodes reach this node's gossip; a name is resolved once, at the start. Required when `gossip` is
    /// an unspecified address.
    gossip_advertise: Option<HostPort> = None, says "the address of `gossip`";
    /// Gossip addresses of some nodes of the mesh, a list in the file and comma-separated elsewhere. Names are
    /// resolved again and again. The node itself may be among them, so that all nodes can share one list; with none,
    /// the node waits to be found.
    seeds: Vec<HostPort> = Vec::new();
    /// Keeps meshes apart that can reach each other. All nodes of a mesh must have the same.
    cluster_id: String = "ringmesh".to_owned();
    /// Authenticates the nodes of a mesh to each other, over gossip and over HTTP; at least 16 characters. All nodes
    /// must have the same. On loopback a built-in one, which is no secret, stands in.
    cluster_secret: Option<Secret> = None;
    /// What clients of the HTTP API must send as their bearer token; at least 16 characters. Without one, which only
    /// loopback allows, everybody may do everything.
    token: Option<Secret> = None;
    /// The node's share of slots against the others', 1 to 256. Twice as high gets about twice the slots. Changing it
    /// moves slots.
    weight: u32 = 1;
    /// Ring points per unit of weight, 1 to 4096. More spread the slots more evenly and cost memory and time in
    /// proportion; fewer do the opposite. All nodes must have the same.
    tokens: u32 = 512;
    /// How many times its fair share of slots a node may get, at least 1, or `none`. Lower is more even and moves more
    /// slots when a node comes or goes; `none` moves only the slots of that node and does not limit unevenness. All
    /// nodes must have the same.
    load_bound: Option<f64> = Some(1.25);
    /// How long the node's lease lasts from each renewal on. Longer rides out longer stalls of Postgres without
    /// cancelling handlers; shorter takes over sooner from a host that is lost without notice. All nodes must have the
    /// same.
    ttl: Duration = Duration::from_secs(3);
    /// How often the lease is renewed, at most a third of `ttl`. More often lets more renewals fail before trust ends
    /// and costs Postgres one small update each; less often does the opposite.
    renew_every: Duration = Duration::from_millis(500);
    /// How much earlier than its lease the node's own trust in it ends. More covers more drift between clocks and
    /// gives handlers more time to stop; less lets them run longer through a stall. Below `ttl` less `renew_every`.
    margin: Duration = Duration::from_millis(500);
    /// How often the node reads its slots from Postgres and looks for work that no hint told of. Shorter recovers
    /// sooner from lost hints and costs Postgres more reads; longer does the opposite.
    tick: Duration = Duration::from_millis(500);
    /// How long joins are collected before slots move to the new nodes. Longer moves keys fewer times when many nodes
    /// start together; shorter lets a single node help sooner.
    join_window: Duration = Duration::from_secs(1);
    /// The longest that a node waits before it takes slots when its name has started again and again; the wait doubles
    /// from 1 s with each start after the third within ten minutes. Longer spares other nodes' keys from moving for one
    /// that keeps failing; shorter lets it help sooner; 0s never waits.
    rejoin_delay: Duration = Duration::from_secs(60);
    /// How long running tasks may go on when their slot moves or the node stops, before they are cancelled and
    /// returned. Longer lets more of them end; shorter moves slots sooner.
    drain_deadline: Duration = Duration::from_secs(10);
    /// How long a cancelled handler may take to return before it is aborted. Longer lets it clean up; shorter frees
    /// its key sooner.
    run_grace: Duration = Duration::from_secs(5);
    /// How many tasks run at once on this node. Higher uses more of the host and of what the handlers call; lower
    /// leaves tasks waiting.
    concurrency: u32 = 512;
    /// How many tasks the node holds in memory, running or waiting, at least `concurrency`, and 256 so that urgent ones
    /// find room. Higher keeps handlers busy at high rates and returns more at a handoff; lower saves memory.
    room: u32 = 8192;
    /// For how many keys the node keeps a cache. More stay warm; fewer save memory.
    cache_keys: u32 = 10_000;
    /// The pause before the first retry of a failed task; it doubles with each failure. Longer spares what fails;
    /// shorter recovers sooner.
    backoff_min: Duration = Duration::from_secs(1);
    /// The longest pause before a retry. Longer spares what fails for long; shorter notices sooner that it works again.
    backoff_max: Duration = Duration::from_secs(300);
    /// The most Postgres connections for submits, reads and upkeep. More let more requests proceed at once; fewer
    /// spare Postgres. Beside these and `hot_connections` come a few that renew the lease and watch other nodes.
    connections: u32 = 10;
    /// The most Postgres connections for claims and finishes. More help at high rates; fewer spare Postgres.
    hot_connections: u32 = 4;
    /// How long ended tasks are kept, in whole days of the database. Longer answers older questions and takes disk
    /// space; shorter does the opposite.
    retention: Duration = Duration::from_secs(7 * 24 * 3600);
    /// For how long a repeated idempotency key returns the first task, at most `retention`. Longer makes later
    /// repetitions safe and grows a table; shorter does the opposite.
    idempotency_window: Duration = Duration::from_secs(24 * 3600);
    /// For how long an id given to `ringmesh.apply_once` is remembered, counted from the call. It must be longer than
    /// whatever can repeat an id, and than the longest transaction that applies one. Longer makes later repetitions safe
    /// and grows a table; shorter does the opposite.
    inbox_window: Duration = Duration::from_secs(7 * 24 * 3600);
    /// The most HTTP connections at once. More serve more clients and take memory and file descriptors; beyond the
    /// limit, new ones are answered 503.
    max_connections: u32 = 4096;
    /// Whether this node handles the built-in kinds for trying things out: `noop`, `echo`, `sleep`, `fail`.
    builtin_kinds: bool = true;
    /// Whether this node also handles the built-in kinds that do harm on purpose, for tests of faults: `panic`,
    /// `abort`, `spin`, `stubborn`. Whoever may submit tasks can then end the node.
    fault_kinds: bool = false;
    /// How log lines on standard error look: `text` for people, `json` for machines. What is logged is chosen by
    /// `RINGMESH_LOG`.
    log_format: LogFormat = LogFormat::Text;
}

/// Stands in for the cluster secret on loopback. No secret.
const LOOPBACK_SECRET: &str = "loopback only, known to everybody";

impl Config {
    /// The cluster secret, or on loopback the built-in one. [`Config::validate`] sees to it that nothing else uses that.
    pub fn cluster_secret(&self) -> Secret {
        self.cluster_secret
            .clone()
            .unwrap_or_else(|| Secret::new(LOOPBACK_SECRET.to_owned()))
    }

    /// Where the other nodes reach the HTTP API, when it listens on `bound`.
    pub fn advertised(&self, bound: SocketAddr) -> String {
        self.advertise
            .as_ref()
            .map_or_else(|| bound.to_string(), HostPort::to_string)
    }

    /// Where the other nodes reach gossip, when it listens on `bound`.
    ///
    /// # Errors
    /// `gossip_advertise` is a name that has no address now.
    pub async fn gossip_advertised(&self, bound: SocketAddr) -> std::io::Result<SocketAddr> {
        match &self.gossip_advertise {
            Some(advertise) => advertise.resolve().await,
            None => Ok(bound),
        }
    }

    /// What the placement is computed from.
    pub fn placement(&self) -> ringmesh_ring::Settings {
        ringmesh_ring::Settings {
            tokens: self.tokens,
            load_bound: self.load_bound,
            ..Default::default()
        }
    }

    /// How the lease is kept.
    pub fn terms(&self) -> ringmesh_ring::lease::Terms {
        ringmesh_ring::lease::Terms {
            ttl: self.ttl,
            renew_every: self.renew_every,
            margin: self.margin,
        }
    }

    /// How the store connects.
    pub fn store(&self) -> crate::store::Options {
        crate::store::Options {
            url: self.database_url.as_str().to_owned(),
            lease_url: self.lease_url.as_ref().map(|url| url.as_str().to_owned()),
            pooler: self.pooler,
            connections: self.connections,
            hot_connections: self.hot_connections,
            ttl: self.ttl,
            application: format!("ringmesh {}", self.name),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests;
