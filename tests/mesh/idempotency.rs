//! One idempotency key, one task: whoever repeats it, wherever, whatever died in between.

use futures::future::join_all;
use serde_json::json;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn submits_under_one_idempotency_key_are_one_task_also_when_the_node_that_took_it_died() {
    let mut lab = Lab::start(3, Program::Ringmesh, &[UNHURRIED]).await;
    let task = json!({"kind": "echo", "key": "k", "payload": {"n": 1}, "idempotency_key": "once"});
    let answers = join_all((0..64).map(|number| {
        let (client, task) = (lab.client.clone(), task.clone());
        async move {
            // What a client does that was not told whether its submit was taken.
            loop {
                let answer = client.post(number, "/v1/tasks", &task).await.unwrap();
                if answer.status != 503 {
                    break answer;
                }
            }
        }
    }))
    .await;
    let created = answers.iter().filter(|answer| answer.status == 201).count();
    let replayed = answers
        .iter()
        .filter(|answer| answer.status == 200 && answer.body["replayed"] == true)
        .count();
    let id = answers[0].body["id"].clone();
    let same = answers.iter().all(|answer| answer.body["id"] == id);
    // Whoever created it may have lost the answer.
    lab.check(created <= 1 && created + replayed == 64 && same, || {
        format!("{answers:#?}")
    });

    let other = json!({"kind": "echo", "key": "k", "payload": {"n": 2}, "idempotency_key": "once"});
    let answer = lab.client.post(1, "/v1/tasks", &other).await.unwrap();
    lab.check(
        answer.status == 422 && answer.body["code"] == "idempotency_mismatch",
        || format!("{answer:?}"),
    );

    let later = json!({"kind": "echo", "key": "k2", "payload": 1, "idempotency_key": "twice"});
    let first = lab.submit_at(2, later.clone()).await;
    lab.mesh.node_mut("n3").unwrap().kill().await.unwrap();
    let again = lab
        .until(SLACK, "the repeated submit is answered", async || {
            let again = lab.client.post(0, "/v1/tasks", &later).await.unwrap();
            if again.status == 503 {
                return Err(format!("{again:?}"));
            }
            Ok(again)
        })
        .await;
    lab.check(
        again.status == 200 && again.body["id"] == first && again.body["replayed"] == true,
        || format!("{first}, then {again:?}"),
    );
    lab.state(&first, "succeeded", SLACK * 3).await;
    lab.drained(SLACK).await;
    let tasks = lab.rows("select * from ringmesh.finished_task").await;
    lab.check(tasks.len() == 2, || format!("{tasks:#?}"));
}
