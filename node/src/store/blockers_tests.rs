//! A fencer whose role may not end all who hold it up.

use sqlx::{Connection, PgConnection};

use super::effects_testing::World;
use super::races_tests::{Session, run, until};
use super::testing_owner::Database;

/// The same place, as another role.
fn url_of(db: &Database, role: &str) -> String {
    let (scheme, rest) = db.url.split_once("://").unwrap();
    let place = rest.split_once('@').map_or(rest, |(_, place)| place);
    format!("{scheme}://{role}:secret@{place}")
}

/// A transaction that holds up whoever fences the node.
async fn blocker(db: &Database, role: &str) -> PgConnection {
    let mut connection = PgConnection::connect(&url_of(db, role)).await.unwrap();
    sqlx::raw_sql("begin; select from ringmesh.node for key share")
        .execute(&mut connection)
        .await
        .unwrap();
    connection
}

#[tokio::test]
async fn sessions_that_may_not_be_ended_are_named_and_do_not_save_the_others() {
    let world = World::new().await;
    let database = world.db.url.rsplit('/').next().unwrap_or_default();
    let (node, handler) = (format!("node_{database}"), format!("handler_{database}"));
    let make = format!(
        "create role {node} login password 'secret'; create role {handler} login password 'secret';
         grant usage on schema ringmesh to {node}, {handler};
         grant select, update on all tables in schema ringmesh to {node}, {handler}"
    );
    run(&world.db, &make).await;
    let mut fencer = Session::new(&world.db).await;
    let pid = fencer.pid();
    let mut own = blocker(&world.db, &node).await;
    let mut others = blocker(&world.db, &handler).await;
    let fence = tokio::spawn(async move {
        // Behind a row, one would show after the other.
        let locked = fencer
            .run("begin; lock table ringmesh.node in exclusive mode")
            .await;
        locked.and(fencer.run("rollback").await)
    });
    let old = format!(
        "select count(*) = 2 from unnest(pg_blocking_pids({pid})) b join pg_stat_activity a on a.pid = b
         where a.xact_start < clock_timestamp() - interval '250 milliseconds'"
    );
    until(&world.db, &old).await;

    let mut ender = Session::new(&world.db).await;
    let role = format!("set session authorization {node}");
    ender.run(&role).await.unwrap();
    let (sees, ends) = ("pg_read_all_stats", "pg_signal_backend");
    for (rights, ended, spared) in [
        ("select 1".to_owned(), 1, true),
        (format!("grant {sees} to {node}"), 0, true),
        (
            format!("revoke {sees} from {node}; grant {ends} to {node}"),
            0,
            true,
        ),
        (format!("grant {sees} to {node}"), 1, false),
    ] {
        run(&world.db, &rights).await;
        let found = sqlx::query_file!(
            "src/store/sql/end_blockers.sql",
            pid,
            world.me.incarnation.0,
            None::<i64>
        );
        let found = found.fetch_one(ender.connection()).await.unwrap();
        let spared = spared.then_some(handler.as_str());
        assert_eq!(
            (found.ended, found.spared.as_deref()),
            (ended, spared),
            "{rights}"
        );
        // The one that was ended is gone before the next look.
        let left = format!(
            "select cardinality(pg_blocking_pids({pid})) = {}",
            i32::from(spared.is_some())
        );
        until(&world.db, &left).await;
    }
    fence.await.unwrap().unwrap();
    for ended in [&mut own, &mut others] {
        sqlx::raw_sql("commit").execute(ended).await.unwrap_err();
    }
    let drop = format!("drop owned by {node}, {handler}; drop role {node}, {handler}");
    run(&world.db, &drop).await;
}
