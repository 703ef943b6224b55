//! Some node processes on this machine that form a mesh.
//!
//! Each is `ringmesh node`, told by environment variables what it is:
//!
//! | variable | value |
//! |---|---|
//! | `RINGMESH_NAME` | `n1`, `n2`, … |
//! | `RINGMESH_DATABASE_URL` | that of all |
//! | `RINGMESH_LISTEN` | `127.0.0.1:PORT`, for HTTP |
//! | `RINGMESH_GOSSIP` | `127.0.0.1:PORT`, for UDP |
//! | `RINGMESH_SEEDS` | the gossip addresses of all nodes at the start, with commas |
//! | `RINGMESH_CLUSTER_SECRET` | one for the mesh, made anew for each unless it is given |
//!
//! The nodes are in process groups of their own, so that a Ctrl-C in the terminal reaches only this process, which stops
//! them in order. They end with this process, even when it is killed (Linux), or when the [`Mesh`] is dropped.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use futures::future::{join_all, try_join_all};

use super::process::{self, Process, Signal, Tied, wait_until};
use super::{Doing, Error, Result, free_port, log_tail, random_hex, tcp_is_free, udp_is_free};

/// Between a node's HTTP port and its gossip port, when they are counted from a base.
const GOSSIP_OFFSET: u16 = 1000;
/// How often a starting node is asked whether it is ready.
const ASK: Duration = Duration::from_millis(25);

/// How a mesh is started.
#[derive(Debug, Clone)]
pub struct Options {
    /// Where the database is.
    pub database_url: String,
    /// How many nodes, at least 1.
    pub nodes: usize,
    /// The HTTP port of the first node; the next ones follow, gossip is 1000 above. 0: any free ports, for tests.
    pub base_port: u16,
    /// The program `ringmesh`.
    pub binary: PathBuf,
    /// Arguments after `node`.
    pub extra_args: Vec<String>,
    /// More environment variables; they win over those of this module.
    pub extra_env: Vec<(String, String)>,
    /// The folder for `NAME.log`, made if missing. An earlier log is continued.
    pub log_dir: PathBuf,
    /// The secret under which the nodes gossip. None: a new one.
    pub cluster_secret: Option<String>,
    /// How long the nodes may take until all are ready.
    pub ready_within: Duration,
}

impl Options {
    /// Five nodes of this same program from port 7101 on, logs in `.ringmesh/logs`, ready within 60 s.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the path of this program cannot be read.
    pub fn new(database_url: impl Into<String>) -> Result<Self> {
        Ok(Self {
            database_url: database_url.into(),
            nodes: 5,
            base_port: 7101,
            binary: std::env::current_exe().doing(|| "find the path of this program".into())?,
            extra_args: Vec::new(),
            extra_env: Vec::new(),
            log_dir: ".ringmesh/logs".into(),
            cluster_secret: None,
            ready_within: Duration::from_secs(60),
        })
    }

    /// The HTTP and gossip ports of the node with this number (from 0), when they are counted from a base.
    fn fixed_ports(&self, number: usize) -> Result<(u16, u16)> {
        let http = u16::try_from(number)
            .ok()
            .and_then(|number| self.base_port.checked_add(number));
        let ports = http.and_then(|http| Some((http, http.checked_add(GOSSIP_OFFSET)?)));
        ports.ok_or_else(|| {
            let (base, nodes) = (self.base_port, number + 1);
            Error::BadOption(format!(
                "{nodes} nodes from port {base} on need ports above 65535"
            ))
        })
    }

    /// Ports for the node with this number that nobody uses now.
    fn ports(&self, number: usize) -> Result<(u16, u16)> {
        if self.base_port == 0 {
            return Ok((free_port()?, free_port()?));
        }
        let (http, gossip) = self.fixed_ports(number)?;
        if !tcp_is_free(http) {
            return Err(Error::PortTaken {
                port: http,
                what: format!("HTTP of n{}", number + 1),
            });
        }
        if !udp_is_free(gossip) {
            return Err(Error::PortTaken {
                port: gossip,
                what: format!("gossip of n{}", number + 1),
            });
        }
        Ok((http, gossip))
    }

