//! The commands, as processes, against the HTTP API on a real Postgres. Nothing runs the tasks here.

use std::io::Write as _;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use ringmesh::config::Config;
use ringmesh::dev::{Postgres, postgres};
use ringmesh::directory::{Directory, Node};
use ringmesh::hint::Hints;
use ringmesh::http::{Api, Life, Limits, router, serve};
use ringmesh::secret::Secret;
use ringmesh::store::Store;
use ringmesh::submit::Submits;
use ringmesh::wait::Waits;
use ringmesh_ring::Incarnation;
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

#[path = "../src/hostile/cli.rs"]
mod hostile;

const TOKEN: &str = "a-token-for-this-test";

/// The HTTP API of a node that never lives.
struct Server {
    postgres: Postgres,
    database_url: String,
    url: String,
    directory: watch::Sender<Arc<Directory>>,
    drained: mpsc::Receiver<()>,
    stop: CancellationToken,
}

impl Server {
    async fn start() -> Server {
        let postgres = Postgres::start(postgres::Options::for_tests()).await.unwrap();
        let database_url = postgres.url();
        let config = Config {
            database_url: database_url.as_str().into(),
            ..Config::default()
        };
        let store = Store::new(&config.store()).unwrap();
        store.migrate().await.unwrap();
        let directory = watch::Sender::new(Arc::new(Directory::default()));
        let waits = Waits::new();
        let hints = Hints::start(directory.subscribe(), &config.cluster_secret(), waits.clone()).unwrap();
        tokio::spawn(waits.run(store.clone()));
        let (drain, drained) = mpsc::channel(1);
        let api = Api {
            name: "n1".to_owned(),
            store: store.clone(),
            submits: Submits::start(store, hints.clone()),
            hints,
            directory: directory.subscribe(),
            token: Some(Secret::new(TOKEN)),
            life: Life::new(),
            drain,
            live: Box::new(|| true),
            metrics: Box::new(String::new),
            limits: Limits::default(),
        };
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let stop = CancellationToken::new();
        tokio::spawn(serve(listener, router(api), Limits::default(), stop.clone()));
        Server {
            postgres,
            database_url,
            url,
            directory,
            drained,
            stop,
        }
    }

    /// Runs a command against this server.
    async fn run(&self, arguments: &[&str], input: &str) -> Ran {
        let mut command = command();
        command
            .env("RINGMESH_URL", &self.url)
            .env("RINGMESH_TOKEN", TOKEN);
        run(command.args(arguments), input).await
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.cancel();
    }
}

/// How a command ended.
#[derive(Debug)]
struct Ran {
    code: Option<i32>,
    out: String,
    err: String,
}

impl Ran {
    #[track_caller]
    fn ok(self) -> String {
        assert_eq!(self.code, Some(0), "{self:?}");
        self.out
    }

    #[track_caller]
    fn json(self) -> Value {
        serde_json::from_str(&self.ok()).unwrap()
    }
}

fn command() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmesh"));
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("RINGMESH_") {
            command.env_remove(name);
        }
    }
    command
}

async fn run(command: &mut Command, input: &str) -> Ran {
    run_with(command, input.as_bytes().to_vec()).await
}

