//! A node: the wiring of a process, and the order in which it stops.
//!
//! ```text
//! Postgres reachable, schema up to date, settings agreed
//!   └ HTTP: answers from now on; not ready yet
//!       └ a life (life.rs): register → gossip, lease, dispatch, ownership
//!           fenced or failed over → the next life
//!           drained               → the process ends
//! ```
//!
//! Stop order: slots are handed on, the lease ended, gossip left; HTTP ends last, so that nothing waits for an idle client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use tokio::net::TcpListener;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::{interval, sleep};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::config::{self, Config};
use crate::directory::Directory;
use crate::handler::Handlers;
use crate::hint::Hints;
use crate::http::{self, Api};
use crate::lease::{self, Heartbeat};
use crate::life::{self, Process};
use crate::ownership::End;
use crate::store::{self, MeshSettings, MigrateError, Store};
use crate::submit::Submits;
use crate::tls;
use crate::wait::Waits;

/// How long to rest before Postgres is asked again.
const REST: Duration = Duration::from_millis(500);

/// How often days of finished tasks are created and dropped.
const DAYS_EVERY: Duration = Duration::from_secs(3600);

/// Why a node did not start, or ended by an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration cannot work.
    #[error("the configuration cannot work")]
    Config(#[from] config::Problem),
    /// The database URL does not parse.
    #[error("the database URL is not usable")]
    Url(#[source] store::Error),
    /// The schema is not usable.
    #[error("the schema is not usable")]
    Migrate(#[from] MigrateError),
    /// Postgres refused a statement.
    #[error("could not read the mesh's settings")]
    Settings(#[source] store::Error),
    /// The mesh runs under other settings.
    #[error("this mesh runs with {name} = {theirs}, this node with {ours}: all nodes must have the same")]
    Differs {
        /// Which setting.
        name: &'static str,
        /// The mesh's value.
        theirs: String,
        /// This node's value.
        ours: String,
    },
    /// The mesh has another cluster secret.
    #[error("the cluster secret is not the mesh's")]
    WrongSecret,
    /// The mesh has another cluster id.
    #[error("cluster_id is not the mesh's: all nodes must have the same")]
    WrongCluster,
    /// The port is in use, say.
    #[error("cannot listen on {address}")]
    Listen {
        /// Which address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// No client for requests to other nodes.
    #[error("could not make an HTTP client")]
    Client(#[source] reqwest::Error),
    /// A life failed.
    #[error(transparent)]
    Life(#[from] life::Error),
}

/// What a started node can be used for by the program around it.
#[derive(Clone)]
pub struct Started {
    /// Where HTTP answers.
    pub address: SocketAddr,
    /// Submits tasks.
    pub submits: Submits,
    /// Reads them.
    pub store: Store,
    /// Who owns what.
    pub directory: watch::Receiver<Arc<Directory>>,
    /// Waits for their end.
    pub waits: Waits,
}

/// Runs a node until it is drained: by `drain`, or over HTTP. Once HTTP answers, `started` is told.
///
/// # Errors
/// Those that a restart of the process with the same configuration may or may not cure; the text says which.
pub async fn run(
    mut config: Config,
    handlers: Handlers,
    metrics: Box<dyn Fn() -> String + Send + Sync>,
    drain: CancellationToken,
    started: Option<oneshot::Sender<Started>>,
) -> Result<(), Error> {
    config.validate()?;
    if config.gossip.port() == 0 {
        // Chosen before the node registers with it.
        config.gossip = free_udp(config.gossip).map_err(|source| Error::Listen {
            address: config.gossip,
            source,
        })?;
    }
    let store = Store::new(&config.store()).map_err(Error::Url)?;
    let listener = TcpListener::bind(config.listen)
        .await
        .map_err(|source| Error::Listen {
            address: config.listen,
            source,
        })?;
    let bound = listener.local_addr().map_err(|source| Error::Listen {
        address: config.listen,
        source,
    })?;
    if drain
        .run_until_cancelled(prepare(&store, &config))
        .await
        .transpose()?
        .is_none()
    {
        return Ok(());
    }

    let tasks = TaskTracker::new();
    let stop = CancellationToken::new();
    let _stop_at_end = stop.clone().drop_guard();
    let heartbeat = Arc::new(Heartbeat::default());
    tasks.spawn(heartbeat.clone().beat(stop.clone()));
    let (directory, directory_rx) = watch::channel(Arc::new(Directory::default()));
    let waits = Waits::new();
    let hints =
        Hints::start(directory_rx.clone(), &config.cluster_secret(), waits.clone()).map_err(Error::Client)?;
    let submits = Submits::start(store.clone(), hints.clone());
    let watching = waits.clone().run(store.clone());
    tasks.spawn({
        let stop = stop.clone();
        async move { stop.run_until_cancelled(watching).await }
    });
    tasks.spawn(keep_days(store.clone(), config.retention, stop.clone()));

    let life = http::Life::new();
    let (drain_asked, asked) = mpsc::channel(1);
    tasks.spawn(drain_when_asked(asked, drain.clone(), stop.clone()));
    let limits = http::Limits {
        connections: config.max_connections as usize,
        ..Default::default()
    };
    let api = Api {
        store: store.clone(),
        submits: submits.clone(),
        hints: hints.clone(),
        directory: directory_rx.clone(),
        token: config.token.clone(),
        life: life.clone(),
        drain: drain_asked,
        live: Box::new({
            let heartbeat = heartbeat.clone();
            move || heartbeat.age() < config.ttl * lease::WEDGED_TTLS
        }),
        metrics,
        limits: limits.clone(),
        name: config.name.clone(),
    };
    let serving = tasks.spawn(http::serve(listener, http::router(api), limits, stop.clone()));
    tracing::info!(name = %config.name, address = %bound, "HTTP answers");
    if let Some(started) = started {
        let node = Started {
            address: bound,
            submits,
            store: store.clone(),
            directory: directory_rx,
            waits,
        };
        started.send(node).ok();
    }

    let process = Process {
        address: config.advertised(bound),
        http: probe_client().map_err(Error::Client)?,
        handlers: Arc::new(handlers),
        config,
        store,
        hints,
        directory,
        life,
        drain,
        heartbeat,
    };
    let ended = lives(&process).await;
    stop.cancel();
    tasks.close();
    serving.await.ok();
    tasks.wait().await;
    ended
}

/// One life after the other.
async fn lives(process: &Process) -> Result<(), Error> {
    let mut before = None;
    loop {
        let (me, end) = life::live(process, before).await?;
        before = me;
        match end {
            End::Drained => return Ok(()),
            End::Fenced => tracing::warn!("fenced, starting a new life"),
            End::Failover => tracing::warn!("the server has another history, starting a new life"),
        }
    }
}

/// Waits for Postgres, brings the schema up, and agrees on the settings.
async fn prepare(store: &Store, config: &Config) -> Result<(), Error> {
    loop {
        match store.migrate().await {
            Ok(0) => break,
            Ok(applied) => {
                tracing::info!(applied, "brought the schema up to date");
                break;
            }
            Err(MigrateError::Store(error)) if !matches!(error, store::Error::Refused(_)) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "Postgres is not available yet"
                );
            }
            Err(error) => return Err(error.into()),
        }
        sleep(REST).await;
    }
    let mine = settings(config);
    let mesh = loop {
        match store.found_mesh(&mine).await {
            Ok(mesh) => break mesh,
            Err(error @ store::Error::Refused(_)) => return Err(Error::Settings(error)),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "Postgres is not available yet"
                );
                sleep(REST).await;
            }
        }
    };
    agree(&mesh, &mine)
}

fn settings(config: &Config) -> MeshSettings {
    let placement = config.placement();
    let check = |label: &str| hex(&Sha256::digest(config.cluster_secret().derive(label))[..16]);
    let cluster = format!("check of cluster {}", config.cluster_id);
    MeshSettings {
        slots: i32::from(ringmesh_ring::SLOTS),
        tokens: i32::try_from(placement.tokens).unwrap_or(i32::MAX),
        load_bound: placement.load_bound,
        ring_version: i32::try_from(placement.version).unwrap_or(i32::MAX),
        ttl_ms: i64::try_from(config.ttl.as_millis()).unwrap_or(i64::MAX),
        secret_check: check("check"),
        cluster_check: Some(check(&cluster)),
    }
}

fn agree(mesh: &MeshSettings, mine: &MeshSettings) -> Result<(), Error> {
    if mesh.secret_check != mine.secret_check {
        return Err(Error::WrongSecret);
    }
    // Nodes of two ids would share the slots, and never hear each other.
    if mesh.cluster_check != mine.cluster_check {
        return Err(Error::WrongCluster);
    }
    let bound = |bound: Option<f64>| bound.map_or_else(|| "none".to_owned(), |c| c.to_string());
    let compared = [
        ("slots", mesh.slots.to_string(), mine.slots.to_string()),
        ("tokens", mesh.tokens.to_string(), mine.tokens.to_string()),
        ("load_bound", bound(mesh.load_bound), bound(mine.load_bound)),
        (
            "ring_version",
            mesh.ring_version.to_string(),
            mine.ring_version.to_string(),
        ),
        ("ttl", format!("{}ms", mesh.ttl_ms), format!("{}ms", mine.ttl_ms)),
    ];
    for (name, theirs, ours) in compared {
        if theirs != ours {
            return Err(Error::Differs { name, theirs, ours });
        }
    }
    Ok(())
}

/// A drain asked for over HTTP is a drain.
async fn drain_when_asked(mut asked: mpsc::Receiver<()>, drain: CancellationToken, stop: CancellationToken) {
    if let Some(Some(())) = stop.run_until_cancelled(asked.recv()).await {
        drain.cancel();
    }
}

async fn keep_days(store: Store, retention: Duration, stop: CancellationToken) {
    let mut hours = interval(DAYS_EVERY);
    while stop.run_until_cancelled(hours.tick()).await.is_some() {
        match store.keep_days(retention).await {
            Ok(0) => {}
            Ok(dropped) => tracing::info!(dropped, "dropped days of finished tasks"),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "could not keep the days in order"
            ),
        }
    }
}

fn free_udp(address: SocketAddr) -> std::io::Result<SocketAddr> {
    std::net::UdpSocket::bind(address)?.local_addr()
}

/// A client without kept connections: a question whether a peer lives must not fail on an old one.
fn probe_client() -> Result<reqwest::Client, reqwest::Error> {
    tls::http_client().pool_max_idle_per_host(0).no_proxy().build()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_with_other_settings_is_told_which() {
        let mine = settings(&Config::default());
        assert!(agree(&mine, &mine).is_ok());
        let other = MeshSettings {
            load_bound: None,
            ..mine.clone()
        };
        let error = agree(&other, &mine).unwrap_err().to_string();
        assert_eq!(
            error,
            "this mesh runs with load_bound = none, this node with 1.25: all nodes must have the same"
        );
        let wrong = MeshSettings {
            secret_check: String::new(),
            ..mine.clone()
        };
        assert!(matches!(agree(&wrong, &mine), Err(Error::WrongSecret)));
        let elsewhere = settings(&Config {
            cluster_id: "another".to_owned(),
            ..Config::default()
        });
        assert!(matches!(agree(&elsewhere, &mine), Err(Error::WrongCluster)));
    }
}
