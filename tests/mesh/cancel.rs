//! Cancels, from a node that does not own the key.

use serde_json::json;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn cancel_ends_tasks_in_every_open_state_and_refuses_those_that_have_ended() {
    let lab = Lab::start(2, Program::Ringmesh, &[UNHURRIED]).await;
    for key in ["a", "b", "c", "d"] {
        let sleep = json!({"kind": "sleep", "key": key, "payload": {"ms": 600_000}});
        let running = lab.submit(sleep.clone()).await;
        let pending = lab.submit(sleep).await;
        let last = lab
            .submit(json!({"kind": "echo", "key": key, "payload": 1}))
            .await;
        let scheduled = lab
            .submit(json!({"kind": "echo", "key": key, "payload": 1, "delay": "1h"}))
            .await;
        lab.state(&running, "running", SLACK).await;
        for (turn, id) in [&pending, &scheduled, &running].into_iter().enumerate() {
            // One of the two nodes owns the key, the other does not.
            let answer = lab.client.delete(turn, &format!("/v1/tasks/{id}")).await.unwrap();
            lab.check(
                answer.status == 200 && answer.body["state"] == "cancelled",
                || format!("{id}: {answer:?}"),
            );
        }
        // The key goes on although the cancelled task wanted ten minutes.
        lab.state(&last, "succeeded", SLACK).await;
        for id in [&last, &running] {
            let answer = lab.client.delete(1, &format!("/v1/tasks/{id}")).await.unwrap();
            lab.check(
                answer.status == 409 && answer.body["code"] == "already_final",
                || format!("{id}: {answer:?}"),
            );
        }
    }
    lab.drained(SLACK).await;
    let states = lab
        .rows("select state, count(*) from ringmesh.finished_task group by 1 order by 1")
        .await;
    lab.check(
        states
            == [
                r#"{"state":"cancelled","count":12}"#,
                r#"{"state":"succeeded","count":4}"#,
            ],
        || format!("{states:?}"),
    );
    lab.until(SLACK, "no run goes on", async || {
        let mut running = 0.0;
        for node in lab.mesh.nodes() {
            running += lab.metric(node.url(), "ringmesh_runs_running").await;
        }
        if running == 0.0 {
            Ok(())
        } else {
            Err(format!("{running} runs go on"))
        }
    })
    .await;
}
