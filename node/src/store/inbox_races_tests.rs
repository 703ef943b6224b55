//! Ids that are applied once: transactions that meet, and ids that are forgotten.

use std::time::Duration;

use super::effects_testing::is;
use super::races_tests::{SOMEBODY_WAITS, Session, number, run, until};
use super::testing_owner::{Database, slot_of};
use super::*;

const WINDOW: Duration = Duration::from_secs(7 * 24 * 3600);

/// A transaction in which the id is applied, or not.
async fn applied(session: &mut Session, id: &str) -> Result<bool, sqlx::Error> {
    sqlx::query_scalar("select ringmesh.apply_once($1)")
        .bind(id)
        .fetch_one(session.connection())
        .await
}

async fn open(db: &Database) -> Session {
    let mut session = Session::new(db).await;
    session.run("begin").await.unwrap();
    session
}

async fn ids(db: &Database) -> i64 {
    number(db, "select count(*) from ringmesh.inbox").await
}

#[tokio::test]
async fn an_id_that_came_again_is_not_applied_and_is_counted() {
    let db = Database::new().await;
    assert_eq!(db.store.inbox_again().await.unwrap(), 0);
    let mut session = open(&db).await;
    assert!(applied(&mut session, "a").await.unwrap());
    assert!(
        !applied(&mut session, "a").await.unwrap(),
        "in the same transaction"
    );
    assert!(applied(&mut session, "A").await.unwrap(), "another id");
    session.run("commit; begin").await.unwrap();
    assert!(!applied(&mut session, "a").await.unwrap());
    session.run("commit").await.unwrap();
    assert_eq!((ids(&db).await, db.store.inbox_again().await.unwrap()), (2, 2));
}

#[tokio::test]
async fn an_id_that_was_rolled_back_is_applied_by_the_next_that_comes() {
    let db = Database::new().await;
    let mut session = open(&db).await;
    assert!(applied(&mut session, "a").await.unwrap());
    session.run("rollback; begin; savepoint s").await.unwrap();
    assert!(applied(&mut session, "a").await.unwrap());
    session.run("rollback to s").await.unwrap();
    assert!(applied(&mut session, "a").await.unwrap());
    session.run("commit").await.unwrap();
    assert_eq!((ids(&db).await, db.store.inbox_again().await.unwrap()), (1, 0));
}

#[tokio::test]
async fn who_applies_the_same_id_waits_for_the_other_and_is_told_what_became_of_it() {
    for commits in [true, false] {
        let db = Database::new().await;
        let mut one = open(&db).await;
        assert!(applied(&mut one, "a").await.unwrap());
        let mut two = open(&db).await;
        let second = tokio::spawn(async move {
            let applied = applied(&mut two, "a").await;
            two.run("commit").await.unwrap();
            applied
        });
        until(&db, SOMEBODY_WAITS).await;
        one.run(if commits { "commit" } else { "rollback" })
            .await
            .unwrap();
        assert_eq!(second.await.unwrap().unwrap(), !commits);
        assert_eq!(ids(&db).await, 1);
    }
}

/// Sort ids: as with rows that one updates.
#[tokio::test]
async fn two_ids_in_two_orders_end_one_of_the_transactions_and_neither_applies_twice() {
    let db = Database::new().await;
    let (mut one, mut two) = (open(&db).await, open(&db).await);
    assert!(applied(&mut one, "a").await.unwrap());
    assert!(applied(&mut two, "b").await.unwrap());
    let waits = tokio::spawn(async move { (applied(&mut one, "b").await, one) });
    until(&db, SOMEBODY_WAITS).await;
    let second = applied(&mut two, "a").await;
    two.run("commit").await.unwrap();
    let (first, mut one) = waits.await.unwrap();
    one.run("commit").await.unwrap();
    let (lost, won) = if first.is_err() {
        (first, second)
    } else {
        (second, first)
    };
    is(lost.map(|_| ()), "40P01");
    assert!(won.unwrap());
    assert_eq!(ids(&db).await, 2);
}

