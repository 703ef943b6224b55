//! Nodes of this version beside nodes of the version before, which keep their counter in `node` and know no `lease`.

use ringmesh_ring::Incarnation;

use super::races_tests::{SOMEBODY_WAITS, Session, claim, number, run, until};
use super::renewal_races_tests::{filled, renew, renewal};
use super::testing_owner::{Database, slot_of};
use super::*;

/// The statements of the version before.
const OLD_REGISTER: &str = "
    insert into ringmesh.node (incarnation, boot, name, http, gossip, weight, lease_until)
    select nextval('ringmesh.incarnation'), 7, $1, '127.0.0.1:1', '127.0.0.1:1', 1, clock_timestamp() + interval '600 s'
    where not exists (select from ringmesh.node where name = $1 and fenced_at is null)
    on conflict do nothing
    returning incarnation";
const OLD_RENEW: &str = "
    update ringmesh.node
    set renewals = renewals + 1, lease_until = clock_timestamp() + interval '600 s'
    where incarnation = $1 and boot = 7 and fenced_at is null
    returning renewals";
const OLD_UNFENCED_NODES: &str = "
    select incarnation, renewals, (extract(epoch from lease_until - clock_timestamp()) * 1000)::bigint
    from ringmesh.node where fenced_at is null order by incarnation";
const OLD_CUT_SHORT: &str = "
    update ringmesh.node set lease_until = clock_timestamp()
    where incarnation = $1 and renewals = $2 and fenced_at is null and lease_until > clock_timestamp()";
const OLD_LOCK_NODE: &str = "
    select incarnation from ringmesh.node
    where incarnation = $1 and fenced_at is null and ($2::bigint is null or renewals = $2)
    for update";
const OLD_SET_FENCED: &str = "
    update ringmesh.node set fenced_at = clock_timestamp(), fenced_as = 'expired', fenced_by = 9
    where incarnation = $1 and fenced_at is null";

const BY: Incarnation = Incarnation(1 << 40);
const ROUNDS: i64 = 4;

/// A node of the version before, and of its statements those about others.
struct Old<'a> {
    db: &'a Database,
    me: Me,
}

impl<'a> Old<'a> {
    async fn register(db: &'a Database, name: &'static str) -> Self {
        let incarnation = sqlx::query_scalar(OLD_REGISTER)
            .bind(name)
            .fetch_one(&db.store.pool)
            .await
            .unwrap();
        let me = Me {
            incarnation: Incarnation(incarnation),
            boot: 7,
        };
        Old { db, me }
    }

    async fn renew(&self) -> Option<i64> {
        sqlx::query_scalar(OLD_RENEW)
            .bind(self.me.incarnation.0)
            .fetch_optional(&self.db.store.pool)
            .await
            .unwrap()
    }

    /// The counter of a node as it reads it.
    async fn sees(&self, node: Me) -> Option<i64> {
        let nodes: Vec<(i64, i64, i64)> = sqlx::query_as(OLD_UNFENCED_NODES)
            .fetch_all(&self.db.store.pool)
            .await
            .unwrap();
        let mut of = nodes.into_iter().filter(|(it, ..)| *it == node.incarnation.0);
        of.next().map(|(_, renewals, _)| renewals)
    }

    async fn cut_short(&self, node: Me, seen: i64) -> u64 {
        sqlx::query(OLD_CUT_SHORT)
            .bind(node.incarnation.0)
            .bind(seen)
            .execute(&self.db.store.pool)
            .await
            .unwrap()
            .rows_affected()
    }

    async fn fence(&self, node: Me, seen: i64) -> Fencing {
        let mut session = self.db.store.pool.begin().await.unwrap();
        let locked = sqlx::query(OLD_LOCK_NODE)
            .bind(node.incarnation.0)
            .bind(seen)
            .fetch_optional(&mut session)
            .await
            .unwrap();
        if locked.is_none() {
            session.rollback().await.unwrap();
            return Fencing::Nothing;
        }
        sqlx::query(OLD_SET_FENCED)
            .bind(node.incarnation.0)
            .execute(&mut session)
            .await
            .unwrap();
        session.commit().await.unwrap();
        Fencing::Fenced
    }
}

async fn sees(store: &Store, node: Me) -> Option<i64> {
    let nodes = store.unfenced_nodes(&Ask::All).await.unwrap();
    let mut of = nodes.into_iter().filter(|it| it.incarnation == node.incarnation);
    of.next().map(|it| it.renewals)
}

async fn fence(store: &Store, node: Me, seen: i64) -> Fencing {
    store
        .fence(node.incarnation, Some(seen), FenceKind::Expired, BY)
        .await
        .unwrap()
}

async fn shown(db: &Database, node: Me) -> i64 {
    let sql = "select renewals from ringmesh.node where incarnation =";
    number(db, &format!("{sql} {}", node.incarnation.0)).await
}

/// How often its row was written, by what wrote it last.
async fn writer_of(db: &Database, node: Me) -> i64 {
    let sql = "select xmin::text::bigint from ringmesh.node where incarnation =";
    number(db, &format!("{sql} {}", node.incarnation.0)).await
}

