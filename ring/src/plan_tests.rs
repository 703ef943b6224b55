use proptest::prelude::*;

use super::*;
use crate::{Member, Settings};

const ME: Incarnation = Incarnation(1);

fn n(number: i64) -> Incarnation {
    Incarnation(number)
}

/// The world as one node sees it: N1 looks, N2 is fenced, N3 and N4 serve beside it. Each slot is placed at, and owned
/// by, whom the test says.
struct View {
    rows: Vec<Row>,
    placement: Placement,
    table: Table,
    unfenced: BTreeSet<Incarnation>,
    serving: BTreeSet<Incarnation>,
    orphans: Orphans,
}

/// `(slots, owner, placed at)`, 0 for nobody.
fn view(slots: &[(std::ops::RangeInclusive<u16>, i64, i64)]) -> View {
    let someone = |number: i64| (number != 0).then_some(Incarnation(number));
    let mut rows = Vec::new();
    let mut placed = BTreeMap::new();
    for (range, owner, at) in slots {
        for slot in range.clone().filter_map(Slot::new) {
            rows.push(Row {
                slot,
                owner: someone(*owner),
                epoch: Epoch(5),
            });
            placed.extend(someone(*at).map(|at| (slot, at)));
        }
    }
    let mut table = Table::new(ME);
    table.on_read(&rows);
    let present = BTreeSet::from([n(1), n(3), n(4)]);
    View {
        placement: Placement::with_owners(&placed),
        rows,
        table,
        unfenced: present.clone(),
        serving: present,
        orphans: Orphans::new(),
    }
}

impl View {
    fn plan(&self) -> String {
        let Self {
            rows,
            placement,
            table,
            unfenced,
            serving,
            orphans,
        } = self;
        Plan::build(&Input {
            rows,
            unfenced,
            table,
            placement,
            serving,
            orphans,
        })
        .to_string()
    }

    fn leaving(mut self, slot: u16, to: i64) -> Self {
        self.table.on_leaving(Slot::new(slot).unwrap(), n(to)).unwrap();
        self
    }

    fn tick(&mut self) {
        self.orphans.on_tick(&self.rows, &self.unfenced);
    }
}

#[test]
fn a_plan_reads_like_a_log_line() {
    let view = view(&[
        (0..=3, 2, 1),
        (4..=4, 0, 1),
        (7..=7, 1, 4),
        (8..=8, 1, 1),
        (9..=9, 2, 1),
        (10..=20, 3, 3),
    ]);
    assert_eq!(
        view.leaving(8, 4).plan(),
        "take S0-S3,S9 (N2 fenced); take S4 (unowned); hand off S7 to N4; stay S8"
    );
}

#[test]
fn a_live_owner_is_left_alone_wherever_its_slot_is_placed() {
    assert_eq!(
        view(&[(0..=9, 3, 1), (10..=19, 3, 4), (20..=29, 1, 1)]).plan(),
        "nothing to do"
    );
}

#[test]
fn an_owner_that_left_gossip_but_is_not_fenced_keeps_its_slots() {
    let mut view = view(&[(0..=9, 3, 1)]);
    view.serving.remove(&n(3));
    assert_eq!(view.plan(), "nothing to do");
}

#[test]
fn a_slot_that_lies_for_two_ticks_is_taken_by_anybody() {
    let mut view = view(&[(0..=1, 2, 3), (2..=2, 0, 4)]);
    view.tick();
    assert_eq!(view.plan(), "nothing to do");
    view.tick();
    assert_eq!(view.plan(), "take S0-S2 (stray)");
    view.rows[0] = Row {
        slot: view.rows[0].slot,
        owner: Some(n(9)),
        epoch: Epoch(6),
    };
    view.tick();
    assert_eq!(
        view.plan(),
        "take S1-S2 (stray)",
        "S0 was granted and orphaned again in between"
    );
}

#[test]
fn nothing_is_handed_to_a_member_that_cannot_take_it() {
    for gone in ["fenced", "draining"] {
        let mut view = view(&[(0..=9, 1, 4)]);
        if gone == "fenced" {
            view.unfenced.remove(&n(4))
        } else {
            view.serving.remove(&n(4))
        };
        assert_eq!(view.plan(), "nothing to do", "{gone}");
    }
}

