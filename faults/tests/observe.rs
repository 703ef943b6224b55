//! The observer against real servers and real nodes: its record is what stands in the tables, whatever befell Postgres.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringmesh::dev::{Mesh, Postgres, mesh, postgres};
use ringmesh::sqlx::postgres::PgPoolOptions;
use ringmesh::sqlx::{self, PgPool};
use ringmesh::store::{Options as StoreOptions, Store};
use ringmesh_faults::check;
use ringmesh_faults::history::{History, Moment, Row, Step, Terms};
use ringmesh_faults::observe::{Node, Observer};
use ringmesh_faults::workload::{self, Targets, note, schema};
use tokio_util::sync::CancellationToken;

/// Long, as these tests share a machine with others.
const TTL: Duration = Duration::from_secs(15);
/// Whatever is waited for.
const DEADLINE: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(50);

struct Bench {
    postgres: Postgres,
    db: PgPool,
    events: PathBuf,
}

impl Bench {
    async fn start() -> Bench {
        let options = postgres::Options {
            settings: vec![
                ("wal_level".into(), "logical".into()),
                ("shared_buffers".into(), "64MB".into()),
            ],
            ..postgres::Options::for_tests()
        };
        let postgres = Postgres::start(options).await.unwrap();
        let store = Store::new(&StoreOptions {
            url: postgres.url(),
            lease_url: None,
            pooler: ringmesh::store::Pooler::Auto,
            connections: 1,
            hot_connections: 1,
            ttl: TTL,
            application: "test".into(),
        });
        store.unwrap().migrate().await.unwrap();
        schema::create(&postgres.url()).await.unwrap();
        let url = postgres.url();
        let db = PgPoolOptions::new()
            .max_connections(3)
            .connect(&url)
            .await
            .unwrap();
        let events = postgres.dir().with_file_name(format!(
            "{}-events",
            postgres.dir().file_name().unwrap().display()
        ));
        std::fs::create_dir_all(&events).unwrap();
        Bench { postgres, db, events }
    }

    async fn observe(&self, nodes: Vec<Node>) -> Observer {
        let url = self.postgres.url();
        Observer::start(&url, nodes, self.events.clone()).await.unwrap()
    }

    async fn mesh(&self, nodes: usize) -> Mesh {
        let options = mesh::Options {
            nodes,
            base_port: 0,
            binary: env!("CARGO_BIN_EXE_ringmesh-faults").into(),
            extra_env: vec![
                (note::EVENTS.into(), self.events.display().to_string()),
                ("RINGMESH_TTL".into(), format!("{}s", TTL.as_secs())),
            ],
            log_dir: self.events.clone(),
            ready_within: DEADLINE,
            ..mesh::Options::new(self.postgres.url()).unwrap()
        };
        Mesh::start(options).await.unwrap()
    }

