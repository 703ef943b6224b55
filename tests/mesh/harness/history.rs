//! What Postgres committed, in the order of its log, and whether that is as promised.
//!
//! The record is made by logical decoding: it depends neither on the product nor on any clock.

use std::collections::{BTreeMap, HashMap};

use ringmesh::sqlx::{self, PgPool};

use super::Loaded;

/// Makes the test's tables and starts the record of slots and effects.
pub(super) async fn record(db: &PgPool) {
    let make = "
        create schema ringmesh_test;
        create table ringmesh_test.ledger (
            task text not null, key text not null, seq bigint not null, slot integer not null, epoch bigint not null,
            attempt integer not null, node text not null, at timestamptz not null default clock_timestamp()
        );
        create publication ringmesh_test for table ringmesh.slot, ringmesh_test.ledger;
    ";
    sqlx::raw_sql(make).execute(db).await.unwrap();
    sqlx::query("select pg_create_logical_replication_slot('ringmesh_test', 'pgoutput')")
        .execute(db)
        .await
        .unwrap();
}

/// A committed row of the ledger.
#[derive(Debug, Clone)]
pub(crate) struct Effect {
    pub(crate) task: String,
    pub(crate) key: String,
    pub(crate) seq: i64,
    pub(crate) slot: i64,
    pub(crate) epoch: i64,
    pub(crate) node: String,
    /// When it was committed, in microseconds of the database's clock.
    pub(crate) at: i64,
}

#[derive(Debug)]
enum Event {
    Grant {
        slot: i64,
        owner: Option<i64>,
        epoch: i64,
    },
    Effect(Effect),
}

/// The committed changes, first to last.
#[derive(Debug, Default)]
pub(crate) struct History(Vec<Event>);

impl History {
    /// All from the start of the record on.
    pub(super) async fn read(db: &PgPool) -> History {
        let messages: Vec<Vec<u8>> = sqlx::query_scalar(
            "select data from pg_logical_slot_peek_binary_changes('ringmesh_test', null, null,
             'proto_version', '1', 'publication_names', 'ringmesh_test')",
        )
        .fetch_all(db)
        .await
        .unwrap();
        let mut reader = Reader::default();
        for message in &messages {
            reader.message(Bytes(message));
        }
        reader.history
    }

    pub(crate) fn effects(&self) -> impl Iterator<Item = &Effect> {
        self.0.iter().filter_map(|event| match event {
            Event::Effect(effect) => Some(effect),
            Event::Grant { .. } => None,
        })
    }

    /// How many times a slot was given a new epoch.
    pub(crate) fn grants(&self) -> usize {
        self.0.len() - self.effects().count()
    }

    /// What is not as promised, a line for each.
    pub(crate) fn violations(&self, loaded: &Loaded) -> Vec<String> {
        let mut found = Vec::new();
        let mut epochs: HashMap<i64, i64> = HashMap::new();
        let mut of_task: HashMap<&str, Vec<&Effect>> = HashMap::new();
        let mut of_key: BTreeMap<&str, Vec<&Effect>> = BTreeMap::new();
        for event in &self.0 {
            match event {
                Event::Grant { slot, owner, epoch } => {
                    let before = epochs.insert(*slot, *epoch).unwrap_or(0);
                    // Losing its owner gives a slot no epoch.
                    if *epoch != before + 1 && !(owner.is_none() && *epoch == before) {
                        found.push(format!(
                            "slot {slot} went from epoch {before} to {epoch} ({owner:?})"
                        ));
                    }
                }
                Event::Effect(effect) => {
                    let granted = epochs.get(&effect.slot).copied().unwrap_or(0);
                    if effect.epoch != granted {
                        found.push(format!(
                            "under epoch {granted} of its slot was committed {effect:?}"
                        ));
                    }
                    of_task.entry(&effect.task).or_default().push(effect);
                    of_key.entry(&effect.key).or_default().push(effect);
                }
            }
        }
        for task in &loaded.accepted {
            match of_task.remove(task.id.as_str()) {
                None => found.push(format!("lost: {task:?}")),
                Some(effects) if effects.len() > 1 => found.push(format!("repeated: {effects:?}")),
                Some(effects) => {
                    if (&effects[0].key, effects[0].seq) != (&task.key, task.seq) {
                        found.push(format!("{task:?} became {effects:?}"));
                    }
                }
            }
        }
        found.extend(
            of_task
                .values()
                .map(|effects| format!("never accepted: {effects:?}")),
        );
        for effects in of_key.values() {
            for pair in effects.windows(2) {
                if pair[1].seq <= pair[0].seq {
                    found.push(format!("out of order: {:?} after {:?}", pair[1], pair[0]));
                }
            }
        }
        found
    }
}

