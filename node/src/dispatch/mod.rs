//! Dispatch: claims the tasks of the slots that this node owns, runs them in their lanes, and finishes them.
//!
//! One tokio task owns all of it; a [`Dispatch`] is a handle that sends it events. It lives as long as the node's incarnation.

mod engine;
mod lanes;
mod outbox;

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringmesh_ring::{Epoch, Slot};
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;

use crate::handler::Handlers;
use crate::hint::{Hint, Hints, Local};
use crate::store::{Me, Store};
use crate::task::TaskId;
use crate::trust::Trust;
use engine::{Engine, Event};

/// Bounds of a node's work.
#[derive(Debug, Clone)]
pub struct Limits {
    /// How many handlers run at once. More: more throughput of handlers that wait; fewer: less memory and fewer connections.
    pub concurrency: usize,
    /// How many tasks are claimed and not yet ended. More: fewer and larger statements; fewer: less to give back.
    pub tasks: usize,
    /// How many of them belong to one slot.
    pub tasks_per_slot: usize,
    /// How long a run may go on after its cancellation before it is aborted.
    pub grace: Duration,
    /// The delay before the second run; it doubles with each failure.
    pub backoff: Duration,
    /// The longest delay between two runs.
    pub backoff_most: Duration,
    /// How often dispatch looks for news that no hint told.
    pub tick: Duration,
    /// How many keys have a cache.
    pub cached_keys: usize,
    /// How long an idempotency id is remembered.
    pub idempotency_window: Duration,
    /// How long an id that was applied is remembered.
    pub inbox_window: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            concurrency: 512,
            tasks: 8192,
            tasks_per_slot: 256,
            grace: Duration::from_secs(5),
            backoff: Duration::from_secs(1),
            backoff_most: Duration::from_secs(300),
            tick: Duration::from_secs(1),
            cached_keys: 10_000,
            idempotency_window: Duration::from_secs(24 * 3600),
            inbox_window: Duration::from_secs(7 * 24 * 3600),
        }
    }
}

/// What dispatch is made of.
pub struct Parts {
    /// Postgres.
    pub store: Store,
    /// Who writes.
    pub me: Me,
    /// Whether work may start.
    pub trust: Arc<Trust>,
    /// What runs tasks.
    pub handlers: Arc<Handlers>,
    /// How much at once.
    pub limits: Limits,
    /// Where to tell the ends of tasks for which a client waits.
    pub hints: Hints,
    /// Where to tell that nothing of leaving slots is claimed or runs any more.
    pub quiet: mpsc::UnboundedSender<Vec<(Slot, Epoch)>>,
}

/// A snapshot of what dispatch does.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Stats {
    /// Handlers that run now.
    pub running: u64,
    /// Tasks that are claimed and wait in their lanes.
    pub waiting: u64,
    /// Keys with claimed tasks.
    pub lanes: u64,
    /// Slots from which tasks are claimed.
    pub slots: u64,
    /// Tasks that succeeded here.
    pub succeeded: u64,
    /// Tasks that ended dead here.
    pub dead: u64,
    /// Runs that failed and were sent back.
    pub retried: u64,
    /// Writes that were refused because the slot, the claim or the lease was not ours any more, or the task was cancelled.
    pub fenced: u64,
    /// Keys with a cache.
    pub cached_keys: u64,
    /// Reads of a cache that found a value.
    pub cache_hits: u64,
    /// Reads of a cache that found none.
    pub cache_misses: u64,
}

#[derive(Debug)]
pub(crate) enum Command {
    Granted(Vec<(Slot, Epoch)>),
    Leave {
        slots: Vec<Slot>,
        deadline: Duration,
        at_once: bool,
    },
    Stay(Vec<Slot>),
    Lost(Vec<(Slot, Epoch)>),
    Hint(Vec<Hint>),
    Cancelled(TaskId),
    TrustEnded,
    Stop(oneshot::Sender<()>),
}

/// A handle to dispatch. Its calls return at once; after dispatch has ended they do nothing.
#[derive(Debug, Clone)]
pub struct Dispatch {
    events: mpsc::UnboundedSender<Event>,
    stats: Arc<Mutex<Stats>>,
}

impl Dispatch {
    /// Starts dispatch in the present tokio runtime. The task ends after [`Dispatch::stop`], or when dispatch fails; then its
    /// node must go down loudly.
    pub fn start(parts: Parts) -> (Dispatch, JoinHandle<()>) {
        let (events, inbox) = mpsc::unbounded_channel();
        let stats = Arc::<Mutex<Stats>>::default();
        let engine = Engine::new(parts, events.clone(), stats.clone());
        (Dispatch { events, stats }, tokio::spawn(engine.run(inbox)))
    }

    fn send(&self, command: Command) {
        // An error means that dispatch has ended: nothing is to be done any more.
        let _ = self.events.send(Event::Command(command));
    }

    /// These slots are owned now: claim from them.
    pub fn granted(&self, slots: Vec<(Slot, Epoch)>) {
        self.send(Command::Granted(slots));
    }

    /// These slots are to leave: claims no more of them, gives back what did not start, lets runs end, cancels them at the
    /// deadline, aborts them after the grace. Then, at once if nothing runs, they are told on `quiet`.
    pub fn leave(&self, slots: Vec<Slot>, deadline: Duration) {
        self.send(Command::Leave {
            slots,
            deadline,
            at_once: true,
        });
    }

    /// As [`Dispatch::leave`], but while a task of a slot runs for long, the slot's other keys are worked on.
    pub fn leave_when_idle(&self, slots: Vec<Slot>, deadline: Duration) {
        self.send(Command::Leave {
            slots,
            deadline,
            at_once: false,
        });
    }

    /// These slots stay after all.
    pub fn stay(&self, slots: Vec<Slot>) {
        self.send(Command::Stay(slots));
    }

    /// These slots are not ours any more: cancels their runs, forgets them and their caches, writes nothing about them.
    pub fn lost(&self, slots: Vec<(Slot, Epoch)>) {
        self.send(Command::Lost(slots));
    }

    /// There is news.
    pub fn hint(&self, hints: Vec<Hint>) {
        self.send(Command::Hint(hints));
    }

    /// A task was cancelled elsewhere, and that is committed.
    pub fn cancelled(&self, task: TaskId) {
        self.send(Command::Cancelled(task));
    }

    /// The trust window has ended: cancels all runs. Nothing starts until trust returns.
    pub fn trust_ended(&self) {
        self.send(Command::TrustEnded);
    }

    /// What dispatch does now.
    pub fn stats(&self) -> Stats {
        *self.stats.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The end of the node's life: cancels all runs, aborts them after the grace, writes nothing any more. Returns when
    /// dispatch has ended.
    pub async fn stop(&self) {
        let (done, ended) = oneshot::channel();
        self.send(Command::Stop(done));
        // An error means that it had ended before.
        let _ = ended.await;
    }
}

impl Local for Dispatch {
    fn hint(&self, hints: Vec<Hint>) {
        Dispatch::hint(self, hints);
    }

    fn cancelled(&self, id: TaskId) {
        Dispatch::cancelled(self, id);
    }
}

/// An error and its causes, for a log line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod effects_tests;
#[cfg(test)]
pub(crate) mod hostile_tests;
#[cfg(test)]
mod tests;
