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
