//! Slow, silent and too many connections; tokens; the stop.

use std::io::Write as _;
use std::time::Instant;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;

async fn to_the_end(stream: &mut TcpStream) -> String {
    let mut answer = Vec::new();
    // A reset is an end too.
    let _ = tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer))
        .await
        .expect("never closed");
    String::from_utf8_lossy(&answer).into_owned()
}

/// A connection on which so much is sent before the server, which runs on the same thread, can look at it.
fn opened(node: &Node, bytes: &str) -> TcpStream {
    let mut stream = std::net::TcpStream::connect(node.address).unwrap();
    stream.write_all(bytes.as_bytes()).unwrap();
    stream.set_nonblocking(true).unwrap();
    TcpStream::from_std(stream).unwrap()
}

#[tokio::test]
async fn slow_and_silent_connections_are_closed_and_hold_up_nobody() {
    let fresh = fresh().await;
    let quick = Duration::from_millis(300);
    let limits = Limits {
        connections: 8,
        head_within: quick,
        body_within: quick,
        ..Limits::default()
    };
    let node = start(
        &fresh.store,
        Setup {
            limits,
            ..Setup::default()
        },
    )
    .await;
    let began = Instant::now();

    let mut silent = opened(&node, "");
    let mut dribbling = opened(&node, "GET /v1/mesh HTTP/1.1\r\nhost: loc");
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\ncontent-length: 100\r\n\r\n{";
    let mut slow = opened(&node, head);
    let whole = "GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";
    let quickly = to_the_end(&mut opened(&node, whole)).await;
    assert!(quickly.starts_with("HTTP/1.1 200"), "{quickly}");
    assert_eq!(to_the_end(&mut silent).await, "");
    let cut = to_the_end(&mut dribbling).await;
    assert!(cut.is_empty() || cut.starts_with("HTTP/1.1 408"), "{cut}");
    let cut = to_the_end(&mut slow).await;
    assert!(
        cut.starts_with("HTTP/1.1 408") && cut.contains("too_slow"),
        "{cut}"
    );
    assert!(began.elapsed() >= quick);
}

#[tokio::test]
async fn a_connection_too_many_is_told_so() {
    let fresh = fresh().await;
    let limits = Limits {
        connections: 2,
        head_within: PATIENCE,
        ..Limits::default()
    };
    let node = start(
        &fresh.store,
        Setup {
            limits,
            ..Setup::default()
        },
    )
    .await;
    // A connection counts once it is served: an answer proves that.
    let mut open = Vec::new();
    for _ in 0..2 {
        let mut stream = TcpStream::connect(node.address).await.unwrap();
        stream
            .write_all(b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n")
            .await
            .unwrap();
        assert_ne!(stream.read(&mut [0; 512]).await.unwrap(), 0);
        open.push(stream);
    }
    let refused = to_the_end(&mut TcpStream::connect(node.address).await.unwrap()).await;
    let (head, body) = refused.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.1 429") && head.contains("retry-after: 1"),
        "{refused}"
    );
    assert!(
        head.contains(&format!("content-length: {}", body.len())),
        "{refused}"
    );
    assert_eq!(serde_json::from_str::<Value>(body).unwrap()["code"], "busy");
    open.clear();
    until("there is room again", || async {
        node.client
            .get(node.url("/health/live"))
            .send()
            .await
            .is_ok_and(|a| a.status() == 200)
    })
    .await;
}

#[tokio::test]
async fn a_stop_lets_requests_end_and_is_held_up_by_no_idle_connection() {
    let fresh = fresh().await;
    let never = Duration::from_secs(1 << 20);
    let limits = Limits {
        head_within: never,
        stop_within: never,
        ..Limits::default()
    };
    let node = start(
        &fresh.store,
        Setup {
            limits,
            ..Setup::default()
        },
    )
    .await;
    // One has never sent anything, one idles after its answer.
    let mut silent = TcpStream::connect(node.address).await.unwrap();
    assert_eq!(node.get("/health/live").await.status, 200);
    let body = r#"{"kind":"k","key":"a","payload":1}"#;
    let under_way = tokio::spawn({
        let request = node
            .request(Method::POST, "/v1/tasks?wait=60s")
            .header("content-type", "application/json");
        async move { answer(request.body(body)).await }
    });
    until("the request is under way", || async {
        !node.hints.waits().is_empty()
    })
    .await;
    node.shutdown.cancel();
    until("nobody is listened to any more", || async {
        TcpStream::connect(node.address).await.is_err()
    })
    .await;
    assert!(!node.served.is_finished(), "a request is under way");
    let id = TaskId {
        slot: ringmesh_ring::Slot::of_bytes(b"a"),
        number: fresh.number("select id from ringmesh.task").await,
    };
    assert!(fresh.store.cancel(id).await.unwrap());
    assert_eq!(under_way.await.unwrap().status, 201);
    tokio::time::timeout(PATIENCE, node.served)
        .await
        .expect("the idle connections held it up")
        .unwrap();
    assert_eq!(to_the_end(&mut silent).await, "");
    assert!(TcpStream::connect(node.address).await.is_err());
}

#[tokio::test]
async fn a_token_is_asked_for_everywhere_but_for_health_and_between_nodes() {
    let fresh = fresh().await;
    let token = "correct horse battery staple";
    let mut node = start(
        &fresh.store,
        Setup {
            token: Some(token),
            ..Setup::default()
        },
    )
    .await;
    for (method, path) in [
        (Method::GET, "/v1/mesh"),
        (Method::GET, "/v1/slots"),
        (Method::GET, "/v1/tasks/1-1"),
        (Method::GET, "/v1/keys/a"),
        (Method::GET, "/metrics"),
        (Method::GET, "/nowhere"),
        (Method::GET, "/v1/tasks"),
        (Method::POST, "/v1/tasks"),
        (Method::POST, "/v1/tasks/batch"),
        (Method::DELETE, "/v1/tasks/1-1"),
        (Method::POST, "/v1/nodes/a/drain"),
        (Method::POST, "//internal/v1/hints"),
        (Method::GET, "/Health/live"),
    ] {
        for shown in [
            None,
            Some("Bearer"),
            Some("Bearer "),
            Some("Bearer wrong"),
            Some("Basic correct horse battery staple"),
            Some("Bearer correct horse battery stapl"),
            Some("Bearer correct horse battery staple2"),
            Some("Bearer Correct horse battery staple"),
            Some("Bearer  correct horse battery staple"),
            Some("correct horse battery staple"),
        ] {
            let body = r#"{"kind":"k","key":"a","payload":1}"#;
            let request = node.client.request(method.clone(), node.url(path)).body(body);
            let mut request = request.header("content-type", "application/json");
            if let Some(shown) = shown {
                request = request.header("authorization", shown);
            }
            let refused = answer(request).await;
            assert_eq!(
                (refused.status, refused.code()),
                (401, "unauthorized"),
                "{method} {path} {shown:?}"
            );
            assert!(refused.headers.contains_key("www-authenticate"));
        }
    }
    assert_eq!(fresh.number("select count(*) from ringmesh.task").await, 0);
    assert!(node.drained.try_recv().is_err(), "nobody asked for a drain");
    assert_eq!(node.get("/v1/mesh").await.status, 200);
    assert_eq!(node.get("/metrics").await.body, "ringmesh_up 1\n");
    assert_eq!(
        node.get("/v1/slots").await.body.as_array().map(Vec::len),
        Some(4_096)
    );
    for path in [
        "/health/live",
        "/health/ready",
        "/internal/v1/alive?incarnation=1",
    ] {
        assert_eq!(
            answer(node.client.get(node.url(path))).await.status,
            200,
            "{path}"
        );
    }
    // With a token any host may be named.
    let named = node
        .request(Method::GET, "/v1/mesh")
        .header("host", "mesh.example");
    assert_eq!(answer(named).await.status, 200);
}

#[tokio::test]
async fn a_panic_in_a_request_is_a_500_and_no_more() {
    let fresh = fresh().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let node = start(&fresh.store, Setup::default()).await;
    // The route of the readiness stands in for any: its directory's sender panics nothing, so make the metrics do.
    let mut api = api_of(&node, &fresh.store);
    api.metrics = Box::new(|| panic!("on purpose"));
    let served = tokio::spawn(serve(
        listener,
        router(api),
        Limits::default(),
        node.shutdown.clone(),
    ));
    for _ in 0..2 {
        let failed = answer(node.client.get(format!("http://{address}/metrics"))).await;
        assert_eq!((failed.status, failed.code()), (500, "internal"));
    }
    assert_eq!(
        answer(node.client.get(format!("http://{address}/health/live")))
            .await
            .status,
        200
    );
    node.shutdown.cancel();
    served.await.unwrap();
}

/// A second API over a node's parts.
fn api_of(node: &Node, store: &Store) -> Api {
    Api {
        name: "a".into(),
        store: store.clone(),
        submits: node.submits.clone(),
        hints: node.hints.clone(),
        directory: node.directory.subscribe(),
        token: None,
        life: Life::new(),
        drain: mpsc::channel(1).0,
        live: Box::new(|| true),
        metrics: Box::new(String::new),
        limits: Limits::default(),
    }
}