#[tokio::test]
async fn under_an_older_snapshot_an_id_is_applied_once_or_the_transaction_fails() {
    let db = Database::new().await;
    for level in ["repeatable read", "serializable"] {
        let mut session = open(&db).await;
        let begin = format!("rollback; begin isolation level {level}; select count(*) from ringmesh.inbox");
        session.run(&begin).await.unwrap();
        let mut other = open(&db).await;
        assert!(applied(&mut other, level).await.unwrap());
        other.run("commit").await.unwrap();
        is(applied(&mut session, level).await.map(|_| ()), "40001");
        session.run(&begin).await.unwrap();
        assert!(!applied(&mut session, level).await.unwrap());
        assert!(applied(&mut session, &format!("new at {level}")).await.unwrap());
        session.run("commit").await.unwrap();
    }
    assert_eq!(ids(&db).await, 4);
}

#[tokio::test]
async fn ids_are_forgotten_after_the_window_by_the_owner_of_their_slot_alone() {
    let db = Database::new().await;
    let slot = slot_of("old");
    let (me, granted) = db.owner("a", &[slot]).await;
    run(
        &db,
        "select ringmesh.apply_once(id) from unnest(array['old', 'elsewhere']) id",
    )
    .await;
    let young = format!(
        "insert into ringmesh.inbox (slot, id) values ({}, 'young')",
        i32::from(slot)
    );
    run(&db, &young).await;
    let forget = || db.store.forget_inbox(me, &granted, WINDOW);
    assert_eq!(forget().await.unwrap(), 0);
    let age = "update ringmesh.inbox set seen_at = now() - interval '7 days 1 minute' where id <> 'young'";
    run(&db, age).await;
    // Neither under another epoch nor by another start.
    let stale = [(slot, granted[0].1.next())];
    assert_eq!(db.store.forget_inbox(me, &stale, WINDOW).await.unwrap(), 0);
    let namesake = Me { boot: 8, ..me };
    assert_eq!(
        db.store.forget_inbox(namesake, &granted, WINDOW).await.unwrap(),
        0
    );
    assert_eq!(forget().await.unwrap(), 1);
    assert_eq!(
        number(
            &db,
            "select count(*) from ringmesh.inbox where id in ('young', 'elsewhere')"
        )
        .await,
        2
    );
    let mut session = open(&db).await;
    assert!(applied(&mut session, "old").await.unwrap());
    assert!(!applied(&mut session, "elsewhere").await.unwrap());
}

#[tokio::test]
async fn ids_are_forgotten_in_chunks() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let many = format!(
        "insert into ringmesh.inbox select {}, n::text, now() - interval '8 days' from generate_series(1, 1200) n;
         analyze ringmesh.inbox",
        i32::from(slot)
    );
    run(&db, &many).await;
    for chunk in [500, 500, 200, 0] {
        assert_eq!(db.store.forget_inbox(me, &granted, WINDOW).await.unwrap(), chunk);
    }
}

#[tokio::test]
async fn an_id_that_is_being_forgotten_is_waited_for_and_then_new() {
    for forgotten in [true, false] {
        let db = Database::new().await;
        run(&db, "select ringmesh.apply_once('a')").await;
        let mut sweep = open(&db).await;
        sweep.run("delete from ringmesh.inbox").await.unwrap();
        let mut session = open(&db).await;
        let waits = tokio::spawn(async move {
            let applied = applied(&mut session, "a").await;
            session.run("commit").await.unwrap();
            applied
        });
        until(&db, SOMEBODY_WAITS).await;
        sweep
            .run(if forgotten { "commit" } else { "rollback" })
            .await
            .unwrap();
        assert_eq!(waits.await.unwrap().unwrap(), forgotten);
        assert_eq!(ids(&db).await, 1);
    }
}
