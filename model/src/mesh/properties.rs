//! What must always hold, what must happen sometimes, and what must happen in the end.

use stateright::Property;

use super::audit::Breach;
use super::life::{Hold, Process, What, Work};
use super::rows::{Rows, SLOTS, TASKS, Task, slot_of};
use super::statement::{Answer, Stage, Statement, begin, commit};
use super::{Mesh, State};

pub(super) const ONE_OWNER: &str = "M1 one owner per slot and epoch";
pub(super) const NOT_FROM_LIVE: &str = "M1 a slot is taken only from a fenced owner or from nobody";
pub(super) const NO_STALE_EFFECT: &str = "M2 no effect under less than the greatest epoch and attempt";
pub(super) const NO_WRITE_OF_FENCED: &str = "M2 a fenced node changes nothing";
pub(super) const ONE_EFFECT: &str = "M3 at most one effect per task";
pub(super) const KEPT: &str = "M4 an accepted task stays in some state";
pub(super) const ABSORBED: &str = "M5 what has ended has ended for ever";
pub(super) const IN_ORDER: &str = "M6 effects of one key are in the order of their submits";
pub(super) const TOKENS_RISE: &str = "M7 epochs, attempts and incarnations strictly grow";
pub(super) const OWN_RUN: &str = "M7 only the run that a row knows changes it";
pub(super) const CLAIMED_ONCE: &str = "M7 a task is claimed once at a time";
pub(super) const TOGETHER: &str = "M10 an effect and its task's completion exist together";
pub(super) const CLAIMS_STOP: &str = "M11 no claim is sent for a slot that leaves";
pub(super) const RESULTS_KEPT: &str = "M11 no result is dropped in a drain";
pub(super) const NO_STRANGER: &str = "M12 a node of another ring version owns nothing";
pub(super) const TWO_BELIEVE: &str = "S1 two nodes believe that they own one slot";
pub(super) const REFUSED: &str = "S2 a stale finish is refused";
pub(super) const UNKNOWN_DONE: &str = "S4 a finish is unknown to its node and done";
pub(super) const REGRANTED: &str = "S5 a node owns a slot again while its older run is alive";
pub(super) const MOVED_TWICE: &str = "S6 a slot moves twice during one run";
pub(super) const ALL_END: &str = "E1 every accepted task ends";
pub(super) const ALL_OWNED: &str = "E2 every slot gets a live owner";
pub(super) const NONE_STRANDED: &str = "E3 no task stays claimed that nobody runs";

pub(super) fn all(mesh: &Mesh) -> Vec<Property<Mesh>> {
    let unbroken = [
        always(ONE_OWNER, |_, state| one_owner(state)),
        always(NOT_FROM_LIVE, |_, s| !s.breaches.has(Breach::TakenFromLiveOwner)),
        always(NO_STALE_EFFECT, |_, s| !s.breaches.has(Breach::StaleEffect)),
        always(NO_WRITE_OF_FENCED, |_, s| !s.breaches.has(Breach::WriteOfFenced)),
        always(ONE_EFFECT, |_, s| {
            (0..TASKS).all(|task| effects(&s.rows, task) <= 1)
        }),
        always(KEPT, |_, s| {
            (0..TASKS).all(|task| !s.accepted[task] || s.rows.tasks[task] != Task::Absent)
        }),
        always(ABSORBED, |_, s| !s.breaches.has(Breach::Resurrected)),
        always(IN_ORDER, |_, s| in_order(&s.rows)),
        always(TOKENS_RISE, |_, s| !s.breaches.has(Breach::TokenFell)),
        always(OWN_RUN, |_, s| !s.breaches.has(Breach::WrongRun)),
        always(CLAIMED_ONCE, |_, s| !s.breaches.has(Breach::ClaimedTwice)),
        always(TOGETHER, |_, s| {
            (0..TASKS).all(|task| {
                (effects(&s.rows, task) > 0) == (s.rows.tasks[task] == Task::Ended { succeeded: true })
            })
        }),
        always(CLAIMS_STOP, |_, s| !s.breaches.has(Breach::ClaimAfterStop)),
        always(RESULTS_KEPT, |mesh, s| {
            // A transfer that was called off, and arrives all the same, may cost a result: then the task runs again.
            mesh.bounds.moves > 0 && mesh.bounds.late || !s.breaches.has(Breach::ResultDropped)
        }),
        always(NO_STRANGER, |mesh, s| {
            !mesh.bounds.stranger
                || s.lives
                    .last()
                    .is_none_or(|life| !owns(&s.rows, life.me, life.process))
        }),
    ];
    let mut properties = Vec::from(unbroken);
    if mesh.bounds.suspicions > 0 {
        properties.push(sometimes(REFUSED, stale_finish_is_refused));
        properties.push(sometimes(TWO_BELIEVE, |_, s| two_believe(s)));
    }
    if mesh.bounds.losses > 0 {
        properties.push(sometimes(UNKNOWN_DONE, |_, s| unknown_but_done(s)));
    }
    if mesh.bounds.moves > 1 && mesh.bounds.overruns > 0 {
        properties.push(sometimes(REGRANTED, |_, s| regranted(s)));
        properties.push(sometimes(MOVED_TWICE, |_, s| moved_twice(s)));
    }
    if mesh.bounds.calm {
        // Each asks for the end of the path: what holds there is what the mesh has come to.
        properties.push(eventually(ALL_END, |mesh, s| {
            (0..mesh.bounds.tasks).all(|task| matches!(s.rows.tasks[task], Task::Ended { .. }))
                && mesh.at_rest(s)
        }));
        properties.push(eventually(ALL_OWNED, |mesh, s| {
            (0..mesh.bounds.slots).all(|slot| owned_alive(s, slot)) && mesh.at_rest(s)
        }));
        properties.push(eventually(NONE_STRANDED, |mesh, s| {
            (0..TASKS).all(|task| !claimed_now(&s.rows, task)) && mesh.at_rest(s)
        }));
    }
    properties
}

