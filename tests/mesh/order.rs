//! When tasks start: not before they are due, urgent ones first, none never.

use serde_json::{Value, json};

use crate::harness::{Lab, Program, SLACK};

#[tokio::test]
async fn delayed_tasks_are_never_early_and_urgent_ones_overtake_without_starving_others() {
    let env = [("RINGMESH_CONCURRENCY", "2"), ("RINGMESH_ROOM", "8")];
    let lab = Lab::start(1, Program::Ringmesh, &env).await;
    let mut tasks = Vec::new();
    for number in 0..20 {
        tasks.push(json!({"kind": "noop", "key": format!("later-{}", number % 5), "payload": null, "delay": 0.5 + f64::from(number) / 10.0}));
    }
    for number in 0..200 {
        tasks.push(json!({"kind": "sleep", "key": format!("backlog-{number}"), "payload": {"ms": 20}}));
    }
    let answer = lab
        .client
        .post(0, "/v1/tasks/batch", &Value::from(tasks))
        .await
        .unwrap();
    lab.check(answer.status == 201, || format!("{answer:?}"));
    let scheduled = lab.task(answer.body["ids"][19].as_str().unwrap()).await;
    lab.check(
        scheduled["state"] == "scheduled" && scheduled["run_at"].is_string(),
        || scheduled.to_string(),
    );

    // Urgent ones without pause, each of a key of its own, until the backlog has ended.
    let mut urgent = 0;
    let first = loop {
        let id = lab.submit(json!({"kind": "sleep", "key": format!("urgent-{urgent}"), "payload": {"ms": 20}, "priority": 9})).await;
        urgent += 1;
        let left = lab
            .number("select count(*) from ringmesh.task where key like 'backlog-%'")
            .await;
        if urgent == 1 {
            lab.state(&id, "succeeded", SLACK).await;
            break lab
                .number("select count(*) from ringmesh.task where key like 'backlog-%'")
                .await;
        }
        lab.check(left > 0, || "nothing was left to overtake".into());
    };
    lab.check(first > 100, || {
        format!("only {first} of 200 were left when the urgent task had ended: it waited its turn")
    });
    lab.until(SLACK * 3, "the backlog ends although urgent tasks never do", async || {
        for _ in 0..4 {
            lab.submit(json!({"kind": "sleep", "key": format!("urgent-{urgent}"), "payload": {"ms": 20}, "priority": 9})).await;
            urgent += 1;
        }
        match lab.number("select count(*) from ringmesh.task where priority = 0").await {
            0 => Ok(()),
            left => Err(format!("{left} tasks are left, {urgent} urgent ones were submitted")),
        }
    })
    .await;
    println!("{first} of 200 were left when the first urgent task had ended; {urgent} urgent tasks");
    lab.drained(SLACK * 3).await;
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
