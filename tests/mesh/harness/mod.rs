//! A Postgres and a mesh of a test's own, and what can be asked of them.
//!
//! | file | does |
//! |---|---|
//! | `client` | asks the HTTP API |
//! | `load` | submits without pause, and keeps what was accepted |
//! | `history` | what Postgres committed, in the order of its log, and whether that is as promised |
//! | `pooler` | stands between all nodes and Postgres, a PgBouncer |
//! | `proxy` | stands between a node and Postgres, and can be cut, be slow, or fall silent |
//!
//! Nothing sleeps: [`Lab::until`] looks again and again until a deadline. Every failure shows the ends of all logs.

mod client;
mod history;
mod load;
mod pooler;
mod proxy;

use std::path::PathBuf;
use std::time::{Duration, Instant};

use ringmesh::dev::{Mesh, Postgres, mesh, postgres};
use ringmesh::sqlx::postgres::PgPoolOptions;
use ringmesh::sqlx::{AssertSqlSafe, PgPool, query_scalar, raw_sql};
use ringmesh::store::{Options as StoreOptions, Store};
use serde_json::Value;
use tokio::sync::{Semaphore, SemaphorePermit};

pub(crate) use client::{Answer, Client};
pub(crate) use history::History;
pub(crate) use load::{Accepted, Load, Loaded};
pub(crate) use pooler::{Behind, Pooler};
pub(crate) use proxy::Proxy;

/// The lease of all nodes here: the default.
pub(crate) const TTL: Duration = Duration::from_secs(3);
/// For nodes of a test in which no lease is to end: then a machine that is too busy to renew must not end one either. Dead
/// processes are noticed all the same.
pub(crate) const UNHURRIED: (&str, &str) = ("RINGMESH_TTL", "60s");
/// What a slow machine is granted on top of every stated time: when it is over, something has failed.
pub(crate) const SLACK: Duration = Duration::from_secs(60);
/// Between two looks at something that is waited for.
const LOOK: Duration = Duration::from_millis(20);
/// Meshes at once: each is many processes.
static MESHES: Semaphore = Semaphore::const_new(2);

/// How often a test repeats its fault: `MESH_TEST_ROUNDS`, else once.
pub(crate) fn rounds() -> u32 {
    let rounds = std::env::var("MESH_TEST_ROUNDS").ok();
    rounds.map_or(1, |text| text.parse().expect("MESH_TEST_ROUNDS is a number"))
}

/// Which program the nodes are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Program {
    /// `ringmesh`.
    Ringmesh,
    /// This one, which knows the kinds of `worker.rs` besides.
    Worker,
}

/// A Postgres, a mesh on it, and access to both.
pub(crate) struct Lab {
    pub(crate) mesh: Mesh,
    /// Nodes of another program or with other options, in the same mesh.
    pub(crate) guests: Vec<Mesh>,
    /// What stands between the nodes and Postgres.
    pub(crate) pooler: Option<Pooler>,
    pub(crate) db: PgPool,
    pub(crate) client: Client,
    pub(crate) postgres: Postgres,
    dir: PathBuf,
    _permit: SemaphorePermit<'static>,
}

impl Lab {
    /// As many nodes as told, all ready, and a record of what Postgres commits from the first grant on.
    pub(crate) async fn start(nodes: usize, program: Program, env: &[(&str, &str)]) -> Lab {
        Lab::start_on(nodes, program, env, true, None).await
    }

    /// As [`Self::start`], on a database without any table: without a record.
    pub(crate) async fn start_on_empty(nodes: usize, program: Program, env: &[(&str, &str)]) -> Lab {
        Lab::start_on(nodes, program, env, false, None).await
    }

    /// As [`Self::start`], with a pooler between the nodes and Postgres.
    pub(crate) async fn start_behind(nodes: usize, program: Program, behind: Behind) -> Lab {
        Lab::start_on(nodes, program, &[], true, Some(behind)).await
    }

