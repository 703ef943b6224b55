//! Clients that wait for a task's end.
//!
//! A wait is woken by the hint of the finish and looks by itself every 250 ms anyway. All that wait here are looked up in one
//! statement.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio::time::Instant;

use crate::store::Store;
use crate::task::{TaskId, View};

/// How often a wait looks by itself.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// The longest wait.
pub const LONGEST: Duration = Duration::from_secs(60);
/// Ends that are remembered for a wait that begins just after them.
const RECENT: usize = 4_096;
/// At most this many ids in one look.
const AT_ONCE: usize = 1_000;

/// The waiting clients of this process. Cloning shares them.
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
    /// To be looked at now.
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

    /// Waits for a task's end; `None` when the time is over first, or the task is unknown all along.
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

    /// Looks for ends, for ever. One of it per process.
    pub async fn run(self, store: Store) {
        let mut look_at = Instant::now() + LOOK_EVERY;
        loop {
            if self.is_empty() {
                self.shared.news.notified().await;
                look_at = Instant::now() + LOOK_EVERY;
            } else {
                let _ = tokio::time::timeout_at(look_at, self.shared.news.notified()).await;
            }
            let ids: Vec<TaskId> = {
                let mut state = self.state();
                let signalled = std::mem::take(&mut state.signalled);
                if Instant::now() >= look_at {
                    look_at = Instant::now() + LOOK_EVERY;
                    state.waiting.keys().copied().collect()
                } else {
                    signalled.into_iter().collect()
                }
            };
            for ids in ids.chunks(AT_ONCE) {
                // Without Postgres nobody is answered; the next look tries again.
                if let Ok(views) = store.tasks(ids).await {
                    self.answer(views.into_iter().flatten().filter(|view| view.state.is_final()));
                }
            }
        }
    }

    fn answer(&self, views: impl Iterator<Item = View>) {
        let mut state = self.state();
        for view in views {
            for answer in state.waiting.remove(&view.id).unwrap_or_default() {
                let _ = answer.send(view.clone());
            }
        }
    }
}
