//! What the mesh is given to do: handlers in the nodes, clients outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::history::Submit;

/// Whom the clients of a workload ask.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The base URLs of all nodes, over the network without faults.
    pub urls: Vec<String>,
    /// What every request must carry.
    pub token: Option<String>,
    /// Postgres, never through a faulty path.
    pub database_url: String,
    /// What the clients of all workloads of a run count together.
    pub counts: Arc<Counts>,
}

/// Bounds on the number of tasks that there must and may be: what a sample of the database is held against.
#[derive(Debug, Default)]
pub struct Counts {
    accepted: AtomicU64,
    sent: AtomicU64,
}

impl Counts {
    /// Tasks that a client knows to exist.
    pub fn accepted(&self) -> u64 {
        self.accepted.load(Ordering::SeqCst)
    }

    /// Tasks that may exist: that some request was sent for.
    pub fn sent(&self) -> u64 {
        self.sent.load(Ordering::SeqCst)
    }

    /// Before the first request for a task is sent.
    pub fn on_sent(&self) {
        self.sent.fetch_add(1, Ordering::SeqCst);
    }

    /// After the first 2xx for a task was read.
    pub fn on_accepted(&self) {
        self.accepted.fetch_add(1, Ordering::SeqCst);
    }
}

/// Clients that give the mesh work.
#[async_trait]
pub trait Workload: Send + Sync {
    /// `W1` and so on.
    fn id(&self) -> &'static str;

    /// What it does, in a line.
    fn what(&self) -> &'static str;

    /// Makes what must be there before the record of changes begins.
    async fn prepare(&self, _targets: &Targets) -> anyhow::Result<()> {
        Ok(())
    }

    /// Submits until it is told to stop, then brings each submit that is under way to an end and returns all of them.
    ///
    /// `rate` is in tasks a second over all its clients; `None`: each client sends the next when the last was answered.
    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit>;
}
