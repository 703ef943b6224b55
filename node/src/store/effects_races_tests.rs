//! Transactions that guard or complete a run, against whatever else may happen to it: the lines of docs/adr/0007, *Interleavings*.
//!
//! *Open* is a transaction that has done its statement and not committed; *held* is a commit that has its locks.

use std::time::Duration;

use super::effects_testing::{BOTH, Call, World, is, of};
use super::lease::fence_on;
use super::races_tests::{Session, claim, number, run};
use super::testing::PATIENCE;
use super::*;
use crate::task::State;
use ringmesh_ring::Incarnation;

const BY: Incarnation = Incarnation(1 << 40);

/// What a fencer does, whatever holds it up: nobody is ended.
async fn fence(world: &World) -> Result<Fencing, Error> {
    let mut session = world.db.store.session(PATIENCE, &[]).await?;
    session
        .begin_with("set transaction isolation level read committed")
        .await?;
    fence_on(&mut session, world.me.incarnation, None, FenceKind::Expired, BY).await
}

fn finish_of(world: &World) -> Finish {
    Finish {
        token: world.first.token(),
        end: Ok(Some("\"node\"".to_owned())),
        run: Duration::from_millis(1),
        failed: false,
        head: false,
    }
}

fn retry_of(world: &World) -> Retry {
    Retry {
        token: world.first.token(),
        key: world.first.key.clone(),
        delay: Duration::from_secs(600),
        failed: true,
        error: Some("timeout".to_owned()),
    }
}

/// Lets the commit go on that waits at the gate.
async fn release(mut gate: Session) {
    gate.run("rollback").await.unwrap();
}

#[tokio::test]
async fn a_fence_does_not_wait_for_what_is_registered_and_its_commit_is_refused() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        assert_eq!(fence(&world).await.unwrap(), Fencing::Fenced);
        is(mine.run("commit").await, "RM001");
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
    }
}

#[tokio::test]
async fn a_fencer_waits_for_a_commit_that_has_its_locks_and_the_commit_stands() {
    for call in BOTH {
        let world = World::new().await;
        let (commit, gate) = world.held(call).await;
        let store = world.db.another();
        let me = world.me.incarnation;
        let fencer = tokio::spawn(async move {
            let mut session = store.session(PATIENCE, &[]).await?;
            session
                .begin_with("set transaction isolation level read committed")
                .await?;
            fence_on(&mut session, me, None, FenceKind::Expired, BY).await
        });
        world.waiting(2, &fencer).await;
        release(gate).await;
        commit.await.unwrap().unwrap();
        assert_eq!(fencer.await.unwrap().unwrap(), Fencing::Fenced);
        assert_eq!(world.effects().await, 1, "{call:?}");
        assert_eq!(world.open().await, if call == Call::Complete { 1 } else { 2 });
    }
}

#[tokio::test]
async fn a_commit_waits_for_a_fencer_and_is_refused_only_if_that_one_fences() {
    for call in BOTH {
        for fences in [true, false] {
            let world = World::new().await;
            let mut mine = world.registered(call).await;
            let mut fencer = Session::new(&world.db).await;
            let lock = "begin; select from ringmesh.node where fenced_at is null for update";
            fencer.run(lock).await.unwrap();
            let commit = tokio::spawn(async move { mine.run("commit").await });
            world.waiting(1, &commit).await;
            if fences {
                let fence =
                    "update ringmesh.node set fenced_at = clock_timestamp(), fenced_as = 'expired'; commit";
                fencer.run(fence).await.unwrap();
                is(commit.await.unwrap(), "RM001");
                assert_eq!((world.effects().await, world.open().await), (0, 2));
            } else {
                release(fencer).await;
                commit.await.unwrap().unwrap();
                assert_eq!(world.effects().await, 1);
            }
        }
    }
}

/// What a fencer ends.
#[tokio::test]
async fn a_commit_that_hangs_is_ended_by_the_fencer_and_leaves_nothing() {
    for call in BOTH {
        let world = World::new().await;
        let (commit, gate) = world.held(call).await;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        let fence = || {
            world
                .db
                .store
                .fence(world.me.incarnation, Some(0), FenceKind::Expired, BY)
        };
        while let Err(error) = fence().await {
            assert!(tokio::time::Instant::now() < deadline, "{error:?}");
        }
        commit.await.unwrap().expect_err("its session was ended");
        release(gate).await;
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
    }
}

