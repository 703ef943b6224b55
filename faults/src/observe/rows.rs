//! From changes of tables to the rows of a history: only what checkers need is kept.
//!
//! A task that runs as it should is written five times: inserted, claimed, deleted, archived, and its effect. Three of these are
//! kept (96 bytes each, its key shared with others of the same key). A claim that changes neither failures nor crashes says
//! nothing that the end does not say; a delete says something only if there is no end in the same transaction.
//! What each claim says of its fence is looked at in [`super::claims`].

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};
use ringmesh::task::TaskId;
use ringmesh_ring::Slot;

use super::claims::Claims;
use super::pgoutput::{Message, Relation, Tuple, Value};
use crate::history::{Fencing, FencingKind, Row, State};

/// The tables that are recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Table {
    Slot,
    Node,
    Lease,
    Task,
    Finished,
    Effect,
    Account,
}

impl Table {
    pub(super) const ALL: [Table; 7] = [
        Table::Slot,
        Table::Node,
        Table::Lease,
        Table::Task,
        Table::Finished,
        Table::Effect,
        Table::Account,
    ];

    pub(super) fn name(self) -> (&'static str, &'static str) {
        match self {
            Table::Slot => ("ringmesh", "slot"),
            Table::Node => ("ringmesh", "node"),
            Table::Lease => ("ringmesh", "lease"),
            Table::Task => ("ringmesh", "task"),
            Table::Finished => ("ringmesh", "finished_task"),
            Table::Effect => ("ringmesh_faults", "effect"),
            Table::Account => ("ringmesh_faults", "account"),
        }
    }

    /// What of it is read, in the order in which rows are made of it.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Table::Slot => &["slot", "owner", "epoch"],
            Table::Node => &["incarnation", "name", "renewals", "fenced_as", "fenced_by"],
            Table::Lease => &["incarnation", "renewals"],
            Table::Task => &[
                "slot",
                "id",
                "key",
                "attempt",
                "failures",
                "crashes",
                "max_attempts",
                "epoch",
            ],
            Table::Finished => &[
                "slot", "id", "state", "epoch", "attempt", "failures", "crashes", "error",
            ],
            Table::Effect => &["task", "key", "seq", "slot", "epoch", "attempt", "node"],
            Table::Account => &["account", "balance"],
        }
    }
}

/// A table whose rows come, and where in them the wanted columns stand.
#[derive(Debug)]
struct Known {
    table: Table,
    places: Vec<usize>,
}

/// Turns messages into rows.
#[derive(Debug, Default)]
pub(super) struct Rows {
    known: HashMap<u32, Known>,
    texts: HashSet<Arc<str>>,
    /// Open tasks with failures or crashes, and how many.
    harmed: HashMap<TaskId, (i32, i32)>,
    claims: Claims,
    /// The rows of the transaction that is being read.
    rows: Vec<Row>,
    /// Tasks that it deleted.
    gone: Vec<TaskId>,
}

impl Rows {
    /// A transaction begins; what was read of one that was broken off is dropped.
    pub(super) fn begin(&mut self) {
        self.rows.clear();
        self.gone.clear();
        self.claims.begin();
    }

