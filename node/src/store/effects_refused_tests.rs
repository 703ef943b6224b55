//! What guard, complete and apply_once refuse, since they could not keep it; and that nothing of it is half-written.

use super::effects_testing::{BOTH, Call, World, is, of};
use super::races_tests::{claim, number, run};
use crate::task::State;

/// Runs these in one transaction that has an effect, and commits what comes of it: nothing.
async fn refused(world: &World, statements: &[&str], state: &str) {
    let mut session = world.effect("refused").await;
    let (last, before) = statements.split_last().unwrap();
    for sql in before {
        session
            .run(sql)
            .await
            .unwrap_or_else(|error| panic!("{sql}: {error}"));
    }
    let result = session.run(last).await;
    assert!(result.is_err(), "{statements:?} went well");
    is(result, state);
    // A transaction that failed answers it with a rollback.
    session.run("commit").await.unwrap();
    let prepared = number(&world.db, "select count(*) from pg_prepared_xacts").await;
    assert_eq!(
        (world.effects().await, world.open().await, prepared),
        (0, 2, 0),
        "{statements:?}"
    );
}

#[tokio::test]
async fn a_savepoint_is_refused_unless_it_is_said_that_it_stays() {
    let world = World::new().await;
    for call in BOTH {
        let call = of(call, &world.first);
        refused(&world, &["savepoint s", &call], "0A000").await;
        // PL/pgSQL's handlers of exceptions are savepoints.
        let block = format!(
            "do $$ begin perform {}; exception when division_by_zero then null; end $$",
            &call[7..]
        );
        refused(&world, &[&block], "0A000").await;
        // Back before the savepoint, the call is good.
        let mut session = world.effect("tried").await;
        session.run("savepoint s").await.unwrap();
        is(session.run(&call).await, "0A000");
        session.run("rollback to s; release s").await.unwrap();
        session.run(&call).await.unwrap();
        session.run("rollback").await.unwrap();
    }
    let guard = of(Call::Guard, &world.first);
    let complete = of(Call::Complete, &world.first);
    refused(&world, &[&guard, "savepoint s", &complete], "0A000").await;
    // Within a savepoint, what a guard outside has registered is enough for another guard.
    let mut session = world.effect("guarded").await;
    for sql in [&guard, "savepoint s", &guard, "rollback to s", "commit"] {
        session.run(sql).await.unwrap();
    }
    assert_eq!((world.effects().await, world.open().await), (1, 2));
}

#[tokio::test]
async fn a_savepoint_that_was_allowed_keeps_what_stays_of_it() {
    let world = World::new().await;
    let allowed = |call| of(call, &world.first).replace(')', ", in_savepoint => true)");
    let guard = of(Call::Guard, &world.first);
    // The guard stays, the complete was rolled back.
    let mut session = world.effect("one").await;
    for sql in [
        &guard,
        "savepoint s",
        &allowed(Call::Complete),
        "rollback to s",
        "commit",
    ] {
        session.run(sql).await.unwrap();
    }
    assert_eq!((world.effects().await, world.open().await), (1, 2));
    let mut stale = world.effect("two").await;
    for sql in [&guard, "savepoint s", &allowed(Call::Complete), "rollback to s"] {
        stale.run(sql).await.unwrap();
    }
    let mut session = world.effect("three").await;
    for sql in ["savepoint s", &allowed(Call::Complete), "release s", "commit"] {
        session.run(sql).await.unwrap();
    }
    assert_eq!((world.effects().await, world.open().await), (2, 1));
    is(stale.run("commit").await, "RM002");
    assert_eq!(world.effects().await, 2);
}

#[tokio::test]
async fn a_guarded_transaction_cannot_be_prepared() {
    let world = World::new().await;
    for call in BOTH {
        let call = of(call, &world.first);
        for prepare in [
            "prepare transaction 'x'",
            "PREPARE/* as said */TRANSACTION 'x'",
            "prepare -- as said\n transaction 'x'",
        ] {
            refused(&world, &[&call, prepare], "0A000").await;
        }
        // The extended protocol.
        let mut session = world.effect("refused").await;
        session.run(&call).await.unwrap();
        let prepared = sqlx::query("prepare transaction 'x'")
            .execute(session.connection())
            .await
            .map(|_| ());
        is(prepared, "0A000");
        assert_eq!((world.effects().await, world.open().await), (0, 2));
    }
}

