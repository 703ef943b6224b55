//! Single tasks for given keys, where the load alone would not do. They are kept as those of every other client.

use ringmesh::task::TaskId;
use tokio_util::sync::CancellationToken;

use super::Targets;
use super::client::{Client, Task};
use super::handlers::Append;
use crate::history::Submit;

/// Submits them, one after the other.
pub struct Errands(Client);

impl Errands {
    /// None yet.
    pub fn new(targets: &Targets) -> Errands {
        let stop = CancellationToken::new();
        Errands(Client::new("errands".to_owned(), targets, None, &stop))
    }

    /// Submits a task that has its effect and keeps its transaction open for so many milliseconds. No key may come twice.
    ///
    /// `None`: it was refused for good.
    pub async fn send(&mut self, key: &str, ms: u64) -> Option<TaskId> {
        let task = Task::new("append", key, 1, Append { seq: 1, ms });
        self.0.put(&task).await
    }

    /// All requests so far.
    pub fn submits(self) -> Vec<Submit> {
        self.0.submits()
    }
}
