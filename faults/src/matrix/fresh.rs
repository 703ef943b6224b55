//! Cells of a node that starts on an empty database, where there is all to migrate. It is a mesh of its own, on a host of the lab.

use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};
use ringmesh::failpoint as point;
use ringmesh::sqlx::postgres::PgConnection;
use ringmesh::sqlx::{self, Connection as _};
use tokio::time::{Instant, sleep};

use super::plan::{Action, Cell};
use super::report::Verdict;
use super::stage::{ACTS, SOON, Stage};
use crate::history::What;
use crate::observe::Follower;
use crate::workload::note;
use crate::workload::points::POINTS;

/// Where such a node listens.
const HTTP: u16 = 7131;
const GOSSIP: u16 = 7231;
/// Between two looks.
const LOOK: std::time::Duration = std::time::Duration::from_millis(10);

/// Runs it: the node meets the point, is started again if it crashed by it, and becomes ready with the whole schema.
pub(super) async fn run(stage: &mut Stage, cell: &Cell) -> Verdict {
    match try_run(stage, cell).await {
        Ok(true) => Verdict::Acted,
        Ok(false) => Verdict::NotReached,
        Err(error) => Verdict::Failed(vec![format!("{error:#}")]),
    }
}

async fn try_run(stage: &mut Stage, cell: &Cell) -> Result<bool> {
    let lab = &stage.lab;
    let host = &lab.nodes()[cell.armed];
    let name = format!("fresh_{}_{}", cell.point, cell.action.name());
    lab.database().execute(&format!("create database {name}")).await?;
    let folder = lab.dir().join(&name);
    std::fs::create_dir(&folder)?;
    let points = folder.join("points");
    std::fs::write(&points, cell.lines().join("\n"))?;
    let in_database = |url: &str| {
        let server = url.rsplit_once('/').map_or(url, |(server, _)| server);
        format!("{server}/{name}")
    };
    let gossip = format!("{}:{GOSSIP}", host.address());
    let environment = [
        ("RINGMESH_NAME", "fresh".to_owned()),
        ("RINGMESH_CLUSTER_ID", name.clone()),
        ("RINGMESH_LISTEN", format!("0.0.0.0:{HTTP}")),
        ("RINGMESH_ADVERTISE", format!("{}:{HTTP}", host.address())),
        ("RINGMESH_GOSSIP", gossip.clone()),
        ("RINGMESH_SEEDS", gossip),
        (
            "RINGMESH_DATABASE_URL",
            in_database(host.env("RINGMESH_DATABASE_URL").unwrap_or_default()),
        ),
        (note::EVENTS, folder.display().to_string()),
        (POINTS, points.display().to_string()),
    ];
    let mut follower = Follower::new(folder);
    let mut node = host.another(&environment).await?;
    let mut session = PgConnection::connect(&in_database(&lab.database_url())).await?;

    let acts = What::FailPoint {
        name: cell.point.into(),
        action: cell.action.told().into(),
    };
    let deadline = Instant::now() + ACTS;
    while !follower.news()?.into_iter().any(|event| event.what == acts) {
        if Instant::now() >= deadline {
            return Ok(false);
        }
        sleep(LOOK).await;
    }
    if cell.action == Action::Crash {
        let status = node.wait(SOON).await.context("it did not end")?;
        ensure!(status.signal() == Some(libc::SIGABRT), "it ended with {status}");
        let schemas: i64 = sqlx::query_scalar("select count(*) from pg_namespace where nspname = 'ringmesh'")
            .fetch_one(&mut session)
            .await?;
        let kept = i64::from(cell.point == point::SCHEMA);
        ensure!(schemas == kept, "{schemas} schemas were left behind, not {kept}");
        std::fs::write(&points, "")?;
        node = host.another(&environment).await?;
    }
    let http = ringmesh::tls::http_client().no_proxy().timeout(SOON).build()?;
    let ready = format!("http://{}:{HTTP}/health/ready", host.http().ip());
    let deadline = Instant::now() + SOON;
    while !matches!(http.get(&ready).send().await, Ok(answer) if answer.status().is_success()) {
        let ended = node.try_wait();
        ensure!(ended.is_none(), "it ended with {ended:?}");
        ensure!(Instant::now() < deadline, "it was not ready within {SOON:?}");
        sleep(LOOK).await;
    }
    let last: Option<i64> = sqlx::query_scalar("select max(version) from ringmesh._sqlx_migrations")
        .fetch_one(&mut session)
        .await?;
    ensure!(
        last == Some(ringmesh::store::known_migration()),
        "its last migration is {last:?}"
    );
    session.close().await?;
    Ok(true)
}
