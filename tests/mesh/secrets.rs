//! What is secret stays out of every log, also of one that tells all it can and of commands that fail.

use std::process::Stdio;

use ringmesh::store::Store;
use serde_json::json;
use tokio::process::Command;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

const PASSWORD: &str = "word-that-opens-postgres";
const TOKEN: &str = "token-that-opens-the-api";
const WRONG: &str = "token-that-somebody-tried";
const PAYLOAD: &str = "payload-that-is-nobodys-business";

/// The same server by a role with that password.
fn url(lab: &Lab) -> String {
    let place = lab.mesh.database_url().split_once('@').unwrap().1;
    format!("postgres://keeper:{PASSWORD}@{place}")
}

#[tokio::test]
async fn no_log_at_debug_level_shows_a_payload_a_token_a_secret_or_a_password() {
    let common = [
        UNHURRIED,
        ("RINGMESH_LOG", "debug"),
        ("RINGMESH_FAULT_KINDS", "true"),
        ("RINGMESH_BACKOFF_MIN", "10ms"),
    ];
    let mut lab = Lab::start(1, Program::Ringmesh, &common).await;
    lab.execute(&format!(
        "create role keeper superuser login password '{PASSWORD}'"
    ))
    .await;
    let database = url(&lab);
    let env = [
        common[0],
        common[1],
        common[2],
        common[3],
        ("RINGMESH_LOG_FORMAT", "json"),
        ("RINGMESH_DATABASE_URL", &database),
        ("RINGMESH_TOKEN", TOKEN),
    ];
    lab.add_guest("keeper", Program::Ringmesh, &env).await;
    let node = &lab.guests[0].nodes()[0];
    let http = ringmesh::tls::http_client()
        .no_proxy()
        .timeout(SLACK)
        .build()
        .unwrap();
    let post = |path: &str, token: &str, body: String| {
        let request = http
            .post(format!("{}{path}", node.url()))
            .header("authorization", format!("Bearer {token}"));
        request
            .header("content-type", "application/json")
            .body(body)
            .send()
    };
    let task = |kind: &str, key: &str, payload| {
        json!({"kind": kind, "key": key, "payload": payload, "max_attempts": 2}).to_string()
    };

    // Payloads that succeed, that fail in all ways, and that are not even taken. Keys of both nodes.
    let mut ids = Vec::new();
    for number in 0..16 {
        for (kind, payload) in [
            ("echo", json!({"secret": PAYLOAD})),
            ("sleep", json!({"ms": PAYLOAD})),
            ("panic", json!(PAYLOAD)),
            ("unheard-of", json!(PAYLOAD)),
        ] {
            let key = format!("{kind}-{number}");
            let answer = post("/v1/tasks", TOKEN, task(kind, &key, payload)).await.unwrap();
            lab.check(answer.status() == 201, || format!("{kind} was not taken"));
            let answer: serde_json::Value = answer.json().await.unwrap();
            if kind != "unheard-of" {
                ids.push(answer["id"].as_str().unwrap().to_owned());
            }
        }
    }
    for (token, body, status) in [
        (WRONG, task("echo", "a", json!(PAYLOAD)), 401),
        (TOKEN, format!("{{\"{PAYLOAD}"), 400),
        (
            TOKEN,
            format!(r#"{{"kind":"echo","key":"a","payload":{{"{PAYLOAD}":1,"{PAYLOAD}":2}}}}"#),
            422,
        ),
        (
            TOKEN,
            format!(r#"{{"kind":"{PAYLOAD} ","key":"a","payload":1}}"#),
            422,
        ),
        (
            TOKEN,
            format!(r#"{{"kind":"echo","key":"a","payload":"{PAYLOAD}\u0000"}}"#),
            422,
        ),
    ] {
        let answer = post("/v1/tasks", token, body).await.unwrap();
        lab.check(answer.status() == status, || {
            format!("{} in place of {status}", answer.status())
        });
    }
    for id in &ids {
        let path = format!("{}/v1/tasks/{id}?wait=50s", node.url());
        let answer = http
            .get(path)
            .header("authorization", format!("Bearer {TOKEN}"))
            .send()
            .await
            .unwrap();
        let answer: serde_json::Value = answer.json().await.unwrap();
        lab.check(
            ["succeeded", "dead"].contains(&answer["state"].as_str().unwrap_or_default()),
            || answer.to_string(),
        );
    }
    // Postgres goes away for a moment, and refuses the password after that.
    lab.execute("select pg_terminate_backend(pid) from pg_stat_activity where usename = 'keeper'")
        .await;
    lab.execute("alter role keeper password 'another'").await;
    lab.until(SLACK, "the node notices", async || {
        let log = std::fs::read_to_string(node.log()).unwrap();
        match log.contains("password authentication failed") {
            true => Ok(()),
            false => Err("no word of it".to_owned()),
        }
    })
    .await;

    let cluster = lab.mesh.cluster_secret().to_owned();
    let logs = lab
        .mesh
        .nodes()
        .iter()
        .chain(lab.guests.iter().flat_map(|guest| guest.nodes()))
        .map(|node| node.log().to_owned());
    for log in logs {
        let text = std::fs::read_to_string(&log).unwrap();
        let lines = text.lines().filter(|line| line.contains("DEBUG")).count();
        lab.check(lines > 20, || {
            format!("{} has only {lines} lines at debug", log.display())
        });
        for secret in [PASSWORD, TOKEN, WRONG, PAYLOAD, &cluster] {
            let shown = text.lines().find(|line| line.contains(secret));
            lab.check(shown.is_none(), || {
                format!("{}: {}", log.display(), shown.unwrap_or_default())
            });
        }
    }
}

#[tokio::test]
async fn commands_that_cannot_connect_do_not_say_the_password() {
    let urls = [
        format!("postgres://me:{PASSWORD}@127.0.0.1:1/app"),
        format!("postgres://me:{PASSWORD}@nowhere.invalid/app"),
        format!("postgres://me:{PASSWORD}@127.0.0.1:99999/app"),
        format!("postgres://me:{PASSWORD}"),
        format!("postgres://me:a?{PASSWORD}@127.0.0.1:1/app"),
        format!("postgres://me:a#{PASSWORD}@127.0.0.1:1/app"),
        format!("postgres://me:%zz{PASSWORD}@127.0.0.1:1/app"),
        format!("postgres://127.0.0.1:1/app?password={PASSWORD}"),
        format!("postgres://127.0.0.1:1/app?pasword={PASSWORD}"),
        format!("postgres://[{PASSWORD}"),
        format!("mysql://me:{PASSWORD}@127.0.0.1/app"),
        format!("host=127.0.0.1 password={PASSWORD}"),
        PASSWORD.to_owned(),
    ];
    for url in urls {
        for arguments in [&["migrate"][..], &["config"], &["config", "--json"]] {
            let mut command = Command::new(env!("CARGO_BIN_EXE_ringmesh"));
            command
                .args(arguments)
                .env("RINGMESH_DATABASE_URL", &url)
                .env("RINGMESH_LOG", "debug")
                .stdin(Stdio::null())
                .kill_on_drop(true);
            let ended = tokio::time::timeout(SLACK * 2, command.output())
                .await
                .expect("it ends")
                .unwrap();
            let said = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
            assert!(!said.contains(PASSWORD), "{arguments:?} with {url} says {said}");
            assert!(
                !said.is_empty() && !said.contains("panicked"),
                "{arguments:?} with {url} says {said:?}"
            );
        }
        let made = Store::new(
            &ringmesh::config::Config {
                database_url: url.as_str().into(),
                ..Default::default()
            }
            .store(),
        );
        assert!(
            made.err()
                .is_none_or(|error| !format!("{error} {error:?}").contains(PASSWORD)),
            "{url}"
        );
    }
}
