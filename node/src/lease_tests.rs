//! The lease thread against a real Postgres.

use super::*;
use crate::store::testing::PATIENCE;
use crate::store::testing_owner::Database;
use sqlx::{Connection, PgConnection};

const TTL: Duration = Duration::from_secs(600);

struct Lease {
    trust: Arc<Trust>,
    terms: Terms,
    events: mpsc::UnboundedReceiver<Event>,
    _stop: tokio_util::sync::DropGuard,
}

impl Lease {
    fn start(db: &Database, me: Me, renew_every: Duration) -> Self {
        let trust = Arc::new(Trust::new());
        let terms = Terms {
            ttl: TTL,
            renew_every,
            margin: Duration::from_secs(1),
        };
        let (sender, events) = mpsc::unbounded_channel();
        let stop = CancellationToken::new();
        spawn(Parts {
            store: db.another(),
            me,
            terms,
            trust: trust.clone(),
            heartbeat: Arc::default(),
            events: sender,
            stop: stop.clone(),
        })
        .unwrap();
        Lease {
            trust,
            terms,
            events,
            _stop: stop.drop_guard(),
        }
    }

    async fn event(&mut self) -> Event {
        tokio::time::timeout(PATIENCE, self.events.recv())
            .await
            .unwrap()
            .unwrap()
    }
}

#[tokio::test]
async fn trust_counts_from_the_sending_of_a_renewal() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let mut gate = PgConnection::connect(&db.url).await.unwrap();
    sqlx::raw_sql("begin; select from ringmesh.node for update")
        .execute(&mut gate)
        .await
        .unwrap();
    let mut lease = Lease::start(&db, me, TTL / 4);
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while db
        .count("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
        .await
        == 0
    {
        assert!(tokio::time::Instant::now() < deadline, "no renewal waits");
    }
    // It has been sent by now, and no answer to it has.
    let sent_before = clock::now();
    sqlx::raw_sql("commit").execute(&mut gate).await.unwrap();
    let event = lease.event().await;
    assert!(matches!(event, Event::Peers(_)), "{event:?}");
    assert!(lease.trust.holds());
    assert!(lease.trust.until() <= trusted_until(sent_before, &lease.terms));
}

#[tokio::test]
async fn a_lease_that_is_over_by_the_servers_clock_is_not_expired_by_that_alone() {
    let db = Database::new().await;
    let me = db.node("a", TTL).await;
    let peer = db.node("b", Duration::ZERO).await;
    let mut lease = Lease::start(&db, me, Duration::from_millis(60));
    for _ in 0..5 {
        match lease.event().await {
            Event::Peers(peers) => {
                let seen = peers.iter().find(|seen| seen.incarnation == peer.incarnation);
                assert!(seen.unwrap().lease_ms <= 0);
            }
            event => panic!("{event:?}"),
        }
    }
}
