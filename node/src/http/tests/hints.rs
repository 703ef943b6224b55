//! What strangers, and members that went mad, may send where nodes speak to each other.

use serde_json::json;

use super::hostile::Besieged;
use super::*;
use crate::secret::Signer;

/// How a request is signed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mac {
    /// By this mesh's secret, for its path and body.
    Good,
    /// By this mesh's secret, for the other path.
    OtherPath,
    /// By this mesh's secret, for another body.
    OtherBody,
    /// By the secret of another mesh.
    OtherMesh,
    /// By the secret that stands in on loopback.
    Loopback,
    /// As it is.
    Text(&'static str),
    /// Good, and cut by a character.
    Cut,
    /// Good, in capitals.
    Capitals,
    /// Two of them, the second good.
    Twice,
    None,
}

struct Row {
    what: &'static str,
    path: &'static str,
    body: Vec<u8>,
    mac: Mac,
    status: u16,
    code: &'static str,
}

pub(crate) fn count() -> usize {
    table().len()
}

const NEWS: &str = r#"{"to":1,"tasks":[{"slot":1,"lowest":1,"urgent":false}]}"#;
const OFFER: &str = r#"{"from":2,"to":1,"digest":"d1","slots":[1,2,3]}"#;

fn table() -> Vec<Row> {
    let row = |what, path, body: &str, mac, status, code| Row {
        what,
        path,
        body: body.as_bytes().to_vec(),
        mac,
        status,
        code,
    };
    let mut rows = Vec::new();
    for (path, body) in [(HINTS_PATH, NEWS), (HANDOFF_PATH, OFFER)] {
        for (what, mac) in [
            ("no MAC", Mac::None),
            ("an empty MAC", Mac::Text("")),
            (
                "zeros for a MAC",
                Mac::Text("0000000000000000000000000000000000000000000000000000000000000000"),
            ),
            (
                "a token for a MAC",
                Mac::Text("Bearer correct horse battery staple"),
            ),
            ("another mesh", Mac::OtherMesh),
            ("the built-in secret", Mac::Loopback),
            ("a MAC for the other path", Mac::OtherPath),
            ("a MAC for another body", Mac::OtherBody),
            ("a MAC cut short", Mac::Cut),
            ("a MAC in capitals", Mac::Capitals),
            ("a second MAC", Mac::Twice),
        ] {
            rows.push(row(what, path, body, mac, 403, "bad_mac"));
        }
        // Before the MAC is looked at.
        rows.push(row(
            "1 MiB and a byte",
            path,
            &" ".repeat((1 << 20) + 1),
            Mac::Good,
            413,
            "too_large",
        ));
        rows.push(row(
            "16 MiB of a stranger",
            path,
            &" ".repeat(16 << 20),
            Mac::Text("0"),
            403,
            "bad_mac",
        ));
        for (what, body) in [
            ("nothing", ""),
            ("no object", "[]"),
            ("a lone bracket", "{"),
            ("another type", "\"to\""),
            ("no incarnation", "{}"),
            ("an incarnation in words", r#"{"to":"1"}"#),
            ("an incarnation with a fraction", r#"{"to":1.0}"#),
            ("an incarnation above 64 bits", r#"{"to":9223372036854775808}"#),
            ("a doubled incarnation", r#"{"to":1,"to":2}"#),
            ("trailing bytes", r#"{"to":1}{"to":1}"#),
            ("NUL behind it", "{\"to\":1}\0"),
        ] {
            rows.push(row(what, path, body, Mac::Good, 400, "bad_json"));
        }
        rows.push(row(
            "deep",
            path,
            &"[".repeat(1_000_000),
            Mac::Good,
            400,
            "bad_json",
        ));
        rows.push(row(
            "deep inside",
            path,
            &format!(r#"{{"to":1,"x":{}"#, "[".repeat(900_000)),
            Mac::Good,
            400,
            "bad_json",
        ));
        rows.push(Row {
            body: b"\xff{\"to\":1}".to_vec(),
            ..row("no UTF-8", path, "", Mac::Good, 400, "bad_json")
        });
    }
    for to in ["0", "-1", "2", "9223372036854775807", "-9223372036854775808"] {
        let hints = format!(r#"{{"to":{to},"moved":true}}"#);
        rows.push(row(
            "news for another life",
            HINTS_PATH,
            &hints,
            Mac::Good,
            410,
            "not_this_life",
        ));
        let offer = format!(r#"{{"from":2,"to":{to},"digest":"d1","slots":[1]}}"#);
        rows.push(row(
            "an offer to another life",
            HANDOFF_PATH,
            &offer,
            Mac::Good,
            410,
            "not_this_life",
        ));
    }
    for (what, hint) in [
        (
            "a slot above the last",
            r#""tasks":[{"slot":4096,"lowest":1,"urgent":false}]"#,
        ),
        (
            "a negative slot",
            r#""tasks":[{"slot":-1,"lowest":1,"urgent":false}]"#,
        ),
        (
            "a number above 64 bits",
            r#""tasks":[{"slot":1,"lowest":9223372036854775808,"urgent":false}]"#,
        ),
        ("half a hint", r#""tasks":[{"slot":1}]"#),
        ("no list", r#""tasks":{}"#),
        ("null", r#""tasks":null"#),
        ("a task that is none", r#""cancelled":["4096-1"]"#),
        ("a task in other words", r#""ended":["01-1"]"#),
        ("a task without a number", r#""ended":["1-0"]"#),
        ("a number for a task", r#""ended":[1]"#),
        ("text for a flag", r#""moved":"true""#),
    ] {
        rows.push(row(
            what,
            HINTS_PATH,
            &format!(r#"{{"to":1,{hint}}}"#),
            Mac::Good,
            400,
            "bad_json",
        ));
    }
    let many: Vec<String> = (0..20_000)
        .map(|n| format!(r#"{{"slot":{},"lowest":{n},"urgent":true}}"#, n % 4_096))
        .collect();
    let ids: Vec<String> = (1..60_000).map(|n| format!(r#""{}-{n}""#, n % 4_096)).collect();
    // Of members: taken, and it decides nothing.
    for (what, hint) in [
        ("nothing new", ""),
        ("what a later version may say", r#","surprise":{"a":[1]}"#),
        (
            "the lowest number",
            r#","tasks":[{"slot":1,"lowest":-9223372036854775808,"urgent":true}]"#,
        ),
        (
            "the highest number",
            r#","tasks":[{"slot":1,"lowest":9223372036854775807,"urgent":true}]"#,
        ),
        (
            "a slot twice",
            r#","tasks":[{"slot":1,"lowest":5,"urgent":false},{"slot":1,"lowest":1,"urgent":true}]"#,
        ),
        ("20,000 hints", &format!(r#","tasks":[{}]"#, many.join(","))),
        (
            "60,000 ends of tasks that nobody knows",
            &format!(r#","ended":[{}]"#, ids.join(",")),
        ),
        (
            "cancels of tasks that nobody knows",
            r#","cancelled":["1-9223372036854775807","1-9223372036854775806"]"#,
        ),
    ] {
        rows.push(row(
            what,
            HINTS_PATH,
            &format!(r#"{{"to":1{hint}}}"#),
            Mac::Good,
            204,
            "",
        ));
    }
    for (what, slots) in [
        ("an offer of nothing", ""),
        ("an offer of one slot a thousand times", &*"1,".repeat(999)),
    ] {
        let offer = format!(
            r#"{{"from":-1,"to":1,"digest":"d1","slots":[{slots}{}]}}"#,
            if slots.is_empty() { "" } else { "1" }
        );
        rows.push(row(what, HANDOFF_PATH, &offer, Mac::Good, 200, ""));
    }
    let long = format!(
        r#"{{"from":2,"to":1,"digest":"{}","slots":[]}}"#,
        "d".repeat(1_000_000)
    );
    rows.push(row("a long digest", HANDOFF_PATH, &long, Mac::Good, 200, ""));
    rows.push(row(
        "a slot above the last",
        HANDOFF_PATH,
        r#"{"from":2,"to":1,"digest":"d1","slots":[4096]}"#,
        Mac::Good,
        400,
        "bad_json",
    ));
    rows
}

fn signed(row: &Row) -> Vec<String> {
    let signer = |secret: &str| Signer::new(&Secret::new(secret));
    let good = signer("cluster").sign(row.path, &row.body);
    let other = if row.path == HINTS_PATH {
        HANDOFF_PATH
    } else {
        HINTS_PATH
    };
    match row.mac {
        Mac::Good => vec![good],
        Mac::OtherPath => vec![signer("cluster").sign(other, &row.body)],
        Mac::OtherBody => vec![signer("cluster").sign(row.path, b"{}")],
        Mac::OtherMesh => vec![signer("another cluster").sign(row.path, &row.body)],
        Mac::Loopback => {
            vec![Signer::new(&crate::config::Config::default().cluster_secret()).sign(row.path, &row.body)]
        }
        Mac::Text(text) => vec![text.to_owned()],
        Mac::Cut => vec![good[..good.len() - 1].to_owned()],
        Mac::Capitals => vec![good.to_uppercase()],
        Mac::Twice => vec!["0".repeat(64), good],
        Mac::None => Vec::new(),
    }
}

#[tokio::test]
async fn what_is_not_of_this_mesh_is_refused_and_what_is_decides_nothing() {
    let besieged = Besieged::new().await;
    let mut wrong = Vec::new();
    for row in table() {
        let node = &besieged.node;
        let before = node.seen.hints.lock().unwrap().len();
        let mut request = node.client.post(node.url(row.path)).body(row.body.clone());
        for mac in signed(&row) {
            request = request.header(Signer::HEADER, mac);
        }
        let got = answer(request).await;
        let shown = format!("{}: {} {:?}", row.path, row.what, row.mac);
        if (got.status, got.code()) != (row.status, row.code) {
            wrong.push(format!("{shown}: {} {}", got.status, got.body));
        }
        let reached = node.seen.hints.lock().unwrap().len() != before;
        if reached && got.status != 204 {
            wrong.push(format!("{shown} reached the dispatch"));
        }
        besieged.is_unharmed(&shown).await;
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn a_repeated_message_is_news_once_more_and_a_false_cancel_is_not_believed() {
    let mut besieged = Besieged::new().await;
    let signer = Signer::new(&Secret::new("cluster"));
    let created = besieged
        .node
        .submit(json!({"kind": "k", "key": "a", "payload": 1}))
        .await;
    besieged.taken += 1;
    let open: TaskId = created.body["id"].as_str().unwrap().parse().unwrap();
    let gone = TaskId {
        number: open.number + 1,
        ..open
    };
    let node = &besieged.node;
    // A replay costs a look, and a cancel is looked up: only what Postgres does not hold as open is dropped from memory.
    let body = json!({"to": 1, "tasks": [{"slot": open.slot, "lowest": 1, "urgent": false}], "cancelled": [open, gone]}).to_string();
    let before = node.seen.hints.lock().unwrap().len();
    for _ in 0..3 {
        let mac = signer.sign(HINTS_PATH, body.as_bytes());
        let request = node.client.post(node.url(HINTS_PATH)).header(Signer::HEADER, mac);
        assert_eq!(answer(request.body(body.clone())).await.status, 204);
    }
    until("all cancels were looked up", || async {
        node.seen.cancelled.lock().unwrap().len() >= 3
    })
    .await;
    assert_eq!(*node.seen.cancelled.lock().unwrap(), [gone, gone, gone]);
    assert_eq!(node.seen.hints.lock().unwrap().len(), before + 3);
    besieged.is_unharmed("a false cancel").await;
}
