//! The kinds of task that the nodes of a lab know.
//!
//! | kind | payload | does |
//! |---|---|---|
//! | `append` | [`Append`] | writes its effect, may keep its transaction open for a while |
//! | `count` | [`Append`] | nothing: its end is its effect |
//! | `transfer` | [`Transfer`] | moves an amount between two accounts, and writes its effect |
//! | `last` | [`Last`] | takes its time in one of three ways, then writes its effect |
//! | `harm` | [`Harm`] | fails, panics, aborts the process, never returns, answers with hostile text |
//! | `due` | [`Due`] | writes its effect, and fails for good where it was started early |
//!
//! An effect is a row of `ringmesh_faults.effect`, written through the task's own transaction. Where Postgres does not answer,
//! handlers snooze instead of failing: what is counted as a failure is only what the payload asks for.

use std::time::Duration;

use ringmesh::context::Context;
use ringmesh::handler::Failure;
use ringmesh::mesh::Builder;
use ringmesh::sqlx;
use serde::{Deserialize, Serialize};

use super::note::{self, Run};

/// Until the next run when Postgres gave no answer.
const AGAIN: Duration = Duration::from_millis(200);

/// Registers all kinds.
pub fn handlers(builder: Builder) -> Builder {
    builder
        .handler("append", append)
        .handler("count", count)
        .handler("transfer", transfer)
        .handler("last", last)
        .handler("harm", harm)
        .handler("due", due)
}

/// Payload of `append`.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct Append {
    /// Its number among the tasks of its key.
    pub seq: i64,
    /// How long the transaction stays open after the write.
    #[serde(default)]
    pub ms: u64,
}

/// Payload of `transfer`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Transfer {
    /// Its number among the tasks of its key.
    pub seq: i64,
    /// The account that pays.
    pub from: i32,
    /// The account that gets.
    pub to: i32,
    /// How much.
    pub amount: i64,
}

/// Payload of `last`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Last {
    /// Its number among the tasks of its key.
    pub seq: i64,
    /// How long it takes.
    pub ms: u64,
    /// In which way.
    pub way: Way,
    /// Whether the effect is written first, and the transaction is open all the time.
    pub open: bool,
}

/// How a run spends its time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Way {
    /// Waits, and stops when it is told to.
    Willing,
    /// Waits, and does not look at its cancellation.
    Deaf,
    /// Blocks a thread of the blocking pool.
    Blocking,
}

/// Payload of `harm`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Harm {
    /// Its number among the tasks of its key.
    pub seq: i64,
    /// What it does.
    pub how: How,
}

/// What a harmful task does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum How {
    /// Nothing harmful: writes its effect.
    Well,
    /// Fails so many times, then writes its effect.
    Fail(i32),
    /// Panics so many times, then writes its effect.
    Panic(i32),
    /// Panics with something that is no text, in each run.
    PanicOdd,
    /// Ends the process, in each run.
    Abort,
    /// Never returns, in each run.
    Forever,
    /// Writes its effect, and answers with text that is hard to store.
    HostileResult,
    /// Fails for good, with text that is hard to store.
    HostileError,
}

/// Payload of `due`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Due {
    /// Its number among the tasks of its key.
    pub seq: i64,
    /// From when on it may be started: microseconds since 1970, by Postgres' clock.
    pub not_before: i64,
}

/// Text with all that readers and stores of text trip over.
fn hostile() -> String {
    "\0 \\u0000 \\ \" ' ; -- $$ \u{202e}\u{200b}\u{feff} e\u{301} \u{10ffff} {\"a\": \"\0\"} \x1b[31m \r\n"
        .repeat(20)
}

async fn append(context: Context, append: Append) -> Result<(), Failure> {
    let _run = Run::started(&context);
    effect(&context, append.seq).await?;
    pause(append.ms).await;
    Ok(())
}

async fn count(context: Context, _: Append) -> Result<(), Failure> {
    let _run = Run::started(&context);
    Ok(())
}

async fn transfer(context: Context, transfer: Transfer) -> Result<(), Failure> {
    let _run = Run::started(&context);
    effect(&context, transfer.seq).await?;
    let Transfer { from, to, amount, .. } = transfer;
    let mut changes = [(from, -amount), (to, amount)];
    // In one order in all transactions: else two of them may wait for each other.
    changes.sort_unstable();
    let mut transaction = context.transaction().await.map_err(again)?;
    for (account, change) in changes {
        sqlx::query("update ringmesh_faults.account set balance = balance + $2 where account = $1")
            .bind(account)
            .bind(change)
            .execute(&mut *transaction)
            .await
            .map_err(again)?;
    }
    Ok(())
}

async fn last(context: Context, last: Last) -> Result<(), Failure> {
    let _run = Run::started(&context);
    if last.open {
        effect(&context, last.seq).await?;
    }
    match last.way {
        Way::Willing => tokio::select! {
            () = pause(last.ms) => {}
            () = context.cancellation().cancelled() => return Err(Failure::snooze(AGAIN)),
        },
        Way::Deaf => pause(last.ms).await,
        Way::Blocking => {
            let blocked = Duration::from_millis(last.ms);
            tokio::task::spawn_blocking(move || std::thread::sleep(blocked)).await?;
        }
    }
    if !last.open {
        effect(&context, last.seq).await?;
    }
    Ok(())
}

async fn harm(context: Context, harm: Harm) -> Result<String, Failure> {
    let _run = Run::started(&context);
    effect(&context, harm.seq).await?;
    match harm.how {
        How::Well => Ok(String::new()),
        How::Fail(times) if context.failures() < times => {
            Err(Failure::new("as asked").retry_after(Duration::from_millis(100)))
        }
        How::Panic(times) if context.failures() < times => panic!("as asked"),
        How::Fail(_) | How::Panic(_) => Ok(String::new()),
        How::PanicOdd => std::panic::panic_any(7_u8),
        How::Abort => std::process::abort(),
        How::Forever => std::future::pending().await,
        How::HostileResult => Ok(hostile()),
        How::HostileError => Err(Failure::new(hostile()).fatal()),
    }
}

async fn due(context: Context, due: Due) -> Result<(), Failure> {
    let _run = Run::started(&context);
    effect(&context, due.seq).await?;
    let mut transaction = context.transaction().await.map_err(again)?;
    let now: i64 = sqlx::query_scalar("select (extract(epoch from clock_timestamp()) * 1e6)::bigint")
        .fetch_one(&mut *transaction)
        .await
        .map_err(again)?;
    if now < due.not_before {
        let early = due.not_before - now;
        return Err(Failure::new(format_args!("started {early} us early")).fatal());
    }
    Ok(())
}

async fn effect(context: &Context, seq: i64) -> Result<(), Failure> {
    let fence = context.fence();
    let mut transaction = context.transaction().await.map_err(again)?;
    sqlx::query(
        "insert into ringmesh_faults.effect (task, key, seq, slot, epoch, attempt, node) values ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(context.task().to_string())
    .bind(context.key().as_str())
    .bind(seq)
    .bind(i32::from(fence.slot.get()))
    .bind(fence.epoch.get())
    .bind(fence.attempt)
    .bind(note::node())
    .execute(&mut *transaction)
    .await
    .map_err(again)?;
    Ok(())
}

/// Without an answer from Postgres nothing has failed that the payload asked for.
fn again<E>(_: E) -> Failure {
    Failure::snooze(AGAIN)
}

async fn pause(ms: u64) {
    if ms > 0 {
        tokio::time::sleep(Duration::from_millis(ms)).await;
    }
}