    /// Asks until the number is at least so high.
    async fn until(&self, sql: &'static str, least: i64) {
        let deadline = Instant::now() + DEADLINE;
        loop {
            let now: Result<i64, _> = sqlx::query_scalar(sql).fetch_one(&self.db).await;
            match now {
                Ok(now) if now >= least => return,
                now => assert!(Instant::now() < deadline, "{sql}: {now:?}, not {least}"),
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    async fn rows(&self, sql: &'static str) -> Vec<String> {
        let mut rows: Vec<String> = sqlx::query_scalar(sql).fetch_all(&self.db).await.unwrap();
        rows.sort();
        rows
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            let _ = std::fs::remove_dir_all(&self.events);
        }
    }
}

const EFFECTS: &str = "select count(*) from ringmesh_faults.effect";

fn moment(wal: u64, step: Step) -> Moment {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    Moment {
        at: note::now(),
        wal,
        committed_at: i64::try_from(since.unwrap().as_micros()).unwrap(),
        step,
    }
}

fn terms() -> Terms {
    let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap();
    Terms {
        ttl: ns(TTL),
        margin: ns(Duration::from_millis(500)),
        tick: ns(Duration::from_secs(1)),
    }
}

/// The last state of each row, as the record has it, in the words of the queries below.
fn recorded(history: &History) -> BTreeMap<&'static str, Vec<String>> {
    let (mut slots, mut effects, mut ends) = (BTreeMap::new(), Vec::new(), Vec::new());
    for change in &history.changes {
        match &change.row {
            Row::Slot { slot, owner, epoch } => {
                slots.insert(*slot, format!("{slot} {} {epoch}", owner.unwrap_or(0)));
            }
            Row::Effect {
                task,
                epoch,
                attempt,
                node,
                ..
            } => effects.push(format!("{task} {epoch} {attempt} {node}")),
            Row::Finished { id, attempt, .. } => ends.push(format!("{id} {attempt}")),
            _ => {}
        }
    }
    let mut tables = BTreeMap::from([
        ("effects", effects),
        ("ends", ends),
        ("slots", slots.into_values().collect()),
    ]);
    tables.values_mut().for_each(|rows| rows.sort());
    tables
}

#[tokio::test(flavor = "multi_thread")]
async fn the_record_of_a_mesh_is_what_stands_in_its_tables() {
    let mut bench = Bench::start().await;
    let mut mesh = bench.mesh(3).await;
    let nodes: Vec<Node> = mesh
        .nodes()
        .iter()
        .map(|node| Node {
            name: node.name().into(),
            url: node.url().into(),
            token: None,
        })
        .collect();
    let targets = Targets {
        urls: nodes.iter().map(|node| node.url.clone()).collect(),
        token: None,
        database: bench.postgres.url(),
        http: ringmesh::tls::http_client().build().unwrap(),
        ttl: TTL,
    };
    let observer = bench.observe(nodes).await;
    let mut moments = vec![moment(observer.number().await, Step::Quiet)];
    let stop = CancellationToken::new();
    let append = workload::by_name("W1").unwrap();
    let running = stop.clone();
    let submits = tokio::spawn(async move { append.run(targets, 7, Some(200.0), running).await });
    for (killed, effects) in [(false, 100), (true, 400)] {
        bench.until(EFFECTS, effects).await;
        let (id, hosts, incarnations) = ("N20".to_owned(), Vec::new(), Vec::new());
        let fault = Step::Fault {
            id: id.clone(),
            name: "restart of Postgres".into(),
            hosts,
            incarnations,
        };
        moments.push(moment(observer.number().await, fault));
        if killed {
            bench.postgres.kill().await.unwrap();
        }
        bench.postgres.restart().await.unwrap();
        moments.push(moment(observer.number().await, Step::Heal { id }));
    }
    bench.until(EFFECTS, 700).await;
    stop.cancel();
    let submits = submits.await.unwrap();
    moments.push(moment(observer.number().await, Step::Drain));
    bench.until("select -count(*) from ringmesh.task", 0).await;
    moments.push(moment(observer.number().await, Step::End));
    let history = observer.end(submits, moments, terms()).await.unwrap();

    let tables = BTreeMap::from([
        (
            "effects",
            bench
                .rows("select task || ' ' || epoch || ' ' || attempt || ' ' || node from ringmesh_faults.effect")
                .await,
        ),
        (
            "ends",
            bench
                .rows("select slot || '-' || id || ' ' || attempt from ringmesh.finished_task")
                .await,
        ),
        (
            "slots",
            bench
                .rows("select slot || ' ' || coalesce(owner, 0) || ' ' || epoch from ringmesh.slot")
                .await,
        ),
    ]);
    assert_eq!(recorded(&history), tables);
    let left: i64 = sqlx::query_scalar("select count(*) from pg_replication_slots")
        .fetch_one(&bench.db)
        .await
        .unwrap();
    assert_eq!(left, 0, "the observer keeps the log from being freed");

    assert!(history.samples.len() > 2 && history.views.len() > 8);
    assert!(
        history.events.len() as i64 > 2 * 700,
        "runs and renewals were noted"
    );
    // How quick things go is no question to a machine that runs other tests besides.
    let timed = ["I7", "I14"];
    for checker in check::all()
        .iter()
        .filter(|checker| !timed.contains(&checker.id()))
    {
        let found = checker.check(&history);
        assert!(found.is_empty(), "{}: {found:#?}", checker.id());
    }
    mesh.stop(DEADLINE).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn each_transaction_is_recorded_once_through_crashes() {
    const CRASHES: i64 = 4;
    let mut bench = Bench::start().await;
    let observer = bench.observe(Vec::new()).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write(bench.postgres.url(), stop.clone()));
    for crash in 1..=CRASHES {
        bench.until(EFFECTS, crash * 100).await;
        bench.postgres.kill().await.unwrap();
        bench.postgres.restart().await.unwrap();
    }
    bench.until(EFFECTS, (CRASHES + 1) * 100).await;
    stop.cancel();
    writer.await.unwrap();
    let history = observer.end(Vec::new(), Vec::new(), terms()).await.unwrap();
    let seen = seqs(&history);
    let committed: Vec<i64> = sqlx::query_scalar("select seq from ringmesh_faults.effect order by seq")
        .fetch_all(&bench.db)
        .await
        .unwrap();
    assert_eq!(seen, committed, "once each, in the order of their commits");
    let numbers: Vec<u64> = history.changes.iter().map(|change| change.transaction).collect();
    assert!(numbers.is_sorted() && numbers[0] == 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn where_the_slot_is_gone_a_baseline_begins_the_record_anew() {
    let bench = Bench::start().await;
    let observer = bench.observe(Vec::new()).await;
    let stop = CancellationToken::new();
    let writer = tokio::spawn(write(bench.postgres.url(), stop.clone()));
    bench.until(EFFECTS, 100).await;
    // As on a promoted standby, which knows no logical slots.
    let gone = "
        select count(pg_terminate_backend(active_pid)) - count(*) from pg_replication_slots where active";
    let drop = "
        select -count(*) + count(pg_drop_replication_slot(slot_name)) from pg_replication_slots where not active";
    let deadline = Instant::now() + DEADLINE;
    loop {
        sqlx::query(gone).execute(&bench.db).await.unwrap();
        sqlx::query(drop).execute(&bench.db).await.ok();
        let before: i64 = sqlx::query_scalar(
            "select count(*) from pg_replication_slots where confirmed_flush_lsn is not null",
        )
        .fetch_one(&bench.db)
        .await
        .unwrap();
        if before == 0 {
            break;
        }
        assert!(Instant::now() < deadline, "the slot cannot be dropped");
    }
    bench.until(EFFECTS, 300).await;
    stop.cancel();
    writer.await.unwrap();
    let history = observer.end(Vec::new(), Vec::new(), terms()).await.unwrap();
    let baselines = history
        .changes
        .iter()
        .filter(|change| change.row == Row::Baseline);
    assert_eq!(baselines.count(), 2);
    let again = history
        .changes
        .iter()
        .rposition(|change| change.row == Row::Baseline)
        .unwrap();
    let after = History {
        changes: history.changes[again..].to_vec(),
        ..History::default()
    };
    let mut seen = seqs(&after);
    seen.sort_unstable();
    let committed: Vec<i64> = sqlx::query_scalar("select seq from ringmesh_faults.effect order by seq")
        .fetch_all(&bench.db)
        .await
        .unwrap();
    assert_eq!(
        seen, committed,
        "all that stands, once: from the snapshot or from the log after it"
    );
}

/// Commits one effect after the other, through whatever happens to the server.
async fn write(url: String, stop: CancellationToken) {
    let db = PgPoolOptions::new()
        .max_connections(1)
        .connect_lazy(&url)
        .unwrap();
    let insert = "insert into ringmesh_faults.effect values ($2, 'a', $1, 1, 1, 1, 'n1')";
    let mut seq = 0;
    while !stop.is_cancelled() {
        seq += 1;
        let done = sqlx::query(insert)
            .bind(seq)
            .bind(format!("1-{seq}"))
            .execute(&db);
        // Committed or not: the table tells.
        if done.await.is_err() {
            tokio::time::sleep(LOOK).await;
        }
    }
}

fn seqs(history: &History) -> Vec<i64> {
    let effects = history.changes.iter().filter_map(|change| match &change.row {
        Row::Effect { seq, .. } => Some(*seq),
        _ => None,
    });
    effects.collect()
}

/// `cargo test --release -p ringmesh-faults --test observe keeps_up -- --ignored --nocapture`
#[tokio::test(flavor = "multi_thread")]
#[ignore = "measures; wants a quiet machine and --release"]
async fn the_observer_keeps_up() {
    const BATCHES: i64 = 200;
    const BATCH: i64 = 1000;
    const TASKS: i64 = BATCHES * BATCH;
    // What a mesh writes for its tasks, in its order, without the mesh.
    const WRITES: [&str; 3] = [
        "insert into ringmesh.task (slot, key, kind, payload)
         select ringmesh.slot_of(k), k, 'append', '{\"seq\": 1}' from (select 'key-' || n as k from generate_series(1, $1) n) n",
        "update ringmesh.task set epoch = 1, attempt = $1 / $1, started_at = clock_timestamp()",
        "with ended as (delete from ringmesh.task where $1 > 0 returning *),
              effects as (insert into ringmesh_faults.effect
                          select slot || '-' || id, key, id, slot, 1, 1, 'n1' from ended)
         insert into ringmesh.finished_task
             (slot, id, key, kind, priority, state, attempt, failures, crashes, epoch, node, result, created_at, started_at)
         select slot, id, key, kind, priority, 'succeeded', attempt, 0, 0, epoch, 1, 'null', created_at, started_at from ended",
    ];
    let bench = Bench::start().await;
    let observer = bench.observe(Vec::new()).await;
    let memory = || -> i64 {
        let status = std::fs::read_to_string("/proc/self/status").unwrap();
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .unwrap();
        line.split_whitespace().next().unwrap().parse().unwrap()
    };
    let before = memory();
    let began = Instant::now();
    for _ in 0..BATCHES {
        for write in WRITES {
            sqlx::query(write).bind(BATCH).execute(&bench.db).await.unwrap();
        }
    }
    let written = began.elapsed();
    observer.number().await;
    let history = observer.end(Vec::new(), Vec::new(), terms()).await.unwrap();
    let (read, each) = (began.elapsed(), (memory() - before) * 1024 / TASKS);
    let rate = |time: Duration| TASKS as f64 / time.as_secs_f64();
    println!(
        "{TASKS} tasks written at {:.0}/s, read by {:.0}/s",
        rate(written),
        rate(read)
    );
    println!(
        "the record was whole {:?} after the last commit; {each} bytes of memory per task",
        read - written
    );
    assert_eq!(seqs(&history).len() as i64, TASKS);
    assert_eq!(
        history.changes.len() as i64,
        3 * TASKS + 1 + 4096 + i64::from(schema::ACCOUNTS)
    );
}
