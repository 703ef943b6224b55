//! All checkers on a large history: they pass it, in time about linear.

use std::time::Instant;

use super::build::{Build, slot_of};
use super::*;

/// A mesh that works off `tasks` tasks of 26 keys, with a kill and a takeover in the middle.
fn history(tasks: i64) -> Build {
    let mut build = Build::mesh();
    let keys: Vec<String> = ('a'..='z').map(String::from).collect();
    let (mut killed, mut renewals) = (false, 1);
    for turn in 0..tasks {
        let key = &keys[usize::try_from(turn % 26).unwrap()];
        if turn % 200 == 0 {
            renewals += 1;
            for node in if killed { 2..=3 } else { 1..=3 } {
                build.renew(node, renewals);
            }
        }
        if turn == tasks / 2 {
            build.kill_and_take_over_at(renewals);
            killed = true;
        }
        let mut claim = build.submit(key, turn / 26 + 1);
        if killed && slot_of(key) % 3 == 0 {
            (claim.epoch, claim.node) = (2, 2);
        }
        build.run(&claim);
    }
    build
}

#[test]
fn a_good_history_passes_all_checkers() {
    let build = history(20_000);
    for checker in all() {
        build.passes(*checker);
    }
}

/// `cargo test --release -p ringmesh-faults --lib a_million_effects -- --ignored --nocapture`
#[test]
#[ignore = "takes minutes without --release; prints how long each checker takes"]
fn a_million_effects_are_checked() {
    for tasks in [250_000, 1_000_000] {
        let build = history(tasks);
        println!("{tasks} effects, {} changes", build.history.changes.len());
        for checker in all() {
            let began = Instant::now();
            build.passes(*checker);
            println!("{:>4} {:>8} ms", checker.id(), began.elapsed().as_millis());
        }
    }
}

#[test]
fn what_is_kept_of_a_task_is_small() {
    use crate::history::{Change, Event, Submit};
    assert!(size_of::<Change>() <= 96, "{}", size_of::<Change>());
    assert!(size_of::<Submit>() <= 176, "{}", size_of::<Submit>());
    assert!(size_of::<Event>() <= 104, "{}", size_of::<Event>());
}
