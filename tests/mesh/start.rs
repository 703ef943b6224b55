//! Many first nodes at once.

use crate::harness::{Lab, Program, UNHURRIED};

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
    lab.all_owned(std::time::Duration::ZERO, 0).await;
}