    async fn start_on(
        nodes: usize,
        program: Program,
        env: &[(&str, &str)],
        recorded: bool,
        behind: Option<Behind>,
    ) -> Lab {
        let permit = MESHES.acquire().await.unwrap();
        let postgres = Postgres::start(postgres::Options {
            settings: vec![
                ("wal_level".into(), "logical".into()),
                ("shared_buffers".into(), "32MB".into()),
            ],
            ..postgres::Options::for_tests()
        });
        let postgres = postgres.await.unwrap();
        let db = PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(SLACK)
            .connect(&postgres.url())
            .await
            .unwrap();
        let dir = postgres
            .dir()
            .with_file_name(format!("{}-mesh", postgres.dir().file_name().unwrap().display()));
        std::fs::create_dir_all(&dir).unwrap();
        if recorded {
            migrate(&postgres.url()).await;
            history::record(&db).await;
        }
        let mut options = options(&postgres.url(), &dir, nodes, program, env);
        let mut pooler = None;
        if let Some(behind) = behind {
            let started = Pooler::start(&postgres, &dir, behind).await;
            let url = started.url(&postgres.url(), postgres.port());
            options.extra_env.push(("RINGMESH_DATABASE_URL".into(), url));
            if behind.direct_leases {
                let direct = ("RINGMESH_LEASE_URL".into(), postgres.url());
                options.extra_env.push(direct);
            }
            pooler = Some(started);
        }
        let mesh = match Mesh::start(options).await {
            Ok(mesh) => mesh,
            Err(error) => panic!("{error}\nall logs: {}", dir.display()),
        };
        let urls = mesh.nodes().iter().map(|node| node.url().to_owned());
        Lab {
            client: Client::new(urls),
            mesh,
            guests: Vec::new(),
            pooler,
            db,
            postgres,
            dir,
            _permit: permit,
        }
    }

    /// Begins a record of what Postgres commits.
    pub(crate) async fn record(&self) {
        history::record(&self.db).await;
    }

    /// Adds a node of this name to the mesh, and returns when it is ready. `env` wins over what all nodes are told.
    pub(crate) async fn add_guest(&mut self, name: &str, program: Program, env: &[(&str, &str)]) {
        let (seeds, secret) = (
            self.mesh.seeds().to_owned(),
            self.mesh.cluster_secret().to_owned(),
        );
        let mut all = vec![("RINGMESH_NAME", name), ("RINGMESH_SEEDS", seeds.as_str())];
        all.extend(env);
        // A mesh calls its only node's log n1.
        let dir = self.dir.join(name);
        let mut options = options(&self.postgres.url(), &dir, 1, program, &all);
        options
            .extra_env
            .push((crate::worker::RUNS.into(), self.dir.display().to_string()));
        options.cluster_secret = Some(secret);
        match Mesh::start(options).await {
            Ok(guest) => self.guests.push(guest),
            Err(error) => self.fail(&format!("{name} did not join: {error}")),
        }
    }

    /// Looks again and again until it is so; fails with the last reason why not.
    pub(crate) async fn until<T>(
        &self,
        within: Duration,
        what: &str,
        mut look: impl AsyncFnMut() -> Result<T, String>,
    ) -> T {
        let deadline = Instant::now() + within;
        loop {
            match look().await {
                Ok(found) => return found,
                Err(why) if Instant::now() >= deadline => {
                    self.fail(&format!("not within {within:?}: {what}\nlast look: {why}"))
                }
                Err(_) => tokio::time::sleep(LOOK).await,
            }
        }
    }

    /// Ends the test with this text and what the nodes said last.
    #[track_caller]
    pub(crate) fn fail(&self, text: &str) -> ! {
        let nodes = self.mesh.nodes().iter();
        let guests = self.guests.iter().flat_map(|guest| guest.nodes());
        let mut logs = String::new();
        for node in nodes.chain(guests) {
            logs += &format!("--- the end of {}\n{}\n", node.log().display(), node.log_tail());
        }
        let server = self.postgres.log_tail();
        panic!("{text}\n{logs}--- the end of Postgres' log\n{server}\n");
    }

    /// Fails unless it holds.
    #[track_caller]
    pub(crate) fn check(&self, holds: bool, text: impl FnOnce() -> String) {
        if !holds {
            self.fail(&text());
        }
    }

