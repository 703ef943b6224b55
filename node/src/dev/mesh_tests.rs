//! What is proven here is the handling of processes. The node is a stand-in: this test program itself, which runs the
//! ignored test [`stand_in`] alone; the tests of the product run real nodes.

use std::io::{BufRead, BufReader, Read, Write};

use super::*;
use crate::dev::Postgres;

/// After so long without what it waits for, a test has failed.
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) fn options(test: &str) -> Options {
    let log_dir = std::env::temp_dir().join(format!("ringmesh-mesh-{test}-{}", std::process::id()));
    let extra_args = [
        "dev::mesh::tests::stand_in",
        "--exact",
        "--ignored",
        "--nocapture",
    ]
    .map(str::to_owned)
    .into();
    let base = Options::new("postgres://unused").unwrap();
    Options {
        nodes: 3,
        base_port: 0,
        extra_args,
        log_dir,
        ready_within: LIMIT,
        ..base
    }
}

/// Answers each request with 200 and, as body, its seeds. Ends by SIGTERM as by default, unless `STAND_IN` says
/// otherwise, and with success when `/drain` is asked for.
#[test]
#[ignore = "a stand-in for a node, run by the other tests"]
fn stand_in() {
    let Ok(listen) = std::env::var("RINGMESH_LISTEN") else {
        return;
    };
    println!("stand-in {} says hello", std::env::var("RINGMESH_NAME").unwrap());
    if std::env::var("STAND_IN").as_deref() == Ok("fails") {
        eprintln!("cannot read the flux");
        std::process::exit(3);
    }
    let _gossip = std::net::UdpSocket::bind(std::env::var("RINGMESH_GOSSIP").unwrap()).unwrap();
    let listener = std::net::TcpListener::bind(listen).unwrap();
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        let mut request = [0; 1024];
        let _ = stream.read(&mut request);
        if request.starts_with(b"GET /drain ") {
            std::process::exit(0);
        }
        let body = std::env::var("RINGMESH_SEEDS").unwrap();
        let head = format!(
            "HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: {}",
            body.len()
        );
        let _ = write!(stream, "{head}\r\n\r\n{body}");
    }
}

fn running(mesh: &Mesh) -> Vec<Process> {
    mesh.nodes()
        .iter()
        .filter_map(|node| process::process(node.pid()?))
        .collect()
}

#[tokio::test]
async fn nodes_get_their_names_and_seeds_and_end_by_stop() {
    let mut mesh = Mesh::start(options("stop")).await.unwrap();
    let names: Vec<&str> = mesh.nodes().iter().map(Node::name).collect();
    assert_eq!(names, ["n1", "n2", "n3"]);
    let seeds: Vec<String> = mesh
        .nodes()
        .iter()
        .map(|node| node.gossip().to_string())
        .collect();
    let body = mesh
        .http
        .get(mesh.nodes()[2].url())
        .send()
        .await
        .unwrap()
        .text()
        .await
        .unwrap();
    assert_eq!(body, seeds.join(","));
    assert!(mesh.nodes()[0].log_tail().contains("stand-in n1 says hello"));

    assert_eq!(mesh.add().await.unwrap().name(), "n4");
    let running = running(&mesh);
    mesh.stop(LIMIT).await.unwrap();
    assert!(running.len() == 4 && running.iter().all(|process| !process.runs()));
    std::fs::remove_dir_all(mesh.options.log_dir).unwrap();
}

#[tokio::test]
async fn killed_node_starts_again_under_its_name_and_address() {
    let mut mesh = Mesh::start(options("kill")).await.unwrap();
    let node = mesh.node_mut("n2").unwrap();
    let (url, pid) = (node.url().to_owned(), node.pid());
    node.kill().await.unwrap();
    assert!(matches!(node.kill().await, Err(Error::NotRunning { .. })));
    node.start_again().await.unwrap();
    assert_eq!(node.url(), url);
    assert!(node.pid().is_some() && node.pid() != pid);
    std::fs::remove_dir_all(&mesh.options.log_dir).unwrap();
}

