use std::time::Duration;

use super::*;
use crate::store::testing_owner::{Database, slot_of};
use crate::task::State;

fn probe(slot: Slot, epoch: Epoch, start: i64) -> Probe {
    Probe {
        slot,
        epoch,
        start,
        room: 10,
    }
}

fn succeed(task: &Claimed) -> Finish {
    Finish {
        token: task.token(),
        end: Ok(Some("1".to_owned())),
        run: Duration::from_millis(1),
        failed: false,
        head: task.head,
    }
}

fn retry(task: &Claimed, delay: Duration) -> Retry {
    Retry {
        token: task.token(),
        key: task.key.clone(),
        delay,
        failed: true,
        error: Some("no".to_owned()),
    }
}

fn numbers(answer: &ClaimAnswer) -> Vec<i64> {
    answer.tasks.iter().map(|task| task.id.number).collect()
}

#[tokio::test]
async fn a_stale_owner_can_neither_claim_nor_write() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (old, granted) = db.owner("old", &[slot]).await;
    let epoch = granted[0].1;
    for _ in 0..5 {
        db.submit("noop", "k", "1").await;
    }
    let mut tasks = db
        .store
        .claim(
            old,
            Ticket(1),
            &[Probe {
                room: 4,
                ..probe(slot, epoch, 0)
            }],
        )
        .await
        .unwrap()
        .tasks;
    assert_eq!(tasks.len(), 4);
    let new = db.node("new", Duration::from_secs(600)).await;
    let epoch2 = db.take(new, &[slot]).await[0].1;
    let answer = db
        .store
        .claim(old, Ticket(1), &[probe(slot, epoch, 0)])
        .await
        .unwrap();
    assert!(answer.tasks.is_empty() && answer.probed.is_empty());
    let task = tasks.remove(0);
    assert!(db.store.finish(old, &[succeed(&task)]).await.unwrap().is_empty());
    assert!(
        db.store
            .retry(old, &[retry(&task, Duration::ZERO)])
            .await
            .unwrap()
            .is_empty()
    );
    assert!(db.store.give_back(old, &[task.token()]).await.unwrap().is_empty());
    assert!(db.store.set_aside(old, &[task.token()]).await.unwrap().is_empty());
    assert!(
        db.store
            .start_trial(old, &[task.token()], 1)
            .await
            .unwrap()
            .is_empty()
    );
    assert!(
        db.store
            .promote(old, Ticket(1), &[(slot, epoch)], 10)
            .await
            .unwrap()
            .is_empty()
    );
    // The new owner sees that they were claimed and lost.
    let answer = db
        .store
        .claim(new, Ticket(1), &[probe(slot, epoch2, 0)])
        .await
        .unwrap();
    assert_eq!(
        answer.tasks.iter().map(|task| task.lost).collect::<Vec<_>>(),
        [true, true, true, true, false]
    );
    assert_eq!(answer.tasks[0].attempt, 2);
}

#[tokio::test]
async fn a_node_that_was_cut_short_writes_nothing_and_its_claim_says_so() {
    let db = Database::new().await;
    let slot = slot_of("k");
    // That its lease is over refuses nothing: who fences it cuts it short first.
    let me = db.node("a", Duration::ZERO).await;
    let epoch = db.take(me, &[slot]).await[0].1;
    db.submit("noop", "k", "1").await;
    db.cut_short(me).await;
    let answer = db
        .store
        .claim(me, Ticket(1), &[probe(slot, epoch, 0)])
        .await
        .unwrap();
    assert!(
        answer.tasks.is_empty() && answer.probed.is_empty(),
        "no row for a slot that was not looked at"
    );
}

