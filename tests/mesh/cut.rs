//! A node that its peers can reach and Postgres cannot.

use std::time::Instant;

use crate::harness::{Lab, Load, Program, Proxy, SLACK, TTL};

#[tokio::test]
async fn node_cut_off_from_postgres_loses_its_slots_though_gossip_is_fine_and_comes_back_anew() {
    let mut lab = Lab::start(2, Program::Worker, &[]).await;
    let proxy = Proxy::start(lab.postgres.port()).await;
    let (own, behind) = (format!(":{}/", lab.postgres.port()), format!(":{}/", proxy.port));
    let url = lab.postgres.url().replace(&own, &behind);
    lab.add_guest("far", Program::Worker, &[("RINGMESH_DATABASE_URL", &url)])
        .await;
    let load = Load::start(&lab.client);
    load.more(&lab, 150, SLACK * 3).await;
    let before = lab.incarnation("far").await;
    let far = lab.guests[0].nodes()[0].url().to_owned();

    proxy.cut();
    let cut = Instant::now();
    lab.all_owned(TTL + SLACK, before).await;
    println!(
        "all its slots had new owners {:?} after the cut, with a lease of {TTL:?}",
        cut.elapsed()
    );
    let log = std::fs::read_to_string(lab.mesh.nodes()[0].log()).unwrap();
    let gone = log.contains("member gone peer=far");
    load.more(&lab, 100, SLACK * 3).await;
    let ready = lab.client.text(&format!("{far}/health/ready")).await;
    lab.check(ready != "ready\n", || {
        format!("without Postgres it says {ready:?}")
    });
    let live = lab.client.text(&format!("{far}/health/live")).await;
    lab.check(live == "live\n", || {
        format!("a node without Postgres shall not be restarted, but says {live:?}")
    });
    proxy.heal();
    lab.until(SLACK * 2, "it is in the mesh again", async || {
        let next = lab.incarnation("far").await;
        let ready = lab.client.text(&format!("{far}/health/ready")).await;
        if next > before && ready == "ready\n" {
            Ok(())
        } else {
            Err(format!("it is {next}, was {before}, and says {ready:?}"))
        }
    })
    .await;
    load.more(&lab, 100, SLACK * 3).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;
    let kinds = lab
        .rows(&format!(
            "select fenced_as from ringmesh.node where incarnation = {before}"
        ))
        .await;
    lab.check(kinds == [r#"{"fenced_as":"expired"}"#], || {
        format!("it was fenced as {kinds:?}")
    });
    let late = proxy.late();
    lab.check(late > 0, || {
        "no message of the fenced node reached Postgres later: nothing was proven".into()
    });
    // On a machine without time for it gossip may err, which is why it decides nothing.
    println!("{late} late messages; gossip called the node that was cut off dead: {gone}");
}
