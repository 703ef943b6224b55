//! What happened: the log of Postgres decoded, the nodes' event files, samples.
//!
//! Nothing here asks the product what it did. The truth is what Postgres committed, read from its own log in the order of its
//! commits ([`stream`]); nodes are asked only where the question is what they believe.
//!
//! | file | reads |
//! |---|---|
//! | `stream` | the log, through restarts and failovers |
//! | `pgoutput` | the messages in it |
//! | `rows` | of these what checkers need |
//! | `claims` | of these what claims say of their fences |
//! | `look` | counts and views, each second |
//! | `events` | the nodes' notes |
//! | `ending` | what is left behind |

mod claims;
mod ending;
mod events;
mod look;
mod pgoutput;
mod rows;
mod stream;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, Result, anyhow, ensure};
use ringmesh::sqlx::postgres::{PgConnectOptions, PgPoolOptions};
use ringmesh::sqlx::{self, AssertSqlSafe, PgPool};
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::{CancellationToken, DropGuard};

pub use self::events::Follower;
use self::stream::{NAME, Progress, Stream};
use crate::history::{Change, History, Moment, Sample, Step, Submit, Terms, View};
use crate::workload::note;

/// For the record to begin, and to come to its end.
const PATIENCE: Duration = Duration::from_secs(120);
/// For a question beside the record.
const SOON: Duration = Duration::from_secs(2);
/// For the time.
const AT_ONCE: Duration = Duration::from_millis(500);

/// A node to be asked.
#[derive(Debug, Clone)]
pub struct Node {
    /// Its name.
    pub name: String,
    /// Where its HTTP answers, without a slash at the end.
    pub url: String,
    /// What it asks for.
    pub token: Option<String>,
}

impl Node {
    async fn get(&self, http: &reqwest::Client, path: &str) -> Option<reqwest::Response> {
        let request = http.get(format!("{}{path}", self.url));
        let request = match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        };
        request.send().await.ok()
    }
}

/// Keeps the record of a run. Dropped, it stops, and leaves its slot in Postgres behind.
#[derive(Debug)]
pub struct Observer {
    db: PgPool,
    nodes: Vec<Node>,
    events_dir: PathBuf,
    progress: watch::Receiver<Progress>,
    marks: AtomicU64,
    /// By how much Postgres' clock is ahead of this machine's, microseconds.
    ahead: AtomicI64,
    stream: JoinHandle<Result<Vec<Change>>>,
    samples: JoinHandle<Vec<Sample>>,
    views: JoinHandle<Vec<View>>,
    at_start: HashMap<String, (u32, ending::Held)>,
    stop_looks: CancellationToken,
    stop_stream: CancellationToken,
    _stop: [DropGuard; 2],
}

impl Observer {
    /// Begins the record; returns once it has begun. Nodes may live already or not, the tables and the publication
    /// `ringmesh_faults` must be there, and Postgres must run with `wal_level = logical`.
    ///
    /// # Errors
    /// The record did not begin within two minutes.
    pub async fn start(database_url: &str, nodes: Vec<Node>, events_dir: PathBuf) -> Result<Observer> {
        let connect: PgConnectOptions = database_url.parse()?;
        let connect = connect.application_name(NAME);
        let db = PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(SOON)
            .connect_lazy_with(connect.clone());
        make_deletes_visible(&db).await?;
        let (stream, mut progress) = Stream::new(connect, password(database_url)?);
        let (stop_stream, stop_looks) = (CancellationToken::new(), CancellationToken::new());
        let stream = tokio::spawn(stream.run(stop_stream.clone()));
        timeout(PATIENCE, progress.wait_for(|progress| progress.baselines > 0))
            .await
            .context("the record did not begin in time")?
            .map_err(|_| anyhow!("the record ended before it began"))?;
        let noted = events::read(&events_dir)?;
        Ok(Observer {
            samples: tokio::spawn(look::sample(db.clone(), stop_looks.clone())),
            views: tokio::spawn(look::view(db.clone(), nodes.clone(), stop_looks.clone())),
            at_start: ending::held(&events::processes(&noted)),
            db,
            nodes,
            events_dir,
            progress,
            marks: AtomicU64::new(0),
            ahead: AtomicI64::new(0),
            stream,
            _stop: [stop_stream.clone().drop_guard(), stop_looks.clone().drop_guard()],
            stop_looks,
            stop_stream,
        })
    }

    /// The number of the last transaction that was committed before now; where Postgres does not answer, of the last that was
    /// read.
    pub async fn number(&self) -> u64 {
        let _ = timeout(SOON, self.catch_up()).await;
        self.progress.borrow().number
    }

