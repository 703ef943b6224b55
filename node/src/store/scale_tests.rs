//! What a look costs when there is much that it does not look for: counted in rows and blocks that Postgres read, not in time.

use std::time::Duration;

use ringmesh_ring::{Epoch, Slot};
use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::renewal_races_tests::{filled, renewal};
use super::testing::PATIENCE;
use super::testing_owner::Database;
use super::*;

const SLOTS: u16 = 64;
/// By hand, `SCALE_TEST_ROWS` says more.
const ROWS: i64 = 100_000;

fn rows() -> i64 {
    let rows = std::env::var("SCALE_TEST_ROWS").ok();
    rows.map_or(ROWS, |rows| rows.parse().expect("SCALE_TEST_ROWS is a number"))
}

struct World {
    db: Database,
    session: PgConnection,
    me: Me,
    granted: Vec<(Slot, Epoch)>,
}

impl World {
    async fn new() -> World {
        let db = Database::new().await;
        let session = PgConnection::connect(&db.url).await.unwrap();
        let slots: Vec<Slot> = (0..SLOTS).map(|slot| Slot::new(slot).unwrap()).collect();
        let (me, granted) = db.owner("a", &slots).await;
        World {
            db,
            session,
            me,
            granted,
        }
    }

    async fn run(&mut self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.session)
            .await
            .unwrap();
    }

    fn probes(&self, room: i32) -> Vec<Probe> {
        self.granted
            .iter()
            .map(|(slot, epoch)| Probe {
                slot: *slot,
                epoch: *epoch,
                start: 0,
                room,
            })
            .collect()
    }

    /// The rows of `ringmesh.task` that sessions read, those that have ended.
    async fn read(&mut self) -> i64 {
        let sql = "select seq_tup_read + coalesce(idx_tup_fetch, 0)
                     + (select sum(idx_tup_read) from pg_stat_user_indexes where relid = 'ringmesh.task'::regclass)::bigint
                   from pg_stat_user_tables where relid = 'ringmesh.task'::regclass";
        sqlx::query_scalar(sql)
            .fetch_one(&mut self.session)
            .await
            .unwrap()
    }

    /// How many rows the sessions of that work read. They end with it: then their counts are complete.
    async fn reads<F: Future<Output = ()>>(&mut self, work: impl FnOnce(Store) -> F) -> i64 {
        let before = self.read().await;
        work(self.db.another()).await;
        let open = "select count(*) from pg_stat_activity where application_name = 'ringmesh test node' and datname = current_database()";
        let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
        while sqlx::query_scalar::<_, i64>(open)
            .fetch_one(&mut self.session)
            .await
            .unwrap()
            > 0
        {
            assert!(tokio::time::Instant::now() < deadline, "its sessions do not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.read().await - before
    }
}

#[tokio::test]
async fn tasks_that_are_due_in_future_cost_claims_and_promotions_nothing() {
    let mut world = World::new().await;
    // A session whose plans were made while the table was empty keeps them.
    let early = world.db.another();
    let (me, granted, probes) = (world.me, world.granted.clone(), world.probes(8));
    early.claim(me, Ticket(1), &probes).await.unwrap();
    early.promote(me, Ticket(1), &granted, 8).await.unwrap();
    let rows = rows();
    world
        .run(&format!(
            "insert into ringmesh.task (slot, id, key, kind, payload, wait, run_at)
             select n % {SLOTS}, n, 'k' || n, 'noop', '1', 'scheduled', now() + interval '1 day' + n * interval '1 second'
             from generate_series(1, {rows}) n;
             insert into ringmesh.task (slot, id, key, kind, payload)
             select n, {rows} + n, 'due' || n, 'noop', '1' from generate_series(1, 20) n;
             insert into ringmesh.task (slot, id, key, kind, payload, wait, run_at)
             select n, {rows} + 100 + n, 'past' || n, 'noop', '1', 'scheduled', '2020-01-01Z' from generate_series(1, 20) n;
             analyze ringmesh.task"
        ))
        .await;
    let slots: Vec<Slot> = granted.iter().map(|(slot, _)| *slot).collect();
    let read = world
        .reads(|store| async move {
            for store in [early, store] {
                store.news(&probes).await.unwrap();
                store.next_due(&slots).await.unwrap();
                store.promote(me, Ticket(1), &granted, 8).await.unwrap();
                store.claim_urgent(me, Ticket(1), &probes).await.unwrap();
                store.claim(me, Ticket(1), &probes).await.unwrap();
            }
        })
        .await;
    println!("with {rows} tasks ahead, two rounds read {read} rows");
    assert_eq!(
        world
            .db
            .count("select count(*) from ringmesh.task where attempt = 1")
            .await,
        40
    );
    // One look per slot and statement, and what they found, some of it more than once.
    assert!(read < 2_000, "{read} rows were read");
}

#[tokio::test]
async fn what_a_dead_node_had_claimed_is_taken_in_chunks_whose_cost_does_not_depend_on_all_of_it() {
    let mut world = World::new().await;
    let rows = rows();
    world
        .run(&format!(
            "insert into ringmesh.task (slot, id, key, kind, payload, epoch, attempt, started_at)
             select n % {SLOTS}, n, 'k' || n % 5000, 'noop', '1', 0, 1, now() from generate_series(1, {rows}) n;
             analyze ringmesh.task"
        ))
        .await;
    let (me, probes) = (world.me, world.probes(8));
    let read = world
        .reads(|store| async move {
            for round in 1..=3 {
                store.news(&probes).await.unwrap();
                let answer = store.claim(me, Ticket(1), &probes).await.unwrap();
                assert_eq!(answer.tasks.len(), 8 * usize::from(SLOTS), "round {round}");
                assert!(answer.tasks.iter().all(|task| task.lost && task.trial == -1));
            }
        })
        .await;
    println!("of {rows} lost tasks, three claims of 512 read {read} rows");
    assert!(read < 20_000, "{read} rows were read");
}

/// Times of a claim, half of them and 99 of 100 of them not above.
async fn claim_times(world: &mut World, store: &Store, backlog: bool) -> (Duration, Duration) {
    const CLAIMS: usize = 2_000;
    const EACH: i32 = 8;
    let me = world.me;
    let mut times = Vec::with_capacity(CLAIMS);
    for round in 0..CLAIMS {
        let probe = world.probes(EACH).swap_remove(round % usize::from(SLOTS));
        let slot = probe.slot.get();
        if !backlog {
            let insert = format!(
                "insert into ringmesh.task (slot, key, kind, payload)
                 select {slot}, 'k' || n, 'noop', '1' from generate_series(1, {EACH}) n"
            );
            world.run(&insert).await;
        }
        let began = std::time::Instant::now();
        let answer = store.claim(me, Ticket(1), &[probe]).await.unwrap();
        times.push(began.elapsed());
        assert_eq!(answer.tasks.len(), EACH as usize);
        let delete = format!("delete from ringmesh.task where slot = {slot} and attempt = 1");
        world.run(&delete).await;
    }
    times.sort_unstable();
    (times[CLAIMS / 2], times[CLAIMS * 99 / 100])
}

#[tokio::test]
#[ignore = "inserts SCALE_TEST_ROWS tasks, half of them for later, and prints how long claims take"]
async fn claims_beside_a_backlog_and_without_are_timed() {
    let mut world = World::new().await;
    let store = world.db.another();
    let (p50, p99) = claim_times(&mut world, &store, false).await;
    println!("on an empty table a claim of 8 takes p50 {p50:?}, p99 {p99:?}");
    let rows = rows();
    world
        .run(&format!(
            "insert into ringmesh.task (slot, key, kind, payload, wait, run_at)
             select n % {SLOTS}, 'k' || n, 'noop', '1', case when n / {SLOTS} % 2 = 0 then 'scheduled' end,
                    case when n / {SLOTS} % 2 = 0 then now() + interval '1 day' + n * interval '1 second' end
             from generate_series(1, {rows}) n;
             analyze ringmesh.task"
        ))
        .await;
    let (p50, p99) = claim_times(&mut world, &store, true).await;
    println!("beside {rows} tasks, half of them for later, p50 {p50:?}, p99 {p99:?}");
    let scans = world
        .db
        .count("select seq_scan from pg_stat_user_tables where relid = 'ringmesh.task'::regclass")
        .await;
    println!("{scans} scans of the whole table by all sessions, those of this test included");
}

/// Statements prepared when the tables were small, under the plans that were made for them then.
struct Early<'a> {
    session: &'a mut PgConnection,
}

