//! What the proxy in front of Postgres does to a client, and what of the client's work is there afterwards.

use std::net::SocketAddr;
use std::time::Duration;

use ringmesh::dev::{Postgres, postgres};
use ringmesh::sqlx::postgres::PgConnection;
use ringmesh::sqlx::{Connection as _, query, query_scalar, raw_sql};
use ringmesh_faults::lab::{Hold, Proxy};
use tokio::time::timeout;

/// Nothing here takes as long.
const LONG: Duration = Duration::from_secs(60);
/// What does not come within it is held.
const SHORT: Duration = Duration::from_millis(500);

struct Bench {
    proxy: Proxy,
    /// A session that does not pass the proxy.
    direct: PgConnection,
    url: String,
    _postgres: Postgres,
}

impl Bench {
    async fn start() -> Bench {
        let postgres = Postgres::start(postgres::Options::for_tests()).await.unwrap();
        let target = SocketAddr::from(([127, 0, 0, 1], postgres.port()));
        let proxy = Proxy::start(([127, 0, 0, 1], 0).into(), target, 1).await.unwrap();
        let mut direct = PgConnection::connect(&postgres.url()).await.unwrap();
        raw_sql("create table t (a int)")
            .execute(&mut direct)
            .await
            .unwrap();
        Bench {
            url: postgres
                .url()
                .replace(&target.to_string(), &proxy.address().to_string()),
            _postgres: postgres,
            direct,
            proxy,
        }
    }

    async fn connect(&self) -> PgConnection {
        let connected = timeout(LONG, PgConnection::connect(&self.url)).await;
        connected.expect("is accepted").unwrap()
    }

    async fn rows(&mut self) -> i64 {
        let count = query_scalar("select count(*) from t").fetch_one(&mut self.direct);
        count.await.unwrap()
    }
}

async fn insert(session: &mut PgConnection) -> Result<(), ringmesh::sqlx::Error> {
    let done = query("insert into t values ($1)").bind(1).execute(session);
    timeout(LONG, done)
        .await
        .expect("is answered or broken")
        .map(drop)
}

#[tokio::test]
async fn single_statement_is_committed_and_its_reply_lost() {
    let mut bench = Bench::start().await;
    let mut session = bench.connect().await;
    insert(&mut session).await.unwrap();
    bench.proxy.set(|rules| rules.lose_commits = 1.0);
    // What commits nothing passes.
    let one: i32 = query_scalar("select 1").fetch_one(&mut session).await.unwrap();
    assert_eq!(one, 1);
    insert(&mut session).await.unwrap_err();
    assert_eq!(bench.rows().await, 2);
    assert_eq!(bench.proxy.counts().lost_commits, 1);
}

#[tokio::test]
async fn transaction_is_committed_and_only_the_reply_to_its_commit_lost() {
    let mut bench = Bench::start().await;
    let mut session = bench.connect().await;
    bench.proxy.set(|rules| rules.lose_commits = 1.0);
    let mut transaction = session.begin().await.unwrap();
    insert(&mut transaction).await.unwrap();
    insert(&mut transaction).await.unwrap();
    transaction.commit().await.unwrap_err();
    assert_eq!(bench.rows().await, 2);
    assert_eq!(bench.proxy.counts().lost_commits, 1);
}

#[tokio::test]
async fn request_is_cut_before_it_is_done_or_after() {
    let mut bench = Bench::start().await;
    let mut session = bench.connect().await;
    insert(&mut session).await.unwrap();
    bench.proxy.set(|rules| rules.cut_before = 1.0);
    insert(&mut session).await.unwrap_err();
    assert_eq!(bench.rows().await, 1);
    bench.proxy.heal();
    let mut session = bench.connect().await;
    insert(&mut session).await.unwrap();
    bench.proxy.set(|rules| rules.cut_after = 1.0);
    insert(&mut session).await.unwrap_err();
    let counts = bench.proxy.counts();
    assert_eq!((counts.cut_before, counts.cut_after), (1, 1));
    // The statement was prepared before: the one request that was cut was the insert.
    assert_eq!((bench.rows().await, counts.lost_commits), (3, 1));
}

#[tokio::test]
async fn what_was_held_arrives_late() {
    let mut bench = Bench::start().await;
    let mut session = bench.connect().await;
    insert(&mut session).await.unwrap();
    for (hold, rows) in [(Hold::Requests, 1), (Hold::Replies, 3)] {
        bench.proxy.set(|rules| rules.hold = hold);
        let mut insert = Box::pin(insert(&mut session));
        assert!(timeout(SHORT, &mut insert).await.is_err());
        timeout(LONG, async {
            while bench.rows().await != rows {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        })
        .await
        .unwrap_or_else(|_| panic!("{hold:?}: never {rows} rows"));
        bench.proxy.heal();
        insert.await.unwrap();
    }
    assert_eq!(bench.proxy.counts().late, 1);
}

#[tokio::test]
async fn established_connections_can_stand_still_while_new_ones_pass() {
    let bench = Bench::start().await;
    let mut old = bench.connect().await;
    insert(&mut old).await.unwrap();
    bench.proxy.black_hole_established();
    let mut new = bench.connect().await;
    insert(&mut new).await.unwrap();
    assert!(timeout(SHORT, insert(&mut old)).await.is_err());
    bench.proxy.reset();
    insert(&mut new).await.unwrap_err();
}
