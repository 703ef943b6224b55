//! Keeps what `ringmesh dev` runs running: what was killed or failed is started again, what was drained stays away.
//!
//! | ends | then |
//! |---|---|
//! | a node, by a signal or with a failure | it is started again after [`NODE_PAUSE`], later when it fails right away again |
//! | a node, with success: it was drained | it stays away; when no other is left, there is nothing left to run |
//! | Postgres, whatever the way | it is started again on its port and its folder after [`SERVER_PAUSE`]; the nodes go on |
//! | Postgres, several times right after its start | an error: somebody must look at its log |

use std::time::Duration;

use tokio::time::Instant;

use super::command::shown;
use super::mesh::Node;
use super::{Error, Mesh, Postgres};

/// How often the processes are looked at while all is well.
const LOOK: Duration = Duration::from_millis(250);
/// From a node's end to its next start: long enough to see the others take over.
pub(super) const NODE_PAUSE: Duration = Duration::from_secs(3);
/// The longest pause of a node that fails again and again.
const NODE_LONGEST_PAUSE: Duration = Duration::from_secs(48);
/// From the end of Postgres to its next start.
const SERVER_PAUSE: Duration = Duration::from_secs(1);
/// An end within this time of a start counts as one of the start.
const EARLY: Duration = Duration::from_secs(5);
/// How many such ends in a row are enough for Postgres.
const EARLY_ENDS: u32 = 4;

/// Returns when nothing is left to run: all nodes were drained.
///
/// # Errors
///
/// [`Error::KeepsEnding`] when Postgres cannot be kept up; the nodes still run.
pub(super) async fn keep(server: Option<&mut Postgres>, mesh: &mut Mesh) -> Result<(), Error> {
    tokio::select! {
        error = keep_server(server) => Err(error),
        () = keep_nodes(mesh.nodes_mut()) => Ok(()),
    }
}

async fn keep_server(server: Option<&mut Postgres>) -> Error {
    let Some(server) = server else {
        return std::future::pending().await;
    };
    let mut since = Instant::now();
    let mut early = 0;
    let mut failed = None;
    loop {
        let Some(error) = failed.take().or_else(|| server.ended()) else {
            tokio::time::sleep(LOOK).await;
            continue;
        };
        early = if since.elapsed() < EARLY { early + 1 } else { 1 };
        if early >= EARLY_ENDS {
            return Error::KeepsEnding {
                times: early,
                within: EARLY,
                source: Box::new(error),
            };
        }
        match &error {
            Error::Ended { status, log, .. } => eprintln!(
                "Postgres ended ({status}); starting it again in {SERVER_PAUSE:?}; its log: {}",
                shown(log)
            ),
            other => eprintln!("Postgres: {other}; trying again in {SERVER_PAUSE:?}"),
        }
        tokio::time::sleep(SERVER_PAUSE).await;
        let restarted = server.restart().await;
        since = Instant::now();
        match (restarted, server.pid()) {
            (Ok(()), Some(pid)) => eprintln!("Postgres runs again on port {} (pid {pid})", server.port()),
            (Ok(()), None) => {}
            (Err(error), _) => failed = Some(error),
        }
    }
}

/// What is remembered of a node.
#[derive(Debug, Clone, Copy)]
struct Kept {
    state: State,
    /// When its present run was started.
    since: Instant,
    /// How long the next pause is.
    pause: Duration,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Runs,
    /// To be started at this time.
    Due(Instant),
    Drained,
}

async fn keep_nodes(nodes: &mut [Node]) {
    let now = Instant::now();
    let fresh = Kept {
        state: State::Runs,
        since: now,
        pause: NODE_PAUSE,
    };
    let mut kept = vec![fresh; nodes.len()];
    while kept.iter().any(|kept| kept.state != State::Drained) {
        for (node, kept) in nodes.iter_mut().zip(&mut kept) {
            kept.look(node).await;
        }
        tokio::time::sleep(LOOK).await;
    }
    eprintln!("all nodes have been drained");
}

impl Kept {
    async fn look(&mut self, node: &mut Node) {
        match self.state {
            State::Drained => {}
            State::Runs => self.on_look(node),
            State::Due(at) if Instant::now() < at => {}
            State::Due(_) => {
                self.since = Instant::now();
                match (node.spawn().await, node.pid()) {
                    (Ok(()), pid) => {
                        self.state = State::Runs;
                        let pid = pid.unwrap_or_default();
                        eprintln!("{} is started again (pid {pid})", node.name());
                    }
                    (Err(error), _) => {
                        let pause = self.next_pause();
                        eprintln!("{error}; trying again in {pause:?}");
                    }
                }
            }
        }
    }

    fn on_look(&mut self, node: &mut Node) {
        let Some(status) = node.ended() else { return };
        let (name, log) = (node.name(), shown(node.log()));
        if status.success() {
            self.state = State::Drained;
            eprintln!("{name} was drained and stays away");
            return;
        }
        let pause = self.next_pause();
        eprintln!("{name} ended ({status}); starting it again in {pause:?}; its log: {log}");
    }

    /// Plans the next start, later each time while the runs are short.
    fn next_pause(&mut self) -> Duration {
        let ran = self.since.elapsed();
        if ran >= EARLY {
            self.pause = NODE_PAUSE;
        }
        let pause = self.pause;
        self.pause = (pause * 2).min(NODE_LONGEST_PAUSE);
        self.state = State::Due(Instant::now() + pause);
        pause
    }
}

#[cfg(test)]
#[path = "keep_tests.rs"]
mod tests;
