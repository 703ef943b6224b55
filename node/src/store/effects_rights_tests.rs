//! A role of handlers that may call the functions of runs, and nothing else.

use super::effects_testing::{Call, World, is, of};
use super::races_tests::{Session, run};

/// Roles belong to the server, which tests may share.
fn role(world: &World, name: &str) -> String {
    let database = world.db.url.rsplit('/').next().unwrap_or_default();
    format!("{name}_{database}")
}

async fn become_role(world: &World, role: &str) -> Session {
    let mut session = Session::new(&world.db).await;
    session
        .run(&format!("set session authorization {role}"))
        .await
        .unwrap();
    session
}

#[tokio::test]
async fn a_worker_completes_and_applies_and_reads_or_writes_no_table() {
    let world = World::new().await;
    let (worker, stranger) = (role(&world, "worker"), role(&world, "stranger"));
    let make = format!(
        "create role {worker}; create role {stranger};
         grant usage on schema ringmesh to {worker}, {stranger};
         grant insert on public.effect to {worker};
         grant execute on function ringmesh.guard, ringmesh.complete, ringmesh.apply_once to {worker}"
    );
    run(&world.db, &make).await;
    let id = world.first.id;
    let calls = [
        of(Call::Guard, &world.first),
        of(Call::Complete, &world.first),
        "select ringmesh.apply_once('x')".to_owned(),
    ];
    let mut session = become_role(&world, &stranger).await;
    for call in &calls {
        is(session.run(call).await, "42501");
    }
    let mut session = become_role(&world, &worker).await;
    let forbidden = [
        format!("select ringmesh.look('{id}', 1, 1, null)"),
        format!("select ringmesh.register('{id}', 1, 1, null, true, null, true)"),
        "select ringmesh.refuse(1, 1, 1, 1, 1)".to_owned(),
        "select from ringmesh.at_commit".to_owned(),
        "insert into ringmesh.at_commit (xact, slot, task, epoch, attempt) values ('1', 1, 1, 1, 1)".to_owned(),
        "delete from ringmesh.at_commit".to_owned(),
        "alter table ringmesh.at_commit disable trigger all".to_owned(),
        "drop trigger at_commit on ringmesh.at_commit".to_owned(),
        "select from ringmesh.inbox".to_owned(),
        "delete from ringmesh.inbox".to_owned(),
        "select nextval('ringmesh.inbox_again')".to_owned(),
        "select from ringmesh.task".to_owned(),
        "delete from ringmesh.task".to_owned(),
        "select from ringmesh.finished_task".to_owned(),
        "select ringmesh.enqueue('noop', 'k', '1')".to_owned(),
        "set session_replication_role = replica".to_owned(),
        "create or replace function ringmesh.guard(task text, epoch bigint, attempt integer) returns void language sql as ''"
            .to_owned(),
    ];
    for sql in &forbidden {
        is(session.run(sql).await, "42501");
    }
    // By its own statements, and at its commit.
    session
        .run("begin; insert into public.effect values ('mine')")
        .await
        .unwrap();
    for call in &calls {
        session.run(call).await.unwrap();
    }
    session.run("commit").await.unwrap();
    assert_eq!((world.effects().await, world.open().await), (1, 1));
    // What is stale is refused as to anybody else, and says nothing that would let it pass.
    let wrong = format!("select ringmesh.complete('{}', 5, 9)", world.second.id);
    is(session.run(&wrong).await, "RM001");
    let drop = format!("drop owned by {worker}, {stranger}; drop role {worker}, {stranger}");
    run(&world.db, &drop).await;
}
