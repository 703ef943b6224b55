//! Bytes on a connection that are no good HTTP, each with the status that it gets, or a closed connection.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::hostile::Besieged;
use super::*;

const TASK: &str = r#"{"kind":"k","key":"a","payload":1}"#;

pub(super) fn count() -> usize {
    table().len()
}

/// What it is, the bytes, and the statuses of all answers, in their order.
type Row = (&'static str, Vec<u8>, &'static [u16]);

fn table() -> Vec<Row> {
    let mut rows = heads();
    rows.extend(lengths());
    rows.extend(chunks());
    rows.extend(connections());
    rows
}

fn post(headers: &str, body: &str) -> Vec<u8> {
    format!(
        "POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n{headers}\r\n{body}"
    )
    .into_bytes()
}

fn get(line: &str, headers: &str) -> Vec<u8> {
    format!("{line}\r\nhost: localhost\r\n{headers}\r\n").into_bytes()
}

/// How a body's end is said by a length.
fn lengths() -> Vec<Row> {
    let length = TASK.len();
    let said = |headers: &str| post(&headers.replace('#', &length.to_string()), TASK);
    vec![
        ("a length", said("content-length: #\r\n"), &[201]),
        (
            "two lengths",
            said("content-length: #\r\ncontent-length: 5\r\n"),
            &[400],
        ),
        ("two lengths in one", said("content-length: #, 5\r\n"), &[400]),
        ("a length with a sign", said("content-length: +#\r\n"), &[400]),
        ("a negative length", said("content-length: -1\r\n"), &[400]),
        ("a hexadecimal length", said("content-length: 0x22\r\n"), &[400]),
        (
            "a length with a fraction",
            said("content-length: #.0\r\n"),
            &[400],
        ),
        ("an empty length", said("content-length: \r\n"), &[400]),
        ("a length in words", said("content-length: all\r\n"), &[400]),
        (
            "a length above 64 bits",
            said("content-length: 99999999999999999999\r\n"),
            &[400],
        ),
        ("256 MiB announced", said("content-length: 268435456\r\n"), &[413]),
        (
            "all of 64 bits announced",
            said("content-length: 18446744073709551615\r\n"),
            &[431],
        ),
        (
            "a length and a space before the colon",
            said("content-length : #\r\n"),
            &[400],
        ),
        ("a length of nothing", said("content-length: 0\r\n"), &[400, 400]),
        ("no length, but a body", said(""), &[400, 400]),
        ("a length cut short", said("content-length: 10\r\n"), &[400, 400]),
        // What a proxy in front might take for the body, and the node for a request of its own, or the other way round.
        (
            "a length and chunks",
            said("content-length: #\r\ntransfer-encoding: chunked\r\n"),
            &[400],
        ),
        (
            "chunks and a length",
            said("transfer-encoding: chunked\r\ncontent-length: #\r\n"),
            &[400],
        ),
    ]
}

/// How a body's end is said by chunks.
fn chunks() -> Vec<Row> {
    let length = TASK.len();
    let coded = |coding: &str, body: String| post(&format!("transfer-encoding: {coding}\r\n"), &body);
    let whole = format!("{length:x}\r\n{TASK}\r\n0\r\n\r\n");
    let chunked = |body: String| coded("chunked", body);
    vec![
        ("chunks", chunked(whole.clone()), &[201]),
        ("a chunk for each byte", chunked(TASK.chars().map(|c| format!("1\r\n{c}\r\n")).collect::<String>() + "0\r\n\r\n"), &[201]),
        ("chunks in capitals", coded("CHUNKED", whole.clone()), &[201]),
        ("a chunk extension", chunked(format!("{length:x};a=b\r\n{TASK}\r\n0\r\n\r\n")), &[201]),
        ("a chunk extension in quotes", chunked(format!("{length:x};a=\"\\\"\r\n{TASK}\r\n0\r\n\r\n")), &[201]),
        ("64 KiB of chunk extensions", chunked(format!("{length:x};{}\r\n{TASK}\r\n0\r\n\r\n", "a".repeat(64 << 10))), &[400]),
        ("a trailer", chunked(format!("{length:x}\r\n{TASK}\r\n0\r\nhost: evil.example\r\n\r\n")), &[201]),
        ("10,000 trailers", chunked(format!("{length:x}\r\n{TASK}\r\n0\r\n{}\r\n", "a: b\r\n".repeat(10_000))), &[400]),
        ("a bad chunk size", chunked(format!("xyz\r\n{TASK}\r\n0\r\n\r\n")), &[400]),
        ("a negative chunk size", chunked(format!("-1\r\n{TASK}\r\n0\r\n\r\n")), &[400]),
        ("a chunk size with a sign", chunked(format!("+{length:x}\r\n{TASK}\r\n0\r\n\r\n")), &[400]),
        ("a chunk size with a prefix", chunked(format!("0x{length:x}\r\n{TASK}\r\n0\r\n\r\n")), &[400]),
        ("a chunk size above 64 bits", chunked("ffffffffffffffffff\r\n".to_owned()), &[400]),
        ("a chunk size of all 64 bits", chunked("ffffffffffffffff\r\n".to_owned() + &"x".repeat(2 << 20)), &[413]),
        ("no chunk size", chunked(format!("\r\n{TASK}\r\n0\r\n\r\n")), &[400]),
        ("a chunk longer than said", chunked(format!("5\r\n{TASK}\r\n0\r\n\r\n")), &[400]),
        ("bare line feeds around chunks", chunked(format!("{length:x}\n{TASK}\n0\n\n")), &[400]),
        ("identity", coded("identity", TASK.to_owned()), &[400]),
        ("gzip", coded("gzip", TASK.to_owned()), &[400]),
        ("chunked, then gzip", coded("chunked, gzip", whole.clone()), &[400]),
        ("an unknown coding", coded("xchunked", whole.clone()), &[400]),
        ("a coding behind a vertical tab", coded("\u{b}chunked", whole.clone()), &[400]),
        ("two codings", coded("identity\r\ntransfer-encoding: chunked", whole.clone()), &[201]),
        (
            "chunks in HTTP/1.0",
            format!("POST /v1/tasks HTTP/1.0\r\nhost: localhost\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n{whole}")
                .into_bytes(),
            &[400],
        ),
    ]
}

