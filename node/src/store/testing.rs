//! A Postgres of a test's own, migrated.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::{Options, Store};
use crate::dev::Postgres;
use crate::dev::postgres;

pub(crate) struct Fresh {
    pub(crate) store: Store,
    pub(crate) server: Postgres,
}

/// Starts a server, which ends with the value.
pub(crate) async fn fresh() -> Fresh {
    fresh_with(postgres::Options::for_tests()).await
}

pub(crate) async fn fresh_with(options: postgres::Options) -> Fresh {
    let server = Postgres::start(options).await.unwrap();
    let store = Store::new(&Options {
        url: server.url(),
        connections: 10,
        hot_connections: 4,
        ttl: Duration::from_secs(3),
        application: "ringmesh test".into(),
    })
    .unwrap();
    store.migrate().await.unwrap();
    Fresh { store, server }
}

impl Fresh {
    /// A statement that answers with one number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&self.store.pool)
            .await
            .unwrap()
    }

    /// A session of its own, for what must stay open.
    pub(crate) async fn session(&self) -> Session {
        Session(PgConnection::connect_with(&self.store.direct).await.unwrap())
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
