//! Four ways to submit a task: from Rust, with options, over HTTP, and from SQL inside a transaction of your own.
//!
//!     cargo run -p ringmesh-examples --example submit
//!
//! It needs nothing: it starts a Postgres of its own in a temporary folder and removes it at the end.

use std::net::SocketAddr;
use std::time::Duration;

use ringmesh::config::Config;
use ringmesh::dev::postgres::{Options, Postgres};
use ringmesh::sqlx::{self, Connection, PgConnection};
use ringmesh::task::{Submit, TaskId};
use ringmesh::{Context, Failure, Key, Mesh};
use serde_json::{Value, json};

async fn double(_: Context, number: i64) -> Result<i64, Failure> {
    number
        .checked_mul(2)
        .ok_or_else(|| Failure::new("the number is too large").fatal())
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = Postgres::start(Options::for_tests()).await?;
    let mesh = Mesh::builder()
        .config(Config {
            name: "calculator".to_owned(),
            database_url: server.url().into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            gossip: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..Config::default()
        })
        .handler("double", double)
        .start()
        .await?;
    let key = Key::new("tenant-1")?;

    // 1. From Rust. When this returns, the task is committed.
    let first = mesh.submit("double", key.clone(), &21).await?;
    show(&mesh, "from Rust", first.id).await?;

    // 2. With options. Under an idempotency key the same submit may be sent again, after an unknown outcome above all:
    //    it answers with the task that is there already.
    let submit = Submit {
        idempotency_key: Some("invoice-4711".to_owned()),
        priority: 5,
        max_attempts: 3,
        timeout: Duration::from_secs(30),
        ..Submit::new("double", key, &4711)?
    };
    let second = mesh.submit_task(submit.clone()).await?;
    let again = mesh.submit_task(submit).await?;
    assert!(again.replayed && again.id == second.id);
    show(&mesh, "with options", second.id).await?;

    // 3. Over HTTP, to any node of the mesh, from any language; `wait` answers with the end of the task.
    let answer: Value = ringmesh::tls::http_client()
        .build()?
        .post(format!("http://{}/v1/tasks?wait=10s", mesh.address()))
        .json(&json!({ "kind": "double", "key": "tenant-2", "payload": 8 }))
        .send()
        .await?
        .error_for_status()?
        .json()
        .await?;
    println!(
        "{:<14}{:<10}{} = {}",
        "over HTTP",
        answer["id"].as_str().unwrap_or("?"),
        answer["state"],
        answer["result"]
    );

    // 4. From SQL. The task appears if and when your own transaction commits.
    let mut postgres = PgConnection::connect(&server.url()).await?;
    let mut tx = postgres.begin().await?;
    let id: String = sqlx::query_scalar("select ringmesh.enqueue('double', 'tenant-3', '50')")
        .fetch_one(&mut *tx)
        .await?;
    tx.commit().await?;
    show(&mesh, "from SQL", id.parse()?).await?;

    postgres.close().await?;
    mesh.drain().await?;
    server.stop().await?;
    Ok(())
}

/// Waits until a task has ended, and prints how.
async fn show(mesh: &Mesh, way: &str, id: TaskId) -> Result<(), Box<dyn std::error::Error>> {
    let end = mesh
        .end_of(id, Duration::from_secs(10))
        .await
        .ok_or("no end in time")?;
    let result = end.result.as_deref().map_or("null", |result| result.get());
    println!("{way:<14}{:<10}{} = {result}", id.to_string(), json!(end.state));
    Ok(())
}