#[test]
fn a_slot_that_is_leaving_follows_the_placement() {
    assert_eq!(
        view(&[(7..=7, 1, 4)]).leaving(7, 4).plan(),
        "nothing to do",
        "already on its way"
    );
    assert_eq!(
        view(&[(7..=7, 1, 4)]).leaving(7, 3).plan(),
        "hand off S7 to N4",
        "aimed anew"
    );
    assert_eq!(
        view(&[(7..=7, 1, 2)]).leaving(7, 2).plan(),
        "stay S7",
        "the next owner is fenced"
    );
}

#[test]
fn a_slot_whose_transfer_is_on_its_way_is_left_alone() {
    let mut view = view(&[(7..=7, 1, 1)]).leaving(7, 4);
    let slot = Slot::new(7).unwrap();
    view.table.on_moving(slot).unwrap();
    assert_eq!(view.plan(), "nothing to do");
    view.table.on_no_answer(slot).unwrap();
    assert_eq!(view.plan(), "nothing to do");
}

#[test]
fn a_draining_node_takes_nothing_and_hands_everything_on() {
    let mut view = view(&[(0..=1, 1, 3), (2..=3, 1, 4), (4..=5, 2, 1), (6..=6, 1, 2)]).leaving(6, 2);
    view.serving.remove(&ME);
    view.tick();
    view.tick();
    assert_eq!(view.plan(), "hand off S0-S1 to N3; hand off S2-S3 to N4");
}

#[test]
fn a_fenced_node_plans_nothing() {
    let mut view = view(&[(0..=9, 2, 1), (10..=19, 1, 4)]);
    view.unfenced.remove(&ME);
    assert_eq!(view.plan(), "nothing to do");
}

#[test]
fn an_old_row_is_not_taken_by() {
    let mut view = view(&[(7..=7, 2, 1)]);
    view.table.on_read(&[Row {
        slot: Slot::new(7).unwrap(),
        owner: Some(n(3)),
        epoch: Epoch(6),
    }]);
    assert_eq!(view.plan(), "nothing to do");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, failure_persistence: None, ..ProptestConfig::default() })]

    /// N1 to N3 serve, N4 drains, N5 is fenced. Whoever owns what at first, the plans of all end at the placement, and
    /// no slot is granted more often than its one move needs.
    #[test]
    fn plans_carried_out_by_all_nodes_end_at_the_placement(owners in proptest::collection::vec(0..=5_i64, 4096)) {
        let mut rows: Vec<_> = Slot::all()
            .zip(&owners)
            .map(|(slot, owner)| Row { slot, owner: (*owner != 0).then_some(n(*owner)), epoch: Epoch(1) })
            .collect();
        let members: Vec<_> = (1..=3).map(|number| Member::new(format!("node-{number}"), n(number), 1)).collect();
        let placement = Placement::compute(&members, &Settings { tokens: 32, ..Settings::default() });
        let serving: BTreeSet<_> = (1..=3).map(n).collect();
        let unfenced: BTreeSet<_> = (1..=4).map(n).collect();
        let orphans = Orphans::new();
        let mut tables: Vec<_> = (1..=4).map(|number| Table::new(n(number))).collect();

        for round in 0.. {
            let mut idle = true;
            for table in &mut tables {
                table.on_read(&rows);
                let input = Input {
                    rows: &rows, unfenced: &unfenced, table, placement: &placement, serving: &serving, orphans: &orphans,
                };
                let plan = Plan::build(&input);
                idle &= plan.is_empty();
                for take in plan.takes {
                    let row = &mut rows[take.slot.index()];
                    prop_assert_eq!(row.epoch, take.expected);
                    (row.owner, row.epoch) = (Some(table.me()), row.epoch.next());
                    table.on_granted(row.slot, row.epoch).unwrap();
                }
                for HandOff { slot, to } in plan.hand_offs {
                    table.on_leaving(slot, to).unwrap();
                    table.on_moving(slot).unwrap();
                    let row = &mut rows[slot.index()];
                    prop_assert_eq!((row.owner, Some(row.epoch)), (Some(table.me()), table.epoch(slot)));
                    (row.owner, row.epoch) = (Some(to), row.epoch.next());
                    table.on_transferred(slot).unwrap();
                }
            }
            if idle {
                break;
            }
            prop_assert!(round < 3, "still busy");
        }
        for row in &rows {
            prop_assert_eq!(row.owner, placement.owner(row.slot));
            prop_assert!(row.epoch <= Epoch(2), "{} moved twice", row.slot);
        }
        prop_assert!(tables[3].is_empty());
    }
}
