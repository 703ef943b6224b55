//! "There is news": what nodes tell each other, over HTTP.
//!
//! A hint saves time and decides nothing: whoever gets one reads Postgres. So a hint may be lost, doubled or late, and every
//! queue here drops what it has no room for; the ticks find it all. Per target node one request is under way at a time, and what
//! comes meanwhile is merged into the next one.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use bytes::Bytes;
use ringmesh_ring::{Incarnation, Slot};
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, watch};

use crate::directory::Directory;
use crate::secret::{Secret, Signer};
use crate::task::TaskId;
use crate::telemetry::metric;
use crate::wait::Waits;

/// Where hints are taken.
pub const HINTS_PATH: &str = "/internal/v1/hints";
/// Where handoffs are offered.
pub const HANDOFF_PATH: &str = "/internal/v1/handoff";

/// How long hints to another node wait for neighbours, if some were sent to it within [`CALM`]. At a light load none wait.
const COALESCE: Duration = Duration::from_millis(1);
/// After this long without hints to a node, the next one goes at once.
const CALM: Duration = Duration::from_millis(5);
/// Single tasks, ended or cancelled, that may wait per target.
const ROOM: usize = 10_000;
/// For a connection to another node.
const CONNECT_WITHIN: Duration = Duration::from_millis(250);
/// For a whole request to another node.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);
/// Below the server's patience with silent connections, so that no request meets a closing one.
const KEEP_IDLE: Duration = Duration::from_secs(5);

/// There is news for a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hint {
    /// The slot.
    pub slot: Slot,
    /// The lowest number among the new tasks.
    pub lowest: i64,
    /// Whether one of them has a priority above 0.
    pub urgent: bool,
}

impl Hint {
    /// Takes another hint into this one, if it is for the same slot; tells whether it did.
    pub fn absorb(&mut self, other: &Hint) -> bool {
        if self.slot != other.slot {
            return false;
        }
        self.lowest = self.lowest.min(other.lowest);
        self.urgent |= other.urgent;
        true
    }
}

/// Who takes this node's hints: the dispatch of its present life. Both calls must return at once.
pub trait Local: Send + Sync {
    /// There is news for these slots.
    fn hint(&self, hints: Vec<Hint>);
    /// A task was cancelled elsewhere.
    fn cancelled(&self, id: TaskId);
}

/// The body of `POST /internal/v1/hints`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Message {
    /// The incarnation that it is for. Its successor needs none of it.
    pub(crate) to: i64,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) tasks: Vec<Hint>,
    /// As `tasks`, from a node that was told of them and is not their slots' owner. They are not passed on again.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) passed: Vec<Hint>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) ended: Vec<TaskId>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) cancelled: Vec<TaskId>,
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub(crate) moved: bool,
}

/// The body of `POST /internal/v1/handoff`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Offer {
    pub(crate) from: i64,
    pub(crate) to: i64,
    pub(crate) digest: String,
    pub(crate) slots: Vec<Slot>,
}

/// The answer to an offer.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct OfferAnswer {
    pub(crate) accept: bool,
}

/// Why an offer got no answer. Nothing has changed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// There is no unfenced node of this incarnation, as far as this node knows.
    #[error("{0} is not known")]
    UnknownNode(Incarnation),
    /// It did not answer in time, or could not be reached.
    #[error("{0} did not answer")]
    Silent(Incarnation, #[source] reqwest::Error),
    /// It answered something else.
    #[error("{0} answered with HTTP status {1}")]
    Status(Incarnation, u16),
}

/// What waits for one target.
#[derive(Default)]
struct Outbox {
    tasks: HashMap<Slot, Hint>,
    passed: HashMap<Slot, Hint>,
    ended: Vec<TaskId>,
    cancelled: Vec<TaskId>,
    moved: bool,
    /// A request is under way.
    busy: bool,
    /// When the last one was sent.
    sent: Option<Instant>,
}

impl Outbox {
    fn is_empty(&self) -> bool {
        self.tasks.is_empty()
            && self.passed.is_empty()
            && self.ended.is_empty()
            && self.cancelled.is_empty()
            && !self.moved
    }

