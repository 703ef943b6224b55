//! What Postgres takes from a node without a word to it: it must find out by itself, from its ticks.

use serde_json::json;

use crate::harness::{Lab, Load, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn idle_slot_that_was_given_to_another_node_is_dropped_by_its_former_owner_without_any_message() {
    let lab = Lab::start(2, Program::Ringmesh, &[UNHURRIED]).await;
    let (first, second) = (lab.incarnation("n1").await, lab.incarnation("n2").await);
    let slot = lab
        .number(&format!(
            "select min(slot)::bigint from ringmesh.slot where owner = {first}"
        ))
        .await;
    let epoch = lab
        .number(&format!("select epoch from ringmesh.slot where slot = {slot}"))
        .await;
    // As a grant or a transfer whose hint was lost. No task is there, and none comes.
    lab.execute(&format!(
        "update ringmesh.slot set owner = {second}, epoch = epoch + 1 where slot = {slot}"
    ))
    .await;
    lab.until(SLACK, "its former owner says that it is another's", async || {
        let log = lab.mesh.nodes()[0].log_tail();
        if log.contains("slots were granted to others") {
            Ok(())
        } else {
            Err(log)
        }
    })
    .await;
    // The ring still wants it at n1: the one that was given it hands it on.
    lab.until(SLACK, "it comes back to where the ring wants it", async || {
        let row = lab
            .rows(&format!(
                "select owner, epoch from ringmesh.slot where slot = {slot}"
            ))
            .await;
        if row == [format!(r#"{{"owner":{first},"epoch":{}}}"#, epoch + 2)] {
            Ok(())
        } else {
            Err(row.join(""))
        }
    })
    .await;
    let number = lab
        .number(&format!(
            "select min(n)::bigint from generate_series(1, 200000) n where ringmesh.slot_of('k' || n) = {slot}"
        ))
        .await;
    let id = lab
        .submit(json!({"kind": "echo", "key": format!("k{number}"), "payload": 1}))
        .await;
    let task = lab.state(&id, "succeeded", SLACK).await;
    lab.check(task["attempt"] == 1, || task.to_string());
}

#[tokio::test]
async fn nodes_whose_rows_are_deleted_start_anew_and_no_task_is_lost_or_doubled() {
    let lab = Lab::start(3, Program::Worker, &[]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let before = lab.number("select max(incarnation) from ringmesh.node").await;
    lab.execute("delete from ringmesh.node where name = 'n2'").await;
    load.more(&lab, 100, SLACK * 3).await;
    lab.execute("delete from ringmesh.node").await;
    load.more(&lab, 100, SLACK * 3).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;
    lab.until(SLACK * 2, "all three are back as others", async || {
        let back = lab
            .number(&format!(
                "select count(*) from ringmesh.node where fenced_at is null and incarnation > {before}"
            ))
            .await;
        if back == 3 {
            Ok(())
        } else {
            Err(format!("{back} are"))
        }
    })
    .await;
}
