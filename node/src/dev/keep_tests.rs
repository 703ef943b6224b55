use super::*;
use crate::dev::mesh;
use crate::dev::postgres;
use crate::dev::process::{Signal, process, wait_until};

/// After so long without what it waits for, a test has failed.
const LIMIT: Duration = Duration::from_secs(120);

fn kill(pid: u32) {
    process(pid).unwrap().signal(Signal::Kill).unwrap();
}

/// Polls until a fact holds, beside the supervision.
async fn beside<T>(kept: impl Future<Output = T>, facts: impl Future<Output = bool>) {
    tokio::select! {
        _ = kept => panic!("the supervision ended"),
        held = facts => assert!(held),
    }
}

#[tokio::test]
async fn postgres_that_is_killed_comes_back_on_its_port() {
    let mut server = Postgres::start(postgres::Options::for_tests()).await.unwrap();
    let (pid, port) = (server.pid().unwrap(), server.port());
    let state = server.dir().join("data/postmaster.pid");
    kill(pid);
    let again = move || {
        let text = std::fs::read_to_string(&state).unwrap_or_default();
        let lines: Vec<&str> = text.lines().map(str::trim).collect();
        lines.first().is_some_and(|first| *first != pid.to_string())
            && lines.get(3) == Some(&port.to_string().as_str())
            && lines.get(7) == Some(&"ready")
    };
    beside(keep_server(Some(&mut server)), wait_until(LIMIT, again)).await;
    assert_eq!(server.port(), port);
}

#[tokio::test]
async fn postgres_that_cannot_start_any_more_is_given_up_with_the_reason() {
    let mut server = Postgres::start(postgres::Options::for_tests()).await.unwrap();
    std::fs::write(server.dir().join("data/postgresql.conf"), "no_such_option = 1\n").unwrap();
    kill(server.pid().unwrap());
    let error = tokio::time::timeout(LIMIT, keep_server(Some(&mut server)))
        .await
        .unwrap();
    let source = std::error::Error::source(&error).unwrap().to_string();
    assert!(
        error.to_string().contains("4 times in a row") && source.contains("no_such_option"),
        "{error}: {source}"
    );
}

#[tokio::test]
async fn killed_node_comes_back_and_drained_ones_stay_away() {
    let mut mesh = Mesh::start(mesh::tests::options("keep")).await.unwrap();
    let hellos = |node: &Node| {
        let log = node.log().to_owned();
        move || {
            std::fs::read_to_string(&log)
                .unwrap()
                .matches("says hello")
                .count()
        }
    };
    let starts: Vec<_> = mesh.nodes().iter().map(hellos).collect();
    let urls: Vec<String> = mesh.nodes().iter().map(|node| node.url().to_owned()).collect();
    let logs = mesh.nodes()[0].log().parent().unwrap().to_owned();
    kill(mesh.nodes()[0].pid().unwrap());
    let story = async {
        for url in &urls[1..] {
            let _ = reqwest::get(format!("{url}/drain")).await;
        }
        let back = wait_until(LIMIT, || starts[0]() == 2).await;
        // It answers only once it listens; then it is drained too.
        while reqwest::get(&urls[0]).await.is_err() {}
        let _ = reqwest::get(format!("{}/drain", urls[0])).await;
        back
    };
    let nodes = mesh.nodes_mut();
    let both = async { tokio::join!(keep_nodes(nodes), story).1 };
    assert!(tokio::time::timeout(LIMIT, both).await.unwrap());
    let starts: Vec<usize> = starts.iter().map(|starts| starts()).collect();
    assert_eq!(starts, [2, 1, 1]);
    std::fs::remove_dir_all(logs).unwrap();
}
