//! Fences, grants and claims against statements that began before them: what waited for a lock looks again.

use std::time::Duration;

use ringmesh_ring::Epoch;

use super::races_tests::{SOMEBODY_WAITS, Session, claim, number, run, until};
use super::testing::PATIENCE;
use super::testing_owner::{Database, slot_of};
use super::*;

/// Fences a node that has not renewed, however long that takes on a busy machine.
async fn fence(db: &Database, node: Me) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    let by = ringmesh_ring::Incarnation(1 << 40);
    while let Err(error) = db
        .store
        .fence(node.incarnation, Some(0), FenceKind::Expired, by)
        .await
    {
        assert!(tokio::time::Instant::now() < deadline, "{error:?}");
    }
    let fenced = number(
        db,
        "select count(*) from ringmesh.node where fenced_at is not null",
    )
    .await;
    assert_eq!(fenced, 1);
}

fn succeed(task: &crate::task::Claimed) -> Finish {
    Finish {
        token: task.token(),
        end: Ok(None),
        run: Duration::from_millis(1),
        failed: false,
        head: task.head,
    }
}

#[tokio::test]
async fn no_writer_of_a_node_commits_after_its_fence() {
    let db = Database::new().await;
    let node = db.node("a", Duration::from_secs(600)).await;
    let mut writer = Session::new(&db).await;
    // As each statement of a node's own begins.
    writer
        .run("begin; select from ringmesh.node for key share")
        .await
        .unwrap();
    fence(&db, node).await;
    writer
        .run("commit")
        .await
        .expect_err("it was open when the node was fenced, and the fence did not wait for it");
}

#[tokio::test]
async fn a_finish_that_waited_ends_nothing_after_the_fence() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    db.submit("noop", "k", "1").await;
    let task = claim(&db, me, slot, granted[0].1).await.remove(0);
    let mut gate = Session::new(&db).await;
    gate.run(&format!(
        "begin; select from ringmesh.slot where slot = {} for update",
        i32::from(slot)
    ))
    .await
    .unwrap();
    let store = db.another();
    let row = succeed(&task);
    let finish = tokio::spawn(async move { store.finish(me, &[row]).await });
    until(&db, SOMEBODY_WAITS).await;
    fence(&db, me).await;
    gate.run("commit").await.unwrap();
    let finished = finish.await.unwrap();
    assert!(!finished.is_ok_and(|ended| !ended.is_empty()));
    assert_eq!(
        number(&db, "select count(*) from ringmesh.finished_task").await,
        0
    );
}

#[tokio::test]
async fn a_grant_takes_no_slot_that_was_granted_meanwhile() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let me = db.node("a", Duration::from_secs(600)).await;
    let other = db.node("b", Duration::from_secs(600)).await;
    let mut faster = Session::new(&db).await;
    faster
        .run(&format!(
            "begin; update ringmesh.slot set owner = {}, epoch = 1 where slot = {}",
            other.incarnation.0,
            i32::from(slot)
        ))
        .await
        .unwrap();
    let store = db.another();
    let grant = tokio::spawn(async move { store.grant(me, &[(slot, Epoch(0))]).await });
    // It passes over the row that is locked, or it waits for it.
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !grant.is_finished() && number(&db, &format!("select ({SOMEBODY_WAITS})::int::bigint")).await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "neither");
    }
    faster.run("commit").await.unwrap();
    assert_eq!(grant.await.unwrap().unwrap(), []);
    let owner = format!("select owner from ringmesh.slot where slot = {}", i32::from(slot));
    assert_eq!(number(&db, &owner).await, other.incarnation.0);
}

#[tokio::test]
async fn claims_that_waited_for_the_same_tasks_take_each_once() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    for _ in 0..5 {
        db.submit("noop", "k", "1").await;
    }
    let mut gate = Session::new(&db).await;
    gate.run("begin; select from ringmesh.task for update")
        .await
        .unwrap();
    let epoch = granted[0].1;
    let both = async { tokio::join!(claim(&db, me, slot, epoch), claim(&db, me, slot, epoch)) };
    let open = async {
        until(
            &db,
            "select count(*) = 2 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'",
        )
        .await;
        gate.run("commit").await.unwrap();
    };
    let ((one, two), ()) = tokio::join!(both, open);
    let mut all: Vec<i64> = one.iter().chain(&two).map(|task| task.id.number).collect();
    all.sort_unstable();
    let count = all.len();
    all.dedup();
    assert_eq!((count, all.len()), (5, 5));
}

#[tokio::test]
async fn nothing_is_sent_back_under_an_older_attempt() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let id = db.submit("noop", "k", "1").await;
    let first = claim(&db, me, slot, granted[0].1).await.remove(0);
    assert_eq!(db.store.give_back(me, &[first.token()]).await.unwrap(), [id]);
    let second = claim(&db, me, slot, granted[0].1).await.remove(0);
    run(&db, "update ringmesh.task set trial = 0").await;
    let retry = Retry {
        token: first.token(),
        key: first.key.clone(),
        delay: Duration::ZERO,
        failed: true,
        error: None,
    };
    assert_eq!(db.store.retry(me, &[retry]).await.unwrap(), []);
    assert_eq!(db.store.set_aside(me, &[first.token()]).await.unwrap(), []);
    assert_eq!(db.store.give_back(me, &[first.token()]).await.unwrap(), []);
    assert_eq!(db.store.start_trial(me, &[first.token()], 2).await.unwrap(), []);
    assert_eq!(
        db.store.read_back(&[second.token()]).await.unwrap(),
        [(id, ReadBack::Open)]
    );
}
