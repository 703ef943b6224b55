use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

const ME: Incarnation = Incarnation(1);
const OTHER: Incarnation = Incarnation(2);

fn s(number: u16) -> Slot {
    Slot::new(number).unwrap()
}

fn row(slot: u16, owner: Incarnation, epoch: i64) -> Row {
    Row {
        slot: s(slot),
        owner: Some(owner),
        epoch: Epoch(epoch),
    }
}

/// A table that was granted slot 7 at e5.
fn owner() -> Table {
    let mut table = Table::new(ME);
    table.on_granted(s(7), Epoch(5)).unwrap();
    table
}

fn moving() -> Table {
    let mut table = owner();
    table.on_leaving(s(7), OTHER).unwrap();
    table.on_moving(s(7)).unwrap();
    table
}

fn state(table: &Table) -> String {
    table
        .get(s(7))
        .map_or("not held".into(), |held| format!("{} {}", held.epoch, held.state))
}

#[test]
fn claims_stop_when_a_handoff_is_agreed_and_go_on_when_it_is_called_off() {
    let mut table = owner();
    assert!(table.may_claim(s(7)));
    table.on_leaving(s(7), OTHER).unwrap();
    assert!(!table.may_claim(s(7)));
    assert_eq!(
        table.epoch(s(7)),
        Some(Epoch(5)),
        "what still runs finishes under its epoch"
    );
    table.on_stay(s(7)).unwrap();
    assert!(table.may_claim(s(7)));
}

#[test]
fn a_read_is_weighed_by_its_epoch() {
    for (before, read, after) in [
        (owner(), row(7, OTHER, 4), "e5 owned"),
        (owner(), row(7, ME, 5), "e5 owned"),
        (owner(), row(7, OTHER, 6), "not held"),
        (owner(), row(7, ME, 7), "e7 owned"),
        (moving(), row(7, ME, 5), "e5 moving to N2"),
        (moving(), row(7, OTHER, 6), "not held"),
    ] {
        let mut table = before;
        table.on_read(&[read]);
        assert_eq!(state(&table), after, "after {read:?}");
    }
}

#[test]
fn a_grant_whose_answer_was_lost_is_adopted_and_the_old_epoch_dropped() {
    let changes = owner().on_read(&[row(9, ME, 1), row(7, ME, 7)]);
    assert_eq!(changes.adopted, [(s(7), Epoch(7)), (s(9), Epoch(1))]);
    assert_eq!(changes.dropped, [(s(7), Epoch(5))]);
}

#[test]
fn an_old_read_does_not_bring_back_a_transferred_slot() {
    let mut table = moving();
    assert_eq!(table.on_transferred(s(7)), Ok(Some(Epoch(5))));
    assert!(table.on_read(&[row(7, ME, 5)]).is_empty());
    assert_eq!(state(&table), "not held");
}

#[test]
fn a_transfer_without_an_answer_is_decided_by_the_next_read() {
    for (read, after) in [
        (row(7, ME, 5), "e5 leaving to N2"),
        (row(7, OTHER, 6), "not held"),
    ] {
        let mut table = moving();
        table.on_no_answer(s(7)).unwrap();
        assert_eq!(state(&table), "e5 in doubt, moving to N2");
        table.on_read(&[read]);
        assert_eq!(state(&table), after);
    }
}

#[test]
fn an_event_that_does_not_fit_changes_nothing() {
    let mut table = owner();
    assert_eq!(
        table.on_transferred(s(7)).unwrap_err().to_string(),
        "S7 is owned, which does not go with: transferred"
    );
    assert_eq!(table.on_stay(s(8)).unwrap_err().to_string(), "S8 is not held");
    assert_eq!(
        table.on_granted(s(7), Epoch(4)).unwrap_err().to_string(),
        "S7 was granted at e4, and e5 is known already"
    );
    assert!(moving().on_stay(s(7)).is_err());
    assert_eq!(table.on_lost(s(7), Epoch(4)), None);
    assert_eq!(state(&table), "e5 owned");
}

#[test]
fn a_fenced_table_holds_nothing_any_more() {
    let mut table = owner();
    assert_eq!(table.on_fenced(), [(s(7), Epoch(5))]);
    assert!(table.on_read(&[row(7, ME, 9)]).is_empty());
    assert_eq!(table.on_granted(s(7), Epoch(9)), Err(Error::Fenced(ME)));
    assert!(table.is_empty());
}

/// What may happen around a table of three slots.
#[derive(Debug, Clone, Copy)]
enum Op {
    OtherIsGranted,
    /// The answer to a grant waits until `GrantIsAnswered`, or never comes.
    IAmGranted,
    GrantIsAnswered,
    /// A read of all rows as they were so many changes ago.
    Read {
        age: usize,
    },
    Leaving,
    Stay,
    Moving,
    TransferIsAnswered,
    TransferHappensUnanswered,
    TransferIsCutOff,
    Refused,
}

fn op() -> impl Strategy<Value = (u16, Op)> {
    let op = prop_oneof![
        1 => Just(Op::OtherIsGranted),
        3 => Just(Op::IAmGranted),
        3 => Just(Op::GrantIsAnswered),
        3 => prop_oneof![Just(0), 0..4_usize].prop_map(|age| Op::Read { age }),
        3 => Just(Op::Leaving),
        1 => Just(Op::Stay),
        3 => Just(Op::Moving),
        2 => Just(Op::TransferIsAnswered),
        1 => Just(Op::TransferHappensUnanswered),
        1 => Just(Op::TransferIsCutOff),
        1 => Just(Op::Refused),
    ];
    (0..3_u16, op)
}