#[tokio::test]
async fn overlapping_claims_never_take_a_task_twice() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    for _ in 0..40 {
        db.submit("noop", "k", "1").await;
    }
    let (left, right) = (db.another(), db.another());
    let probes = [Probe {
        room: 30,
        ..probe(slot, granted[0].1, 0)
    }];
    let (one, two) = tokio::join!(
        left.claim(me, Ticket(1), &probes),
        right.claim(me, Ticket(1), &probes)
    );
    let mut all = numbers(&one.unwrap());
    all.extend(numbers(&two.unwrap()));
    let count = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), count);
    assert!(count >= 30);
}

#[tokio::test]
async fn a_finish_under_an_older_attempt_does_nothing() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let epoch = granted[0].1;
    let id = db.submit("noop", "k", "1").await;
    let first = db
        .store
        .claim(me, Ticket(1), &[probe(slot, epoch, 0)])
        .await
        .unwrap()
        .tasks
        .remove(0);
    assert_eq!(db.store.give_back(me, &[first.token()]).await.unwrap(), [id]);
    let second = db
        .store
        .claim(me, Ticket(1), &[probe(slot, epoch, 0)])
        .await
        .unwrap()
        .tasks
        .remove(0);
    assert_eq!(
        (second.attempt, second.lost, second.failures, second.crashes),
        (2, false, 0, 0)
    );
    assert!(db.store.finish(me, &[succeed(&first)]).await.unwrap().is_empty());
    assert_eq!(
        db.store
            .read_back(&[first.token(), second.token()])
            .await
            .unwrap(),
        [(id, ReadBack::Waits), (id, ReadBack::Open)]
    );
    assert_eq!(db.store.finish(me, &[succeed(&second)]).await.unwrap(), [id]);
    assert!(db.store.finish(me, &[succeed(&second)]).await.unwrap().is_empty());
    assert_eq!(
        db.store.read_back(&[second.token()]).await.unwrap(),
        [(id, ReadBack::Ended)]
    );
    assert_eq!(db.view(id).await.state, State::Succeeded);
}

#[tokio::test]
async fn of_a_finish_and_a_cancel_exactly_one_wins() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let epoch = granted[0].1;
    for _ in 0..10 {
        let id = db.submit("noop", "k", "1").await;
        let task = db
            .store
            .claim(me, Ticket(1), &[probe(slot, epoch, 0)])
            .await
            .unwrap()
            .tasks
            .remove(0);
        let other = db.another();
        let rows = [succeed(&task)];
        let (finished, cancelled) = tokio::join!(db.store.finish(me, &rows), other.cancel(id));
        let finished = finished.unwrap() == [id];
        assert_ne!(finished, cancelled.unwrap());
        let state = if finished {
            State::Succeeded
        } else {
            State::Cancelled
        };
        assert_eq!(db.view(id).await.state, state);
    }
}

#[tokio::test]
async fn a_retry_holds_its_key_until_its_head_ends() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let at = [probe(slot, granted[0].1, 0)];
    let first = db.submit("noop", "k", "1").await;
    let task = db.store.claim(me, Ticket(1), &at).await.unwrap().tasks.remove(0);
    db.store.retry(me, &[retry(&task, Duration::ZERO)]).await.unwrap();
    let second = db.submit("noop", "k", "1").await;
    let answer = db.store.claim(me, Ticket(1), &at).await.unwrap();
    assert!(answer.tasks.is_empty(), "the head waits, and nothing passes it");
    assert_eq!(
        answer.probed,
        [Probed {
            slot,
            picked: 0,
            holds: true
        }]
    );
    assert_eq!(db.store.next_due(&[slot]).await.unwrap().len(), 1);
    assert_eq!(
        db.store.promote(me, Ticket(1), &granted, 10).await.unwrap(),
        [(first, 0)]
    );
    let head = db.store.claim(me, Ticket(1), &at).await.unwrap().tasks;
    assert_eq!(head.iter().map(|task| task.id).collect::<Vec<_>>(), [first]);
    assert!(head[0].head && head[0].failures == 1 && !head[0].lost);
    db.store.finish(me, &[succeed(&head[0])]).await.unwrap();
    let answer = db.store.claim(me, Ticket(1), &at).await.unwrap();
    assert_eq!(numbers(&answer), [second.number]);
    assert!(!answer.tasks[0].head && !answer.probed[0].holds);
}