#[tokio::test]
async fn each_version_sees_the_renewals_of_the_other_and_fences_none_that_it_does_not_see() {
    // An old one joins a mesh of new ones, and a new one joins a mesh of old ones.
    for new_first in [true, false] {
        let db = Database::new().await;
        let long = Duration::from_secs(600);
        let (new, old);
        if new_first {
            new = db.node("new", long).await;
            for _ in 0..ROUNDS {
                renew(&db.store, new).await.unwrap();
            }
            assert_eq!(shown(&db, new).await, 0, "nobody looks there");
            old = Old::register(&db, "old").await;
        } else {
            old = Old::register(&db, "old").await;
            for _ in 0..ROUNDS {
                old.renew().await.unwrap();
            }
            new = db.node("new", long).await;
        }
        let slot = slot_of("k");
        let epoch = db.take(new, &[slot]).await[0].1;
        db.submit("noop", "k", "1").await;
        for round in 0..ROUNDS {
            let (seen_of_new, seen_of_old) = (
                old.sees(new).await.unwrap(),
                sees(&db.store, old.me).await.unwrap(),
            );
            // Each bars the other, which renews once more.
            assert_eq!(old.cut_short(new, seen_of_new).await, 1);
            assert!(claim(&db, new, slot, epoch).await.is_empty(), "it is barred");
            assert!(matches!(
                renew(&db.store, new).await.unwrap(),
                Renewal::Renewed { .. }
            ));
            assert_eq!(
                claim(&db, new, slot, epoch).await.len(),
                usize::from(round == 0),
                "it is barred no more"
            );
            old.renew().await.unwrap();
            assert_eq!(old.fence(new, seen_of_new).await, Fencing::Nothing);
            assert_eq!(fence(&db.store, old.me, seen_of_old).await, Fencing::Nothing);
            let barred = "select count(*) from ringmesh.node where lease_until <= clock_timestamp()";
            assert_eq!(number(&db, barred).await, 0);
            assert!(old.sees(new).await.unwrap() > seen_of_new, "{new_first} {round}");
            assert_eq!(sees(&db.store, old.me).await, Some(seen_of_old + 1));
            assert_eq!(sees(&db.store, new).await, old.sees(new).await);
        }
        // The one that stands still is fenced, by the other.
        if new_first {
            assert_eq!(fence(&db.store, old.me, ROUNDS).await, Fencing::Fenced);
            assert_eq!(old.renew().await, None);
            let (before, counter) = (writer_of(&db, new).await, sees(&db.store, new).await);
            for _ in 0..ROUNDS {
                renew(&db.store, new).await.unwrap();
            }
            assert_eq!(writer_of(&db, new).await, before, "nobody looks there any more");
            assert_eq!(
                sees(&db.store, new).await,
                counter.map(|counter| counter + ROUNDS)
            );
        } else {
            let seen = old.sees(new).await.unwrap();
            assert_eq!(old.cut_short(new, seen).await, 1);
            assert_eq!(old.fence(new, seen).await, Fencing::Fenced);
            assert_eq!(renew(&db.store, new).await.unwrap(), Renewal::Fenced);
        }
    }
}

#[tokio::test]
async fn a_renewal_wins_against_a_waiting_fencer_of_the_other_version() {
    let db = Database::new().await;
    let new = db.node("new", Duration::from_secs(600)).await;
    let old = Old::register(&db, "old").await;
    renew(&db.store, new).await.unwrap();
    let mut open = Session::new(&db).await;
    for _ in 0..ROUNDS {
        let seen = old.sees(new).await.unwrap();
        open.run(&format!("begin; {}", renewal(new))).await.unwrap();
        let let_go = async {
            until(&db, SOMEBODY_WAITS).await;
            open.run("commit").await.unwrap();
        };
        let (fencing, ()) = tokio::join!(old.fence(new, seen), let_go);
        assert_eq!(fencing, Fencing::Nothing);

        let seen = sees(&db.store, old.me).await.unwrap();
        let renewal = filled(OLD_RENEW, &[&old.me.incarnation.0.to_string()]);
        open.run(&format!("begin; {renewal}")).await.unwrap();
        let let_go = async {
            until(&db, SOMEBODY_WAITS).await;
            open.run("commit").await.unwrap();
        };
        let (fencing, ()) = tokio::join!(fence(&db.store, old.me, seen), let_go);
        assert_eq!(fencing, Fencing::Nothing);
    }
    assert_eq!(sees(&db.store, old.me).await, Some(ROUNDS));
    assert_eq!(old.sees(new).await, Some(ROUNDS + 1));
}

#[tokio::test]
async fn an_old_binary_takes_over_the_name_of_a_dead_new_one_and_the_other_way_round() {
    let db = Database::new().await;
    let new = db.node("a", Duration::from_secs(600)).await;
    renew(&db.store, new).await.unwrap();
    let watcher = Old { db: &db, me: new };
    // It looks before it registers: nothing shows it the counter, and it needs none of a node that is dead.
    let seen = watcher.sees(new).await.unwrap();
    assert_eq!(watcher.fence(new, seen).await, Fencing::Fenced);
    let old = Old::register(&db, "a").await;
    old.renew().await.unwrap();
    let (found, boot, _, renewals) = db.store.unfenced_by_name("a").await.unwrap().unwrap();
    assert_eq!((found, boot, renewals), (old.me.incarnation, 7, 1));
    assert_eq!(fence(&db.store, old.me, 1).await, Fencing::Fenced);
    let next = db.node("a", Duration::from_secs(600)).await;
    let (found, _, _, renewals) = db.store.unfenced_by_name("a").await.unwrap().unwrap();
    assert_eq!((found, renewals), (next.incarnation, 0));
    // What the dead leave is nobody's.
    db.store.keep_days(Duration::from_secs(3600)).await.unwrap();
    let leases = "select incarnation from ringmesh.lease";
    assert_eq!(number(&db, leases).await, next.incarnation.0);
    run(&db, "delete from ringmesh.node").await;
    db.store.keep_days(Duration::from_secs(3600)).await.unwrap();
    assert_eq!(number(&db, "select count(*) from ringmesh.lease").await, 0);
}