    /// Checks what can be checked before anything is started.
    ///
    /// # Errors
    ///
    /// [`Error::BadOption`], or [`Error::PortTaken`] with the first port that is in use.
    pub fn check(&self) -> Result<()> {
        if self.nodes == 0 {
            return Err(Error::BadOption("a mesh has at least one node".into()));
        }
        if self.base_port != 0 {
            self.fixed_ports(self.nodes - 1)?;
            for number in 0..self.nodes {
                self.ports(number)?;
            }
        }
        Ok(())
    }
}

/// A mesh of node processes. Dropping it kills them; [`Mesh::stop`] lets them drain.
#[derive(Debug)]
pub struct Mesh {
    options: Options,
    secret: String,
    seeds: String,
    http: reqwest::Client,
    nodes: Vec<Node>,
}

impl Mesh {
    /// Starts all nodes at once and returns when each answers 200 to `GET /health/ready`.
    ///
    /// # Errors
    ///
    /// [`Error::PortTaken`], [`Error::Ended`] with the last lines of the node's log, [`Error::NotReady`]. No node runs
    /// after an error.
    pub async fn start(options: Options) -> Result<Self> {
        options.check()?;
        std::fs::create_dir_all(&options.log_dir)
            .doing(|| format!("create {}", options.log_dir.display()))?;
        let secret = match &options.cluster_secret {
            Some(secret) => secret.clone(),
            None => random_hex::<32>()?,
        };
        let http = crate::tls::http_client()
            .no_proxy()
            .timeout(Duration::from_secs(2))
            .build();
        let http = http
            .map_err(std::io::Error::other)
            .doing(|| "make an HTTP client".into())?;
        let ports = (0..options.nodes)
            .map(|number| options.ports(number))
            .collect::<Result<Vec<_>>>()?;
        let seeds: Vec<String> = ports
            .iter()
            .map(|(_, gossip)| local(*gossip).to_string())
            .collect();
        let mut mesh = Self {
            options,
            secret,
            seeds: seeds.join(","),
            http,
            nodes: Vec::new(),
        };
        mesh.nodes = ports
            .iter()
            .enumerate()
            .map(|(number, ports)| mesh.node_at(number, *ports))
            .collect();
        for node in &mut mesh.nodes {
            node.spawn().await?;
        }
        let within = mesh.options.ready_within;
        try_join_all(mesh.nodes.iter_mut().map(|node| node.wait_ready(within))).await?;
        Ok(mesh)
    }

