//! Submits, idempotency, batches, reads, cancels and waits.

use serde_json::json;

use super::*;
use crate::store::testing::store;
use crate::task::Submit;

fn task(key: &str, payload: &str) -> Submit {
    Submit {
        kind: "k".into(),
        key: ringmesh_ring::Key::new(key).unwrap(),
        payload: serde_json::value::RawValue::from_string(payload.into()).unwrap(),
        idempotency_key: None,
        run_at: None,
        priority: 0,
        max_attempts: 10,
        timeout: Duration::from_secs(60),
        waiter: None,
    }
}

#[tokio::test]
async fn a_submit_is_answered_after_its_commit_and_can_be_read_and_cancelled_once() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let created = node
        .submit(json!({"kind": "mail.send", "key": "tenant-1", "payload": {"n": 1}, "priority": 3}))
        .await;
    assert_eq!(created.status, 201, "{}", created.body);
    let id = created.body["id"].as_str().unwrap().to_owned();
    assert_eq!(created.headers["location"], format!("/v1/tasks/{id}"));
    assert_eq!(
        fresh
            .number("select count(*) from ringmesh.task where kind = 'mail.send'")
            .await,
        1
    );
    assert_eq!(
        fresh.number("select ringmesh.slot_of('tenant-1')::bigint").await,
        created.body["slot"].as_i64().unwrap()
    );
    let hint = node.seen.hints.lock().unwrap()[0];
    assert_eq!(
        (format!("{}-{}", hint.slot.get(), hint.lowest), hint.urgent),
        (id.clone(), true)
    );

    let read = node.get(&format!("/v1/tasks/{id}")).await;
    assert_eq!((read.status, &read.body["state"]), (200, &json!("pending")));

    let key = node.get("/v1/keys/tenant-1").await;
    let by_query = node.get("/v1/keys?key=tenant-1").await;
    assert_eq!(by_query.body, key.body);
    assert_eq!(
        (key.status, &key.body["waiting"], &key.body["held"]),
        (200, &json!(1), &json!(null))
    );

    let cancelled = answer(node.request(Method::DELETE, &format!("/v1/tasks/{id}"))).await;
    assert_eq!(
        (cancelled.status, &cancelled.body["state"]),
        (200, &json!("cancelled"))
    );
    assert_eq!(node.seen.cancelled.lock().unwrap()[0].to_string(), id);
    let again = answer(node.request(Method::DELETE, &format!("/v1/tasks/{id}"))).await;
    assert_eq!((again.status, again.code()), (409, "already_final"));
    let unknown = answer(node.request(Method::DELETE, "/v1/tasks/1-999999")).await;
    assert_eq!((unknown.status, unknown.code()), (404, "not_found"));

    let later = node
        .submit(json!({"kind": "k", "key": "a", "payload": null, "delay": "1h"}))
        .await;
    assert_eq!(later.body["state"], "scheduled");
    assert_eq!(
        fresh
            .number("select count(*) from ringmesh.task where wait = 'scheduled'")
            .await,
        1
    );
}

#[tokio::test]
async fn one_idempotency_key_gives_one_task() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let body =
        json!({"kind": "k", "key": "a", "payload": {"n": 1}, "idempotency_key": "order-7", "delay": "1h"});
    let answers = futures::future::join_all((0..64).map(|_| node.submit(body.clone()))).await;
    let ids: std::collections::BTreeSet<&str> = answers
        .iter()
        .map(|a| a.body["id"].as_str().unwrap_or_else(|| panic!("{}", a.body)))
        .collect();
    assert_eq!(ids.len(), 1);
    assert_eq!(answers.iter().filter(|a| a.status == 201).count(), 1);
    assert!(
        answers
            .iter()
            .filter(|a| a.status == 200)
            .all(|a| a.body["replayed"] == true)
    );
    assert_eq!(fresh.number("select count(*) from ringmesh.task").await, 1);

    // By header too; the same in both places is fine, a difference is not.
    let bare = json!({"kind": "k", "key": "a", "payload": {"n": 1}}).to_string();
    let with_header = |body: String, key: &str| {
        let request = node
            .request(Method::POST, "/v1/tasks")
            .header("content-type", "application/json");
        answer(request.header("idempotency-key", key).body(body))
    };
    let replay = with_header(bare.clone(), "order-7").await;
    assert_eq!((replay.status, &replay.body["state"]), (200, &json!("scheduled")));
    assert_eq!(
        with_header(body.to_string(), "order-8").await.field(),
        Some("idempotency_key")
    );
    // Case counts, and so do kind and key: all of these are new.
    assert_eq!(with_header(bare.clone(), "Order-7").await.status, 201);
    assert_eq!(
        with_header(bare.replace("\"k\"", "\"j\""), "order-7")
            .await
            .status,
        201
    );
    assert_eq!(
        with_header(bare.replace("\"a\"", "\"b\""), "order-7")
            .await
            .status,
        201
    );

    let mismatch = with_header(bare.replace('1', "2"), "order-7").await;
    assert_eq!((mismatch.status, mismatch.code()), (422, "idempotency_mismatch"));
    let prints =
        ["stored_fingerprint", "given_fingerprint"].map(|name| mismatch.body[name].as_str().unwrap());
    assert!(prints[0] != prints[1] && prints.iter().all(|print| print.len() == 64));

    // A task that has ended is still the answer.
    let id = replay.body["id"].as_str().unwrap();
    assert_eq!(
        answer(node.request(Method::DELETE, &format!("/v1/tasks/{id}")))
            .await
            .status,
        200
    );
    let after = with_header(bare, "order-7").await;
    assert_eq!(
        (after.status, &after.body["state"], &after.body["id"]),
        (200, &json!("cancelled"), &json!(id))
    );
}

