//! The protocol, within bounds that an ordinary test run can explore to their end.

use super::{Bounds, Mesh, Variant};
use crate::check;

fn holds(name: &str, bounds: Bounds) {
    let mesh = Mesh {
        variant: Variant::Sound,
        bounds,
    };
    if bounds.calm {
        check::ends(&mesh);
    }
    check::holds(name, mesh);
}

#[test]
fn takeovers_after_a_death_and_a_mistaken_fence() {
    let bounds = Bounds {
        crashes: 1,
        suspicions: 1,
        calm: true,
        ..Bounds::QUIET
    };
    holds("takeovers", bounds);
}

#[test]
fn unknown_outcomes_and_statements_that_arrive_late() {
    let bounds = Bounds {
        suspicions: 1,
        losses: 1,
        late: true,
        calm: true,
        ..Bounds::QUIET
    };
    holds("unknown outcomes", bounds);
}

#[test]
fn a_settling_without_an_answer() {
    let bounds = Bounds {
        nodes: 1,
        losses: 2,
        late: true,
        split: true,
        calm: true,
        ..Bounds::QUIET
    };
    holds("settlings", bounds);
}

#[test]
fn statements_between_their_locks_and_their_commit() {
    let bounds = Bounds {
        suspicions: 1,
        losses: 1,
        split: true,
        calm: true,
        ..Bounds::QUIET
    };
    holds("locks", bounds);
}

#[test]
fn answers_that_are_slow() {
    let bounds = Bounds {
        suspicions: 1,
        losses: 1,
        slow_replies: true,
        calm: true,
        ..Bounds::QUIET
    };
    holds("slow answers", bounds);
}

#[test]
fn handoffs_with_a_run_that_goes_on_and_a_transfer_in_doubt() {
    let bounds = Bounds {
        moves: 2,
        overruns: 1,
        losses: 1,
        late: true,
        ..Bounds::QUIET
    };
    holds("handoffs", bounds);
    let bounds = Bounds {
        late: false,
        calm: true,
        ..bounds
    };
    holds("handoffs, to their end", bounds);
}

#[test]
fn a_drain_with_unknown_outcomes_and_a_retry() {
    let bounds = Bounds {
        drains: 1,
        losses: 1,
        failures: 1,
        calm: true,
        ..Bounds::QUIET
    };
    holds("drain", bounds);
}

#[test]
fn a_drain_while_somebody_is_fenced() {
    let bounds = Bounds {
        drains: 1,
        suspicions: 1,
        calm: true,
        ..Bounds::QUIET
    };
    holds("drain and fence", bounds);
}

#[test]
fn retries_hold_their_key_over_takeovers() {
    let bounds = Bounds {
        suspicions: 1,
        losses: 1,
        failures: 1,
        late: true,
        ..Bounds::QUIET
    };
    holds("retries", bounds);
}

#[test]
fn hints_are_not_needed() {
    let bounds = Bounds {
        suspicions: 1,
        hints: true,
        calm: true,
        ..Bounds::QUIET
    };
    holds("hints", bounds);
}

#[test]
fn two_slots_and_three_tasks() {
    let bounds = Bounds {
        slots: 2,
        tasks: 3,
        suspicions: 1,
        ..Bounds::QUIET
    };
    holds("two slots", bounds);
}

#[test]
fn three_nodes() {
    let bounds = Bounds {
        nodes: 3,
        suspicions: 1,
        losses: 1,
        late: true,
        calm: true,
        ..Bounds::QUIET
    };
    holds("three nodes", bounds);
}

#[test]
fn a_node_of_another_ring_version_is_turned_away() {
    let bounds = Bounds {
        stranger: true,
        suspicions: 1,
        calm: true,
        ..Bounds::QUIET
    };
    holds("stranger", bounds);
}
