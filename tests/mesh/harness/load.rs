//! Submits without pause, and keeps what was accepted.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use serde_json::json;
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval, timeout};
use tokio_util::sync::CancellationToken;

use super::{Client, Lab};

/// Clients, each with keys of its own.
const CLIENTS: usize = 6;
/// Keys of each client.
const KEYS: usize = 20;
/// Between two submits of a client, if it is not held up.
const PACE: Duration = Duration::from_millis(15);
/// How long a client waits for an answer before it asks another node.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often a submit is repeated in vain before that is a failure.
const REPEATS: usize = 5000;

/// An accepted task.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) id: String,
    pub(crate) key: String,
    pub(crate) seq: i64,
}

/// What came of a load.
#[derive(Debug, Default)]
pub(crate) struct Loaded {
    /// In the order of each key.
    pub(crate) accepted: Vec<Accepted>,
    /// Answers 503 or 429.
    pub(crate) refused: usize,
    /// Requests without an answer.
    pub(crate) unknown: usize,
    /// Answers that should not be.
    pub(crate) odd: Vec<String>,
}

/// Clients that submit `ledger` tasks in order, each task until it is accepted.
pub(crate) struct Load {
    stop: CancellationToken,
    clients: JoinSet<Loaded>,
    accepted: Arc<AtomicUsize>,
}

impl Load {
    pub(crate) fn start(client: &Client) -> Load {
        let (stop, accepted) = (CancellationToken::new(), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for number in 0..CLIENTS {
            clients.spawn(submit_all(client.clone(), number, stop.clone(), accepted.clone()));
        }
        Load {
            stop,
            clients,
            accepted,
        }
    }

    /// Waits until this many more were accepted.
    pub(crate) async fn more(&self, lab: &Lab, count: usize, within: Duration) {
        let before = self.accepted.load(Ordering::Relaxed);
        lab.until(
            within,
            &format!("{count} more tasks are accepted"),
            async || match self.accepted.load(Ordering::Relaxed) - before {
                more if more >= count => Ok(()),
                more => Err(format!("{more} were")),
            },
        )
        .await;
    }

    /// Lets every client bring its last task to an end.
    pub(crate) async fn stop(mut self) -> Loaded {
        self.stop.cancel();
        let mut all = Loaded::default();
        while let Some(one) = self.clients.join_next().await {
            let one = one.unwrap();
            all.accepted.extend(one.accepted);
            all.odd.extend(one.odd);
            all.refused += one.refused;
            all.unknown += one.unknown;
        }
        all
    }
}

async fn submit_all(
    client: Client,
    number: usize,
    stop: CancellationToken,
    accepted: Arc<AtomicUsize>,
) -> Loaded {
    let mut loaded = Loaded::default();
    let mut pace = interval(PACE);
    pace.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut node = number;
    for turn in 0.. {
        if stop.is_cancelled() {
            break;
        }
        let (key, seq) = (format!("c{number}-{}", turn % KEYS), (turn / KEYS) as i64);
        // Some transactions are open for a while, so that a fault finds some of them.
        let ms = if turn % 4 == 0 { 30 } else { 0 };
        let task = json!({
            "kind": "ledger", "key": key, "payload": { "seq": seq, "ms": ms },
            "idempotency_key": format!("{key}/{seq}"), "max_attempts": 100,
        });
        let mut repeats = 0;
        loop {
            pace.tick().await;
            let answer = timeout(PATIENCE, client.post(node, "/v1/tasks", &task));
            match answer.await {
                Ok(Ok(answer)) if matches!(answer.status, 200 | 201) => {
                    let id = answer.body["id"].as_str().unwrap_or_default().to_owned();
                    loaded.accepted.push(Accepted { id, key, seq });
                    accepted.fetch_add(1, Ordering::Relaxed);
                    break;
                }
                Ok(Ok(answer)) if matches!(answer.status, 429 | 503) && answer.retry_after.is_some() => {
                    loaded.refused += 1;
                }
                Ok(Ok(answer)) => loaded.odd.push(format!("{task}: {answer:?}")),
                Ok(Err(_)) | Err(_) => loaded.unknown += 1,
            }
            // The same node again and again would be refused as long as it is away.
            node += 1;
            repeats += 1;
            if repeats == REPEATS {
                loaded
                    .odd
                    .push(format!("{task}: given up after {REPEATS} repeats"));
                return loaded;
            }
        }
        node += 1;
    }
    loaded
}
