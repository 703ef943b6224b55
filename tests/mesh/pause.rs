//! A process that stands still for longer than its lease and then goes on.

use std::time::Instant;

use serde_json::json;

use crate::harness::{Accepted, Lab, Load, Program, SLACK, TTL};

#[tokio::test]
async fn paused_node_loses_its_slots_and_what_it_had_open_comes_to_nothing() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    // Transactions that are open, with their effect in them, when it stands still.
    let mut sleepers = Vec::new();
    for number in 0..30 {
        let key = format!("sleeper-{number}");
        let payload = json!({"seq": 0, "gate": "sleepers"});
        let task = json!({"kind": "ledger", "key": key, "payload": payload, "max_attempts": 100});
        let id = lab.submit(task).await;
        sleepers.push(Accepted { id, key, seq: 0 });
    }
    let started = |runs: &[String], task: &Accepted| {
        let start = format!("{} ", task.id);
        runs.iter().any(|run| run.starts_with(&start))
    };
    lab.until(SLACK, "it runs some of them", async || {
        let runs = lab.runs_of("n2");
        if sleepers.iter().any(|task| started(&runs, task)) {
            Ok(())
        } else {
            Err(format!("{runs:?}"))
        }
    })
    .await;

    let zombie = lab.incarnation("n2").await;
    lab.mesh.node_mut("n2").unwrap().pause().await.unwrap();
    let paused = Instant::now();
    lab.all_owned(TTL + SLACK, zombie).await;
    println!(
        "all its slots had new owners {:?} after SIGSTOP, with a lease of {TTL:?}",
        paused.elapsed()
    );
    lab.open("sleepers");
    load.more(&lab, 100, SLACK * 3).await;
    let node = lab.mesh.node_mut("n2").unwrap();
    node.resume().unwrap();
    let url = node.url().to_owned();
    let next = lab
        .until(SLACK * 2, "the node that woke is in the mesh again", async || {
            let next = lab.incarnation("n2").await;
            let ready = lab.client.text(&format!("{url}/health/ready")).await;
            if next > zombie && ready == "ready\n" {
                Ok(next)
            } else {
                Err(format!("it is {next} and says {ready:?}"))
            }
        })
        .await;
    load.more(&lab, 100, SLACK * 3).await;
    let mut loaded = load.stop().await;
    let runs = lab.runs_of("n2");
    let history = lab.drained(SLACK * 3).await;
    let elsewhere = sleepers.iter().filter(|task| {
        let mut effects = history.effects();
        started(&runs, task) && effects.any(|effect| effect.task == task.id && effect.node != "n2")
    });
    let elsewhere = elsewhere.count();
    lab.check(elsewhere > 0, || {
        "no run of the node that woke had a successor: nothing was proven".into()
    });
    loaded.accepted.extend(sleepers);
    lab.check_effects(&history, &loaded).await;
    let fenced = lab
        .rows(&format!(
            "select fenced_as from ringmesh.node where incarnation = {zombie}"
        ))
        .await;
    lab.check(fenced == [r#"{"fenced_as":"expired"}"#], || {
        format!("it was fenced as {fenced:?}")
    });
    let refused = lab.metric(&url, "ringmesh_fenced_writes_total").await;
    lab.check(refused > 0.0, || {
        "no write of the node that woke was refused".into()
    });
    println!(
        "{elsewhere} of its open transactions came to nothing, {refused} writes refused; {zombie} came back as {next}"
    );
}
