//! Looks at the mesh from outside each second: counts in Postgres, and what each node holds for true.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use ringmesh::sqlx::{self, PgPool};
use serde::Deserialize;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::Node;
use crate::history::{Sample, View};
use crate::workload::note::now;

/// Between two looks.
const EACH: Duration = Duration::from_secs(1);
/// For an answer.
const PATIENCE: Duration = Duration::from_millis(800);
/// A look that takes long is followed by a rest as many times as long: counting must not be the load that is measured.
const REST: u32 = 10;

/// One statement, so one snapshot.
const COUNTS: &str = "
    select case when t.wait is not null then t.wait when t.epoch = s.epoch then 'running' else 'pending' end, count(*), null::bigint
    from ringmesh.task t join ringmesh.slot s on s.slot = t.slot group by 1
    union all select state, count(*), null from ringmesh.finished_task group by 1
    union all select 'bank', 0, sum(balance)::bigint from ringmesh_faults.account
";

/// Counts tasks by state, until told to stop. A server that does not answer is no sample.
pub(super) async fn sample(db: PgPool, stop: CancellationToken) -> Vec<Sample> {
    let mut samples = Vec::new();
    loop {
        let began = Instant::now();
        let at = now();
        let rows: Result<Vec<(String, i64, Option<i64>)>, _> = sqlx::query_as(COUNTS).fetch_all(&db).await;
        if let Ok(rows) = rows {
            let answered = now();
            let bank = rows.iter().find_map(|(_, _, bank)| *bank);
            let states: BTreeMap<String, i64> = rows
                .into_iter()
                .filter(|(state, ..)| state != "bank")
                .map(|(state, count, _)| (state, count))
                .collect();
            samples.push(Sample {
                at,
                answered,
                states,
                bank,
            });
        }
        let rest = EACH.saturating_sub(began.elapsed()).max(began.elapsed() * REST);
        if stop.run_until_cancelled(sleep(rest)).await.is_none() {
            return samples;
        }
    }
}

#[derive(Deserialize)]
struct Mesh {
    ready: bool,
    members: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    incarnation: i64,
    slots: i64,
}

/// Asks every node and Postgres who owns how much, until told to stop.
///
/// `/v1/mesh` and not `/v1/slots`: the former is answered from the node's memory, the latter by Postgres itself.
pub(super) async fn view(db: PgPool, nodes: Vec<Node>, stop: CancellationToken) -> Vec<View> {
    let http = ringmesh::tls::http_client().timeout(PATIENCE).build();
    let Ok(http) = http else { return Vec::new() };
    let names: Vec<Arc<str>> = nodes.iter().map(|node| node.name.as_str().into()).collect();
    let mut views = Vec::new();
    for round in 1.. {
        let began = Instant::now();
        let at = now();
        let answers = nodes.iter().map(|node| ask(&http, node));
        let (answers, owned) = tokio::join!(join_all(answers), owned(&db));
        for (name, mesh) in names.iter().zip(answers) {
            views.push(View {
                round,
                at,
                node: Some(name.clone()),
                ready: mesh.as_ref().is_some_and(|mesh| mesh.ready),
                digest: mesh.map(|mesh| {
                    digest(
                        mesh.members
                            .iter()
                            .map(|member| (member.incarnation, member.slots))
                            .collect(),
                    )
                }),
            });
        }
        views.push(View {
            round,
            at,
            node: None,
            digest: owned.map(digest),
            ready: true,
        });
        let rest = EACH.saturating_sub(began.elapsed());
        if stop.run_until_cancelled(sleep(rest)).await.is_none() {
            break;
        }
    }
    views
}

async fn ask(http: &reqwest::Client, node: &Node) -> Option<Mesh> {
    let answer = node.get(http, "/v1/mesh").await?;
    answer.json().await.ok()
}

async fn owned(db: &PgPool) -> Option<Vec<(i64, i64)>> {
    let count = "
        select s.owner, count(*) from ringmesh.slot s join ringmesh.node n on n.incarnation = s.owner and n.fenced_at is null
        group by 1";
    let rows = sqlx::query_as(count).fetch_all(db);
    tokio::time::timeout(PATIENCE, rows).await.ok()?.ok()
}

/// The same for the same owners, in whatever order; those that own nothing do not count.
fn digest(mut owned: Vec<(i64, i64)>) -> u64 {
    owned.retain(|(_, slots)| *slots > 0);
    owned.sort_unstable();
    let mut hasher = DefaultHasher::new();
    owned.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_tell_who_owns_how_much_and_nothing_else() {
        let one = digest(vec![(1, 5), (2, 6), (3, 0)]);
        assert_eq!(one, digest(vec![(2, 6), (1, 5)]));
        assert_ne!(one, digest(vec![(1, 6), (2, 5)]));
    }
}