async fn run_with(command: &mut Command, input: Vec<u8>) -> Ran {
    use tokio::io::AsyncWriteExt as _;
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true);
    let mut child = command.spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    tokio::spawn(async move { stdin.write_all(&input).await });
    let output = tokio::time::timeout(Duration::from_secs(60), child.wait_with_output())
        .await
        .unwrap()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    Ran {
        code: output.status.code(),
        out: text(output.stdout),
        err: text(output.stderr),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn commands_do_what_they_say() {
    let mut server = Server::start().await;
    a_task_is_submitted_shown_and_cancelled(&server).await;
    hostile_arguments_are_refused_by_name(&server).await;
    a_repeated_submit_returns_the_first_task(&server).await;
    a_file_is_submitted_in_order_and_again_without_doubt(&server).await;
    refused_lines_are_told_and_the_others_go_on(&server).await;
    refusals_have_their_own_exit_code(&server).await;
    the_mesh_and_its_slots_are_shown(&mut server).await;
    migrating_again_does_nothing(&server).await;
    only_a_submit_that_may_be_repeated_waits_for_postgres(&mut server).await;
}

async fn a_task_is_submitted_shown_and_cancelled(server: &Server) {
    let id = server
        .run(&["submit", "echo", "tenant-1", "{\"n\":1e400}"], "")
        .await;
    assert_eq!((id.code, id.err.contains("payload")), (Some(3), true), "{id:?}");
    let arguments = [
        "submit",
        "echo",
        "tenant/1 ü",
        "[1.50]",
        "--priority",
        "3",
        "--delay",
        "1h",
        "--timeout",
        "90s",
    ];
    let id = server.run(&arguments, "").await.ok();
    let id = id.trim();
    let task = server.run(&["get", id, "--json"], "").await.json();
    assert_eq!(
        [&task["id"], &task["key"], &task["state"], &task["priority"]],
        [&json!(id), &json!("tenant/1 ü"), &json!("scheduled"), &json!(3)]
    );
    let key = server.run(&["key", "tenant/1 ü", "--json"], "").await.json();
    assert_eq!((&key["slot"], &key["scheduled"]), (&task["slot"], &json!(1)));
    let waited = server.run(&["get", id, "--wait", "10ms"], "").await;
    assert_eq!(
        (waited.code, waited.err.as_str()),
        (Some(1), "error: the task has not ended yet, it is scheduled\n")
    );
    let shown = server.run(&["cancel", id], "").await.ok();
    assert!(shown.contains("state     cancelled\n"), "{shown}");
    let again = server.run(&["cancel", id], "").await;
    assert_eq!(
        (again.code, again.err.contains("ended already")),
        (Some(3), true),
        "{again:?}"
    );
    let waited = server.run(&["get", id, "--wait", "10s"], "").await;
    assert_eq!(
        (waited.code, waited.err.as_str()),
        (Some(1), "error: the task ended cancelled\n")
    );
}

async fn hostile_arguments_are_refused_by_name(server: &Server) {
    use std::os::unix::ffi::OsStrExt as _;
    assert_eq!(hostile::count(), hostile::ROWS.len());
    let mut wrong = Vec::new();
    for row in hostile::ROWS {
        let mut command = command();
        command
            .env("RINGMESH_URL", &server.url)
            .env("RINGMESH_TOKEN", TOKEN);
        let arguments = row
            .arguments
            .iter()
            .map(|bytes| std::ffi::OsStr::from_bytes(bytes));
        let ran = run_with(command.args(arguments), row.input.to_vec()).await;
        let said = format!("{}{}", ran.out, ran.err);
        if ran.code != Some(row.code) || !said.contains(row.says) {
            let shown: Vec<_> = row
                .arguments
                .iter()
                .map(|bytes| String::from_utf8_lossy(bytes))
                .collect();
            wrong.push(format!("{shown:?} {ran:?}"));
        }
        assert!(!said.contains(TOKEN) && !said.contains("panicked"), "{ran:?}");
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // The node has seen it all, and answers.
    let listed = server.run(&["mesh", "--json"], "").await;
    assert_eq!(listed.code, Some(0), "{listed:?}");
}

async fn a_repeated_submit_returns_the_first_task(server: &Server) {
    let arguments = [
        "submit",
        "echo",
        "tenant-2",
        "--idempotency-key",
        "once",
        "--json",
    ];
    let first = server.run(&arguments, "").await.json();
    let second = server.run(&arguments, "").await.json();
    assert_eq!(first["id"], second["id"]);
    assert_eq!(
        (&first["replayed"], &second["replayed"]),
        (&json!(false), &json!(true))
    );
}

async fn a_file_is_submitted_in_order_and_again_without_doubt(server: &Server) {
    let mut file = tempfile();
    for number in 0..2500 {
        writeln!(
            file.0,
            "{{\"kind\":\"echo\",\"key\":\"file-{}\",\"payload\":{number}}}",
            number % 7
        )
        .unwrap();
    }
    let arguments = [
        "submit",
        "--file",
        file.1.to_str().unwrap(),
        "--resume",
        "import-1",
        "--json",
    ];
    let first = server.run(&arguments, "").await;
    let totals = |ran: &Ran| serde_json::from_str::<Value>(&ran.err).unwrap();
    assert_eq!(
        totals(&first),
        json!({"submitted": 2500, "replayed": 0, "refused": 0, "stopped": 0})
    );
    let mut ids: Vec<(u64, String)> = first.ok().lines().map(row).collect();
    ids.sort();
    assert_eq!(ids.len(), 2500);
    for key in 0..7 {
        let numbers = ids
            .iter()
            .skip(key)
            .step_by(7)
            .map(|(_, id)| id.split_once('-').unwrap().1.parse::<i64>().unwrap());
        assert!(numbers.is_sorted(), "the tasks of file-{key} are out of order");
    }
    let second = server.run(&arguments, "").await;
    assert_eq!(
        totals(&second),
        json!({"submitted": 2500, "replayed": 2500, "refused": 0, "stopped": 0})
    );
    let mut again: Vec<(u64, String)> = second.ok().lines().map(row).collect();
    again.sort();
    assert_eq!(ids, again);
    std::fs::remove_file(&file.1).unwrap();
}

fn row(line: &str) -> (u64, String) {
    let row: Value = serde_json::from_str(line).unwrap();
    (
        row["line"].as_u64().unwrap(),
        row["id"].as_str().unwrap().to_owned(),
    )
}

fn tempfile() -> (std::fs::File, std::path::PathBuf) {
    let path = std::env::temp_dir().join(format!("ringmesh-cli-{}.ndjson", std::process::id()));
    (std::fs::File::create(&path).unwrap(), path)
}

async fn refused_lines_are_told_and_the_others_go_on(server: &Server) {
    let input = "\
{\"kind\":\"echo\",\"key\":\"lines\",\"payload\":1}
{\"kind\":\"echo\",\"key\":\"lines\",\"payload\":2,\"priority\":10}

nonsense
{\"kind\":\"echo\",\"key\":\"lines\",\"payload\":\"\\u0000\"}
{\"kind\":\"echo\",\"key\":\"lines\",\"payload\":3}
";
    let ran = server.run(&["submit", "--file", "-"], input).await;
    assert_eq!(ran.code, Some(3), "{ran:?}");
    assert!(
        ran.out.starts_with("2 tasks submitted, 3 lines refused, in "),
        "{ran:?}"
    );
    for line in [
        "line 2: priority: ",
        "line 4, column 2: ",
        "line 5: payload: ",
        "error: 3 lines refused\n",
    ] {
        assert!(ran.err.contains(line), "{line} in {ran:?}");
    }
}

async fn refusals_have_their_own_exit_code(server: &Server) {
    let unknown = server.run(&["get", "7-999999999"], "").await;
    assert_eq!(
        (unknown.code, unknown.err.contains("404")),
        (Some(3), true),
        "{unknown:?}"
    );
    let stranger = run(command().args(["mesh", "--url", &server.url]), "").await;
    assert_eq!(
        (stranger.code, stranger.err.contains("help: set RINGMESH_TOKEN")),
        (Some(3), true),
        "{stranger:?}"
    );
    let nobody = server.run(&["mesh", "--url", "http://127.0.0.1:1"], "").await;
    assert_eq!(
        (nobody.code, nobody.err.contains("help: is a node running there?")),
        (Some(4), true),
        "{nobody:?}"
    );
    let nonsense = server.run(&["mesh", "--url", "n1:7101"], "").await;
    assert_eq!(nonsense.code, Some(2), "{nonsense:?}");
    let health = server.run(&["health"], "").await;
    assert_eq!(health.code, Some(4), "{health:?}");
    let unready = "error: the node is not ready (503 Service Unavailable): the node has no lease yet\n";
    assert_eq!(health.err, unready);
}

async fn the_mesh_and_its_slots_are_shown(server: &mut Server) {
    let node = Node {
        name: "n1".to_owned(),
        http: "127.0.0.1:7101".to_owned(),
        weight: 1,
        state: "serving",
        lease_ms: 3000,
    };
    server.directory.send_modify(|directory| {
        let directory = Arc::make_mut(directory);
        directory.nodes.insert(Incarnation(7), node);
        directory.ready = true;
    });
    assert_eq!(server.run(&["health"], "").await.ok(), "ready\n");
    let mesh = server.run(&["mesh"], "").await.ok();
    assert!(mesh.contains("n1    7            serving"), "{mesh}");
    assert!(
        mesh.ends_with("1 node, 0 slots owned, 4096 without an owner\n"),
        "{mesh}"
    );
    let slots = server.run(&["slots"], "").await.ok();
    assert_eq!(
        (slots.lines().count(), slots.lines().nth(1)),
        (4097, Some("0     -      0")),
        "{slots:.200}"
    );
    assert_eq!(server.run(&["drain", "n1"], "").await.ok(), "n1 drains\n");
    server.drained.recv().await.unwrap();
    let stranger = server.run(&["drain", "n2"], "").await;
    assert_eq!(stranger.code, Some(3), "{stranger:?}");
}

async fn migrating_again_does_nothing(server: &Server) {
    let ran = run(
        command().args(["migrate", "--database-url", &server.database_url]),
        "",
    )
    .await;
    assert_eq!(ran.ok(), "the schema is up to date\n");
}

async fn only_a_submit_that_may_be_repeated_waits_for_postgres(server: &mut Server) {
    server.postgres.kill().await.unwrap();
    let once = server.run(&["submit", "echo", "tenant-3"], "").await;
    assert_eq!(
        (once.code, once.err.contains("the node cannot serve now")),
        (Some(4), true),
        "{once:?}"
    );
    // The nodes are shown from memory, and a read soon says that there is no answer.
    let mesh = server.run(&["mesh"], "").await.ok();
    assert!(mesh.contains("n1"), "{mesh}");
    let read = server.run(&["key", "tenant-3"], "").await;
    assert_eq!(
        (read.code, read.err.contains("Postgres does not answer")),
        (Some(4), true),
        "{read:?}"
    );
    let mut keyed = command();
    keyed
        .env("RINGMESH_URL", &server.url)
        .env("RINGMESH_TOKEN", TOKEN);
    keyed.args(["submit", "echo", "tenant-3", "--idempotency-key", "outage"]);
    let keyed = tokio::spawn(async move { run(&mut keyed, "").await });
    server.postgres.restart().await.unwrap();
    let first = keyed.await.unwrap().ok();
    let second = server
        .run(&["submit", "echo", "tenant-3", "--idempotency-key", "outage"], "")
        .await
        .ok();
    assert_eq!(first, second);
}
