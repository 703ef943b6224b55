//! A handler that takes every thread there is.

use serde_json::json;

use crate::harness::{Lab, Program, SLACK};

#[tokio::test]
async fn handler_that_blocks_all_threads_for_three_leases_costs_at_most_its_node_and_has_its_effect_once() {
    let env = [("RINGMESH_TTL", "2s"), ("RINGMESH_RENEW_EVERY", "300ms")];
    let lab = Lab::start(2, Program::Worker, &env).await;
    let busy = lab.incarnation("n2").await;
    let mine = lab
        .rows(&format!(
            "select 'k' || n as key from generate_series(1, 1000) n
             join ringmesh.slot s on s.slot = ringmesh.slot_of('k' || n) where owner = {busy} limit 1"
        ))
        .await;
    let key: serde_json::Value = serde_json::from_str(&mine[0]).unwrap();
    let id = lab
        .submit(json!({"kind": "hog", "key": key["key"], "payload": {"seq": 0, "ms": 6_000}}))
        .await;
    lab.until(SLACK, "it runs", async || match lab.runs_of("n2") {
        runs if runs.is_empty() => Err("nothing ran".into()),
        runs => Ok(runs),
    })
    .await;
    let renewals = format!(
        "select coalesce(max(l.renewals), 1000000000)
         from ringmesh.node n join ringmesh.lease l on l.incarnation = n.incarnation
         where n.incarnation = {busy} and n.fenced_at is null"
    );
    let before = lab.number(&renewals).await;
    lab.until(
        SLACK,
        "its node renews its lease all the same, or is fenced",
        async || {
            let renewed = lab.number(&renewals).await - before;
            if renewed > 5 {
                Ok(())
            } else {
                Err(format!("{renewed} renewals"))
            }
        },
    )
    .await;
    let open = lab.number("select count(*) from ringmesh.task").await;
    let task = lab.state(&id, "succeeded", SLACK * 3).await;
    let history = lab.drained(SLACK).await;
    let effects: Vec<&str> = history.effects().map(|effect| effect.task.as_str()).collect();
    lab.check(effects == [id.as_str()], || {
        format!("it had the effects {effects:?}")
    });
    let fenced = lab
        .number(&format!(
            "select count(*) from ringmesh.node where incarnation = {busy} and fenced_at is not null"
        ))
        .await;
    lab.check(fenced == 1 || task["attempt"] == 1, || {
        format!("its node kept its lease, and it ran again: {task}")
    });
    println!(
        "{open} open while it renewed; {fenced} fenced; {} runs",
        lab.runs().len()
    );
}
