//! Places at which a test makes a node fail. Without the feature `failpoints` nothing of it is in the program.
//!
//! A point is told what to do by the crate `fail`: by the variable `FAILPOINTS` where the program sets up a
//! `fail::FailScenario`, or by `fail::cfg` at any time. What `return(…)` names is done in async code, so that a delay keeps no
//! thread:
//!
//! | action | what happens |
//! |---|---|
//! | `return(crash)` | the process aborts |
//! | `return(error)` | the operation fails as if its answer had been lost |
//! | `return(delay 300)` | it waits for so many milliseconds |
//! | `return(drop)` | its future is dropped at this point; where that cannot happen in the product, nothing does |
//!
//! All that `fail` knows besides holds too: `3*return(error)`, `1%return(drop)`, `off`.

/// A claim is committed and its answer not looked at.
pub const CLAIMED: &str = "claimed";
/// A transaction that is to shut slots to a lost claim is open, without any statement.
pub const SETTLE: &str = "settle";
/// Slots are shut to a lost claim, and their node does not know.
pub const SETTLED: &str = "settled";
/// Suspects are about to start, and nothing says so yet.
pub const TRIAL: &str = "trial";
/// A handler is about to be called.
pub const HANDLER: &str = "handler";
/// A handler has returned, nothing of it is committed.
pub const HANDLED: &str = "handled";
/// A transaction of a task, or of a submit, is open, without any statement.
pub const BEGUN: &str = "begun";
/// A task's transaction has its last statement behind it, its commit before it.
pub const COMMIT: &str = "commit";
/// A task's transaction is committed, and its node does not know.
pub const COMMITTED: &str = "committed";
/// The lease is about to be renewed.
pub const RENEW: &str = "renew";
/// The lease is renewed, and its node does not know.
pub const RENEWED: &str = "renewed";
/// Slots are about to be handed on, by a move or a drain.
pub const TRANSFER: &str = "transfer";
/// Slots are handed on, and their former owner does not know.
pub const TRANSFERRED: &str = "transferred";
/// A drained node is about to tell Postgres that it has left.
pub const LEAVE: &str = "leave";
/// A transaction that is to fence a node is open, and nothing is locked in it.
pub const FENCING: &str = "fencing";
/// A node that is to be fenced is locked, and not fenced.
pub const FENCE: &str = "fence";
/// A node is fenced, and whoever did it does not know.
pub const FENCED: &str = "fenced";
/// Slots without an owner were seen, and are about to be taken.
pub const GRANT: &str = "grant";
/// Slots are taken, and their owner does not know.
pub const GRANTED: &str = "granted";
/// Scheduled tasks were seen to be due, and are about to be made so.
pub const PROMOTE: &str = "promote";
/// Scheduled tasks are due, and their node does not know.
pub const PROMOTED: &str = "promoted";
/// Held keys were looked for, and nothing is done about them yet.
pub const SWEPT: &str = "swept";
/// Holds without their task were seen, and are about to be lifted.
pub const ORPHANS: &str = "orphans";
/// What waits behind held keys was seen, and is about to be moved.
pub const HELD: &str = "held";
/// Ids past their window are about to be forgotten, those of submits or of the inbox.
pub const IDEMPOTENCY: &str = "idempotency";
/// A day past its retention was seen, and is about to be dropped.
pub const RETENTION: &str = "retention";
/// A batch of writes about tasks is about to be sent.
pub const WRITE: &str = "write";
/// A batch of writes about tasks is committed, and its node does not know.
pub const WRITTEN: &str = "written";
/// The schema is locked, and nothing of it is changed.
pub const MIGRATE: &str = "migrate";
/// The schema is changed, and the change is not committed.
pub const MIGRATED: &str = "migrated";
/// The schema is there, and the node that made it does not know.
pub const SCHEMA: &str = "schema";
/// Tasks are about to be inserted.
pub const SUBMIT: &str = "submit";
/// Tasks are inserted in a transaction of their own (idempotency keys, batches), and not committed.
pub const INSERTED: &str = "inserted";
/// Tasks are inserted and committed, and their submitter does not know.
pub const SUBMITTED: &str = "submitted";

/// All points, and whether what happens there may be dropped.
pub const ALL: &[(&str, bool)] = &[
    (CLAIMED, true),
    (SETTLE, true),
    (SETTLED, true),
    (TRIAL, true),
    (HANDLER, false),
    (HANDLED, false),
    (BEGUN, true),
    (COMMIT, true),
    (COMMITTED, true),
    (RENEW, true),
    (RENEWED, true),
    (TRANSFER, true),
    (TRANSFERRED, true),
    (LEAVE, true),
    (FENCING, true),
    (FENCE, true),
    (FENCED, true),
    (GRANT, true),
    (GRANTED, true),
    (PROMOTE, true),
    (PROMOTED, true),
    (SWEPT, true),
    (ORPHANS, true),
    (HELD, true),
    (IDEMPOTENCY, true),
    (RETENTION, true),
    (WRITE, true),
    (WRITTEN, true),
    (MIGRATE, false),
    (MIGRATED, false),
    (SCHEMA, false),
    (SUBMIT, true),
    (INSERTED, true),
    (SUBMITTED, true),
];

