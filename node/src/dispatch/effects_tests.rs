//! Runs whose tasks are completed by SQL, on connections of the handlers' own.

use super::tests::{Life, limits};
use super::*;
use crate::context::Context;
use crate::handler::Failure;
use crate::store::ReadBack;
use crate::store::testing::PATIENCE;
use crate::store::testing_owner::Database;
use crate::task::State;

/// `complete`: writes an effect and completes its task in one transaction; then does as told.
///
/// | told | the handler then |
/// |---|---|
/// | `"nothing"` | ends well, without a result |
/// | `"result"` | ends well, with a result |
/// | `"failure"`, `"death"` | fails, or fails for good |
/// | `"panic"` | panics |
/// | `"timeout"` | goes on for longer than it may |
/// | `"transaction"` | has written through its task's own transaction besides |
/// | `"itself"` | has done all in its task's own transaction, which it must not |
fn handlers() -> Handlers {
    Handlers::new().add("complete", |context: Context, told: String| async move {
        let fence = context.fence();
        let complete = "select ringmesh.complete($1, $2, $3, '\"sql\"', boot => $4)";
        let complete = || {
            sqlx::query(complete)
                .bind(fence.task.to_string())
                .bind(fence.epoch.get())
                .bind(fence.attempt)
                .bind(fence.boot)
        };
        if told == "itself" {
            let mut own = context.transaction().await?;
            complete().execute(&mut *own).await?;
            return Ok(None);
        }
        if told == "transaction" {
            let mut own = context.transaction().await?;
            let effect = "insert into effect values ('own')";
            sqlx::query(effect).execute(&mut *own).await?;
        }
        let mut other = context.inner.transaction.other().await;
        let mut transaction = sqlx::Connection::begin(&mut other).await?;
        let effect = sqlx::query("insert into effect values ($1)").bind(&told);
        effect.execute(&mut *transaction).await?;
        complete().execute(&mut *transaction).await?;
        transaction.commit().await?;
        match told.as_str() {
            "failure" => Err(Failure::new("after its end")),
            "death" => Err(Failure::new("after its end").fatal()),
            "panic" => panic!("after its end"),
            "timeout" => {
                context.cancellation().cancelled().await;
                Err(Failure::new("cancelled"))
            }
            "result" => Ok(Some("the handler's")),
            _ => Ok(None),
        }
    })
}

async fn life() -> Life {
    let db = Database::new().await;
    sqlx::query("create table effect (what text)")
        .execute(&db.store.pool)
        .await
        .unwrap();
    Life::with(db, "a", handlers(), &["k"], limits()).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_task_that_sql_completed_is_a_finish_whatever_its_run_comes_to() {
    let life = life().await;
    let all = [
        "nothing",
        "result",
        "failure",
        "death",
        "panic",
        "timeout",
        "transaction",
    ];
    for (done, told) in (1..).zip(all) {
        let payload = format!("\"{told}\"");
        let id = life.db.submit_with("complete", "k", &payload, 0, 10, 2_000).await;
        // The key goes on.
        let next = life.db.submit("echo", "k", "1").await;
        assert_eq!(life.db.end_of(next).await.state, State::Succeeded, "{told}");
        let view = life.db.view(id).await;
        assert_eq!(
            (view.state, view.failures, view.attempt),
            (State::Succeeded, 0, 1),
            "{told}"
        );
        assert_eq!(view.result.unwrap().get(), "\"sql\"", "{told}");
        life.until(|stats| stats.succeeded == 2 * done).await;
    }
    let stats = life.dispatch.stats();
    assert_eq!((stats.fenced, stats.dead, stats.retried), (0, 0, 0));
    assert_eq!(
        life.db
            .count("select count(*) from effect where what <> 'own'")
            .await,
        7
    );
    assert_eq!(
        life.db
            .count("select count(*) from effect where what = 'own'")
            .await,
        0
    );
    assert_eq!(life.db.count("select count(*) from ringmesh.held_key").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_waits_for_a_task_that_sql_completed_is_told_of_its_end() {
    let life = life().await;
    for told in ["nothing", "result", "failure", "transaction"] {
        let submit = "with s as (select ringmesh.slot_of('k') as slot)
                      insert into ringmesh.task (slot, key, kind, payload, waiter)
                      select slot, 'k', 'complete', to_json($2::text), $1 from s returning id";
        let number = sqlx::query_scalar(submit).bind(life.me.incarnation.0).bind(told);
        let number: i64 = number.fetch_one(&life.db.store.pool).await.unwrap();
        let id = TaskId {
            slot: crate::store::testing_owner::slot_of("k"),
            number,
        };
        life.db.end_of(id).await;
        let deadline = tokio::time::Instant::now() + PATIENCE;
        while !life.waits.was_told(id) {
            assert!(tokio::time::Instant::now() < deadline, "{told}: nobody was told");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_run_that_completes_within_its_own_transaction_fails_and_says_why() {
    let life = life().await;
    let id = life
        .db
        .submit_with("complete", "k", "\"itself\"", 0, 1, 300_000)
        .await;
    let view = life.db.end_of(id).await;
    assert_eq!(view.state, State::Dead);
    let error = view.error.unwrap();
    assert!(error.contains("has ended as succeeded"), "{error}");
    assert_eq!(life.db.count("select count(*) from effect").await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_write_that_was_refused_is_fenced_only_if_the_task_did_not_end_by_it() {
    let life = life().await;
    let (slot, epoch) = life.slots[0];
    let id = life.db.submit("complete", "k", "\"nothing\"").await;
    life.db.end_of(id).await;
    let token = crate::store::Token {
        id,
        epoch,
        attempt: 1,
    };
    let known = life.db.store.read_back(&[token]).await.unwrap();
    assert_eq!((known[0].1, id.slot), (ReadBack::Ended, slot));
    let other = crate::store::Token { attempt: 2, ..token };
    let known = life.db.store.read_back(&[other]).await.unwrap();
    assert_eq!(known[0].1, ReadBack::Gone);
}
