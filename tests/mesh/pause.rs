//! A process that stands still for longer than its lease and then goes on.

use serde_json::json;

use crate::harness::{Lab, Load, Program, SLACK, TTL};

#[tokio::test]
async fn paused_node_loses_its_slots_and_what_it_writes_on_waking_is_refused() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let zombie = lab.incarnation("n2").await;
    // Runs that are due to end while it stands still: it will want to write their ends when it wakes.
    for number in 0..60 {
        let task = json!({"kind": "sleep", "key": format!("sleeper-{number}"), "payload": {"ms": 700}});
        lab.submit(task).await;
    }
    lab.until(SLACK, "it runs some of them", async || {
        match lab
            .number(&format!(
                "select count(*) from ringmesh.task t join ringmesh.slot s using (slot) \
             where t.kind = 'sleep' and t.epoch = s.epoch and s.owner = {zombie}"
            ))
            .await
        {
            0 => Err("none".into()),
            _ => Ok(()),
        }
    })
    .await;

    lab.mesh.node_mut("n2").unwrap().pause().await.unwrap();
    lab.all_owned(TTL + SLACK, zombie).await;
    load.more(&lab, 100, SLACK * 3).await;
    let node = lab.mesh.node_mut("n2").unwrap();
    node.resume().unwrap();
    let url = node.url().to_owned();
    let next = lab
        .until(SLACK * 2, "the node that woke is in the mesh again", async || {
            let next = lab.incarnation("n2").await;
            let ready = lab.client.text(&format!("{url}/health/ready")).await;
            if next > zombie && ready == "ready\n" {
                Ok(next)
            } else {
                Err(format!("it is {next} and says {ready:?}"))
            }
        })
        .await;
    load.more(&lab, 100, SLACK * 3).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;

    let refused = lab.metric(&url, "ringmesh_fenced_writes_total").await;
    lab.check(refused > 0.0, || {
        "no write of the node that woke was refused: nothing was proven".into()
    });
    let fenced = lab
        .rows(&format!(
            "select fenced_as from ringmesh.node where incarnation = {zombie}"
        ))
        .await;
    lab.check(fenced == [r#"{"fenced_as":"expired"}"#], || {
        format!("it was fenced as {fenced:?}")
    });
    println!("{refused} writes refused; {zombie} came back as {next}");
    lab.execute("delete from ringmesh.finished_task where kind = 'sleep' and state = 'succeeded'")
        .await;
    lab.check_effects(&history, &loaded).await;
}