/// The registry of points, for whoever tells them what to do.
#[cfg(feature = "failpoints")]
pub use fail;
#[cfg(feature = "failpoints")]
pub use on::observe;
#[cfg(feature = "failpoints")]
pub(crate) use on::{at, droppable, is_armed};

#[cfg(not(feature = "failpoints"))]
pub(crate) use off::{at, droppable, is_armed};

#[cfg(not(feature = "failpoints"))]
mod off {
    use crate::store::Error;

    #[inline(always)]
    #[allow(clippy::unused_async)] // As its counterpart.
    pub(crate) async fn at(_: &'static str) -> Result<(), Error> {
        Ok(())
    }

    #[inline(always)]
    pub(crate) fn droppable<T>(
        work: impl Future<Output = Result<T, Error>>,
    ) -> impl Future<Output = Result<T, Error>> {
        work
    }

    #[inline(always)]
    pub(crate) const fn is_armed(_: &'static str) -> bool {
        false
    }
}

#[cfg(feature = "failpoints")]
mod on {
    use std::sync::OnceLock;
    use std::time::Duration;

    use tokio_util::sync::CancellationToken;

    use crate::store::Error;

    /// Is told the point and the action.
    type Observer = Box<dyn Fn(&'static str, &str) + Send + Sync>;

    static OBSERVER: OnceLock<Observer> = OnceLock::new();

    tokio::task_local! {
        /// Cancelled where the operation around it shall be dropped.
        static DROP: CancellationToken;
    }

    /// Has every action told before it happens. Only the first observer of a process counts.
    pub fn observe(observer: impl Fn(&'static str, &str) + Send + Sync + 'static) {
        let _ = OBSERVER.set(Box::new(observer));
    }

    fn tell(point: &'static str, action: &str) {
        tracing::warn!(point, action, "a fail point acts");
        if let Some(observer) = OBSERVER.get() {
            observer(point, action);
        }
    }

    /// Does what the point is told to do.
    pub(crate) async fn at(point: &'static str) -> Result<(), Error> {
        let Some(action) = fail::eval(point, Option::unwrap_or_default) else {
            return Ok(());
        };
        match action.split_once(' ').unwrap_or((&action, "")) {
            ("crash", _) => {
                tell(point, &action);
                std::process::abort();
            }
            ("error", _) => {
                tell(point, &action);
                return Err(Error::late());
            }
            ("delay", ms) => {
                tell(point, &action);
                let ms = ms.parse().unwrap_or_else(|_| panic!("no time: {action}"));
                tokio::time::sleep(Duration::from_millis(ms)).await;
            }
            ("drop", _) => {
                if let Ok(scope) = DROP.try_with(CancellationToken::clone) {
                    tell(point, &action);
                    scope.cancel();
                    std::future::pending::<()>().await;
                }
            }
            _ => panic!("no action of a fail point: {action}"),
        }
        Ok(())
    }

    /// An operation that a point in it may drop: then it ends as one whose answer was lost.
    pub(crate) async fn droppable<T>(work: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
        let scope = CancellationToken::new();
        tokio::select! {
            biased;
            done = DROP.scope(scope.clone(), work) => done,
            () = scope.cancelled() => Err(Error::late()),
        }
    }

    /// Whether the point was told something, `off` aside. What comes seldom then comes at once, so that no test waits for it.
    pub(crate) fn is_armed(point: &'static str) -> bool {
        fail::list()
            .iter()
            .any(|(name, action)| name == point && action != "off")
    }

    #[cfg(test)]
    mod tests {
        use std::sync::Mutex;

        use super::*;

        #[tokio::test(start_paused = true)]
        async fn a_point_delays_fails_and_drops_and_is_heard() {
            static HEARD: Mutex<Vec<String>> = Mutex::new(Vec::new());
            observe(|point, action| HEARD.lock().unwrap().push(format!("{point}: {action}")));
            let scenario = fail::FailScenario::setup();
            let work = async |point| {
                at(point).await?;
                Ok(1)
            };
            assert!(matches!(work("test").await, Ok(1)));
            assert!(!is_armed("test"));
            fail::cfg("test", "return(error)").unwrap();
            assert!(is_armed("test"));
            assert!(matches!(work("test").await, Err(Error::Unknown(_))));
            fail::cfg("test", "return(delay 70)").unwrap();
            let began = tokio::time::Instant::now();
            assert!(matches!(droppable(work("test")).await, Ok(1)));
            assert_eq!(began.elapsed(), Duration::from_millis(70));
            fail::cfg("test", "1*return(drop)->off").unwrap();
            assert!(matches!(droppable(work("test")).await, Err(Error::Unknown(_))));
            assert!(matches!(droppable(work("test")).await, Ok(1)));
            fail::cfg("test", "return(drop)").unwrap();
            assert!(matches!(work("test").await, Ok(1)), "nobody drops this");
            scenario.teardown();
            assert_eq!(
                *HEARD.lock().unwrap(),
                ["test: error", "test: delay 70", "test: drop"]
            );
        }
    }
}
