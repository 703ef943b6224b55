//! A client as a careful user would write one: it repeats what was refused for now or never answered, under the same
//! idempotency key, at another node; and it keeps every single request.
//!
//! A kept request takes about 200 bytes (those of [`Submit`] and its idempotency key; other texts are shared), so 2,000,000 of
//! them take 0.4 GB.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;
use std::time::Duration;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use reqwest::Method;
use ringmesh::sqlx::{self, PgPool};
use ringmesh::task::TaskId;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use super::{Targets, note};
use crate::history::{Answer, At, Expected, Submit};

/// How long a client waits for an answer before it asks another node.
const PATIENCE: Duration = Duration::from_secs(2);
/// How long a node that gave no answer is left alone.
const SHUN: Duration = Duration::from_secs(2);
/// Between a request that was refused for now, or not answered, and its repetition; doubles up to the second.
const PAUSE: (Duration, Duration) = (Duration::from_millis(20), Duration::from_millis(500));
/// What stands for the code of an answer where no connection could be made.
const NO_CONNECTION: &str = "no_connection";
/// How long a submit is repeated after its client was told to stop.
const LAST_TRIES: Duration = Duration::from_secs(60);

/// A task to be submitted.
#[derive(Debug, Clone)]
pub(super) struct Task {
    pub(super) kind: &'static str,
    pub(super) key: String,
    pub(super) seq: i64,
    pub(super) payload: Value,
    /// Other fields of the request, such as `priority`.
    pub(super) options: Map<String, Value>,
    pub(super) expected: Expected,
}

impl Task {
    /// A task that is to have its effect, however often it is interrupted.
    pub(super) fn new(
        kind: &'static str,
        key: impl Into<String>,
        seq: i64,
        payload: impl serde::Serialize,
    ) -> Task {
        Task {
            kind,
            key: key.into(),
            seq,
            payload: serde_json::to_value(payload).unwrap_or_default(),
            options: Map::from_iter([("max_attempts".to_owned(), json!(1000))]),
            expected: Expected::Effect,
        }
    }

    pub(super) fn with(mut self, option: &str, value: impl Into<Value>) -> Task {
        self.options.insert(option.to_owned(), value.into());
        self
    }

    pub(super) fn expecting(mut self, expected: Expected) -> Task {
        self.expected = expected;
        self
    }
}

/// One client: sends one request after the other.
pub(super) struct Client {
    name: Arc<str>,
    http: reqwest::Client,
    urls: Arc<[String]>,
    token: Option<String>,
    stop: CancellationToken,
    /// The node to ask next.
    node: usize,
    /// Until when each node is left alone.
    shunned: Vec<Instant>,
    pace: Option<Pace>,
    submits: Vec<Submit>,
    /// Keys and kinds, each once.
    texts: HashSet<Arc<str>>,
}

/// Lets through so many a second. What could not be sent in time is not made up for.
struct Pace {
    next: Instant,
    period: Duration,
}

impl Pace {
    async fn tick(&mut self) {
        /// Timers wake some milliseconds late; so much is made up for, or high rates could not be kept.
        const LATE: Duration = Duration::from_millis(50);
        sleep_until(self.next).await;
        let now = Instant::now();
        self.next = (self.next + self.period).max(now.checked_sub(LATE).unwrap_or(now));
    }
}

impl Client {
    /// `rate`: tasks a second of this client.
    pub(super) fn new(
        name: String,
        targets: &Targets,
        rate: Option<f64>,
        stop: &CancellationToken,
    ) -> Client {
        let mut hasher = DefaultHasher::new();
        name.hash(&mut hasher);
        let pace = rate.map(|rate| Pace {
            next: Instant::now(),
            period: Duration::from_secs_f64(1.0 / rate.max(0.001)),
        });
        Client {
            http: targets.http.clone(),
            urls: targets.urls.clone().into(),
            token: targets.token.clone(),
            stop: stop.clone(),
            node: usize::try_from(hasher.finish() % 1000).unwrap_or_default(),
            shunned: vec![Instant::now(); targets.urls.len()],
            pace,
            submits: Vec::new(),
            texts: HashSet::new(),
            name: name.into(),
        }
    }

    pub(super) fn stopped(&self) -> bool {
        self.stop.is_cancelled()
    }