#[tokio::test]
async fn a_commit_waits_for_a_transfer_and_is_refused_after_it() {
    for call in BOTH {
        let world = World::new().await;
        let other = world.other().await;
        let mut mine = world.registered(call).await;
        let (slot, epoch) = world.granted();
        let mut transfer = Session::new(&world.db).await;
        transfer.run("begin").await.unwrap();
        let moved = sqlx::query_file!(
            "src/store/sql/transfer.sql",
            world.me.incarnation.0,
            world.me.boot,
            other.incarnation.0,
            &[i32::from(slot)],
            &[epoch.get()]
        );
        assert_eq!(moved.fetch_all(transfer.connection()).await.unwrap().len(), 1);
        let commit = tokio::spawn(async move { mine.run("commit").await });
        world.waiting(1, &commit).await;
        transfer.run("commit").await.unwrap();
        is(commit.await.unwrap(), "RM001");
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
    }
}

#[tokio::test]
async fn a_transfer_waits_for_a_commit_that_has_its_locks_and_then_passes() {
    for call in BOTH {
        let world = World::new().await;
        let other = world.other().await;
        let (commit, gate) = world.held(call).await;
        let (store, me, granted) = (world.db.another(), world.me, world.granted());
        let transfer = tokio::spawn(async move { store.transfer(me, other.incarnation, &[granted]).await });
        world.waiting(2, &transfer).await;
        release(gate).await;
        commit.await.unwrap().unwrap();
        assert_eq!(transfer.await.unwrap().unwrap(), [granted.0]);
        assert_eq!(world.effects().await, 1, "{call:?}");
    }
}

#[tokio::test]
async fn a_commit_waits_for_a_cancel_and_is_refused_if_that_one_commits() {
    for call in BOTH {
        for cancels in [true, false] {
            let world = World::new().await;
            let mut mine = world.registered(call).await;
            let mut cancel = Session::new(&world.db).await;
            cancel.run("begin").await.unwrap();
            let id = world.first.id;
            let gone = sqlx::query_file!("src/store/sql/cancel.sql", i32::from(id.slot), id.number);
            assert_eq!(gone.fetch_all(cancel.connection()).await.unwrap().len(), 1);
            let commit = tokio::spawn(async move { mine.run("commit").await });
            world.waiting(1, &commit).await;
            if cancels {
                cancel.run("commit").await.unwrap();
                is(commit.await.unwrap(), "RM002");
                assert_eq!(world.db.view(id).await.state, State::Cancelled);
                assert_eq!((world.effects().await, world.open().await), (0, 1));
            } else {
                release(cancel).await;
                commit.await.unwrap().unwrap();
                assert_eq!(world.effects().await, 1);
            }
        }
    }
}

#[tokio::test]
async fn a_cancel_waits_for_a_commit_that_has_its_locks_and_finds_nothing_after_a_complete() {
    for call in BOTH {
        let world = World::new().await;
        let (commit, gate) = world.held(call).await;
        let (store, id) = (world.db.another(), world.first.id);
        let cancel = tokio::spawn(async move { store.cancel(id).await });
        world.waiting(2, &cancel).await;
        release(gate).await;
        commit.await.unwrap().unwrap();
        assert_eq!(cancel.await.unwrap().unwrap(), call == Call::Guard);
        assert_eq!((world.effects().await, world.open().await), (1, 1));
        let state = world.db.view(id).await.state;
        let expected = match call {
            Call::Guard => State::Cancelled,
            Call::Complete => State::Succeeded,
        };
        assert_eq!(state, expected);
    }
}

#[tokio::test]
async fn a_commit_waits_for_the_retry_of_its_timed_out_run_and_is_refused_after_it() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        let mut retry = Session::new(&world.db).await;
        retry.run("begin").await.unwrap();
        let token = world.first.token();
        let sent = sqlx::query_file!(
            "src/store/sql/retry.sql",
            world.me.incarnation.0,
            world.me.boot,
            &[i32::from(token.id.slot)],
            &[token.id.number],
            &[token.epoch.get()],
            &[token.attempt],
            &[world.first.key.as_str().to_owned()],
            &[0_i64],
            &[1_i32],
            &[Some("timeout".to_owned())] as &[Option<String>]
        );
        assert_eq!(sent.fetch_all(retry.connection()).await.unwrap().len(), 1);
        let commit = tokio::spawn(async move { mine.run("commit").await });
        world.waiting(1, &commit).await;
        retry.run("commit").await.unwrap();
        is(commit.await.unwrap(), "RM001");
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
    }
}

