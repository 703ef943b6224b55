//! How even placement is, and how much moves when one node dies or joins.
//!
//!     cargo run -p ringmesh-ring --example placement
//!
//! `over` is max/mean slots per node. `death` gives the slots that moved and the slots that had to (those of the dead
//! node), for the death that moved the most others; then what all deaths moved in excess, in the mean, in percent of
//! all slots. `join` is the same for one more node.

use std::time::{Duration, Instant};

use ringmesh_ring::{Incarnation, Member, Placement, SLOTS, Settings};

fn main() {
    println!(
        "{:>5} {:>6} {:>6} {:>22} {:>22} {:>9}",
        "nodes", "bound", "over", "death", "join", "compute"
    );
    for nodes in [5, 20, 100] {
        for load_bound in [None, Some(1.25), Some(1.05), Some(1.0)] {
            let settings = Settings {
                load_bound,
                ..Settings::default()
            };
            print(nodes, &settings);
        }
    }
}

fn print(nodes: i64, settings: &Settings) {
    // One node more than asked for: it is the one that joins.
    let all: Vec<_> = (1..=nodes + 1)
        .map(|n| Member::new(format!("node-{n}"), Incarnation(n), 1))
        .collect();
    let joiner = Incarnation(nodes + 1);

    let started = Instant::now();
    let base = Placement::compute(&all[..all.len() - 1], settings);
    let took = started.elapsed();

    let most = base.counts().into_values().max().unwrap_or(0);
    let over = most as f64 * nodes as f64 / f64::from(SLOTS);

    let deaths: Vec<_> = base
        .members()
        .iter()
        .map(|dead| {
            let survivors: Vec<_> = base
                .members()
                .iter()
                .filter(|member| *member != dead)
                .cloned()
                .collect();
            let after = Placement::compute(&survivors, settings);
            (base.diff(&after).len(), base.count(dead.incarnation))
        })
        .collect();
    let excess = deaths.iter().map(|(moved, ideal)| moved - ideal).sum::<usize>() as f64 / nodes as f64;
    let worst = deaths
        .into_iter()
        .max_by_key(|(moved, ideal)| moved - ideal)
        .unwrap_or_default();

    let after = Placement::compute(&all, settings);
    let joined = (base.diff(&after).len(), after.count(joiner));
    let joined_excess = (joined.0 - joined.1) as f64;

    let bound = settings
        .load_bound
        .map_or("none".into(), |bound| format!("{bound:.2}"));
    println!(
        "{nodes:>5} {bound:>6} {over:>6.3} {:>24} {:>20} {:>9}",
        figure(worst, excess),
        figure(joined, joined_excess),
        millis(took)
    );
}

fn figure((moved, ideal): (usize, usize), excess: f64) -> String {
    format!("{moved} for {ideal}, +{:.2} %", excess * 100.0 / f64::from(SLOTS))
}

fn millis(took: Duration) -> String {
    format!("{:.1} ms", took.as_secs_f64() * 1000.0)
}
