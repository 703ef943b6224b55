//! The rule of claims and promotions, written a second time in Rust, against every combination of what a row may say.

use std::collections::BTreeMap;
use std::time::Duration;

use ringmesh_ring::{Epoch, Slot};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::testing_owner::Database;
use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wait {
    Due,
    Ahead,
    Past,
    Behind,
    Kind,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Claimed {
    Never,
    UnderAnOlderEpoch,
    Now,
}

/// What holds the row's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    None,
    ForIt,
    ForAnother,
    Lifting,
}

/// Whose the row's slot is, as the one who asks believes and as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Place {
    Mine,
    LostSince,
    Others,
}

#[derive(Debug, Clone, Copy)]
struct Case {
    wait: Wait,
    claimed: Claimed,
    hold: Hold,
    place: Place,
    priority: i16,
    trial: i16,
    /// Below the start of the probe.
    early: bool,
}

/// What of a row may change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Row {
    waits: bool,
    epoch: Option<i64>,
    attempt: i32,
    trial: i16,
    crashes: i32,
}

const START: i64 = 1_000_000;
const EVERYTHING: i32 = 1_000_000;
/// Epochs of a slot: what a lost claim left, and what was granted last.
const OLD: i64 = 6;
const NOW: i64 = 7;

fn slot(place: Place) -> Slot {
    Slot::new(place as u16 * 100).unwrap()
}

fn cases() -> BTreeMap<i64, Case> {
    let mut cases = BTreeMap::new();
    for wait in [Wait::Due, Wait::Ahead, Wait::Past, Wait::Behind, Wait::Kind] {
        for claimed in [Claimed::Never, Claimed::UnderAnOlderEpoch, Claimed::Now] {
            for hold in [Hold::None, Hold::ForIt, Hold::ForAnother, Hold::Lifting] {
                for place in [Place::Mine, Place::LostSince, Place::Others] {
                    for (priority, early) in [(0, false), (0, true), (9, false), (9, true)] {
                        for trial in -2..=2 {
                            let id = cases.len() as i64 + if early { 1 } else { START };
                            let case = Case {
                                wait,
                                claimed,
                                hold,
                                place,
                                priority,
                                trial,
                                early,
                            };
                            cases.insert(id, case);
                        }
                    }
                }
            }
        }
    }
    cases
}

impl Case {
    fn row(&self) -> Row {
        let epoch = match self.claimed {
            Claimed::Never => None,
            Claimed::UnderAnOlderEpoch => Some(OLD),
            Claimed::Now => Some(NOW),
        };
        Row {
            waits: self.wait != Wait::Due,
            epoch,
            attempt: 3,
            trial: self.trial,
            crashes: 1,
        }
    }

    fn claimable(&self, urgent: bool) -> bool {
        self.wait == Wait::Due
            && self.claimed != Claimed::Now
            && matches!(self.hold, Hold::None | Hold::ForIt)
            && self.place == Place::Mine
            && !self.early
            && (!urgent || self.priority > 0)
    }

    fn after_claim(&self) -> Row {
        let lost = self.claimed == Claimed::UnderAnOlderEpoch;
        let trial = match (lost, self.trial) {
            (false, trial) => -trial.abs(),
            (true, trial @ ..0) => trial,
            (true, 0) => -1,
            (true, 1..) => -2,
        };
        Row {
            waits: false,
            epoch: Some(NOW),
            attempt: 4,
            trial,
            crashes: if lost && self.trial == 2 { 2 } else { 1 },
        }
    }
}

struct World {
    db: Database,
    session: PgConnection,
    me: Me,
    cases: BTreeMap<i64, Case>,
}