impl<'a> Early<'a> {
    async fn new(session: &'a mut PgConnection, statements: &[(&str, String)]) -> Self {
        let mut early = Early { session };
        early.run("set local plan_cache_mode = force_generic_plan").await;
        for (name, sql) in statements {
            early.run(&format!("prepare {name} as {sql}")).await;
            early.run(&format!("explain execute {name}")).await;
        }
        early
    }

    async fn run(&mut self, sql: &str) {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut *self.session)
            .await
            .unwrap();
    }

    /// How many blocks one execution looks at; what it writes is taken back.
    async fn blocks(&mut self, name: &str) -> i64 {
        let explain = format!("explain (analyze, buffers, timing off, format json) execute {name}");
        self.run("savepoint before").await;
        let row = sqlx::raw_sql(AssertSqlSafe(explain))
            .fetch_one(&mut *self.session)
            .await
            .unwrap();
        let plan: &str = sqlx::Row::try_get_unchecked(&row, 0).unwrap();
        let plan: serde_json::Value = serde_json::from_str(plan).unwrap();
        self.run("rollback to savepoint before").await;
        let of = |what: &str| plan[0]["Plan"][what].as_i64().unwrap();
        of("Shared Hit Blocks") + of("Shared Read Blocks")
    }
}

#[tokio::test]
async fn renewals_under_an_old_snapshot_cost_renewals_watches_and_fences_nothing() {
    const RENEWALS: i64 = 2_000;
    let mut world = World::new().await;
    let mut nodes = vec![world.me];
    for name in ["b", "c"] {
        nodes.push(world.db.node(name, Duration::from_secs(600)).await);
    }
    // Known to have one page each, they seem cheapest to scan.
    world.run("analyze ringmesh.node; analyze ringmesh.lease").await;
    let mut old = PgConnection::connect(&world.db.url).await.unwrap();
    sqlx::raw_sql("begin isolation level repeatable read; select from ringmesh.node, ringmesh.lease")
        .execute(&mut old)
        .await
        .unwrap();
    let me = nodes[0];
    let (incarnation, boot) = (me.incarnation.0, me.boot);
    let name = "'a'";
    let statements = [
        ("renew", renewal(me)),
        ("unfenced_nodes", include_str!("sql/unfenced_nodes.sql").to_owned()),
        ("unfenced_by_name", filled(include_str!("sql/unfenced_by_name.sql"), &[name])),
        (
            "cut_short",
            filled(include_str!("sql/cut_short.sql"), &[&incarnation.to_string(), "-1"]),
        ),
        // As every write of an owner begins.
        (
            "fence",
            format!(
                "select from ringmesh.node
                 where incarnation = {incarnation} and boot = {boot} and fenced_at is null and lease_until > clock_timestamp()
                 for key share"
            ),
        ),
    ];
    let mut session = world.db.store.session(PATIENCE, &[]).await.unwrap();
    session.begin_with("").await.unwrap();
    let mut early = Early::new(session.connection(), &statements).await;
    for node in &nodes {
        // Each renewal is a transaction.
        world
            .run(&format!(
                "do $do$ begin
                     for i in 1..{RENEWALS} loop execute $sql$ {} $sql$; commit; end loop;
                 end $do$",
                renewal(*node)
            ))
            .await;
    }
    let lived = world.db.store.unfenced_nodes(&Ask::All).await.unwrap();
    assert!(lived.iter().all(|node| node.renewals == RENEWALS), "{lived:?}");
    let mut looked = Vec::new();
    for (name, _) in &statements {
        // What was read once is known: hints on rows, dead entries of the index.
        early.blocks(name).await;
        looked.push((*name, early.blocks(name).await));
    }
    println!("after {RENEWALS} renewals of {} nodes: {looked:?}", nodes.len());
    let most = [60, 40, 15, 20, 5];
    for ((name, blocks), most) in looked.iter().zip(most) {
        assert!(*blocks <= most, "{name} looked at {blocks} blocks");
    }
    sqlx::raw_sql("commit").execute(&mut old).await.unwrap();
}

