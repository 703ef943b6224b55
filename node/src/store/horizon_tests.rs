//! What `horizon.sql` waits for, and what not.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::task::JoinSet;

use super::testing_owner::Database;
use super::*;

#[tokio::test]
async fn the_horizon_waits_for_every_transaction_that_holds_a_number() {
    let fresh = testing::fresh_with(crate::dev::postgres::Options {
        settings: vec![("max_prepared_transactions".into(), "1".into())],
        ..crate::dev::postgres::Options::for_tests()
    })
    .await;
    let ways = [
        ("begin; select ringmesh.enqueue('noop', 'k', '1')", "commit"),
        (
            "begin; savepoint s; select ringmesh.enqueue('noop', 'k', '1'); release s",
            "rollback",
        ),
        (
            "begin; select pg_current_xact_id(); insert into ringmesh.task (slot, key, kind, payload) values (1, 'k', 'noop', '1')",
            "commit",
        ),
        (
            "begin; select ringmesh.enqueue('noop', 'k', '1'); prepare transaction 'p'",
            "commit prepared 'p'",
        ),
    ];
    for (begin, end) in ways {
        let mut open = fresh.session().await;
        open.run(begin).await;
        fresh
            .number("select split_part(ringmesh.enqueue('noop', 'k', '1'), '-', 2)::bigint")
            .await;
        let first = fresh.store.horizon().await.unwrap();
        let second = fresh.store.horizon().await.unwrap();
        assert!(second.xmin < first.here, "{begin}: {first:?} {second:?}");
        open.run(end).await;
        let third = fresh.store.horizon().await.unwrap();
        assert!(third.xmin >= second.here, "{begin}: {second:?} {third:?}");
    }
}

#[tokio::test]
async fn the_horizon_does_not_wait_for_what_was_written_elsewhere() {
    let db = Database::new().await;
    let mut open = db.store.pool.begin().await.unwrap();
    sqlx::raw_sql("create table elsewhere (a int); select count(*) from ringmesh.task; select from ringmesh.task for update")
        .execute(&mut open)
        .await
        .unwrap();
    let first = db.store.horizon().await.unwrap();
    let second = db.store.horizon().await.unwrap();
    assert!(second.xmin >= first.here, "{first:?} {second:?}");
}

/// Writers of all sorts, whose transactions end out of order, beside one that has written elsewhere and stays open. Each time the horizon
/// rises, the tasks below it are counted; in the end there are as many.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn below_a_horizon_no_task_ever_appears() {
    const WRITERS: u64 = 6;
    const EACH: u64 = 120;
    let db = Database::new().await;
    let mut elsewhere = db.store.pool.begin().await.unwrap();
    sqlx::query("create table elsewhere ()")
        .execute(&mut elsewhere)
        .await
        .unwrap();
    let count = async |below: i64| -> i64 {
        sqlx::query_scalar("select count(*) from ringmesh.task where id < $1")
            .bind(below)
            .fetch_one(&db.store.control)
            .await
            .unwrap()
    };
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let pool = db.another().pool;
        writers.spawn(async move {
            for round in 0..EACH {
                let mixed = writer * 31 + round * 17;
                let mut open = pool.begin().await.unwrap();
                let sql = match mixed % 4 {
                    0 => "select ringmesh.enqueue('noop', 'k', '1')",
                    1 => "savepoint s; select ringmesh.enqueue('noop', 'k', '1'); release s",
                    2 => "savepoint s; select ringmesh.enqueue('noop', 'k', '1'); rollback to s; select ringmesh.enqueue('noop', 'k', '1')",
                    _ => "insert into ringmesh.task (slot, key, kind, payload) values (1, 'k', 'noop', '1')",
                };
                sqlx::raw_sql(sql).execute(&mut open).await.unwrap();
                tokio::time::sleep(Duration::from_millis(mixed % 7)).await;
                match mixed % 5 {
                    0 => open.rollback().await.unwrap(),
                    _ => open.commit().await.unwrap(),
                }
            }
        });
    }
    let (mut polls, mut counted) = (VecDeque::new(), Vec::new());
    let (mut horizon, mut waited) = (0, 0);
    while !writers.is_empty() {
        let poll = db.store.horizon().await.unwrap();
        let before = horizon;
        while let Some((last_id, _)) = polls.front().copied().filter(|(_, here)| poll.xmin >= *here) {
            horizon = last_id + 1;
            polls.pop_front();
        }
        waited += usize::from(!polls.is_empty());
        polls.push_back((poll.last_id, poll.here));
        if horizon > before {
            counted.push((horizon, count(horizon).await));
        }
        while writers.try_join_next().transpose().unwrap().is_some() {}
    }
    assert!(counted.len() > 10 && waited > 10, "{} {waited}", counted.len());
    for (horizon, then) in counted {
        assert_eq!(count(horizon).await, then, "below {horizon}");
    }
    elsewhere.rollback().await.unwrap();
}