impl World {
    /// One key for each row. This node owns `Mine`, did own `LostSince`, and never owned `Others`.
    async fn new() -> World {
        let db = Database::new().await;
        let mut session = PgConnection::connect(&db.url).await.unwrap();
        let places = [Place::Mine, Place::LostSince, Place::Others].map(slot);
        let (me, _) = db.owner("me", &places[..2]).await;
        let (other, _) = db.owner("other", &places[1..]).await;
        let owners = format!(
            "update ringmesh.slot set epoch = {NOW}; update ringmesh.slot set owner = {} where slot = {}",
            other.incarnation.0,
            i32::from(places[1])
        );
        sqlx::raw_sql(AssertSqlSafe(owners))
            .execute(&mut session)
            .await
            .unwrap();
        let cases = cases();
        let mut sql = String::from("begin;");
        for (id, case) in &cases {
            let (wait, run_at) = match case.wait {
                Wait::Due => ("null", "null"),
                Wait::Ahead => ("'scheduled'", "now() + interval '24 hours'"),
                Wait::Past => ("'scheduled'", "now() - interval '1 second'"),
                Wait::Behind => ("'behind'", "null"),
                Wait::Kind => ("'kind'", "null"),
            };
            let row = case.row();
            let epoch = row.epoch.map_or("null".to_owned(), |epoch| epoch.to_string());
            let slot = i32::from(slot(case.place));
            sql += &format!(
                "insert into ringmesh.task (slot, id, key, kind, payload, wait, run_at, epoch, attempt, priority, trial, crashes)
                 values ({slot}, {id}, 'k{id}', 'noop', '1', {wait}, {run_at}, {epoch}, 3, {}, {}, 1);",
                case.priority, case.trial
            );
            let (task, reason) = match case.hold {
                Hold::None => continue,
                Hold::ForIt => (*id, "retry"),
                Hold::ForAnother => (4711, "kind"),
                Hold::Lifting => (-4711, "lifting"),
            };
            sql += &format!(
                "insert into ringmesh.held_key (slot, key, task, reason) values ({slot}, 'k{id}', {task}, '{reason}');"
            );
        }
        sql += "commit";
        sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut session)
            .await
            .unwrap();
        World {
            db,
            session,
            me,
            cases,
        }
    }

    fn probes(&self) -> Vec<Probe> {
        [Place::Mine, Place::LostSince, Place::Others]
            .map(|place| Probe {
                slot: slot(place),
                epoch: Epoch(NOW),
                start: START,
                room: EVERYTHING,
            })
            .into()
    }

    async fn rows(&mut self) -> BTreeMap<i64, Row> {
        let rows: Vec<(i64, bool, Option<i64>, i32, i16, i32)> =
            sqlx::query_as("select id, wait is not null, epoch, attempt, trial, crashes from ringmesh.task")
                .fetch_all(&mut self.session)
                .await
                .unwrap();
        rows.into_iter()
            .map(|(id, waits, epoch, attempt, trial, crashes)| {
                let row = Row {
                    waits,
                    epoch,
                    attempt,
                    trial,
                    crashes,
                };
                (id, row)
            })
            .collect()
    }

    /// Compares every row with what the model says of it.
    async fn check(&mut self, model: impl Fn(&Case) -> Row) {
        let rows = self.rows().await;
        assert_eq!(rows.len(), self.cases.len());
        for (id, case) in &self.cases {
            assert_eq!(rows[id], model(case), "{id}: {case:?}");
        }
    }
}

