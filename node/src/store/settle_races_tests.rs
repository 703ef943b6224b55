//! Claims and promotions that were given up: those that still run are waited for, those that arrive after that are refused.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::races_tests::{SOMEBODY_WAITS, Session, number, until};
use super::testing_owner::{Database, slot_of};
use super::*;
use ringmesh_ring::{Epoch, Slot};

const TWO_WAIT: &str = "select count(*) = 2 from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'";

/// Every statement that carries a ticket.
#[derive(Debug, Clone, Copy)]
enum Late {
    Claim,
    ClaimUrgent,
    Promote,
}

impl Late {
    const ALL: [Late; 3] = [Late::Claim, Late::ClaimUrgent, Late::Promote];

    /// How many tasks it took, or made due.
    async fn arrives(self, store: &Store, me: Me, ticket: i64, (slot, epoch): (Slot, Epoch)) -> usize {
        let ticket = Ticket(ticket);
        let probe = Probe {
            slot,
            epoch,
            start: 0,
            room: 100,
        };
        match self {
            Late::Claim => store.claim(me, ticket, &[probe]).await.unwrap().tasks.len(),
            Late::ClaimUrgent => store
                .claim_urgent(me, ticket, &[probe])
                .await
                .unwrap()
                .tasks
                .len(),
            Late::Promote => store
                .promote(me, ticket, &[(slot, epoch)], 10)
                .await
                .unwrap()
                .len(),
        }
    }
}

/// A slot with one task that a claim takes, and one that a promotion makes due.
async fn owned(db: &Database, name: &str) -> (Me, (Slot, Epoch)) {
    let (me, granted) = db.owner(name, &[slot_of("k")]).await;
    db.submit_with("noop", "k", "1", 9, 10, 300_000).await;
    let scheduled = format!(
        "insert into ringmesh.task (slot, key, kind, payload, wait, run_at) values ({}, 'k', 'noop', '1', 'scheduled', '2020-01-01Z')",
        i32::from(granted[0].0)
    );
    Session::new(db).await.run(&scheduled).await.unwrap();
    (me, granted[0])
}

async fn settle(store: &Store, me: Me, ticket: i64, (slot, epoch): (Slot, Epoch)) -> Settled {
    store
        .settle(me, Ticket(ticket), &[(slot, epoch, 0)])
        .await
        .unwrap()
}

#[tokio::test]
async fn a_claim_that_arrives_after_its_slot_was_settled_is_refused() {
    for late in Late::ALL {
        let db = Database::new().await;
        let (me, held) = owned(&db, "a").await;
        let other = db.another();
        assert_eq!(settle(&db.store, me, 5, held).await.slots, [held.0]);
        // A settling whose answer was lost is repeated, and one of an earlier claim may come after it.
        assert_eq!(settle(&db.store, me, 5, held).await.slots, [held.0]);
        assert_eq!(settle(&other, me, 3, held).await.slots, [held.0]);
        for ticket in 1..=5 {
            assert_eq!(
                late.arrives(&other, me, ticket, held).await,
                0,
                "{late:?} {ticket}"
            );
        }
        assert_eq!(late.arrives(&other, me, 6, held).await, 1, "{late:?}");
    }
}

#[tokio::test]
async fn a_claim_that_waited_while_its_slot_was_settled_is_refused() {
    for late in Late::ALL {
        for (ticket, taken) in [(5, 0), (6, 1)] {
            let db = Database::new().await;
            let (me, held) = owned(&db, "a").await;
            let mut gate = Session::new(&db).await;
            let lock = format!(
                "begin; select from ringmesh.slot where slot = {} for update",
                i32::from(held.0)
            );
            gate.run(&lock).await.unwrap();
            let (first, second) = (db.another(), db.another());
            let settling = tokio::spawn(async move { settle(&first, me, 5, held).await });
            until(&db, SOMEBODY_WAITS).await;
            // Its snapshot is from before the settling, and the row that it waits for is not.
            let claiming = tokio::spawn(async move { late.arrives(&second, me, ticket, held).await });
            until(&db, TWO_WAIT).await;
            gate.run("commit").await.unwrap();
            assert_eq!(settling.await.unwrap().claimed, [], "{late:?}");
            assert_eq!(claiming.await.unwrap(), taken, "{late:?} {ticket}");
        }
    }
}

