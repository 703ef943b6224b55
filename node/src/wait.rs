//! Clients that look at tasks, and clients that wait for a task's end.
//!
//! A wait is woken by the hint of the finish and looks by itself every 250 ms anyway. All looks go through one reader, one
//! statement at a time for everybody who asked meanwhile: a crowd of clients takes one connection, not the pool.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::store::Store;
use crate::task::{TaskId, View};

/// How long a look may take.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// How often a wait looks by itself.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(60);
/// Ends that are remembered for a wait that begins just after them.
const RECENT: usize = 4_096;
/// At most this many ids in one look.
const AT_ONCE: usize = 1_000;

/// A look got no answer from Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("Postgres is not available")]
pub struct Unavailable;

/// The looking and waiting clients of this process. Cloning shares them.
#[derive(Clone, Default)]
pub struct Waits {
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    news: Notify,
}

#[derive(Default)]
struct State {
    waiting: HashMap<TaskId, Vec<oneshot::Sender<View>>>,
    looking: HashMap<TaskId, Vec<oneshot::Sender<Option<View>>>>,
    /// Waited for, and to be looked at now.
    signalled: HashSet<TaskId>,
    /// Ended while nobody waited: a finish can be faster than the client's wait.
    recent: VecDeque<TaskId>,
}

impl Waits {
    /// Nobody waits yet. [`Waits::run`] must run for anybody to be answered.
    pub fn new() -> Self {
        Self::default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A task has ended: whoever waits for it looks at once.
    pub fn ended(&self, id: TaskId) {
        let mut state = self.state();
        if state.waiting.contains_key(&id) {
            state.signalled.insert(id);
            drop(state);
            self.shared.news.notify_one();
        } else {
            if state.recent.len() == RECENT {
                state.recent.pop_front();
            }
            state.recent.push_back(id);
        }
    }

    /// Whether the end of a task was told for which nobody waits.
    #[cfg(test)]
    pub(crate) fn was_told(&self, id: TaskId) -> bool {
        self.state().recent.contains(&id)
    }

    /// Reads a task as it stands; `None` if it is unknown.
    ///
    /// # Errors
    /// [`Unavailable`] after 5 s at most.
    pub async fn look(&self, id: TaskId) -> Result<Option<View>, Unavailable> {
        let (answer, answered) = oneshot::channel();
        self.state().looking.entry(id).or_default().push(answer);
        self.shared.news.notify_one();
        match tokio::time::timeout(ANSWER_WITHIN, answered).await {
            Ok(Ok(view)) => Ok(view),
            Ok(Err(_)) | Err(_) => Err(Unavailable),
        }
    }

    /// Waits for a task's end; `None` when the time is over first, or the task is unknown.
    pub async fn end_of(&self, id: TaskId, at_most: Duration) -> Option<View> {
        let (answer, answered) = oneshot::channel();
        {
            let mut state = self.state();
            let idle = state.waiting.is_empty();
            state.waiting.entry(id).or_default().push(answer);
            let known = state.recent.contains(&id);
            if known {
                state.signalled.insert(id);
            }
            if known || idle {
                self.shared.news.notify_one();
            }
        }
        let end = tokio::time::timeout(at_most.min(LONGEST), answered).await;
        let mut state = self.state();
        if let Some(waiting) = state.waiting.get_mut(&id) {
            waiting.retain(|answer| !answer.is_closed());
            if waiting.is_empty() {
                state.waiting.remove(&id);
            }
        }
        end.ok()?.ok()
    }

    /// How many clients wait.
    pub fn len(&self) -> usize {
        self.state().waiting.values().map(Vec::len).sum()
    }

    /// Whether nobody waits.
    pub fn is_empty(&self) -> bool {
        self.state().waiting.is_empty()
    }

    /// Looks, for ever. One of it per process.
    pub async fn run(self, store: Store) {
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            if self.is_empty() {
                self.shared.news.notified().await;
                look_at = Instant::now() + LOOK_EVERY;
            } else {
                let _ = tokio::time::timeout_at(look_at, self.shared.news.notified()).await;
            }
            let (ids, mut looking) = {
                let mut state = self.state();
                let looking = std::mem::take(&mut state.looking);
                let mut ids = std::mem::take(&mut state.signalled);
                if Instant::now() >= look_at {
                    look_at = Instant::now() + LOOK_EVERY;
                    ids.extend(state.waiting.keys());
                }
                ids.extend(looking.keys());
                (Vec::from_iter(ids), looking)
            };
            for ids in ids.chunks(AT_ONCE) {
                // Without Postgres a look ends, as its sender is dropped, and a wait goes on.
                let Ok(views) = store.tasks(ids).await else {
                    continue;
                };
                for (id, view) in ids.iter().zip(views) {
                    for answer in looking.remove(id).unwrap_or_default() {
                        let _ = answer.send(view.clone());
                    }
                    if let Some(view) = view.filter(|view| view.state.is_final()) {
                        self.answer(&view);
                    }
                }
            }
        }
    }

    fn answer(&self, view: &View) {
        for answer in self.state().waiting.remove(&view.id).unwrap_or_default() {
            let _ = answer.send(view.clone());
        }
    }
}
