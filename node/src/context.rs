//! What a handler gets besides the payload.

use std::any::Any;
use std::sync::Arc;

use ringmesh_ring::{Epoch, Key, Slot};
use tokio_util::sync::CancellationToken;

use crate::cache::{Cache, Caches};
use crate::handler::Failure;
use crate::store::{Token, Transaction, TransactionCell};
use crate::task::TaskId;

/// The fencing numbers of a run, to be passed on to whoever can check them: `ringmesh.guard` and `ringmesh.complete` in SQL, or a
/// system that keeps the highest that it has seen. Of two runs of a task, the one with the higher `(epoch, attempt)` is the
/// present one.
///
/// ```no_run
/// # use ringmesh::{Context, Failure, sqlx};
/// # async fn f(ctx: Context, mut tx: sqlx::Transaction<'_, sqlx::Postgres>) -> Result<(), Failure> {
/// let fence = ctx.fence();
/// sqlx::query("select ringmesh.guard($1, $2, $3, boot => $4)")
///     .bind(fence.task.to_string())
///     .bind(fence.epoch.get())
///     .bind(fence.attempt)
///     .bind(fence.boot)
///     .execute(&mut *tx)
///     .await?;
/// tx.commit().await?; // refused if this run is stale by then
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fence {
    /// The task.
    pub task: TaskId,
    /// The slot of the task's key.
    pub slot: Slot,
    /// The slot's epoch under which the task was claimed.
    pub epoch: Epoch,
    /// The number of the task's claims.
    pub attempt: i32,
    /// A random number of this start of the node. After a failover of Postgres that lost commits, the other numbers may be given
    /// out again; this one is not.
    pub boot: i64,
}

impl Fence {
    /// The numbers as HTTP headers, for a handler that calls others.
    ///
    /// There is no idempotency key among them: one handler may call several times, and each call needs its own. Derive them from
    /// [`Context::idempotency_key`].
    pub fn headers(&self) -> [(&'static str, String); 5] {
        [
            ("Ringmesh-Task", self.task.to_string()),
            ("Ringmesh-Slot", self.slot.get().to_string()),
            ("Ringmesh-Epoch", self.epoch.get().to_string()),
            ("Ringmesh-Attempt", self.attempt.to_string()),
            ("Ringmesh-Boot", self.boot.to_string()),
        ]
    }
}

/// A run, as its handler sees it. Clones mean the same run.
#[derive(Debug, Clone)]
pub struct Context {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(crate) token: Token,
    pub(crate) boot: i64,
    pub(crate) key: Key,
    pub(crate) kind: String,
    pub(crate) failures: i32,
    pub(crate) cancellation: CancellationToken,
    pub(crate) caches: Arc<Caches>,
    pub(crate) transaction: Arc<TransactionCell>,
}

impl Context {
    /// The task's id.
    pub fn task(&self) -> TaskId {
        self.inner.token.id
    }

    /// The task's key. No other task of it runs now, unless an earlier run ignores its cancellation.
    pub fn key(&self) -> &Key {
        &self.inner.key
    }

    /// The task's kind.
    pub fn kind(&self) -> &str {
        &self.inner.kind
    }

    /// The number of the task's claims. It only rises, but may skip: it is not the number of runs.
    pub fn attempt(&self) -> i32 {
        self.inner.token.attempt
    }

    /// How many runs of the task have failed so far.
    pub fn failures(&self) -> i32 {
        self.inner.failures
    }

    /// The fencing numbers of this run.
    pub fn fence(&self) -> Fence {
        let token = self.inner.token;
        Fence {
            task: token.id,
            slot: token.id.slot,
            epoch: token.epoch,
            attempt: token.attempt,
            boot: self.inner.boot,
        }
    }

    /// The same for all runs of the task and for no other task: for systems that drop what they have seen before.
    pub fn idempotency_key(&self) -> String {
        self.task().to_string()
    }

    /// Cancelled when the run shall end: at its timeout, when the slot leaves or the lease is not to be trusted, when the
    /// task was cancelled. A run that goes on after that is aborted after a grace.
    pub fn cancellation(&self) -> &CancellationToken {
        &self.inner.cancellation
    }

    /// The place for a value of type `T` that this node keeps for the key while it owns its slot.
    pub fn cache<T: Any + Send + Sync>(&self) -> Cache<T> {
        Cache::new(&self.inner.caches, self.inner.token.id.slot, &self.inner.key)
    }

    /// The task's own transaction, opened at the first call: what is written through it commits together with the task's
    /// completion, or not at all. It commits when the handler returns `Ok`, and rolls back on an error, a panic, the timeout,
    /// or when the run was fenced.
    ///
    /// Dereferences to a `PgConnection`. Drop it before the handler returns. Do not `COMMIT` in it, and call neither
    /// `ringmesh.guard` nor `ringmesh.complete` in it: it is fenced and ends the task already.
    ///
    /// ```no_run
    /// # use ringmesh::{context::Context, handler::Failure};
    /// # async fn f(ctx: Context) -> Result<(), Failure> {
    /// let mut tx = ctx.transaction().await?;
    /// ringmesh::sqlx::query("insert into sent (task) values ($1)")
    ///     .bind(ctx.task().to_string())
    ///     .execute(&mut *tx)
    ///     .await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    /// Postgres is not available, or the transaction was ended.
    pub async fn transaction(&self) -> Result<Transaction<'_>, Failure> {
        self.inner.transaction.open().await.map_err(Failure::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_what_sql_takes() {
        let task: TaskId = "2085-7".parse().unwrap();
        let fence = Fence {
            task,
            slot: task.slot,
            epoch: Epoch(3),
            attempt: 2,
            boot: i64::MIN,
        };
        let text: Vec<String> = fence
            .headers()
            .iter()
            .map(|(name, value)| format!("{name}: {value}"))
            .collect();
        let expected = "Ringmesh-Task: 2085-7\nRingmesh-Slot: 2085\nRingmesh-Epoch: 3\nRingmesh-Attempt: 2\nRingmesh-Boot: -9223372036854775808";
        assert_eq!(text.join("\n"), expected);
    }
}