#[tokio::test]
async fn a_claim_that_runs_is_waited_for_and_what_it_took_is_found() {
    let db = Database::new().await;
    let (me, held) = owned(&db, "a").await;
    let mut gate = Session::new(&db).await;
    gate.run("begin; select from ringmesh.task where wait is null for update")
        .await
        .unwrap();
    let (first, second) = (db.another(), db.another());
    let claiming = tokio::spawn(async move { Late::Claim.arrives(&first, me, 5, held).await });
    until(&db, SOMEBODY_WAITS).await;
    let settling = tokio::spawn(async move { settle(&second, me, 5, held).await });
    until(&db, TWO_WAIT).await;
    gate.run("commit").await.unwrap();
    assert_eq!(claiming.await.unwrap(), 1);
    let settled = settling.await.unwrap();
    let taken = number(&db, "select id from ringmesh.task where epoch is not null").await;
    let found: Vec<i64> = settled.claimed.iter().map(|token| token.id.number).collect();
    assert_eq!((settled.slots, found), (vec![held.0], vec![taken]));
}

#[tokio::test]
async fn only_the_present_owner_settles_and_the_next_one_begins_anew() {
    let db = Database::new().await;
    let (me, held) = owned(&db, "a").await;
    let (slot, epoch) = held;
    assert_eq!(Late::Claim.arrives(&db.store, me, 1, held).await, 1);
    let over = db.node("over", Duration::ZERO).await;
    let forged = Me {
        boot: me.boot + 1,
        ..me
    };
    let stale = (slot, Epoch(epoch.0 - 1));
    for (who, held) in [(over, held), (forged, held), (me, stale)] {
        assert_eq!(
            settle(&db.store, who, 99, held).await,
            Settled::default(),
            "{who:?}"
        );
    }
    assert_eq!(number(&db, "select max(settled) from ringmesh.slot").await, 0);

    // By a handoff, by a takeover, and back.
    let next = db.node("next", Duration::from_secs(600)).await;
    assert_eq!(settle(&db.store, me, 99, held).await.slots, [slot]);
    assert_eq!(
        db.store.transfer(me, next.incarnation, &[held]).await.unwrap(),
        [slot]
    );
    assert_eq!(settle(&db.store, me, 100, held).await, Settled::default());
    let held = (slot, epoch.next());
    assert_eq!(Late::Claim.arrives(&db.store, next, 1, held).await, 1);
    assert_eq!(settle(&db.store, next, 99, held).await.slots, [slot]);
    let fence = format!(
        "update ringmesh.node set fenced_at = now(), fenced_as = 'left' where incarnation = {}",
        next.incarnation.0
    );
    Session::new(&db).await.run(&fence).await.unwrap();
    let granted = db.store.grant(me, &[held]).await.unwrap();
    assert_eq!(Late::Claim.arrives(&db.store, me, 2, granted[0]).await, 1);
}

#[tokio::test]
async fn to_settle_changes_no_index() {
    let db = Database::new().await;
    let slots: Vec<Slot> = (0..16).map(|slot| Slot::new(slot).unwrap()).collect();
    let (me, held) = db.owner("a", &slots).await;
    let (slots, epochs) = super::slots::columns(&held);
    let mut session = PgConnection::connect(&db.url).await.unwrap();
    let mut transaction = session.begin().await.unwrap();
    sqlx::query(AssertSqlSafe(include_str!("sql/settle.sql")))
        .bind(me.incarnation.0)
        .bind(me.boot)
        .bind(slots)
        .bind(epochs)
        .bind(1_i64)
        .execute(&mut *transaction)
        .await
        .unwrap();
    let updated: (i64, i64) = sqlx::query_as(
        "select pg_stat_get_xact_tuples_updated('ringmesh.slot'::regclass), pg_stat_get_xact_tuples_hot_updated('ringmesh.slot'::regclass)",
    )
    .fetch_one(&mut *transaction)
    .await
    .unwrap();
    assert_eq!(updated, (16, 16));
}
