//! Failures and what follows them.

use serde_json::json;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn failed_task_is_tried_again_before_its_key_goes_on_and_other_keys_do_not_wait() {
    let env = [
        UNHURRIED,
        ("RINGMESH_BACKOFF_MIN", "400ms"),
        ("RINGMESH_BACKOFF_MAX", "1s"),
    ];
    let lab = Lab::start(2, Program::Worker, &env).await;
    let head = json!({"kind": "unless", "key": "held", "payload": {"gate": "head"}, "max_attempts": 1000});
    let head = lab.submit(head).await;
    let doomed = json!({"kind": "fail", "key": "doomed", "payload": {"times": 9}, "max_attempts": 2});
    let doomed = lab.submit(doomed).await;
    let mut behind = Vec::new();
    for number in 0..5 {
        behind.push(
            lab.submit(json!({"kind": "echo", "key": "held", "payload": number}))
                .await,
        );
    }
    let after_doomed = lab
        .submit(json!({"kind": "echo", "key": "doomed", "payload": 0}))
        .await;
    let held = lab
        .until(SLACK, "the key says why it waits", async || {
            let status = lab
                .client
                .get(1, "/v1/keys/held")
                .await
                .map_err(|error| error.to_string())?
                .body;
            if status["held"]["reason"] == "retry" && status["held"]["task"] == head {
                Ok(status)
            } else {
                Err(status.to_string())
            }
        })
        .await;
    lab.check(held["waiting"].as_i64() >= Some(1), || held.to_string());
    for number in 0..20 {
        let id = lab
            .submit(json!({"kind": "echo", "key": format!("free-{number}"), "payload": null}))
            .await;
        lab.state(&id, "succeeded", SLACK).await;
    }

    lab.until(SLACK, "it has failed twice", async || {
        let task = lab.task(&head).await;
        if task["failures"].as_i64() >= Some(2) {
            Ok(())
        } else {
            Err(task.to_string())
        }
    })
    .await;
    lab.open("head");
    lab.state(&head, "succeeded", SLACK).await;
    for id in &behind {
        lab.state(id, "succeeded", SLACK).await;
    }
    let task = lab.state(&doomed, "dead", SLACK).await;
    lab.check(
        task["failures"] == 2
            && task["error"]
                .as_str()
                .unwrap_or_default()
                .contains("failure 2 of 9"),
        || task.to_string(),
    );
    lab.state(&after_doomed, "succeeded", SLACK).await;
    let early = lab.rows(
        "select b.id, b.started_at, h.id as head, h.finished_at from ringmesh.finished_task b join ringmesh.finished_task h \
         using (slot, key) where key in ('held', 'doomed') and h.id < b.id and b.started_at < h.finished_at",
    );
    lab.check_none(
        "tasks that started before the one before them had ended",
        &early.await,
    );
    let waited = lab.number(
        "select count(*) from ringmesh.finished_task where key = 'held' and kind = 'unless' \
        and finished_at - created_at >= interval '600 milliseconds'",
    );
    lab.check(waited.await == 1, || "two retries came without a pause".into());
    let left = lab.rows("select * from ringmesh.held_key").await;
    lab.check_none("keys that are still held", &left);
}
