//! A planned end: nothing fails, nothing runs twice, every slot is handed on.

use std::collections::HashSet;
use std::process::ExitStatus;
use std::time::Duration;

use serde_json::json;

use crate::harness::{Lab, Load, Program, SLACK, UNHURRIED};

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