    /// Waits until the next task may be sent; false: it was told to stop.
    pub(super) async fn next(&mut self) -> bool {
        if let Some(pace) = &mut self.pace {
            let stop = self.stop.clone();
            tokio::select! {
                () = pace.tick() => {}
                () = stop.cancelled() => return false,
            }
        }
        !self.stopped()
    }

    pub(super) fn submits(self) -> Vec<Submit> {
        self.submits
    }

    /// Submits a task under an idempotency key of its own until it is known what became of it; answers with its id.
    pub(super) async fn put(&mut self, task: &Task) -> Option<TaskId> {
        let idempotency_key = format!("{}/{}/{}", self.name, task.key, task.seq);
        self.put_as(task, &idempotency_key).await
    }

    /// As [`Self::put`], under this idempotency key.
    pub(super) async fn put_as(&mut self, task: &Task, idempotency_key: &str) -> Option<TaskId> {
        self.put_under(task, Some(idempotency_key.to_owned())).await
    }

    /// Submits a task without an idempotency key: it is repeated where nothing was written, and left alone where it may have been.
    pub(super) async fn put_plain(&mut self, task: &Task) -> Option<TaskId> {
        self.put_under(task, None).await
    }

    async fn put_under(&mut self, task: &Task, idempotency_key: Option<String>) -> Option<TaskId> {
        let body = body(task, idempotency_key.as_deref()).to_string();
        self.until_known("/v1/tasks", &body, &[(task, idempotency_key)])
            .await
            .pop()
    }

    /// Submits tasks in one request, each under an idempotency key of its own, until it is known what became of them.
    pub(super) async fn put_all(&mut self, tasks: &[Task]) {
        let sent: Vec<(&Task, Option<String>)> = tasks
            .iter()
            .map(|task| (task, Some(format!("{}/{}/{}", self.name, task.key, task.seq))))
            .collect();
        let bodies: Value = sent
            .iter()
            .map(|(task, name)| body(task, name.as_deref()))
            .collect();
        let body = bodies.to_string();
        self.until_known("/v1/tasks/batch", &body, &sent).await;
    }

    /// Sends a request again and again, until it is known what became of its tasks; answers with their ids, in their order. Empty:
    /// they were refused, or the client was told to stop, or it is not known and one of them has no idempotency key.
    async fn until_known(
        &mut self,
        path: &str,
        body: &str,
        tasks: &[(&Task, Option<String>)],
    ) -> Vec<TaskId> {
        let repeatable = tasks.iter().all(|(_, name)| name.is_some());
        let mut pause = PAUSE.0;
        let mut last_try = None;
        loop {
            let node = self.pick();
            let sent = note::now();
            let reply = self.submit(node, path, body).await;
            let answered = note::now();
            let again = match &reply {
                Reply::Accepted(_) => false,
                Reply::Refused { status, code } => {
                    if &**code == NO_CONNECTION {
                        self.shunned[node] = Instant::now() + SHUN;
                    }
                    matches!(status, 429 | 503)
                }
                Reply::Unknown { .. } => {
                    self.shunned[node] = Instant::now() + SHUN;
                    repeatable
                }
            };
            for (place, (task, idempotency_key)) in tasks.iter().enumerate() {
                let at = (sent, answered);
                self.keep(task, idempotency_key.as_deref(), body, at, reply.of(place));
            }
            if !again {
                return match reply {
                    Reply::Accepted(ids) => ids.into_iter().map(|(id, _)| id).collect(),
                    Reply::Refused { .. } | Reply::Unknown { .. } => Vec::new(),
                };
            }
            if self.stopped() && *last_try.get_or_insert_with(|| Instant::now() + LAST_TRIES) < Instant::now()
            {
                return Vec::new();
            }
            sleep(pause).await;
            pause = (pause * 2).min(PAUSE.1);
        }
    }

    /// Submits a task in SQL, in a transaction of its own.
    pub(super) async fn enqueue(&mut self, database: &PgPool, task: &Task) -> Option<TaskId> {
        let payload = task.payload.to_string();
        let sent = note::now();
        let id: Result<String, _> =
            sqlx::query_scalar("select ringmesh.enqueue($1, $2, $3::text::jsonb, max_attempts => 1000)")
                .bind(task.kind)
                .bind(&task.key)
                .bind(&payload)
                .fetch_one(database)
                .await;
        let answer = match id.map(|id| id.parse()) {
            Ok(Ok(id)) => Answer::Accepted { id, replay: false },
            Ok(Err(_)) => Answer::Unknown {
                why: "the id is none".into(),
            },
            Err(error) => Answer::Unknown {
                why: error.to_string().into(),
            },
        };
        self.keep(task, None, &payload, (sent, note::now()), answer)
    }