    fn node_at(&self, number: usize, (http_port, gossip_port): (u16, u16)) -> Node {
        let name = format!("n{}", number + 1);
        let (listen, gossip) = (local(http_port), local(gossip_port));
        let mut environment: Vec<(String, String)> = [
            ("RINGMESH_NAME", name.clone()),
            ("RINGMESH_DATABASE_URL", self.options.database_url.clone()),
            ("RINGMESH_LISTEN", listen.to_string()),
            ("RINGMESH_GOSSIP", gossip.to_string()),
            ("RINGMESH_SEEDS", self.seeds.clone()),
            ("RINGMESH_CLUSTER_SECRET", self.secret.clone()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        environment.extend(self.options.extra_env.iter().cloned());
        Node {
            url: format!("http://{listen}"),
            gossip,
            log: self.options.log_dir.join(format!("{name}.log")),
            log_start: 0,
            binary: self.options.binary.clone(),
            arguments: self.options.extra_args.clone(),
            environment,
            ready_within: self.options.ready_within,
            http: self.http.clone(),
            process: None,
            name,
        }
    }

    /// The nodes, `n1` first; also those that do not run now.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// As [`Self::nodes`], to change them, several at a time if wanted.
    pub fn nodes_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }

    /// The node of this name.
    pub fn node_mut(&mut self, name: &str) -> Option<&mut Node> {
        self.nodes.iter_mut().find(|node| node.name == name)
    }

    /// The nodes' database.
    pub fn database_url(&self) -> &str {
        &self.options.database_url
    }

    /// The secret under which the nodes gossip.
    pub fn cluster_secret(&self) -> &str {
        &self.secret
    }

    /// The gossip addresses that every node got as seeds, with commas.
    pub fn seeds(&self) -> &str {
        &self.seeds
    }

    /// Starts one more node, with the next name, and returns when it is ready. Its seeds are those of the first nodes.
    ///
    /// # Errors
    ///
    /// As [`Self::start`]; the mesh is as before then.
    pub async fn add(&mut self) -> Result<&mut Node> {
        let number = self.nodes.len();
        let mut node = self.node_at(number, self.options.ports(number)?);
        node.start_again().await?;
        self.nodes.push(node);
        Ok(&mut self.nodes[number])
    }

    /// Sends SIGTERM to all nodes at once, so that they drain, and waits for their ends. What still runs after `within` is
    /// killed.
    ///
    /// # Errors
    ///
    /// [`Error::DidNotStop`] for the first node that had to be killed. No node runs in any case.
    pub async fn stop(&mut self, within: Duration) -> Result<()> {
        let stopped = join_all(self.nodes.iter_mut().map(|node| node.stop(within))).await;
        stopped.into_iter().collect()
    }
}

/// One node process; it may be running, paused or ended.
#[derive(Debug)]
pub struct Node {
    name: String,
    url: String,
    gossip: SocketAddr,
    log: PathBuf,
    /// Where the present run begins in the log, in bytes.
    log_start: u64,
    binary: PathBuf,
    arguments: Vec<String>,
    environment: Vec<(String, String)>,
    ready_within: Duration,
    http: reqwest::Client,
    process: Option<Tied>,
}

impl Node {
    /// `n1`, `n2`, …
    pub fn name(&self) -> &str {
        &self.name
    }

    /// `http://127.0.0.1:PORT`; the same over [`Self::start_again`].
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Where it gossips (UDP).
    pub fn gossip(&self) -> SocketAddr {
        self.gossip
    }

