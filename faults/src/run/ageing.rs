//! Whether a mesh gets slower, or larger, while something lasts: an old snapshot, nodes that start again and again.
//!
//! Each minute is held against the first: how many effects were committed in it, how many blocks of `node` (with `lease`, where its
//! renewals are) and of `slot` Postgres looked at (found in memory or not: what a scan costs, whatever else the machine does), how many nodes gossip remembers (this against
//! those that live or died not long before), and the memory of the largest node (this against the third minute, by when a node has
//! the connections and caches that it needs).

use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{Table, presets};
use ringmesh::sqlx::{self, PgPool};
use serde::Serialize;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::check::known;
use crate::history::{History, Row};
use crate::workload::Targets;

/// Between two looks.
const EACH: Duration = Duration::from_secs(60);
/// For an answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Each minute's effects are at least so much of the first minute's.
const EFFECTS: f64 = 0.8;
/// And at most so many times the blocks are looked at.
const BLOCKS: f64 = 1.5;
/// The minute whose memory counts, from 0 on.
const WARM: usize = 2;
/// Of the last minutes the least: memory that is taken for a while is none that is lost.
const LAST: usize = 3;
/// It is at most so many times as much, and this, MiB.
const MEMORY: f64 = 1.5;
const MEMORY_MIB: f64 = 16.0;

/// How things stood at one time; counts are sums from the server's start on.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Look {
    /// By Postgres' clock, in microseconds since 1970.
    at: i64,
    node_blocks: i64,
    slot_blocks: i64,
    /// Of the node that remembers most; none answered: 0.
    gossip_nodes: u64,
    /// Of the largest node, KiB.
    memory: u64,
}

/// What one minute cost.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub struct Minute {
    /// Effects a second.
    pub effects_per_second: f64,
    /// Blocks of `node` and `lease` looked at, a second.
    pub node_blocks_per_second: f64,
    /// Blocks of `slot` looked at, a second.
    pub slot_blocks_per_second: f64,
    /// Nodes that gossip remembers at the end of the minute, by the node that remembers most.
    pub gossip_nodes: u64,
    /// How many it may remember: those that live, and those that died not long before.
    pub known_nodes: u64,
    /// Memory of the largest node at its end, MiB.
    pub memory_mib: u64,
}

/// Looks each minute, until told to stop.
pub(super) async fn watch(
    db: PgPool,
    targets: Targets,
    events: PathBuf,
    stop: CancellationToken,
) -> Vec<Look> {
    let mut looks = Vec::new();
    let mut next = Instant::now();
    loop {
        if let Some(look) = look(&db, &targets, &events).await {
            looks.push(look);
        }
        next += EACH;
        if stop.run_until_cancelled(sleep_until(next)).await.is_none() {
            return looks;
        }
    }
}

const BLOCKS_SO_FAR: &str = "
    select (extract(epoch from clock_timestamp()) * 1e6)::bigint,
           (sum(blocks) filter (where relname in ('node', 'lease')))::bigint, (sum(blocks) filter (where relname = 'slot'))::bigint
    from (select relname, heap_blks_hit + heap_blks_read + idx_blks_hit + idx_blks_read as blocks
          from pg_statio_user_tables where schemaname = 'ringmesh') counted";

async fn look(db: &PgPool, targets: &Targets, events: &Path) -> Option<Look> {
    let counted = sqlx::query_as(BLOCKS_SO_FAR).fetch_one(db);
    let (at, node_blocks, slot_blocks) = timeout(PATIENCE, counted).await.ok()?.ok()?;
    let mut gossip_nodes = 0;
    for url in &targets.urls {
        gossip_nodes = gossip_nodes.max(remembered(targets, url).await.unwrap_or_default());
    }
    Some(Look {
        at,
        node_blocks,
        slot_blocks,
        gossip_nodes,
        memory: largest(events),
    })
}

