//! Ends of processes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use futures::future::try_join_all;
use rand::RngExt as _;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use tokio::time::{Instant, sleep_until};

use super::{Begun, Fault, about, some};
use crate::lab::{Host, Lab, Options};

/// How long a drain may take before it is cut short.
const DRAIN: Duration = Duration::from_secs(30);

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Kill::of("kill-one", Share::One)),
        Box::new(Kill::of("kill-all-but-one", Share::AllButOne)),
        Box::new(Kill::of("kill-all", Share::All)),
        Box::new(Terminate::of("drain-one", Insistence::Once)),
        Box::new(Terminate::of("drain-impatient", Insistence::Twice)),
        Box::new(Terminate::of("drain-killed", Insistence::ThenKill)),
        Box::new(Terminate::of("drain-while-moving", Insistence::WhileMoving)),
        Box::<CrashLoop>::default(),
        Box::new(Rolling::of("rolling-restart", false)),
        Box::new(Rolling::of("rolling-upgrade", true)),
    ]
}

/// How many are hit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    One,
    Minority,
    AllButOne,
    All,
}

impl Share {
    /// Who is hit in a mesh of that many nodes.
    pub(super) fn draw(self, rng: &mut StdRng, nodes: usize) -> Vec<usize> {
        let count = match self {
            Share::One => 1,
            Share::Minority => (nodes.saturating_sub(1) / 2).max(1),
            Share::AllButOne => nodes.saturating_sub(1).max(1),
            Share::All => nodes,
        };
        some(rng, nodes, count)
    }
}

/// N1: `kill -9` of some nodes at once; healing starts them again under the same names and addresses. One alone comes back
/// after a time of its own: within a lease by itself, later by the healing, which waits for it.
///
/// Expected: the slots of the dead have new owners well within a second of the notice, all others keep theirs. Of all
/// nodes at once: nothing runs until they are back, and nothing is lost.
pub(super) struct Kill {
    name: &'static str,
    share: Share,
    hit: Vec<usize>,
    back_at: Option<Instant>,
}

/// A node that is killed alone is away for so long at most.
const AWAY: Duration = Duration::from_secs(8);

impl Kill {
    pub(super) fn of(name: &'static str, share: Share) -> Kill {
        Kill {
            name,
            share,
            hit: Vec::new(),
            back_at: None,
        }
    }
}

#[async_trait]
impl Fault for Kill {
    fn id(&self) -> &'static str {
        "N1"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        self.hit = self.share.draw(rng, lab.nodes().len());
        let mut begun = about(lab, &self.hit, "").await;
        for node in &self.hit {
            lab.nodes_mut()[*node].kill().await?;
        }
        if self.share == Share::One {
            let away = AWAY.mul_f64(rng.random_range(0.0..1.0));
            begun.detail = format!("away for {:.1} s", away.as_secs_f64());
            let back_at = Instant::now() + away;
            if away < lab.ttl() {
                sleep_until(back_at).await;
                for node in &self.hit {
                    lab.nodes_mut()[*node].spawn().await?;
                }
            } else {
                self.back_at = Some(back_at);
            }
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if let Some(back_at) = self.back_at.take() {
            sleep_until(back_at).await;
        }
        start_again(lab, &std::mem::take(&mut self.hit)).await
    }
}

/// Starts those of these nodes that do not run, all at once, and waits until they are ready, if no other fault can keep them from it.
pub(super) async fn start_again(lab: &mut Lab, nodes: &[usize]) -> Result<()> {
    let others_act = lab.others_act();
    let ended = lab.nodes_mut().iter_mut().enumerate();
    let ended = ended.filter(|(number, _)| nodes.contains(number));
    let starts = ended.map(|(_, host)| async move {
        let runs = host.pid().is_some() && host.ended().is_none();
        match runs {
            true => Ok(()),
            false if others_act => host.spawn().await,
            false => host.start_again().await,
        }
    });
    try_join_all(starts).await.map(drop)
}

/// How a node is asked to end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Insistence {
    /// SIGTERM.
    Once,
    /// Another SIGTERM shortly after.
    Twice,
    /// SIGKILL in the midst of its drain.
    ThenKill,
    /// SIGTERM while slots move to a node that has just come.
    WhileMoving,
}

/// N3: a node is asked to drain, and is given its time or not. Healing starts it again.
///
/// Expected: what it runs ends or is handed on, nothing fails for it; cut short, it is as a kill.
struct Terminate {
    name: &'static str,
    insistence: Insistence,
    hit: Vec<usize>,
}

impl Terminate {
    fn of(name: &'static str, insistence: Insistence) -> Terminate {
        let hit = Vec::new();
        Terminate {
            name,
            insistence,
            hit,
        }
    }
}