/// Request lines and headers.
fn heads() -> Vec<Row> {
    let long = "x".repeat(100 << 10);
    let mesh = "GET /v1/mesh HTTP/1.1";
    vec![
        ("a good request", get(mesh, ""), &[200]),
        ("a 100 KiB header", get(mesh, &format!("x-big: {long}\r\n")), &[431]),
        ("a 1 MiB header", get(mesh, &format!("x-big: {}\r\n", "x".repeat(1 << 20))), &[431]),
        ("a header's name of 100 KiB", get(mesh, &format!("{long}: x\r\n")), &[431]),
        ("10,000 headers", get(mesh, &"a: b\r\n".repeat(10_000)), &[431]),
        ("a target of 100 KiB", get(&format!("GET /{long} HTTP/1.1"), ""), &[431]),
        ("a method of 100 KiB", get(&format!("{long} / HTTP/1.1"), ""), &[431]),
        ("no host", b"GET /v1/mesh HTTP/1.1\r\n\r\n".to_vec(), &[403]),
        ("two hosts", get(mesh, "host: localhost\r\n"), &[403]),
        ("a foreign target", get("GET http://evil.example/v1/mesh HTTP/1.1", ""), &[403]),
        ("a foreign target with a user", get("GET http://localhost@evil.example/v1/mesh HTTP/1.1", ""), &[403]),
        ("an own absolute target", get("GET http://localhost/v1/mesh HTTP/1.1", ""), &[200]),
        ("a target of another scheme", get("GET file:///etc/passwd HTTP/1.1", ""), &[400]),
        ("a target without a slash", get("GET v1/mesh HTTP/1.1", ""), &[400]),
        ("the target *", get("OPTIONS * HTTP/1.1", ""), &[404]),
        ("a tunnel", get("CONNECT localhost:5432 HTTP/1.1", ""), &[404]),
        ("a tunnel elsewhere", get("CONNECT evil.example:443 HTTP/1.1", ""), &[403]),
        ("a space in the target", get("GET /v1/ mesh HTTP/1.1", ""), &[400]),
        ("NUL in the target", get("GET /v1/mesh\0 HTTP/1.1", ""), &[400]),
        ("a fragment in the target", get("GET /v1/mesh#a HTTP/1.1", ""), &[200]),
        ("a step up in the target", get("GET /v1/../metrics HTTP/1.1", ""), &[404]),
        ("bytes above ASCII in the target", get("GET /v1/mesh\u{e9} HTTP/1.1", ""), &[404]),
        ("another site", get(mesh, "origin: http://evil.example\r\n"), &[403]),
        ("the own site", b"GET /v1/mesh HTTP/1.1\r\nhost: localhost:1\r\norigin: http://localhost:1\r\n\r\n".to_vec(), &[200]),
        ("two origins", get(mesh, "origin: http://localhost\r\norigin: http://evil.example\r\n"), &[403]),
        ("a folded header", get(mesh, " x: y\r\n"), &[400]),
        ("a header without a colon", get(mesh, "nonsense\r\n"), &[400]),
        ("a header without a name", get(mesh, ": x\r\n"), &[400]),
        ("a space in a header's name", get(mesh, "a b: x\r\n"), &[400]),
        ("NUL in a header", get(mesh, "a: b\0c\r\n"), &[400]),
        ("a carriage return in a header", get(mesh, "a: b\rc\r\n"), &[400]),
        ("a carriage return in the idempotency key", post("idempotency-key: a\rb\r\ncontent-length: 2\r\n", "{}"), &[400]),
        ("bytes above ASCII in the idempotency key", post("idempotency-key: é\r\ncontent-length: 2\r\n", "{}"), &[422]),
        (
            "no UTF-8 in the idempotency key",
            [&b"POST /v1/tasks HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\nidempotency-key: \xff\r\ncontent-length: 2\r\n\r\n{}"[..]].concat(),
            &[422],
        ),
        ("a method override", post("x-http-method-override: DELETE\r\ncontent-length: 2\r\n", "{}"), &[422]),
        ("a lower-case method", get("get /v1/mesh HTTP/1.1", ""), &[405]),
        ("no version", b"GET /v1/mesh\r\nhost: localhost\r\n\r\n".to_vec(), &[400]),
        ("HTTP/0.9", get("GET /v1/mesh HTTP/0.9", ""), &[400]),
        ("HTTP/1.0", b"GET /health/live HTTP/1.0\r\n\r\n".to_vec(), &[200]),
        ("HTTP/1.2", get("GET /v1/mesh HTTP/1.2", ""), &[400]),
        ("HTTP/2.0", get("GET /v1/mesh HTTP/2.0", ""), &[400]),
        ("HTTP/3.0", get("GET /v1/mesh HTTP/3.0", ""), &[400]),
        ("the preface of HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0".to_vec(), &[]),
        ("a thousand resets in HTTP/2", [&b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"[..], &b"\0\0\x04\x03\0\0\0\0\x01\0\0\0\x08".repeat(1_000)].concat(), &[]),
        ("TLS", b"\x16\x03\x01\x02\0\x01\0\x01\xfc\x03\x03".to_vec(), &[400]),
        ("Postgres", b"\0\0\0\x08\x04\xd2\x16\x2f".to_vec(), &[400]),
        ("SSH", b"SSH-2.0-OpenSSH_9.2\r\n".to_vec(), &[400]),
        ("nothing but line ends", b"\r\n\r\n\r\n".to_vec(), &[]),
        ("NUL", vec![0; 1_000], &[400]),
    ]
}

/// More than one request on a connection.
fn connections() -> Vec<Row> {
    let mesh = get("GET /v1/mesh HTTP/1.1", "");
    let bad = get("GET /v1/mesh HTTP/1.1", "nonsense\r\n");
    let unread = post("content-length: 268435456\r\n", "");
    vec![
        ("a hundred requests at once", mesh.repeat(100), &[200; 100]),
        (
            "one behind a bad one",
            [&*mesh, &*bad, &*mesh].concat(),
            &[200, 400],
        ),
        // What follows would be the rest of its body.
        (
            "one behind a body that is not read",
            [&*unread, &*mesh].concat(),
            &[413],
        ),
        (
            "one behind a refused body",
            [&*post("content-length: 5\r\n", "[[[[["), &*mesh].concat(),
            &[422, 200],
        ),
        ("one behind line ends", [b"\r\n\r\n", &*mesh].concat(), &[200]),
    ]
}

/// Sent behind all: the server closes the connection after its answer, if it has not before.
const LAST: &[u8] = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n";

/// Sends bytes and [`LAST`], and reads until the server closes.
async fn raw(node: &Node, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(node.address).await.unwrap();
    let (mut reader, mut writer) = stream.split();
    let mut answer = Vec::new();
    // The server may close before it has taken all, and a reset is an end too.
    let send = async {
        let _ = writer.write_all(bytes).await;
        let _ = writer.write_all(LAST).await;
    };
    let read = async {
        let _ = reader.read_to_end(&mut answer).await;
    };
    tokio::time::timeout(PATIENCE, async { tokio::join!(send, read) })
        .await
        .expect("the connection is never closed");
    String::from_utf8_lossy(&answer).into_owned()
}

fn statuses(answer: &str) -> Vec<u16> {
    let heads = answer.split("HTTP/1.").skip(1);
    heads.filter_map(|head| head.get(2..5)?.parse().ok()).collect()
}

#[tokio::test]
async fn hostile_http_gets_an_answer_or_a_closed_connection_and_harms_nobody() {
    let mut besieged = Besieged::new().await;
    let mut wrong = Vec::new();
    for (what, bytes, expected) in table() {
        let answer = raw(&besieged.node, &bytes).await;
        let got = statuses(&answer);
        // Whoever misunderstood a request may understand the next one wrongly too: then there is none.
        let goes_on = expected.last() != Some(&400) || answer.contains("bad_json");
        let with_last = [expected, &[200]].concat();
        // A reset may overtake the answer, where not all was read that was sent.
        let lost = got.is_empty() && bytes.len() > 60_000;
        if got != expected && !(goes_on && got == with_last) && !lost {
            wrong.push(format!("{what}: {got:?} in place of {expected:?}: {answer:.300}"));
        }
        assert!(!answer.contains("\rb"), "{what}: {answer}");
        let taken = got.iter().filter(|status| **status == 201).count() as i64;
        let written = besieged.written().await - besieged.taken;
        if written != taken {
            wrong.push(format!("{what}: {written} tasks written, and {taken} answered"));
        }
        besieged.taken += written;
        besieged.is_unharmed(what).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}
