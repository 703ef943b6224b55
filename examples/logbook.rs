//! An effect in Postgres that happens exactly once, and a cache that stays warm.
//!
//!     cargo run -p ringmesh-examples --example logbook
//!
//! It needs nothing: it starts a Postgres of its own in a temporary folder and removes it at the end. That is also how
//! you can test handlers of your own.

use std::net::SocketAddr;
use std::time::Duration;

use ringmesh::config::Config;
use ringmesh::dev::postgres::{Options, Postgres};
use ringmesh::sqlx::{self, Connection, PgConnection};
use ringmesh::{Context, Failure, Key, Mesh};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Entry {
    amount: i64,
}

/// What the node keeps in memory for an account.
struct Account {
    entries: i64,
    balance: i64,
}

/// Books an entry and answers with the account's balance.
///
/// Everything that goes through `tx` commits together with the end of the task, or not at all: should this node die here,
/// or lose the account's slot, the task runs again elsewhere and finds none of it.
async fn book(ctx: Context, entry: Entry) -> Result<i64, Failure> {
    let account = ctx.key().as_str();
    let cache = ctx.cache::<Account>();
    let mut tx = ctx.transaction().await?;

    // Postgres is asked only by the first task of an account on this node; the next ones find the account in memory.
    let before = match cache.get() {
        Some(warm) => warm,
        None => cache.insert(load(&mut tx, account).await?),
    };
    let after = Account {
        entries: before.entries + 1,
        balance: before.balance + entry.amount,
    };

    // The cache is left before the commit, so it may be ahead of Postgres should the commit be refused. The write
    // therefore names the state that it was computed from, and a run that finds another one loads afresh.
    let written = sqlx::query(
        "insert into account as a (name, entries, balance) values ($1, $2, $3)
         on conflict (name) do update set entries = excluded.entries, balance = excluded.balance
         where a.entries = excluded.entries - 1",
    )
    .bind(account)
    .bind(after.entries)
    .bind(after.balance)
    .execute(&mut *tx)
    .await?;
    if written.rows_affected() == 0 {
        cache.remove();
        return Err(
            Failure::new("the account in memory is not the one in Postgres").retry_after(Duration::ZERO)
        );
    }
    sqlx::query("insert into entry (task, account, amount) values ($1, $2, $3)")
        .bind(ctx.idempotency_key())
        .bind(account)
        .bind(entry.amount)
        .execute(&mut *tx)
        .await?;
    Ok(cache.insert(after).balance)
}

async fn load(tx: &mut PgConnection, account: &str) -> Result<Account, sqlx::Error> {
    let row: Option<(i64, i64)> = sqlx::query_as("select entries, balance from account where name = $1")
        .bind(account)
        .fetch_optional(tx)
        .await?;
    let (entries, balance) = row.unwrap_or_default();
    Ok(Account { entries, balance })
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut server = Postgres::start(Options::for_tests()).await?;
    let mut postgres = PgConnection::connect(&server.url()).await?;
    sqlx::raw_sql(
        "create table account (name text primary key, entries bigint not null, balance bigint not null);
         create table entry (task text primary key, account text not null, amount bigint not null);",
    )
    .execute(&mut postgres)
    .await?;

    let mesh = Mesh::builder()
        .config(Config {
            name: "bank".to_owned(),
            database_url: server.url().into(),
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            gossip: SocketAddr::from(([127, 0, 0, 1], 0)),
            ..Config::default()
        })
        .handler("book", book)
        .start()
        .await?;

    // Tasks of one key run in the order in which they were sent; the two accounts run side by side.
    let mut tasks = Vec::new();
    for amount in [100, -30, 7] {
        for account in ["ada", "grace"] {
            tasks.push(mesh.submit("book", Key::new(account)?, &Entry { amount }).await?);
        }
    }
    for task in tasks {
        let end = mesh
            .end_of(task.id, Duration::from_secs(10))
            .await
            .ok_or("no end in time")?;
        println!(
            "{:>6}  {:9}  balance {}",
            end.key,
            format!("{:?}", end.state).to_lowercase(),
            end.result.as_deref().map_or("-", |result| result.get())
        );
    }
    let (entries, sum): (i64, i64) = sqlx::query_as("select count(*), sum(amount)::bigint from entry")
        .fetch_one(&mut postgres)
        .await?;
    println!("{entries} entries in Postgres, in sum {sum}");

    postgres.close().await?;
    mesh.drain().await?;
    server.stop().await?;
    Ok(())
}
