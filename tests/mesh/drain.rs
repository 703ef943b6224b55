//! A planned end: nothing fails, nothing runs twice, every slot is handed on.

use std::collections::HashSet;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Lab, Load, Program, SLACK, UNHURRIED, rounds};

async fn end_of(lab: &mut Lab, name: &str, within: Duration) -> ExitStatus {
    let deadline = std::time::Instant::now() + within;
    loop {
        if let Some(status) = lab.mesh.node_mut(name).unwrap().ended() {
            return status;
        }
        if std::time::Instant::now() > deadline {
            lab.fail(&format!("{name} did not end within {within:?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn drain_under_load_fails_nothing_and_repeats_nothing() {
    let mut lab = Lab::start(4, Program::Worker, &[UNHURRIED]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 150, SLACK * 3).await;
    let (second, third) = (lab.incarnation("n2").await, lab.incarnation("n3").await);

    let asked = lab
        .client
        .post(0, "/v1/nodes/n2/drain", &json!({}))
        .await
        .unwrap();
    lab.check(asked.status == 202, || {
        format!("the drain was answered with {asked:?}")
    });
    let status = end_of(&mut lab, "n2", SLACK * 3).await;
    lab.check(status.code() == Some(0), || {
        format!("the drained node ended with {status}")
    });
    load.more(&lab, 100, SLACK * 3).await;
    lab.mesh.node_mut("n3").unwrap().terminate().unwrap();
    let status = end_of(&mut lab, "n3", SLACK * 3).await;
    lab.check(status.code() == Some(0), || {
        format!("the node ended after SIGTERM with {status}")
    });
    lab.all_owned(Duration::ZERO, 0).await;
    load.more(&lab, 100, SLACK * 3).await;

    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;
    let left = lab.number(&format!(
        "select count(*) from ringmesh.node where incarnation in ({second}, {third}) and fenced_as = 'left'"
    ))
    .await;
    lab.check(left == 2, || "they are not recorded as having left".into());
    let failed = lab
        .rows("select * from ringmesh.finished_task where failures + crashes > 0")
        .await;
    lab.check_none("tasks that failed", &failed);
    let mut seen = HashSet::new();
    let runs = lab.runs();
    let task = |run: &String| run.split(' ').next().unwrap().to_owned();
    let repeated: Vec<String> = runs
        .iter()
        .map(task)
        .filter(|task| !seen.insert(task.clone()))
        .collect();
    lab.check_none("tasks that ran more than once", &repeated);
    lab.check(seen.len() == loaded.accepted.len(), || {
        format!("{} tasks were seen to run", seen.len())
    });
}

#[tokio::test]
async fn second_signal_ends_a_draining_node_at_once() {
    let env = [UNHURRIED, ("RINGMESH_DRAIN_DEADLINE", "10m")];
    let mut lab = Lab::start(1, Program::Worker, &env).await;
    let id = lab
        .submit(json!({"kind": "wait", "key": "long", "payload": {"gate": "never"}}))
        .await;
    lab.state(&id, "running", SLACK).await;
    lab.mesh.node_mut("n1").unwrap().terminate().unwrap();
    lab.until(SLACK, "it says that it drains", async || {
        let log = lab.mesh.nodes()[0].log_tail();
        if log.contains("once more ends at once") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    let ended = lab.mesh.nodes_mut()[0].ended();
    lab.check(ended.is_none(), || "it ended with a task running".into());
    lab.mesh.node_mut("n1").unwrap().terminate().unwrap();
    let status = end_of(&mut lab, "n1", SLACK).await;
    lab.check(status.code() == Some(130), || format!("it ended with {status}"));
}

#[tokio::test]
async fn signals_at_any_moment_under_load_lose_nothing_and_repeat_nothing() {
    let mut lab = Lab::start(3, Program::Worker, &[UNHURRIED]).await;
    let load = Load::start(&lab.client);
    let names = ["n1", "n2", "n3"];
    for round in 0..2 * rounds() as usize {
        // Somewhere between the join of one and the drain of the next; each of them moves slots while tasks come in.
        load.more(&lab, 5 + round * 37 % 60, SLACK * 3).await;
        let name = names[round % names.len()];
        lab.mesh.node_mut(name).unwrap().terminate().unwrap();
        let status = end_of(&mut lab, name, SLACK * 3).await;
        lab.check(status.code() == Some(0), || {
            format!("round {round}: {name} ended with {status}")
        });
        if let Err(error) = lab.mesh.node_mut(name).unwrap().start_again().await {
            lab.fail(&format!("round {round}: {name} did not come back: {error}"));
        }
    }
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;
    let failed = lab
        .rows("select * from ringmesh.finished_task where failures + crashes > 0")
        .await;
    lab.check_none("tasks that failed", &failed);
}

#[tokio::test]
async fn clients_that_wait_or_say_nothing_hold_up_no_drain() {
    let mut lab = Lab::start(2, Program::Ringmesh, &[UNHURRIED]).await;
    let second = lab.incarnation("n2").await;
    let id = lab
        .submit(json!({"kind": "echo", "key": "later", "payload": 1, "delay": "1h"}))
        .await;
    let address = lab.mesh.nodes()[1].url().trim_start_matches("http://").to_owned();
    let sent = [
        String::new(),
        "POST /v1/tasks HTTP/1.1\r\nhost: a\r\n".to_owned(),
        "POST /v1/tasks HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{\"kind\":".to_owned(),
        format!("GET /v1/tasks/{id}?wait=60s HTTP/1.1\r\nhost: a\r\n\r\n"),
    ];
    let waits_until = std::time::Instant::now() + Duration::from_secs(60);
    let mut connections = Vec::new();
    for text in sent.iter().cycle().take(40) {
        let mut connection = tokio::net::TcpStream::connect(&address).await.unwrap();
        tokio::io::AsyncWriteExt::write_all(&mut connection, text.as_bytes())
            .await
            .unwrap();
        connections.push(connection);
    }
    lab.mesh.node_mut("n2").unwrap().terminate().unwrap();
    let before_they_give_up = waits_until.saturating_duration_since(std::time::Instant::now());
    let status = end_of(&mut lab, "n2", before_they_give_up).await;
    lab.check(status.code() == Some(0), || format!("it ended with {status}"));
    let left = lab
        .number(&format!(
            "select count(*) from ringmesh.node where incarnation = {second} and fenced_as = 'left'"
        ))
        .await;
    lab.check(left == 1, || "it is not recorded as having left".into());
    lab.all_owned(Duration::ZERO, second).await;
}