#[tokio::test]
async fn what_was_moved_behind_a_held_key_comes_back_in_order() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let at = [probe(slot, granted[0].1, 0)];
    let head = db.submit("noop", "k", "1").await;
    let task = db.store.claim(me, Ticket(1), &at).await.unwrap().tasks.remove(0);
    db.store
        .retry(me, &[retry(&task, Duration::from_secs(3600))])
        .await
        .unwrap();
    let mut later = Vec::new();
    for _ in 0..3 {
        later.push(db.submit("noop", "k", "1").await.number);
    }
    assert!(db.store.holds(&[slot]).await.unwrap()[0].long);
    assert_eq!(db.store.move_behind(me, &granted).await.unwrap(), 3);
    assert!(db.store.cancel(head).await.unwrap());
    later.push(db.submit("noop", "k", "1").await.number);
    let answer = db.store.claim(me, Ticket(1), &at).await.unwrap();
    assert!(
        answer.tasks.is_empty(),
        "the one that was not moved must not overtake"
    );
    assert!(db.store.holds(&[slot]).await.unwrap()[0].lifting);
    assert!(db.store.lift_done(me, &granted).await.unwrap().is_empty());
    assert_eq!(db.store.lift_behind(me, &granted).await.unwrap(), 3);
    assert!(db.store.claim(me, Ticket(1), &at).await.unwrap().tasks.is_empty());
    assert_eq!(db.store.lift_done(me, &granted).await.unwrap(), [slot]);
    assert_eq!(numbers(&db.store.claim(me, Ticket(1), &at).await.unwrap()), later);
}

#[tokio::test]
async fn a_hold_whose_head_is_gone_is_lifted() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    sqlx::query("insert into ringmesh.held_key (slot, key, task, reason) values ($1, 'k', 4711, 'retry')")
        .bind(i32::from(slot))
        .execute(&db.store.pool)
        .await
        .unwrap();
    assert!(db.store.holds(&[slot]).await.unwrap()[0].orphaned);
    assert_eq!(db.store.lift_orphans(me, &granted).await.unwrap(), 1);
    assert_eq!(db.store.lift_done(me, &granted).await.unwrap(), [slot]);
    assert!(db.store.holds(&[slot]).await.unwrap().is_empty());
}

#[tokio::test]
async fn only_a_loss_of_the_one_suspect_that_runs_alone_counts_as_a_crash() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (mut me, granted) = db.owner("n0", &[slot]).await;
    let mut epoch = granted[0].1;
    db.submit("noop", "k", "1").await;
    db.submit("noop", "k", "1").await;
    let mut seen = Vec::new();
    for (name, mark) in [("n1", 0), ("n2", 1), ("n3", 2), ("n4", 0)] {
        let tasks = db
            .store
            .claim(me, Ticket(1), &[probe(slot, epoch, 0)])
            .await
            .unwrap()
            .tasks;
        seen.push(
            tasks
                .iter()
                .map(|task| (task.lost, task.trial, task.crashes))
                .collect::<Vec<_>>(),
        );
        if mark > 0 {
            assert_eq!(
                db.store
                    .start_trial(me, &[tasks[0].token()], mark)
                    .await
                    .unwrap()
                    .len(),
                1
            );
        }
        // Its node dies.
        me = db.node(name, Duration::from_secs(600)).await;
        epoch = db.take(me, &[slot]).await[0].1;
    }
    let tasks = db
        .store
        .claim(me, Ticket(1), &[probe(slot, epoch, 0)])
        .await
        .unwrap()
        .tasks;
    seen.push(
        tasks
            .iter()
            .map(|task| (task.lost, task.trial, task.crashes))
            .collect(),
    );
    assert_eq!(
        seen,
        [
            [(false, 0, 0), (false, 0, 0)],
            [(true, -1, 0), (true, -1, 0)],
            [(true, -2, 0), (true, -1, 0)],
            [(true, -2, 1), (true, -1, 0)],
            [(true, -2, 1), (true, -1, 0)],
        ]
    );
}