#[async_trait]
impl Fault for Terminate {
    fn id(&self) -> &'static str {
        "N3"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        self.hit = Share::One.draw(rng, lab.nodes().len());
        let one = self.hit[0];
        let pause = Duration::from_millis(rng.random_range(0..300));
        let mut killed = Vec::new();
        if self.insistence == Insistence::WhileMoving {
            // Another node goes and comes back; its slots then move to it.
            let other = (one + 1) % lab.nodes().len();
            self.hit.push(other);
            killed = about(lab, &[other], "").await.incarnations;
            lab.nodes_mut()[other].kill().await?;
            lab.nodes_mut()[other].start_again().await?;
        }
        let mut begun = about(lab, &self.hit, "").await;
        begun.incarnations.extend(killed);
        let host = &mut lab.nodes_mut()[one];
        host.terminate()?;
        if let Insistence::Twice | Insistence::ThenKill = self.insistence {
            tokio::time::sleep(pause).await;
        }
        match self.insistence {
            Insistence::Once | Insistence::WhileMoving => {}
            Insistence::Twice => host.terminate()?,
            Insistence::ThenKill => host.kill().await?,
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let hit = std::mem::take(&mut self.hit);
        for node in &hit {
            end_drain(&mut lab.nodes_mut()[*node]).await?;
        }
        start_again(lab, &hit).await
    }
}

/// Lets a node that drains end, if it does within twice the default `drain_deadline` and more, else it is killed.
async fn end_drain(host: &mut Host) -> Result<()> {
    if host.is_draining() && host.wait_end(DRAIN).await.is_none() {
        host.kill().await?;
    }
    Ok(())
}

/// N6: one node is killed again and again shortly after its start, before or just after it is ready; each time the fault
/// begins, the same node.
///
/// Expected: gossip's state does not grow with the rounds; other nodes' slots move only by its joins, which come later and later.
#[derive(Default)]
struct CrashLoop {
    hit: Option<usize>,
    dead: bool,
}

#[async_trait]
impl Fault for CrashLoop {
    fn id(&self) -> &'static str {
        "N6"
    }

    fn name(&self) -> &'static str {
        "crash-loop"
    }

    fn prepare(&self, options: &mut Options) {
        options.env.push(("RINGMESH_REJOIN_DELAY".into(), "60s".into()));
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let nodes = lab.nodes().len();
        let node = *self.hit.get_or_insert_with(|| Share::One.draw(rng, nodes)[0]);
        let begun = about(lab, &[node], "eight starts of about a second").await;
        self.dead = true;
        let host = &mut lab.nodes_mut()[node];
        for _ in 0..8 {
            host.spawn().await?;
            let lives = Duration::from_millis(rng.random_range(200..1800));
            tokio::time::sleep(lives).await;
            host.kill().await?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        // Not waited for: it takes slots only after a while.
        match self.hit.filter(|_| std::mem::take(&mut self.dead)) {
            Some(node) => lab.nodes_mut()[node].spawn().await,
            None => Ok(()),
        }
    }
}

/// N7: all nodes are drained and started again, one after the other: as they are, or with the program of an earlier version
/// and then with the present one again, so that both versions are in the mesh at once, in both orders.
///
/// Expected: nothing is lost, doubled or refused for it; in one round each key moves at most twice.
struct Rolling {
    name: &'static str,
    /// Whether the program changes.
    versions: bool,
    hit: Vec<usize>,
    present: Option<PathBuf>,
}

impl Rolling {
    fn of(name: &'static str, versions: bool) -> Rolling {
        Rolling {
            name,
            versions,
            hit: Vec::new(),
            present: None,
        }
    }
}

/// The variable that names the program of an earlier version.
const PREVIOUS: &str = "FAULTS_PREVIOUS";

/// What the lab tells its nodes and earlier versions do not know, and refuse.
const NEW: [(&str, &str); 1] = [("RINGMESH_REJOIN_DELAY", "0s")];

/// Drains the nodes in this order, each when the one before is back.
async fn restart_in_turn(lab: &mut Lab, order: &[usize], program: Option<&Path>) -> Result<()> {
    for node in order {
        let host = &mut lab.nodes_mut()[*node];
        host.terminate()?;
        end_drain(host).await?;
        if let Some(program) = program {
            host.set_binary(program.to_owned());
        }
        host.start_again().await?;
    }
    Ok(())
}

#[async_trait]
impl Fault for Rolling {
    fn id(&self) -> &'static str {
        "N7"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn can(&self) -> Result<()> {
        let previous = std::env::var_os(PREVIOUS);
        if self.versions && !previous.is_some_and(|path| Path::new(&path).exists()) {
            bail!("{PREVIOUS} names no program of an earlier version");
        }
        Ok(())
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let mut order: Vec<usize> = (0..lab.nodes().len()).collect();
        order.shuffle(rng);
        let begun = about(lab, &order, format!("in the order {order:?}")).await;
        self.hit.clone_from(&order);
        let previous = match self.versions {
            true => std::env::var_os(PREVIOUS).map(PathBuf::from),
            false => None,
        };
        self.present = previous.as_ref().map(|_| lab.nodes()[0].binary().to_owned());
        for host in lab.nodes_mut().iter_mut().filter(|_| previous.is_some()) {
            for (name, _) in NEW {
                host.unset_env(name);
            }
        }
        restart_in_turn(lab, &order, previous.as_deref()).await?;
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let hit = std::mem::take(&mut self.hit);
        if let Some(present) = self.present.take() {
            for host in lab.nodes_mut() {
                NEW.iter().for_each(|(name, value)| host.set_env(name, value));
            }
            restart_in_turn(lab, &hit, Some(&present)).await?;
        }
        start_again(lab, &hit).await
    }
}
