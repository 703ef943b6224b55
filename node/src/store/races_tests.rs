//! What happens to a statement that waited: its snapshot is older than the rows that it then changes.

use std::time::Duration;

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::testing::{PATIENCE, patient};
use super::testing_owner::{Database, slot_of};
use super::*;
use crate::task::Claimed;
use ringmesh_ring::{Epoch, Slot};

/// A session of its own, for what must stay open.
pub(super) struct Session {
    connection: PgConnection,
    pid: i32,
}

impl Session {
    pub(super) async fn new(db: &Database) -> Self {
        let mut connection = PgConnection::connect(&db.url).await.unwrap();
        let pid = sqlx::query_scalar("select pg_backend_pid()")
            .fetch_one(&mut connection)
            .await
            .unwrap();
        Session { connection, pid }
    }

    pub(super) fn pid(&self) -> i32 {
        self.pid
    }

    pub(super) fn connection(&mut self) -> &mut PgConnection {
        &mut self.connection
    }

    pub(super) async fn run(&mut self, sql: &str) -> Result<(), sqlx::Error> {
        sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
            .execute(&mut self.connection)
            .await
            .map(|_| ())
    }
}

pub(super) async fn run(db: &Database, sql: &str) {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(&db.store.pool)
        .await
        .unwrap();
}

pub(super) async fn number(db: &Database, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(&db.store.pool)
        .await
        .unwrap()
}

/// Polls until the answer of a statement, one boolean, is true.
pub(super) async fn until(db: &Database, sql: &str) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    loop {
        let holds: bool = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
            .fetch_one(&db.store.pool)
            .await
            .unwrap();
        if holds {
            return;
        }
        assert!(tokio::time::Instant::now() < deadline, "never: {sql}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

pub(super) const SOMEBODY_WAITS: &str = "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')";

/// Lets a statement about a slot take its snapshot and wait for the slot's row; changes something; lets it go on.
async fn overtaken<T: Send + 'static>(
    db: &Database,
    slot: Slot,
    work: impl Future<Output = Result<T, Error>> + Send + 'static,
    change: &str,
) -> T {
    let mut gate = Session::new(db).await;
    gate.run(&format!(
        "begin; select from ringmesh.slot where slot = {slot} for update",
        slot = i32::from(slot)
    ))
    .await
    .unwrap();
    let work = tokio::spawn(work);
    until(db, SOMEBODY_WAITS).await;
    run(db, change).await;
    gate.run("commit").await.unwrap();
    work.await.unwrap().unwrap()
}

pub(super) async fn claim(db: &Database, me: Me, slot: Slot, epoch: Epoch) -> Vec<Claimed> {
    let probe = Probe {
        slot,
        epoch,
        start: 0,
        room: 100,
    };
    db.store.claim(me, Ticket(1), &[probe]).await.unwrap().tasks
}

#[tokio::test]
async fn a_lifting_that_ended_and_began_again_meanwhile_is_not_ended_by_an_old_look() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let behind = db.submit("noop", "k", "1").await;
    run(
        &db,
        &format!(
            "insert into ringmesh.held_key values ({}, 'k', -1, 'lifting', null, true)",
            i32::from(slot)
        ),
    )
    .await;
    let store = db.another();
    // The next task of the key waited for its retry, with tasks behind it, and was cancelled.
    let change = format!(
        "update ringmesh.held_key set task = -2; update ringmesh.task set wait = 'behind' where id = {}",
        behind.number
    );
    let of = granted.clone();
    let lifted = overtaken(&db, slot, async move { store.lift_done(me, &of).await }, &change).await;
    assert_eq!(lifted, []);
    assert_eq!(
        number(&db, "select count(*) from ringmesh.held_key where task = -2").await,
        1
    );
    assert!(claim(&db, me, slot, granted[0].1).await.is_empty());
    assert_eq!(db.store.lift_behind(me, &granted).await.unwrap(), 1);
    assert_eq!(db.store.lift_done(me, &granted).await.unwrap(), [slot]);
    assert_eq!(claim(&db, me, slot, granted[0].1).await[0].id, behind);
}

#[tokio::test]
async fn a_hold_that_got_a_new_head_meanwhile_is_not_lifted_as_an_orphan() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let head = db.submit("noop", "k", "1").await;
    db.submit("noop", "k", "1").await;
    run(
        &db,
        &format!(
            "insert into ringmesh.held_key values ({}, 'k', 4711, 'retry')",
            i32::from(slot)
        ),
    )
    .await;
    let store = db.another();
    let change = format!("update ringmesh.held_key set task = {}", head.number);
    let of = granted.clone();
    let lifted = overtaken(
        &db,
        slot,
        async move { store.lift_orphans(me, &of).await },
        &change,
    )
    .await;
    assert_eq!(lifted, 0);
    let tasks = claim(&db, me, slot, granted[0].1).await;
    assert_eq!(
        tasks.iter().map(|task| task.id).collect::<Vec<_>>(),
        [head],
        "only the head may run"
    );
}

