//! Connections to Postgres that die without a word, and clients that leave while their request waits for Postgres.

use std::time::{Duration, Instant};

use futures::future::join_all;
use ringmesh::dev::Mesh;
use serde_json::json;

use crate::harness::{Lab, Load, Program, Proxy, SLACK};

/// A node that reaches Postgres through the proxy only.
async fn behind(lab: &mut Lab, proxy: &Proxy) -> String {
    let (own, behind) = (format!(":{}/", lab.postgres.port()), format!(":{}/", proxy.port));
    let url = lab.postgres.url().replace(&own, &behind);
    lab.add_guest("far", Program::Worker, &[("RINGMESH_DATABASE_URL", &url)])
        .await;
    lab.guests.last().map(Mesh::nodes).unwrap()[0].url().to_owned()
}

/// Waits until no connection of any pool is in use.
async fn pools_are_whole(lab: &Lab, node: &str, within: Duration) {
    lab.until(within, "no pool has a connection in use", async || {
        let page = lab.client.text(&format!("{node}/metrics")).await;
        let pools: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("ringmesh_pool_connections{") && line.contains("in_use"))
            .collect();
        lab.check(pools.len() == 3, || format!("the pools are {pools:?}"));
        if pools.iter().all(|pool| pool.ends_with(" 0")) {
            Ok(())
        } else {
            Err(pools.join("\n"))
        }
    })
    .await;
}

#[tokio::test]
async fn node_whose_connections_fall_silent_works_again_by_new_ones_and_its_pools_are_whole() {
    let mut lab = Lab::start(2, Program::Worker, &[]).await;
    let proxy = Proxy::start(lab.postgres.port()).await;
    let far = behind(&mut lab, &proxy).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 150, SLACK * 3).await;
    for round in 1..=3 {
        let (before, swallowed) = (lab.incarnation("far").await, proxy.swallowed());
        let silences = lab.metric(&far, "ringmesh_postgres_silences_total").await;
        proxy.silence();
        let silent = Instant::now();
        lab.until(SLACK * 6, "it notices, and has its share again", async || {
            let noticed = lab.metric(&far, "ringmesh_postgres_silences_total").await - silences;
            let ready = lab.client.text(&format!("{far}/health/ready")).await;
            if noticed > 0.0 && ready == "ready\n" {
                Ok(())
            } else {
                Err(format!("{noticed} silences, and it says {ready:?}"))
            }
        })
        .await;
        println!(
            "silence {round}: ready again after {:?}, {} messages vanished, {before} became {}",
            silent.elapsed(),
            proxy.swallowed() - swallowed,
            lab.incarnation("far").await
        );
        load.more(&lab, 150, SLACK * 3).await;
    }
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;
    pools_are_whole(&lab, &far, SLACK).await;
}

#[tokio::test]
async fn clients_that_leave_a_slow_database_leave_no_transaction_open() {
    let mut lab = Lab::start(1, Program::Worker, &[]).await;
    let proxy = Proxy::start(lab.postgres.port()).await;
    let far = behind(&mut lab, &proxy).await;
    proxy.delay(Duration::from_millis(40));
    let http = ringmesh::tls::http_client().build().unwrap();
    let mut left = 0;
    for round in 0..40_u64 {
        let requests = (0..12_u64).map(|number| {
            let task = json!({"kind": "noop", "key": format!("k{number}"), "idempotency_key": format!("{round}-{number}"), "payload": {}});
            let request = match number % 6 {
                0 => http.post(format!("{far}/v1/tasks")).json(&task),
                1 => http.post(format!("{far}/v1/tasks/batch")).json(&json!({"tasks": [task]})),
                2 => http.get(format!("{far}/v1/keys/k1")),
                3 => http.get(format!("{far}/v1/tasks/1-1")),
                4 => http.delete(format!("{far}/v1/tasks/1-1")),
                _ => http.get(format!("{far}/v1/mesh")),
            };
            let patience = Duration::from_millis((round * 12 + number) * 7 % 400);
            async move { request.timeout(patience).send().await.is_err() }
        });
        left += join_all(requests).await.into_iter().filter(|left| *left).count();
    }
    lab.check(left > 50, || {
        format!("only {left} of 480 clients left: nothing was proven")
    });
    proxy.delay(Duration::ZERO);
    pools_are_whole(&lab, &far, SLACK * 2).await;
    lab.until(SLACK, "no session is in an open transaction", async || {
        let open = lab
            .rows("select pid, state, query from pg_stat_activity where state like 'idle in transaction%' and datname = current_database()")
            .await;
        if open.is_empty() {
            Ok(())
        } else {
            Err(open.join("\n"))
        }
    })
    .await;
    let id = lab
        .submit(json!({"kind": "echo", "key": "after", "payload": 1}))
        .await;
    lab.state(&id, "succeeded", SLACK).await;
    println!("{left} of 480 clients left before their answer");
}
