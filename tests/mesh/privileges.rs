//! A mesh needs no rights but those over its own schema, and who only submits needs fewer still.

use std::time::Duration;

use ringmesh::dev::{Mesh, Postgres, mesh, postgres};
use ringmesh::sqlx::postgres::PgPoolOptions;
use ringmesh::sqlx::{self, AssertSqlSafe, PgPool};
use serde_json::{Value, json};

use crate::harness::{SLACK, UNHURRIED};

/// As docs/operations.md tells it.
const ROLES: &str = "
    create role plain login password 'plain-role';
    create role app login password 'only-submits';
    revoke all on schema public from public;";
const FOR_THE_APP: &str = "
    grant usage on schema ringmesh to app;
    grant insert, select (id) on ringmesh.task to app;
    grant usage on sequence ringmesh.task_id to app;";

fn url(postgres: &Postgres, role: &str, password: &str) -> String {
    let place = postgres.url();
    let place = place.split_once('@').unwrap().1;
    format!("postgres://{role}:{password}@{place}")
}

async fn pool(url: &str) -> PgPool {
    let options = PgPoolOptions::new().max_connections(2).acquire_timeout(SLACK);
    options.connect(url).await.unwrap()
}

async fn run(db: &PgPool, sql: &str) -> Result<(), sqlx::Error> {
    sqlx::raw_sql(AssertSqlSafe(sql.to_owned()))
        .execute(db)
        .await
        .map(|_| ())
}

#[tokio::test]
async fn mesh_of_a_plain_role_lives_through_a_death_and_an_application_can_only_submit() {
    let postgres = Postgres::start(postgres::Options::for_tests()).await.unwrap();
    let admin = pool(&postgres.url()).await;
    run(&admin, ROLES).await.unwrap();
    let database: String = sqlx::query_scalar("select quote_ident(current_database())")
        .fetch_one(&admin)
        .await
        .unwrap();
    run(&admin, &format!("grant create on database {database} to plain"))
        .await
        .unwrap();
    let rights: (bool, bool, bool) =
        sqlx::query_as("select rolsuper, rolcreaterole, rolbypassrls from pg_roles where rolname = 'plain'")
            .fetch_one(&admin)
            .await
            .unwrap();
    assert_eq!(rights, (false, false, false));

    // Its nodes make the schema, all at once.
    let dir = postgres
        .dir()
        .with_file_name(format!("{}-plain", postgres.dir().file_name().unwrap().display()));
    std::fs::create_dir_all(&dir).unwrap();
    let mut mesh = Mesh::start(mesh::Options {
        nodes: 3,
        base_port: 0,
        binary: env!("CARGO_BIN_EXE_ringmesh").into(),
        extra_env: vec![(UNHURRIED.0.into(), UNHURRIED.1.into())],
        log_dir: dir.clone(),
        ready_within: Duration::from_secs(120),
        ..mesh::Options::new(url(&postgres, "plain", "plain-role")).unwrap()
    })
    .await
    .unwrap();
    let owner: String =
        sqlx::query_scalar("select distinct tableowner::text from pg_tables where schemaname = 'ringmesh'")
            .fetch_one(&admin)
            .await
            .unwrap();
    assert_eq!(owner, "plain");

    // A death, a takeover, and work before and after.
    let http = ringmesh::tls::http_client()
        .no_proxy()
        .timeout(SLACK * 2)
        .build()
        .unwrap();
    let work = async |node: usize, mesh: &Mesh| {
        for number in 0..30 {
            let task = json!({"kind": "echo", "key": format!("k{number}"), "payload": number});
            let asked = http
                .post(format!("{}/v1/tasks?wait=60s", mesh.nodes()[node].url()))
                .json(&task);
            let answer: Value = asked.send().await.unwrap().json().await.unwrap();
            assert_eq!(
                (&answer["state"], &answer["result"]),
                (&json!("succeeded"), &json!(number)),
                "{answer}"
            );
        }
    };
    work(0, &mesh).await;
    mesh.nodes_mut()[0].kill().await.unwrap();
    work(1, &mesh).await;
    let fenced: i64 = sqlx::query_scalar("select count(*) from ringmesh.node where fenced_as = 'noticed'")
        .fetch_one(&admin)
        .await
        .unwrap();
    assert_eq!(fenced, 1);

    // The application's role: it may submit, and nothing else.
    run(&admin, FOR_THE_APP).await.unwrap();
    let app = pool(&url(&postgres, "app", "only-submits")).await;
    let id: String = sqlx::query_scalar("select ringmesh.enqueue('echo', 'from-sql', '1')")
        .fetch_one(&app)
        .await
        .unwrap();
    let read = http.get(format!("{}/v1/tasks/{id}?wait=60s", mesh.nodes()[1].url()));
    let answer: Value = read.send().await.unwrap().json().await.unwrap();
    assert_eq!(answer["state"], "succeeded", "{answer}");
    for forbidden in [
        "select payload from ringmesh.task",
        "select key from ringmesh.task",
        "update ringmesh.task set attempt = 7",
        "delete from ringmesh.task",
        "truncate ringmesh.task",
        "select * from ringmesh.finished_task",
        "select * from ringmesh.idempotency",
        "select * from ringmesh.held_key",
        "select secret_check from ringmesh.mesh",
        "delete from ringmesh.mesh",
        "select * from ringmesh.node",
        "update ringmesh.node set fenced_at = now()",
        "select * from ringmesh.lease",
        "update ringmesh.lease set renewals = 0",
        "update ringmesh.slot set owner = 1, epoch = epoch + 1",
        "select nextval('ringmesh.incarnation')",
        "select setval('ringmesh.task_id', 1)",
        "create table ringmesh.mine ()",
        "create or replace function ringmesh.slot_of(key text) returns integer language sql immutable strict as 'select 1'",
        "alter table ringmesh.task disable trigger all",
        "drop schema ringmesh cascade",
        "drop function ringmesh.enqueue",
    ] {
        let error = run(&app, forbidden).await.expect_err(forbidden);
        assert_eq!(
            error
                .as_database_error()
                .and_then(|error| error.code())
                .as_deref(),
            Some("42501"),
            "{forbidden}: {error}"
        );
    }
    mesh.stop(SLACK).await.unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
