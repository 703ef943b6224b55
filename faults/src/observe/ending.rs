//! How things stand once all work should have ended: what nobody cleaned up.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use anyhow::Result;
use ringmesh::sqlx::{self, PgPool};
use ringmesh::task::TaskId;
use tokio::time::{Instant, sleep};

use super::Node;
use crate::history::{End, Event, What};
use crate::workload::note::CLAIMED_NOTHING;

/// As many answers of each node are kept.
const ANSWERS: usize = 5;
/// Of what is left behind, so much is listed.
const LISTED: i64 = 1000;
/// What comes and goes (a watch's lock, a session between two statements) has this long to go.
const SETTLES: Duration = Duration::from_secs(5);
const LOOK: Duration = Duration::from_millis(200);

/// What a process holds: open files, and KiB in memory.
pub(super) type Held = (u64, u64);

/// What each process holds now, by node.
pub(super) fn held(processes: &HashMap<String, u32>) -> HashMap<String, (u32, Held)> {
    let look = |(name, pid): (&String, &u32)| Some((name.clone(), (*pid, held_by(*pid)?)));
    processes.iter().filter_map(look).collect()
}

fn held_by(pid: u32) -> Option<Held> {
    let files = std::fs::read_dir(format!("/proc/{pid}/fd")).ok()?.count() as u64;
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
    let memory = line.split_whitespace().next()?.parse().ok()?;
    Some((files, memory))
}

/// Looks at all of it.
///
/// # Errors
/// Postgres does not answer.
pub(super) async fn look(
    db: &PgPool,
    nodes: &[Node],
    at_start: &HashMap<String, (u32, Held)>,
    events: &[Event],
) -> Result<End> {
    let http = ringmesh::tls::http_client()
        .timeout(Duration::from_secs(2))
        .build()?;
    let refused = |claims: bool| {
        let rows = events.iter().map(|event| match &event.what {
            What::Refused { rows, what } if what.starts_with(CLAIMED_NOTHING) == claims => *rows,
            _ => 0,
        });
        rows.sum::<u64>()
    };
    let mut end = End {
        open: tasks(db, OPEN).await?,
        orphans: tasks(db, ORPHANS).await?,
        unowned: sqlx::query_scalar(UNOWNED).fetch_all(db).await?,
        idle_in_transaction: settled(db, IDLE).await?,
        stray_locks: settled(db, STRAY_LOCKS).await?,
        live: number(db, LIVE).await?.unsigned_abs(),
        dead_rows: dead_rows(db).await?,
        refused_writes: refused(false),
        refused_claims: refused(true),
        ..End::default()
    };
    for node in nodes {
        for _ in 0..ANSWERS {
            let answer = node.get(&http, "/health/ready").await;
            let status = answer.map_or(0, |answer| answer.status().as_u16());
            end.answers.push((node.name.clone(), status));
            sleep(LOOK).await;
        }
        if let Some(count) = gossip_nodes(&http, node).await {
            end.gossip_nodes.push((node.name.clone(), count));
        }
    }
    let mut at_start: Vec<_> = at_start.iter().collect();
    at_start.sort_unstable();
    for (name, (pid, (files, memory))) in at_start {
        // Only a process that lived through the run can have leaked in it.
        if let Some((files_now, memory_now)) = held_by(*pid) {
            end.descriptors.push((name.clone(), *files, files_now));
            end.memory.push((name.clone(), *memory, memory_now));
        }
    }
    Ok(end)
}

const OPEN: &str = "
    select slot, id from ringmesh.task
    where wait is distinct from 'scheduled' or run_at < clock_timestamp() - interval '1 second' limit $1";

/// Running by their epoch, under an owner that does not live.
const ORPHANS: &str = "
    select t.slot, t.id from ringmesh.task t join ringmesh.slot s on s.slot = t.slot and s.epoch = t.epoch
    where not exists (select from ringmesh.node n where n.incarnation = s.owner and n.fenced_at is null) limit $1";

const UNOWNED: &str = "
    select s.slot from ringmesh.slot s
    where not exists (select from ringmesh.node n where n.incarnation = s.owner and n.fenced_at is null) order by 1";

const LIVE: &str = "select count(*) from ringmesh.node where fenced_at is null";

const IDLE: &str = "
    select count(*) from pg_stat_activity
    where datname = current_database() and state like 'idle in transaction%' and pid <> pg_backend_pid()";

/// A lease session holds the lock of its incarnation, and a watch that of a dead peer for a moment.
const STRAY_LOCKS: &str = "
    select count(*) from pg_locks l
    where l.locktype = 'advisory' and l.granted and l.database = (select oid from pg_database where datname = current_database())
      and not exists (select from ringmesh.node n where n.incarnation = l.objid::bigint and n.fenced_at is null)";

async fn tasks(db: &PgPool, sql: &'static str) -> Result<Vec<TaskId>> {
    let rows: Vec<(i32, i64)> = sqlx::query_as(sql).bind(LISTED).fetch_all(db).await?;
    rows.into_iter()
        .map(|(slot, number)| Ok(format!("{slot}-{number}").parse()?))
        .collect()
}

async fn number(db: &PgPool, sql: &'static str) -> Result<i64> {
    Ok(sqlx::query_scalar(sql).fetch_one(db).await?)
}

/// The number once it is 0, or what it still is after some time.
async fn settled(db: &PgPool, sql: &'static str) -> Result<i64> {
    let deadline = Instant::now() + SETTLES;
    loop {
        let now = number(db, sql).await?;
        if now == 0 || Instant::now() >= deadline {
            return Ok(now);
        }
        sleep(LOOK).await;
    }
}

async fn dead_rows(db: &PgPool) -> Result<BTreeMap<String, i64>> {
    let sql = "
        select relname::text, n_dead_tup from pg_stat_user_tables
        where schemaname = 'ringmesh' and relname in ('slot', 'node', 'lease')";
    let rows: Vec<(String, i64)> = sqlx::query_as(sql).fetch_all(db).await?;
    Ok(rows.into_iter().collect())
}

/// How many nodes, dead ones included, the node's gossip remembers.
async fn gossip_nodes(http: &reqwest::Client, node: &Node) -> Option<u64> {
    let page = node.get(http, "/metrics").await?.text().await.ok()?;
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("ringmesh_gossip_nodes "))?;
    Some(line.parse::<f64>().ok()? as u64)
}