    /// Fails with all of these, if there are any.
    #[track_caller]
    pub(crate) fn check_none(&self, what: &str, violations: &[String]) {
        const SHOWN: usize = 30;
        let shown = violations.iter().take(SHOWN).map(String::as_str);
        self.check(violations.is_empty(), || {
            let shown: Vec<&str> = shown.collect();
            format!(
                "{what}: {} rows, the first:\n{}",
                violations.len(),
                shown.join("\n")
            )
        });
    }

    /// A statement that answers with one number.
    pub(crate) async fn number(&self, sql: &str) -> i64 {
        let number = query_scalar(AssertSqlSafe(sql.to_owned())).fetch_one(&self.db);
        number
            .await
            .unwrap_or_else(|error| self.fail(&format!("{sql}: {error}")))
    }

    /// One text for each row that a statement finds.
    pub(crate) async fn rows(&self, sql: &str) -> Vec<String> {
        let sql = format!("select row_to_json(r)::text from ({sql}) r");
        let rows = query_scalar(AssertSqlSafe(sql.clone())).fetch_all(&self.db);
        rows.await
            .unwrap_or_else(|error| self.fail(&format!("{sql}: {error}")))
    }

    pub(crate) async fn execute(&self, sql: &str) {
        let done = raw_sql(AssertSqlSafe(sql.to_owned())).execute(&self.db).await;
        done.unwrap_or_else(|error| self.fail(&format!("{sql}: {error}")));
    }

    /// Owner and epoch of every slot.
    pub(crate) async fn slots(&self) -> Vec<(Option<i64>, i64)> {
        ringmesh::sqlx::query_as("select owner, epoch from ringmesh.slot order by slot")
            .fetch_all(&self.db)
            .await
            .unwrap_or_else(|error| self.fail(&error.to_string()))
    }

    /// The present incarnation of a name.
    pub(crate) async fn incarnation(&self, name: &str) -> i64 {
        self.number(&format!(
            "select coalesce(max(incarnation), 0) from ringmesh.node where name = '{name}' and fenced_at is null"
        ))
        .await
    }

    /// Waits until each slot is owned by an unfenced node, none of them by `except`.
    pub(crate) async fn all_owned(&self, within: Duration, except: i64) {
        self.until(within, "every slot has a live owner", async || {
            let orphans = self
                .number(&format!(
                    "select count(*) from ringmesh.slot s left join ringmesh.node n on n.incarnation = s.owner \
                     and n.fenced_at is null where n.incarnation is null or s.owner = {except}"
                ))
                .await;
            if orphans == 0 {
                Ok(())
            } else {
                Err(format!("{orphans} slots have none"))
            }
        })
        .await;
    }

    /// Waits until no task is open, and returns all that was committed.
    pub(crate) async fn drained(&self, within: Duration) -> History {
        self.until(within, "no task is open", async || {
            let open = self
                .rows("select t.*, s.owner, s.epoch as slot_epoch from ringmesh.task t join ringmesh.slot s using (slot) limit 20")
                .await;
            if open.is_empty() {
                Ok(())
            } else {
                Err(open.join("\n"))
            }
        })
        .await;
        History::read(&self.db).await
    }

    /// Checks all that is promised about tasks with effects: every accepted one ended well and had its effect once, in the
    /// order of its key, under the epoch that was its slot's at that moment.
    pub(crate) async fn check_effects(&self, history: &History, loaded: &Loaded) {
        self.check_none("answers that are none of this API", &loaded.odd);
        let ended = self
            .rows("select slot || '-' || id as task, state, error from ringmesh.finished_task where state <> 'succeeded'")
            .await;
        self.check_none("tasks that ended badly", &ended);
        let finished = self.number("select count(*) from ringmesh.finished_task").await;
        let accepted = loaded.accepted.len();
        self.check(usize::try_from(finished) == Ok(accepted), || {
            format!("{accepted} tasks were accepted, {finished} ended")
        });
        self.check_none("violations", &history.violations(loaded));
        println!(
            "{accepted} accepted, 0 lost, 0 doubled; {} grants; {} answers 503, {} unknown",
            history.grants(),
            loaded.refused,
            loaded.unknown
        );
    }

    /// Lets runs go on that wait for this gate, see `worker.rs`.
    pub(crate) fn open(&self, gate: &str) {
        std::fs::write(self.dir.join(gate), "").unwrap();
    }