#[tokio::test]
async fn what_sends_a_task_back_waits_for_a_commit_that_has_its_locks_and_finds_nothing_after_a_complete() {
    for call in BOTH {
        for retries in [true, false] {
            let world = World::new().await;
            let (commit, gate) = world.held(call).await;
            let (store, me, row) = (world.db.another(), world.me, retry_of(&world));
            let back = tokio::spawn(async move {
                if retries {
                    store.retry(me, std::slice::from_ref(&row)).await
                } else {
                    store.give_back(me, &[row.token]).await
                }
            });
            world.waiting(2, &back).await;
            release(gate).await;
            commit.await.unwrap().unwrap();
            let back = back.await.unwrap().unwrap();
            assert_eq!(back.len(), usize::from(call == Call::Guard), "{retries}");
            let seen = world.read_back().await;
            let expected = match call {
                Call::Guard => ReadBack::Waits,
                Call::Complete => ReadBack::Ended,
            };
            assert_eq!((seen, world.effects().await), (expected, 1));
            let held = number(&world.db, "select count(*) from ringmesh.held_key").await;
            assert_eq!(held, i64::from(retries && call == Call::Guard));
        }
    }
}

/// A claim anew changes no column of a key: a key share lock would let it pass.
#[tokio::test]
async fn a_guarded_task_cannot_be_claimed_anew_while_its_transaction_commits() {
    let world = World::new().await;
    let (commit, gate) = world.held(Call::Guard).await;
    let sql = format!(
        "select count(*) from (select from ringmesh.task where id = {} for no key update skip locked) free",
        world.first.id.number
    );
    assert_eq!(number(&world.db, &sql).await, 0);
    release(gate).await;
    commit.await.unwrap().unwrap();
    assert_eq!(number(&world.db, &sql).await, 1);
}

#[tokio::test]
async fn a_run_whose_task_was_claimed_anew_under_the_same_epoch_commits_nothing() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        let token = world.first.token();
        assert_eq!(
            world.db.store.give_back(world.me, &[token]).await.unwrap().len(),
            1
        );
        let (slot, epoch) = world.granted();
        let again = claim(&world.db, world.me, slot, epoch).await.remove(0);
        assert_eq!(again.token(), Token { attempt: 2, ..token });
        is(mine.run("commit").await, "RM001");
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
        let mut present = world.effect("present").await;
        present.run(&of(call, &again)).await.unwrap();
        present.run("commit").await.unwrap();
        assert_eq!(world.effects().await, 1);
    }
}

#[tokio::test]
async fn a_commit_waits_for_the_nodes_own_finish_and_is_refused_after_it() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        let mut finish = Session::new(&world.db).await;
        finish.run("begin").await.unwrap();
        let token = world.first.token();
        let ended = sqlx::query_file!(
            "src/store/sql/finish.sql",
            world.me.incarnation.0,
            world.me.boot,
            &[i32::from(token.id.slot)],
            &[token.id.number],
            &[token.epoch.get()],
            &[token.attempt],
            &["succeeded".to_owned()],
            &[None] as &[Option<String>],
            &[None] as &[Option<String>],
            &[1_i64],
            &[0_i32],
            &[false]
        );
        assert_eq!(ended.fetch_all(finish.connection()).await.unwrap().len(), 1);
        let commit = tokio::spawn(async move { mine.run("commit").await });
        world.waiting(1, &commit).await;
        finish.run("commit").await.unwrap();
        is(commit.await.unwrap(), "RM002");
        assert_eq!((world.effects().await, world.open().await), (0, 1), "{call:?}");
    }
}

#[tokio::test]
async fn a_finish_waits_for_a_commit_that_has_its_locks_and_ends_nothing_after_a_complete() {
    for call in BOTH {
        let world = World::new().await;
        let (commit, gate) = world.held(call).await;
        let (store, me, row) = (world.db.another(), world.me, finish_of(&world));
        let finish = tokio::spawn(async move { store.finish(me, &[row]).await });
        world.waiting(2, &finish).await;
        release(gate).await;
        commit.await.unwrap().unwrap();
        let ended = finish.await.unwrap().unwrap();
        assert_eq!(ended.len(), usize::from(call == Call::Guard));
        // By whichever of the two: the node reads it as ended by this run.
        assert_eq!(world.read_back().await, ReadBack::Ended);
        let view = world.db.view(world.first.id).await;
        let result = view.result.map(|result| result.get().to_owned());
        assert_eq!(result.is_some(), call == Call::Guard);
    }
}

