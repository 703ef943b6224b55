//! Submits under idempotency keys that meet: in any order, with winners that die, at the limits of what an index takes.

use std::time::Duration;

use ringmesh_ring::{Key, Slot};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::submit::{Patience, Placed, Row, waited_in_vain};
use super::testing_owner::{Database, slot_of};
use super::*;
use crate::task::Submit;

fn row(key: &str, kind: &str, id: Option<&str>) -> Row {
    Row {
        submit: Submit {
            kind: kind.into(),
            key: Key::new(key).unwrap(),
            payload: serde_json::value::RawValue::from_string("1".into()).unwrap(),
            idempotency_key: id.map(str::to_owned),
            run_at: None,
            priority: 0,
            max_attempts: 10,
            timeout: Duration::from_secs(60),
            waiter: None,
        },
        slot: slot_of(key),
        fingerprint: id.map(|_| [7; 32]),
    }
}

/// Not random, but in no order; the same for the same seed.
fn shuffled(count: usize, seed: u64) -> Vec<usize> {
    let mut order: Vec<usize> = (0..count).collect();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    for at in (1..count).rev() {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        order.swap(at, (state >> 33) as usize % (at + 1));
    }
    order
}

fn number(placed: &Placed) -> i64 {
    match placed {
        Placed::New(number) | Placed::Replayed(number) => *number,
        Placed::Mismatch { .. } => panic!("all say the same: {placed:?}"),
    }
}

