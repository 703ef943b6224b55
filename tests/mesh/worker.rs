//! A node that knows kinds whose effects can be checked.

use std::fs::File;
use std::io::Write as _;
use std::path::Path;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use ringmesh::config::LogFormat;
use ringmesh::sqlx;
use ringmesh::{Context, Failure, Mesh, telemetry};
use serde::Deserialize;

/// The variable that names the folder for the starts of runs, a file for each node, and for gates: each a file that is made when
/// it opens.
pub(crate) const RUNS: &str = "TEST_RUNS";

/// Between two looks at a gate.
const LOOK: Duration = Duration::from_millis(20);

#[derive(Deserialize)]
struct Entry {
    seq: i64,
    /// How long the transaction stays open after the write.
    #[serde(default)]
    ms: u64,
    /// The gate until which the transaction stays open after the write, and busy.
    gate: Option<String>,
}

#[derive(Deserialize)]
struct Gated {
    gate: String,
}

#[derive(Deserialize)]
struct Say {
    text: String,
    zeros: usize,
}

/// Runs a node until it is drained.
///
/// | kind | does |
/// |---|---|
/// | `ledger {"seq", "ms", "gate"}` | writes one row through its task's transaction |
/// | `complete {"seq", "die", "ms", "once"}` | writes one row in a transaction of its own, and completes its task by SQL in it, or dies |
/// | `guard {"seq", "die", "ms", "once"}` | the same, but guards its run; the task ends after it. With `once` it applies its task's id once |
/// | `wait {"gate"}` | ends when the gate is open |
/// | `unless {"gate"}` | fails unless the gate is open |
/// | `say {"text", "zeros"}` | fails with so many NUL characters and that text, for good |
/// | `hog {"seq", "ms"}` | in its first attempt blocks every thread of the process for so long; then as `ledger` |
/// | `drop {"ms"}` | waits for so long, and panics when it lets go of what it holds, also when it is aborted |
/// | `poison` | panics while it holds a lock that all of its kind share |
/// | `exit` | ends the process, politely |
/// | `overflow` | ends the process by a stack that is too deep |
pub(crate) fn run() {
    telemetry::log(LogFormat::Text).unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let mesh = Mesh::builder()
        .handler("ledger", ledger)
        .handler("complete", complete)
        .handler("guard", guard)
        .handler("wait", wait)
        .handler("unless", unless)
        .handler("say", say)
        .handler("hog", hog)
        .handler("drop", drop_badly)
        .handler("poison", poison)
        .handler("exit", exit)
        .handler("overflow", overflow);
    if let Err(error) = runtime.block_on(mesh.run()) {
        panic!("{error}: {error:?}");
    }
}

#[derive(Deserialize)]
struct Held {
    ms: u64,
}

async fn hog(context: Context, mut entry: Entry) -> Result<(), Failure> {
    if context.attempt() == 1 {
        note_run(&context)?;
        let until = Instant::now() + Duration::from_millis(entry.ms);
        let block = move || std::thread::sleep(until.saturating_duration_since(Instant::now()));
        // As many as tokio makes for such work.
        for _ in 0..512 {
            tokio::task::spawn_blocking(block);
        }
        for _ in 0..64 {
            tokio::spawn(async move { block() });
        }
        block();
    }
    entry.ms = 0;
    ledger(context, entry).await
}

struct PanicsWhenDropped;

impl Drop for PanicsWhenDropped {
    fn drop(&mut self) {
        assert!(std::thread::panicking(), "dropped, as asked");
    }
}

async fn drop_badly(_: Context, held: Held) -> Result<(), Failure> {
    let _held = PanicsWhenDropped;
    tokio::time::sleep(Duration::from_millis(held.ms)).await;
    Ok(())
}

async fn poison(_: Context, _: ()) -> Result<(), Failure> {
    static SHARED: Mutex<()> = Mutex::new(());
    let _held = SHARED.lock().unwrap();
    panic!("with the lock in hand");
}

async fn exit(_: Context, _: ()) -> Result<(), Failure> {
    std::process::exit(0)
}

async fn overflow(_: Context, _: ()) -> Result<(), Failure> {
    fn deeper(depth: u64) -> u64 {
        let frame = std::hint::black_box([depth; 256]);
        frame[0] + if depth < u64::MAX { deeper(depth + 1) } else { 0 }
    }
    Err(Failure::new(deeper(0)))
}

async fn ledger(context: Context, entry: Entry) -> Result<(), Failure> {
    // Without a connection nothing has begun: no failure.
    let Ok(mut transaction) = context.transaction().await else {
        return Err(Failure::snooze(Duration::from_millis(100)));
    };
    note_run(&context)?;
    write_entry(&context, entry.seq, &mut transaction).await?;
    if entry.ms > 0 {
        tokio::time::sleep(Duration::from_millis(entry.ms)).await;
    }
    if let Some(gate) = entry.gate {
        while !is_open(&gate)? {
            sqlx::query("select 1").execute(&mut *transaction).await?;
            tokio::time::sleep(LOOK).await;
        }
    }
    Ok(())
}

