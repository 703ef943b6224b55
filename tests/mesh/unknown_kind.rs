//! A kind that no node knows yet, as in a rolling deploy.

use serde_json::json;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn task_of_an_unknown_kind_waits_with_its_reason_and_runs_once_a_node_knows_it() {
    let mut lab = Lab::start(1, Program::Ringmesh, &[UNHURRIED]).await;
    let mut ids = Vec::new();
    for seq in 0..6 {
        ids.push(
            lab.submit(json!({"kind": "ledger", "key": format!("k{}", seq % 2), "payload": {"seq": seq}}))
                .await,
        );
    }
    let free = lab
        .submit(json!({"kind": "echo", "key": "free", "payload": 1}))
        .await;
    lab.state(&free, "succeeded", SLACK).await;
    lab.until(SLACK, "the key says why it waits", async || {
        let status = lab
            .client
            .get(0, "/v1/keys/k0")
            .await
            .map_err(|error| error.to_string())?
            .body;
        let held = &status["held"];
        if held["reason"] == "kind" && held["kind"] == "ledger" && held["task"] == ids[0] {
            Ok(())
        } else {
            Err(status.to_string())
        }
    })
    .await;
    let task = lab.task(&ids[0]).await;
    lab.check(task["failures"] == 0, || {
        format!("waiting for a kind is no failure: {task}")
    });

    lab.add_guest("knower", Program::Worker, &[UNHURRIED]).await;
    lab.mesh.nodes_mut()[0].terminate().unwrap();
    let history = lab.drained(SLACK * 3).await;
    let mut effects: Vec<(i64, &str)> = history
        .effects()
        .map(|effect| (effect.seq, effect.task.as_str()))
        .collect();
    effects.sort_unstable();
    let expected: Vec<(i64, &str)> = (0..).zip(ids.iter().map(String::as_str)).collect();
    lab.check(effects == expected, || {
        format!("submitted {expected:?}, had effects {effects:?}")
    });
    for key in ["k0", "k1"] {
        let seqs: Vec<i64> = history
            .effects()
            .filter(|effect| effect.key == key)
            .map(|effect| effect.seq)
            .collect();
        lab.check(seqs.is_sorted(), || format!("{key} ran in the order {seqs:?}"));
    }
    let failed = lab
        .rows("select * from ringmesh.finished_task where failures + crashes > 0")
        .await;
    lab.check_none("tasks that failed", &failed);
}