#[tokio::test]
async fn paused_node_is_silent_until_it_is_resumed_and_can_be_stopped() {
    let mut mesh = Mesh::start(Options {
        nodes: 1,
        ..options("pause")
    })
    .await
    .unwrap();
    let http = mesh.http.clone();
    let node = mesh.node_mut("n1").unwrap();
    node.pause().await.unwrap();
    let asked = http
        .get(node.url())
        .timeout(Duration::from_millis(200))
        .send()
        .await;
    assert!(asked.unwrap_err().is_timeout());
    node.resume().unwrap();
    node.wait_ready(LIMIT).await.unwrap();
    node.pause().await.unwrap();
    node.stop(LIMIT).await.unwrap();
    assert_eq!(node.pid(), None);
    std::fs::remove_dir_all(&mesh.options.log_dir).unwrap();
}

#[tokio::test]
async fn node_that_ends_early_is_reported_with_its_last_words() {
    let mut options = options("fails");
    options.extra_env.push(("STAND_IN".into(), "fails".into()));
    let log_dir = options.log_dir.clone();
    let error = Mesh::start(options).await.unwrap_err().to_string();
    assert!(
        error.contains("ended early (exit status: 3)") && error.contains("cannot read the flux"),
        "{error}"
    );
    std::fs::remove_dir_all(log_dir).unwrap();
}

#[tokio::test]
async fn taken_ports_are_refused_by_name_before_anything_starts() {
    let taken = loop {
        let http = free_port().unwrap();
        if let Ok(taken) = std::net::UdpSocket::bind(local(http + 1 + GOSSIP_OFFSET)) {
            break taken;
        }
    };
    let port = taken.local_addr().unwrap().port();
    let options = Options {
        base_port: port - 1 - GOSSIP_OFFSET,
        ..options("taken")
    };
    let log_dir = options.log_dir.clone();
    let error = Mesh::start(options).await.unwrap_err().to_string();
    assert!(
        error.starts_with(&format!("port {port} on 127.0.0.1 (gossip of n2) is in use")),
        "{error}"
    );
    assert!(!log_dir.exists());
}

/// Starts a server and a mesh, prints their pids and never ends.
#[tokio::test]
#[ignore = "a stand-in for `ringmesh dev`, run by the test below"]
async fn stand_in_parent() {
    if std::env::var("STAND_IN").as_deref() != Ok("parent") {
        return;
    }
    let server = Postgres::start(crate::dev::postgres::Options::for_tests())
        .await
        .unwrap();
    let mesh = Mesh::start(options("parent")).await.unwrap();
    let mut pids: Vec<u32> = mesh.nodes().iter().filter_map(Node::pid).collect();
    pids.extend(server.pid());
    let folders = [server.dir(), &mesh.options.log_dir].map(|folder| folder.display().to_string());
    println!(
        "\nstarted {}",
        serde_json::json!({ "pids": pids, "folders": folders })
    );
    std::future::pending::<()>().await;
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn children_end_with_a_parent_that_is_killed() {
    let mut parent = Command::new(std::env::current_exe().unwrap());
    parent.args([
        "dev::mesh::tests::stand_in_parent",
        "--exact",
        "--ignored",
        "--nocapture",
    ]);
    let mut parent = parent
        .env("STAND_IN", "parent")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(parent.stdout.take().unwrap()).lines();
    let started = lines
        .map_while(Result::ok)
        .find_map(|line| line.strip_prefix("started ").map(str::to_owned));
    #[derive(serde::Deserialize)]
    struct Started {
        pids: Vec<u32>,
        folders: Vec<PathBuf>,
    }
    let started: Started = serde_json::from_str(&started.unwrap()).unwrap();
    let children: Vec<Process> = started.pids.into_iter().filter_map(process::process).collect();
    assert_eq!(children.iter().filter(|child| child.runs()).count(), 4);
    parent.kill().unwrap();
    parent.wait().unwrap();
    assert!(wait_until(LIMIT, || children.iter().all(|child| !child.runs())).await);
    started
        .folders
        .iter()
        .for_each(|folder| std::fs::remove_dir_all(folder).unwrap());
}
