use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use ringmesh_ring::{Key, Slot};
use sqlx::postgres::PgConnectOptions;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep, timeout};

use super::*;
use crate::store::pooler::Network;
use crate::store::testing::PATIENCE;
use crate::store::testing_owner::Database;
use crate::store::{Options, Probe, Store, Ticket};

/// A way to Postgres whose connections can all fall silent: what is sent on them vanishes, and they stay open.
struct Way {
    port: u16,
    silent: std::sync::Mutex<Arc<AtomicBool>>,
}

impl Way {
    async fn to(port: u16) -> Arc<Way> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let way = Arc::new(Way {
            port: listener.local_addr().unwrap().port(),
            silent: std::sync::Mutex::default(),
        });
        let this = way.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let silent = this.silent.lock().unwrap().clone();
                tokio::spawn(async move {
                    let far = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                    let ((near_in, near_out), (far_in, far_out)) = (near.into_split(), far.into_split());
                    tokio::join!(pass(near_in, far_out, &silent), pass(far_in, near_out, &silent));
                });
            }
        });
        way
    }

    /// Those that there are fall silent for ever; new ones speak.
    fn fall_silent(&self) {
        let old = std::mem::take(&mut *self.silent.lock().unwrap());
        old.store(true, Ordering::Release);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    silent: &AtomicBool,
) {
    let mut bytes = [0; 4096];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if silent.load(Ordering::Acquire) {
            // Nothing is told to either side.
            std::future::pending::<()>().await;
        }
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}

fn terms(options: PgConnectOptions, silence: &Arc<Silence>) -> Terms {
    Terms::new(
        &options,
        Vec::new(),
        &Network::new(crate::store::pooler::Way::Direct, silence),
    )
}