#[tokio::test]
async fn a_repetition_of_the_stored_submit_is_a_replay_whatever_came_first_in_its_group() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let submit = |payload: &str| {
        let mut task = task("a", payload);
        task.idempotency_key = Some("id".into());
        node.submits.submit(task)
    };
    let stored = submit("0").await.unwrap();
    // They wait together, and the first of them says something else than what is stored.
    let answers = futures::future::join_all((0..64).map(|n| submit(["1", "0"][n % 2]))).await;
    for (n, answer) in answers.into_iter().enumerate() {
        if n % 2 == 1 {
            let replay = answer.unwrap_or_else(|error| panic!("{n}: {error}"));
            assert_eq!((replay.id, replay.replayed), (stored.id, true), "{n}");
        } else if let Err(crate::submit::Error::Mismatch { stored, given, .. }) = answer {
            assert_ne!(stored, given, "{n}");
        } else {
            panic!("{n}: {answer:?}");
        }
    }
}

#[tokio::test]
async fn a_batch_goes_in_whole_or_not_at_all_and_in_order() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let line = |n: usize, id: Option<&str>| {
        let mut task = json!({"kind": "k", "key": format!("key-{}", n % 7), "payload": n});
        if let Some(id) = id {
            task["idempotency_key"] = id.into();
        }
        task.to_string()
    };
    let lines = |body: String| {
        answer(
            node.request(Method::POST, "/v1/tasks/batch")
                .header("content-type", "application/x-ndjson")
                .body(body),
        )
    };
    let numbers = |answer: &Answer| -> Vec<i64> {
        let ids = answer.body["ids"]
            .as_array()
            .unwrap_or_else(|| panic!("{}", answer.body));
        ids.iter()
            .map(|id| id.as_str().unwrap().parse::<TaskId>().unwrap().number)
            .collect()
    };

    let plain = lines((0..10_000).map(|n| line(n, None) + "\r\n").collect()).await;
    assert_eq!(plain.status, 201);
    assert!(numbers(&plain).len() == 10_000 && numbers(&plain).is_sorted());
    let array = format!(
        "[{}]",
        (0..3).map(|n| line(n, None)).collect::<Vec<_>>().join(",")
    );
    assert_eq!(numbers(&node.post("/v1/tasks/batch", array).await).len(), 3);

    // Keyed and unkeyed mixed, an id of before, and one that comes twice.
    let first = lines(line(0, Some("x"))).await;
    let mixed = [
        line(1, None),
        line(0, Some("x")),
        line(2, Some("y")),
        String::new(),
        line(3, None),
        line(2, Some("y")),
    ];
    let mixed = lines(mixed.join("\n")).await;
    let ids = numbers(&mixed);
    assert_eq!((mixed.status, &mixed.body["replayed"]), (201, &json!(2)));
    assert_eq!((ids[1], ids[4]), (numbers(&first)[0], ids[2]));
    assert!(ids[0] < ids[2] && ids[2] < ids[3]);

    let before = fresh.number("select count(*) from ringmesh.task").await;
    let bad = "{\"kind\":\"k\",\"key\":\"\",\"payload\":1}";
    for (body, status, code, at) in [
        (
            format!("{}\n\n{bad}\n{}", line(1, None), line(2, None)),
            422,
            "invalid",
            Some(3),
        ),
        (format!("{}\n{{\n", line(1, None)), 400, "bad_json", Some(2)),
        (
            format!("{}\n{}", line(1, None), line(9, Some("x"))),
            201,
            "",
            None,
        ),
        (
            format!("{}\n{}", line(1, None), line(7, Some("x"))),
            422,
            "idempotency_mismatch",
            Some(2),
        ),
        (
            format!("{}\n{}", line(1, Some("z")), line(8, Some("z"))),
            422,
            "idempotency_mismatch",
            Some(2),
        ),
        (
            (0..10_001).map(|n| line(n, None) + "\n").collect(),
            413,
            "too_large",
            None,
        ),
        (String::from("\n \n"), 422, "invalid", None),
    ] {
        let refused = lines(body).await;
        let line = refused.body["line"].as_u64();
        assert_eq!(
            (refused.status, refused.code(), line),
            (status, code, at),
            "{}",
            refused.body
        );
    }
    // Only the one that was taken.
    assert_eq!(
        fresh.number("select count(*) from ringmesh.task").await,
        before + 2
    );
    assert_eq!(
        fresh
            .number("select count(*) from ringmesh.idempotency where id_key = 'z'")
            .await,
        0
    );
    for (body, code) in [
        ("{}", "invalid"),
        ("[{}", "bad_json"),
        ("[] x", "bad_json"),
        ("[1]", "invalid"),
    ] {
        assert_eq!(node.post("/v1/tasks/batch", body).await.code(), code, "{body}");
    }
}