async fn remembered(targets: &Targets, url: &str) -> Option<u64> {
    let request = targets.http.get(format!("{url}/metrics")).timeout(PATIENCE);
    let request = match &targets.token {
        Some(token) => request.bearer_auth(token),
        None => request,
    };
    let page = request.send().await.ok()?.text().await.ok()?;
    let line = page
        .lines()
        .find_map(|line| line.strip_prefix("ringmesh_gossip_nodes "))?;
    Some(line.parse::<f64>().ok()? as u64)
}

/// KiB of the largest process that notes its events there.
fn largest(events: &Path) -> u64 {
    let mark = format!("FAULTS_EVENTS={}", events.display());
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ours = processes.filter(|process| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment
            .split(|byte| *byte == 0)
            .any(|variable| variable == mark.as_bytes())
    });
    let memory = ours.filter_map(|process| {
        let status = std::fs::read_to_string(process.path().join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        line.split_whitespace().next()?.parse::<u64>().ok()
    });
    memory.max().unwrap_or_default()
}

/// What each whole minute cost.
pub(super) fn minutes(looks: &[Look], history: &History) -> Vec<Minute> {
    let effects: Vec<i64> = history
        .changes
        .iter()
        .filter(|change| matches!(change.row, Row::Effect { .. }))
        .map(|change| change.committed_at)
        .collect();
    let minute = |pair: &[Look]| {
        let (from, to) = (pair[0], pair[1]);
        let seconds = (to.at - from.at) as f64 / 1e6;
        let effects = effects.iter().filter(|at| (from.at..to.at).contains(*at)).count();
        Minute {
            effects_per_second: effects as f64 / seconds,
            node_blocks_per_second: (to.node_blocks - from.node_blocks) as f64 / seconds,
            slot_blocks_per_second: (to.slot_blocks - from.slot_blocks) as f64 / seconds,
            gossip_nodes: to.gossip_nodes,
            known_nodes: known(&history.changes, to.at),
            memory_mib: to.memory / 1024,
        }
    };
    looks.windows(2).map(minute).collect()
}

/// What has got worse than it may.
pub(super) fn worse(minutes: &[Minute]) -> Vec<String> {
    let Some(first) = minutes.first() else {
        return vec!["no minute was measured".to_owned()];
    };
    let mut worse = Vec::new();
    for (number, minute) in (1..).zip(minutes) {
        let (now, then) = (minute.effects_per_second, first.effects_per_second);
        if now < EFFECTS * then {
            worse.push(format!(
                "{now:.0} effects/s in minute {number}, {then:.0}/s in the first"
            ));
        }
        for (table, now, then) in [
            (
                "node",
                minute.node_blocks_per_second,
                first.node_blocks_per_second,
            ),
            (
                "slot",
                minute.slot_blocks_per_second,
                first.slot_blocks_per_second,
            ),
        ] {
            if now > BLOCKS * then {
                worse.push(format!(
                    "{now:.0} blocks/s of {table} in minute {number}, {then:.0}/s in the first"
                ));
            }
        }
        let (remembered, known) = (minute.gossip_nodes, minute.known_nodes);
        if remembered > known {
            worse.push(format!(
                "gossip remembers {remembered} nodes in minute {number}, of {known} that it may"
            ));
        }
    }
    let late = minutes.iter().skip(WARM + 1).rev().take(LAST);
    let late = late.map(|minute| minute.memory_mib).min();
    if let (Some(warm), Some(late)) = (minutes.get(WARM), late)
        // Nothing was measured while no node ran.
        && warm.memory_mib > 0
        && late as f64 > MEMORY * warm.memory_mib as f64 + MEMORY_MIB
    {
        worse.push(format!(
            "a node has {late} MiB in the last minutes, {} MiB in minute {}",
            warm.memory_mib,
            WARM + 1
        ));
    }
    worse
}

