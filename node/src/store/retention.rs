//! Day partitions of finished tasks: created ahead, dropped after the retention time.
//!
//! A missing day fails every finish, so days are created well ahead. A day is detached concurrently and only then dropped,
//! each under a short lock timeout: a plain drop behind one long reader would stop every finish.

use std::time::Duration;

use sqlx::{Connection, PgConnection};

use super::{Error, Store};

/// For how many days ahead there are partitions.
const DAYS_AHEAD: i32 = 7;

impl Store {
    /// Creates the days ahead that are missing, drops those past their retention, forgets nodes fenced long ago. Every node
    /// may call it at any time; what one does not get done, the next call does. Answers with the days dropped.
    ///
    /// # Errors
    /// What was done stays done.
    pub async fn keep_days(&self, retention: Duration) -> Result<usize, Error> {
        let mut connection = PgConnection::connect_with(&self.direct).await?;
        let dropped = keep_days(&mut connection, retention).await;
        connection.close().await.ok();
        dropped
    }

    /// How often nodes of this name started lately without leaving by themselves.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn recent_starts(&self, name: &str) -> Result<i64, Error> {
        Ok(sqlx::query_file_scalar!("src/store/sql/recent_starts.sql", name)
            .fetch_one(&self.pool)
            .await?)
    }
}

async fn keep_days(connection: &mut PgConnection, retention: Duration) -> Result<usize, Error> {
    sqlx::query("set lock_timeout = '500ms'")
        .execute(&mut *connection)
        .await?;
    sqlx::query("select ringmesh.create_days($1)")
        .bind(DAYS_AHEAD)
        .execute(&mut *connection)
        .await?;
    sqlx::query_file!("src/store/sql/forget_nodes.sql")
        .execute(&mut *connection)
        .await?;
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX / 2);
    let days = sqlx::query_file_scalar!("src/store/sql/old_days.sql", retention)
        .fetch_all(&mut *connection)
        .await?;
    let mut dropped = 0;
    for day in days {
        // The name comes from the catalogue and matches ^finished_task_[0-9]{8}$ there.
        let detach =
            format!("alter table ringmesh.finished_task detach partition ringmesh.{day} concurrently");
        let drop = format!("drop table ringmesh.{day}");
        let done = async {
            sqlx::query(sqlx::AssertSqlSafe(detach))
                .execute(&mut *connection)
                .await?;
            sqlx::query(sqlx::AssertSqlSafe(drop))
                .execute(&mut *connection)
                .await
        };
        match done.await {
            Ok(_) => dropped += 1,
            // A reader holds it, or another node is at it: next time. One bad day does not keep the others.
            Err(error) => tracing::info!(%day, %error, "could not drop a day of finished tasks yet"),
        }
    }
    Ok(dropped)
}