    /// The starts of runs that all workers noted: `task attempt`.
    pub(crate) fn runs(&self) -> Vec<String> {
        let nodes = self.mesh.nodes().iter();
        nodes.flat_map(|node| self.runs_of(node.name())).collect()
    }

    /// The starts of runs that one worker noted.
    pub(crate) fn runs_of(&self, name: &str) -> Vec<String> {
        let text = std::fs::read_to_string(self.dir.join(format!("{name}.runs")));
        text.unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// The files with this ending that runs have made.
    pub(crate) fn marks(&self, ending: &str) -> Vec<String> {
        let files = std::fs::read_dir(&self.dir).unwrap();
        let names = files.map(|file| file.unwrap().file_name().into_string().unwrap());
        names.filter(|name| name.ends_with(ending)).collect()
    }

    /// A counter or gauge of a node, over all its labels.
    pub(crate) async fn metric(&self, url: &str, name: &str) -> f64 {
        let page = self.client.text(&format!("{url}/metrics")).await;
        let lines = page.lines().filter(|line| !line.starts_with('#'));
        lines
            .filter_map(|line| line.split_once(' '))
            .filter(|(series, _)| series.split('{').next() == Some(name))
            .filter_map(|(_, value)| value.parse::<f64>().ok())
            .fold(0.0, |sum, value| sum + value)
    }

    /// Submits one task to the first node, and returns its id.
    pub(crate) async fn submit(&self, task: Value) -> String {
        self.submit_at(0, task).await
    }

    /// Submits one task to the node with this number, and returns its id. A refusal that says that nothing was written is
    /// no failure yet.
    pub(crate) async fn submit_at(&self, node: usize, task: Value) -> String {
        self.until(SLACK, &format!("{task} is accepted"), async || {
            let answer = self.client.post(node, "/v1/tasks", &task).await;
            match answer {
                Ok(answer) if answer.status == 201 => Ok(answer.body["id"].as_str().unwrap().to_owned()),
                Ok(answer) if answer.body["code"] == "unavailable" => Err(answer.body.to_string()),
                other => self.fail(&format!("{task} was not accepted: {other:?}")),
            }
        })
        .await
    }

    /// The task as the first node sees it.
    pub(crate) async fn task(&self, id: &str) -> Value {
        match self.client.get(0, &format!("/v1/tasks/{id}")).await {
            Ok(answer) if answer.status == 200 => answer.body,
            other => self.fail(&format!("{id} cannot be read: {other:?}")),
        }
    }

    /// Waits until the task is in this state.
    pub(crate) async fn state(&self, id: &str, state: &str, within: Duration) -> Value {
        self.until(within, &format!("{id} is {state}"), async || {
            let task = self.task(id).await;
            if task["state"] == state {
                Ok(task)
            } else {
                Err(task.to_string())
            }
        })
        .await
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("all logs are kept in {}", self.dir.display());
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

fn options(
    url: &str,
    dir: &std::path::Path,
    nodes: usize,
    program: Program,
    env: &[(&str, &str)],
) -> mesh::Options {
    let (binary, extra_args) = match program {
        Program::Ringmesh => (PathBuf::from(env!("CARGO_BIN_EXE_ringmesh")), Vec::new()),
        Program::Worker => (
            std::env::current_exe().unwrap(),
            ["--exact", "--ignored", "--nocapture", "--test-threads=1"]
                .map(str::to_owned)
                .into(),
        ),
    };
    let mut extra_env = vec![(crate::worker::RUNS.to_owned(), dir.display().to_string())];
    extra_env.extend(env.iter().map(|(name, value)| ((*name).into(), (*value).into())));
    mesh::Options {
        nodes,
        base_port: 0,
        binary,
        extra_args,
        extra_env,
        log_dir: dir.into(),
        ready_within: Duration::from_secs(120),
        ..mesh::Options::new(url).unwrap()
    }
}

async fn migrate(url: &str) {
    let store = Store::new(&StoreOptions {
        url: url.to_owned(),
        lease_url: None,
        pooler: ringmesh::store::Pooler::Auto,
        connections: 1,
        hot_connections: 1,
        ttl: TTL,
        application: "test".into(),
    });
    store.unwrap().migrate().await.unwrap();
}
