//! What nodes tell and ask each other.

use ringmesh_ring::Slot;
use serde_json::json;

use super::*;
use crate::hint::Error;

#[tokio::test]
async fn nodes_hint_offer_and_pass_on() {
    let fresh = fresh().await;
    let token = Some("a token for both nodes");
    let a = start(
        &fresh.store,
        Setup {
            token,
            ..Setup::default()
        },
    )
    .await;
    let mut b = start(
        &fresh.store,
        Setup {
            name: "b",
            incarnation: 2,
            token,
            ..Setup::default()
        },
    )
    .await;
    know(&[(&a, "a", 1), (&b, "b", 2)], 2);

    // A submit at one node is news for the owner, and for nobody else.
    let ids =
        futures::future::join_all((0..50).map(|n| {
            a.submit(json!({"kind": "k", "key": format!("key-{n}"), "payload": n, "priority": n % 2}))
        }))
        .await;
    let slots: std::collections::BTreeSet<u64> =
        ids.iter().map(|a| a.body["slot"].as_u64().unwrap()).collect();
    until("the owner has heard of all slots", || async {
        let heard: std::collections::BTreeSet<u64> = b
            .seen
            .hints
            .lock()
            .unwrap()
            .iter()
            .map(|h| h.slot.get().into())
            .collect();
        heard == slots
    })
    .await;
    assert!(a.seen.hints.lock().unwrap().is_empty());

    let id: TaskId = ids[0].body["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(
        answer(a.request(Method::DELETE, &format!("/v1/tasks/{id}")))
            .await
            .status,
        200
    );
    until("the owner has heard of the cancel", || async {
        *b.seen.cancelled.lock().unwrap() == [id]
    })
    .await;

    // The end of a task is told to the node where the client waits.
    let id: TaskId = ids[1].body["id"].as_str().unwrap().parse().unwrap();
    let path = format!("/v1/tasks/{id}?wait=60s");
    let end = async {
        until("somebody waits", || async { !a.hints.waits().is_empty() }).await;
        assert!(fresh.store.cancel(id).await.unwrap());
        b.hints.ended(Incarnation(1), id);
    };
    let (waited, ()) = tokio::join!(a.get(&path), end);
    assert_eq!(waited.body["state"], "cancelled");

    let moved = b.hints.on_moved();
    a.hints.moved(Incarnation(2));
    tokio::time::timeout(PATIENCE, moved.notified())
        .await
        .expect("never heard that slots have moved");
    a.hints.moved_all();
    tokio::time::timeout(PATIENCE, moved.notified())
        .await
        .expect("never heard that slots have moved");
    tokio::time::timeout(PATIENCE, a.hints.on_moved().notified())
        .await
        .expect("not told itself");

    let slots: Vec<Slot> = Slot::all().collect();
    assert!(
        a.hints
            .offer(Incarnation(2), "d1".into(), slots.clone())
            .await
            .unwrap()
    );
    assert!(
        !a.hints
            .offer(Incarnation(2), "d2".into(), slots.clone())
            .await
            .unwrap()
    );
    assert!(matches!(
        a.hints.offer(Incarnation(9), "d1".into(), slots.clone()).await,
        Err(Error::UnknownNode(_))
    ));

    let drained = a.post("/v1/nodes/b/drain", "").await;
    assert_eq!((drained.status, &drained.body["node"]), (202, &json!("b")));
    tokio::time::timeout(PATIENCE, b.drained.recv())
        .await
        .expect("never asked to drain");

    let mesh = a.get("/v1/mesh").await.body;
    assert_eq!(
        (&mesh["slots"], &mesh["owned"], &mesh["node"]),
        (&json!(4096), &json!(4096), &json!("a"))
    );
    assert_eq!(mesh["members"][1]["slots"], 4096);

    // Its process has begun another life, or is gone.
    know(&[(&a, "a", 1), (&b, "b", 3)], 3);
    assert!(matches!(
        a.hints.offer(Incarnation(3), "d1".into(), slots.clone()).await,
        Err(Error::Status(_, 410))
    ));
    b.shutdown.cancel();
    b.served.await.unwrap();
    assert!(matches!(
        a.hints.offer(Incarnation(3), "d1".into(), slots).await,
        Err(Error::Silent(..))
    ));
    let silent = a.post("/v1/nodes/b/drain", "").await;
    assert_eq!((silent.status, silent.code()), (503, "node_silent"));
}

#[tokio::test]
async fn only_this_mesh_may_speak_between_nodes() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let body = r#"{"to":1,"tasks":[{"slot":1,"lowest":1,"urgent":false}]}"#;
    let good = crate::secret::Signer::new(&Secret::new("cluster"));
    let wrong = crate::secret::Signer::new(&Secret::new("other"));
    let post = |mac: Option<String>, path: &'static str, body: &'static str| {
        let mut request = node.client.post(node.url(path)).body(body);
        if let Some(mac) = mac {
            request = request.header("x-ringmesh-mac", mac);
        }
        answer(request)
    };
    for mac in [
        None,
        Some(String::new()),
        Some(wrong.sign(HINTS_PATH, body.as_bytes())),
        Some(good.sign(HANDOFF_PATH, body.as_bytes())),
    ] {
        let refused = post(mac, HINTS_PATH, body).await;
        assert_eq!((refused.status, refused.code()), (403, "bad_mac"));
    }
    assert!(node.seen.hints.lock().unwrap().is_empty());
    assert_eq!(
        post(Some(good.sign(HINTS_PATH, body.as_bytes())), HINTS_PATH, body)
            .await
            .status,
        204
    );
    assert_eq!(node.seen.hints.lock().unwrap().len(), 1);
    let other_life = r#"{"to":7,"moved":true}"#;
    let gone = post(
        Some(good.sign(HINTS_PATH, other_life.as_bytes())),
        HINTS_PATH,
        other_life,
    )
    .await;
    assert_eq!((gone.status, gone.code()), (410, "not_this_life"));
    assert_eq!(
        post(Some(good.sign(HINTS_PATH, b"{")), HINTS_PATH, "{")
            .await
            .code(),
        "bad_json"
    );

    assert_eq!(
        node.get("/internal/v1/alive?incarnation=1").await.body,
        json!({"incarnation": 1, "boot": i64::MIN.to_string()})
    );
    assert_eq!(node.get("/internal/v1/alive?incarnation=2").await.status, 410);
    assert_eq!(node.get("/internal/v1/alive").await.code(), "bad_query");
    let known = Directory::clone(&node.directory.borrow());
    for (change, cause) in [
        (
            (|unready| unready.leased = true) as fn(&mut Directory),
            "the node does not hold all its slots yet",
        ),
        (
            |unready| unready.leased = false,
            "the node cannot rely on its lease",
        ),
        (|unready| unready.stalled = true, "Postgres does not answer"),
        (|unready| unready.draining = true, "the node is draining"),
        (|unready| unready.me = None, "the node has no lease yet"),
    ] {
        let mut unready = known.clone();
        unready.ready = false;
        change(&mut unready);
        node.directory.send_replace(Arc::new(unready));
        let answer = node.get("/health/ready").await;
        assert_eq!(
            (answer.code(), &answer.body["message"]),
            ("not_ready", &json!(cause))
        );
    }
    node.directory.send_replace(Arc::new(Directory::default()));
    let not_ready = node.get("/health/ready").await;
    assert_eq!((not_ready.status, not_ready.code()), (503, "not_ready"));
    assert!(not_ready.headers.contains_key("retry-after"));
}