#[tokio::test]
async fn kinds_that_are_not_known_hold_their_keys_and_come_back() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let at = [probe(slot, granted[0].1, 0)];
    let id = db.submit("strange", "k", "1").await;
    let task = db.store.claim(me, Ticket(1), &at).await.unwrap().tasks.remove(0);
    assert_eq!(db.store.set_aside(me, &[task.token()]).await.unwrap(), [id]);
    let later = db.submit("noop", "k", "1").await;
    assert!(db.store.claim(me, Ticket(1), &at).await.unwrap().tasks.is_empty());
    assert!(
        db.store
            .take_up_kinds(me, &granted, &["noop".to_owned()])
            .await
            .unwrap()
            .is_empty()
    );
    assert_eq!(
        db.store
            .take_up_kinds(me, &granted, &["strange".to_owned()])
            .await
            .unwrap(),
        [id]
    );
    let head = db.store.claim(me, Ticket(1), &at).await.unwrap().tasks.remove(0);
    assert_eq!((head.id, head.head), (id, true));
    db.store.finish(me, &[succeed(&head)]).await.unwrap();
    assert_eq!(
        numbers(&db.store.claim(me, Ticket(1), &at).await.unwrap()),
        [later.number]
    );
}

#[tokio::test]
async fn urgent_tasks_come_with_those_of_their_key_before_them() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let first = db.submit("noop", "k", "1").await;
    let urgent = db.submit_with("noop", "k", "1", 9, 10, 1000).await;
    db.submit("noop", "k", "1").await;
    let at = [Probe {
        room: 2,
        ..probe(slot, granted[0].1, 0)
    }];
    assert_eq!(db.store.news(&at).await.unwrap(), [(slot, true)]);
    let answer = db.store.claim_urgent(me, Ticket(1), &at).await.unwrap();
    assert_eq!(numbers(&answer), [first.number, urgent.number]);
    assert_eq!(db.store.news(&at).await.unwrap(), [(slot, false)]);
}

#[tokio::test]
async fn what_an_unanswered_claim_took_is_found() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    db.submit("noop", "k", "1").await;
    let task = db
        .store
        .claim(me, Ticket(1), &[probe(slot, granted[0].1, 0)])
        .await
        .unwrap()
        .tasks
        .remove(0);
    let (slot, epoch) = granted[0];
    for (start, claimed) in [(task.id.number, vec![task.token()]), (task.id.number + 1, vec![])] {
        let settled = db
            .store
            .settle(me, Ticket(1), &[(slot, epoch, start)])
            .await
            .unwrap();
        assert_eq!(
            settled,
            Settled {
                slots: vec![slot],
                claimed
            }
        );
    }
}

#[tokio::test]
async fn a_result_that_postgres_refuses_is_told_from_an_outage() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    db.submit("noop", "k", "1").await;
    let task = db
        .store
        .claim(me, Ticket(1), &[probe(slot, granted[0].1, 0)])
        .await
        .unwrap()
        .tasks
        .remove(0);
    let bad = Finish {
        end: Ok(Some("{".to_owned())),
        ..succeed(&task)
    };
    assert!(db.store.finish(me, &[bad]).await.unwrap_err().is_about_data());
    // A day that is missing fails each finish, whatever its data.
    sqlx::query("do $$ declare t record; begin for t in select inhrelid::regclass as day from pg_inherits where inhparent = 'ringmesh.finished_task'::regclass loop execute 'drop table ' || t.day; end loop; end $$")
        .execute(&db.store.pool)
        .await
        .unwrap();
    let error = db.store.finish(me, &[succeed(&task)]).await.unwrap_err();
    assert!(
        matches!(error, Error::Refused(_)) && !error.is_about_data(),
        "{error:?}"
    );
}
