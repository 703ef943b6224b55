//! Postgres stalls, restarts, crashes and turns read-only: nothing is accepted meanwhile, nobody is thrown out, all resumes.

use std::time::Instant;

use serde_json::json;

use crate::harness::{Answer, Lab, Load, Program, SLACK, TTL, rounds};

/// The incarnations, none of which may change.
async fn nodes(lab: &Lab) -> Vec<String> {
    lab.rows(
        "select incarnation, name, fenced_at, fenced_as, fenced_by from ringmesh.node order by incarnation",
    )
    .await
}

async fn check_nobody_left(lab: &mut Lab, before: &[String]) {
    let after = nodes(lab).await;
    lab.check(after == before, || {
        format!("the nodes were {before:#?} and are {after:#?}")
    });
    let ended: Vec<String> = lab
        .mesh
        .nodes_mut()
        .iter_mut()
        .filter_map(|node| {
            node.ended()
                .map(|status| format!("{} ended with {status}", node.name()))
        })
        .collect();
    lab.check_none("nodes that ended", &ended);
}

/// Submits one task after the other, and keeps the answers; at least one, which a slow machine may give late.
async fn probe_until(lab: &Lab, until: Instant) -> Vec<Answer> {
    let task = json!({"kind": "noop", "key": "probe", "payload": null});
    let mut answers = Vec::new();
    let last = until + SLACK;
    while Instant::now() < until || (answers.is_empty() && Instant::now() < last) {
        let until = if answers.is_empty() { last } else { until };
        let left = until.saturating_duration_since(Instant::now());
        if let Ok(answer) = tokio::time::timeout(left, lab.client.post(0, "/v1/tasks", &task)).await {
            answers.push(answer.unwrap());
        }
    }
    answers
}

#[tokio::test]
async fn stall_of_postgres_of_two_lease_lengths_fences_nobody_and_loses_nothing() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let before = nodes(&lab).await;

    for round in 1..=rounds() {
        lab.postgres.pause().await.unwrap();
        let answers = probe_until(&lab, Instant::now() + TTL * 2).await;
        lab.postgres.resume().unwrap();
        println!(
            "round {round}: {} answers while Postgres stood still",
            answers.len()
        );
        lab.check(!answers.is_empty(), || "no client was told anything".into());
        let taken = answers
            .iter()
            .filter(|answer| answer.status != 503 || answer.retry_after.is_none());
        let taken: Vec<String> = taken.map(|answer| format!("{answer:?}")).collect();
        lab.check_none("answers other than 503 while Postgres stood still", &taken);
        load.more(&lab, 100, SLACK * 3).await;
    }
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    check_nobody_left(&mut lab, &before).await;
    lab.execute("delete from ringmesh.finished_task where key = 'probe'")
        .await;
    lab.check_effects(&history, &loaded).await;
}

#[tokio::test]
async fn restart_and_crash_of_postgres_end_no_node_and_lose_nothing() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let before = nodes(&lab).await;

    lab.postgres.stop().await.unwrap();
    let task = json!({"kind": "noop", "key": "probe", "payload": null});
    for node in 0..3 {
        let answer = lab.client.post(node, "/v1/tasks", &task).await.unwrap();
        lab.check(answer.status == 503 && answer.retry_after.is_some(), || {
            format!("without Postgres: {answer:?}")
        });
    }
    lab.postgres.restart().await.unwrap();
    load.more(&lab, 100, SLACK * 3).await;

    lab.postgres.kill().await.unwrap();
    lab.postgres.restart().await.unwrap();
    load.more(&lab, 100, SLACK * 3).await;
    let loaded = load.stop().await;
    lab.check(loaded.refused > 0, || "no client was ever told 503".into());
    let history = lab.drained(SLACK * 3).await;
    check_nobody_left(&mut lab, &before).await;
    lab.execute("delete from ringmesh.finished_task where key = 'probe'")
        .await;
    lab.check_effects(&history, &loaded).await;
}

/// A standby behind the address of what was the primary, or an operator's hand.
#[tokio::test]
async fn postgres_that_takes_no_writes_for_two_lease_lengths_fences_nobody_and_loses_nothing() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let before = nodes(&lab).await;

    lab.execute("alter system set default_transaction_read_only = on")
        .await;
    lab.execute("select pg_reload_conf()").await;
    let task = json!({"kind": "noop", "key": "probe", "payload": null});
    for node in 0..3 {
        lab.until(SLACK, "submits are refused", async || {
            let answer = lab.client.post(node, "/v1/tasks", &task).await.unwrap();
            if answer.status == 503 && answer.retry_after.is_some() {
                Ok(())
            } else {
                Err(format!("{answer:?}"))
            }
        })
        .await;
    }
    let answers = probe_until(&lab, Instant::now() + TTL * 2).await;
    let taken = answers.iter().filter(|answer| answer.status != 503);
    let taken: Vec<String> = taken.map(|answer| format!("{answer:?}")).collect();
    lab.check_none("answers other than 503 while nothing could be written", &taken);
    lab.execute("alter system reset default_transaction_read_only")
        .await;
    lab.execute("select pg_reload_conf()").await;
    load.more(&lab, 100, SLACK * 3).await;

    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    check_nobody_left(&mut lab, &before).await;
    lab.execute("delete from ringmesh.finished_task where key = 'probe'")
        .await;
    lab.check_effects(&history, &loaded).await;
}
