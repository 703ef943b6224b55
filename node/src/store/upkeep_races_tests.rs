//! Upkeep by two at once: a former owner that does not know yet, and two statements of the owner itself (one of them was
//! given up, and still runs in the server).

use std::time::Duration;

use ringmesh_ring::{Epoch, Slot};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::testing_owner::Database;
use super::*;

const SLOTS: u16 = 16;
/// Of each sort: below one chunk of the least of the statements, times two.
const ROWS: i64 = 1_600;
const KINDS: [&str; 1] = ["late"];

/// Rows that every step of upkeep finds due: ids past their window, scheduled tasks whose time has come, tasks behind a hold that
/// is being lifted, tasks whose kind is known by now, holds whose head is gone.
async fn expired(db: &Database) {
    let sql = format!(
        "insert into ringmesh.idempotency (slot, key, kind, id_key, task, fingerprint, created_at)
         select n % {SLOTS}, 'k', 'noop', n::text, 1000000 + n, '', now() - interval '2 days' from generate_series(1, {ROWS}) n;
         insert into ringmesh.task (slot, id, key, kind, payload, wait, run_at)
         select n % {SLOTS}, n, 'due' || n, 'noop', '1', 'scheduled', '2020-01-01Z' from generate_series(1, {ROWS}) n;
         insert into ringmesh.task (slot, id, key, kind, payload, wait)
         select n % {SLOTS}, 10000 + n, 'behind' || n % 160, 'noop', '1', 'behind' from generate_series(1, {ROWS}) n;
         insert into ringmesh.held_key (slot, key, task, reason)
         select n % {SLOTS}, 'behind' || n, -4711 - n, 'lifting' from generate_series(0, 159) n;
         insert into ringmesh.task (slot, id, key, kind, payload, wait)
         select n % {SLOTS}, 20000 + n, 'kind' || n, 'late', '1', 'kind' from generate_series(1, {ROWS}) n;
         insert into ringmesh.held_key (slot, key, task, reason)
         select n % {SLOTS}, 'kind' || n, 20000 + n, 'kind' from generate_series(1, {ROWS}) n;
         insert into ringmesh.held_key (slot, key, task, reason)
         select n % {SLOTS}, 'orphan' || n, 30000 + n, 'retry' from generate_series(1, {ROWS}) n;
         analyze ringmesh.task, ringmesh.held_key, ringmesh.idempotency"
    );
    let mut session = PgConnection::connect(&db.url).await.unwrap();
    sqlx::raw_sql(AssertSqlSafe(sql))
        .execute(&mut session)
        .await
        .unwrap();
}

/// How many rows each step changed.
#[derive(Debug, Default, PartialEq, Eq)]
struct Changed {
    forgotten: u64,
    promoted: usize,
    came_back: usize,
    lifted: usize,
    known: usize,
    orphans: usize,
}

impl std::ops::AddAssign for Changed {
    fn add_assign(&mut self, other: Self) {
        self.forgotten += other.forgotten;
        self.promoted += other.promoted;
        self.came_back += other.came_back;
        self.lifted += other.lifted;
        self.known += other.known;
        self.orphans += other.orphans;
    }
}

/// Every step, again and again, until none of them finds anything.
async fn sweep(store: Store, me: Me, slots: Vec<(Slot, Epoch)>) -> Changed {
    let kinds = KINDS.map(str::to_owned);
    let mut all = Changed::default();
    let deadline = tokio::time::Instant::now() + Duration::from_secs(60);
    loop {
        let round = async {
            Ok::<_, Error>(Changed {
                forgotten: store
                    .forget_idempotency(me, &slots, Duration::from_secs(24 * 3600))
                    .await?,
                promoted: store.promote(me, Ticket(1), &slots, 20).await?.len(),
                orphans: store.lift_orphans(me, &slots).await?,
                came_back: store.lift_behind(me, &slots).await?,
                known: store.take_up_kinds(me, &slots, &kinds).await?.len(),
                lifted: 0,
            })
        };
        let mut round = round.await.unwrap();
        let before = holds(&store).await;
        let lifted = store.lift_done(me, &slots).await.unwrap().len();
        round.lifted = lifted;
        let over = round == Changed::default() && before == holds(&store).await;
        all += round;
        if over {
            return all;
        }
        assert!(tokio::time::Instant::now() < deadline, "{all:?}");
    }
}

async fn holds(store: &Store) -> usize {
    let slots: Vec<Slot> = (0..SLOTS).map(|slot| Slot::new(slot).unwrap()).collect();
    store
        .holds(&slots)
        .await
        .unwrap()
        .iter()
        .filter(|holds| holds.lifting)
        .count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_row_is_swept_once_whoever_sweeps_beside_its_owner() {
    let db = Database::new().await;
    let slots: Vec<Slot> = (0..SLOTS).map(|slot| Slot::new(slot).unwrap()).collect();
    let (old, granted_before) = db.owner("old", &slots).await;
    let new = db.node("new", Duration::from_secs(600)).await;
    let granted = db.take(new, &slots).await;
    expired(&db).await;
    let stale = tokio::spawn(sweep(db.another(), old, granted_before));
    let twice = [
        tokio::spawn(sweep(db.another(), new, granted.clone())),
        tokio::spawn(sweep(db.another(), new, granted)),
    ];
    assert_eq!(stale.await.unwrap(), Changed::default(), "it owns nothing");
    let mut both = Changed::default();
    for sweep in twice {
        both += sweep.await.unwrap();
    }
    let rows = usize::try_from(ROWS).unwrap();
    // The orphans are lifted as well, once each, beside those that were being lifted.
    let expected = Changed {
        forgotten: ROWS.unsigned_abs(),
        promoted: rows,
        came_back: rows,
        lifted: 160 + rows,
        known: rows,
        orphans: rows,
    };
    assert_eq!(both, expected);
    assert_eq!(
        db.count("select count(*) from ringmesh.task where wait is not null")
            .await,
        0
    );
    assert_eq!(
        db.count("select count(*) from ringmesh.held_key where reason <> 'kind'")
            .await,
        0
    );
    assert_eq!(db.count("select count(*) from ringmesh.task").await, 3 * ROWS);
}