#[tokio::test]
async fn what_is_behind_no_hold_comes_back() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let lost = db.submit("noop", "k", "1").await;
    run(&db, "update ringmesh.task set wait = 'behind'").await;
    assert_eq!(db.store.lift_behind(me, &granted).await.unwrap(), 1);
    assert_eq!(claim(&db, me, slot, granted[0].1).await[0].id, lost);
}

#[tokio::test]
async fn moving_tasks_behind_a_hold_waits_for_no_other_writer_of_the_key() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let head = db.submit("noop", "k", "1").await;
    let next = db.submit("noop", "k", "1").await;
    run(
        &db,
        &format!(
            "insert into ringmesh.held_key values ({}, 'k', {}, 'kind')",
            i32::from(slot),
            head.number
        ),
    )
    .await;
    // As a finish, a retry or a cancel: the task first, then the hold.
    let mut writer = Session::new(&db).await;
    writer
        .run(&format!(
            "begin; select from ringmesh.task where id = {} for update",
            next.number
        ))
        .await
        .unwrap();
    let store = db.another();
    let of = granted.clone();
    let moving = tokio::spawn(async move { store.move_behind(me, &of).await });
    until(
        &db,
        "select exists (select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock')
             or exists (select from ringmesh.held_key where behind)",
    )
    .await;
    writer
        .run("update ringmesh.held_key set held_until = null; commit")
        .await
        .unwrap();
    assert_eq!(moving.await.unwrap().unwrap(), 0, "it was locked");
    assert_eq!(db.store.move_behind(me, &granted).await.unwrap(), 1);
}

#[tokio::test]
async fn a_hold_with_nothing_behind_it_is_not_marked() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let head = db.submit("noop", "k", "1").await;
    run(
        &db,
        &format!(
            "insert into ringmesh.held_key values ({}, 'k', {}, 'kind')",
            i32::from(slot),
            head.number
        ),
    )
    .await;
    db.store.move_behind(me, &granted).await.unwrap();
    assert_eq!(
        number(&db, "select count(*) from ringmesh.held_key where behind").await,
        0
    );
}

#[tokio::test]
async fn a_loss_before_the_start_is_noted_is_no_crash() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    db.submit("noop", "k", "1").await;
    let task = claim(&db, me, slot, granted[0].1).await.remove(0);
    db.store.start_trial(me, &[task.token()], 2).await.unwrap();
    // A drain: it comes back unharmed, and is claimed and lost three times before it starts. It stays as suspect as it was.
    db.store.give_back(me, &[task.token()]).await.unwrap();
    let mut epoch = granted[0].1;
    for _ in 0..3 {
        let task = claim(&db, me, slot, epoch).await.remove(0);
        assert_eq!((task.crashes, task.trial), (0, -2));
        epoch = db.take(me, &[slot]).await[0].1;
    }
    // One real crash counts once.
    let task = claim(&db, me, slot, epoch).await.remove(0);
    db.store.start_trial(me, &[task.token()], 2).await.unwrap();
    for _ in 0..3 {
        epoch = db.take(me, &[slot]).await[0].1;
        let task = claim(&db, me, slot, epoch).await.remove(0);
        assert_eq!(task.crashes, 1);
    }
}

#[tokio::test]
async fn two_creators_of_a_day_both_succeed() {
    let db = Database::new().await;
    let mut first = Session::new(&db).await;
    first.run("begin; select ringmesh.create_days(9)").await.unwrap();
    let mut second = Session::new(&db).await;
    // It has looked for the day before, so it may remember that there was none.
    second
        .run("select to_regclass('ringmesh.finished_task_' || to_char(now() at time zone 'UTC' + interval '9 days', 'YYYYMMDD'))")
        .await
        .unwrap();
    let second = tokio::spawn(async move { second.run("select ringmesh.create_days(9)").await });
    until(&db, SOMEBODY_WAITS).await;
    first.run("commit").await.unwrap();
    second.await.unwrap().unwrap();
}

