//! A Postgres of a test's own, migrated.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{Options, Store};
use crate::dev::Postgres;
use crate::dev::postgres;

/// After so long without what it waits for, a test has failed. It bounds nothing else.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct Fresh {
    pub(crate) store: Store,
    pub(crate) server: Postgres,
}

/// Starts a server, which ends with the value.
pub(crate) async fn fresh() -> Fresh {
    fresh_with(postgres::Options::for_tests()).await
}

pub(crate) async fn fresh_with(options: postgres::Options) -> Fresh {
    let fresh = unmigrated(options).await;
    fresh.store.migrate().await.unwrap();
    fresh
}

/// As [`fresh`], without any table.
pub(crate) async fn fresh_unmigrated() -> Fresh {
    unmigrated(postgres::Options::for_tests()).await
}

async fn unmigrated(options: postgres::Options) -> Fresh {
    let server = Postgres::start(options).await.unwrap();
    let store = patient(&server.url(), "ringmesh test");
    Fresh { store, server }
}

/// Access as a node has it.
pub(crate) fn store(url: &str, application: &str) -> Store {
    Store::new(&Options {
        url: url.to_owned(),
        lease_url: None,
        pooler: crate::store::Pooler::Auto,
        connections: 10,
        hot_connections: 6,
        // Of leases themselves nothing is tested here; what stays open in a test must outlast a busy machine.
        ttl: Duration::from_secs(600),
        application: application.to_owned(),
    })
    .unwrap()
}

/// Access that waits for connections as long as a test does, as a busy machine may take long to open one.
pub(crate) fn patient(url: &str, application: &str) -> Store {
    let store = store(url, application);
    Store {
        pool: store.pool.patient(PATIENCE),
        control: store.control.patient(PATIENCE),
        hot: store.hot.patient(PATIENCE),
        ..store
    }
}

impl Fresh {
    /// A statement that answers with one number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.store.pool)
            .await
            .unwrap()
    }

    /// A statement about a number and a text that answers with one number.
    pub(crate) async fn count(&self, sql: &str, number: i64, text: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .bind(number)
            .bind(text)
            .fetch_one(&self.store.pool)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// A session of its own, for what must stay open.
    pub(crate) async fn session(&self) -> Session {
        Session(PgConnection::connect_with(&self.store.lease).await.unwrap())
    }
}

pub(crate) struct Session(PgConnection);

impl Session {
    pub(crate) async fn run(&mut self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.0)
            .await
            .unwrap();
    }
}