type Condition = fn(&Mesh, &State) -> bool;

fn always(name: &'static str, condition: Condition) -> Property<Mesh> {
    Property::always(name, condition)
}

fn sometimes(name: &'static str, condition: Condition) -> Property<Mesh> {
    Property::sometimes(name, condition)
}

fn eventually(name: &'static str, condition: Condition) -> Property<Mesh> {
    Property::eventually(name, condition)
}

fn one_owner(state: &State) -> bool {
    (0..SLOTS).all(|slot| {
        let row = state.rows.slots[slot];
        let mut epochs = [false; 16];
        state
            .lives
            .iter()
            .filter(|life| life.up())
            .all(|life| match life.holds[slot].epoch() {
                None => true,
                // Nobody else believes in this epoch, and Postgres, if it is at this epoch still, says the same.
                Some(epoch) => {
                    !std::mem::replace(&mut epochs[usize::from(epoch)], true)
                        && (epoch != row.epoch || row.owner == Some(life.me))
                }
            })
    })
}

fn effects(rows: &Rows, task: usize) -> usize {
    rows.ledger.iter().filter(|effect| effect.task == task).count()
}

fn in_order(rows: &Rows) -> bool {
    rows.ledger.iter().enumerate().all(|(place, earlier)| {
        rows.ledger[place..]
            .iter()
            .all(|later| slot_of(later.task) != slot_of(earlier.task) || earlier.task <= later.task)
    })
}

fn owns(rows: &Rows, node: u8, process: Process) -> bool {
    process == Process::Up && rows.slots.iter().any(|slot| slot.owner == Some(node))
}

fn two_believe(state: &State) -> bool {
    let believes = |slot: usize| {
        state
            .lives
            .iter()
            .filter(|life| life.up() && matches!(life.holds[slot], Hold::Owned(_)))
            .count()
    };
    (0..SLOTS).any(|slot| believes(slot) > 1)
}

/// Some finish is at Postgres' door under an epoch that is no longer the slot's, and would change nothing.
fn stale_finish_is_refused(mesh: &Mesh, state: &State) -> bool {
    state.flights.iter().any(|flight| {
        let stale = matches!(flight.statement, Statement::Finish { token, .. }
            if token.epoch < state.rows.slots[flight.statement.slot()].epoch);
        stale && flight.stage == Stage::Sent && {
            let mut rows = state.rows.clone();
            let answer = begin(&rows, flight, mesh.variant).map_or(Answer::Nothing, |picked| {
                commit(&mut rows, flight, picked, mesh.variant)
            });
            answer == Answer::Nothing && rows == state.rows
        }
    })
}

fn unknown_but_done(state: &State) -> bool {
    state.lives.iter().any(|life| {
        (0..TASKS).any(|task| {
            matches!(
                life.work[task],
                Work::Ending {
                    what: What::Finish { .. },
                    unknown: true,
                    ..
                }
            ) && matches!(state.rows.tasks[task], Task::Ended { .. })
        })
    })
}

fn regranted(state: &State) -> bool {
    state.lives.iter().any(|life| {
        (0..TASKS).any(|task| match (life.zombies[task], life.holds[slot_of(task)]) {
            (Some(token), Hold::Owned(epoch)) => epoch > token.epoch,
            _ => false,
        })
    })
}

fn moved_twice(state: &State) -> bool {
    state.lives.iter().any(|life| {
        (0..TASKS).any(|task| {
            let run = life.zombies[task].or(life.work[task].token());
            run.is_some_and(|token| state.rows.slots[slot_of(task)].epoch >= token.epoch + 2)
        })
    })
}

fn owned_alive(state: &State, slot: usize) -> bool {
    let row = state.rows.slots[slot];
    state.lives.iter().any(|life| {
        life.up()
            && row.owner == Some(life.me)
            && !state.rows.fenced(life.me)
            && life.holds[slot] == Hold::Owned(row.epoch)
    })
}

fn claimed_now(rows: &Rows, task: usize) -> bool {
    matches!(rows.tasks[task], Task::Open { claim: Some(claim), .. } if claim == rows.slots[slot_of(task)].epoch)
}
