//! Many first nodes at once.

use std::time::Duration;

use crate::harness::{Lab, Load, Program, SLACK, UNHURRIED};

#[tokio::test]
async fn ten_nodes_start_at_once_on_an_empty_database() {
    let lab = Lab::start_on_empty(10, Program::Ringmesh, &[UNHURRIED]).await;
    let twice = lab
        .rows("select version from ringmesh._sqlx_migrations group by version having count(*) <> 1")
        .await;
    lab.check_none("migrations that were not applied once", &twice);
    let logs = lab
        .mesh
        .nodes()
        .iter()
        .map(|node| std::fs::read_to_string(node.log()).unwrap());
    let migrated = logs
        .filter(|log| log.contains("brought the schema up to date"))
        .count();
    lab.check(migrated == 1, || format!("{migrated} nodes migrated"));
    let live = lab
        .number("select count(distinct name) from ringmesh.node where fenced_at is null")
        .await;
    let ever = lab.number("select count(*) from ringmesh.node").await;
    lab.check((live, ever) == (10, 10), || {
        format!("{live} nodes live of {ever}")
    });
    let settings = lab.number("select count(*) from ringmesh.mesh").await;
    lab.check(settings == 1, || format!("{settings} rows of settings"));
    lab.all_owned(Duration::ZERO, 0).await;
}

#[tokio::test]
async fn five_nodes_with_one_connection_for_each_use_start_on_an_empty_database_and_work() {
    let env = [
        UNHURRIED,
        ("RINGMESH_CONNECTIONS", "1"),
        ("RINGMESH_HOT_CONNECTIONS", "1"),
    ];
    let lab = Lab::start_on_empty(5, Program::Worker, &env).await;
    lab.all_owned(SLACK, 0).await;
    lab.record().await;
    // Handlers keep the connection that submits and reads need as well.
    let load = Load::start(&lab.client);
    load.more(&lab, 100, SLACK * 3).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    let mut effects: Vec<&str> = history.effects().map(|effect| effect.task.as_str()).collect();
    let mut accepted: Vec<&str> = loaded.accepted.iter().map(|task| task.id.as_str()).collect();
    effects.sort_unstable();
    accepted.sort_unstable();
    lab.check(effects == accepted, || {
        format!("{} accepted, {} effects", accepted.len(), effects.len())
    });
}