/// A row for each minute; of many, of some. Empty for less than three: so little shows nothing.
pub(super) fn table(minutes: &[Minute]) -> String {
    const ROWS: usize = 16;
    if minutes.len() < 3 {
        return String::new();
    }
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "minute",
        "effects/s",
        "node blocks/s",
        "slot blocks/s",
        "gossip nodes",
        "MiB",
    ]);
    let each = minutes.len().div_ceil(ROWS).max(1);
    // A server that started anew counts from 0.
    let counted = |blocks: f64| match blocks < 0.0 {
        true => "-".to_owned(),
        false => format!("{blocks:.0}"),
    };
    for (number, minute) in minutes.iter().enumerate() {
        if number % each != 0 && number + 1 != minutes.len() {
            continue;
        }
        table.add_row([
            (number + 1).to_string(),
            format!("{:.0}", minute.effects_per_second),
            counted(minute.node_blocks_per_second),
            counted(minute.slot_blocks_per_second),
            minute.gossip_nodes.to_string(),
            minute.memory_mib.to_string(),
        ]);
    }
    format!("{table}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Change;

    fn minute(effects_per_second: f64, node_blocks_per_second: f64) -> Minute {
        Minute {
            effects_per_second,
            node_blocks_per_second,
            ..Minute::default()
        }
    }

    #[test]
    fn a_mesh_that_stays_as_it_is_passes() {
        let minutes = [minute(100.0, 50.0), minute(90.0, 60.0), minute(85.0, 55.0)];
        assert_eq!(worse(&minutes), [] as [&str; 0]);
    }

    #[test]
    fn a_mesh_that_slows_down_or_scans_more_and_more_is_seen() {
        let minutes = [minute(100.0, 50.0), minute(79.0, 60.0), minute(100.0, 76.0)];
        assert_eq!(worse(&minutes).len(), 2, "{:?}", worse(&minutes));
        assert_eq!(worse(&[]).len(), 1);
    }

    #[test]
    fn gossip_that_never_forgets_is_seen() {
        let remembers = |gossip_nodes| Minute {
            gossip_nodes,
            known_nodes: 100,
            ..minute(100.0, 50.0)
        };
        assert_eq!(worse(&[3, 60, 100].map(remembers)), [] as [&str; 0]);
        assert_eq!(worse(&[3, 60, 101].map(remembers)).len(), 1);
    }

    #[test]
    fn memory_that_grows_is_seen_and_what_is_given_back_is_not() {
        let takes = |memory_mib| Minute {
            memory_mib,
            ..minute(100.0, 50.0)
        };
        // Up to 76 MiB are fine.
        assert_eq!(worse(&[9, 30, 40, 50, 99, 76, 99].map(takes)), [] as [&str; 0]);
        assert_eq!(worse(&[9, 30, 40, 50, 77, 78, 79].map(takes)).len(), 1);
        assert_eq!(worse(&[9, 30, 40].map(takes)), [] as [&str; 0]);
    }

    #[test]
    fn minutes_are_what_happened_between_two_looks() {
        let effect = |committed_at| Change {
            transaction: 1,
            committed_at,
            row: Row::Effect {
                task: "1-1".parse().unwrap(),
                key: "a".into(),
                seq: 1,
                slot: 1,
                epoch: 1,
                attempt: 1,
                node: "n1".into(),
            },
        };
        let history = History {
            changes: [999_999, 1_000_000, 5_000_000, 61_000_000].map(effect).into(),
            ..History::default()
        };
        let look = |at, node_blocks, memory| Look {
            at,
            node_blocks,
            memory,
            ..Look::default()
        };
        let looks = [look(1_000_000, 10, 0), look(61_000_000, 130, 2048)];
        let expected = Minute {
            effects_per_second: 2.0 / 60.0,
            node_blocks_per_second: 2.0,
            memory_mib: 2,
            ..Minute::default()
        };
        assert_eq!(minutes(&looks, &history), [expected]);
    }
}