#[tokio::test]
async fn a_row_that_postgres_refuses_stands_alone() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    // Passes as JSON, and is deeper than Postgres' stack: only checked payloads come in over HTTP.
    let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
    let mut tasks: Vec<Submit> = (0..200).map(|n| task(&format!("k{n}"), "1")).collect();
    tasks[77].payload = serde_json::value::RawValue::from_string(deep.clone()).unwrap();
    let answers =
        futures::future::join_all(tasks.clone().into_iter().map(|task| node.submits.submit(task))).await;
    for (at, answer) in answers.iter().enumerate() {
        assert_eq!(
            matches!(answer, Err(crate::submit::Error::Refused(_))),
            at == 77,
            "{at}: {answer:?}"
        );
    }
    assert_eq!(fresh.number("select count(*) from ringmesh.task").await, 199);

    for (at, task) in tasks.iter_mut().enumerate() {
        task.idempotency_key = Some(at.to_string());
    }
    let answers = futures::future::join_all(tasks.into_iter().map(|task| node.submits.submit(task))).await;
    assert_eq!(answers.iter().filter(|answer| answer.is_ok()).count(), 199);
    assert_eq!(fresh.number("select count(*) from ringmesh.task").await, 398);
}

#[tokio::test]
async fn an_idempotency_key_that_is_being_written_elsewhere_stalls_only_itself() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let mut other = fresh.session().await;
    let id = "insert into ringmesh.idempotency (slot, key, kind, id_key, task, fingerprint)
              select ringmesh.slot_of('k7'), 'k7', 'k', 'id', 1, ''";
    other.run("begin").await;
    other.run(id).await;
    let tasks = (0..32).map(|n| {
        let mut task = task(&format!("k{n}"), "1");
        task.idempotency_key = Some("id".into());
        node.submits.submit(task)
    });
    let answers = futures::future::join_all(tasks).await;
    for (at, answer) in answers.iter().enumerate() {
        let expected = at == 7;
        assert_eq!(
            matches!(answer, Err(crate::submit::Error::Unavailable)),
            expected,
            "{at}: {answer:?}"
        );
    }
    other.run("rollback").await;
}

#[tokio::test]
async fn a_wait_is_answered_when_the_task_ends() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let id = || async {
        let task = fresh
            .store
            .tasks(&[TaskId {
                slot: ringmesh_ring::Slot::of_bytes(b"a"),
                number: 1,
            }])
            .await
            .unwrap();
        task[0].as_ref().map(|view| view.id)
    };
    let body = json!({"kind": "k", "key": "a", "payload": 1}).to_string();
    let submit = node.post("/v1/tasks?wait=60s", body.clone());
    let end = async {
        until("the task is there", || async { id().await.is_some() }).await;
        assert_eq!(fresh.number("select waiter from ringmesh.task").await, 1);
        let id = id().await.unwrap();
        assert!(fresh.store.cancel(id).await.unwrap());
        node.hints.ended(Incarnation(1), id);
    };
    let (waited, ()) = tokio::join!(submit, end);
    assert_eq!((waited.status, &waited.body["state"]), (201, &json!("cancelled")));

    // Nobody says that this one ends: the wait looks by itself.
    let second = node.post("/v1/tasks", body.clone()).await.body["id"]
        .as_str()
        .unwrap()
        .to_owned();
    let path = format!("/v1/tasks/{second}?wait=60");
    let end = async {
        until("somebody waits", || async { !node.hints.waits().is_empty() }).await;
        assert!(fresh.store.cancel(second.parse().unwrap()).await.unwrap());
    };
    let (waited, ()) = tokio::join!(node.get(&path), end);
    assert_eq!((waited.status, &waited.body["state"]), (200, &json!("cancelled")));
    assert_eq!(node.get(&path).await.body["state"], "cancelled");

    // The time is over first: 201 with the task as it stands.
    let over = node.post("/v1/tasks?wait=50ms", body).await;
    assert_eq!(
        (over.status, &over.body["state"], &over.body["replayed"]),
        (201, &json!("pending"), &json!(false))
    );
    until("nobody waits", || async { node.hints.waits().is_empty() }).await;
}