#[tokio::test]
async fn a_guarded_transaction_cannot_look_before_its_commit() {
    let world = World::new().await;
    let within = "create function public.early() returns void language plpgsql as $$
                  begin set constraints all immediate; end $$";
    run(&world.db, within).await;
    for call in BOTH {
        let call = of(call, &world.first);
        for early in [
            "set constraints all immediate",
            "SET /* all of them */ CONSTRAINTS ringmesh.at_commit IMMEDIATE",
            "select public.early()",
        ] {
            refused(&world, &[&call, early], "0A000").await;
            refused(&world, &[early, &call], "0A000").await;
        }
        let mut session = world.effect("refused").await;
        session.run(&call).await.unwrap();
        let early = sqlx::query("set constraints all immediate")
            .execute(session.connection())
            .await
            .map(|_| ());
        is(early, "0A000");
    }
    assert_eq!((world.effects().await, world.open().await), (0, 2));
}

#[tokio::test]
async fn the_commit_of_a_procedure_is_a_commit() {
    let world = World::new().await;
    let procedure = |name: &str, call| {
        format!(
            "create procedure public.{name}() language plpgsql as $$
             begin insert into public.effect values ('{name}'); perform {}; commit; end $$",
            &of(call, &world.first)[7..]
        )
    };
    run(&world.db, &procedure("guards", Call::Guard)).await;
    run(&world.db, &procedure("completes", Call::Complete)).await;
    run(&world.db, "call public.guards()").await;
    assert_eq!((world.effects().await, world.open().await), (1, 2));
    run(&world.db, "call public.completes()").await;
    assert_eq!((world.effects().await, world.open().await), (2, 1));
}

#[tokio::test]
async fn only_read_committed_can_be_guarded_and_what_reads_only_cannot_write() {
    let world = World::new().await;
    for call in BOTH {
        let call = of(call, &world.first);
        for level in ["repeatable read", "serializable"] {
            let mut session = world.effect("refused").await;
            session.run("rollback").await.unwrap();
            let begin =
                format!("begin isolation level {level}; insert into public.effect values ('refused')");
            session.run(&begin).await.unwrap();
            is(session.run(&call).await, "0A000");
            session.run("commit").await.unwrap();
        }
        let mut session = world.effect("refused").await;
        session.run("rollback; begin read only").await.unwrap();
        is(session.run(&call).await, "25006");
    }
    let mut session = world.effect("refused").await;
    session.run("rollback; begin read only").await.unwrap();
    is(session.run("select ringmesh.apply_once('x')").await, "25006");
    assert_eq!((world.effects().await, world.open().await), (0, 2));
}

#[tokio::test]
async fn numbers_of_no_task_of_another_claim_or_of_another_start_are_refused_by_their_codes() {
    let world = World::new().await;
    let id = world.first.id.to_string();
    let slot = i32::from(world.first.id.slot);
    for name in ["guard", "complete"] {
        for (arguments, state) in [
            (format!("'{slot}-99', 1, 1"), "RM004"),
            ("'4095-9223372036854775807', 1, 1".to_owned(), "RM004"),
            (format!("'{id}', 2, 1"), "RM001"),
            (format!("'{id}', 1, 2"), "RM001"),
            (format!("'{id}', 1, 1, boot => 8"), "RM001"),
            (format!("'{id}', 0, 1"), "22023"),
            (format!("'{id}', 1, 0"), "22023"),
            (format!("'{id}', null, 1"), "22023"),
            (format!("'{id}', 1, null"), "22023"),
            ("null, 1, 1".to_owned(), "22023"),
            ("'', 1, 1".to_owned(), "22023"),
            ("'4096-1', 1, 1".to_owned(), "22023"),
            ("'1-0', 1, 1".to_owned(), "22023"),
            ("'01-1', 1, 1".to_owned(), "22023"),
            ("'1-9223372036854775808', 1, 1".to_owned(), "22023"),
            (r"E'1-1\n', 1, 1".to_owned(), "22023"),
        ] {
            refused(&world, &[&format!("select ringmesh.{name}({arguments})")], state).await;
        }
    }
    for result in [
        "to_jsonb(repeat('x', 1048577))".to_owned(),
        format!("'{}1{}'", "[".repeat(128), "]".repeat(128)),
        "'1e400'".to_owned(),
    ] {
        let complete = format!("select ringmesh.complete('{id}', 1, 1, {result})");
        refused(&world, &[&complete], "22023").await;
    }
    refused(&world, &["select ringmesh.apply_once('')"], "22023").await;
    refused(&world, &["select ringmesh.apply_once(null)"], "22023").await;
    refused(
        &world,
        &["select ringmesh.apply_once(repeat('x', 1025))"],
        "22023",
    )
    .await;
    let mut session = world.effect("good").await;
    let good = format!("select ringmesh.complete('{id}', 1, 1, 'null', boot => 7); commit");
    session.run(&good).await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (1, 1));
    assert!(world.db.view(world.first.id).await.result.is_none());
}