    /// Whether nothing was sent lately.
    fn is_calm(&self) -> bool {
        self.sent.is_none_or(|sent| sent.elapsed() >= CALM)
    }

    fn take(&mut self, to: Incarnation) -> Message {
        Message {
            to: to.0,
            tasks: self.tasks.drain().map(|(_, hint)| hint).collect(),
            passed: self.passed.drain().map(|(_, hint)| hint).collect(),
            ended: std::mem::take(&mut self.ended),
            cancelled: std::mem::take(&mut self.cancelled),
            moved: std::mem::take(&mut self.moved),
        }
    }
}

impl Message {
    fn len(&self) -> u64 {
        (self.tasks.len() + self.passed.len() + self.ended.len() + self.cancelled.len()) as u64
            + u64::from(self.moved)
    }
}

/// Sends and takes hints. Cloning shares everything.
#[derive(Clone)]
pub struct Hints {
    shared: Arc<Shared>,
}

struct Shared {
    directory: watch::Receiver<Arc<Directory>>,
    signer: Signer,
    client: reqwest::Client,
    local: Mutex<Option<Arc<dyn Local>>>,
    waits: Waits,
    moved: Arc<Notify>,
    outboxes: Mutex<BTreeMap<Incarnation, Outbox>>,
    news: Notify,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Hints {
    /// Starts the sender; it ends when the last clone is dropped. Needs a tokio runtime.
    ///
    /// # Errors
    /// If the HTTP client cannot be made.
    pub fn start(
        directory: watch::Receiver<Arc<Directory>>,
        cluster_secret: &Secret,
        waits: Waits,
    ) -> Result<Self, reqwest::Error> {
        let client = crate::tls::http_client()
            .connect_timeout(CONNECT_WITHIN)
            .timeout(ANSWER_WITHIN)
            .pool_idle_timeout(KEEP_IDLE)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()?;
        let shared = Arc::new(Shared {
            directory,
            signer: Signer::new(cluster_secret),
            client,
            local: Mutex::new(None),
            waits,
            moved: Arc::new(Notify::new()),
            outboxes: Mutex::new(BTreeMap::new()),
            news: Notify::new(),
        });
        tokio::spawn(send(Arc::downgrade(&shared)));
        Ok(Hints { shared })
    }

    /// From now on hints for this node go to its present life's dispatch.
    pub fn attach(&self, local: Arc<dyn Local>) {
        *lock(&self.shared.local) = Some(local);
    }

    /// The life has ended: hints for this node are dropped until the next one.
    pub fn detach(&self) {
        *lock(&self.shared.local) = None;
    }

    /// Tells a slot's owner about one new task, or about several from this number on.
    pub fn tasks(&self, slot: Slot, lowest: i64, urgent: bool) {
        self.all_tasks(vec![Hint { slot, lowest, urgent }]);
    }

    /// Tells the owners about new tasks.
    pub fn all_tasks(&self, hints: Vec<Hint>) {
        self.route(hints, |outbox| &mut outbox.tasks);
    }

    /// Sorts hints by the owners of their slots: this node's go to its dispatch, the others into outboxes.
    fn route(&self, hints: Vec<Hint>, queue: impl Fn(&mut Outbox) -> &mut HashMap<Slot, Hint>) {
        if hints.is_empty() {
            return;
        }
        let mut here = Vec::new();
        let mut away = false;
        {
            let directory = self.shared.directory.borrow();
            let mut outboxes = None;
            for hint in hints {
                match directory.owner(hint.slot) {
                    Some((owner, _)) if Some(owner) == directory.me => here.push(hint),
                    Some((owner, _)) => {
                        let outboxes = outboxes.get_or_insert_with(|| lock(&self.shared.outboxes));
                        let outbox = outboxes.entry(owner).or_default();
                        queue(outbox)
                            .entry(hint.slot)
                            .and_modify(|old| _ = old.absorb(&hint))
                            .or_insert(hint);
                        away = true;
                    }
                    None => drop_hints(1),
                }
            }
        }
        if away {
            self.shared.news.notify_one();
        }
        if !here.is_empty() {
            self.shared.take_tasks(here);
        }
    }

    /// Tells the node where a client waits that the task has ended.
    pub fn ended(&self, waiter: Incarnation, id: TaskId) {
        if self.me() == Some(waiter) {
            self.shared.waits.ended(id);
        } else {
            self.post(waiter, |outbox| push(&mut outbox.ended, id));
        }
    }

    /// Tells the slot's owner that a task was cancelled.
    pub fn cancelled(&self, id: TaskId) {
        let owner = {
            let directory = self.shared.directory.borrow();
            directory
                .owner(id.slot)
                .map(|(owner, _)| (owner, directory.me == Some(owner)))
        };
        match owner {
            Some((_, true)) => self.shared.take_cancelled(id),
            Some((owner, false)) => self.post(owner, |outbox| push(&mut outbox.cancelled, id)),
            None => drop_hints(1),
        }
    }

    /// Tells a node to read the slots now: it was handed some, or a node was fenced.
    pub fn moved(&self, to: Incarnation) {
        if self.me() == Some(to) {
            self.shared.moved.notify_one();
        } else {
            self.post(to, |outbox| {
                outbox.moved = true;
                true
            });
        }
    }

    /// Tells every node, this one too, to read the slots now.
    pub fn moved_all(&self) {
        let nodes: Vec<Incarnation> = self.shared.directory.borrow().nodes.keys().copied().collect();
        self.shared.moved.notify_one();
        for node in nodes.into_iter().filter(|node| self.me() != Some(*node)) {
            self.moved(node);
        }
    }

    /// Woken when somebody says that slots have moved.
    pub fn on_moved(&self) -> Arc<Notify> {
        Arc::clone(&self.shared.moved)
    }

    /// Asks a node whether it takes slots that the ring gives it, under a placement of this digest.
    ///
    /// # Errors
    /// See [`Error`]; an answer takes at most a second.
    pub async fn offer(&self, to: Incarnation, digest: String, slots: Vec<Slot>) -> Result<bool, Error> {
        let from = self.me().map_or(0, |me| me.0);
        let body = encode(&Offer {
            from,
            to: to.0,
            digest,
            slots,
        });
        let response = self.shared.post(to, HANDOFF_PATH, body).await?;
        let answer: OfferAnswer = response.json().await.map_err(|error| Error::Silent(to, error))?;
        Ok(answer.accept)
    }

    /// The clients that wait at this node.
    pub fn waits(&self) -> &Waits {
        &self.shared.waits
    }

    /// The client for requests to other nodes.
    pub(crate) fn client(&self) -> &reqwest::Client {
        &self.shared.client
    }

    /// Whether a body came from a node of this mesh.
    pub(crate) fn verify(&self, path: &str, body: &[u8], mac: &[u8]) -> bool {
        self.shared.signer.verify(path, body, mac)
    }

    /// Takes what another node sent to the present life.
    pub(crate) fn take(&self, message: Message) {
        // Whoever sent them may have known an older owner: a slot's move is news everywhere only at the next tick.
        self.route(message.tasks, |outbox| &mut outbox.passed);
        if !message.passed.is_empty() {
            self.shared.take_tasks(message.passed);
        }
        if !message.cancelled.is_empty() {
            tokio::spawn(take_cancels(Arc::clone(&self.shared), message.cancelled));
        }
        for id in message.ended {
            self.shared.waits.ended(id);
        }
        if message.moved {
            self.shared.moved.notify_one();
        }
    }

    fn me(&self) -> Option<Incarnation> {
        self.shared.directory.borrow().me
    }

    fn post(&self, to: Incarnation, put: impl FnOnce(&mut Outbox) -> bool) {
        if put(lock(&self.shared.outboxes).entry(to).or_default()) {
            self.shared.news.notify_one();
        } else {
            drop_hints(1);
        }
    }
}

fn drop_hints(count: u64) {
    metrics::counter!(metric::HINTS_DROPPED).increment(count);
}

fn push(queue: &mut Vec<TaskId>, id: TaskId) -> bool {
    let room = queue.len() < ROOM;
    if room {
        queue.push(id);
    }
    room
}

fn encode(value: &impl Serialize) -> Bytes {
    serde_json::to_vec(value)
        .expect("plain structs always serialize")
        .into()
}

impl Shared {
    fn take_tasks(&self, hints: Vec<Hint>) {
        let local = lock(&self.local).clone();
        match local {
            Some(local) => local.hint(hints),
            None => drop_hints(hints.len() as u64),
        }
    }

