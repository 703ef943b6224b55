//! Whole connections, without a database behind them.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use axum::Router;
use ringmesh_ring::{Epoch, Incarnation, SLOTS};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{mpsc, watch};

use super::owned;
use crate::directory::{Directory, Node};
use crate::hint::Hints;
use crate::http::fuzzing::connection;
use crate::http::{Api, Life, LifeHandle, Limits, router};
use crate::secret::{Secret, Signer};
use crate::store::{Me, Options, Pooler, Store};
use crate::submit::Submits;
use crate::wait::Waits;

const SECRET: &str = "a secret of fuzzers";

/// A node that says that Postgres does not answer, and so never asks it.
struct Stalled {
    runtime: Runtime,
    router: Router,
}

static STALLED: LazyLock<Stalled> = LazyLock::new(|| {
    let runtime = Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    let router = runtime.block_on(async {
        let node = Node {
            name: "n1".to_owned(),
            http: "127.0.0.1:1".to_owned(),
            weight: 1,
            state: "serving",
            lease_ms: 3_000,
        };
        let directory = Directory {
            slots: vec![(Some(Incarnation(1)), Epoch(1)); SLOTS.into()],
            nodes: BTreeMap::from([(Incarnation(1), node)]),
            me: Some(Incarnation(1)),
            placed_here: SLOTS.into(),
            stalled: true,
            leased: true,
            draining: false,
            ready: true,
        };
        let (sender, directory) = watch::channel(Arc::new(directory));
        // As long as the process lives.
        std::mem::forget(sender);
        let store = Store::new(&Options {
            url: "postgres://127.0.0.1:1/nowhere".to_owned(),
            lease_url: None,
            pooler: Pooler::None,
            connections: 1,
            hot_connections: 1,
            ttl: Duration::from_secs(3),
            application: "fuzz".to_owned(),
        })
        .expect("a URL");
        let hints = Hints::start(directory.clone(), &Secret::new(SECRET), Waits::new()).expect("a client");
        let life = Life::new();
        life.begin(LifeHandle {
            me: Me {
                incarnation: Incarnation(1),
                boot: 1,
            },
            digest: Box::new(|| "d1".into()),
            serving: Box::new(|| true),
        });
        router(Api {
            name: "n1".to_owned(),
            submits: Submits::start(store.clone(), hints.clone()),
            store,
            hints,
            directory,
            token: None,
            life,
            drain: mpsc::channel(1).0,
            live: Box::new(|| true),
            metrics: Box::new(|| "ringmesh_up 1\n".to_owned()),
            limits: Limits::default(),
        })
    });
    Stalled { runtime, router }
});

pub(super) fn run(bytes: &[u8]) {
    let answers = STALLED
        .runtime
        .block_on(connection(STALLED.router.clone(), bytes));
    let mut rest = &answers[..];
    while let Some(at) = rest.windows(4).position(|end| end == b"\r\n\r\n") {
        let head = String::from_utf8(rest[..at].to_vec()).expect("heads are ASCII");
        let status = head.split(' ').nth(1).unwrap_or_default().to_owned();
        assert!(head.starts_with("HTTP/1.") && status.len() == 3, "{head}");
        assert_ne!(status, "500", "a fault of the node: {head}");
        assert!(!head.to_lowercase().contains("\nx-evil"), "reflected: {head}");
        let length = head
            .lines()
            .find_map(|line| line.to_lowercase().strip_prefix("content-length: ")?.parse().ok())
            .unwrap_or(0);
        let body = &rest[at + 4..];
        let Some(body_bytes) = body.get(..length) else {
            return;
        };
        if length > 0 && (status.starts_with('4') || status == "503") {
            let failure: serde_json::Value = serde_json::from_slice(body_bytes).expect("errors are JSON");
            assert!(failure["code"].is_string() && failure["message"].is_string());
        }
        rest = &body[length..];
    }
}

pub(super) fn seeds() -> Vec<Vec<u8>> {
    let host = "host: localhost\r\n";
    let news = r#"{"to":1,"tasks":[{"slot":1,"lowest":1,"urgent":false}],"moved":true}"#;
    let mac = Signer::new(&Secret::new(SECRET)).sign("/internal/v1/hints", news.as_bytes());
    owned(&[
        &format!("GET /v1/mesh HTTP/1.1\r\n{host}\r\n"),
        &format!("GET /metrics HTTP/1.1\r\n{host}connection: close\r\n\r\n"),
        &format!(
            "GET /v1/tasks/163-42?wait=10s HTTP/1.1\r\n{host}\r\nGET /health/ready HTTP/1.1\r\n{host}\r\n"
        ),
        &format!("DELETE /v1/tasks/163-42 HTTP/1.1\r\n{host}origin: http://localhost\r\n\r\n"),
        &format!(
            "GET /v1/keys/a%2Fb%20c HTTP/1.1\r\n{host}\r\nGET /v1/keys?key=caf%C3%A9 HTTP/1.1\r\n{host}\r\n"
        ),
        &format!(
            "POST /v1/tasks?wait=1s HTTP/1.1\r\n{host}content-type: application/json\r\nidempotency-key: x-evil\r\ncontent-length: 2\r\n\r\n{{}}"
        ),
        &format!(
            "POST /v1/tasks/batch HTTP/1.1\r\n{host}content-type: application/x-ndjson; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n2;a=b\r\n{{}}\r\n0\r\nx-evil: 1\r\n\r\n"
        ),
        &format!("POST /v1/nodes/n2/drain HTTP/1.1\r\n{host}content-length: 0\r\n\r\n"),
        &format!(
            "POST /internal/v1/hints HTTP/1.1\r\n{host}x-ringmesh-mac: {mac}\r\ncontent-length: {}\r\n\r\n{news}",
            news.len()
        ),
        "GET /internal/v1/alive?incarnation=1 HTTP/1.0\r\n\r\n",
        "GET http://127.0.0.1/health/live HTTP/1.1\r\nhost: [::1]:7101\r\nexpect: 100-continue\r\n\r\n",
    ])
}
