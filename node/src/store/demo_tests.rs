//! The demo's statements on a real Postgres.

use chrono::TimeDelta;

use super::*;
use crate::demo::flights::Flight;
use crate::store::testing::fresh;

fn flight(line: i64) -> Flight {
    let text = String::new;
    let (date, number, origin, dest) = (text(), text(), text(), text());
    Flight {
        line,
        date,
        number,
        origin,
        dest,
        delay: Some(3),
        air_minutes: 61,
        miles: 400,
    }
}

fn author(line: i64) -> Author<'static> {
    let slot = Slot::new(7).unwrap();
    let task = TaskId { slot, number: line };
    let fence = Fence {
        task,
        slot,
        epoch: Epoch(3),
        attempt: 1,
        boot: 7,
    };
    Author {
        node: "n1",
        task,
        fence,
        warm: false,
    }
}

#[tokio::test]
async fn an_effect_is_written_only_onto_the_state_that_it_was_computed_from() {
    let fresh = fresh().await;
    let store = &fresh.store;
    let plane = Aircraft {
        seats: Some(2),
        model: Some("A".into()),
        ..Aircraft::default()
    };
    for run in ["first", "second"] {
        let register = [("N1".to_owned(), plane.clone())];
        store.demo_create(run, &register, &["N1", "N2"]).await.unwrap();
    }

    let mut session = store.pool.acquire().await.unwrap();
    let connection = session.connection();
    assert!(load(connection, "N3").await.unwrap().is_none());
    let loaded = load(connection, "N2").await.unwrap().unwrap();
    assert_eq!(
        (loaded.run.as_str(), loaded.aircraft),
        ("second", Aircraft::default())
    );
    let loaded = load(connection, "N1").await.unwrap().unwrap();
    assert_eq!((&loaded.logbook, &loaded.aircraft), (&Logbook::default(), &plane));

    let mut after = loaded.logbook.clone();
    after.add(&flight(2));
    let written = write(connection, "N1", &loaded.logbook, &after, author(2)).await;
    assert!(written.unwrap());
    // A node whose memory has not seen that write.
    let mut other = loaded.logbook.clone();
    other.add(&flight(3));
    let written = write(connection, "N1", &loaded.logbook, &other, author(3)).await;
    assert!(!written.unwrap());
    assert_eq!(load(connection, "N1").await.unwrap().unwrap().logbook, after);
    let lines: Vec<i64> = store
        .demo_entries()
        .await
        .unwrap()
        .iter()
        .map(|e| e.line)
        .collect();
    assert_eq!(lines, [2]);
    assert_eq!(store.demo_counts().await.unwrap(), [("n1".to_owned(), 1)]);

    // Nothing hides a flight that is written twice.
    let mut twice = after.clone();
    twice.add(&flight(2));
    let written = write(connection, "N1", &after, &twice, author(2)).await;
    assert!(written.unwrap());
    assert_eq!(store.demo_entries().await.unwrap().len(), 2);
    let logbooks = store.demo_logbooks().await.unwrap();
    assert!(
        logbooks.contains(&("N1".into(), twice)) && logbooks.contains(&("N2".into(), Logbook::default()))
    );
}

#[tokio::test]
async fn a_pause_is_measured_only_where_a_flight_waited() {
    let fresh = fresh().await;
    let store = &fresh.store;
    store.demo_create("run", &[], &["N1"]).await.unwrap();
    let began = store.demo_now().await.unwrap();
    let slots = store.demo_slots().await.unwrap();
    assert_eq!(slots.rows.len(), 4096);
    assert!(slots.at >= began && store.demo_nodes().await.unwrap().is_empty());

    // Task 1 ended under epoch 3; task 2 waited from 10 ms to 30 ms after it and ended under epoch 4.
    let at = |ms: i64| began + TimeDelta::milliseconds(ms);
    sqlx::raw_sql("select ringmesh.create_days(1)")
        .execute(&store.pool)
        .await
        .unwrap();
    for (task, epoch, created, ended) in [(1_i64, 3_i64, 0, 0), (2, 4, 10, 30), (3, 4, 11, 40)] {
        sqlx::query(
            "insert into ringmesh.finished_task \
             (slot, id, key, kind, priority, state, attempt, failures, crashes, created_at, finished_at) \
             values (7, $1, 'N1', 'flight', 0, 'succeeded', 1, 0, 0, $2, $3)",
        )
        .bind(task)
        .bind(at(created))
        .bind(at(ended))
        .execute(&store.pool)
        .await
        .unwrap();
        sqlx::query(
            "insert into ringmesh_demo.entry (line, tailnum, node, epoch, slot, task, attempt, warm) \
             values ($1, 'N1', 'n1', $2, 7, $1, 1, true)",
        )
        .bind(task)
        .bind(epoch)
        .execute(&store.pool)
        .await
        .unwrap();
    }
    let moved = |until: i64| Moved {
        slot: Slot::new(7).unwrap(),
        epoch: Epoch(3),
        until: at(until),
    };
    let pauses = store.demo_pauses(&[moved(20)]).await.unwrap();
    let expected = Pause {
        last_before: Some(at(0)),
        created_at: at(10),
        first_after: at(30),
    };
    assert_eq!(pauses, [expected]);
    // It may have been submitted after the move: nobody waited for sure.
    assert!(store.demo_pauses(&[moved(10)]).await.unwrap().is_empty());

    assert_eq!(store.demo_open("run").await.unwrap(), 0);
    sqlx::query(
        "insert into ringmesh.task (slot, key, kind, payload) values (7, 'N1', 'flight', '{\"run\":\"run\"}')",
    )
    .execute(&store.pool)
    .await
    .unwrap();
    assert_eq!(
        (
            store.demo_open("run").await.unwrap(),
            store.demo_open("other").await.unwrap()
        ),
        (1, 0)
    );
    let stuck = store.demo_stuck("run").await.unwrap();
    assert_eq!(
        (stuck.len(), stuck[0].key.as_str(), stuck[0].state.as_str()),
        (1, "N1", "pending")
    );
}