#[tokio::test]
async fn a_run_whose_slot_was_granted_to_another_and_claimed_there_commits_nothing() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        let other = world.other().await;
        let by = world.me.incarnation;
        let fenced = world
            .db
            .store
            .fence(by, Some(0), FenceKind::Expired, other.incarnation)
            .await;
        assert_eq!(fenced.unwrap(), Fencing::Fenced);
        let granted = world.db.store.grant(other, &[world.granted()]).await.unwrap();
        let (slot, epoch) = granted[0];
        let again = claim(&world.db, other, slot, epoch).await.remove(0);
        assert_eq!(again.id, world.first.id);
        is(mine.run("commit").await, "RM001");
        is(mine.run(&of(call, &world.first)).await, "RM001");
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
    }
}

#[tokio::test]
async fn a_trial_changes_nothing_for_a_run() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        let token = world.first.token();
        world.db.store.start_trial(world.me, &[token], 2).await.unwrap();
        mine.run("commit").await.unwrap();
        assert_eq!(world.effects().await, 1, "{call:?}");
    }
}

#[tokio::test]
async fn a_run_of_a_barred_node_may_try_again_and_commits_when_the_bar_is_lifted() {
    for call in BOTH {
        let world = World::new().await;
        let mut mine = world.registered(call).await;
        world.db.cut_short(world.me).await;
        is(mine.run("commit").await, "RM003");
        assert_eq!((world.effects().await, world.open().await), (0, 2), "{call:?}");
        let mut again = world.registered(call).await;
        run(
            &world.db,
            "update ringmesh.node set lease_until = clock_timestamp() + interval '600 s'",
        )
        .await;
        again.run("commit").await.unwrap();
        assert_eq!(world.effects().await, 1);
    }
}

#[tokio::test]
async fn of_two_completes_of_one_run_one_commits() {
    for first_commits in [true, false] {
        let world = World::new().await;
        let (one, gate) = world.held(Call::Complete).await;
        let mut two = world.effect("two").await;
        let (id, epoch, attempt) = (world.first.id, world.first.epoch.get(), world.first.attempt);
        let complete = format!("select ringmesh.complete('{id}', {epoch}, {attempt}, '\"two\"')");
        two.run(&complete).await.unwrap();
        let two = tokio::spawn(async move { two.run("commit").await });
        world.waiting(2, &two).await;
        let expected = if first_commits {
            release(gate).await;
            one.await.unwrap().unwrap();
            is(two.await.unwrap(), "RM002");
            None
        } else {
            let end = "select pg_terminate_backend(pid) from pg_stat_activity
                       where wait_event_type = 'Lock' and datname = current_database()
                       order by xact_start limit 1";
            run(&world.db, end).await;
            one.await.unwrap().unwrap_err();
            two.await.unwrap().unwrap();
            release(gate).await;
            Some("\"two\"".to_owned())
        };
        assert_eq!((world.effects().await, world.open().await), (1, 1));
        let view = world.db.view(id).await;
        assert_eq!(view.result.map(|result| result.get().to_owned()), expected);
        assert_eq!(
            number(&world.db, "select count(*) from ringmesh.finished_task").await,
            1
        );
    }
}

#[tokio::test]
async fn slots_and_tasks_are_taken_in_their_order_whatever_the_order_of_the_calls() {
    let world = World::new().await;
    let mut one = world.effect("one").await;
    for task in [&world.second, &world.first] {
        one.run(&of(Call::Complete, task)).await.unwrap();
    }
    let mut two = world.effect("two").await;
    for task in [&world.first, &world.second] {
        two.run(&of(Call::Complete, task)).await.unwrap();
    }
    // As a transfer takes slots; it has the lower one.
    let (low, high) = (i32::from(world.first.id.slot), i32::from(world.second.id.slot));
    let mut mover = Session::new(&world.db).await;
    let lock = format!("begin; select from ringmesh.slot where slot = {low} for update");
    mover.run(&lock).await.unwrap();
    let one = tokio::spawn(async move { one.run("commit").await });
    world.waiting(1, &one).await;
    let two = tokio::spawn(async move { two.run("commit").await });
    world.waiting(2, &two).await;
    let lock = format!("select from ringmesh.slot where slot = {high} for update; commit");
    mover.run(&lock).await.unwrap();
    let (one, two) = (one.await.unwrap(), two.await.unwrap());
    assert!(one.is_ok() != two.is_ok(), "{one:?} {two:?}");
    is(if one.is_ok() { two } else { one }, "RM002");
    assert_eq!((world.effects().await, world.open().await), (1, 0));
}

