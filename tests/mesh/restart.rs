//! Starts after deaths.

use serde_json::json;

use crate::harness::{Lab, Program, SLACK, TTL};

#[tokio::test]
async fn one_node_goes_on_with_the_work_of_a_mesh_that_was_killed() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let mut ids = Vec::new();
    for number in 0..40 {
        let payload = json!({"seq": number, "gate": "restart"});
        ids.push(
            lab.submit(json!({"kind": "ledger", "key": format!("k{}", number % 8), "payload": payload}))
                .await,
        );
    }
    for node in lab.mesh.nodes_mut() {
        node.kill().await.unwrap();
    }
    let open = lab.number("select count(*) from ringmesh.task").await;
    lab.check(open == 40, || {
        format!("{open} of 40 tasks were left over, all waited")
    });
    lab.open("restart");

    lab.mesh.node_mut("n1").unwrap().start_again().await.unwrap();
    lab.all_owned(TTL + SLACK, 0).await;
    let me = lab.incarnation("n1").await;
    let mine = lab
        .number(&format!("select count(*) from ringmesh.slot where owner = {me}"))
        .await;
    lab.check(mine == 4096, || format!("the only node owns {mine} slots"));
    let history = lab.drained(SLACK * 3).await;
    let mut effects: Vec<&str> = history.effects().map(|effect| effect.task.as_str()).collect();
    effects.sort_unstable();
    ids.sort_unstable();
    lab.check(effects == ids, || {
        format!("submitted {ids:?}, had effects {effects:?}")
    });
    // And once more, at once: the name is free again although nothing has expired.
    let node = lab.mesh.node_mut("n1").unwrap();
    node.kill().await.unwrap();
    if let Err(error) = node.start_again().await {
        lab.fail(&format!("the restart under the same name failed: {error}"));
    }
    let next = lab.incarnation("n1").await;
    lab.check(next > me, || format!("{me} came back as {next}"));
}