#[tokio::test]
async fn what_has_ended_is_refused_at_the_call() {
    let world = World::new().await;
    let mut session = world.registered(Call::Complete).await;
    session.run("commit").await.unwrap();
    assert!(world.db.store.cancel(world.second.id).await.unwrap());
    for task in [&world.first, &world.second] {
        for call in BOTH {
            let mut late = world.effect("late").await;
            is(late.run(&of(call, task)).await, "RM002");
            late.run("commit").await.unwrap();
        }
    }
    assert_eq!((world.effects().await, world.open().await), (1, 0));
    assert_eq!(world.db.view(world.second.id).await.state, State::Cancelled);
}

#[tokio::test]
async fn one_transaction_is_of_one_claim_and_ends_a_task_once() {
    let world = World::new().await;
    let complete = of(Call::Complete, &world.first);
    refused(&world, &[&complete, &complete], "RM002").await;
    let mut session = world.registered(Call::Guard).await;
    let token = world.first.token();
    world.db.store.give_back(world.me, &[token]).await.unwrap();
    let again = claim(&world.db, world.me, token.id.slot, token.epoch)
        .await
        .remove(0);
    is(session.run(&of(Call::Complete, &again)).await, "RM001");
    session.run("commit").await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (0, 2));
    let mut session = world.effect("good").await;
    for call in [Call::Complete, Call::Guard] {
        session.run(&of(call, &again)).await.unwrap();
    }
    session.run("commit").await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (1, 1));
}

/// A session that says so passes over other triggers.
#[tokio::test]
async fn a_session_that_replicates_is_refused_as_any_other() {
    let world = World::new().await;
    for call in BOTH {
        let mut session = world.effect("stale").await;
        session
            .run("set local session_replication_role = replica")
            .await
            .unwrap();
        session.run(&of(call, &world.first)).await.unwrap();
        let stale = "update ringmesh.task set attempt = attempt + 1";
        run(&world.db, stale).await;
        is(session.run("commit").await, "RM001");
        run(&world.db, &stale.replace('+', "-")).await;
    }
    let mut session = world.effect("good").await;
    session
        .run("set local session_replication_role = replica")
        .await
        .unwrap();
    session.run(&of(Call::Complete, &world.first)).await.unwrap();
    session.run("commit").await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (1, 1));
}

#[tokio::test]
async fn settings_of_the_caller_change_nothing() {
    let world = World::new().await;
    let mut session = world.effect("good").await;
    for setting in [
        "set local standard_conforming_strings = off",
        "set local search_path = pg_temp, ringmesh",
        "create temp table at_commit (xact xid8)",
        "create temp table task (slot integer, id bigint)",
        "set local plan_cache_mode = force_custom_plan",
        "set local default_transaction_isolation = serializable",
        "set local lc_messages = 'C'",
    ] {
        session.run(setting).await.unwrap();
    }
    session.run(&of(Call::Complete, &world.first)).await.unwrap();
    session.run("commit").await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (1, 1));
}
