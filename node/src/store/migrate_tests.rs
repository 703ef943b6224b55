//! Migrations that die half-way, that meet, and that are too late.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::testing::fresh_unmigrated;
use super::*;

/// The backend that runs the n-th DDL command of this database ends itself there, whoever it is.
const DIE_AT: &str = "
    create table public.die (at integer);
    insert into public.die values (0);
    create sequence public.step;
    create function public.step() returns event_trigger language plpgsql as $$
    begin
        if nextval('public.step') = (select at from public.die) then
            perform pg_terminate_backend(pg_backend_pid());
        end if;
    end $$;
    create event trigger step on ddl_command_end execute function public.step();
";

async fn number(session: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
        .fetch_one(session)
        .await
        .unwrap()
}

async fn die_at(session: &mut PgConnection, step: i32) {
    // Not by DDL, which counts.
    let sql = format!("update public.die set at = {step}; select setval('public.step', 1, false)");
    sqlx::raw_sql(AssertSqlSafe(sql)).execute(session).await.unwrap();
}

#[tokio::test]
async fn a_migration_that_is_killed_at_any_step_leaves_nothing_and_nobody_waiting() {
    let fresh = fresh_unmigrated().await;
    let mut session = PgConnection::connect(&fresh.server.url()).await.unwrap();
    sqlx::raw_sql(DIE_AT).execute(&mut session).await.unwrap();
    let mut steps = 0;
    for step in 1.. {
        die_at(&mut session, step).await;
        match fresh.store.migrate().await {
            Ok(applied) => {
                assert!(applied > 0, "it was the first to get through");
                break;
            }
            // Whoever starts just then may try again.
            Err(MigrateError::Store(Error::Unknown(_) | Error::Unavailable(_))) => {}
            Err(error) => panic!("killed at step {step}: {error:?}"),
        }
        steps = step;
        assert_eq!(
            number(
                &mut session,
                "select count(*) from pg_namespace where nspname = 'ringmesh'"
            )
            .await,
            0,
            "step {step}"
        );
    }
    assert!(steps > 20, "{steps} steps");
    let locks = "select count(*) from pg_locks where locktype = 'advisory'";
    assert_eq!(number(&mut session, locks).await, 0);
    die_at(&mut session, 0).await;
    assert_eq!(fresh.store.migrate().await.unwrap(), 0);
}

#[tokio::test]
async fn of_many_migrations_at_once_one_dies_and_one_of_the_others_does_it() {
    let fresh = fresh_unmigrated().await;
    let mut session = PgConnection::connect(&fresh.server.url()).await.unwrap();
    sqlx::raw_sql(DIE_AT).execute(&mut session).await.unwrap();
    die_at(&mut session, 15).await;
    let migrations = (0..6).map(|_| fresh.store.migrate());
    let done = futures::future::join_all(migrations).await;
    let died = done.iter().filter(|done| done.is_err()).count();
    let applied: usize = done.iter().filter_map(|done| done.as_ref().ok()).sum();
    let known = number(&mut session, "select count(*) from ringmesh._sqlx_migrations").await;
    assert_eq!((died, applied as i64), (1, known), "{done:?}");
}

#[tokio::test]
async fn a_newer_schema_is_left_as_it_is() {
    let fresh = super::testing::fresh().await;
    let mut session = PgConnection::connect(&fresh.server.url()).await.unwrap();
    let newer = "
        insert into ringmesh._sqlx_migrations (version, description, success, checksum, execution_time)
        values (9999, 'from the future', true, '', 1);
        insert into ringmesh.mesh (slots, tokens, load_bound, ring_version, ttl_ms, secret_check) values (4096, 512, 1.25, 1, 3000, '')";
    sqlx::raw_sql(newer).execute(&mut session).await.unwrap();
    let all = "select md5(string_agg(m::text, ',' order by version)) || (select md5(string_agg(n::text, ',')) from ringmesh.mesh n) from ringmesh._sqlx_migrations m";
    let before: String = sqlx::query_scalar(all).fetch_one(&mut session).await.unwrap();
    // It still allows this binary.
    assert_eq!(fresh.store.migrate().await.unwrap(), 0);
    let now: String = sqlx::query_scalar(all).fetch_one(&mut session).await.unwrap();
    assert_eq!(now, before);
    // It does not any more.
    sqlx::raw_sql("update ringmesh.mesh set oldest_binary = 9999")
        .execute(&mut session)
        .await
        .unwrap();
    let before: String = sqlx::query_scalar(all).fetch_one(&mut session).await.unwrap();
    let error = fresh.store.migrate().await.unwrap_err();
    assert!(
        matches!(error, MigrateError::TooOld { needed: 9999, .. }),
        "{error:?}"
    );
    let now: String = sqlx::query_scalar(all).fetch_one(&mut session).await.unwrap();
    assert_eq!(now, before);
}

