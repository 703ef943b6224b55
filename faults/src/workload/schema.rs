//! The tables of the fault suite, and what of Postgres' log the observer reads.

use ringmesh::sqlx::postgres::PgPoolOptions;
use ringmesh::sqlx::raw_sql;

/// Accounts of the bank.
pub const ACCOUNTS: i32 = 100;
/// What each of them begins with.
pub const BALANCE: i64 = 1000;

/// Every effect is a row that nothing but a handler's own transaction writes. No key and no unique index: what is doubled must
/// show as a second row, not as an error that the product could hide behind.
const CREATE: &str = "
    create schema if not exists ringmesh_faults;
    create table if not exists ringmesh_faults.effect (
        task text not null, key text not null, seq bigint not null, slot integer not null, epoch bigint not null,
        attempt integer not null, node text not null
    );
    create table if not exists ringmesh_faults.account (account integer primary key, balance bigint not null);
";

const PUBLISH: &str = "
    create publication ringmesh_faults
        for table ringmesh.slot, ringmesh.node, ringmesh.lease, ringmesh.task, ringmesh.finished_task,
                  ringmesh_faults.effect, ringmesh_faults.account
        with (publish_via_partition_root = true);
";

/// Makes tables, accounts and publication in a database that has the product's schema; what is there already stays.
///
/// # Errors
/// Postgres refused, or did not answer.
pub async fn create(url: &str) -> anyhow::Result<()> {
    let pool = PgPoolOptions::new().max_connections(1).connect(url).await?;
    let mut session = pool.acquire().await?;
    raw_sql(CREATE).execute(&mut *session).await?;
    ringmesh::sqlx::query(
        "insert into ringmesh_faults.account select n, $1 from generate_series(1, $2) n on conflict do nothing",
    )
    .bind(BALANCE)
    .bind(ACCOUNTS)
    .execute(&mut *session)
    .await?;
    let published: bool = ringmesh::sqlx::query_scalar(
        "select exists (select from pg_publication where pubname = 'ringmesh_faults')",
    )
    .fetch_one(&mut *session)
    .await?;
    if !published {
        raw_sql(PUBLISH).execute(&mut *session).await?;
    }
    drop(session);
    pool.close().await;
    Ok(())
}
