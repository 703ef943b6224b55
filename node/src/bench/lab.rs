//! The server, and for each measurement a database and a mesh of its own.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tokio::signal::unix::{SignalKind, signal};

use super::{BenchArgs, Doing, Error, Result};
use crate::dev::postgres::Durability;
use crate::dev::{Mesh, Postgres, mesh, postgres};
use crate::store::bench::{Facts, Server};
use crate::store::{Options, Store};

/// How long nodes may drain at the end of a measurement.
const STOP: Duration = Duration::from_secs(30);
/// How often a drain is looked at.
const LOOK: Duration = Duration::from_millis(200);
/// A drain in which nothing ends for so long has failed.
const STANDSTILL: Duration = Duration::from_secs(60);

/// Settings of a server of our own: what a small machine is set to, with nothing of its durability taken away.
const SETTINGS: [(&str, &str); 3] = [
    ("shared_buffers", "512MB"),
    ("max_wal_size", "4GB"),
    ("max_connections", "500"),
];

/// Where measurements are made.
pub(super) struct Lab {
    own: Option<Postgres>,
    server: Server,
    url: reqwest::Url,
    facts: Facts,
    logs: PathBuf,
}

/// The database of one measurement.
pub(super) struct Database {
    pub(super) store: Store,
    url: String,
    logs: PathBuf,
}

impl Lab {
    /// Starts a server unless one is given.
    pub(super) async fn open(args: &BenchArgs) -> Result<Self> {
        let data = std::path::absolute(&args.data).map_err(|source| Error::Io {
            doing: "find the current folder".into(),
            source,
        })?;
        let own = match &args.database_url {
            Some(_) => None,
            None => Some(start(data.join("postgres")).await?),
        };
        let url = match (&args.database_url, &own) {
            (Some(url), _) => url.clone(),
            (None, Some(own)) => own.url_of("postgres"),
            (None, None) => String::new(),
        };
        let server = Server::new(&url).doing("read the database URL")?;
        let facts = server.facts().await.doing("read the server's settings")?;
        let url = reqwest::Url::parse(&url)
            .map_err(|error| Error::BadOption(format!("the database URL is not a URL: {error}")))?;
        Ok(Self {
            own,
            server,
            url,
            facts,
            logs: data.join("logs"),
        })
    }

    /// What the server says of itself.
    pub(super) fn facts(&self) -> Facts {
        self.facts.clone()
    }

    /// Measures in a new database, which is dropped in any case.
    pub(super) async fn measure<T>(&self, work: impl AsyncFnOnce(&Database) -> Result<T>) -> Result<T> {
        let mut bytes = [0; 6];
        getrandom::fill(&mut bytes).map_err(|error| Error::Io {
            doing: "read random bytes".into(),
            source: std::io::Error::other(error),
        })?;
        let random: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let name = format!("ringmesh_bench_{random}");
        self.server
            .create_database(&name)
            .await
            .doing("create a database")?;
        let measured = tokio::select! {
            measured = self.work_in(&name, work) => measured,
            signalled = interrupted() => Err(signalled),
        };
        let dropped = self.server.drop_database(&name).await.doing("drop a database");
        measured.and_then(|figures| dropped.map(|()| figures))
    }

    async fn work_in<T>(&self, name: &str, work: impl AsyncFnOnce(&Database) -> Result<T>) -> Result<T> {
        let mut url = self.url.clone();
        url.set_path(name);
        let store = Store::new(&Options {
            url: url.as_str().into(),
            lease_url: None,
            pooler: crate::store::Pooler::Auto,
            connections: 4,
            hot_connections: 4,
            ttl: Duration::from_secs(60),
            application: "ringmesh bench".into(),
        })
        .doing("read the database URL")?;
        store.migrate().await?;
        let database = Database {
            store,
            url: url.into(),
            logs: self.logs.clone(),
        };
        let measured = work(&database).await;
        database.store.close().await;
        measured
    }

    /// Stops the server if it is our own.
    pub(super) async fn close(&mut self) -> Result<()> {
        if let Some(own) = &mut self.own {
            own.stop().await?;
        }
        Ok(())
    }
}

async fn start(dir: PathBuf) -> Result<Postgres> {
    let settings = SETTINGS.map(|(name, value)| (name.into(), value.into()));
    let bar = spinner("starting Postgres");
    let own = Postgres::start(postgres::Options {
        dir,
        durability: Durability::Real,
        settings: settings.into(),
        ..postgres::Options::default()
    })
    .await?;
    bar.finish_and_clear();
    Ok(own)
}

async fn interrupted() -> Error {
    let mut signals = Vec::new();
    for kind in [SignalKind::interrupt(), SignalKind::terminate()] {
        match signal(kind) {
            Ok(signal) => signals.push(signal),
            Err(source) => {
                return Error::Io {
                    doing: "listen for signals".into(),
                    source,
                };
            }
        }
    }
    futures::future::select_all(signals.iter_mut().map(|signal| Box::pin(signal.recv()))).await;
    Error::Interrupted
}

impl Database {
    /// Starts nodes on this database; they are ready on return.
    pub(super) async fn mesh(&self, nodes: usize) -> Result<Mesh> {
        let bar = spinner(&format!("starting {nodes} {}", plural(nodes, "node")));
        let mesh = Mesh::start(mesh::Options {
            nodes,
            base_port: 0,
            log_dir: self.logs.clone(),
            ..mesh::Options::new(&self.url)?
        })
        .await?;
        bar.finish_and_clear();
        Ok(mesh)
    }

    /// Waits until no task is open. Fails when nothing ends any more.
    pub(super) async fn wait_drained(&self) -> Result<()> {
        let mut size = -1;
        let mut moved = Instant::now();
        while self.store.has_open().await.doing("look for open tasks")? {
            let now = self
                .store
                .archived_bytes()
                .await
                .doing("read the archive's size")?;
            if now != size {
                (size, moved) = (now, Instant::now());
            } else if moved.elapsed() > STANDSTILL {
                return Err(Error::TooLong {
                    what: "tasks are open and none ended".into(),
                    within: STANDSTILL,
                });
            }
            tokio::time::sleep(LOOK).await;
        }
        Ok(())
    }
}

/// Lets the nodes drain and end.
pub(super) async fn stop(mut mesh: Mesh) -> Result<()> {
    let bar = spinner("stopping the nodes");
    mesh.stop(STOP).await?;
    bar.finish_and_clear();
    Ok(())
}

/// The addresses of the nodes, for a client.
pub(super) fn addresses(mesh: &Mesh) -> Vec<String> {
    let urls = mesh.nodes().iter().map(|node| node.url());
    urls.map(|url| url.trim_start_matches("http://").to_owned())
        .collect()
}

/// Shows that something of unknown length goes on; gone when dropped.
pub(super) fn spinner(what: &str) -> ProgressBar {
    let bar = ProgressBar::new_spinner().with_message(what.to_owned());
    bar.enable_steady_tick(Duration::from_millis(120));
    bar
}

/// Shows how much of a known length is done.
pub(super) fn progress(what: &str, whole: u64) -> ProgressBar {
    let bar = ProgressBar::new(whole).with_message(what.to_owned());
    match ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// `1 node`, `5 nodes`: the word alone.
pub(super) fn plural(count: usize, word: &str) -> String {
    if count == 1 {
        word.into()
    } else {
        format!("{word}s")
    }
}