#[tokio::test]
async fn lives_under_an_old_snapshot_cost_looks_nothing() {
    const LIVES: i64 = 3_000;
    let mut world = World::new().await;
    let mut nodes = vec![world.me];
    for name in ["b", "c"] {
        nodes.push(world.db.node(name, Duration::from_secs(600)).await);
    }
    let mut old = PgConnection::connect(&world.db.url).await.unwrap();
    sqlx::raw_sql("begin isolation level repeatable read; select from ringmesh.node, ringmesh.lease")
        .execute(&mut old)
        .await
        .unwrap();
    // As node b begins one life after the other.
    let known: Vec<String> = nodes.iter().map(|node| node.incarnation.0.to_string()).collect();
    let known = format!("'{{{}}}'", known.join(","));
    let last = nodes[2].incarnation.0 + LIVES;
    let above = (last - 64).to_string();
    let statements = [
        (
            "beside",
            filled(include_str!("sql/unfenced_beside.sql"), &[&known, &above]),
        ),
        ("whole", include_str!("sql/unfenced_nodes.sql").to_owned()),
    ];
    let mut session = world.db.store.session(PATIENCE, &[]).await.unwrap();
    session.begin_with("").await.unwrap();
    let mut early = Early::new(session.connection(), &statements).await;
    world
        .run(&format!(
            "do $do$ declare it bigint; begin
                 for i in 1..{LIVES} loop
                     insert into ringmesh.node (incarnation, boot, name, http, gossip, weight, lease_until)
                     select nextval('ringmesh.incarnation'), 7, 'x', '', '', 1, timestamptz '9999-12-31 00:00Z'
                     returning incarnation into it;
                     insert into ringmesh.lease values (it, 0, now());
                     commit;
                     update ringmesh.node set fenced_at = now(), fenced_as = 'noticed', fenced_by = 1 where incarnation = it;
                     commit;
                 end loop;
             end $do$"
        ))
        .await;
    let mut looked = Vec::new();
    for (name, _) in &statements {
        early.blocks(name).await;
        looked.push(early.blocks(name).await);
    }
    println!("after {LIVES} lives that ended, looks at three nodes met {looked:?} blocks: beside, at all");
    // Up to 64 of the last lives lie above; each has some versions.
    assert!(looked[0] <= 60, "{looked:?}");
    sqlx::raw_sql("commit").execute(&mut old).await.unwrap();
}
