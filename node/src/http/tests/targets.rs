//! Methods, targets and headers that are no good, each with the answer that it gets.

use super::hostile::{Besieged, with_payload};
use super::*;

pub(super) fn count() -> usize {
    paths().len() + headers().len()
}

/// Methods and targets.
fn paths() -> Vec<(Method, String, u16, &'static str)> {
    let get = |path: &str, status, code| (Method::GET, path.to_owned(), status, code);
    let with = |method: Method, path: &str, status, code| (method, path.to_owned(), status, code);
    vec![
        get("/", 404, "not_found"),
        get("//", 404, "not_found"),
        get("/v1", 404, "not_found"),
        get("/V1/mesh", 404, "not_found"),
        get("/v1/mesh/", 404, "not_found"),
        get("/v1//mesh", 404, "not_found"),
        get("/v1/mesh%00", 404, "not_found"),
        get("/v1/mesh;a=b", 404, "not_found"),
        get("/%76%31/mesh", 404, "not_found"),
        get("/v1/%2e%2e%2fmetrics", 404, "not_found"),
        get("/metrics%2f..%2f..", 404, "not_found"),
        get("/v1/tasks/1-2/x", 404, "not_found"),
        get("/v1/tasks/1-2", 404, "not_found"),
        get("/v1/tasks/4095-9223372036854775807", 404, "not_found"),
        get("/v1/tasks/4096-1", 400, "bad_id"),
        get("/v1/tasks/1-0", 400, "bad_id"),
        get("/v1/tasks/1--1", 400, "bad_id"),
        get("/v1/tasks/01-1", 400, "bad_id"),
        get("/v1/tasks/1-01", 400, "bad_id"),
        get("/v1/tasks/+1-1", 400, "bad_id"),
        get("/v1/tasks/1-1%20", 400, "bad_id"),
        get("/v1/tasks/1-1%00", 400, "bad_id"),
        get("/v1/tasks/1-1%0d%0ax-evil:%201", 400, "bad_id"),
        get("/v1/tasks/1-9223372036854775808", 400, "bad_id"),
        get("/v1/tasks/1%E2%80%901", 400, "bad_id"),
        get("/v1/tasks/%D9%A1-%D9%A1", 400, "bad_id"),
        get("/v1/tasks/..%2f..", 400, "bad_id"),
        get("/v1/tasks/'%20or%201=1--", 400, "bad_id"),
        get(&format!("/v1/tasks/{}-1", "1".repeat(5_000)), 400, "bad_id"),
        get("/v1/tasks/%ff", 400, "bad_utf8"),
        get("/v1/tasks/1-2?wait=61s", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=-1", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=", 400, "bad_query"),
        get("/v1/tasks/1-2?wait", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=NaN", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=inf", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=1e400", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=1%00", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=%ff", 400, "bad_query"),
        get("/v1/tasks/1-2?Wait=1s", 400, "bad_query"),
        get("/v1/tasks/1-2?wait[]=1s", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=1&wait=2", 400, "bad_query"),
        get("/v1/tasks/1-2?wait=1;wait=2", 400, "bad_query"),
        get("/v1/tasks/1-2?what=1", 400, "bad_query"),
        get(
            &format!("/v1/tasks/1-2?{}", "a&".repeat(10_000)),
            400,
            "bad_query",
        ),
        get("/v1/keys/%00", 422, "invalid"),
        get("/v1/keys/a%00b", 422, "invalid"),
        get("/v1/keys/%ff", 400, "bad_utf8"),
        get("/v1/keys/%c0%af", 400, "bad_utf8"),
        get("/v1/keys/%ed%a0%80", 400, "bad_utf8"),
        get("/v1/keys/%f4%90%80%80", 400, "bad_utf8"),
        get(&format!("/v1/keys/{}", "x".repeat(1_025)), 422, "invalid"),
        get(&format!("/v1/keys/{}", "x".repeat(8_192)), 422, "invalid"),
        get(&format!("/v1/keys/{}", "%41".repeat(1_025)), 422, "invalid"),
        get("/v1/keys/", 404, "not_found"),
        get("/v1/keys", 400, "bad_query"),
        get("/v1/keys?key=", 422, "invalid"),
        get("/v1/keys?key=%00", 422, "invalid"),
        get("/v1/keys?key=a&key=b", 400, "bad_query"),
        get("/v1/keys?key=a&kind=b", 400, "bad_query"),
        get("/v1/keys/a?wait=1s", 400, "bad_query"),
        get("/v1/mesh?a", 400, "bad_query"),
        get("/v1/mesh?%00", 400, "bad_query"),
        get("/v1/slots?node=a", 400, "bad_query"),
        get("/health/live?a=b", 400, "bad_query"),
        get("/health/ready?a=b", 400, "bad_query"),
        get("/metrics?a=b", 400, "bad_query"),
        get("/internal/v1/alive", 400, "bad_query"),
        get("/internal/v1/alive?incarnation=", 400, "bad_query"),
        get(
            "/internal/v1/alive?incarnation=9223372036854775808",
            400,
            "bad_query",
        ),
        get("/internal/v1/alive?incarnation=-1", 410, "not_this_life"),
        get("/internal/", 404, "not_found"),
        with(Method::DELETE, "/v1/tasks/1-2?wait=1s", 400, "bad_query"),
        with(Method::DELETE, "/v1/tasks/1-2", 404, "not_found"),
        with(Method::DELETE, "/v1/tasks/1-2%27", 400, "bad_id"),
        with(Method::POST, "/v1/tasks?wiat=1s", 400, "bad_query"),
        with(Method::POST, "/v1/tasks/batch?wait=1s", 400, "bad_query"),
        with(Method::POST, "/v1/nodes/a/drain?a=b", 400, "bad_query"),
        with(Method::POST, "/v1/nodes/nobody/drain", 404, "not_found"),
        with(Method::POST, "/v1/nodes/a%0d%0ax-evil:1/drain", 404, "not_found"),
        with(
            Method::POST,
            "/v1/nodes/..%2f..%2fv1%2ftasks/drain",
            404,
            "not_found",
        ),
        with(Method::POST, "/v1/nodes/%ff/drain", 400, "bad_utf8"),
        with(Method::POST, "/v1/nodes/127.0.0.1:1/drain", 404, "not_found"),
        with(Method::PUT, "/v1/tasks", 405, "method_not_allowed"),
        with(Method::GET, "/v1/tasks", 405, "method_not_allowed"),
        with(Method::DELETE, "/v1/tasks", 405, "method_not_allowed"),
        with(Method::POST, "/v1/mesh", 405, "method_not_allowed"),
        with(Method::POST, "/metrics", 405, "method_not_allowed"),
        with(Method::OPTIONS, "/v1/tasks", 405, "method_not_allowed"),
        with(Method::TRACE, "/v1/tasks", 405, "method_not_allowed"),
        with(Method::PATCH, "/v1/tasks/1-2", 405, "method_not_allowed"),
        with(Method::GET, "/v1/nodes/a/drain", 405, "method_not_allowed"),
        with(Method::GET, "/internal/v1/hints", 405, "method_not_allowed"),
        with(
            Method::from_bytes(b"DELETE2").unwrap(),
            "/v1/tasks/1-2",
            405,
            "method_not_allowed",
        ),
        with(
            Method::from_bytes(b"post").unwrap(),
            "/v1/tasks",
            405,
            "method_not_allowed",
        ),
    ]
}

/// Headers, and the status and the code that are answered.
type Headers = (Vec<(&'static str, String)>, u16, &'static str);

/// Headers of a good task: all that stands in place of `content-type: application/json`.
fn headers() -> Vec<Headers> {
    let of = |pairs: &[(&'static str, &str)], status, code| {
        let pairs = pairs
            .iter()
            .map(|(name, value)| (*name, (*value).to_owned()))
            .collect();
        (pairs, status, code)
    };
    let json = ("content-type", "application/json");
    let long = "x".repeat(256);
    let refused = "unsupported_media_type";
    vec![
        of(&[], 415, refused),
        of(&[("content-type", "")], 415, refused),
        of(&[("content-type", "text/plain")], 415, refused),
        of(&[("content-type", "text/json")], 415, refused),
        of(&[("content-type", "application/jsonp")], 415, refused),
        of(&[("content-type", "application/json, text/plain")], 415, refused),
        of(&[("content-type", "application/x-ndjson")], 415, refused),
        of(
            &[("content-type", "application/x-www-form-urlencoded")],
            415,
            refused,
        ),
        of(
            &[("content-type", "multipart/form-data; boundary=a")],
            415,
            refused,
        ),
        of(
            &[("content-type", "application/json; charset=latin1")],
            415,
            refused,
        ),
        of(
            &[("content-type", "application/json; charset=utf-16")],
            415,
            refused,
        ),
        of(
            &[("content-type", "application/json; charset=utf-8; charset=utf-7")],
            415,
            refused,
        ),
        of(&[json, json], 415, refused),
        of(&[json, ("content-type", "text/plain")], 415, refused),
        of(&[json, ("content-encoding", "gzip")], 415, refused),
        of(&[json, ("content-encoding", "identity, gzip")], 415, refused),
        of(&[json, ("content-encoding", "br")], 415, refused),
        of(&[json, ("content-encoding", "")], 415, refused),
        of(&[json, ("idempotency-key", "")], 422, "invalid"),
        of(&[json, ("idempotency-key", &long)], 422, "invalid"),
        of(
            &[json, ("idempotency-key", "a"), ("idempotency-key", "b")],
            422,
            "invalid",
        ),
        of(
            &[json, ("idempotency-key", "a"), ("idempotency-key", "a")],
            422,
            "invalid",
        ),
        of(&[json, ("host", "evil.example")], 403, "foreign_host"),
        of(&[json, ("host", "localhost.evil.example")], 403, "foreign_host"),
        of(&[json, ("host", "user@localhost")], 403, "foreign_host"),
        of(&[json, ("host", "0x7f000001")], 403, "foreign_host"),
        of(&[json, ("host", "2130706433")], 403, "foreign_host"),
        of(&[json, ("host", "127.0.0.1.nip.io")], 403, "foreign_host"),
        of(&[json, ("host", "0.0.0.0")], 403, "foreign_host"),
        of(&[json, ("host", "[::ffff:127.0.0.1]")], 403, "foreign_host"),
        of(&[json, ("host", "")], 403, "foreign_host"),
        of(&[json, ("host", "localhost, evil.example")], 403, "foreign_host"),
        of(&[json, ("origin", "http://evil.example")], 403, "cross_site"),
        of(&[json, ("origin", "null")], 403, "cross_site"),
        of(&[json, ("origin", "https://localhost")], 403, "cross_site"),
        of(
            &[json, ("origin", "http://localhost.evil.example")],
            403,
            "cross_site",
        ),
        of(&[json, ("x-forwarded-host", "evil.example")], 201, ""),
        of(&[json, ("x-http-method-override", "DELETE")], 201, ""),
        of(&[json, ("x-original-url", "/v1/nodes/a/drain")], 201, ""),
        of(&[json, ("expect", "the unexpected")], 201, ""),
        of(
            &[
                json,
                ("upgrade", "h2c"),
                ("http2-settings", "AAMAAABkAAQAAP__"),
                ("connection", "Upgrade, HTTP2-Settings"),
            ],
            201,
            "",
        ),
        of(&[json, ("range", "bytes=0-0")], 201, ""),
        of(&[json, ("authorization", "Bearer nobody-asked")], 201, ""),
        of(
            &[("content-type", "application/json; charset=\"UTF-8\"")],
            201,
            "",
        ),
        of(&[("content-type", " Application/JSON ;charset=utf-8;")], 201, ""),
        of(&[json, ("content-encoding", "identity")], 201, ""),
    ]
}

#[tokio::test]
async fn what_is_no_good_request_gets_its_code() {
    let mut besieged = Besieged::new().await;
    for (method, path, status, code) in paths() {
        let refused = answer(besieged.node.request(method.clone(), &path)).await;
        let shown = format!("{method} {path:.80}");
        assert_eq!(
            (refused.status, refused.code()),
            (status, code),
            "{shown}: {}",
            refused.body
        );
        assert!(
            refused.body["message"].is_string() && refused.headers.get("x-evil").is_none(),
            "{shown}"
        );
        besieged.is_unharmed(&shown).await;
    }
    assert!(
        besieged.node.drained.try_recv().is_err(),
        "nobody asked for a drain"
    );
    for (headers, status, code) in headers() {
        let mut request = besieged
            .node
            .request(Method::POST, "/v1/tasks")
            .body(with_payload("1"));
        for (name, value) in &headers {
            request = request.header(*name, value);
        }
        let shown = format!("{headers:?}");
        let got = answer(request).await;
        assert_eq!(
            (got.status, got.code()),
            (status, code),
            "{shown:.200}: {}",
            got.body
        );
        besieged.taken += i64::from(status == 201);
        besieged.is_unharmed(&shown).await;
    }
}
