//! Renewals against fencers, bars and each other: docs/adr/0006. A fence may only end a node that has not renewed.

use ringmesh_ring::Incarnation;

use super::lease::{FENCE_TERMS, fence_on};
use super::races_tests::{SOMEBODY_WAITS, Session, claim, number, run, until};
use super::testing::PATIENCE;
use super::testing_owner::{Database, slot_of};
use super::*;

const TTL: Duration = Duration::from_secs(600);
const BY: Incarnation = Incarnation(1 << 40);

/// A statement of the store with its parameters in place, for sessions that stay open.
pub(super) fn filled(sql: &str, parameters: &[&str]) -> String {
    let places = parameters.iter().enumerate().rev();
    places.fold(sql.to_owned(), |sql, (place, value)| {
        sql.replace(&format!("${}", place + 1), value)
    })
}

pub(super) fn renewal(me: Me) -> String {
    let of = [&*me.incarnation.0.to_string(), &*me.boot.to_string(), "600000"];
    filled(include_str!("sql/renew.sql"), &of)
}

fn lock(me: Me) -> String {
    let of = [&*me.incarnation.0.to_string(), "null"];
    filled(include_str!("sql/lock_node.sql"), &of)
}

fn set_fenced(me: Me) -> String {
    let of = [&*me.incarnation.0.to_string(), "'expired'", "9", "null"];
    filled(include_str!("sql/set_fenced.sql"), &of)
}

pub(super) async fn renew(store: &Store, me: Me) -> Result<Renewal, Error> {
    store.lease_session().await?.renew(me, TTL).await
}

/// The second half of fencing alone: nothing bars the node before, and nobody ends what holds its row.
async fn fence_without_bar(store: &Store, me: Me, seen: Option<i64>) -> Result<Fencing, Error> {
    let mut session = store.session(PATIENCE, &[]).await?;
    session.begin_with(FENCE_TERMS).await?;
    fence_on(&mut session, me.incarnation, seen, FenceKind::Expired, BY).await
}

async fn counter(db: &Database, me: Me) -> i64 {
    let sql = "select max(renewals) from ringmesh.lease where incarnation =";
    number(db, &format!("{sql} {}", me.incarnation.0)).await
}

async fn barred(db: &Database) -> bool {
    number(
        db,
        "select count(*) from ringmesh.node where lease_until <= clock_timestamp()",
    )
    .await
        > 0
}

/// What transactions are if nothing is said.
async fn default_isolation(db: &Database, level: &str) {
    let sql = format!(
        "do $$ begin
             execute format('alter database %I set default_transaction_isolation = %L', current_database(), '{level}');
         end $$"
    );
    run(db, &sql).await;
}

fn is_renewed(renewal: &Renewal) -> bool {
    matches!(renewal, Renewal::Renewed { .. })
}

#[tokio::test]
async fn a_renewal_that_its_fencer_waits_for_wins() {
    for isolation in ["read committed", "repeatable read", "serializable"] {
        let db = Database::new().await;
        default_isolation(&db, isolation).await;
        let me = db.node("a", TTL).await;
        let mut node = Session::new(&db).await;
        let open = format!("begin isolation level read committed; {}", renewal(me));
        node.run(&open).await.unwrap();
        let store = db.another();
        let fencer = tokio::spawn(async move { fence_without_bar(&store, me, Some(0)).await });
        until(&db, SOMEBODY_WAITS).await;
        node.run("commit").await.unwrap();
        let fencing = fencer.await.unwrap().unwrap();
        assert_eq!(fencing, Fencing::Nothing, "{isolation}");
        assert!(is_renewed(&renew(&db.another(), me).await.unwrap()));
        assert_eq!(counter(&db, me).await, 2);
        // The other way round: what it saw is what there is.
        let fencing = fence_without_bar(&db.another(), me, Some(2)).await.unwrap();
        assert_eq!(fencing, Fencing::Fenced, "{isolation}");
        assert_eq!(renew(&db.another(), me).await.unwrap(), Renewal::Fenced);
        assert_eq!(number(&db, "select renewals from ringmesh.node").await, 2);
    }
}

#[tokio::test]
async fn a_renewal_that_waits_for_a_fencer_ends_with_the_fence_or_goes_on_without_it() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let mut fencer = Session::new(&db).await;
    for (end, renewed) in [("rollback", true), ("commit", false)] {
        fencer
            .run(&format!("begin; {}; {}", lock(me), set_fenced(me)))
            .await
            .unwrap();
        let store = db.another();
        let renewal = tokio::spawn(async move { renew(&store, me).await });
        until(&db, SOMEBODY_WAITS).await;
        fencer.run(end).await.unwrap();
        let renewal = renewal.await.unwrap().unwrap();
        assert_eq!(is_renewed(&renewal), renewed, "{end}");
    }
    assert_eq!(counter(&db, me).await, 1);
}