async fn deadlocks(session: &mut PgConnection) -> i64 {
    sqlx::query_scalar("select deadlocks from pg_stat_database where datname = current_database()")
        .fetch_one(session)
        .await
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn batches_of_the_same_idempotency_keys_in_any_order_meet_in_no_deadlock() {
    const CLIENTS: u64 = 8;
    const KEYS: usize = 60;
    const ROUNDS: u64 = 12;
    let db = Database::new().await;
    let clients = (0..CLIENTS).map(|client| {
        let store = db.another();
        tokio::spawn(async move {
            let mut numbers = Vec::new();
            for round in 0..ROUNDS {
                let rows: Vec<Row> = shuffled(KEYS, client * 1000 + round)
                    .into_iter()
                    // Some without an idempotency key stand between them.
                    .map(|key| {
                        let id = format!("r{round}-{key}");
                        row(
                            &format!("k{key}"),
                            "noop",
                            (key % 10 > 0 || client % 2 == 0).then_some(id.as_str()),
                        )
                    })
                    .collect();
                let rows: Vec<&Row> = rows.iter().collect();
                // As a batch over HTTP, or as single submits that were grouped.
                let placed = loop {
                    let placed = if client % 2 == 1 {
                        store.insert_all(&rows).await
                    } else {
                        store.insert_keyed(&rows, Patience::Long).await
                    };
                    match placed {
                        Ok(placed) => break placed,
                        Err(error) => {
                            let text = format!("{error:?}");
                            // A slow machine may need more than the patience; that says nothing about the order of locks.
                            assert!(waited_in_vain(&error) && !text.contains("40P01"), "{text}");
                        }
                    }
                };
                for (row, placed) in rows.iter().zip(&placed) {
                    if let Some(id) = &row.submit.idempotency_key {
                        numbers.push((id.clone(), number(placed)));
                    }
                }
            }
            numbers
        })
    });
    let clients: Vec<_> = clients.collect();
    let mut all = std::collections::BTreeMap::new();
    for client in clients {
        for (id, number) in client.await.unwrap() {
            assert_eq!(*all.entry(id.clone()).or_insert(number), number, "{id}");
        }
    }
    assert_eq!(all.len(), KEYS * ROUNDS as usize);
    let mut session = PgConnection::connect(&db.url).await.unwrap();
    assert_eq!(deadlocks(&mut session).await, 0);
    assert_eq!(
        db.count("select count(*) from ringmesh.idempotency").await,
        (KEYS * ROUNDS as usize) as i64
    );
}

/// The first of many submits under one key: it has written, and not committed.
async fn winner(db: &Database, id: &str) -> (PgConnection, i32) {
    let mut winner = PgConnection::connect(&db.url).await.unwrap();
    let sql = format!(
        "begin;
         with one as (select ringmesh.enqueue('noop', 'k', '1') as id)
         insert into ringmesh.idempotency (slot, key, kind, id_key, task, fingerprint)
         select ringmesh.slot_of('k'), 'k', 'noop', '{id}', split_part(id, '-', 2)::bigint, decode(repeat('07', 32), 'hex') from one"
    );
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut winner)
        .await
        .unwrap();
    let pid = sqlx::query_scalar("select pg_backend_pid()")
        .fetch_one(&mut winner)
        .await
        .unwrap();
    (winner, pid)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn whoever_loses_to_a_submit_that_dies_before_its_commit_does_not_name_its_task() {
    let db = Database::new().await;
    let mut observer = PgConnection::connect(&db.url).await.unwrap();
    for round in 0..6 {
        let id = format!("id-{round}");
        let (mut winner, pid) = winner(&db, &id).await;
        let losers: Vec<_> = (0..6)
            .map(|_| {
                let (store, id) = (db.another(), id.clone());
                tokio::spawn(async move {
                    let row = row("k", "noop", Some(&id));
                    loop {
                        match store.insert_keyed(&[&row], Patience::Long).await {
                            Ok(placed) => return number(&placed[0]),
                            Err(error) => assert!(waited_in_vain(&error), "{error:?}"),
                        }
                    }
                })
            })
            .collect();
        let waiting = "select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while sqlx::query_scalar::<_, i64>(waiting)
            .fetch_one(&mut observer)
            .await
            .unwrap()
            == 0
        {
            assert!(tokio::time::Instant::now() < deadline, "nobody met the winner");
        }
        // Two in three die: by a kill, or because they change their mind.
        match round % 3 {
            0 => {
                sqlx::query("select pg_terminate_backend($1)")
                    .bind(pid)
                    .execute(&mut observer)
                    .await
                    .unwrap();
            }
            1 => {
                sqlx::raw_sql("rollback").execute(&mut winner).await.unwrap();
            }
            _ => {
                sqlx::raw_sql("commit").execute(&mut winner).await.unwrap();
            }
        }
        let mut named = Vec::new();
        for loser in losers {
            named.push(loser.await.unwrap());
        }
        named.dedup();
        assert_eq!(named.len(), 1, "all of them name one task: {named:?}");
        let there: i64 = sqlx::query_scalar("select count(*) from ringmesh.task where id = $1")
            .bind(named[0])
            .fetch_one(&mut observer)
            .await
            .unwrap();
        assert_eq!(there, 1, "round {round}: the task that all name exists");
    }
    assert_eq!(db.count("select count(*) from ringmesh.task").await, 6);
}

/// Letters that no compression makes shorter.
fn noise(bytes: usize) -> String {
    let mut noise = vec![0; bytes];
    getrandom::fill(&mut noise).unwrap();
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._";
    noise
        .iter()
        .map(|byte| char::from(LETTERS[usize::from(byte % 64)]))
        .collect()
}

#[tokio::test]
async fn the_longest_key_kind_and_idempotency_key_fit_into_every_index() {
    let db = Database::new().await;
    let (key, kind, id) = (noise(1024), noise(128), noise(255));
    let slot: Slot = slot_of(&key);
    let (me, granted) = db.owner("a", &[slot]).await;
    let probe = Probe {
        slot,
        epoch: granted[0].1,
        start: 0,
        room: 1,
    };
    let first = row(&key, &kind, Some(&id));
    let placed = db.store.insert_keyed(&[&first], Patience::Long).await.unwrap();
    let again = db.store.insert_keyed(&[&first], Patience::Long).await.unwrap();
    assert_eq!(again, [Placed::Replayed(number(&placed[0]))]);
    // Its key is held, and what comes after it is moved behind the hold.
    let task = db
        .store
        .claim(me, Ticket(1), &[probe])
        .await
        .unwrap()
        .tasks
        .remove(0);
    assert_eq!(db.store.set_aside(me, &[task.token()]).await.unwrap(), [task.id]);
    db.store
        .insert_keyed(&[&row(&key, &kind, Some("next"))], Patience::Long)
        .await
        .unwrap();
    assert_eq!(db.store.move_behind(me, &granted).await.unwrap(), 1);
    assert_eq!(
        db.store.take_up_kinds(me, &granted, &[kind]).await.unwrap(),
        [task.id]
    );
    let task = db
        .store
        .claim(me, Ticket(1), &[probe])
        .await
        .unwrap()
        .tasks
        .remove(0);
    let retry = Retry {
        token: task.token(),
        key: task.key.clone(),
        delay: Duration::ZERO,
        failed: true,
        error: None,
    };
    assert_eq!(db.store.retry(me, &[retry]).await.unwrap(), [task.id]);
}