#[tokio::test]
async fn a_fencer_ends_neither_another_fencer_nor_a_session_of_a_node_that_renewed() {
    let db = Database::new().await;
    let node = db.node("a", Duration::from_secs(600)).await.incarnation;
    let lock = format!(
        "select from ringmesh.node where incarnation = {} for update; commit",
        node.0
    );
    let mut zombie = Session::new(&db).await;
    zombie
        .run(&format!(
            "begin; select from ringmesh.node where incarnation = {} for key share",
            node.0
        ))
        .await
        .unwrap();
    let mut fencers = Vec::new();
    let mut pids = Vec::new();
    for _ in 0..2 {
        let mut fencer = Session::new(&db).await;
        pids.push(fencer.pid);
        fencer.run("begin").await.unwrap();
        let lock = lock.clone();
        fencers.push(tokio::spawn(async move { fencer.run(&lock).await }));
        until(
            &db,
            &format!(
                "select cardinality(pg_blocking_pids({})) > 0",
                pids[pids.len() - 1]
            ),
        )
        .await;
    }
    let old = format!(
        "select bool_and(xact_start < clock_timestamp() - interval '300 ms') from pg_stat_activity where pid in ({}, {}, {})",
        zombie.pid, pids[0], pids[1]
    );
    until(&db, &old).await;
    // The second fencer is blocked by the first one.
    until(
        &db,
        &format!("select {} = any(pg_blocking_pids({}))", pids[0], pids[1]),
    )
    .await;
    db.store.end_blockers(pids[0], node, Some(1)).await.unwrap();
    zombie
        .run("select 1")
        .await
        .expect("it renewed once more than was seen: it lives");
    db.store.end_blockers(pids[1], node, Some(0)).await.unwrap();
    db.store.end_blockers(pids[0], node, Some(0)).await.unwrap();
    for fencer in fencers {
        fencer.await.unwrap().unwrap();
    }
    zombie
        .run("select 1")
        .await
        .expect_err("the node's own session is ended");
}

#[tokio::test]
async fn an_insert_by_hand_takes_its_transactions_number_before_its_own() {
    let db = Database::new().await;
    // A trigger that runs before the insert sees what the defaults did.
    run(
        &db,
        "create function look() returns trigger language plpgsql as $$
         begin
             if pg_current_xact_id_if_assigned() is null then raise exception 'a number without a transaction'; end if;
             return new;
         end $$;
         create trigger look before insert on ringmesh.task for each row execute function look();",
    )
    .await;
    // The sequence itself takes one, but not each time.
    for _ in 0..3 {
        run(
            &db,
            "insert into ringmesh.task (slot, key, kind, payload) values (1, 'k', 'noop', '1')",
        )
        .await;
    }
}

#[tokio::test]
async fn a_time_that_not_every_client_can_read_is_refused() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    for time in ["infinity", "-infinity", "290000-01-01", "4000-01-01 BC"] {
        let error = sqlx::query(
            "insert into ringmesh.task (slot, key, kind, payload, run_at) values (1, 'k', 'noop', '1', $1::text::timestamptz)",
        )
        .bind(time)
        .execute(&db.store.pool)
        .await
        .unwrap_err();
        assert_eq!(
            error.as_database_error().unwrap().code().unwrap(),
            "23514",
            "{time}"
        );
        let error = sqlx::query("select ringmesh.enqueue('noop', 'k', '1', $1::text::timestamptz)")
            .bind(time)
            .execute(&db.store.pool)
            .await
            .unwrap_err();
        assert_eq!(
            error.as_database_error().unwrap().code().unwrap(),
            "22023",
            "{time}"
        );
    }
    // A handler that asks for the end of time waits for long.
    db.submit("noop", "k", "1").await;
    let task = claim(&db, me, slot, granted[0].1).await.remove(0);
    let retry = Retry {
        token: task.token(),
        key: task.key.clone(),
        delay: Duration::MAX,
        failed: false,
        error: None,
    };
    assert_eq!(db.store.retry(me, &[retry]).await.unwrap(), [task.id]);
}

