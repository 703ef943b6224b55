//! Too little of what a process needs.

use std::process::{Command, Stdio};

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use rand::rngs::StdRng;
use ringmesh::dev::process::{Signal, Tied};

use super::process::{Share, start_again};
use super::{Begun, Fault, about, one_of};
use crate::lab::Lab;

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Quota),
        Box::<Busy>::default(),
        Box::<NoMemory>::default(),
        Box::<NoDescriptors>::default(),
    ]
}

/// N4: some nodes get 5 % of one processor.
///
/// Expected: for as long as renewals succeed no slot moves; a node that is too slow for that is replaced, and comes back.
struct Quota;

#[async_trait]
impl Fault for Quota {
    fn id(&self) -> &'static str {
        "N4"
    }

    fn name(&self) -> &'static str {
        "cpu-quota"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let share = one_of(rng, &[Share::One, Share::Minority, Share::All]);
        let hit = share.draw(rng, lab.nodes().len());
        let begun = about(lab, &hit, "5 % of a processor").await;
        for node in hit {
            lab.nodes()[node].limit_processor(Some(0.05))?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for host in lab.nodes() {
            host.limit_processor(None)?;
        }
        Ok(())
    }
}

/// N4: other processes keep all processors busy, two for each.
///
/// Expected: no slot moves while renewals succeed; the lease's own thread is what they depend on.
#[derive(Default)]
struct Busy {
    loops: Vec<Tied>,
}

#[async_trait]
impl Fault for Busy {
    fn id(&self) -> &'static str {
        "N4"
    }

    fn name(&self) -> &'static str {
        "cpu-busy"
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        let cores = std::thread::available_parallelism()?.get();
        for _ in 0..cores * 2 {
            let mut command = Command::new("sh");
            command.args(["-c", "while :; do :; done"]);
            command
                .stdin(Stdio::null())
                .stdout(Stdio::null())
                .stderr(Stdio::null());
            self.loops.push(Tied::spawn(command, Signal::Kill).await?);
        }
        Ok(about(lab, &[], format!("{} busy processes", self.loops.len())).await)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        self.loops.clear();
        Ok(())
    }
}

/// N5: a node may have little more memory than it has; the kernel kills it as soon as it needs more. Healing starts it
/// again, with memory.
///
/// Expected: as a kill.
#[derive(Default)]
struct NoMemory {
    hit: Vec<usize>,
}

#[async_trait]
impl Fault for NoMemory {
    fn id(&self) -> &'static str {
        "N5"
    }

    fn name(&self) -> &'static str {
        "no-memory"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        self.hit = Share::One.draw(rng, lab.nodes().len());
        let begun = about(lab, &self.hit, "").await;
        for node in &self.hit {
            // What a process had before it joined its group does not count.
            lab.nodes()[*node].limit_memory(Some(1 << 20))?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let hit = std::mem::take(&mut self.hit);
        for node in &hit {
            lab.nodes()[*node].limit_memory(None)?;
        }
        start_again(lab, &hit).await
    }
}

/// N5: a node may open no more than 64 files and connections; what it has open stays.
///
/// Expected: requests that need a connection are refused or wait; its lease, its slots and its runs go on.
#[derive(Default)]
struct NoDescriptors {
    hit: Vec<(usize, u64)>,
}

#[async_trait]
impl Fault for NoDescriptors {
    fn id(&self) -> &'static str {
        "N5"
    }

    fn name(&self) -> &'static str {
        "no-descriptors"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let node = Share::One.draw(rng, lab.nodes().len())[0];
        let begun = about(lab, &[node], "").await;
        let host = &lab.nodes()[node];
        let pid = host
            .pid()
            .with_context(|| format!("{} does not run", host.name()))?;
        let limits = std::fs::read_to_string(format!("/proc/{pid}/limits"))?;
        let files = limits
            .lines()
            .find_map(|line| line.strip_prefix("Max open files"));
        let before = files
            .and_then(|line| line.split_whitespace().next()?.parse().ok())
            .context("the limit of files cannot be read")?;
        host.limit_descriptors(64).await?;
        self.hit.push((node, before));
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for (node, before) in std::mem::take(&mut self.hit) {
            let host = &mut lab.nodes_mut()[node];
            if host.goes_on() {
                host.limit_descriptors(before).await?;
            } else {
                host.start_again().await?;
            }
        }
        Ok(())
    }
}