/// Reads messages of the `pgoutput` plugin, version 1.
#[derive(Debug, Default)]
struct Reader {
    history: History,
    slots: HashMap<i64, (Option<i64>, i64)>,
    columns: HashMap<u32, (String, Vec<String>)>,
    committed_at: i64,
}

impl Reader {
    fn message(&mut self, mut bytes: Bytes<'_>) {
        match bytes.byte() {
            b'B' => {
                bytes.take(8);
                self.committed_at = i64::from_be_bytes(bytes.array());
            }
            b'R' => {
                let relation = u32::from_be_bytes(bytes.array());
                let _schema = bytes.text();
                let table = bytes.text();
                bytes.byte();
                let columns = (0..u16::from_be_bytes(bytes.array())).map(|_| {
                    bytes.byte();
                    let name = bytes.text();
                    bytes.take(8);
                    name
                });
                let columns = columns.collect();
                self.columns.insert(relation, (table, columns));
            }
            b'I' | b'U' => {
                let relation = u32::from_be_bytes(bytes.array());
                // An update may show the former row first.
                let row = loop {
                    let mark = bytes.byte();
                    let row = self.row(relation, &mut bytes);
                    if mark == b'N' {
                        break row;
                    }
                };
                self.event(&self.columns[&relation].0.clone(), &row);
            }
            _ => {}
        }
    }

    fn row(&self, relation: u32, bytes: &mut Bytes<'_>) -> HashMap<String, String> {
        let mut row = HashMap::new();
        let count = usize::from(u16::from_be_bytes(bytes.array()));
        for name in &self.columns[&relation].1[..count] {
            if bytes.byte() == b't' {
                let length = u32::from_be_bytes(bytes.array()) as usize;
                let text = String::from_utf8(bytes.take(length).to_vec()).unwrap();
                row.insert(name.clone(), text);
            }
        }
        row
    }

    fn event(&mut self, table: &str, row: &HashMap<String, String>) {
        let number = |name: &str| row[name].parse::<i64>().unwrap();
        let event = match table {
            "slot" => {
                let (slot, epoch) = (number("slot"), number("epoch"));
                let owner = row.contains_key("owner").then(|| number("owner"));
                if self.slots.insert(slot, (owner, epoch)) == Some((owner, epoch)) {
                    // Settled by its owner: nothing was granted.
                    return;
                }
                Event::Grant { slot, owner, epoch }
            }
            _ => Event::Effect(Effect {
                task: row["task"].clone(),
                key: row["key"].clone(),
                seq: number("seq"),
                slot: number("slot"),
                epoch: number("epoch"),
                node: row["node"].clone(),
                at: self.committed_at,
            }),
        };
        self.history.0.push(event);
    }
}

struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, count: usize) -> &'a [u8] {
        let (taken, rest) = self.0.split_at(count);
        self.0 = rest;
        taken
    }

    fn array<const N: usize>(&mut self) -> [u8; N] {
        self.take(N).try_into().unwrap()
    }

    fn byte(&mut self) -> u8 {
        self.array::<1>()[0]
    }

    /// Up to a NUL.
    fn text(&mut self) -> String {
        let end = self.0.iter().position(|byte| *byte == 0).unwrap();
        let text = String::from_utf8(self.take(end).to_vec()).unwrap();
        self.byte();
        text
    }
}
