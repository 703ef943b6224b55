//! When tasks start: not before they are due, urgent ones first, none never.

use serde_json::{Value, json};

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn delayed_tasks_are_never_early_and_urgent_ones_overtake_without_starving_others() {
    let env = [UNHURRIED, ("RINGMESH_CONCURRENCY", "2"), ("RINGMESH_ROOM", "256")];
    let lab = Lab::start(1, Program::Worker, &env).await;
    // Nothing else runs while these two wait, and less than the backlog is claimed.
    for key in ["first", "second"] {
        let id = lab
            .submit(json!({"kind": "wait", "key": key, "payload": {"gate": "order"}}))
            .await;
        lab.state(&id, "running", SLACK).await;
    }
    let mut tasks = Vec::new();
    for number in 0..20 {
        tasks.push(json!({"kind": "noop", "key": format!("later-{}", number % 5), "payload": null, "delay": 0.5 + f64::from(number) / 10.0}));
    }
    for number in 0..600 {
        tasks.push(json!({"kind": "sleep", "key": format!("backlog-{number}"), "payload": {"ms": 5}}));
    }
    let answer = lab
        .client
        .post(0, "/v1/tasks/batch", &Value::from(tasks))
        .await
        .unwrap();
    lab.check(answer.status == 201, || format!("{answer:?}"));
    let scheduled = lab.task(answer.body["ids"][19].as_str().unwrap()).await;
    lab.check(scheduled["run_at"].is_string(), || scheduled.to_string());
    let id = lab
        .submit(json!({"kind": "noop", "key": "urgent", "payload": null, "priority": 9}))
        .await;
    lab.state(&id, "running", SLACK).await;
    lab.open("order");

    // Urgent ones wait all the time, each of a key of its own, until the backlog has ended. Never more than a part of the room, however
    // fast this machine submits: what a flood leaves to the others in memory is a test of `dispatch/lanes_tests.rs`.
    let mut urgent = 0;
    lab.until(SLACK * 3, "the backlog ends although urgent tasks never do", async || {
        let open = lab.number("select count(*) from ringmesh.task where priority = 9").await;
        for _ in open..64 {
            lab.submit(json!({"kind": "sleep", "key": format!("urgent-{urgent}"), "payload": {"ms": 20}, "priority": 9})).await;
            urgent += 1;
        }
        match lab.number("select count(*) from ringmesh.task where priority = 0").await {
            0 => Ok(()),
            left => Err(format!("{left} tasks are left, {urgent} urgent ones were submitted")),
        }
    })
    .await;
    lab.drained(SLACK * 3).await;
    // A step of priority is worth a second of waiting; one of them may have had its seat before.
    let before = lab
        .number(
            "select count(*) from ringmesh.finished_task t, ringmesh.finished_task u where u.key = 'urgent' and t.key like 'backlog-%' \
             and t.created_at > u.created_at - interval '8 seconds' and t.started_at < u.started_at",
        )
        .await;
    lab.check(before <= 2, || {
        format!("{before} of 600 started before the urgent task: it waited its turn")
    });
    // Ids are in the order of submits, and so are the delays.
    let early = lab.rows(
        "select id, key, created_at, started_at from ringmesh.finished_task where key like 'later-%' and started_at < created_at + \
         (0.5 + (id - (select min(id) from ringmesh.finished_task where key like 'later-%')) / 10.0 - 0.01) * interval '1 second'",
    );
    lab.check_none("tasks that started before they were due", &early.await);
    let ended = lab
        .number(
            "select count(*) from ringmesh.finished_task where key like 'later-%' and state = 'succeeded'",
        )
        .await;
    lab.check(ended == 20, || format!("{ended} of 20 delayed tasks ended"));
}
