//! Nodes that reach Postgres through a PgBouncer that knows nothing of them.

use std::time::Instant;

use crate::harness::{Behind, Lab, Load, Pooler, Program, SLACK, TTL};

/// What a node says once if its lease goes through a transaction pooler.
const TTL_ALONE: &str = "the lease is kept through a transaction pooler";
/// What it says if it took one for none.
const MIXED_UP: &str = "prepared statements are mixed up";

fn says(lab: &Lab, text: &str) -> Vec<usize> {
    let logs = lab
        .mesh
        .nodes()
        .iter()
        .map(|node| std::fs::read_to_string(node.log()).unwrap());
    logs.map(|log| log.matches(text).count()).collect()
}

async fn kind_of_death(lab: &Lab, dead: i64) -> String {
    let kinds = lab
        .rows(&format!(
            "select fenced_as from ringmesh.node where incarnation = {dead}"
        ))
        .await;
    kinds.join(" ")
}

#[tokio::test]
async fn through_a_transaction_pooler_with_few_servers_a_killed_node_is_taken_over_after_its_lease_and_nothing_is_lost()
 {
    if !Pooler::is_installed("a killed node behind a transaction pooler") {
        return;
    }
    let behind = Behind {
        mode: "transaction",
        servers: 6,
        direct_leases: false,
    };
    let mut lab = Lab::start_behind(3, Program::Worker, behind).await;
    let told = says(&lab, TTL_ALONE);
    lab.check(told == [1, 1, 1], || format!("the nodes warned {told:?} times"));
    let load = Load::start(&lab.client);
    load.more(&lab, 200, SLACK * 3).await;

    let dead = lab.incarnation("n2").await;
    lab.mesh.node_mut("n2").unwrap().kill().await.unwrap();
    let killed = Instant::now();
    lab.all_owned(TTL + SLACK * 2, dead).await;
    println!(
        "all its slots had new owners {:?} after the kill, with a lease of {TTL:?}",
        killed.elapsed()
    );
    let kind = kind_of_death(&lab, dead).await;
    lab.check(kind.contains("expired"), || format!("it was fenced as {kind}"));
    load.more(&lab, 200, SLACK * 3).await;

    lab.pooler.as_mut().unwrap().restart().await;
    load.more(&lab, 200, SLACK * 4).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 4).await;
    lab.check_effects(&history, &loaded).await;
    let mixed = says(&lab, MIXED_UP);
    lab.check(mixed == [0, 0, 0], || {
        format!("statements were mixed up {mixed:?} times")
    });
}

/// Nodes behind a pooler, each of which says `told` once; `None`: none says that its lease goes through one. One of them is killed
/// under load.
async fn is_noticed_at_once(nodes: usize, behind: Behind, told: Option<&str>) {
    let mut lab = Lab::start_behind(nodes, Program::Worker, behind).await;
    let said = says(&lab, told.unwrap_or(TTL_ALONE));
    let each = usize::from(told.is_some());
    lab.check(said == vec![each; nodes], || {
        format!("the nodes said so {said:?} times")
    });
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let dead = lab.incarnation("n2").await;
    lab.mesh.node_mut("n2").unwrap().kill().await.unwrap();
    lab.all_owned(TTL + SLACK * 2, dead).await;
    let kind = kind_of_death(&lab, dead).await;
    lab.check(kind.contains("noticed"), || format!("it was fenced as {kind}"));
    load.more(&lab, 100, SLACK * 3).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;
}

#[tokio::test]
async fn a_direct_lease_beside_a_transaction_pooler_tells_of_a_death_at_once() {
    if !Pooler::is_installed("a direct lease beside a transaction pooler") {
        return;
    }
    let behind = Behind {
        mode: "transaction",
        servers: 6,
        direct_leases: true,
    };
    is_noticed_at_once(3, behind, None).await;
}

#[tokio::test]
async fn through_a_session_pooler_that_takes_no_settings_all_is_as_directly() {
    if !Pooler::is_installed("nodes behind a session pooler") {
        return;
    }
    let behind = Behind {
        mode: "session",
        servers: 80,
        direct_leases: false,
    };
    is_noticed_at_once(2, behind, Some("through a pooler in session mode")).await;
}