/// Postgres as it is and was, the table, and the epochs that the table reported as held.
struct World {
    history: Vec<Vec<Row>>,
    table: Table,
    unanswered: Vec<(Slot, Epoch)>,
    held: BTreeSet<(Slot, Epoch)>,
    highest: BTreeMap<Slot, Epoch>,
}

impl World {
    fn new() -> Self {
        let rows = (0..3)
            .map(|slot| Row {
                slot: s(slot),
                owner: None,
                epoch: Epoch(0),
            })
            .collect();
        Self {
            history: vec![rows],
            table: Table::new(ME),
            unanswered: Vec::new(),
            held: BTreeSet::new(),
            highest: BTreeMap::new(),
        }
    }

    fn rows(&self) -> &[Row] {
        self.history.last().unwrap()
    }

    fn grant(&mut self, slot: Slot, owner: Incarnation) -> Epoch {
        let mut rows = self.rows().to_vec();
        let row = &mut rows[slot.index()];
        (row.owner, row.epoch) = (Some(owner), row.epoch.next());
        let epoch = row.epoch;
        self.history.push(rows);
        epoch
    }

    /// Runs the transfer that the table says is on its way; whether it moved the slot.
    fn transfer(&mut self, slot: Slot) -> Option<bool> {
        let Some(Held {
            epoch,
            state: State::Moving { to } | State::InDoubt { to },
        }) = self.table.get(slot)
        else {
            return None;
        };
        let row = self.rows()[slot.index()];
        let moves = row.owner == Some(ME) && row.epoch == epoch;
        if moves {
            self.grant(slot, to);
        }
        Some(moves)
    }

    fn adopted(&mut self, slot: Slot, epoch: Epoch) {
        assert!(
            self.highest
                .insert(slot, epoch)
                .is_none_or(|highest| highest < epoch),
            "epochs only rise"
        );
        assert!(self.held.insert((slot, epoch)));
    }

    fn dropped(&mut self, slot: Slot, epoch: Option<Epoch>) {
        assert!(
            epoch.is_none_or(|epoch| self.held.remove(&(slot, epoch))),
            "only what was held is dropped"
        );
    }

    fn read(&mut self, age: usize) {
        let rows = self.history[self.history.len().saturating_sub(age + 1)].clone();
        let changes = self.table.on_read(&rows);
        for (slot, epoch) in changes.dropped {
            self.dropped(slot, Some(epoch));
        }
        for (slot, epoch) in changes.adopted {
            self.adopted(slot, epoch);
        }
    }

    fn run(&mut self, slot: Slot, op: Op) {
        match op {
            Op::OtherIsGranted => drop(self.grant(slot, OTHER)),
            Op::IAmGranted => {
                let epoch = self.grant(slot, ME);
                self.unanswered.push((slot, epoch));
            }
            Op::GrantIsAnswered => {
                let Some((slot, epoch)) = self.unanswered.pop() else {
                    return;
                };
                let before = self.table.epoch(slot);
                if let Ok(dropped) = self.table.on_granted(slot, epoch) {
                    self.dropped(slot, dropped);
                    if before != Some(epoch) {
                        self.adopted(slot, epoch);
                    }
                }
            }
            Op::Read { age } => self.read(age),
            Op::Leaving => drop(self.table.on_leaving(slot, OTHER)),
            Op::Stay => drop(self.table.on_stay(slot)),
            Op::Moving => drop(self.table.on_moving(slot)),
            Op::TransferIsAnswered => {
                let epoch = self.table.epoch(slot);
                let dropped = match self.transfer(slot) {
                    Some(true) => self.table.on_transferred(slot).unwrap(),
                    Some(false) => self.table.on_lost(slot, epoch.unwrap()),
                    None => None,
                };
                self.dropped(slot, dropped);
            }
            Op::TransferHappensUnanswered => {
                if self.transfer(slot).is_some() {
                    self.table.on_no_answer(slot).unwrap();
                }
            }
            Op::TransferIsCutOff => drop(self.table.on_no_answer(slot)),
            Op::Refused => drop(self.table.on_refused(slot)),
        }
    }

    fn check(&self) {
        let held: BTreeSet<_> = self.table.iter().map(|(slot, held)| (slot, held.epoch)).collect();
        assert_eq!(
            held, self.held,
            "the table holds what it reported, one epoch per slot"
        );
        for (slot, epoch) in held {
            assert!(
                epoch <= self.rows()[slot.index()].epoch,
                "nothing is held that Postgres never granted"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_one_epoch_is_held_and_a_fresh_read_shows_the_truth(
        ops in proptest::collection::vec(op(), 0..60),
    ) {
        let mut world = World::new();
        for (slot, op) in ops {
            world.run(s(slot), op);
            world.check();
        }
        world.read(0);
        world.check();
        let mine: BTreeSet<_> =
            world.rows().iter().filter(|row| row.owner == Some(ME)).map(|row| (row.slot, row.epoch)).collect();
        prop_assert_eq!(&world.held, &mine);
    }
}
