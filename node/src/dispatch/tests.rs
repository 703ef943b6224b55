//! Dispatch against a real Postgres. None of these send hints: the ticks find everything.

use std::collections::HashMap;

use serde_json::Value;
use sqlx::{Connection, PgConnection};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::builtin;
use crate::clock;
use crate::context::Context;
use crate::directory::Directory;
use crate::handler::Failure;
use crate::secret::Secret;
use crate::store::testing::PATIENCE;
use crate::store::testing_owner::{Database, slot_of};
use crate::task::State;
use crate::wait::Waits;

pub(super) struct Life {
    pub(super) db: Database,
    pub(super) dispatch: Dispatch,
    trust: Arc<Trust>,
    pub(super) slots: Vec<(Slot, Epoch)>,
    quiet: mpsc::UnboundedReceiver<Vec<(Slot, Epoch)>>,
    pub(super) me: Me,
    pub(super) waits: Waits,
    _directory: watch::Sender<Arc<Directory>>,
}

pub(super) fn limits() -> Limits {
    Limits {
        grace: Duration::from_millis(50),
        backoff: Duration::from_millis(5),
        tick: Duration::from_millis(50),
        ..Limits::default()
    }
}

pub(super) const FAR: Duration = Duration::from_secs(1 << 30);

impl Life {
    pub(super) async fn start(handlers: Handlers, keys: &[&str]) -> Self {
        Self::with(Database::new().await, "a", handlers, keys, limits()).await
    }

    pub(super) async fn with(
        db: Database,
        name: &str,
        handlers: Handlers,
        keys: &[&str],
        limits: Limits,
    ) -> Self {
        let mut slots: Vec<Slot> = keys.iter().map(|key| slot_of(key)).collect();
        slots.sort_unstable();
        slots.dedup();
        let (me, slots) = db.owner(name, &slots).await;
        let trust = Arc::new(Trust::new());
        trust.extend(clock::now() + FAR);
        trust.set_session(true);
        let (directory, watch) = watch::channel(Arc::new(Directory {
            me: Some(me.incarnation),
            ..Directory::default()
        }));
        let waits = Waits::new();
        let hints = Hints::start(watch, &Secret::new("s".repeat(32)), waits.clone()).unwrap();
        let (sender, quiet) = mpsc::unbounded_channel();
        let (dispatch, _) = Dispatch::start(Parts {
            store: db.another(),
            me,
            trust: trust.clone(),
            handlers: Arc::new(builtin::handlers(true).and(handlers)),
            limits,
            hints,
            quiet: sender,
        });
        dispatch.granted(slots.clone());
        Life {
            db,
            dispatch,
            trust,
            slots,
            quiet,
            me,
            waits,
            _directory: directory,
        }
    }

    fn only(&self) -> Vec<Slot> {
        self.slots.iter().map(|(slot, _)| *slot).collect()
    }

    pub(super) async fn left(&mut self) -> Vec<(Slot, Epoch)> {
        tokio::time::timeout(PATIENCE, self.quiet.recv())
            .await
            .unwrap()
            .unwrap()
    }