    /// A transaction is whole.
    pub(super) fn commit(&mut self) -> std::vec::Drain<'_, Row> {
        if !self.gone.is_empty() {
            let ended: HashSet<TaskId> = self
                .rows
                .iter()
                .filter_map(|row| match row {
                    Row::Finished { id, .. } => Some(*id),
                    _ => None,
                })
                .collect();
            let gone = self.gone.drain(..).filter(|id| !ended.contains(id));
            self.rows.extend(gone.map(|id| Row::TaskGone { id }));
        }
        self.claims.judge(&mut self.rows);
        for row in &self.rows {
            match row {
                Row::Task {
                    id,
                    failures,
                    crashes,
                    ..
                } if (*failures, *crashes) != (0, 0) => {
                    self.harmed.insert(*id, (*failures, *crashes));
                }
                Row::Task { id, .. } => {
                    self.harmed.remove(id);
                }
                Row::Finished { id, .. } | Row::TaskGone { id } => {
                    self.harmed.remove(id);
                }
                _ => {}
            }
        }
        self.rows.drain(..)
    }

    /// A baseline begins: all but the texts is forgotten.
    pub(super) fn begin_baseline(&mut self) {
        self.begin();
        self.known.clear();
        self.harmed.clear();
        self.claims.begin_baseline();
        self.rows.push(Row::Baseline);
    }

    /// A row of the baseline, or a new one.
    ///
    /// # Errors
    /// It is none of this table.
    pub(super) fn standing(&mut self, table: Table, values: &[Value<'_>]) -> Result<()> {
        let row = self.row(table, values)?;
        self.rows.push(row);
        if table == Table::Task {
            self.note_claim(values)?;
        }
        Ok(())
    }

    /// Keeps for the end of the transaction who holds a task now.
    fn note_claim(&mut self, values: &[Value<'_>]) -> Result<()> {
        let (epoch, attempt) = (optional(values[7])?, small(values[3])?);
        let id = task_id(values[0], values[1])?;
        self.claims.note(id, epoch, attempt);
        Ok(())
    }

    /// Takes a message of the transaction.
    ///
    /// # Errors
    /// It says what cannot be: the record cannot be relied on any more.
    pub(super) fn message(&mut self, message: Message<'_>) -> Result<()> {
        match message {
            Message::Relation(relation) => self.relation(&relation)?,
            Message::Insert { relation, new } => {
                let (table, values) = self.values(relation, &new)?;
                self.standing(table, &values)?;
            }
            Message::Update { relation, old, new } => {
                let (table, values) = self.values(relation, &new)?;
                match table {
                    Table::Finished => {
                        let id = task_id(values[0], values[1])?;
                        self.rows.push(Row::FinishedTouched { id });
                    }
                    Table::Effect => self.rows.push(Row::EffectTouched),
                    Table::Task => {
                        if let Some(old) = old {
                            let (_, key) = self.values(relation, &old)?;
                            self.gone.push(task_id(key[0], key[1])?);
                        }
                        self.note_claim(&values)?;
                        self.changed_task(&values)?;
                    }
                    // A renewal changes the lease's key: the old one comes too, and says nothing.
                    Table::Slot | Table::Node | Table::Lease | Table::Account => {
                        let row = self.row(table, &values)?;
                        self.rows.push(row);
                    }
                }
            }
            Message::Delete { relation, old } => {
                let (table, values) = self.values(relation, &old)?;
                match table {
                    Table::Task => self.gone.push(task_id(values[0], values[1])?),
                    Table::Finished => {
                        let id = task_id(values[0], values[1])?;
                        self.rows.push(Row::FinishedTouched { id });
                    }
                    Table::Effect => self.rows.push(Row::EffectTouched),
                    Table::Node => {
                        let incarnation = number(values[0])?;
                        self.rows.push(Row::NodeGone { incarnation });
                    }
                    Table::Lease => {}
                    Table::Slot | Table::Account => bail!("a row of {table:?} was deleted"),
                }
            }
            Message::Truncate { relations } => {
                for relation in relations {
                    if let Some(known) = self.known.get(&relation) {
                        let (_, table) = known.table.name();
                        self.rows.push(Row::Truncated { table: table.into() });
                    }
                }
            }
            Message::Other => {}
        }
        Ok(())
    }

    fn relation(&mut self, relation: &Relation) -> Result<()> {
        let name = (relation.schema.as_str(), relation.table.as_str());
        let Some(table) = Table::ALL.into_iter().find(|table| table.name() == name) else {
            return Ok(());
        };
        let places = table.columns().iter().map(|wanted| {
            let place = relation.columns.iter().position(|column| column == wanted);
            place.with_context(|| format!("{}.{} has no column {wanted}", name.0, name.1))
        });
        let places = places.collect::<Result<_>>()?;
        self.known.insert(relation.id, Known { table, places });
        Ok(())
    }

    fn values<'a>(&self, relation: u32, tuple: &Tuple<'a>) -> Result<(Table, [Value<'a>; 8])> {
        let known = self
            .known
            .get(&relation)
            .context("a row of a table that was not announced")?;
        let mut values = [Value::Null; 8];
        for (value, place) in values.iter_mut().zip(&known.places) {
            *value = *tuple.0.get(*place).context("a row with too few columns")?;
        }
        Ok((known.table, values))
    }

    /// Keeps the change of an open task if it changed what counts against it.
    fn changed_task(&mut self, values: &[Value<'_>; 8]) -> Result<()> {
        let id = task_id(values[0], values[1])?;
        let now = (small(values[4])?, small(values[5])?);
        if self.harmed.get(&id).copied().unwrap_or_default() != now {
            let row = self.row(Table::Task, values)?;
            self.rows.push(row);
        }
        Ok(())
    }

    /// The row of a table with these values of its columns.
    fn row(&mut self, table: Table, v: &[Value<'_>]) -> Result<Row> {
        Ok(match table {
            Table::Slot => Row::Slot {
                slot: small(v[0])?,
                owner: optional(v[1])?,
                epoch: number(v[2])?,
            },
            Table::Node => Row::Node {
                incarnation: number(v[0])?,
                name: self.shared(text(v[1])?),
                renewals: number(v[2])?,
                fenced: match v[3] {
                    Value::Text(kind) => Some(Fencing {
                        kind: fencing_kind(kind)?,
                        by: optional(v[4])?,
                    }),
                    Value::Null | Value::Unchanged => None,
                },
            },
            Table::Lease => Row::Lease {
                incarnation: number(v[0])?,
                renewals: number(v[1])?,
            },
            Table::Task => Row::Task {
                id: task_id(v[0], v[1])?,
                key: self.shared(text(v[2])?),
                attempt: small(v[3])?,
                failures: small(v[4])?,
                crashes: small(v[5])?,
                max_attempts: small(v[6])?,
            },
            Table::Finished => Row::Finished {
                id: task_id(v[0], v[1])?,
                state: match text(v[2])? {
                    "succeeded" => State::Succeeded,
                    "dead" => State::Dead,
                    "cancelled" => State::Cancelled,
                    other => bail!("a task that ended as {other}"),
                },
                epoch: optional(v[3])?,
                attempt: small(v[4])?,
                failures: small(v[5])?,
                crashes: small(v[6])?,
                error: match v[7] {
                    Value::Text(error) => Some(error.into()),
                    Value::Null | Value::Unchanged => None,
                },
            },
            Table::Effect => Row::Effect {
                task: text(v[0])?.parse().context("an effect of no task")?,
                key: self.shared(text(v[1])?),
                seq: number(v[2])?,
                slot: small(v[3])?,
                epoch: number(v[4])?,
                attempt: small(v[5])?,
                node: self.shared(text(v[6])?),
            },
            Table::Account => Row::Account {
                account: small(v[0])?,
                balance: number(v[1])?,
            },
        })
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }
}

fn text(value: Value<'_>) -> Result<&str> {
    match value {
        Value::Text(text) => Ok(text),
        Value::Null | Value::Unchanged => bail!("a column without its value"),
    }
}

fn number(value: Value<'_>) -> Result<i64> {
    let text = text(value)?;
    text.parse().with_context(|| format!("{text:?} is no number"))
}

fn small(value: Value<'_>) -> Result<i32> {
    Ok(number(value)?.try_into()?)
}

fn optional(value: Value<'_>) -> Result<Option<i64>> {
    match value {
        Value::Null => Ok(None),
        value => number(value).map(Some),
    }
}

fn task_id(slot: Value<'_>, id: Value<'_>) -> Result<TaskId> {
    let slot = u16::try_from(small(slot)?)?;
    Ok(TaskId {
        slot: Slot::new(slot).context("a slot above 4095")?,
        number: number(id)?,
    })
}

fn fencing_kind(text: &str) -> Result<FencingKind> {
    Ok(match text {
        "expired" => FencingKind::Expired,
        "noticed" => FencingKind::Noticed,
        "replaced" => FencingKind::Replaced,
        "left" => FencingKind::Left,
        other => bail!("a node that was fenced as {other}"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Rows of all tables, with a column more than is wanted, in another order.
    fn announced() -> Rows {
        let mut rows = Rows::default();
        for (id, table) in Table::ALL.into_iter().enumerate() {
            let (schema, name) = table.name();
            let columns = table.columns().iter().rev().copied().chain(["other"]);
            let relation = Relation {
                id: u32::try_from(id).unwrap(),
                schema: schema.into(),
                table: name.into(),
                columns: columns.map(str::to_owned).collect(),
            };
            rows.message(Message::Relation(relation)).unwrap();
        }
        rows
    }

    fn tuple<'a>(values: &[&'a str]) -> Tuple<'a> {
        let value = |text: &&'a str| match *text {
            "" => Value::Null,
            text => Value::Text(text),
        };
        Tuple(values.iter().rev().map(value).chain([Value::Unchanged]).collect())
    }

    fn relation(table: Table) -> u32 {
        u32::try_from(Table::ALL.iter().position(|known| *known == table).unwrap()).unwrap()
    }

    fn insert<'a>(table: Table, values: &[&'a str]) -> Message<'a> {
        Message::Insert {
            relation: relation(table),
            new: tuple(values),
        }
    }

    fn update<'a>(table: Table, values: &[&'a str]) -> Message<'a> {
        Message::Update {
            relation: relation(table),
            old: None,
            new: tuple(values),
        }
    }

    fn delete<'a>(table: Table, values: &[&'a str]) -> Message<'a> {
        Message::Delete {
            relation: relation(table),
            old: tuple(values),
        }
    }

    fn committed<'a>(rows: &mut Rows, messages: impl IntoIterator<Item = Message<'a>>) -> Vec<String> {
        rows.begin();
        for message in messages {
            rows.message(message).unwrap();
        }
        rows.commit()
            .map(|row| format!("{row:?}").split([' ', '{']).next().unwrap().to_owned())
            .collect()
    }

    const OPEN: [&str; 8] = ["3", "8", "a", "0", "0", "0", "10", ""];
    const CLAIMED: [&str; 8] = ["3", "8", "a", "1", "0", "0", "10", "5"];
    const FAILED: [&str; 8] = ["3", "8", "a", "1", "1", "0", "10", ""];
    const DONE: [&str; 8] = ["3", "8", "succeeded", "5", "1", "0", "0", ""];
    const EFFECT: [&str; 7] = ["3-8", "a", "1", "3", "5", "1", "n1"];

    #[test]
    fn of_a_task_that_runs_as_it_should_three_rows_are_kept() {
        let mut rows = announced();
        assert_eq!(committed(&mut rows, [insert(Table::Task, &OPEN)]), ["Task"]);
        assert_eq!(
            committed(&mut rows, [update(Table::Task, &CLAIMED)]),
            Vec::<String>::new()
        );
        let end = [
            insert(Table::Effect, &EFFECT),
            delete(Table::Task, &OPEN),
            insert(Table::Finished, &DONE),
        ];
        assert_eq!(committed(&mut rows, end), ["Effect", "Finished"]);
    }

    #[test]
    fn failures_are_kept_once_each() {
        let mut rows = announced();
        committed(&mut rows, [insert(Table::Task, &OPEN)]);
        assert_eq!(committed(&mut rows, [update(Table::Task, &FAILED)]), ["Task"]);
        assert_eq!(
            committed(&mut rows, [update(Table::Task, &FAILED)]),
            Vec::<String>::new()
        );
        assert_eq!(committed(&mut rows, [update(Table::Task, &CLAIMED)]), ["Task"]);
    }

    #[test]
    fn a_task_that_goes_without_an_end_is_told() {
        let mut rows = announced();
        assert_eq!(committed(&mut rows, [delete(Table::Task, &OPEN)]), ["TaskGone"]);
    }

    #[test]
    fn what_nobody_may_do_is_told() {
        let mut rows = announced();
        let touched = [update(Table::Finished, &DONE), delete(Table::Finished, &DONE)];
        assert_eq!(
            committed(&mut rows, touched),
            ["FinishedTouched", "FinishedTouched"]
        );
        let touched = [update(Table::Effect, &EFFECT), delete(Table::Effect, &EFFECT)];
        assert_eq!(committed(&mut rows, touched), ["EffectTouched", "EffectTouched"]);
        let relations = vec![relation(Table::Effect), 99];
        assert_eq!(
            committed(&mut rows, [Message::Truncate { relations }]),
            ["Truncated"]
        );
        rows.begin();
        assert!(rows.message(delete(Table::Slot, &["3", "", "0"])).is_err());
    }

    #[test]
    fn nodes_and_slots_are_read_whole() {
        let mut rows = announced();
        rows.begin();
        rows.message(insert(Table::Node, &["7", "n1", "3", "expired", "8"]))
            .unwrap();
        rows.message(update(Table::Slot, &["4", "7", "2"])).unwrap();
        rows.message(update(Table::Slot, &["5", "", "0"])).unwrap();
        rows.message(delete(Table::Node, &["7", "", "", "", ""])).unwrap();
        let node = Row::Node {
            incarnation: 7,
            name: "n1".into(),
            renewals: 3,
            fenced: Some(Fencing {
                kind: FencingKind::Expired,
                by: Some(8),
            }),
        };
        let slot = |slot, owner, epoch| Row::Slot { slot, owner, epoch };
        let expected = [
            node,
            slot(4, Some(7), 2),
            slot(5, None, 0),
            Row::NodeGone { incarnation: 7 },
        ];
        assert_eq!(rows.commit().collect::<Vec<_>>(), expected);
    }

    #[test]
    fn each_number_of_a_lease_is_told_and_its_end_is_not() {
        let mut rows = announced();
        rows.begin();
        rows.message(insert(Table::Lease, &["7", "0"])).unwrap();
        let moved = Message::Update {
            relation: relation(Table::Lease),
            old: Some(tuple(&["7", "0"])),
            new: tuple(&["7", "1"]),
        };
        rows.message(moved).unwrap();
        rows.message(delete(Table::Lease, &["7", "1"])).unwrap();
        let lease = |renewals| Row::Lease {
            incarnation: 7,
            renewals,
        };
        assert_eq!(rows.commit().collect::<Vec<_>>(), [lease(0), lease(1)]);
    }

    /// A task of slot 3 with this epoch and attempt.
    fn held<'a>(epoch: &'a str, attempt: &'a str) -> Message<'a> {
        update(Table::Task, &["3", "8", "a", attempt, "0", "0", "10", epoch])
    }

    /// A task that was claimed under epoch 5 of slot 3, which has been at epoch 6 since.
    fn left() -> Rows {
        let mut rows = announced();
        committed(&mut rows, [update(Table::Slot, &["3", "7", "5"])]);
        assert_eq!(committed(&mut rows, [insert(Table::Task, &OPEN)]), ["Task"]);
        let nothing = Vec::<String>::new();
        assert_eq!(committed(&mut rows, [held("5", "1")]), nothing, "a claim");
        assert_eq!(committed(&mut rows, [held("", "1")]), nothing, "its return");
        assert_eq!(committed(&mut rows, [held("5", "2")]), nothing, "another claim");
        committed(&mut rows, [update(Table::Slot, &["3", "8", "6"])]);
        rows
    }

    #[test]
    fn what_the_present_owner_does_with_a_former_ones_claim_is_not_told() {
        for changes in [
            vec![held("5", "2"), held("6", "3")],
            vec![held("6", "3"), held("", "3")],
        ] {
            let mut rows = left();
            for change in changes {
                assert_eq!(committed(&mut rows, [change]), Vec::<String>::new());
            }
        }
        // Nor what stands in a baseline.
        let mut rows = left();
        rows.begin_baseline();
        rows.standing(Table::Slot, &["3", "8", "6"].map(Value::Text))
            .unwrap();
        rows.standing(Table::Task, &CLAIMED.map(Value::Text)).unwrap();
        assert_eq!(rows.commit().count(), 3);
    }

    #[test]
    fn claims_and_returns_under_an_epoch_that_is_not_the_slots_are_told() {
        // A claim under the former epoch, one under none that was ever granted, and the return of one that is over.
        for (change, epoch) in [(held("5", "3"), 5), (held("7", "3"), 7), (held("", "2"), 5)] {
            let mut rows = left();
            rows.begin();
            rows.message(change).unwrap();
            let stale = Row::Stale {
                task: "3-8".parse().unwrap(),
                epoch,
                slot_epoch: 6,
            };
            assert_eq!(rows.commit().collect::<Vec<_>>(), [stale]);
        }
    }

    #[test]
    fn a_claim_that_is_broken_off_is_forgotten() {
        let mut rows = left();
        rows.begin();
        rows.message(held("5", "3")).unwrap();
        assert_eq!(committed(&mut rows, [held("5", "2")]), Vec::<String>::new());
    }

    #[test]
    fn a_transaction_that_is_broken_off_leaves_nothing() {
        let mut rows = announced();
        rows.begin();
        rows.message(insert(Table::Task, &FAILED)).unwrap();
        rows.message(delete(Table::Task, &OPEN)).unwrap();
        assert_eq!(committed(&mut rows, [insert(Table::Task, &FAILED)]), ["Task"]);
    }
}
