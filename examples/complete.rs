//! A handler that charges by a connection of its own, fails before and after it, and charges once all the same.
//!
//!     cargo run -p ringmesh-examples --example complete
//!
//! It needs nothing: it starts a Postgres of its own in a temporary folder and removes it at the end.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use ringmesh::config::Config;
use ringmesh::context::Fence;
use ringmesh::dev::postgres::{Options, Postgres};
use ringmesh::sqlx::{self, PgPool};
use ringmesh::{Context, Failure, Key, Mesh};

/// The effect and the end of the task, in one commit. The error may come from the commit.
async fn charge(pool: &PgPool, run: Fence, cents: i64) -> Result<(), sqlx::Error> {
    let mut tx = pool.begin().await?;
    sqlx::query("insert into charge (task, cents) values ($1, $2)")
        .bind(run.task.to_string())
        .bind(cents)
        .execute(&mut *tx)
        .await?;
    sqlx::query(
        "select ringmesh.complete($1, $2, $3, jsonb_build_object('charged', $4::bigint), boot => $5)",
    )
    .bind(run.task.to_string())
    .bind(run.epoch.get())
    .bind(run.attempt)
    .bind(cents)
    .bind(run.boot)
    .execute(&mut *tx)
    .await?;
    tx.commit().await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = Postgres::start(Options::for_tests()).await?;
    let pool = PgPool::connect(&server.url()).await?;
    sqlx::raw_sql("create table charge (task text not null, cents bigint not null)")
        .execute(&pool)
        .await?;
    static RUNS: AtomicU32 = AtomicU32::new(0);
    let charges = pool.clone();
    let mesh = Mesh::builder()
        .config(Config {
            name: "till".to_owned(),
            database_url: server.url().into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            gossip: SocketAddr::from(([127, 0, 0, 1], 0)),
            backoff_min: Duration::from_millis(100),
            ..Config::default()
        })
        // `true`: the first run fails before it charges, the next one right after.
        .handler("charge", move |ctx: Context, fails: bool| {
            let pool = charges.clone();
            async move {
                let run = RUNS.fetch_add(1, Ordering::Relaxed);
                if fails && run == 0 {
                    return Err(Failure::new("the line is dead"));
                }
                charge(&pool, ctx.fence(), 500).await?;
                if fails {
                    return Err(Failure::new("the line is dead again"));
                }
                Ok(())
            }
        })
        .start()
        .await?;
    for fails in [true, false] {
        let task = mesh.submit("charge", Key::new("customer-7")?, &fails).await?;
        let end = mesh
            .end_of(task.id, Duration::from_secs(30))
            .await
            .ok_or("no end in time")?;
        let result = end.result.as_deref().map_or("null", |result| result.get());
        println!("{} {:?} with {result}", task.id, end.state);
    }

    // Two tasks, three runs, two charges.
    let (charges, tasks): (i64, i64) = sqlx::query_as("select count(*), count(distinct task) from charge")
        .fetch_one(&pool)
        .await?;
    println!(
        "{} runs, {charges} charges for {tasks} tasks",
        RUNS.load(Ordering::Relaxed)
    );
    assert_eq!((charges, tasks, RUNS.load(Ordering::Relaxed)), (2, 2, 3));

    pool.close().await;
    mesh.drain().await?;
    server.stop().await?;
    Ok(())
}