#[tokio::test]
async fn without_an_answer_from_postgres_a_submit_is_not_taken_or_unknown_but_never_doubled() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let mut blocker = fresh.session().await;
    let body = json!({"kind": "k", "key": "a", "payload": 1});

    // Its session is ended while it inserts: the reply is lost.
    blocker
        .run("begin; lock table ringmesh.task in exclusive mode")
        .await;
    let blocked = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and query like '%insert into ringmesh.task%'";
    let end = async {
        until("the insert waits", || async { fresh.number(blocked).await == 1 }).await;
        let end = blocked.replace("count(*)", "count(pg_terminate_backend(pid))");
        assert_eq!(fresh.number(&end).await, 1);
    };
    let (lost, ()) = tokio::join!(node.submit(body.clone()), end);
    assert_eq!((lost.status, lost.code()), (503, "outcome_unknown"));
    assert_eq!(lost.headers["retry-after"], "1");

    // More than may wait: some are turned away, all others go in once.
    let many: Vec<_> = (0..12_000)
        .map(|n| {
            let submits = node.submits.clone();
            tokio::spawn(async move { submits.submit(task(&format!("k{n}"), "1")).await })
        })
        .collect();
    until("the inserts wait", || async { fresh.number(blocked).await == 2 }).await;
    blocker.run("rollback").await;
    let answers = futures::future::join_all(many).await;
    let busy = answers
        .iter()
        .filter(|a| matches!(a, Ok(Err(crate::submit::Error::Busy))))
        .count();
    let taken = answers.iter().filter(|a| matches!(a, Ok(Ok(_)))).count();
    assert!(busy > 0 && busy + taken == 12_000, "{busy} busy, {taken} taken");
    assert_eq!(
        fresh.number("select count(*) from ringmesh.task").await,
        taken as i64
    );

    // Nobody waits for a Postgres that is known not to answer; this one would.
    let set_stalled = |stalled| {
        let directory = Directory {
            stalled,
            ..Directory::clone(&node.directory.borrow())
        };
        node.directory.send_replace(Arc::new(directory));
    };
    set_stalled(true);
    for (method, path) in [
        (Method::GET, "/v1/tasks/1-1"),
        (Method::DELETE, "/v1/tasks/1-1"),
        (Method::GET, "/v1/keys/a"),
        (Method::GET, "/v1/slots"),
    ] {
        let refused = answer(node.request(method.clone(), path)).await;
        assert_eq!(
            (refused.code(), &refused.body["message"]),
            ("unavailable", &json!("Postgres does not answer")),
            "{method} {path}"
        );
    }
    assert_eq!(node.get("/v1/mesh").await.status, 200);
}

#[tokio::test]
async fn without_postgres_submits_and_reads_are_refused_and_the_node_lives() {
    let mut fresh = fresh().await;
    // Patient access would outlast its clients.
    let node = start(&store(&fresh.server.url(), "ringmesh test"), Setup::default()).await;
    let body = json!({"kind": "k", "key": "a", "payload": 1});
    fresh.server.stop().await.unwrap();
    // Sessions that stood are found broken first, which may hide a commit.
    until("the node sees that Postgres is gone", || async {
        let answer = node.submit(body.clone()).await;
        assert_eq!(answer.status, 503);
        assert!(answer.headers.contains_key("retry-after"));
        answer.code() == "unavailable"
    })
    .await;
    for path in ["/v1/tasks/1-1", "/v1/keys/a", "/v1/slots"] {
        let read = node.get(path).await;
        assert_eq!(
            (read.code(), &read.body["message"]),
            ("unavailable", &json!("Postgres does not answer")),
            "{path}"
        );
    }
    assert_eq!(node.get("/health/live").await.status, 200);
}