#[tokio::test]
async fn leases_are_added_beside_open_writers_and_old_snapshots() {
    let fresh = super::testing::fresh().await;
    let mut session = PgConnection::connect(&fresh.server.url()).await.unwrap();
    // As the version before left it, with a node of that version.
    let before = "
        drop table ringmesh.lease;
        delete from ringmesh._sqlx_migrations where version = 2;
        insert into ringmesh.node (incarnation, boot, name, http, gossip, weight, lease_until, renewals)
        values (nextval('ringmesh.incarnation'), 7, 'old', '127.0.0.1:1', '127.0.0.1:1', 1, now() + interval '600 s', 5)";
    sqlx::raw_sql(before).execute(&mut session).await.unwrap();
    let mut writer = fresh.session().await;
    writer
        .run("begin; update ringmesh.node set renewals = renewals + 1")
        .await;
    let mut snapshot = fresh.session().await;
    snapshot
        .run("begin isolation level repeatable read; select from ringmesh.node")
        .await;
    assert_eq!(fresh.store.migrate().await.unwrap(), 1);
    writer.run("commit").await;
    snapshot.run("commit").await;
    let nodes = fresh.store.unfenced_nodes(&Ask::All).await.unwrap();
    let seen: Vec<_> = nodes.iter().map(|node| (&*node.name, node.renewals)).collect();
    assert_eq!(seen, [("old", 6)]);
    assert!(nodes[0].lease_ms > 0);
}

#[tokio::test]
async fn effects_are_added_beside_an_open_enqueue_a_locked_slot_and_an_old_snapshot() {
    let fresh = super::testing::fresh().await;
    let mut session = PgConnection::connect(&fresh.server.url()).await.unwrap();
    // As the version before left it.
    let before = "
        drop function ringmesh.guard, ringmesh.complete, ringmesh.apply_once, ringmesh.register, ringmesh.look, ringmesh.refuse,
                      ringmesh.check_json, ringmesh.parse_id;
        drop table ringmesh.at_commit, ringmesh.inbox;
        drop function ringmesh.on_commit;
        drop sequence ringmesh.inbox_again;
        delete from ringmesh._sqlx_migrations where version = 4;
        insert into ringmesh.node (incarnation, boot, name, http, gossip, weight, lease_until)
        values (1, 7, 'a', '127.0.0.1:1', '127.0.0.1:1', 1, now() + interval '600 s');
        update ringmesh.slot set owner = 1, epoch = 1";
    sqlx::raw_sql(before).execute(&mut session).await.unwrap();
    let mut writer = fresh.session().await;
    writer
        .run("begin; select ringmesh.enqueue('noop', 'k', '1')")
        .await;
    let mut fenced = fresh.session().await;
    fenced
        .run("begin; select from ringmesh.node for key share; select from ringmesh.slot for share")
        .await;
    let mut snapshot = fresh.session().await;
    snapshot
        .run("begin isolation level repeatable read; select from ringmesh.task, ringmesh.finished_task")
        .await;
    assert_eq!(fresh.store.migrate().await.unwrap(), 1);
    // What was there before is what it works on.
    writer.run("commit").await;
    let complete = "
        update ringmesh.task set epoch = 1, attempt = 1, started_at = now();
        select ringmesh.complete(slot || '-' || id, 1, 1) from ringmesh.task";
    sqlx::raw_sql(complete).execute(&mut session).await.unwrap();
    for mut open in [fenced, snapshot] {
        open.run("commit").await;
    }
    assert_eq!(
        number(&mut session, "select count(*) from ringmesh.finished_task").await,
        1
    );
}

#[tokio::test]
async fn a_mesh_that_an_older_binary_founded_learns_its_clusters_check_once_and_from_its_own_nodes() {
    let fresh = super::testing::fresh().await;
    let mut session = PgConnection::connect(&fresh.server.url()).await.unwrap();
    let older = "insert into ringmesh.mesh (slots, tokens, load_bound, ring_version, ttl_ms, secret_check)
                 values (4096, 512, 1.25, 1, 3000, 'secret')";
    sqlx::raw_sql(older).execute(&mut session).await.unwrap();
    let settings = |secret: &str, cluster: &str| super::MeshSettings {
        slots: 4096,
        tokens: 512,
        load_bound: Some(1.25),
        ring_version: 1,
        ttl_ms: 3000,
        secret_check: secret.to_owned(),
        cluster_check: Some(cluster.to_owned()),
    };
    for (secret, cluster, known) in [
        ("another", "x", None),
        ("secret", "mine", Some("mine")),
        ("secret", "y", Some("mine")),
    ] {
        let mesh = fresh.store.found_mesh(&settings(secret, cluster)).await.unwrap();
        assert_eq!(mesh.cluster_check.as_deref(), known);
        assert_eq!(mesh.secret_check, "secret");
    }
}
