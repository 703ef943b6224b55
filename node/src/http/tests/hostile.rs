//! Inputs that were made to hurt, each with the answer that it gets.

use serde_json::json;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::*;
use crate::json::MAX_BYTES;

fn with_payload(payload: &str) -> Vec<u8> {
    format!(r#"{{"kind":"k","key":"a","payload":{payload}}}"#).into_bytes()
}

#[tokio::test]
async fn hostile_json_is_refused_with_a_stable_code_or_kept_as_sent() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let string = |bytes: usize| with_payload(&format!("\"{}\"", "x".repeat(bytes - 2)));
    let utf16: Vec<u8> = "{}".encode_utf16().flat_map(u16::to_le_bytes).collect();
    let many_fields = format!(
        "{{{}}}",
        (0..80_000)
            .map(|n| format!("\"f{n}\":0"))
            .collect::<Vec<_>>()
            .join(",")
    );
    let table: Vec<(&str, Vec<u8>, u16, &str)> = vec![
        ("nothing", b"".to_vec(), 400, "bad_json"),
        ("a byte order mark", b"\xef\xbb\xbf{}".to_vec(), 400, "bad_json"),
        ("UTF-16", utf16, 400, "bad_json"),
        ("no UTF-8", b"{\"kind\":\"\xff\"}".to_vec(), 400, "bad_utf8"),
        (
            "overlong UTF-8",
            b"{\"key\":\"\xc0\xaf\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        (
            "a surrogate in UTF-8",
            b"{\"key\":\"\xed\xa0\x80\"}".to_vec(),
            400,
            "bad_utf8",
        ),
        (
            "trailing bytes",
            [with_payload("1"), b"{}".to_vec()].concat(),
            400,
            "bad_json",
        ),
        ("a comment", with_payload("1/*c*/"), 400, "bad_json"),
        ("not a number", with_payload("NaN"), 400, "bad_json"),
        ("an array", b"[]".to_vec(), 422, "invalid"),
        ("many fields", many_fields.into_bytes(), 422, "invalid"),
        ("deep around", "[".repeat(1_000_000).into_bytes(), 422, "invalid"),
        (
            "a deep key",
            br#"{"kind":"k","payload":1,"key":"#.iter().copied().chain("[".repeat(900_000).bytes()).collect(),
            400,
            "bad_json",
        ),
        (
            "depth 128",
            with_payload(&("[".repeat(128) + &"]".repeat(128))),
            422,
            "invalid",
        ),
        (
            "depth 400,000",
            with_payload(&("[".repeat(400_000) + &"]".repeat(400_000))),
            422,
            "invalid",
        ),
        ("a doubled key", with_payload(r#"{"a":1,"a":2}"#), 422, "invalid"),
        (
            "a doubled key by escape",
            with_payload(r#"{"a":1,"\u0061":2}"#),
            422,
            "invalid",
        ),
        ("NUL", with_payload(r#""\u0000""#), 422, "invalid"),
        ("a lone surrogate", with_payload(r#""\ud800""#), 422, "invalid"),
        ("1e400", with_payload("1e400"), 422, "invalid"),
        ("400 digits", with_payload(&"9".repeat(400)), 422, "invalid"),
        ("1 MiB and a byte", string(MAX_BYTES + 1), 413, "too_large"),
        ("16 MiB", string(16 << 20), 413, "too_large"),
        ("1 MiB", string(MAX_BYTES), 201, ""),
        ("1 MiB less a byte", string(MAX_BYTES - 1), 201, ""),
        (
            "depth 127",
            with_payload(&("[".repeat(127) + &"]".repeat(127))),
            201,
            "",
        ),
        (
            "100,000 elements",
            with_payload(&format!("[0{}]", ",0".repeat(99_999))),
            201,
            "",
        ),
    ];
    for (what, body, status, code) in table {
        let answer = node.post("/v1/tasks", body).await;
        assert_eq!(
            (answer.status, answer.code()),
            (status, code),
            "{what}: {}",
            answer.body
        );
    }
    for number in [
        "-0",
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551616",
        "1e-400",
        "1.10",
        "1E5",
    ] {
        let answer = node.post("/v1/tasks", with_payload(number)).await;
        let id: TaskId = answer.body["id"].as_str().unwrap().parse().unwrap();
        let kept = format!(
            "select count(*) from ringmesh.task where id = {} and payload::text = '{number}'",
            id.number
        );
        assert_eq!(fresh.number(&kept).await, 1, "{number}");
    }
    // Without a length, far above the limit: cut off at the limit.
    let chunks = futures::stream::iter((0..256).map(|_| Ok::<_, std::io::Error>(vec![b'x'; 1 << 20])));
    let request = node
        .request(Method::POST, "/v1/tasks")
        .header("content-type", "application/json");
    match request.body(reqwest::Body::wrap_stream(chunks)).send().await {
        Ok(response) => assert_eq!(response.status(), 413),
        Err(error) => assert!(error.is_request(), "{error:?}"),
    }
}

#[tokio::test]
async fn a_key_is_its_bytes_everywhere_or_is_refused() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let long = "x".repeat(1_024);
    let keys = [
        "a",
        "A",
        "x y",
        " ",
        "../",
        "..",
        "%2e%2e",
        "%00",
        "a/b",
        "/",
        "//",
        "a\\b",
        "\\x41",
        "\\000",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{202e}\u{200b}",
        "\u{feff}",
        "\r\nx-evil: 1",
        "\u{1}",
        "'; drop table ringmesh.task; --",
        "$1",
        "a?b#c",
        "+",
        "😀",
        &long,
        &long[..256],
    ];
    for key in keys {
        let created = node
            .submit(json!({"kind": "k", "key": key, "payload": null}))
            .await;
        assert_eq!(
            (created.status, &created.body["key"]),
            (201, &json!(key)),
            "{}",
            created.body
        );
        assert!(created.headers.get("x-evil").is_none());
        // As a client encodes it.
        let mut url = reqwest::Url::parse(&node.url("/v1/keys")).unwrap();
        let encoded: String = key.bytes().map(|byte| format!("%{byte:02X}")).collect();
        url.set_path(&format!(
            "/v1/keys/{}",
            if key == ".." { "%252e%252e".into() } else { encoded }
        ));
        if key != ".." {
            let status = answer(node.client.get(url)).await;
            assert_eq!(
                (status.status, &status.body["key"], &status.body["waiting"]),
                (200, &json!(key), &json!(1)),
                "{key:?}"
            );
            assert_eq!(status.body["slot"], created.body["slot"], "{key:?}");
        }
        let id: TaskId = created.body["id"].as_str().unwrap().parse().unwrap();
        let agree = format!(
            "select count(*) from ringmesh.task where id = {} and slot = ringmesh.slot_of(key)",
            id.number
        );
        assert_eq!(fresh.number(&agree).await, 1, "{key:?}");
    }
    for key in [
        String::new(),
        "x".repeat(1_025),
        "x".repeat(2_705),
        "x".repeat(1 << 20),
        "a\0b".into(),
    ] {
        let refused = node
            .submit(json!({"kind": "k", "key": key, "payload": null}))
            .await;
        assert_eq!(
            (refused.status, refused.field()),
            (422, Some("key")),
            "{}",
            refused.body
        );
    }
    for (path, status, code) in [
        ("/v1/keys/%00".to_owned(), 422, "invalid"),
        ("/v1/keys/%ff".to_owned(), 400, "bad_utf8"),
        ("/v1/keys/%c0%af".to_owned(), 400, "bad_utf8"),
        ("/v1/keys/%ed%a0%80".to_owned(), 400, "bad_utf8"),
        (format!("/v1/keys/{}", "x".repeat(8_192)), 422, "invalid"),
        ("/v1/keys/".to_owned(), 404, "not_found"),
        ("/v1/keys".to_owned(), 400, "bad_query"),
        ("/v1/keys?key=a&kind=b".to_owned(), 400, "bad_query"),
        ("/v1/keys?key=".to_owned(), 422, "invalid"),
    ] {
        let refused = node.get(&path).await;
        assert_eq!((refused.status, refused.code()), (status, code), "{path}");
    }
    for kind in ["", "a b", "a\n", "ü", &"x".repeat(129), "a\0"] {
        let refused = node
            .submit(json!({"kind": kind, "key": "a", "payload": null}))
            .await;
        assert_eq!((refused.status, refused.field()), (422, Some("kind")), "{kind:?}");
    }
    for (path, key) in [("100%", "100%"), ("%zz%41", "%zzA"), ("a%2", "a%2")] {
        let read = node.get(&format!("/v1/keys/{path}")).await;
        assert_eq!((read.status, &read.body["key"]), (200, &json!(key)), "{path}");
    }
}

#[tokio::test]
async fn what_is_no_good_request_gets_its_code() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let good = with_payload("1");
    for (types, encoding, status) in [
        (&[][..], None, 415),
        (&["text/plain"], None, 415),
        (&["application/json; charset=latin1"], None, 415),
        (&["application/json", "application/json"], None, 415),
        (&["application/json"], Some("gzip"), 415),
        (&["application/json; charset=\"UTF-8\""], None, 201),
        (&["Application/JSON"], Some("identity"), 201),
    ] {
        let mut request = node.request(Method::POST, "/v1/tasks").body(good.clone());
        for value in types {
            request = request.header("content-type", *value);
        }
        if let Some(encoding) = encoding {
            request = request.header("content-encoding", encoding);
        }
        assert_eq!(answer(request).await.status, status, "{types:?} {encoding:?}");
    }
    for (method, path, status, code) in [
        (Method::GET, "/", 404, "not_found"),
        (Method::GET, "/v1/tasks/1-2/x", 404, "not_found"),
        (Method::GET, "/v1/tasks/1-2", 404, "not_found"),
        (Method::GET, "/v1/tasks/4096-1", 400, "bad_id"),
        (Method::GET, "/v1/tasks/%ff", 400, "bad_utf8"),
        (Method::GET, "/v1/tasks/1-2?wait=61s", 400, "bad_query"),
        (Method::GET, "/v1/tasks/1-2?wait=-1", 400, "bad_query"),
        (Method::GET, "/v1/tasks/1-2?wait=1&wait=2", 400, "bad_query"),
        (Method::GET, "/v1/tasks/1-2?what=1", 400, "bad_query"),
        (Method::DELETE, "/v1/tasks/1-2?wait=1s", 400, "bad_query"),
        (Method::POST, "/v1/tasks?wiat=1s", 400, "bad_query"),
        (Method::POST, "/v1/tasks/batch?wait=1s", 400, "bad_query"),
        (Method::GET, "/v1/keys/a?wait=1s", 400, "bad_query"),
        (Method::GET, "/v1/mesh?a", 400, "bad_query"),
        (Method::GET, "/v1/slots?node=a", 400, "bad_query"),
        (Method::POST, "/v1/nodes/a/drain?a=b", 400, "bad_query"),
        (Method::GET, "/health/live?a=b", 400, "bad_query"),
        (Method::GET, "/health/ready?a=b", 400, "bad_query"),
        (Method::GET, "/metrics?a=b", 400, "bad_query"),
        (Method::PUT, "/v1/tasks", 405, "method_not_allowed"),
        (Method::GET, "/v1/tasks", 405, "method_not_allowed"),
        (Method::POST, "/v1/mesh", 405, "method_not_allowed"),
        (Method::POST, "/v1/nodes/nobody/drain", 404, "not_found"),
    ] {
        let refused = answer(node.request(method.clone(), path)).await;
        assert_eq!(
            (refused.status, refused.code()),
            (status, code),
            "{method} {path}"
        );
        assert!(refused.body["message"].is_string());
    }
}

/// Sends bytes and reads until the server closes or has answered.
async fn raw(node: &Node, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    // The server may close before it has taken all.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let mut piece = [0; 4_096];
    while !answer.windows(4).any(|end| end == b"\r\n\r\n") {
        match tokio::time::timeout(PATIENCE, stream.read(&mut piece))
            .await
            .expect("no answer")
        {
            Ok(0) | Err(_) => break,
            Ok(read) => answer.extend_from_slice(&piece[..read]),
        }
    }
    String::from_utf8_lossy(&answer).into_owned()
}

#[tokio::test]
async fn hostile_http_gets_an_answer_or_a_closed_connection_and_harms_nobody() {
    let fresh = fresh().await;
    let node = start(&fresh.store, Setup::default()).await;
    let head = "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let task = r#"{"kind":"k","key":"a","payload":1}"#;
    let length = task.len();
    let chunked = format!("{head}transfer-encoding: chunked\r\n\r\n");
    let table: Vec<(&str, String, &[&str])> = vec![
        (
            "length and chunks",
            format!("{head}content-length: {length}\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n"),
            &["400", ""],
        ),
        (
            "two lengths",
            format!("{head}content-length: {length}\r\ncontent-length: 5\r\n\r\n{task}"),
            &["400"],
        ),
        (
            "a negative length",
            format!("{head}content-length: -1\r\n\r\n"),
            &["400"],
        ),
        (
            "a huge length",
            format!("{head}content-length: 268435456\r\n\r\n"),
            &["413"],
        ),
        (
            "a length above 64 bits",
            format!("{head}content-length: 99999999999999999999\r\n\r\n"),
            &["400"],
        ),
        (
            "a chunk extension",
            format!("{chunked}{length:x};a=b\r\n{task}\r\n0\r\n\r\n"),
            &["201"],
        ),
        (
            "a bad chunk size",
            format!("{chunked}xyz\r\n{task}\r\n0\r\n\r\n"),
            &["400"],
        ),
        (
            "a huge chunk size",
            format!("{chunked}ffffffffffffffffff\r\n"),
            &["400"],
        ),
        (
            "a 1 MiB header",
            format!("{head}x-big: {}\r\n\r\n", "x".repeat(1 << 20)),
            &["431"],
        ),
        (
            "10,000 headers",
            format!("{head}{}\r\n", "a: b\r\n".repeat(10_000)),
            &["431"],
        ),
        ("no host", "GET /v1/mesh HTTP/1.1\r\n\r\n".into(), &["403"]),
        (
            "two hosts",
            "GET /v1/mesh HTTP/1.1\r\nhost: localhost\r\nhost: localhost\r\n\r\n".into(),
            &["403"],
        ),
        (
            "a foreign host",
            "GET /v1/mesh HTTP/1.1\r\nhost: evil.example\r\n\r\n".into(),
            &["403"],
        ),
        (
            "a foreign target",
            "GET http://evil.example/v1/mesh HTTP/1.1\r\nhost: localhost\r\n\r\n".into(),
            &["403"],
        ),
        (
            "an own absolute target",
            "GET http://localhost/v1/mesh HTTP/1.1\r\nhost: localhost\r\n\r\n".into(),
            &["200"],
        ),
        (
            "another site",
            "GET /v1/mesh HTTP/1.1\r\nhost: localhost\r\norigin: http://evil.example\r\n\r\n".into(),
            &["403"],
        ),
        (
            "no site",
            "GET /v1/mesh HTTP/1.1\r\nhost: localhost\r\norigin: null\r\n\r\n".into(),
            &["403"],
        ),
        (
            "the own site",
            "GET /v1/mesh HTTP/1.1\r\nhost: localhost:1\r\norigin: http://localhost:1\r\n\r\n".into(),
            &["200"],
        ),
        ("HTTP/1.0", "GET /health/live HTTP/1.0\r\n\r\n".into(), &["200"]),
        (
            "HTTP/2",
            "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".into(),
            &["400", "505", ""],
        ),
        ("HTTP/3.0", "GET / HTTP/3.0\r\n\r\n".into(), &["400", "505", ""]),
        ("TLS", "\u{16}\u{3}\u{1}".into(), &["400"]),
        (
            "a method override",
            "POST /v1/tasks/1-1 HTTP/1.1\r\nhost: localhost\r\nx-http-method-override: DELETE\r\n\r\n".into(),
            &["405"],
        ),
        (
            "a folded header",
            "GET /v1/mesh HTTP/1.1\r\nhost: localhost\r\n x: y\r\n\r\n".into(),
            &["400"],
        ),
        (
            "a bare line feed in a header",
            "GET /v1/mesh HTTP/1.1\r\nhost: localhost\r\na: b\nc: d\r\n\r\n".into(),
            &["200", "400"],
        ),
    ];
    for (what, request, statuses) in table {
        let answer = raw(&node, request.as_bytes()).await;
        let status = answer.split(' ').nth(1).unwrap_or("");
        assert!(statuses.contains(&status), "{what}: {answer}");
    }
    let id = format!("{head}idempotency-key: a\rb\r\ncontent-length: {length}\r\n\r\n{task}");
    assert!(!raw(&node, id.as_bytes()).await.contains("\rb"));
    assert_eq!(node.get("/v1/mesh").await.status, 200);
}
