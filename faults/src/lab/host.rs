//! A host: a network namespace, and the node that runs in it.

use std::collections::BTreeMap;
use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail};
use ringmesh::dev::process::{self, Process, Signal, Tied, wait_until};

use crate::workload::points::POINTS;

use super::clock::{Clock, Offset};
use super::firewall::Firewall;
use super::limits::{self, Group};
use super::proxy::Proxy;

/// The port of every node's HTTP.
pub(super) const HTTP: u16 = 7101;
/// The port of every node's gossip, UDP.
pub(super) const GOSSIP: u16 = 7201;
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(20);

/// One host. Its node runs, stands still or has ended; dropping the value kills it.
#[derive(Debug)]
pub struct Host {
    pub(super) name: String,
    pub(super) number: u8,
    pub(super) space: String,
    pub(super) data: Ipv4Addr,
    pub(super) control: Ipv4Addr,
    pub(super) log: PathBuf,
    pub(super) log_start: u64,
    pub(super) points: PathBuf,
    pub(super) binary: PathBuf,
    pub(super) environment: BTreeMap<String, String>,
    pub(super) ready_within: Duration,
    pub(super) client: reqwest::Client,
    pub(super) process: Option<Tied>,
    pub(super) stands_still: bool,
    pub(super) drains: bool,
    pub(super) starts: u64,
    pub(super) proxy: Proxy,
    pub(super) firewall: Firewall,
    pub(super) group: Group,
    pub(super) clock: Option<Clock>,
}

impl Host {
    /// `n1`, `n2`, …
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its HTTP, over the control network.
    pub fn url(&self) -> String {
        format!("http://{}", self.http())
    }

    /// Its address on the network with faults.
    pub fn address(&self) -> Ipv4Addr {
        self.data
    }

    /// Its HTTP, over the control network, as an address.
    pub fn http(&self) -> SocketAddr {
        (self.control, HTTP).into()
    }

    /// Where it gossips, UDP.
    pub fn gossip(&self) -> SocketAddr {
        (self.data, GOSSIP).into()
    }

    /// Its namespace, for `ip netns exec`.
    pub fn space(&self) -> &str {
        &self.space
    }

