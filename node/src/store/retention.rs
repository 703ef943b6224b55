//! Day partitions of finished tasks: created ahead, dropped after the retention time. And what dead nodes leave.
//!
//! A missing day fails every finish, so days are created well ahead. A day is detached concurrently and only then dropped,
//! each under a short lock timeout: a plain drop behind one long reader would stop every finish.

use std::time::Duration;

use super::session::Session;
use super::{Error, PATIENT, Store};
use crate::failpoint::{self, droppable};

/// For how many days ahead there are partitions.
const DAYS_AHEAD: i32 = 7;

impl Store {
    /// Creates the days ahead that are missing, drops those past their retention, forgets nodes fenced long ago and the
    /// leases of the fenced. Every node may call it at any time; what one does not get done, the next call does. Answers with the
    /// days dropped.
    ///
    /// # Errors
    /// What was done stays done.
    pub async fn keep_days(&self, retention: Duration) -> Result<usize, Error> {
        let limits = [("lock_timeout", "500ms".to_owned())];
        droppable(async { keep_days(&mut self.session(PATIENT, &limits).await?, retention).await }).await
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

async fn keep_days(session: &mut Session, retention: Duration) -> Result<usize, Error> {
    sqlx::query("select ringmesh.create_days($1)")
        .bind(DAYS_AHEAD)
        .execute(&mut *session)
        .await?;
    sqlx::query_file!("src/store/sql/forget_nodes.sql")
        .execute(&mut *session)
        .await?;
    sqlx::query_file!("src/store/sql/forget_leases.sql")
        .execute(&mut *session)
        .await?;
    let retention = i64::try_from(retention.as_millis()).unwrap_or(i64::MAX / 2);
    let days = sqlx::query_file!("src/store/sql/old_days.sql", retention)
        .fetch_all(&mut *session)
        .await?;
    let mut dropped = 0;
    for day in days {
        // The name comes from the catalogue and matches ^finished_task_[0-9]{8}$ there. Each step stands alone, so whoever is
        // interrupted between two leaves a day that the next call takes up where it is.
        let name = day.name;
        let detach = format!(
            "alter table ringmesh.finished_task detach partition ringmesh.{name} {}",
            match day.pending {
                true => "finalize",
                // No transaction may hold a concurrent one; the lock is then waited for as briefly, with all finishes behind.
                false if session.is_per_transaction() => "",
                false => "concurrently",
            }
        );
        let drop = format!("drop table ringmesh.{name}");
        failpoint::at(failpoint::RETENTION).await?;
        let done = async {
            if day.attached {
                sqlx::query(sqlx::AssertSqlSafe(detach))
                    .execute(&mut *session)
                    .await?;
            }
            sqlx::query(sqlx::AssertSqlSafe(drop))
                .execute(&mut *session)
                .await
        };
        match done.await {
            Ok(_) => dropped += 1,
            // A reader holds it, or another node is at it: next time. One bad day does not keep the others.
            Err(error) => tracing::info!(day = %name, %error, "could not drop a day of finished tasks yet"),
        }
    }
    Ok(dropped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing_owner::Database;

    #[tokio::test]
    async fn a_day_past_its_retention_is_dropped_and_the_days_ahead_are_made() {
        let db = Database::new().await;
        let run = async |sql: &'static str| sqlx::query(sql).execute(&db.store.pool).await.unwrap();
        run("create table ringmesh.finished_task_20200102 (like ringmesh.finished_task including defaults including constraints)")
            .await;
        run(
            "alter table ringmesh.finished_task attach partition ringmesh.finished_task_20200102 \
             for values from ('2020-01-02') to ('2020-01-03')",
        )
        .await;
        run("insert into ringmesh.finished_task (slot, id, key, kind, priority, state, attempt, failures, crashes, created_at, finished_at) \
             values (1, 1, 'k', 'noop', 0, 'succeeded', 1, 0, 0, '2020-01-02', '2020-01-02 12:00+00')")
        .await;
        let days = async || -> i64 {
            let count =
                "select count(*) from pg_inherits where inhparent = 'ringmesh.finished_task'::regclass";
            sqlx::query_scalar(count).fetch_one(&db.store.pool).await.unwrap()
        };
        let before = days().await;

        assert_eq!(
            db.store
                .keep_days(Duration::from_secs(7 * 24 * 3600))
                .await
                .unwrap(),
            1
        );
        assert_eq!(days().await, before - 1, "only the old day is gone");
        assert_eq!(
            db.store
                .keep_days(Duration::from_secs(7 * 24 * 3600))
                .await
                .unwrap(),
            0
        );
    }

    #[tokio::test]
    async fn a_day_that_somebody_detached_and_did_not_drop_is_found() {
        let db = Database::new().await;
        sqlx::query(
            "create table ringmesh.finished_task_20200103 (like ringmesh.finished_task including defaults)",
        )
        .execute(&db.store.pool)
        .await
        .unwrap();
        let week = Duration::from_secs(7 * 24 * 3600);
        assert_eq!(db.store.keep_days(week).await.unwrap(), 1);
        assert_eq!(db.store.keep_days(week).await.unwrap(), 0);
    }
}