    fn take_cancelled(&self, id: TaskId) {
        let local = lock(&self.local).clone();
        match local {
            Some(local) => local.cancelled(id),
            None => drop_hints(1),
        }
    }

    /// Whether all that waits may go at once.
    fn is_calm(&self) -> bool {
        lock(&self.outboxes)
            .values()
            .filter(|outbox| !outbox.is_empty())
            .all(Outbox::is_calm)
    }

    async fn post(&self, to: Incarnation, path: &str, body: Bytes) -> Result<reqwest::Response, Error> {
        let address = self
            .directory
            .borrow()
            .nodes
            .get(&to)
            .map(|node| node.http.clone());
        let address = address.ok_or(Error::UnknownNode(to))?;
        let response = self
            .client
            .post(format!("http://{address}{path}"))
            .header("content-type", "application/json")
            .header(Signer::HEADER, self.signer.sign(path, &body))
            .body(body)
            .send()
            .await
            .map_err(|error| Error::Silent(to, error))?;
        if response.status().is_success() {
            Ok(response)
        } else {
            Err(Error::Status(to, response.status().as_u16()))
        }
    }
}

/// Tells dispatch of those of these tasks that Postgres does not hold as open. A hint decides nothing, and a task that is dropped
/// from memory though nobody cancelled it would stay claimed, and its key with it.
async fn take_cancels(shared: Arc<Shared>, cancelled: Vec<TaskId>) {
    let looks = cancelled
        .into_iter()
        .map(async |id| (id, shared.waits.look(id).await));
    for (id, look) in futures::future::join_all(looks).await {
        match look {
            Ok(view) if view.as_ref().is_none_or(|view| view.state.is_final()) => shared.take_cancelled(id),
            Ok(_) => {
                tracing::warn!(task = %id, "a node says that a task was cancelled, and Postgres does not")
            }
            // As if it had been lost.
            Err(_) => drop_hints(1),
        }
    }
}

/// Empties the outboxes, until nobody can fill them any more.
async fn send(hints: std::sync::Weak<Shared>) {
    loop {
        // Looks now and then whether anybody is left.
        let Some(shared) = hints.upgrade() else { return };
        if tokio::time::timeout(Duration::from_secs(1), shared.news.notified())
            .await
            .is_err()
        {
            continue;
        }
        if !shared.is_calm() {
            tokio::time::sleep(COALESCE).await;
        }
        let messages: Vec<(Incarnation, Message)> = {
            let mut outboxes = lock(&shared.outboxes);
            outboxes.retain(|_, outbox| outbox.busy || !outbox.is_empty() || !outbox.is_calm());
            let free = outboxes
                .iter_mut()
                .filter(|(_, outbox)| !outbox.busy && !outbox.is_empty());
            free.map(|(to, outbox)| {
                outbox.busy = true;
                outbox.sent = Some(Instant::now());
                (*to, outbox.take(*to))
            })
            .collect()
        };
        for (to, message) in messages {
            let shared = Arc::clone(&shared);
            tokio::spawn(async move {
                match shared.post(to, HINTS_PATH, encode(&message)).await {
                    Ok(_) => metrics::counter!(metric::HINTS_SENT).increment(message.len()),
                    Err(error) => {
                        tracing::debug!(node = %to, hints = message.len(), %error, "hints were dropped");
                        drop_hints(message.len());
                    }
                }
                if let Some(outbox) = lock(&shared.outboxes).get_mut(&to) {
                    outbox.busy = false;
                }
                shared.news.notify_one();
            });
        }
    }
}