    /// Now, on all clocks. Faults may shift that of Postgres; while it does not answer, it is taken to go on as it did.
    pub async fn moment(&self, step: Step) -> Moment {
        let at = note::now();
        let clock = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        let here = clock.map_or(0, |time| i64::try_from(time.as_micros()).unwrap_or(i64::MAX));
        let clock = "select (extract(epoch from clock_timestamp()) * 1e6)::bigint";
        let asked = sqlx::query_scalar::<_, i64>(clock).fetch_one(&self.db);
        if let Ok(Ok(there)) = timeout(AT_ONCE, asked).await {
            self.ahead.store(there - here, Ordering::Relaxed);
        }
        Moment {
            at,
            committed_at: here + self.ahead.load(Ordering::Relaxed),
            wal: self.number().await,
            step,
        }
    }

    /// Waits until all that is committed has been read.
    async fn catch_up(&self) -> Result<()> {
        let mark = 1 + self.marks.fetch_add(1, Ordering::Relaxed);
        sqlx::query("select pg_logical_emit_message(true, $1, $2)")
            .bind(NAME)
            .bind(mark.to_string())
            .execute(&self.db)
            .await?;
        let mut progress = self.progress.clone();
        progress.wait_for(|progress| progress.mark >= mark).await?;
        Ok(())
    }

    /// Ends the record, and joins it with what clients and the run know.
    ///
    /// # Errors
    /// Postgres does not answer, or the record or the notes have holes.
    pub async fn end(self, submits: Vec<Submit>, moments: Vec<Moment>, terms: Terms) -> Result<History> {
        let deadline = Instant::now() + PATIENCE;
        while !self.stream.is_finished() {
            match timeout(PATIENCE, self.catch_up()).await {
                Ok(Ok(())) => break,
                Ok(Err(error)) if Instant::now() >= deadline => return Err(error),
                Ok(Err(_)) => sleep(Duration::from_millis(200)).await,
                Err(_) => return Err(anyhow!("the record does not come to its end")),
            }
        }
        self.stop_looks.cancel();
        let (samples, views) = (self.samples.await?, self.views.await?);
        self.stop_stream.cancel();
        let changes = self.stream.await?.context("the record has a hole")?;
        drop_slot(&self.db).await?;
        let events = events::read(&self.events_dir)?;
        let end = ending::look(&self.db, &self.nodes, &self.at_start, &events).await?;
        self.db.close().await;
        Ok(History {
            changes,
            submits,
            events,
            samples,
            views,
            moments,
            end,
            terms,
        })
    }
}

/// Lets the log show deletes and changes where no key says which row it was. Without, Postgres would refuse them, and the record
/// would keep the product from doing what it is there to find.
async fn make_deletes_visible(db: &PgPool) -> Result<()> {
    let keyless: Vec<String> = sqlx::query_scalar(
        "select c.oid::regclass::text from pg_class c
         where c.relkind = 'r' and c.relreplident = 'd'
           and not exists (select from pg_index i where i.indrelid = c.oid and i.indisprimary)
           and (c.oid in (select inhrelid from pg_inherits where inhparent = 'ringmesh.finished_task'::regclass)
                or c.oid = 'ringmesh_faults.effect'::regclass)",
    )
    .fetch_all(db)
    .await?;
    for table in keyless {
        let alter = format!("alter table {table} replica identity full");
        sqlx::raw_sql(AssertSqlSafe(alter)).execute(db).await?;
    }
    Ok(())
}

/// The walsender may need a moment to see that its reader has gone.
async fn drop_slot(db: &PgPool) -> Result<()> {
    let drop = "select count(pg_drop_replication_slot(slot_name)) from pg_replication_slots where slot_name = $1 and not active";
    let left = "select count(*) from pg_replication_slots where slot_name = $1";
    let deadline = Instant::now() + PATIENCE;
    loop {
        sqlx::query(drop).bind(NAME).execute(db).await.ok();
        let left: i64 = sqlx::query_scalar(left).bind(NAME).fetch_one(db).await?;
        if left == 0 {
            return Ok(());
        }
        ensure!(Instant::now() < deadline, "the slot {NAME} cannot be dropped");
        sleep(Duration::from_millis(100)).await;
    }
}

/// sqlx gives away all of a URL but this.
fn password(url: &str) -> Result<String> {
    let url = reqwest::Url::parse(url).context("the database's URL is none")?;
    let password = url.password().unwrap_or_default();
    ensure!(
        !password.contains('%'),
        "a password with escapes is not understood here"
    );
    Ok(password.to_owned())
}