#[tokio::test]
async fn sql_refuses_what_http_refuses_and_says_which_argument() {
    let db = Database::new().await;
    let nested = |depth: usize, heart: &str| format!("{}{heart}{}", "[".repeat(depth), "]".repeat(depth));
    let text = format!("\"{}\"", "[".repeat(200));
    let wide = format!("[{}{{}}]", "[],".repeat(200));
    let (deepest, deeper) = (nested(127, "1"), nested(128, ""));
    let object = nested(127, "{}");
    for (payload, arguments, refused) in [
        (
            &*text,
            "priority => 9, max_attempts => 1000, timeout_ms => 86400000",
            None,
        ),
        (&*wide, "priority => 0, max_attempts => 1, timeout_ms => 1", None),
        (&*deepest, "run_at => null", None),
        (&*deeper, "run_at => null", Some("payload")),
        (&*object, "run_at => null", Some("payload")),
        ("1", "priority => 10", Some("priority")),
        ("1", "priority => -1", Some("priority")),
        ("1", "priority => 100000", Some("priority")),
        ("1", "priority => null", Some("priority")),
        ("1", "max_attempts => 0", Some("max_attempts")),
        ("1", "max_attempts => 1001", Some("max_attempts")),
        ("1", "max_attempts => null", Some("max_attempts")),
        ("1", "max_attempts => -1", Some("max_attempts")),
        ("1", "max_attempts => 2147483647", Some("max_attempts")),
        ("1", "timeout_ms => 0", Some("timeout_ms")),
        ("1", "timeout_ms => -1", Some("timeout_ms")),
        ("1", "timeout_ms => 2147483648", Some("timeout_ms")),
        ("1", "timeout_ms => 9223372036854775807", Some("timeout_ms")),
        ("1", "run_at => '10000-01-01Z'", Some("run_at")),
        ("1", "run_at => '9999-12-31Z'", None),
        ("1", "run_at => '0001-01-01Z'", None),
        ("1", "timeout_ms => 86400001", Some("timeout_ms")),
        ("1", "timeout_ms => null", Some("timeout_ms")),
    ] {
        let done = sqlx::query(AssertSqlSafe(format!(
            "select ringmesh.enqueue('noop', 'k', $1::text::jsonb, {arguments})"
        )))
        .bind(payload)
        .execute(&db.store.pool)
        .await;
        let Some(argument) = refused else {
            done.unwrap_or_else(|error| panic!("{arguments} {payload:.40}: {error}"));
            continue;
        };
        let error = done.unwrap_err();
        let error = error.as_database_error().unwrap();
        assert_eq!(error.code().unwrap(), "22023", "{arguments}: {error}");
        assert!(
            error.message().starts_with(&format!("{argument}: ")),
            "{arguments}: {error}"
        );
    }
}

#[tokio::test]
async fn a_claimed_task_shows_no_start_before_its_end() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    db.submit("noop", "k", "1").await;
    let task = claim(&db, me, slot, granted[0].1).await.remove(0);
    let view = db.store.tasks(&[task.id]).await.unwrap().remove(0).unwrap();
    assert_eq!(
        (view.state, view.started_at, view.node.as_deref()),
        (crate::task::State::Running, None, Some("a"))
    );
}

#[tokio::test]
async fn of_tasks_that_are_due_at_one_time_the_lowest_numbers_come_first() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    run(
        &db,
        &format!(
            "insert into ringmesh.task (slot, id, key, kind, payload, wait, run_at)
             select {}, n, 'k', 'noop', '1', 'scheduled', '2020-01-01Z' from generate_series(300, 1, -1) n",
            i32::from(slot)
        ),
    )
    .await;
    let mut first: Vec<i64> = db
        .store
        .promote(me, Ticket(1), &granted, 10)
        .await
        .unwrap()
        .into_iter()
        .map(|(id, _)| id.number)
        .collect();
    first.sort_unstable();
    assert_eq!(first, (1..=10).collect::<Vec<_>>());
}

#[tokio::test]
async fn an_idempotency_id_is_kept_while_its_task_is_open() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let open = db.submit("noop", "k", "1").await;
    run(
        &db,
        &format!(
            "insert into ringmesh.idempotency (slot, key, kind, id_key, task, fingerprint, created_at)
             select {slot}, 'k', 'noop', task::text, task, '', now() - interval '2 days' from unnest(array[{}, 4711]) task",
            open.number,
            slot = i32::from(slot),
        ),
    )
    .await;
    let window = Duration::from_secs(24 * 3600);
    assert_eq!(
        db.store.forget_idempotency(me, &granted, window).await.unwrap(),
        1
    );
    assert!(db.store.cancel(open).await.unwrap());
    assert_eq!(
        db.store.forget_idempotency(me, &granted, window).await.unwrap(),
        1
    );
}

#[tokio::test]
async fn a_crash_of_postgres_takes_back_no_number_that_a_poll_told() {
    let settings = [("wal_writer_delay", "10s"), ("autovacuum", "off")];
    let mut fresh = super::testing::fresh_with(crate::dev::postgres::Options {
        settings: settings.map(|(name, value)| (name.into(), value.into())).into(),
        ..crate::dev::postgres::Options::for_tests()
    })
    .await;
    fresh
        .number("select split_part(ringmesh.enqueue('noop', 'k', '1'), '-', 2)::bigint")
        .await;
    // Numbers of transactions that do not commit: nothing but a poll brings them to disk.
    let mut open = fresh.session().await;
    open.run("begin; select nextval('ringmesh.task_id') from generate_series(1, 100)")
        .await;
    fresh.store.horizon().await.unwrap();
    open.run("select nextval('ringmesh.task_id') from generate_series(1, 100)")
        .await;
    let before = fresh.store.horizon().await.unwrap();
    assert!(before.last_id > 200);
    fresh.server.kill().await.unwrap();
    fresh.server.restart().await.unwrap();
    let store = patient(&fresh.server.url(), "ringmesh test");
    let after = store.horizon().await.unwrap();
    assert!(
        after.last_id >= before.last_id && after.here > before.here,
        "{before:?} {after:?}"
    );
}