#[tokio::test]
async fn a_claim_takes_what_the_model_takes_and_changes_nothing_else() {
    for urgent in [false, true] {
        let mut world = World::new().await;
        let probes = world.probes();
        // Whoever is not the owner with a lease claims nothing at all.
        let stale: Vec<Probe> = probes
            .iter()
            .map(|probe| Probe {
                epoch: Epoch(OLD),
                ..*probe
            })
            .collect();
        let over = world.db.node("over", Duration::ZERO).await;
        let mut strangers = vec![(world.me, &stale), (over, &probes)];
        let forged = Me {
            boot: world.me.boot + 1,
            ..world.me
        };
        strangers.push((forged, &probes));
        let gone = Me {
            incarnation: ringmesh_ring::Incarnation(4711),
            ..world.me
        };
        strangers.push((gone, &probes));
        for (who, probes) in strangers {
            let answer = if urgent {
                world.db.store.claim_urgent(who, Ticket(1), probes).await.unwrap()
            } else {
                world.db.store.claim(who, Ticket(1), probes).await.unwrap()
            };
            assert!(answer.tasks.is_empty() && answer.probed.is_empty(), "{who:?}");
        }
        world.check(Case::row).await;

        let answer = if urgent {
            world
                .db
                .store
                .claim_urgent(world.me, Ticket(1), &probes)
                .await
                .unwrap()
        } else {
            world.db.store.claim(world.me, Ticket(1), &probes).await.unwrap()
        };
        let claimed: Vec<i64> = answer.tasks.iter().map(|task| task.id.number).collect();
        let expected: Vec<i64> = world
            .cases
            .iter()
            .filter(|(_, case)| case.claimable(urgent))
            .map(|(id, _)| *id)
            .collect();
        assert!(!expected.is_empty());
        assert_eq!(claimed, expected);
        world
            .check(|case| {
                if case.claimable(urgent) {
                    case.after_claim()
                } else {
                    case.row()
                }
            })
            .await;
    }
}

#[tokio::test]
async fn a_promotion_makes_due_what_is_due_and_nothing_else() {
    let mut world = World::new().await;
    let slots: Vec<(Slot, Epoch)> = world
        .probes()
        .iter()
        .map(|probe| (probe.slot, probe.epoch))
        .collect();
    // A day ahead: it is in no look for news, and in none for what is due soon.
    let news = world.db.store.news(&world.probes()).await.unwrap();
    assert!(news.contains(&(slot(Place::Mine), true)));
    let promoted = world
        .db
        .store
        .promote(world.me, Ticket(1), &slots, EVERYTHING)
        .await
        .unwrap();
    let is_promoted = |case: &Case| case.wait == Wait::Past && case.place == Place::Mine;
    let expected = world.cases.values().filter(|case| is_promoted(case)).count();
    assert_eq!(promoted.len(), expected);
    world
        .check(|case| {
            let row = case.row();
            Row {
                waits: row.waits && !is_promoted(case),
                ..row
            }
        })
        .await;
    // What is left is a day ahead.
    assert!(
        world
            .db
            .store
            .next_due(&[slot(Place::Mine)])
            .await
            .unwrap()
            .is_empty()
    );
}

/// Nothing about tasks hangs on the rows of nodes but the right to write.
#[tokio::test]
async fn rows_of_nodes_come_and_go_and_no_task_changes() {
    let mut world = World::new().await;
    let probes = world.probes();
    sqlx::raw_sql("delete from ringmesh.node")
        .execute(&mut world.session)
        .await
        .unwrap();
    assert!(
        world
            .db
            .store
            .claim(world.me, Ticket(1), &probes)
            .await
            .unwrap()
            .probed
            .is_empty(),
        "a node without a row counts as fenced"
    );
    let again = world.db.node("me", Duration::from_secs(600)).await;
    assert_ne!(again.incarnation, world.me.incarnation);
    world.check(Case::row).await;
    // The slot is free for anybody, and its tasks are where they were.
    let granted = world
        .db
        .store
        .grant(again, &[(slot(Place::Mine), Epoch(NOW))])
        .await
        .unwrap();
    assert_eq!(granted, [(slot(Place::Mine), Epoch(NOW + 1))]);
    let probe = Probe {
        epoch: Epoch(NOW + 1),
        ..probes[0]
    };
    let claimed = world
        .db
        .store
        .claim(again, Ticket(1), &[probe])
        .await
        .unwrap()
        .tasks
        .len();
    let open = world
        .cases
        .values()
        .filter(|case| {
            Case {
                claimed: Claimed::Never,
                ..**case
            }
            .claimable(false)
        })
        .count();
    assert_eq!(claimed, open, "those that the former owner ran are pending again");
}