    /// The process of its node; `None`: it was killed or stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.as_ref().map(Tied::pid)
    }

    /// Whether its node runs and does not stand still.
    pub fn goes_on(&mut self) -> bool {
        !self.stands_still
            && self
                .process
                .as_mut()
                .is_some_and(|node| node.try_wait().is_none())
    }

    /// Whether its node was asked to drain and has not been waited for.
    pub fn is_draining(&self) -> bool {
        self.drains && self.process.is_some()
    }

    /// The program that its node is.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// How its node ended, unless it runs or was ended by this value.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.process.as_mut().and_then(Tied::try_wait)
    }

    /// How often its node was started.
    pub fn starts(&self) -> u64 {
        self.starts
    }

    /// What its node has said, over all its starts.
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// The last lines of what its present node has said, each as far as it can be read.
    pub fn log_tail(&self) -> String {
        const WIDTH: usize = 300;
        let text = std::fs::read(&self.log).unwrap_or_default();
        let start = usize::try_from(self.log_start).unwrap_or(0).min(text.len());
        let text = String::from_utf8_lossy(&text[start..]).into_owned();
        let lines: Vec<String> = text
            .lines()
            .map(|line| line.chars().take(WIDTH).collect())
            .collect();
        lines[lines.len().saturating_sub(25)..].join("\n")
    }

    /// What stands between its node and Postgres.
    pub fn proxy(&self) -> &Proxy {
        &self.proxy
    }

    /// Sets a variable for the next start of its node.
    pub fn set_env(&mut self, name: &str, value: &str) {
        self.environment.insert(name.into(), value.into());
    }

    /// A variable of its node.
    pub fn env(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str)
    }

    /// Unsets a variable for the next start of its node; gives what it was.
    pub fn unset_env(&mut self, name: &str) -> Option<String> {
        self.environment.remove(name)
    }

    /// Tells the fail points of its node what to do: a line `NAME=ACTION` for each, the others are off. A node that runs follows it
    /// within a tenth of a second, and notes that it does.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn arm(&self, points: &str) -> Result<()> {
        let whole = self.points.with_extension("new");
        std::fs::write(&whole, points)?;
        std::fs::rename(&whole, &self.points)?;
        Ok(())
    }

    /// Takes another program for its next start; gives that of now.
    pub fn set_binary(&mut self, binary: PathBuf) -> PathBuf {
        std::mem::replace(&mut self.binary, binary)
    }

    /// Kills its node (SIGKILL) and waits for its end. One that has ended is left so.
    ///
    /// # Errors
    /// It did not end.
    pub async fn kill(&mut self) -> Result<()> {
        self.stands_still = false;
        let Some(mut node) = self.process.take() else {
            return Ok(());
        };
        node.signal(Signal::Kill)?;
        let ended = node.wait(Duration::from_secs(10)).await;
        ended.map(drop).context("a killed node did not end within 10 s")
    }

    /// Asks its node to drain and to end (SIGTERM), and returns at once.
    ///
    /// # Errors
    /// The signal was refused.
    pub fn terminate(&mut self) -> Result<()> {
        self.drains = true;
        match self.process.as_mut() {
            Some(node) => Ok(node.signal(Signal::Terminate)?),
            None => Ok(()),
        }
    }

    /// Waits until its node has ended by itself; `None`: it has not.
    pub async fn wait_end(&mut self, within: Duration) -> Option<ExitStatus> {
        match self.process.as_mut() {
            Some(node) => node.wait(within).await,
            None => None,
        }
    }

    /// Stops its node in its tracks (SIGSTOP); returns when all its threads stand still.
    ///
    /// # Errors
    /// No node runs, or it went on.
    pub async fn pause(&mut self) -> Result<()> {
        let Some(node) = self.process.as_mut() else {
            bail!("{} does not run", self.name);
        };
        let seen = process::process(node.pid());
        node.signal(Signal::Stop)?;
        self.stands_still = true;
        let still = || seen.as_ref().is_none_or(Process::stands_still);
        if !wait_until(Duration::from_secs(5), still).await {
            bail!("{} did not stand still within 5 s", self.name);
        }
        Ok(())
    }

    /// Lets its node go on after [`Self::pause`].
    ///
    /// # Errors
    /// The signal was refused.
    pub fn resume(&mut self) -> Result<()> {
        self.stands_still = false;
        match self.process.as_mut() {
            Some(node) => Ok(node.signal(Signal::Continue)?),
            None => Ok(()),
        }
    }

    /// Starts its node again under the same name and addresses, and returns when it is ready. One that runs is killed.
    ///
    /// # Errors
    /// It ended, or was not ready in time, with the end of its log.
    pub async fn start_again(&mut self) -> Result<()> {
        self.spawn().await?;
        self.wait_ready(self.ready_within).await
    }

    /// As [`Self::start_again`], without waiting until it is ready.
    ///
    /// # Errors
    /// It could not be started.
    pub async fn spawn(&mut self) -> Result<()> {
        self.kill().await?;
        self.log_start = std::fs::metadata(&self.log).map_or(0, |log| log.len());
        let node = self.process(&self.log, &[]).await?;
        self.group.join(node.pid())?;
        self.process = Some(node);
        self.drains = false;
        self.starts += 1;
        Ok(())
    }

    /// Starts another process as this host's node is, with some variables changed. It ends when it is dropped.
    ///
    /// # Errors
    /// It could not be started.
    pub async fn another(&self, changed: &[(&str, String)]) -> Result<Tied> {
        self.process(&self.log.with_extension("another.log"), changed)
            .await
    }

    async fn process(&self, log: &Path, changed: &[(&str, String)]) -> Result<Tied> {
        let log = File::options().create(true).append(true).open(log)?;
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.space]);
        // What shifts clocks must not shift those of `ip`.
        command.arg("env");
        for (name, value) in self.clock.iter().flat_map(Clock::environment) {
            command.arg(format!("{name}={value}"));
        }
        command.arg(&self.binary).arg("node");
        // Nodes refuse variables that they do not know.
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("RINGMESH_")) {
            command.env_remove(name);
        }
        command.env(POINTS, &self.points).envs(&self.environment);
        command.envs(changed.iter().map(|(name, value)| (name, value)));
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        let node = Tied::spawn(command, Signal::Kill).await;
        node.with_context(|| format!("start {}", self.name))
    }

    /// Waits until its node answers 200 to `GET /health/ready`.
    ///
    /// # Errors
    /// It ended, or did not become ready, with the end of its log.
    pub async fn wait_ready(&mut self, within: Duration) -> Result<()> {
        let ready = format!("{}/health/ready", self.url());
        let deadline = Instant::now() + within;
        loop {
            let Some(node) = self.process.as_mut() else {
                bail!("{} does not run", self.name);
            };
            if let Some(status) = node.try_wait() {
                bail!("{} ended ({status}):\n{}", self.name, self.log_tail());
            }
            let answer = self.client.get(&ready).send().await;
            if answer.is_ok_and(|answer| answer.status() == reqwest::StatusCode::OK) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                let tail = self.log_tail();
                bail!("{} was not ready within {within:?}:\n{tail}", self.name);
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    /// Shifts its wall clock, from the lab's option `clocks` on.
    ///
    /// # Errors
    /// The lab was started without that option.
    pub fn shift_clock(&self, offset: Offset) -> Result<()> {
        let clock = self.clock.as_ref();
        clock.context("the lab has no shifted clocks")?.set(offset)
    }

    /// Grants its node this share of one processor; `None`: no limit.
    ///
    /// # Errors
    /// This machine has no control groups that can be written.
    pub fn limit_processor(&self, share: Option<f64>) -> Result<()> {
        self.group.processor(share, self.pid())
    }

    /// Lets its node have so many bytes of memory; `None`: no limit.
    ///
    /// # Errors
    /// As [`Self::limit_processor`], or it has more already.
    pub fn limit_memory(&self, bytes: Option<u64>) -> Result<()> {
        self.group.memory(bytes, self.pid())
    }

    /// Lets its node have so many file descriptors; those it has stay open.
    ///
    /// # Errors
    /// `prlimit` failed, or no node runs.
    pub async fn limit_descriptors(&self, at_most: u64) -> Result<()> {
        let pid = self
            .pid()
            .with_context(|| format!("{} does not run", self.name))?;
        limits::descriptors(pid, at_most).await
    }
}
