//! Real HTTP over loopback, on a real Postgres.

mod framing;
pub(crate) mod hints;
pub(crate) mod hostile;
mod mutants;
mod nodes;
mod rate;
mod server;
mod submits;
mod targets;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use reqwest::{Method, RequestBuilder};
use ringmesh_ring::{Epoch, Incarnation, SLOTS};
use serde_json::Value;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::directory::{Directory, Node as Member};
use crate::hint::{Hint, Local};
use crate::store::Me;
use crate::store::testing::{PATIENCE, fresh};
use crate::task::TaskId;
use crate::wait::Waits;

/// Takes down what reached the node's dispatch.
#[derive(Default)]
struct Seen {
    hints: Mutex<Vec<Hint>>,
    cancelled: Mutex<Vec<TaskId>>,
}

impl Local for Seen {
    fn hint(&self, hints: Vec<Hint>) {
        self.hints.lock().unwrap().extend(hints);
    }

    fn cancelled(&self, id: TaskId) {
        self.cancelled.lock().unwrap().push(id);
    }
}

/// A node's HTTP side, without the rest of it.
struct Node {
    address: SocketAddr,
    client: reqwest::Client,
    token: Option<&'static str>,
    submits: Submits,
    hints: Hints,
    seen: Arc<Seen>,
    directory: watch::Sender<Arc<Directory>>,
    drained: mpsc::Receiver<()>,
    shutdown: CancellationToken,
    served: JoinHandle<()>,
}

struct Setup {
    name: &'static str,
    incarnation: i64,
    token: Option<&'static str>,
    limits: Limits,
}

impl Default for Setup {
    fn default() -> Self {
        Setup {
            name: "a",
            incarnation: 1,
            token: None,
            limits: Limits::default(),
        }
    }
}

async fn start(store: &Store, setup: Setup) -> Node {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let (directory, receiver) = watch::channel(Arc::new(Directory::default()));
    let waits = Waits::new();
    tokio::spawn(waits.clone().run(store.clone()));
    let hints = Hints::start(receiver.clone(), &Secret::new("cluster"), waits).unwrap();
    let seen = Arc::new(Seen::default());
    hints.attach(Arc::clone(&seen) as Arc<dyn Local>);
    let submits = Submits::start(store.clone(), hints.clone()).patient(PATIENCE);
    let life = Life::new();
    life.begin(LifeHandle {
        me: Me {
            incarnation: Incarnation(setup.incarnation),
            boot: i64::MIN,
        },
        digest: Box::new(|| "d1".into()),
        serving: Box::new(|| true),
    });
    let (drain, drained) = mpsc::channel(1);
    let api = Api {
        name: setup.name.into(),
        store: store.clone(),
        submits: submits.clone(),
        hints: hints.clone(),
        directory: receiver,
        token: setup.token.map(Secret::new),
        life,
        drain,
        live: Box::new(|| true),
        metrics: Box::new(|| "ringmesh_up 1\n".into()),
        limits: setup.limits.clone(),
    };
    let shutdown = CancellationToken::new();
    let served = tokio::spawn(serve(listener, router(api), setup.limits, shutdown.clone()));
    let client = crate::tls::http_client()
        .no_proxy()
        .timeout(PATIENCE)
        .build()
        .unwrap();
    let node = Node {
        address,
        client,
        token: setup.token,
        submits,
        hints,
        seen,
        directory,
        drained,
        shutdown,
        served,
    };
    know(&[(&node, setup.name, setup.incarnation)], setup.incarnation);
    node
}

/// Tells nodes of each other; all slots belong to `owner`.
fn know(nodes: &[(&Node, &str, i64)], owner: i64) {
    let members: BTreeMap<Incarnation, Member> = nodes
        .iter()
        .map(|(node, name, incarnation)| {
            let member = Member {
                name: (*name).into(),
                http: node.address.to_string(),
                weight: 1,
                state: "serving",
                lease_ms: 3_000,
            };
            (Incarnation(*incarnation), member)
        })
        .collect();
    for (node, _, incarnation) in nodes {
        node.directory.send_replace(Arc::new(Directory {
            slots: vec![(Some(Incarnation(owner)), Epoch(1)); SLOTS.into()],
            nodes: members.clone(),
            me: Some(Incarnation(*incarnation)),
            placed_here: SLOTS.into(),
            stalled: false,
            leased: true,
            draining: false,
            ready: true,
        }));
    }
}

struct Answer {
    status: u16,
    body: Value,
    headers: reqwest::header::HeaderMap,
}

impl Answer {
    fn code(&self) -> &str {
        self.body["code"].as_str().unwrap_or("")
    }

    fn field(&self) -> Option<&str> {
        self.body["field"].as_str()
    }
}

impl Node {
    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn request(&self, method: Method, path: &str) -> RequestBuilder {
        let request = self.client.request(method, self.url(path));
        match self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn get(&self, path: &str) -> Answer {
        answer(self.request(Method::GET, path)).await
    }

    async fn post(&self, path: &str, body: impl Into<reqwest::Body>) -> Answer {
        answer(
            self.request(Method::POST, path)
                .header("content-type", "application/json")
                .body(body),
        )
        .await
    }

    async fn submit(&self, body: Value) -> Answer {
        self.post("/v1/tasks", body.to_string()).await
    }
}

async fn answer(request: RequestBuilder) -> Answer {
    let response = request.send().await.unwrap();
    let (status, headers) = (response.status().as_u16(), response.headers().clone());
    let text = response.text().await.unwrap();
    Answer {
        status,
        headers,
        body: serde_json::from_str(&text).unwrap_or(Value::String(text)),
    }
}

/// A task as the API reads it.
pub(crate) fn submit_of(text: &str) -> crate::task::Submit {
    fields::submit(text, chrono::Utc::now()).unwrap()
}

/// Polls until something holds.
async fn until<F: Future<Output = bool>>(what: &str, mut holds: impl FnMut() -> F) {
    let deadline = tokio::time::Instant::now() + PATIENCE;
    while !holds().await {
        assert!(tokio::time::Instant::now() < deadline, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}
