//! I3: nothing is committed under an epoch that is not its slot's.
//!
//! **Promise** (P3). An owner's write carries its epoch, and passes only while this is the slot's. In the order of the log, each effect and
//! each end by an owner thus stands under the greatest epoch that was granted before: never a lower one, as a zombie
//! would write, and never a higher one, as somebody would who trusts himself more than Postgres. The same holds for each claim,
//! and for each return of a claimed task: a retry, a snooze, a give-back.
//!
//! **Algorithm.** One pass with the last grant of each slot. Claims and returns are compared while the log is read, in the same
//! way, and only wrong ones are in the history.
//!
//! **Excluded.** Cancels, which are the submitter's right and carry no fence. Changes of a task that leave its claim as it is,
//! such as the note that a suspect starts: the log does not tell them from what an owner may do with a task of its predecessor. A baseline sets epochs; what it says of effects and
//! ends is older than it and is not compared.

use std::collections::HashMap;

use super::{Checker, Violation};
use crate::history::{Change, History, Row, State};

pub(super) struct Fence;

impl Checker for Fence {
    fn id(&self) -> &'static str {
        "I3"
    }

    fn title(&self) -> &'static str {
        "every write stands under its slot's epoch"
    }

    fn check(&self, history: &History) -> Vec<Violation> {
        let mut found = Vec::new();
        let mut grants: HashMap<i32, (i64, &Change)> = HashMap::new();
        let mut baseline = 0;
        for change in &history.changes {
            let (slot, epoch) = match &change.row {
                Row::Baseline => {
                    baseline = change.transaction;
                    grants.clear();
                    continue;
                }
                Row::Slot { slot, epoch, .. } => {
                    grants.insert(*slot, (*epoch, change));
                    continue;
                }
                Row::Stale {
                    task,
                    epoch,
                    slot_epoch,
                } => {
                    let text = format!(
                        "{task} was claimed or returned under epoch {epoch}, its slot was at {slot_epoch}"
                    );
                    found.push(Violation::new("stale", text).row(change));
                    continue;
                }
                Row::Effect { task, slot, .. } if i32::from(task.slot.get()) != *slot => {
                    let text = format!("an effect of {task} names slot {slot}");
                    found.push(Violation::new("stale", text).row(change));
                    continue;
                }
                Row::Effect { slot, epoch, .. } => (*slot, Some(*epoch)),
                Row::Finished { id, state, epoch, .. } if *state != State::Cancelled => {
                    (i32::from(id.slot.get()), *epoch)
                }
                _ => continue,
            };
            let granted = grants.get(&slot);
            if change.transaction == baseline || granted.map(|(epoch, _)| *epoch) == epoch {
                continue;
            }
            let now = granted.map_or("never granted".to_owned(), |(epoch, _)| {
                format!("at epoch {epoch}")
            });
            let text = format!("slot {slot} was {now}, and this was committed under {epoch:?}");
            let mut violation = Violation::new("stale", text).row(change);
            if let Some((_, grant)) = granted {
                violation = violation.row(grant);
            }
            found.push(violation);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::super::build::{Build, effect, finished};
    use super::*;

    #[test]
    fn writes_under_the_epoch_of_their_slot_pass() {
        let mut build = Build::mesh();
        build.done("a", 1);
        let mut claim = build.submit("a", 2);
        build.kill_and_take_over();
        (claim.epoch, claim.attempt, claim.node) = (2, 2, 2);
        build.run(&claim);
        let cancelled = build.submit("a", 3);
        build.commit([finished(&cancelled, State::Cancelled)]);
        build.passes(&Fence);
    }

    #[test]
    fn an_effect_under_an_older_epoch_is_stale() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.kill_and_take_over();
        build.commit([effect(&claim)]);
        let found = build.fails(&Fence, "stale");
        assert_eq!(found.rows.len(), 2, "the effect and the grant");
    }

    #[test]
    fn an_end_under_an_older_epoch_is_stale() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.kill_and_take_over();
        build.commit([finished(&claim, State::Dead)]);
        build.fails(&Fence, "stale");
    }

    #[test]
    fn a_claim_under_an_older_epoch_is_stale() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        build.kill_and_take_over();
        build.commit([Row::Stale {
            task: claim.id,
            epoch: 1,
            slot_epoch: 2,
        }]);
        build.fails(&Fence, "stale");
    }

    #[test]
    fn an_effect_under_an_epoch_not_granted_yet_is_stale() {
        let mut build = Build::mesh();
        let mut claim = build.submit("a", 1);
        claim.epoch = 2;
        build.commit([effect(&claim)]);
        build.kill_and_take_over();
        build.fails(&Fence, "stale");
    }

    #[test]
    fn an_effect_that_names_another_slot_is_stale() {
        let mut build = Build::mesh();
        let claim = build.submit("a", 1);
        let mut row = effect(&claim);
        if let Row::Effect { slot, .. } = &mut row {
            *slot = 1;
        }
        build.commit([row]);
        build.fails(&Fence, "stale");
    }

    #[test]
    fn a_baseline_is_where_epochs_begin_anew() {
        let mut build = Build::mesh();
        let claim = build.done("a", 1);
        let slot = Row::Slot {
            slot: 0,
            owner: Some(1),
            epoch: 7,
        };
        build.commit([Row::Baseline, slot, effect(&claim)]);
        build.passes(&Fence);
        let claim = build.submit("a", 2);
        build.commit([effect(&claim)]);
        build.fails(&Fence, "stale");
    }
}