    /// Waits until this holds of what dispatch says of itself.
    pub(super) async fn until(&self, holds: impl Fn(&Stats) -> bool) {
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !holds(&self.dispatch.stats()) {
            assert!(
                tokio::time::Instant::now() < deadline,
                "still {:?}",
                self.dispatch.stats()
            );
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

/// What runs of the kinds `wait` and `ignore` tell and wait for.
struct Gate {
    open: CancellationToken,
    began: mpsc::UnboundedReceiver<()>,
}

impl Gate {
    /// `wait` ends when the gate opens, or cancelled; `ignore` never ends by itself.
    fn closed() -> (Handlers, Gate) {
        let open = CancellationToken::new();
        let (begin, began) = mpsc::unbounded_channel();
        let (gate, begun) = (open.clone(), begin.clone());
        let handlers = Handlers::new()
            .add("wait", move |context: Context, _: Value| {
                let (gate, begin) = (gate.clone(), begin.clone());
                async move {
                    begin.send(()).unwrap();
                    tokio::select! {
                        () = gate.cancelled() => Ok(()),
                        () = context.cancellation().cancelled() => Err(Failure::new("cancelled while it waited")),
                    }
                }
            })
            .add("ignore", move |_, _: Value| {
                begun.send(()).unwrap();
                std::future::pending::<Result<(), Failure>>()
            });
        (handlers, Gate { open, began })
    }

    /// Waits until one more run has begun. A task that is claimed need not run yet.
    async fn began(&mut self) {
        tokio::time::timeout(PATIENCE, self.began.recv())
            .await
            .unwrap()
            .unwrap();
    }

    fn open(&self) {
        self.open.cancel();
    }
}

type Seen = Arc<Mutex<HashMap<String, Vec<i64>>>>;

/// Records which payloads ran, per key, in order; and panics if two of a key run at once.
fn recorder() -> (Handlers, Seen) {
    let seen = Seen::default();
    let running = Arc::<Mutex<std::collections::HashSet<String>>>::default();
    let kept = seen.clone();
    let handlers = Handlers::new().add("record", move |context: Context, number: i64| {
        let (seen, running) = (seen.clone(), running.clone());
        async move {
            let key = context.key().as_str().to_owned();
            assert!(running.lock().unwrap().insert(key.clone()), "two at once");
            tokio::task::yield_now().await;
            seen.lock().unwrap().entry(key.clone()).or_default().push(number);
            running.lock().unwrap().remove(&key);
            Ok::<_, Failure>(())
        }
    });
    (handlers, kept)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tasks_of_a_key_run_one_at_a_time_in_the_order_of_their_submits() {
    let (handlers, seen) = recorder();
    let keys = ["a", "b", "c"];
    let life = Life::start(handlers, &keys).await;
    let mut last = Vec::new();
    for number in 0..60 {
        for key in keys {
            last.push(life.db.submit("record", key, &number.to_string()).await);
        }
    }
    for id in &last[last.len() - 3..] {
        assert_eq!(life.db.end_of(*id).await.state, State::Succeeded);
    }
    let expected: Vec<i64> = (0..60).collect();
    for key in keys {
        assert_eq!(seen.lock().unwrap()[key], expected, "{key}");
    }
    assert_eq!(life.db.count("select count(*) from ringmesh.task").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_next_task_of_a_key_waits_for_the_commit_of_the_one_before() {
    let (handlers, mut gate) = Gate::closed();
    let life = Life::start(handlers, &["k"]).await;
    life.db.submit("wait", "k", "1").await;
    let next = life.db.submit("wait", "k", "1").await;
    gate.began().await;
    life.until(|stats| stats.waiting == 1).await;
    let mut hold = PgConnection::connect(&life.db.url).await.unwrap();
    sqlx::raw_sql("begin; select from ringmesh.task for update")
        .execute(&mut hold)
        .await
        .unwrap();
    gate.open();
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while life
        .db
        .count("select count(*) from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'")
        .await
        == 0
    {
        assert!(tokio::time::Instant::now() < deadline, "no finish waits");
    }
    assert!(gate.began.try_recv().is_err(), "the one before has not ended yet");
    sqlx::raw_sql("commit").execute(&mut hold).await.unwrap();
    gate.began().await;
    assert_eq!(life.db.end_of(next).await.state, State::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_is_no_finish_and_its_key_goes_on() {
    let (handlers, mut gate) = Gate::closed();
    let life = Life::start(handlers, &["k"]).await;
    let cancelled = life.db.submit("wait", "k", "1").await;
    let next = life.db.submit("echo", "k", "1").await;
    gate.began().await;
    assert!(life.db.store.cancel(cancelled).await.unwrap());
    gate.open();
    assert_eq!(life.db.end_of(next).await.state, State::Succeeded);
    life.until(|stats| (stats.succeeded, stats.fenced) == (1, 1))
        .await;
    assert_eq!(life.db.view(cancelled).await.state, State::Cancelled);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_fails_is_tried_again_before_the_next_of_its_key_starts() {
    let (handlers, _) = recorder();
    let life = Life::start(handlers, &["k"]).await;
    let failing = life.db.submit("fail", "k", r#"{"times": 3}"#).await;
    let dying = life
        .db
        .submit_with("fail", "k", r#"{"times": 9}"#, 0, 2, 300_000)
        .await;
    let next = life.db.submit("echo", "k", r#"{"a": "b"}"#).await;
    let end = life.db.end_of(next).await;
    assert_eq!(end.result.unwrap().get(), r#"{"a": "b"}"#);
    let (failed, died) = (life.db.view(failing).await, life.db.view(dying).await);
    assert_eq!((failed.state, failed.failures), (State::Succeeded, 3));
    assert_eq!((died.state, died.failures), (State::Dead, 2));
    assert_eq!(died.error.as_deref(), Some("failure 2 of 9, as asked"));
    assert!(failed.finished_at < died.started_at && died.finished_at < end.started_at);
    assert_eq!(life.db.count("select count(*) from ringmesh.held_key").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_goes_wrong_in_a_handler_ends_its_task_and_nothing_else() {
    let handlers = Handlers::new()
        .add("nul", |_, _: Value| async { Ok::<_, Failure>("a\0b") })
        .add("large", |_, _: Value| async {
            Ok::<_, Failure>("x".repeat(2 << 20))
        })
        .add("loud", |_, _: Value| async {
            Err::<(), _>(Failure::new("e\0".repeat(5000)).fatal())
        });
    let life = Life::start(handlers, &["k"]).await;
    let panicking = life.db.submit_with("panic", "k", "1", 0, 1, 300_000).await;
    let unreadable = life.db.submit("sleep", "k", r#"{"ms": "long"}"#).await;
    let nul = life.db.submit("nul", "k", "1").await;
    let large = life.db.submit("large", "k", "1").await;
    let loud = life.db.submit("loud", "k", "1").await;
    let crashed = life.db.submit("noop", "k", "1").await;
    sqlx::query("update ringmesh.task set crashes = 3 where id = $1")
        .bind(crashed.number)
        .execute(&life.db.store.pool)
        .await
        .unwrap();
    let wide = life
        .db
        .submit("echo", "k", &format!("\"{}\"", "y".repeat(100_000)))
        .await;
    assert_eq!(life.db.end_of(wide).await.result.unwrap().get().len(), 100_002);
    let error = |view: crate::task::View| (view.state, view.error.unwrap_or_default());
    assert_eq!(
        error(life.db.view(panicking).await),
        (State::Dead, "panic: as asked".to_owned())
    );
    let (state, text) = error(life.db.view(unreadable).await);
    assert!(
        state == State::Dead && text.starts_with("the payload does not parse: invalid type"),
        "{text}"
    );
    assert_eq!(life.db.view(nul).await.result.unwrap().get(), r#""a\\u0000b""#);
    assert!(
        error(life.db.view(large).await)
            .1
            .starts_with("the result has 2097154 bytes")
    );
    assert!(error(life.db.view(loud).await).1.ends_with("(cut)"));
    let (state, text) = error(life.db.view(crashed).await);
    // It may have run before its crashes were written: then it succeeded.
    assert!(
        state == State::Succeeded || text.starts_with("its runs ended their process 3 times"),
        "{text}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_past_its_timeout_is_cancelled_then_aborted_and_fails() {
    let end = async |name, db, kind, grace| {
        let (handlers, _gate) = Gate::closed();
        let limits = Limits { grace, ..limits() };
        let life = Life::with(db, name, handlers, &["k"], limits).await;
        let id = life.db.submit_with(kind, "k", "1", 0, 1, 100).await;
        let end = life.db.end_of(id).await;
        life.dispatch.stop().await;
        (life.db, end.state, end.error.unwrap())
    };
    let (db, state, error) = end("a", Database::new().await, "wait", FAR).await;
    assert!(
        state == State::Dead
            && error.starts_with("timeout: ")
            && error.ends_with("cancelled while it waited"),
        "{error}"
    );
    let (_, state, error) = end("b", db, "ignore", Duration::from_millis(50)).await;
    assert!(
        state == State::Dead && error.starts_with("timeout: ") && error.ends_with("aborted"),
        "{error}"
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaving_slot_gives_back_what_waits_and_lets_runs_end() {
    let (handlers, mut gate) = Gate::closed();
    let mut life = Life::start(handlers, &["k"]).await;
    let running = life.db.submit("wait", "k", "1").await;
    let waiting = life.db.submit("noop", "k", "1").await;
    gate.began().await;
    life.until(|stats| stats.waiting == 1).await;
    life.dispatch.leave(life.only(), FAR);
    life.db.wait_for(waiting, |view| view.node.is_none()).await;
    assert!(life.quiet.try_recv().is_err(), "a run goes on");
    gate.open();
    assert_eq!(life.left().await, life.slots);
    assert_eq!(life.db.view(running).await.state, State::Succeeded);
    assert_eq!(life.db.view(waiting).await.state, State::Pending);
    assert_eq!(
        life.db
            .count("select count(*) from ringmesh.task where epoch is not null")
            .await,
        0
    );
    life.dispatch.stay(life.only());
    assert_eq!(life.db.end_of(waiting).await.state, State::Succeeded);
}

/// Another key of the same slot.
fn neighbour(key: &str) -> String {
    let others = (0..).map(|number| format!("{key}-{number}"));
    others
        .into_iter()
        .find(|other| slot_of(other) == slot_of(key))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_slot_that_leaves_when_idle_waits_for_a_long_run_its_other_keys_go_on() {
    let (handlers, mut gate) = Gate::closed();
    let mut life = Life::start(handlers, &["k"]).await;
    let long = life.db.submit("wait", "k", "1").await;
    let next = life.db.submit("noop", "k", "1").await;
    gate.began().await;
    life.dispatch.leave_when_idle(life.only(), FAR);
    let other = life.db.submit("noop", &neighbour("k"), "1").await;
    assert_eq!(life.db.end_of(other).await.state, State::Succeeded);
    assert!(life.quiet.try_recv().is_err(), "a run goes on");
    gate.open();
    assert_eq!(life.left().await, life.slots);
    assert_eq!(life.db.view(long).await.state, State::Succeeded);
    let view = life.db.view(next).await;
    assert_eq!((view.state, view.node), (State::Pending, None));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_that_works_behind_a_long_run_leaves_at_once_when_told_to() {
    let (handlers, mut gate) = Gate::closed();
    let mut life = Life::start(handlers, &["k"]).await;
    life.db.submit("wait", "k", "1").await;
    gate.began().await;
    life.dispatch.leave_when_idle(life.only(), FAR);
    let other = life.db.submit("noop", &neighbour("k"), "1").await;
    assert_eq!(life.db.end_of(other).await.state, State::Succeeded);
    life.dispatch.leave(life.only(), FAR);
    let late = life.db.submit("noop", &neighbour("k"), "1").await;
    gate.open();
    assert_eq!(life.left().await, life.slots);
    assert_eq!(life.db.view(late).await.state, State::Pending);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn at_the_deadline_of_a_leave_runs_are_cancelled_and_given_back_uncounted() {
    let (handlers, mut gate) = Gate::closed();
    let mut life = Life::start(handlers, &["a", "b"]).await;
    let polite = life.db.submit("wait", "a", "1").await;
    let stubborn = life.db.submit("ignore", "b", "1").await;
    gate.began().await;
    gate.began().await;
    let only = life.only();
    let (at_once, when_idle) = only.split_at(1);
    life.dispatch.leave(at_once.to_vec(), Duration::ZERO);
    life.dispatch
        .leave_when_idle(when_idle.to_vec(), Duration::from_secs(1));
    let mut left = life.left().await;
    while left.len() < 2 {
        left.extend(life.left().await);
    }
    for id in [polite, stubborn] {
        let view = life.db.view(id).await;
        assert_eq!((view.state, view.failures, view.crashes), (State::Pending, 0, 0));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_starts_without_trust_and_its_end_cancels_runs() {
    let (handlers, mut gate) = Gate::closed();
    let life = Life::start(handlers, &["k"]).await;
    let running = life.db.submit("wait", "k", "1").await;
    gate.began().await;
    life.trust.end();
    life.dispatch.trust_ended();
    let view = life.db.reaches(running, State::Pending).await;
    assert_eq!((view.failures, view.crashes), (0, 0));
    gate.open();
    life.trust.extend(clock::now() + FAR);
    life.trust.set_session(true);
    assert_eq!(life.db.end_of(running).await.state, State::Succeeded);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lost_slot_is_forgotten_and_nothing_of_its_runs_is_written() {
    let (handlers, mut gate) = Gate::closed();
    let life = Life::start(handlers, &["k"]).await;
    let id = life.db.submit("wait", "k", "1").await;
    gate.began().await;
    let other = life.db.node("other", Duration::from_secs(600)).await;
    let taken = life.db.take(other, &life.only()).await;
    life.dispatch.lost(life.slots.clone());
    let answer = life
        .db
        .store
        .claim(
            other,
            crate::store::Ticket(1),
            &[crate::store::Probe {
                slot: taken[0].0,
                epoch: taken[0].1,
                start: 0,
                room: 9,
            }],
        )
        .await
        .unwrap();
    assert_eq!((answer.tasks.len(), answer.tasks[0].lost), (1, true));
    life.dispatch.stop().await;
    assert_eq!(life.db.view(id).await.attempt, 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cancelled_run_ends_and_its_key_goes_on() {
    let (handlers, mut gate) = Gate::closed();
    let life = Life::start(handlers, &["k"]).await;
    let id = life.db.submit("wait", "k", "1").await;
    let next = life.db.submit("noop", "k", "1").await;
    gate.began().await;
    assert!(life.db.store.cancel(id).await.unwrap());
    life.dispatch.cancelled(id);
    assert_eq!(life.db.end_of(next).await.state, State::Succeeded);
    assert_eq!(life.db.view(id).await.state, State::Cancelled);
}

fn writer() -> Handlers {
    Handlers::new().add("write", |context: Context, what: String| async move {
        let mut transaction = context.transaction().await?;
        sqlx::query("insert into effect values ($1)")
            .bind(&what)
            .execute(&mut *transaction)
            .await?;
        match what.as_str() {
            "fail" => return Err(Failure::new("as asked").fatal()),
            "refused" => {
                sqlx::query("select 1 / 0").execute(&mut *transaction).await.ok();
            }
            "slow" => {
                sqlx::query("select pg_sleep(60)")
                    .execute(&mut *transaction)
                    .await?;
            }
            "fenced" => {
                // Somebody else takes the slot while this run goes on.
                let mut other = context.inner.transaction.other().await;
                sqlx::query("update ringmesh.slot set epoch = epoch + 1")
                    .execute(&mut other)
                    .await?;
            }
            _ => {}
        }
        Ok(())
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn effects_in_a_tasks_transaction_commit_with_it_or_not_at_all() {
    let db = Database::new().await;
    sqlx::query("create table effect (what text)")
        .execute(&db.store.pool)
        .await
        .unwrap();
    let life = Life::with(db, "a", writer(), &["k"], limits()).await;
    let good = life.db.submit("write", "k", r#""good""#).await;
    let failing = life.db.submit("write", "k", r#""fail""#).await;
    let refused = life
        .db
        .submit_with("write", "k", r#""refused""#, 0, 1, 300_000)
        .await;
    let slow = life.db.submit_with("write", "k", r#""slow""#, 0, 1, 100).await;
    assert_eq!(life.db.end_of(good).await.state, State::Succeeded);
    assert_eq!(life.db.end_of(failing).await.state, State::Dead);
    assert_eq!(life.db.end_of(refused).await.state, State::Dead);
    let end = life.db.end_of(slow).await;
    assert!(end.error.unwrap().starts_with("timeout"));
    let effects: Vec<String> = sqlx::query_scalar("select what from effect")
        .fetch_all(&life.db.store.pool)
        .await
        .unwrap();
    assert_eq!(effects, ["good"]);
    let fenced = life.db.submit("write", "k", r#""fenced""#).await;
    life.until(|stats| stats.fenced > 0).await;
    assert_eq!(life.db.view(fenced).await.state, State::Pending);
    assert_eq!(life.db.count("select count(*) from effect").await, 1);
    let left = "select count(*) from pg_stat_activity where datname = current_database() and (query like '%pg_sleep%' and pid <> pg_backend_pid() or state like 'idle in transaction%')";
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while life.db.count(left).await > 0 {
        assert!(
            tokio::time::Instant::now() < deadline,
            "a transaction was left open"
        );
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_commit_for_which_postgres_lacks_something_is_repeated_and_is_no_failure() {
    let db = Database::new().await;
    sqlx::raw_sql(
        "create table effect (what text);
         create table lack (what text);
         insert into lack values ('room');
         create sequence tries;
         create function lacking() returns trigger language plpgsql as $$ begin
             perform nextval('tries');
             if exists (select from lack) then
                 raise exception 'no space is left' using errcode = 'disk_full';
             end if;
             return null;
         end $$;
         create constraint trigger lacking after insert on effect deferrable initially deferred
             for each row execute function lacking()",
    )
    .execute(&db.store.pool)
    .await
    .unwrap();
    let life = Life::with(db, "a", writer(), &["k"], limits()).await;
    let id = life
        .db
        .submit_with("write", "k", r#""good""#, 0, 1, 300_000)
        .await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while life.db.count("select count(*) from tries where is_called").await == 0 {
        assert!(tokio::time::Instant::now() < deadline, "it was never committed");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    sqlx::raw_sql("delete from lack")
        .execute(&life.db.store.pool)
        .await
        .unwrap();
    let end = life.db.end_of(id).await;
    assert_eq!((end.state, end.failures), (State::Succeeded, 0));
    assert_eq!(life.db.count("select count(*) from effect").await, 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_break_lose_nothing_and_keep_the_order() {
    let (handlers, seen) = recorder();
    let keys: Vec<String> = (0..20).map(|key| format!("key{key}")).collect();
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    let life = Life::start(handlers, &keys).await;
    for number in 0..30 {
        for key in &keys {
            life.db.submit("record", key, &number.to_string()).await;
        }
        if number % 3 == 0 {
            sqlx::query("select pg_terminate_backend(pid) from pg_stat_activity where datname = current_database() and pid <> pg_backend_pid() and application_name = 'ringmesh test node' and random() < 0.5")
                .execute(&life.db.store.pool)
                .await
                .ok();
        }
    }
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while sqlx::query_scalar::<_, i64>("select count(*) from ringmesh.task")
        .fetch_one(&life.db.store.pool)
        .await
        .unwrap_or(1)
        > 0
    {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    for key in &keys {
        let mut order = seen.lock().unwrap()[*key].clone();
        // At least once: the same number may come again, but never an earlier one.
        order.dedup();
        assert_eq!(order, (0..30).collect::<Vec<i64>>(), "{key}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_key_keeps_its_cache_while_its_slot_stays() {
    let handlers = Handlers::new().add("count", |context: Context, _: Value| async move {
        let cache = context.cache::<u32>();
        let count = cache.get().map_or(1, |count| *count + 1);
        cache.insert(count);
        Ok::<_, Failure>(count)
    });
    let life = Life::start(handlers, &["k"]).await;
    let result = async |id| life.db.end_of(id).await.result.unwrap().get().to_owned();
    assert_eq!(result(life.db.submit("count", "k", "1").await).await, "1");
    assert_eq!(result(life.db.submit("count", "k", "1").await).await, "2");
    life.dispatch.lost(life.slots.clone());
    life.dispatch.granted(life.db.take(life.me, &life.only()).await);
    assert_eq!(result(life.db.submit("count", "k", "1").await).await, "1");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_kind_without_a_handler_waits_and_holds_its_key() {
    let life = Life::start(Handlers::new(), &["k"]).await;
    let strange = life.db.submit("strange", "k", "1").await;
    let next = life.db.submit("noop", "k", "1").await;
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while life
        .db
        .count("select count(*) from ringmesh.held_key where reason = 'kind'")
        .await
        == 0
    {
        assert!(tokio::time::Instant::now() < deadline);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    // It may have been claimed with the head, and goes back.
    life.db.reaches(next, State::Pending).await;
    life.dispatch.stop().await;
    // Its next owner knows the kind.
    let Life { db, slots, .. } = life;
    let handlers = Handlers::new().add("strange", |_, _: Value| async { Ok::<_, Failure>(()) });
    let (sender, _quiet) = mpsc::unbounded_channel();
    let trust = Arc::new(Trust::new());
    trust.extend(clock::now() + FAR);
    trust.set_session(true);
    let (_directory, watch) = watch::channel(Arc::new(Directory::default()));
    let me = db.node("b", Duration::from_secs(600)).await;
    let slots = db
        .take(me, &slots.iter().map(|(slot, _)| *slot).collect::<Vec<_>>())
        .await;
    let (dispatch, _) = Dispatch::start(Parts {
        store: db.another(),
        me,
        trust,
        handlers: Arc::new(builtin::handlers(false).and(handlers)),
        limits: limits(),
        hints: Hints::start(watch, &Secret::new("s".repeat(32)), Waits::new()).unwrap(),
        quiet: sender,
    });
    dispatch.granted(slots);
    assert_eq!(db.end_of(next).await.state, State::Succeeded);
    assert_eq!(db.view(strange).await.state, State::Succeeded);
}

/// Horizon, hold, cancel at another node, lost hint.
#[tokio::test]
async fn what_a_hold_hid_starts_before_what_was_submitted_after_the_hold_was_lifted() {
    let db = Database::new().await;
    let slot = slot_of("k");
    let (me, granted) = db.owner("a", &[slot]).await;
    let head = db.submit("noop", "k", "1").await;
    let mut lanes = lanes::Lanes::new(lanes::Room {
        tasks: 100,
        per_slot: 100,
    });
    lanes.grant(slot, granted[0].1);
    let plan = lanes.plan().unwrap();
    let plan = if plan.urgent {
        let answer = db
            .store
            .claim_urgent(me, plan.ticket, &plan.probes)
            .await
            .unwrap();
        lanes.on_claim(plan.ticket, answer, 0);
        lanes.plan().unwrap()
    } else {
        plan
    };
    let answer = db.store.claim(me, plan.ticket, &plan.probes).await.unwrap();
    lanes.on_claim(plan.ticket, answer, 0);
    let start = lanes.take().unwrap();
    assert_eq!(start.task.id, head);
    lanes.close(start.lane, Some(start.run));
    let retry = crate::store::Retry {
        token: start.task.token(),
        key: start.task.key.clone(),
        delay: Duration::from_secs(60),
        failed: true,
        error: None,
    };
    db.store.retry(me, &[retry]).await.unwrap();
    lanes.settled(start.lane, start.task.token());

    let hidden = db.submit("noop", "k", "1").await;
    for _ in 0..2 {
        lanes.on_horizon(db.store.horizon().await.unwrap());
    }
    lanes.mark(slot, false);
    let plan = lanes.plan().unwrap();
    let answer = db.store.claim(me, plan.ticket, &plan.probes).await.unwrap();
    assert!(answer.tasks.is_empty());
    lanes.on_claim(plan.ticket, answer, 0);

    assert!(db.another().cancel(head).await.unwrap());
    db.submit("noop", "k", "1").await;
    lanes.mark(slot, false);
    let plan = lanes.plan().unwrap();
    let answer = db.store.claim(me, plan.ticket, &plan.probes).await.unwrap();
    lanes.on_claim(plan.ticket, answer, 0);
    assert_eq!(lanes.take().unwrap().task.id, hidden);
}