/// A transaction on a connection of the handler's own.
#[derive(Deserialize)]
struct Own {
    seq: i64,
    /// How long it stays open, with its run registered.
    #[serde(default)]
    ms: u64,
    /// Where one of its runs ends its process: `begun`, `written`, `registered`, `committed`.
    die: Option<String>,
    /// Whether the write is applied once by the task's id.
    #[serde(default)]
    once: bool,
}

impl Own {
    /// Ends the process as `kill -9` does, once for each task: which of its claims comes so far is not known.
    fn dies_at(&self, context: &Context, point: &str) -> Result<(), Failure> {
        if self.die.as_deref() == Some(point) {
            let mark = Path::new(&std::env::var(RUNS)?).join(format!("{}.died", context.task()));
            if File::create_new(mark).is_ok() {
                std::process::abort();
            }
        }
        Ok(())
    }
}

async fn complete(context: Context, own: Own) -> Result<(), Failure> {
    in_own_transaction(&context, &own, "select ringmesh.complete($1, $2, $3, boot => $4)").await
}

async fn guard(context: Context, own: Own) -> Result<(), Failure> {
    in_own_transaction(&context, &own, "select ringmesh.guard($1, $2, $3, boot => $4)").await
}

async fn in_own_transaction(context: &Context, own: &Own, fenced: &'static str) -> Result<(), Failure> {
    use sqlx::Connection as _;
    let fence = context.fence();
    let url = std::env::var("RINGMESH_DATABASE_URL")?;
    // Without a connection nothing has begun: no failure.
    let Ok(mut connection) = sqlx::PgConnection::connect(&url).await else {
        return Err(Failure::snooze(Duration::from_millis(100)));
    };
    note_run(context)?;
    let mut transaction = connection.begin().await?;
    own.dies_at(context, "begun")?;
    if own.once {
        // Its successor waits for the id, also if this process stands still.
        let soon = "set local idle_in_transaction_session_timeout = '5s'";
        sqlx::raw_sql(soon).execute(&mut *transaction).await?;
    }
    let applied =
        sqlx::query_scalar::<_, bool>("select ringmesh.apply_once($1)").bind(context.idempotency_key());
    if own.once && !applied.fetch_one(&mut *transaction).await? {
        return Ok(());
    }
    write_entry(context, own.seq, &mut transaction).await?;
    own.dies_at(context, "written")?;
    let done = sqlx::query(fenced)
        .bind(fence.task.to_string())
        .bind(fence.epoch.get())
        .bind(fence.attempt)
        .bind(fence.boot)
        .execute(&mut *transaction)
        .await;
    let committed = match done {
        Ok(_) => {
            own.dies_at(context, "registered")?;
            tokio::time::sleep(Duration::from_millis(own.ms)).await;
            transaction.commit().await
        }
        Err(error) => Err(error),
    };
    match committed {
        Ok(()) => own.dies_at(context, "committed"),
        // Stale, ended, barred: whatever this run would say, somebody else has the word.
        Err(sqlx::Error::Database(refusal)) if refusal.code().is_some_and(|code| code.starts_with("RM")) => {
            Err(Failure::snooze(Duration::from_millis(100)))
        }
        Err(error) => Err(error.into()),
    }
}

async fn write_entry(
    context: &Context,
    seq: i64,
    connection: &mut sqlx::PgConnection,
) -> Result<(), Failure> {
    let fence = context.fence();
    sqlx::query(
        "insert into ringmesh_test.ledger (task, key, seq, slot, epoch, attempt, node) values ($1, $2, $3, $4, $5, $6, $7)",
    )
    .bind(context.task().to_string())
    .bind(context.key().as_str())
    .bind(seq)
    .bind(i32::from(fence.slot.get()))
    .bind(fence.epoch.get())
    .bind(fence.attempt)
    .bind(std::env::var("RINGMESH_NAME")?)
    .execute(connection)
    .await?;
    Ok(())
}

async fn wait(_: Context, gated: Gated) -> Result<(), Failure> {
    while !is_open(&gated.gate)? {
        tokio::time::sleep(LOOK).await;
    }
    Ok(())
}

async fn unless(_: Context, gated: Gated) -> Result<(), Failure> {
    if is_open(&gated.gate)? {
        return Ok(());
    }
    Err(Failure::new("the gate is not open"))
}

fn is_open(gate: &str) -> Result<bool, Failure> {
    Ok(Path::new(&std::env::var(RUNS)?).join(gate).exists())
}

async fn say(_: Context, say: Say) -> Result<(), Failure> {
    Err(Failure::new("\0".repeat(say.zeros) + &say.text).fatal())
}

/// One line per run, outside of any transaction: a run that had no effect is seen too.
fn note_run(context: &Context) -> Result<(), Failure> {
    let name = format!("{}.runs", std::env::var("RINGMESH_NAME")?);
    let path = Path::new(&std::env::var(RUNS)?).join(name);
    let mut file = File::options().create(true).append(true).open(path)?;
    let line = format!("{} {}\n", context.task(), context.attempt());
    Ok(file.write_all(line.as_bytes())?)
}
