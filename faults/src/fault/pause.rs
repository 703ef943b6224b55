//! Processes that stand still, and go on later as if nothing had been.

use std::time::Duration;

use anyhow::{Result, bail};
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::time::Instant;

use super::process::Share;
use super::{Begun, Fault, about, one_of};
use crate::lab::{Lab, Offset, Options};

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Pause::of("pause-one", Share::One)),
        Box::new(Pause::of("pause-minority", Share::Minority)),
        Box::new(Pause::of("pause-all-but-one", Share::AllButOne)),
        Box::<PauseInTransaction>::default(),
        Box::new(Suspend::of("suspend", Share::All)),
        Box::new(Suspend::of("suspend-one", Share::One)),
    ]
}

/// How long a pause is, in leases.
const LEASES: [f64; 6] = [0.5, 0.9, 1.0, 1.1, 3.0, 10.0];

/// N2: SIGSTOP of some nodes, for about a lease: shorter, just as long, longer. Healing waits for the rest of that time
/// and lets them go on.
///
/// Expected: up to the end of its lease a node keeps its slots. Beyond, it loses them within a second more; what it does on
/// waking is refused, and it comes back as a new incarnation.
pub(super) struct Pause {
    name: &'static str,
    share: Share,
    hit: Vec<usize>,
    until: Option<Instant>,
}

impl Pause {
    pub(super) fn of(name: &'static str, share: Share) -> Pause {
        Pause {
            name,
            share,
            hit: Vec::new(),
            until: None,
        }
    }
}

#[async_trait]
impl Fault for Pause {
    fn id(&self) -> &'static str {
        "N2"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        self.hit = self.share.draw(rng, lab.nodes().len());
        let leases = one_of(rng, &LEASES);
        let time = lab.ttl().mul_f64(leases);
        let begun = about(lab, &self.hit, format!("for {leases} leases")).await;
        self.until = Some(Instant::now() + time);
        for node in &self.hit {
            lab.nodes_mut()[*node].pause().await?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if let Some(until) = self.until.take() {
            tokio::time::sleep_until(until).await;
        }
        for node in std::mem::take(&mut self.hit) {
            lab.nodes_mut()[node].resume()?;
        }
        Ok(())
    }
}

/// N2: SIGSTOP of a node while one of its sessions is inside a transaction, so that it holds locks on rows while it stands
/// still, for three leases.
///
/// Expected: whoever fences it ends the sessions that block it; its slots have new owners in the time of any other pause.
#[derive(Default)]
struct PauseInTransaction {
    hit: Option<usize>,
    until: Option<Instant>,
}

/// How often a node is stopped in the hope that it is inside a transaction.
const TRIES: u32 = 200;

#[async_trait]
impl Fault for PauseInTransaction {
    fn id(&self) -> &'static str {
        "N2"
    }

    fn name(&self) -> &'static str {
        "pause-in-transaction"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let node = Share::One.draw(rng, lab.nodes().len())[0];
        self.hit = Some(node);
        let mut begun = about(lab, &[node], "").await;
        let name = lab.nodes()[node].name().to_owned();
        let inside = format!(
            "select count(*) from pg_stat_activity where application_name = 'ringmesh {name}' \
             and state = 'idle in transaction' and backend_xid is not null"
        );
        for _ in 0..TRIES {
            lab.nodes_mut()[node].pause().await?;
            self.until = Some(Instant::now() + lab.ttl() * 3);
            // What was on its way to Postgres has arrived by now.
            let open = lab.database().number(&inside).await?;
            if open > 0 {
                begun.detail = format!("inside {open} transactions");
                return Ok(begun);
            }
            lab.nodes_mut()[node].resume()?;
            tokio::time::sleep(Duration::from_millis(rng.random_range(1..20))).await;
        }
        bail!("{name} was never found inside a transaction that wrote");
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if let (Some(node), Some(until)) = (self.hit.take(), self.until.take()) {
            tokio::time::sleep_until(until).await;
            lab.nodes_mut()[node].resume()?;
        }
        Ok(())
    }
}

/// N19: all nodes and Postgres, or one node alone, stand still, and wake with wall clocks ten minutes later: a suspended machine.
/// Its `CLOCK_BOOTTIME`, by which nodes know how long ago a renewal was, cannot be moved here: it goes on by as long as the
/// pause really is.
///
/// Expected: each node finds its trust over and starts nothing before it has renewed; one alone has lost its slots beyond its
/// lease, and comes back as a new incarnation; nothing is lost; the mesh works again within a lease and a second.
struct Suspend {
    name: &'static str,
    share: Share,
    hit: Vec<usize>,
    /// Seconds by which clocks have jumped so far.
    jumped: f64,
    until: Option<Instant>,
}

impl Suspend {
    fn of(name: &'static str, share: Share) -> Suspend {
        Suspend {
            name,
            share,
            hit: Vec::new(),
            jumped: 0.0,
            until: None,
        }
    }
}

/// By how much wall clocks jump.
const JUMP: f64 = 600.0;

#[async_trait]
impl Fault for Suspend {
    fn id(&self) -> &'static str {
        "N19"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, options: &mut Options) {
        options.clocks = true;
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        self.hit = self.share.draw(rng, lab.nodes().len());
        let leases = one_of(rng, &[0.5, 1.1, 3.0]);
        let begun = about(lab, &self.hit, format!("for {leases} leases")).await;
        self.until = Some(Instant::now() + lab.ttl().mul_f64(leases));
        for node in &self.hit {
            let host = &mut lab.nodes_mut()[*node];
            if host.goes_on() {
                host.pause().await?;
            }
        }
        self.jumped += JUMP;
        let offset = Offset {
            seconds: self.jumped,
            ..Offset::default()
        };
        if self.share == Share::All {
            lab.database_mut().primary().pause().await?;
            lab.database().shift_clock(offset)?;
        }
        for node in &self.hit {
            lab.nodes()[*node].shift_clock(offset)?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if let Some(until) = self.until.take() {
            tokio::time::sleep_until(until).await;
        }
        if self.share == Share::All {
            lab.database_mut().primary().resume()?;
        }
        for node in std::mem::take(&mut self.hit) {
            lab.nodes_mut()[node].resume()?;
        }
        // Time does not go back after a resume: the clocks stay as they are until the lab ends.
        Ok(())
    }
}