    /// Keeps a request; answers with the id of its task.
    fn keep(
        &mut self,
        task: &Task,
        idempotency_key: Option<&str>,
        body: &str,
        (sent, answered): (At, At),
        answer: Answer,
    ) -> Option<TaskId> {
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let id = match &answer {
            Answer::Accepted { id, .. } => Some(*id),
            Answer::Refused { .. } | Answer::Unknown { .. } => None,
        };
        let submit = Submit {
            client: self.name.clone(),
            key: self.shared(&task.key),
            seq: task.seq,
            kind: self.shared(task.kind),
            idempotency_key: idempotency_key.map(Into::into),
            body: hasher.finish(),
            sent,
            answered,
            answer,
            scheduled: ["delay", "run_at"]
                .iter()
                .any(|name| task.options.contains_key(*name)),
            expected: task.expected,
        };
        self.submits.push(submit);
        id
    }

    /// Asks some node to cancel a task; what it answers is of no interest here: the database tells.
    pub(super) async fn cancel(&mut self, id: TaskId) {
        let node = self.pick();
        let request = self.request(Method::DELETE, node, &format!("/v1/tasks/{id}"));
        if !matches!(timeout(PATIENCE, request.send()).await, Ok(Ok(_))) {
            self.shunned[node] = Instant::now() + SHUN;
        }
    }

    fn shared(&mut self, text: &str) -> Arc<str> {
        if let Some(shared) = self.texts.get(text) {
            return shared.clone();
        }
        let shared: Arc<str> = text.into();
        self.texts.insert(shared.clone());
        shared
    }

    /// The next node that is not left alone; if all are, the next.
    fn pick(&mut self) -> usize {
        let (now, count) = (Instant::now(), self.urls.len());
        let mut nodes = (1..=count).map(|step| (self.node + step) % count);
        self.node = nodes
            .find(|node| self.shunned[*node] <= now)
            .unwrap_or((self.node + 1) % count);
        self.node
    }

    fn request(&self, method: Method, node: usize, path: &str) -> reqwest::RequestBuilder {
        let request = self.http.request(method, format!("{}{path}", self.urls[node]));
        match &self.token {
            Some(token) => request.bearer_auth(token),
            None => request,
        }
    }

    async fn submit(&self, node: usize, path: &str, body: &str) -> Reply {
        let request = self
            .request(Method::POST, node, path)
            .header("content-type", "application/json")
            .body(body.to_owned());
        let answer = timeout(PATIENCE, async {
            let answer = request.send().await?;
            let status = answer.status().as_u16();
            Ok::<_, reqwest::Error>((status, answer.bytes().await?))
        });
        match answer.await {
            Ok(Ok((status, body))) => reply_of(status, &body),
            // Not a byte of the request has left.
            Ok(Err(error)) if error.is_connect() => Reply::Refused {
                status: 503,
                code: NO_CONNECTION.into(),
            },
            Ok(Err(_)) => Reply::Unknown {
                why: "the connection broke".into(),
            },
            Err(_) => Reply::Unknown {
                why: "no answer in time".into(),
            },
        }
    }
}

/// The body of a submit.
fn body(task: &Task, idempotency_key: Option<&str>) -> Value {
    let mut body = task.options.clone();
    body.insert("kind".into(), task.kind.into());
    body.insert("key".into(), task.key.clone().into());
    body.insert("payload".into(), task.payload.clone());
    if let Some(idempotency_key) = idempotency_key {
        body.insert("idempotency_key".into(), idempotency_key.into());
    }
    Value::Object(body)
}

/// What a request came to, which has one task or many.
#[derive(Debug, PartialEq)]
enum Reply {
    /// All of its tasks are there; with each, whether it was there before.
    Accepted(Vec<(TaskId, bool)>),
    /// None of them is.
    Refused { status: u16, code: Box<str> },
    /// All or none are.
    Unknown { why: Box<str> },
}