#[tokio::test]
async fn of_two_tasks_in_one_transaction_neither_ends_if_one_is_stale() {
    let world = World::new().await;
    let mut mine = world.registered(Call::Complete).await;
    mine.run(&of(Call::Complete, &world.second)).await.unwrap();
    let token = world.second.token();
    world.db.store.give_back(world.me, &[token]).await.unwrap();
    is(mine.run("commit").await, "RM001");
    assert_eq!((world.effects().await, world.open().await), (0, 2));
    assert_eq!(world.read_back().await, ReadBack::Open);
}

#[tokio::test]
async fn a_deferred_foreign_key_that_waits_does_not_hold_up_a_fencer() {
    for call in BOTH {
        let world = World::new().await;
        let tables = "create table public.parent (id integer primary key); insert into public.parent values (1);
                      create table public.child (id integer references public.parent deferrable initially deferred)";
        run(&world.db, tables).await;
        // Before and after: the order in which a transaction defers things shall not matter.
        let mut mine = world.registered(call).await;
        mine.run("insert into public.child values (1)").await.unwrap();
        let mut deletes = Session::new(&world.db).await;
        deletes.run("begin; delete from public.parent").await.unwrap();
        let commit = tokio::spawn(async move { mine.run("commit").await });
        world.waiting(1, &commit).await;
        let free = "select count(*) from (select from ringmesh.node where fenced_at is null for update skip locked) free";
        assert_eq!(number(&world.db, free).await, 1, "{call:?}");
        release(deletes).await;
        commit.await.unwrap().unwrap();
        assert_eq!(world.effects().await, 1);
    }
}

#[tokio::test]
async fn a_complete_lifts_the_hold_of_which_its_task_is_the_head() {
    for behind in [true, false] {
        let world = World::new().await;
        let (slot, number_of, key) = (
            i32::from(world.first.id.slot),
            world.first.id.number,
            world.first.key.as_str(),
        );
        let hold = format!(
            "insert into ringmesh.held_key values ({slot}, '{key}', {number_of}, 'retry', now(), {behind}),
                                                  ({slot}, 'another', 4711, 'retry', now(), false)"
        );
        run(&world.db, &hold).await;
        let mut mine = world.registered(Call::Complete).await;
        mine.run("commit").await.unwrap();
        let left = "select count(*) from ringmesh.held_key where key <> 'another'";
        assert_eq!(number(&world.db, left).await, i64::from(behind));
        let lifting = format!(
            "select count(*) from ringmesh.held_key where task = -{number_of} and reason = 'lifting'"
        );
        assert_eq!(number(&world.db, &lifting).await, i64::from(behind));
        assert_eq!(
            number(
                &world.db,
                "select count(*) from ringmesh.held_key where task = 4711"
            )
            .await,
            1
        );
    }
}

#[tokio::test]
async fn a_transaction_that_failed_after_its_complete_ends_nothing() {
    let world = World::new().await;
    let mut mine = world.registered(Call::Complete).await;
    is(mine.run("select 1 / 0").await, "22012");
    // Postgres answers it with a rollback.
    mine.run("commit").await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (0, 2));
    assert_eq!(world.read_back().await, ReadBack::Open);
}

/// What is archived is what the node's own finish would have archived.
#[tokio::test]
async fn a_completed_task_is_kept_as_one_that_its_node_finished() {
    let world = World::new().await;
    let kept = "select count(*) from ringmesh.finished_task
                where state = 'succeeded' and key = $2 and attempt = 1 and epoch = 1
                  and node is not null and payload is null and error is null and started_at >= created_at
                  and finished_at >= started_at and id = $1";
    let mut by_sql = world.effect("one").await;
    by_sql.run(&of(Call::Complete, &world.first)).await.unwrap();
    by_sql.run("commit").await.unwrap();
    let row = Finish {
        token: world.second.token(),
        ..finish_of(&world)
    };
    assert_eq!(world.db.store.finish(world.me, &[row]).await.unwrap().len(), 1);
    for task in [&world.first, &world.second] {
        let found = sqlx::query_scalar::<_, i64>(kept)
            .bind(task.id.number)
            .bind(task.key.as_str());
        assert_eq!(
            found.fetch_one(&world.db.store.pool).await.unwrap(),
            1,
            "{}",
            task.id
        );
    }
}
