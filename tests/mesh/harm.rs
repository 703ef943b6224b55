//! Tasks that do harm: their story can be read, their key goes on, and nobody else notices.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn bad_task_ends_dead_with_its_story_and_harms_neither_its_key_nor_others() {
    let env = [
        UNHURRIED,
        ("RINGMESH_FAULT_KINDS", "true"),
        ("RINGMESH_RUN_GRACE", "300ms"),
        ("RINGMESH_BACKOFF_MIN", "100ms"),
    ];
    let lab = Lab::start(2, Program::Worker, &env).await;
    // At the payload's limit of size.
    let text = format!(
        "\u{1b}[31m\u{202e}\u{1F4A3}'; drop schema ringmesh cascade; --{}",
        "x".repeat(900 << 10)
    );
    // The kind, its payload, and what its story must tell.
    let cases: [(&str, Value, &str); 8] = [
        ("panic", json!(null), "as asked"),
        ("say", json!({"text": text, "zeros": 3}), "drop schema"),
        ("sleep", json!({"ms": 600_000}), "time"),
        ("stubborn", json!({"ms": 600_000}), "time"),
        ("sleep", json!({"mss": 1}), "missing field `ms`"),
        ("drop", json!({"ms": 0}), "dropped, as asked"),
        ("drop", json!({"ms": 600_000}), "time"),
        // The second run finds the lock as the first one left it.
        ("poison", json!(null), "Poison"),
    ];
    let mut bad = Vec::new();
    for (number, (kind, payload, story)) in cases.iter().enumerate() {
        let key = format!("bad-{number}");
        // The others shall fail by themselves, however slowly.
        let timeout = if *story == "time" { "300ms" } else { "5m" };
        let task =
            json!({"kind": kind, "key": key, "payload": payload, "max_attempts": 2, "timeout": timeout});
        bad.push(lab.submit(task).await);
        bad.push(
            lab.submit(json!({"kind": "echo", "key": key, "payload": number}))
                .await,
        );
    }
    let mut others = Vec::new();
    for number in 0..100 {
        others.push(
            lab.submit_at(
                number,
                json!({"kind": "echo", "key": format!("good-{number}"), "payload": number}),
            )
            .await,
        );
    }
    for id in others {
        let task = lab.state(&id, "succeeded", SLACK).await;
        lab.check(task["failures"] == 0 && task["crashes"] == 0, || {
            format!("another key was disturbed: {task}")
        });
    }
    for (pair, (kind, payload, story)) in bad.chunks(2).zip(&cases) {
        let task = lab.state(&pair[0], "dead", SLACK).await;
        let error = task["error"].as_str().unwrap_or_default();
        lab.check(error.contains(story) && error.len() < 100_000, || {
            format!(
                "{kind} {:.100} ended with {:.500}",
                payload.to_string(),
                task.to_string()
            )
        });
        lab.state(&pair[1], "succeeded", SLACK).await;
    }
}

