//! Whether the mesh stood still while nothing was broken: if not, the machine has too much to do, and no figure means anything.

use crate::history::{History, Row, Step};

/// After the start the last slots may still move, microseconds.
const SETTLED: i64 = 3_000_000;

/// What moved between the start and the first fault, or the end: nodes that were declared dead, slots that changed owners.
pub(super) fn disturbances(history: &History) -> Vec<String> {
    let from = history.moments.iter().find(|moment| moment.step == Step::Quiet);
    let from = from.map_or(0, |moment| moment.committed_at + SETTLED);
    let is_end = |step: &Step| matches!(step, Step::Fault { .. } | Step::End);
    let until = history.moments.iter().find(|moment| is_end(&moment.step));
    let until = until.map_or(i64::MAX, |moment| moment.committed_at);
    let calm = history
        .changes
        .iter()
        .filter(|change| (from..until).contains(&change.committed_at));
    let (mut deaths, mut slots) = (0, 0);
    for change in calm {
        match &change.row {
            Row::Node { fenced: Some(_), .. } => deaths += 1,
            Row::Slot { .. } => slots += 1,
            _ => {}
        }
    }
    let said = |count: u64, what: &str| {
        (count > 0).then(|| format!("void: {count} {what} while nothing was broken"))
    };
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
        let moment = |committed_at, step| Moment {
            at: 0,
            wal: 0,
            committed_at,
            step,
        };
        let slot = |committed_at| Change {
            transaction: 1,
            committed_at,
            row: Row::Slot {
                slot: 1,
                owner: Some(1),
                epoch: 1,
            },
        };
        let fault = Step::Fault {
            id: "N1".into(),
            name: "kill-one".into(),
            hosts: vec![],
            incarnations: vec![],
        };
        let mut history = History {
            changes: vec![slot(1_000_000), slot(9_000_000)],
            moments: vec![moment(0, Step::Quiet), moment(8_000_000, fault)],
            ..History::default()
        };
        assert_eq!(disturbances(&history), [] as [&str; 0]);
        history.changes.push(slot(5_000_000));
        history.changes.push(Change {
            transaction: 1,
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
                "void: 1 nodes were declared dead while nothing was broken",
                "void: 1 slots changed owners while nothing was broken"
            ]
        );
    }
}
