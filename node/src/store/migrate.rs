//! Migrations: forward only, by all nodes at once on an empty database, safely.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};
use tokio::time::timeout;

use super::{Error, Store};
use crate::failpoint;

/// How long all migrations may take, the wait for another node that is at it included.
const MIGRATE_WITHIN: Duration = Duration::from_secs(120);

static MIGRATIONS: sqlx::migrate::Migrator = sqlx::migrate!("../migrations");

/// Why the schema is not usable for this binary.
#[derive(Debug, thiserror::Error)]
pub enum MigrateError {
    /// Nothing was changed.
    #[error(transparent)]
    Store(#[from] Error),
    /// Postgres refused a migration. Nothing was changed: all migrations stand in one transaction.
    #[error("a migration failed, and none was kept")]
    Migration(#[source] sqlx::migrate::MigrateError),
    /// Nothing was changed.
    #[error(
        "the schema needs a binary that knows migration {needed}, this one knows {known}: upgrade this binary"
    )]
    TooOld {
        /// The lowest migration number that a binary must know.
        needed: i64,
        /// The last migration that this binary knows.
        known: i64,
    },
}

/// The number of the last migration that this binary knows.
pub fn known() -> i64 {
    MIGRATIONS
        .iter()
        .map(|migration| migration.version)
        .max()
        .unwrap_or(0)
}

impl Store {
    /// Brings the schema up to this binary's, in one transaction under an advisory transaction lock: a cancelled or killed
    /// migration leaves neither a half schema nor a lock behind. A newer schema that still allows this binary is left alone.
    ///
    /// Answers with the number of migrations that were applied.
    ///
    /// # Errors
    /// On each of them nothing was changed.
    pub async fn migrate(&self) -> Result<usize, MigrateError> {
        self.find_way().await?;
        let mut session = self.session(super::ANSWER_WITHIN, &[]).await?;
        let begin = if session.is_per_transaction() {
            session.beginning(include_str!("sql/forget_names.sql"))
        } else {
            session.beginning("")
        };
        timeout(MIGRATE_WITHIN, migrate_on(session.connection(), begin))
            .await
            .unwrap_or_else(|_| Err(Error::late().into()))
    }
}

async fn migrate_on(connection: &mut PgConnection, begin: String) -> Result<usize, MigrateError> {
    let store = |e: sqlx::Error| MigrateError::Store(e.into());
    let mut tx = connection.begin_with(AssertSqlSafe(begin)).await.map_err(store)?;
    sqlx::query("select pg_advisory_xact_lock(hashtextextended('ringmesh.migrate', 0))")
        .execute(&mut *tx)
        .await
        .map_err(store)?;
    let fresh = sqlx::query_scalar::<_, bool>("select to_regclass('ringmesh._sqlx_migrations') is null")
        .fetch_one(&mut *tx)
        .await
        .map_err(store)?;
    let before = if fresh {
        // Two creators of one schema collide even with "if not exists"; the lock above serialises them.
        sqlx::query("create schema if not exists ringmesh")
            .execute(&mut *tx)
            .await
            .map_err(store)?;
        0
    } else {
        let needed =
            sqlx::query_scalar::<_, i64>("select coalesce(max(oldest_binary), 0) from ringmesh.mesh")
                .fetch_one(&mut *tx)
                .await
                .map_err(store)?;
        if needed > known() {
            return Err(MigrateError::TooOld {
                needed,
                known: known(),
            });
        }
        applied(&mut tx).await.map_err(store)?
    };
    // The runner's own table belongs into our schema, like everything else.
    sqlx::query("set local search_path = ringmesh, pg_catalog")
        .execute(&mut *tx)
        .await
        .map_err(store)?;
    let migrator = sqlx::migrate::Migrator {
        migrations: MIGRATIONS.migrations.clone(),
        // A newer schema has migrations that this binary does not know; `oldest_binary` says whether that is allowed.
        ignore_missing: true,
        // Its lock belongs to the session and would outlive a cancelled run; ours ends with the transaction.
        locking: false,
        ..sqlx::migrate::Migrator::DEFAULT
    };
    failpoint::at(failpoint::MIGRATE).await?;
    migrator.run_direct(None, &mut *tx, false).await.map_err(failed)?;
    let after = applied(&mut tx).await.map_err(store)?;
    failpoint::at(failpoint::MIGRATED).await?;
    tx.commit().await.map_err(store)?;
    failpoint::at(failpoint::SCHEMA).await?;
    Ok(usize::try_from(after - before).unwrap_or(0))
}

/// A session that ended half-way says nothing against the migration: it is tried again.
fn failed(error: sqlx::migrate::MigrateError) -> MigrateError {
    use sqlx::migrate::MigrateError::{Execute, ExecuteMigration};
    match error {
        Execute(source) => after(source, Execute),
        ExecuteMigration(source, version) => after(source, |source| ExecuteMigration(source, version)),
        other => MigrateError::Migration(other),
    }
}

fn after(
    source: sqlx::Error,
    failed: impl FnOnce(sqlx::Error) -> sqlx::migrate::MigrateError,
) -> MigrateError {
    match Error::from(source) {
        Error::Refused(source) => MigrateError::Migration(failed(source)),
        error => MigrateError::Store(error),
    }
}

async fn applied(tx: &mut PgConnection) -> Result<i64, sqlx::Error> {
    sqlx::query_scalar("select count(*) from ringmesh._sqlx_migrations")
        .fetch_one(tx)
        .await
}
