//! A real Postgres for tests of what owners do: a server of the test's own, or a new database of the one that `RINGMESH_TEST_POSTGRES` names.

use std::time::Duration;

use ringmesh_ring::{Epoch, Key, Slot};
use sqlx::{Connection, PgConnection};

use super::testing::{PATIENCE, patient};
use super::{Me, Registration, Store};
use crate::dev::{Postgres, postgres};
use crate::task::{State, TaskId, View};

pub(crate) struct Database {
    pub(crate) store: Store,
    pub(crate) url: String,
    _server: Option<Postgres>,
}

impl Database {
    pub(crate) async fn new() -> Self {
        let (server, url) = match std::env::var("RINGMESH_TEST_POSTGRES") {
            Ok(base) => (None, new_database(&base).await),
            Err(_) => {
                let server = Postgres::start(postgres::Options::for_tests()).await.unwrap();
                let url = server.url();
                (Some(server), url)
            }
        };
        let store = patient(&url, "ringmesh test");
        store.migrate().await.unwrap();
        Database {
            store,
            url,
            _server: server,
        }
    }

    /// Another node's access, with connections of its own.
    pub(crate) fn another(&self) -> Store {
        patient(&self.url, "ringmesh test node")
    }

    pub(crate) async fn node(&self, name: &str, ttl: Duration) -> Me {
        let registration = Registration {
            name: name.to_owned(),
            http: "127.0.0.1:1".to_owned(),
            gossip: "127.0.0.1:1".to_owned(),
            weight: 1,
        };
        let boot = 7;
        let incarnation = self
            .store
            .register(boot, &registration, ttl)
            .await
            .unwrap()
            .unwrap();
        Me { incarnation, boot }
    }

    /// A node with a long lease that owns these slots.
    pub(crate) async fn owner(&self, name: &str, slots: &[Slot]) -> (Me, Vec<(Slot, Epoch)>) {
        let me = self.node(name, Duration::from_secs(600)).await;
        (me, self.take(me, slots).await)
    }

    /// Grants slots to a node, whoever had them: as after a fence of the former owner, of which it leaves no trace.
    pub(crate) async fn take(&self, me: Me, slots: &[Slot]) -> Vec<(Slot, Epoch)> {
        let numbers: Vec<i32> = slots.iter().map(|slot| i32::from(*slot)).collect();
        let rows: Vec<(i32, i64)> = sqlx::query_as(
            "update ringmesh.slot set owner = $1, epoch = epoch + 1, settled = 0 where slot = any($2) returning slot, epoch",
        )
        .bind(me.incarnation.0)
        .bind(numbers)
        .fetch_all(&self.store.pool)
        .await
        .unwrap();
        let mut granted: Vec<_> = rows
            .into_iter()
            .map(|(slot, epoch)| (Slot::try_from(slot).unwrap(), Epoch(epoch)))
            .collect();
        granted.sort_unstable();
        granted
    }

    /// Bars a node that has not renewed yet, as whoever wants to fence it does first.
    pub(crate) async fn cut_short(&self, me: Me) {
        let done = sqlx::query_file!("src/store/sql/cut_short.sql", me.incarnation.0, 0)
            .execute(&self.store.pool)
            .await
            .unwrap();
        assert_eq!(done.rows_affected(), 1);
    }

    pub(crate) async fn submit(&self, kind: &str, key: &str, payload: &str) -> TaskId {
        self.submit_with(kind, key, payload, 0, 10, 300_000).await
    }

    pub(crate) async fn submit_with(
        &self,
        kind: &str,
        key: &str,
        payload: &str,
        priority: i32,
        max_attempts: i32,
        timeout_ms: i64,
    ) -> TaskId {
        let id: String = sqlx::query_scalar("select ringmesh.enqueue($1, $2, $3::jsonb, null, $4, $5, $6)")
            .bind(kind)
            .bind(key)
            .bind(payload)
            .bind(priority)
            .bind(max_attempts)
            .bind(timeout_ms)
            .fetch_one(&self.store.pool)
            .await
            .unwrap();
        id.parse().unwrap()
    }

    pub(crate) async fn view(&self, id: TaskId) -> View {
        self.store.tasks(&[id]).await.unwrap().remove(0).unwrap()
    }

    /// Waits until a task has ended.
    pub(crate) async fn end_of(&self, id: TaskId) -> View {
        self.wait_for(id, |view| view.state.is_final()).await
    }

    /// Waits until a task is in that state.
    pub(crate) async fn reaches(&self, id: TaskId, state: State) -> View {
        self.wait_for(id, |view| view.state == state).await
    }

    pub(crate) async fn wait_for(&self, id: TaskId, holds: impl Fn(&View) -> bool) -> View {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        loop {
            let view = self.view(id).await;
            if holds(&view) {
                return view;
            }
            assert!(tokio::time::Instant::now() < deadline, "still {view:?}");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    pub(crate) async fn count(&self, sql: &'static str) -> i64 {
        sqlx::query_scalar(sql).fetch_one(&self.store.pool).await.unwrap()
    }
}

/// Quicker than a server per test.
async fn new_database(base: &str) -> String {
    let mut name = [0; 8];
    getrandom::fill(&mut name).unwrap();
    let name = format!("test_{}", u64::from_le_bytes(name));
    let mut connection = PgConnection::connect(&format!("{base}/postgres")).await.unwrap();
    // Not prepared, so that it passes through a pooler as well.
    sqlx::raw_sql(sqlx::AssertSqlSafe(format!("create database {name}")))
        .execute(&mut connection)
        .await
        .unwrap();
    format!("{base}/{name}")
}

pub(crate) fn slot_of(key: &str) -> Slot {
    Slot::of(&Key::new(key).unwrap())
}
