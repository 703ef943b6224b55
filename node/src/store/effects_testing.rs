//! Two claimed tasks of two slots, and transactions of handlers about them.

use std::time::Duration;

use tokio::task::JoinHandle;

use super::races_tests::{Session, claim, number, run};
use super::testing::PATIENCE;
use super::testing_owner::{Database, slot_of};
use super::*;
use crate::task::Claimed;
use ringmesh_ring::{Epoch, Slot};

/// What calls of a run's SQL have in common.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Call {
    Guard,
    Complete,
}

pub(super) const BOTH: [Call; 2] = [Call::Guard, Call::Complete];

pub(super) struct World {
    pub(super) db: Database,
    pub(super) me: Me,
    /// Of the lower slot.
    pub(super) first: Claimed,
    /// Of the higher slot.
    pub(super) second: Claimed,
}

impl World {
    pub(super) async fn new() -> Self {
        let db = Database::new().await;
        let mut keys = ["k", "l"];
        keys.sort_by_key(|key| slot_of(key));
        let slots = keys.map(slot_of);
        assert!(slots[0] < slots[1]);
        let (me, granted) = db.owner("a", &slots).await;
        run(&db, "create table public.effect (what text)").await;
        for key in keys {
            db.submit("noop", key, "1").await;
        }
        let first = claim(&db, me, slots[0], granted[0].1).await.remove(0);
        let second = claim(&db, me, slots[1], granted[1].1).await.remove(0);
        World {
            db,
            me,
            first,
            second,
        }
    }

    pub(super) fn granted(&self) -> (Slot, Epoch) {
        (self.first.id.slot, self.first.epoch)
    }

    /// A transaction with an effect.
    pub(super) async fn effect(&self, what: &str) -> Session {
        let mut session = Session::new(&self.db).await;
        let sql = format!("begin; insert into public.effect values ('{what}')");
        session.run(&sql).await.unwrap();
        session
    }

    /// A transaction with an effect that is registered for its commit.
    pub(super) async fn registered(&self, call: Call) -> Session {
        let mut session = self.effect("mine").await;
        session.run(&of(call, &self.first)).await.unwrap();
        session
    }

    /// The commit of such a transaction, with all its locks, of which the one on the first task counts here; and what lets it go on
    /// when it is dropped.
    pub(super) async fn held(&self, call: Call) -> (JoinHandle<Result<(), sqlx::Error>>, Session) {
        let mut gate = Session::new(&self.db).await;
        let mut session = self.registered(call).await;
        // Tasks are locked in their order.
        session.run(&of(Call::Guard, &self.second)).await.unwrap();
        let sql = format!(
            "begin; select from ringmesh.task where id = {} for update",
            self.second.id.number
        );
        gate.run(&sql).await.unwrap();
        let commit = tokio::spawn(async move { session.run("commit").await });
        self.waiting(1, &commit).await;
        (commit, gate)
    }

    /// Waits until so many sessions wait for a lock, this one among them.
    pub(super) async fn waiting<T>(&self, sessions: i64, one: &JoinHandle<T>) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while self.waiters().await < sessions {
            assert!(!one.is_finished(), "it did not wait");
            assert!(tokio::time::Instant::now() < deadline, "it does not wait");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    async fn waiters(&self) -> i64 {
        let sql = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        number(&self.db, sql).await
    }

    pub(super) async fn effects(&self) -> i64 {
        number(&self.db, "select count(*) from public.effect").await
    }

    /// Nothing was half-written: neither an end, nor a registration that stayed.
    pub(super) async fn open(&self) -> i64 {
        assert_eq!(
            number(&self.db, "select count(*) from ringmesh.at_commit").await,
            0
        );
        number(&self.db, "select count(*) from ringmesh.task").await
    }

    pub(super) async fn read_back(&self) -> ReadBack {
        self.db.store.read_back(&[self.first.token()]).await.unwrap()[0].1
    }

    /// Another node.
    pub(super) async fn other(&self) -> Me {
        self.db.node("b", Duration::from_secs(600)).await
    }
}

/// The statement of a run.
pub(super) fn of(call: Call, task: &Claimed) -> String {
    let name = match call {
        Call::Guard => "guard",
        Call::Complete => "complete",
    };
    format!(
        "select ringmesh.{name}('{}', {}, {})",
        task.id,
        task.epoch.get(),
        task.attempt
    )
}

/// The SQLSTATE of a refusal.
pub(super) fn code(result: Result<(), sqlx::Error>) -> Option<String> {
    let error = result.err()?;
    let refusal = error.as_database_error().unwrap_or_else(|| panic!("{error:?}"));
    Some(refusal.code().unwrap().into_owned())
}

pub(super) fn is(result: Result<(), sqlx::Error>, state: &str) {
    match result {
        Ok(()) => panic!("it was not refused with {state}"),
        Err(error) => assert_eq!(code(Err(error)).as_deref(), Some(state)),
    }
}
