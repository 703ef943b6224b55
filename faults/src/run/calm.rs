//! Whether the mesh stood still while nothing was broken: if not, the machine has too much to do, and no figure means anything.

use std::collections::HashMap;

use crate::history::{History, Row, Step};

/// After the start the last slots may still move, microseconds.
const SETTLED: i64 = 3_000_000;

/// What moved between the start and the first fault, or the end.
pub(super) fn disturbances(history: &History) -> Vec<String> {
    let is_end = |step: &Step| matches!(step, Step::Fault { .. } | Step::End);
    moved(history, is_end, "while nothing was broken")
}

/// What moved between the start and the drain, of faults that must move nothing.
pub(super) fn moves(history: &History) -> Vec<String> {
    moved(history, |step| *step == Step::Drain, "though nobody had died")
}

/// Nodes that were declared dead, slots that changed owners, from the start to the first step of this kind: by the order of
/// commits, since a fault may shift Postgres' clock.
fn moved(history: &History, is_end: impl Fn(&Step) -> bool, when: &str) -> Vec<String> {
    let from = history.moments.iter().find(|moment| moment.step == Step::Quiet);
    let (from, start) = from.map_or((0, 0), |moment| (moment.wal, moment.committed_at));
    let settles = start..start + SETTLED;
    let until = history.moments.iter().find(|moment| is_end(&moment.step));
    let until = until.map_or(u64::MAX, |moment| moment.wal);
    // A slot's row changes for other reasons as well.
    let mut grants: HashMap<i32, (Option<i64>, i64)> = HashMap::new();
    let (mut deaths, mut slots) = (0, 0);
    for change in &history.changes {
        let during = change.transaction > from && change.transaction <= until;
        let counts = during && !settles.contains(&change.committed_at);
        match &change.row {
            Row::Node { fenced: Some(_), .. } if counts => deaths += 1,
            Row::Slot { slot, owner, epoch } => {
                let grant = (*owner, *epoch);
                let before = grants.insert(*slot, grant);
                slots += u64::from(counts && before != Some(grant));
            }
            _ => {}
        }
    }
    let said = |count: u64, what: &str| (count > 0).then(|| format!("{count} {what} {when}"));
    let said = [
        said(deaths, "nodes were declared dead"),
        said(slots, "slots changed owners"),
    ];
    said.into_iter().flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::{Change, Fencing, FencingKind, Moment};

    #[test]
    fn only_what_moves_after_the_start_and_before_the_first_fault_disturbs() {
        // A transaction a second.
        let number = |committed_at: i64| committed_at.unsigned_abs() / 1_000_000;
        let moment = |committed_at, step| Moment {
            at: 0,
            wal: number(committed_at),
            committed_at,
            step,
        };
        let slot = |committed_at, epoch| Change {
            transaction: number(committed_at),
            committed_at,
            row: Row::Slot {
                slot: 1,
                owner: Some(1),
                epoch,
            },
        };
        let fault = Step::Fault {
            id: "N1".into(),
            name: "kill-one".into(),
            hosts: vec![],
            incarnations: vec![],
        };
        let mut history = History {
            // The second is a change of the row that is no grant.
            changes: vec![slot(1_000_000, 1), slot(4_000_000, 1), slot(9_000_000, 2)],
            moments: vec![moment(0, Step::Quiet), moment(8_000_000, fault)],
            ..History::default()
        };
        assert_eq!(disturbances(&history), [] as [&str; 0]);
        assert_eq!(
            moves(&history),
            ["1 slots changed owners though nobody had died"],
            "the fault explains nothing"
        );
        history.changes.insert(2, slot(5_000_000, 3));
        history.changes.push(Change {
            transaction: 6,
            committed_at: 6_000_000,
            row: Row::Node {
                incarnation: 1,
                name: "n1".into(),
                renewals: 1,
                fenced: Some(Fencing {
                    kind: FencingKind::Expired,
                    by: None,
                }),
            },
        });
        assert_eq!(
            disturbances(&history),
            [
                "1 nodes were declared dead while nothing was broken",
                "1 slots changed owners while nothing was broken"
            ]
        );
        // Whatever Postgres' clock said meanwhile.
        for change in &mut history.changes[1..] {
            change.committed_at -= 60_000_000;
        }
        assert_eq!(disturbances(&history).len(), 2);
    }
}
