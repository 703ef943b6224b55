//! A killed process: nothing accepted is lost or doubled, and only its own slots move.

use std::time::Duration;

use crate::harness::{Lab, Load, Program, SLACK, TTL, UNHURRIED};

#[tokio::test]
async fn accepted_tasks_survive_the_kill_of_one_node_of_five_and_only_its_slots_move() {
    let mut lab = Lab::start(5, Program::Worker, &[UNHURRIED]).await;
    let load = Load::start(&lab.client);
    load.more(&lab, 300, SLACK * 3).await;
    let before = lab.slots().await;
    let dead = lab.incarnation("n3").await;

    let killed_at = lab
        .number("select (extract(epoch from clock_timestamp()) * 1e6)::bigint")
        .await;
    lab.mesh.node_mut("n3").unwrap().kill().await.unwrap();
    lab.all_owned(TTL + SLACK, dead).await;
    load.more(&lab, 300, SLACK * 3).await;
    let loaded = load.stop().await;
    let history = lab.drained(SLACK * 3).await;
    lab.check_effects(&history, &loaded).await;

    let after = lab.slots().await;
    let moved = before.iter().zip(&after).enumerate();
    let wrong: Vec<String> = moved
        .filter(|(_, (before, after))| (before.1 != after.1) != (before.0 == Some(dead)))
        .map(|(slot, (before, after))| format!("slot {slot}: (owner, epoch) {before:?} became {after:?}"))
        .collect();
    lab.check_none("slots of others that moved, or its own that did not", &wrong);
    // While a survivor cannot act, another one takes what nobody owns, and hands it on later.
    let twice = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| after.1 > before.1 + 1)
        .count();
    let first = |orphaned: bool| {
        let later = history.effects().filter(|effect| effect.at > killed_at - EPOCH);
        let later = later.filter(|effect| (before[effect.slot as usize].0 == Some(dead)) == orphaned);
        let gap = later.map(|effect| effect.at + EPOCH - killed_at).min();
        Duration::from_micros(gap.unwrap_or_default().unsigned_abs())
    };
    let (orphaned, others) = (first(true), first(false));
    println!(
        "gap after kill -9: first effect in its slots after {orphaned:?}, in others' after {others:?}; {twice} slots moved twice"
    );
}

/// Each watches two others: whose watchers all die is watched when its lock is free already.
#[tokio::test]
async fn four_of_five_that_die_at_once_are_all_noticed() {
    // No lease ends within this test.
    let mut lab = Lab::start(5, Program::Worker, &[UNHURRIED]).await;
    for name in ["n1", "n2", "n4", "n5"] {
        lab.mesh.node_mut(name).unwrap().kill().await.unwrap();
    }
    lab.until(SLACK, "all four are noticed", async || {
        let noticed = lab
            .number("select count(*) from ringmesh.node where fenced_as = 'noticed'")
            .await;
        if noticed == 4 {
            Ok(())
        } else {
            Err(format!("{noticed} of 4 were"))
        }
    })
    .await;
    lab.all_owned(SLACK, 0).await;
}

/// Microseconds from 1970 to 2000, from where Postgres counts.
const EPOCH: i64 = 946_684_800_000_000;