async fn ask(pool: &Pool) -> Result<i32, sqlx::Error> {
    sqlx::query_scalar("select 1").fetch_one(pool).await
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !holds().await {
        assert!(Instant::now() < deadline, "{what}");
        sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn connections_that_fell_silent_keep_no_place_in_their_pool() {
    const SIZE: u32 = 3;
    const LIMIT: Duration = Duration::from_millis(500);
    let db = Database::new().await;
    let direct: PgConnectOptions = db.url.parse().unwrap();
    let way = Way::to(direct.get_port()).await;
    let pool = Pool::new(SIZE, terms(direct.port(way.port), &Arc::default()), LIMIT);
    for _ in 0..3 {
        let mut used = Vec::new();
        until("all are had at once", async || {
            used.extend(pool.acquire().await);
            used.len() == SIZE as usize
        })
        .await;
        let mut returned = used.pop().unwrap();
        // This one is answered, however slow the machine.
        returned.limit = PATIENCE;
        assert!(ask(&pool).await.is_err(), "the pool is full");
        sqlx::query("select 1").execute(&mut returned).await.unwrap();
        way.fall_silent();
        // One on its way back, one in the middle of a question, one in an open transaction.
        drop(returned);
        let mut asked = used.pop().unwrap();
        let answer = sqlx::query("select 1").execute(&mut asked).await;
        assert!(matches!(answer, Err(sqlx::Error::Io(_))), "{answer:?}");
        let again = sqlx::query("select 1").execute(&mut asked).await;
        assert!(
            matches!(again, Err(sqlx::Error::Io(_))),
            "a session without an answer is asked again"
        );
        drop(asked);
        let mut open = used.pop().unwrap();
        assert!(open.begin_with("").await.is_err());
        drop(open);
        until("the pool is whole again", async || {
            let sessions = [pool.acquire(), pool.acquire(), pool.acquire()];
            futures::future::try_join_all(sessions).await.is_ok()
        })
        .await;
        until("nothing is in use", async || pool.connections().0 == 0).await;
    }
}

#[tokio::test]
async fn what_lay_idle_in_a_silence_is_not_asked() {
    let db = Database::new().await;
    let direct: PgConnectOptions = db.url.parse().unwrap();
    let way = Way::to(direct.get_port()).await;
    let silence = Arc::new(Silence::default());
    // The test would not end if it waited for answers.
    let (size, limit) = (2, Duration::from_secs(3600));
    let terms = Arc::new(terms(direct.port(way.port), &silence));
    let pool = Pool::acquired_within(PATIENCE, size, terms, limit);
    let both = futures::future::try_join_all([pool.acquire(), pool.acquire()])
        .await
        .unwrap();
    drop(both);
    until("both are idle", async || pool.connections() == (0, 2)).await;
    way.fall_silent();
    silence.noticed();
    assert_eq!(ask(&pool).await.unwrap(), 1);
    assert_eq!(ask(&pool).await.unwrap(), 1);
}

#[tokio::test]
async fn a_session_whose_server_takes_no_writes_is_not_kept() {
    let db = Database::new().await;
    let mut operator: PgConnection = PgConnection::connect(&db.url).await.unwrap();
    let name: String = sqlx::query_scalar("select quote_ident(current_database())")
        .fetch_one(&mut operator)
        .await
        .unwrap();
    let pool = Pool::new(
        1,
        terms(db.url.parse().unwrap(), &Arc::default()),
        Duration::from_secs(10),
    );
    let write = || sqlx::query("update ringmesh.mesh set only_row = true").execute(&pool);
    // As if a standby stood behind the address for a while: who connects then cannot write, whatever stands there later.
    let standby = sqlx::AssertSqlSafe(format!(
        "alter database {name} set default_transaction_read_only = on"
    ));
    sqlx::raw_sql(standby).execute(&mut operator).await.unwrap();
    let refused = write().await.unwrap_err();
    assert_eq!(
        refused.as_database_error().unwrap().code().as_deref(),
        Some(READ_ONLY)
    );
    assert!(matches!(
        crate::store::Error::from(refused),
        crate::store::Error::Unavailable(_)
    ));
    let primary = sqlx::AssertSqlSafe(format!(
        "alter database {name} reset default_transaction_read_only"
    ));
    sqlx::raw_sql(primary).execute(&mut operator).await.unwrap();
    write().await.unwrap();
}

#[tokio::test]
async fn what_is_dropped_half_way_leaves_no_open_transaction() {
    let db = Database::new().await;
    let slot = Slot::of(&Key::new("k").unwrap());
    let (me, granted) = db.owner("n1", &[slot]).await;
    let epoch = granted[0].1;
    let store = Store::new(&Options {
        url: db.url.clone(),
        lease_url: None,
        pooler: crate::store::Pooler::Auto,
        connections: 3,
        hot_connections: 2,
        ttl: Duration::from_secs(3600),
        application: "dropped".into(),
    })
    .unwrap();
    let probe = Probe {
        slot,
        epoch,
        start: 0,
        room: 1,
    };
    let mut dropped = 0;
    for round in 0..600_u64 {
        let work = async {
            match round % 6 {
                0 => store.claim(me, Ticket(1), &[probe]).await.map(drop),
                1 => store.settle(me, Ticket(1), &[(slot, epoch, 0)]).await.map(drop),
                2 => store.read_slots().await.map(drop),
                3 => store
                    .fence(
                        me.incarnation,
                        Some(-1),
                        crate::store::FenceKind::Expired,
                        me.incarnation,
                    )
                    .await
                    .map(drop),
                4 => store.open_tasks().await.map(drop),
                _ => {
                    let mut session = store.pool.begin().await?;
                    sqlx::query("select pg_sleep(0.001)")
                        .execute(&mut session)
                        .await?;
                    Ok(session.commit().await?)
                }
            }
        };
        // From before the first byte to after the last.
        dropped += u32::from(
            timeout(Duration::from_micros(round * 37 % 6000), work)
                .await
                .is_err(),
        );
    }
    assert!(
        dropped > 100,
        "only {dropped} of 600 were dropped: nothing was proven"
    );
    until("no session is in a transaction", async || {
        let open = "select count(*) from pg_stat_activity where application_name = 'dropped' and xact_start is not null";
        sqlx::query_scalar::<_, i64>(open).fetch_one(&db.store.pool).await.unwrap() == 0
    })
    .await;
    until("nothing is in use", async || {
        [&store.pool, &store.hot, &store.control]
            .iter()
            .all(|pool| pool.connections().0 == 0)
    })
    .await;
    store.claim(me, Ticket(1), &[probe]).await.unwrap();
}