    /// The process id of the present or last run; None before the first and after [`Self::kill`] and [`Self::stop`].
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Tied::pid)
    }

    /// The log file, over all its runs.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of the present run's log.
    pub fn log_tail(&self) -> String {
        log_tail(&self.log, self.log_start)
    }

    /// Its exit status, when it has ended by itself or was killed from outside.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().and_then(Tied::try_wait)
    }

    /// Sets an environment variable for the next [`Self::start_again`].
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.environment.push((name.into(), value.into()));
    }

    /// Kills it (SIGKILL) and waits for its end.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub async fn kill(&mut self) -> Result<()> {
        let mut process = self.process.take().ok_or_else(|| self.not_running())?;
        process
            .signal(Signal::Kill)
            .doing(|| format!("kill {}", self.name))?;
        process.wait(Duration::from_secs(10)).await;
        Ok(())
    }

    /// Asks it to drain and end (SIGTERM) and waits for its end; also when it is paused. A node that does not run is left
    /// so; that is no error.
    ///
    /// # Errors
    ///
    /// [`Error::DidNotStop`] when it still ran after `within` and was killed.
    pub async fn stop(&mut self, within: Duration) -> Result<()> {
        let Some(mut process) = self.process.take() else {
            return Ok(());
        };
        process
            .signal(Signal::Terminate)
            .doing(|| format!("stop {}", self.name))?;
        process
            .signal(Signal::Continue)
            .doing(|| format!("stop {}", self.name))?;
        if process.wait(within).await.is_some() {
            return Ok(());
        }
        drop(process);
        let (name, log, tail) = (self.name.clone(), self.log.clone(), self.log_tail());
        Err(Error::DidNotStop {
            name,
            within,
            log,
            tail,
        })
    }

    /// Asks it to drain and end (SIGTERM) and returns at once; [`Self::ended`] tells how it ended.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn terminate(&mut self) -> Result<()> {
        let not_running = self.not_running();
        let process = self.process.as_mut().ok_or(not_running)?;
        process
            .signal(Signal::Terminate)
            .doing(|| format!("stop {}", self.name))
    }

    /// Stops it in its tracks (SIGSTOP); returns when it stands still.
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub async fn pause(&mut self) -> Result<()> {
        let not_running = self.not_running();
        let process = self.process.as_mut().ok_or(not_running)?;
        let seen = process::process(process.pid());
        process
            .signal(Signal::Stop)
            .doing(|| format!("pause {}", self.name))?;
        wait_until(Duration::from_secs(2), || {
            seen.as_ref().is_none_or(Process::stands_still)
        })
        .await;
        Ok(())
    }

    /// Lets it go on after [`Self::pause`].
    ///
    /// # Errors
    ///
    /// [`Error::NotRunning`].
    pub fn resume(&mut self) -> Result<()> {
        let not_running = self.not_running();
        let process = self.process.as_mut().ok_or(not_running)?;
        process
            .signal(Signal::Continue)
            .doing(|| format!("resume {}", self.name))
    }

    /// Starts it again under the same name and addresses, and returns when it is ready. One that still runs is killed first.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] or [`Error::NotReady`] with the last lines of its log; it does not run then.
    pub async fn start_again(&mut self) -> Result<()> {
        self.spawn().await?;
        let ready = self.wait_ready(self.ready_within).await;
        if ready.is_err() {
            self.process = None;
        }
        ready
    }

    /// As [`Self::start_again`], without waiting until it is ready.
    ///
    /// # Errors
    ///
    /// [`Error::Io`]; it does not run then.
    pub async fn spawn(&mut self) -> Result<()> {
        self.process = None;
        let log = File::options().create(true).append(true).open(&self.log);
        let log = log.doing(|| format!("open {}", self.log.display()))?;
        self.log_start = log.metadata().map_or(0, |found| found.len());
        let errors = log.try_clone().doing(|| format!("open {}", self.log.display()))?;
        let mut command = Command::new(&self.binary);
        command.arg("node").args(&self.arguments);
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log).stderr(errors);
        let process = Tied::spawn(command, Signal::Kill).await;
        self.process = Some(process.doing(|| format!("start {}", self.binary.display()))?);
        Ok(())
    }

    /// Waits until it answers 200 to `GET /health/ready`.
    ///
    /// # Errors
    ///
    /// [`Error::Ended`] as soon as its process ends, [`Error::NotReady`] after `within`; it is left as it is.
    pub async fn wait_ready(&mut self, within: Duration) -> Result<()> {
        let deadline = Instant::now() + within;
        let ready = format!("{}/health/ready", self.url);
        loop {
            let not_running = self.not_running();
            if let Some(status) = self.process.as_mut().ok_or(not_running)?.try_wait() {
                let (name, log, tail) = (self.name.clone(), self.log.clone(), self.log_tail());
                return Err(Error::Ended {
                    name,
                    status,
                    log,
                    tail,
                });
            }
            let answer = self.http.get(&ready).send().await;
            if answer.is_ok_and(|answer| answer.status() == reqwest::StatusCode::OK) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let (name, log, tail) = (self.name.clone(), self.log.clone(), self.log_tail());
                return Err(Error::NotReady {
                    name,
                    within,
                    log,
                    tail,
                });
            }
            tokio::time::sleep(ASK).await;
        }
    }

    fn not_running(&self) -> Error {
        Error::NotRunning {
            name: self.name.clone(),
        }
    }
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

#[cfg(test)]
#[path = "mesh_tests.rs"]
pub(crate) mod tests;