#[tokio::test]
async fn task_that_kills_its_process_ends_dead_after_few_deaths_and_takes_no_other_with_it() {
    let mut lab = Lab::start(3, Program::Ringmesh, &[("RINGMESH_FAULT_KINDS", "true")]).await;
    let mut victims = Vec::new();
    for number in 0..60 {
        let task = json!({"kind": "sleep", "key": format!("victim-{number}"), "payload": {"ms": 300}, "max_attempts": 3});
        victims.push(task);
    }
    let ids: Vec<String> = {
        let answer = lab
            .client
            .post(0, "/v1/tasks/batch", &Value::from(victims))
            .await
            .unwrap();
        lab.check(answer.status == 201, || format!("{answer:?}"));
        answer.body["ids"]
            .as_array()
            .unwrap()
            .iter()
            .map(|id| id.as_str().unwrap().to_owned())
            .collect()
    };
    let killer = lab
        .submit(json!({"kind": "abort", "key": "killer", "payload": null, "max_attempts": 3}))
        .await;
    let next = lab
        .submit(json!({"kind": "echo", "key": "killer", "payload": 1}))
        .await;

    let (mut deaths, deadline) = (0, Instant::now() + SLACK * 5);
    // What a supervisor does.
    let story = loop {
        for node in lab.mesh.nodes_mut() {
            if node.ended().is_some() {
                deaths += 1;
                node.spawn().await.unwrap();
            }
        }
        let ended = lab.rows(&format!(
            "select * from ringmesh.finished_task where slot || '-' || id in ('{killer}', '{next}') order by id"
        )).await;
        if ended.len() == 2 {
            break ended;
        }
        if Instant::now() > deadline {
            let open = lab.rows("select * from ringmesh.task").await;
            lab.fail(&format!("after {deaths} deaths still open: {open:#?}"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    lab.check(
        story[0].contains(r#""state":"dead""#) && story[0].contains(r#""crashes":3"#),
        || story[0].clone(),
    );
    lab.check(story[1].contains(r#""state":"succeeded""#), || story[1].clone());
    // The first two deaths only make it a suspect, alone; and one that moves to another node meanwhile begins again.
    lab.check((5..=10).contains(&deaths), || format!("{deaths} nodes died"));
    println!("{deaths} deaths by one task");
    lab.drained(SLACK * 3).await;
    let listed = ids
        .iter()
        .map(|id| format!("'{id}'"))
        .collect::<Vec<_>>()
        .join(",");
    let harmed = lab.rows(&format!(
        "select * from ringmesh.finished_task where slot || '-' || id in ({listed}) and (state <> 'succeeded' or failures > 0)"
    )).await;
    lab.check_none("tasks of others that were harmed", &harmed);
    let done = lab
        .number(&format!(
            "select count(*) from ringmesh.finished_task where slot || '-' || id in ({listed})"
        ))
        .await;
    lab.check(done == 60, || format!("of 60 others {done} ended"));
}

#[tokio::test]
async fn task_that_exits_or_overflows_the_stack_ends_dead_and_its_key_goes_on() {
    let mut lab = Lab::start(2, Program::Worker, &[]).await;
    // In one transaction, by SQL: a node that took them could be dead before it took all.
    let tasks = lab
        .rows(
            "select ringmesh.enqueue(kind, key, payload::jsonb, max_attempts => attempts) as id from (values
             ('exit', 'exit', 'null', 1), ('echo', 'exit', '1', 10),
             ('overflow', 'overflow', 'null', 1), ('echo', 'overflow', '1', 10)) as t (kind, key, payload, attempts)",
        )
        .await;
    let tasks: Vec<Value> = tasks
        .iter()
        .map(|row| serde_json::from_str(row).unwrap())
        .collect();
    let (mut deaths, deadline) = (0, Instant::now() + Duration::from_secs(90));
    // What a supervisor does.
    let ended = loop {
        for node in lab.mesh.nodes_mut() {
            if node.ended().is_some() {
                deaths += 1;
                node.spawn().await.unwrap();
            }
        }
        let ended = lab
            .rows("select slot || '-' || id as task, state, crashes from ringmesh.finished_task order by id");
        let ended = ended.await;
        if ended.len() == tasks.len() {
            break ended;
        }
        if Instant::now() > deadline {
            lab.fail(&format!("after {deaths} deaths only {ended:#?} ended"));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    let expected: Vec<String> = tasks
        .iter()
        .zip(["dead", "succeeded"].iter().cycle())
        .map(|(task, state)| {
            let crashes = u8::from(*state == "dead");
            format!(
                r#"{{"task":{},"state":"{state}","crashes":{crashes}}}"#,
                task["id"]
            )
        })
        .collect();
    lab.check(ended == expected, || format!("after {deaths} deaths {ended:#?}"));
    println!("{deaths} deaths by two tasks");
}