impl Reply {
    /// What it says of one of its tasks.
    fn of(&self, place: usize) -> Answer {
        match self {
            Reply::Accepted(ids) => match ids.get(place) {
                Some((id, replay)) => Answer::Accepted {
                    id: *id,
                    replay: *replay,
                },
                None => Answer::Unknown {
                    why: "fewer ids than tasks".into(),
                },
            },
            Reply::Refused { status, code } => Answer::Refused {
                status: *status,
                code: code.clone(),
            },
            Reply::Unknown { why } => Answer::Unknown { why: why.clone() },
        }
    }
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Accepted {
    One { id: TaskId, replayed: bool },
    Many { ids: Vec<TaskId>, replayed: u64 },
}

#[derive(Deserialize)]
struct Refused {
    code: String,
}

/// What an answer says, by the documentation of the API.
fn reply_of(status: u16, body: &[u8]) -> Reply {
    match status {
        200 | 201 => match serde_json::from_slice::<Accepted>(body) {
            Ok(Accepted::One { id, replayed }) => Reply::Accepted(vec![(id, replayed)]),
            // A batch goes in whole or not at all, so all of its tasks are as old.
            Ok(Accepted::Many { ids, replayed }) => {
                Reply::Accepted(ids.into_iter().map(|id| (id, replayed > 0)).collect())
            }
            Err(_) => Reply::Unknown {
                why: format!("{status} without an id").into(),
            },
        },
        _ => {
            let code = serde_json::from_slice::<Refused>(body)
                .map_or_else(|_| String::new(), |refused| refused.code);
            match (status, code.as_str()) {
                (429, _) | (503, "unavailable") | (400..=499, _) => Reply::Refused {
                    status,
                    code: code.into(),
                },
                _ => Reply::Unknown {
                    why: format!("{status} {code}").into(),
                },
            }
        }
    }
}

/// Runs so many clients of a workload, which share its rate evenly. Each has a number and a seed of its own.
pub(super) async fn many<F>(
    workload: &str,
    count: usize,
    targets: &Targets,
    (seed, rate): (u64, Option<f64>),
    stop: &CancellationToken,
    submit: impl Fn(Client, usize, u64) -> F,
) -> Vec<Submit>
where
    F: Future<Output = Vec<Submit>> + Send + 'static,
{
    let mut seeds = StdRng::seed_from_u64(seed);
    let share = rate.map(|rate| rate / count as f64);
    let mut clients = Vec::with_capacity(count);
    for number in 0..count {
        let client = Client::new(format!("{workload}/{number}"), targets, share, stop);
        clients.push(submit(client, number, seeds.next_u64()));
    }
    // Not held over the wait, which may be anybody's thread.
    drop(submit);
    all(clients).await
}

/// Runs clients side by side and returns all that they sent.
pub(super) async fn all(
    clients: impl IntoIterator<Item: Future<Output = Vec<Submit>> + Send + 'static>,
) -> Vec<Submit> {
    let mut running: JoinSet<Vec<Submit>> = clients.into_iter().collect();
    let mut submits = Vec::new();
    while let Some(ended) = running.join_next().await {
        match ended {
            Ok(more) => submits.extend(more),
            Err(error) => std::panic::resume_unwind(error.into_panic()),
        }
    }
    submits
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_that_nothing_was_written_counts_as_refused() {
        let refused = |status, body: &str| matches!(reply_of(status, body.as_bytes()), Reply::Refused { .. });
        assert!(refused(503, r#"{"code": "unavailable", "message": ""}"#));
        assert!(refused(429, r#"{"code": "busy"}"#));
        assert!(refused(422, r#"{"code": "idempotency_mismatch"}"#));
        for (status, body) in [
            (503, r#"{"code": "outcome_unknown"}"#),
            (503, ""),
            (500, r#"{"code": "internal"}"#),
            (502, "<html>"),
        ] {
            assert!(
                matches!(reply_of(status, body.as_bytes()), Reply::Unknown { .. }),
                "{status}"
            );
        }
    }

    #[test]
    fn of_one_task_and_of_many_the_ids_are_read() {
        let one = reply_of(200, br#"{"id": "7-1", "replayed": true, "state": "pending"}"#);
        assert_eq!(
            one.of(0),
            Answer::Accepted {
                id: "7-1".parse().unwrap(),
                replay: true
            }
        );
        let many = reply_of(201, br#"{"ids": ["7-1", "8-2"], "replayed": 0}"#);
        assert_eq!(
            many.of(1),
            Answer::Accepted {
                id: "8-2".parse().unwrap(),
                replay: false
            }
        );
        assert!(matches!(many.of(2), Answer::Unknown { .. }));
    }
}