#[tokio::test]
async fn of_two_renewals_at_once_neither_reads_fenced() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let mut first = Session::new(&db).await;
    // The answer to the first one was lost, or it comes to nothing.
    for (end, now) in [("commit", 2), ("rollback", 3)] {
        first.run(&format!("begin; {}", renewal(me))).await.unwrap();
        let store = db.another();
        let second = tokio::spawn(async move { renew(&store, me).await });
        until(&db, SOMEBODY_WAITS).await;
        first.run(end).await.unwrap();
        assert!(is_renewed(&second.await.unwrap().unwrap()), "{end}");
        assert_eq!(counter(&db, me).await, now);
    }
    let many = async |store: Store| {
        let mut session = store.lease_session().await.unwrap();
        for _ in 0..50 {
            assert!(is_renewed(&session.renew(me, TTL).await.unwrap()));
        }
    };
    tokio::join!(many(db.another()), many(db.another()), many(db.another()));
    assert_eq!(counter(&db, me).await, 153);
    assert_eq!(number(&db, "select count(*) from ringmesh.lease").await, 1);
}

#[tokio::test]
async fn a_bar_waits_for_no_writer_and_the_next_renewal_lifts_it() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    db.submit("noop", "k", "1").await;
    let mut writer = Session::new(&db).await;
    writer
        .run("begin; select from ringmesh.node where lease_until > clock_timestamp() for key share")
        .await
        .unwrap();
    db.cut_short(me).await;
    writer
        .run("commit")
        .await
        .expect("it was open when its node was cut short");
    let probe = Probe {
        slot,
        epoch: granted[0].1,
        start: 0,
        room: 10,
    };
    let refused = db.store.claim(me, Ticket(1), &[probe]).await.unwrap();
    assert!(refused.tasks.is_empty() && refused.probed.is_empty());
    assert!(is_renewed(&renew(&db.another(), me).await.unwrap()));
    assert!(!barred(&db).await);
    assert_eq!(claim(&db, me, slot, granted[0].1).await.len(), 1);
}

#[tokio::test]
async fn a_renewal_that_waits_for_a_bar_lifts_it() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let mut fencer = Session::new(&db).await;
    let bar = filled(
        include_str!("sql/cut_short.sql"),
        &[&me.incarnation.0.to_string(), "0"],
    );
    fencer.run(&format!("begin; {bar}")).await.unwrap();
    let store = db.another();
    let renewal = tokio::spawn(async move { renew(&store, me).await });
    until(&db, SOMEBODY_WAITS).await;
    fencer.run("commit").await.unwrap();
    assert!(is_renewed(&renewal.await.unwrap().unwrap()));
    assert!(!barred(&db).await);
    // Who saw it before it renewed bars it no more.
    fencer.run(&bar).await.unwrap();
    assert!(!barred(&db).await);
}

#[tokio::test]
async fn a_fence_of_a_node_that_renews_meanwhile_leaves_a_bar_at_most_until_the_next_renewal() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let mut node = Session::new(&db).await;
    node.run(&format!("begin; {}", renewal(me))).await.unwrap();
    let store = db.another();
    let fencer =
        tokio::spawn(async move { store.fence(me.incarnation, Some(0), FenceKind::Expired, BY).await });
    // Its bar waits already.
    until(&db, SOMEBODY_WAITS).await;
    node.run("commit").await.unwrap();
    assert_eq!(fencer.await.unwrap().unwrap(), Fencing::Nothing);
    assert!(is_renewed(&renew(&db.another(), me).await.unwrap()));
    assert!(!barred(&db).await);
}

#[tokio::test]
async fn a_renewal_passes_an_open_writer_and_the_fencer_that_waits_for_it() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let mut writer = Session::new(&db).await;
    writer
        .run("begin; select from ringmesh.node for key share")
        .await
        .unwrap();
    db.cut_short(me).await;
    let store = db.another();
    let fencer = tokio::spawn(async move { fence_without_bar(&store, me, Some(0)).await });
    until(&db, SOMEBODY_WAITS).await;
    assert!(is_renewed(&renew(&db.another(), me).await.unwrap()));
    assert!(!barred(&db).await);
    writer.run("commit").await.unwrap();
    assert_eq!(fencer.await.unwrap().unwrap(), Fencing::Nothing);
}

#[tokio::test]
async fn renewals_of_several_nodes_do_not_fail_for_each_other_whatever_the_default_isolation() {
    let db = Database::new().await;
    default_isolation(&db, "serializable").await;
    let mut nodes = Vec::new();
    for name in ["a", "b", "c", "d"] {
        let (me, store) = (db.node(name, TTL).await, db.another());
        nodes.push(async move {
            let mut session = store.lease_session().await.unwrap();
            for _ in 0..50 {
                assert!(is_renewed(&session.renew(me, TTL).await.unwrap()));
                assert_eq!(session.unfenced_nodes(&Ask::All).await.unwrap().len(), 4);
            }
        });
    }
    futures::future::join_all(nodes).await;
}
