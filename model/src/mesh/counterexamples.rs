//! Each rule, broken: the checker must find the harm. A model in which nothing can go wrong shows nothing.

use super::properties::*;
use super::{Bounds, Mesh, Variant};
use crate::check;

const QUIET: Bounds = Bounds {
    tasks: 1,
    ..Bounds::QUIET
};

fn breaks(variant: Variant, property: &'static str, bounds: Bounds) {
    check::finds(Mesh { variant, bounds }, property);
}

#[test]
fn a_fence_that_an_earlier_statement_has_read_lets_a_stale_effect_pass() {
    let bounds = Bounds {
        suspicions: 1,
        split: true,
        ..QUIET
    };
    breaks(Variant::CheckThenWrite, NO_STALE_EFFECT, bounds);
}

#[test]
fn a_fence_on_the_attempt_alone_lets_a_stale_effect_pass_before_the_next_claim() {
    let bounds = Bounds {
        suspicions: 1,
        ..QUIET
    };
    breaks(Variant::FenceByAttempt, NO_STALE_EFFECT, bounds);
}

#[test]
fn a_fence_on_the_owner_alone_lets_a_stale_effect_pass_when_the_slot_comes_back() {
    let bounds = Bounds {
        moves: 2,
        losses: 1,
        late: true,
        ..QUIET
    };
    breaks(Variant::FenceByOwner, NO_STALE_EFFECT, bounds);
}

#[test]
fn a_return_by_id_alone_takes_a_task_from_its_run() {
    let bounds = Bounds {
        losses: 2,
        late: true,
        ..QUIET
    };
    breaks(Variant::GiveBackById, OWN_RUN, bounds);
}

#[test]
fn incarnations_by_a_clock_make_two_owners_of_one_epoch() {
    let bounds = Bounds { crashes: 1, ..QUIET };
    breaks(Variant::IncarnationFromClock, ONE_OWNER, bounds);
}

#[test]
fn a_slot_released_before_it_is_drained_drops_results() {
    let bounds = Bounds { drains: 1, ..QUIET };
    breaks(Variant::TransferBeforeDrain, RESULTS_KEPT, bounds);
}

#[test]
fn a_node_that_goes_on_claiming_while_it_drains_is_seen() {
    let bounds = Bounds { drains: 1, ..QUIET };
    breaks(Variant::ClaimWhileLeaving, CLAIMS_STOP, bounds);
}

#[test]
fn a_fence_by_a_bare_update_lets_writes_of_the_fenced_pass() {
    let bounds = Bounds {
        suspicions: 1,
        split: true,
        ..QUIET
    };
    breaks(Variant::BareFence, NO_WRITE_OF_FENCED, bounds);
}

#[test]
fn a_grant_guarded_only_in_a_cte_takes_a_slot_from_a_live_owner() {
    let bounds = Bounds { split: true, ..QUIET };
    breaks(Variant::GrantGuardedInCte, NOT_FROM_LIVE, bounds);
}

#[test]
fn a_claim_without_the_tasks_own_epoch_and_attempt_takes_it_twice() {
    let bounds = Bounds { split: true, ..QUIET };
    breaks(Variant::ClaimWithoutToken, CLAIMED_ONCE, bounds);
}

#[test]
fn a_finish_without_the_attempt_lets_a_cancelled_run_commit_in_place_of_the_present_one() {
    let bounds = Bounds {
        moves: 1,
        overruns: 1,
        ..QUIET
    };
    breaks(Variant::FinishWithoutAttempt, NO_STALE_EFFECT, bounds);
}

#[test]
fn a_start_before_the_finish_of_the_one_before_is_committed_loses_the_order() {
    breaks(Variant::NextBeforeCommit, IN_ORDER, Bounds::QUIET);
}

#[test]
fn hints_without_a_tick_leave_a_task_for_ever() {
    let bounds = Bounds {
        nodes: 1,
        hints: true,
        calm: true,
        ..Bounds::QUIET
    };
    breaks(Variant::HintWithoutTick, ALL_END, bounds);
}

#[test]
fn a_node_of_another_ring_version_that_is_let_in_owns_slots() {
    let bounds = Bounds {
        nodes: 1,
        stranger: true,
        ..QUIET
    };
    breaks(Variant::StrangerLetIn, NO_STRANGER, bounds);
}

#[test]
fn a_claim_that_arrives_after_its_slot_was_settled_strands_its_task() {
    let bounds = Bounds {
        nodes: 1,
        losses: 1,
        late: true,
        calm: true,
        ..QUIET
    };
    breaks(Variant::SettleByLockOnly, ALL_END, bounds);
    breaks(Variant::SettleByLockOnly, NONE_STRANDED, bounds);
}

#[test]
fn a_claim_that_arrives_after_its_slot_was_settled_loses_the_order() {
    let bounds = Bounds {
        suspicions: 1,
        losses: 1,
        late: true,
        ..Bounds::QUIET
    };
    breaks(Variant::SettleByLockOnly, IN_ORDER, bounds);
}
