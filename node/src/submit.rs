//! Takes submits and commits them in groups.
//!
//! A submit answers after its commit, never before (P1). While two groups are under way the next one gathers, so that the
//! busier the node the larger its groups; an idle node sends a submit at once. Submits with an idempotency key travel in groups
//! of their own: their rows may wait for other transactions, and nobody else shall.
//!
//! A group runs in a task of its own that nobody drops half-way, whatever its clients do. If the answer to its commit is lost,
//! its submits are answered as unknown and never inserted again: they may have ended already.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use ringmesh_ring::{Key, Slot};
use sha2::{Digest, Sha256};
use tokio::sync::{Semaphore, mpsc, oneshot};

use crate::failpoint::{self, droppable};
use crate::hint::{Hint, Hints};
use crate::secret::hex;
use crate::store::submit::{Fingerprint, Patience, Placed, Row, about_data, objection, waited_in_vain};
use crate::store::{self, Store};
use crate::task::{Submit, TaskId};
use crate::telemetry::{field, metric};

/// At most this many rows in one statement.
const GROUP: usize = 500;
/// At most about this many bytes of keys and payloads in one statement.
const GROUP_BYTES: usize = 4 << 20;
/// Groups under way at once, per path.
const FLIGHTS: usize = 2;
/// How long a group waits for neighbours while another one is under way.
const GATHER: Duration = Duration::from_millis(1);
/// Submits that may wait, per path.
const WAITING: usize = 10_000;
/// Bytes of keys and payloads that may wait, over all paths.
const WAITING_BYTES: usize = 64 << 20;
/// Batches in Postgres at once.
const BATCHES: usize = 2;
/// Bytes of keys and payloads in batches that wait or run.
const BATCH_BYTES: u32 = 128 << 20;
/// How long a submit waits for its answer. Past it the outcome is unknown.
const ANSWER_WITHIN: Duration = Duration::from_secs(5);
/// As [`ANSWER_WITHIN`], for a batch.
const BATCH_ANSWER_WITHIN: Duration = Duration::from_secs(45);

/// A committed submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Submitted {
    /// The task's id.
    pub id: TaskId,
    /// Whether the task was there before, under the same idempotency key.
    pub replayed: bool,
}

/// Why a submit was not taken.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Too many submits wait already. Nothing was written.
    #[error("too many submits wait")]
    Busy,
    /// Postgres is not available. Nothing was written.
    #[error("Postgres is not available")]
    Unavailable,
    /// The answer to the commit was lost. The tasks exist or they do not; a submit under an idempotency key may simply be sent
    /// again.
    #[error("the outcome is unknown: Postgres did not answer")]
    Unknown,
    /// The idempotency key belongs to a submit that said something else. Nothing was written.
    #[error("the idempotency key belongs to another submit: its fingerprint is {stored}, this one's {given}")]
    Mismatch {
        /// The submit's place in its batch, from 0; 0 if it came alone.
        place: usize,
        /// The fingerprint under this key, in hexadecimal.
        stored: String,
        /// The fingerprint of this submit.
        given: String,
    },
    /// Postgres refuses the task's data. Nothing was written.
    #[error("Postgres refuses the task: {0}")]
    Refused(String),
    /// Postgres refuses the statement: the schema is not what this binary expects. Nothing was written.
    #[error("Postgres refuses to insert tasks")]
    Broken,
}

impl Error {
    fn outcome(&self) -> &'static str {
        match self {
            Error::Busy | Error::Unavailable => "unavailable",
            Error::Unknown => "unknown",
            Error::Mismatch { .. } | Error::Refused(_) | Error::Broken => "refused",
        }
    }
}

impl From<store::Error> for Error {
    fn from(error: store::Error) -> Self {
        match &error {
            store::Error::Unavailable(_) => Error::Unavailable,
            store::Error::Unknown(_) => Error::Unknown,
            store::Error::Refused(_) if about_data(&error) => Error::Refused(objection(&error)),
            store::Error::Refused(_) => Error::Broken,
        }
    }
}

type Answer = Result<Submitted, Error>;

struct Entry {
    row: Row,
    bytes: usize,
    answer: oneshot::Sender<Answer>,
}

/// Takes submits. Cloning shares the queues.
#[derive(Clone)]
pub struct Submits {
    plain: mpsc::Sender<Entry>,
    keyed: mpsc::Sender<Entry>,
    shared: Arc<Shared>,
    answer_within: Duration,
}

struct Shared {
    store: Store,
    hints: Hints,
    waiting_bytes: AtomicUsize,
    batches: Semaphore,
    batch_bytes: Semaphore,
}

impl Submits {
    /// Starts the two collectors; they end when the last clone is dropped. Needs a tokio runtime.
    pub fn start(store: Store, hints: Hints) -> Self {
        let shared = Arc::new(Shared {
            store,
            hints,
            waiting_bytes: AtomicUsize::new(0),
            batches: Semaphore::new(BATCHES),
            batch_bytes: Semaphore::new(BATCH_BYTES as usize),
        });
        let collector = |path: Path| {
            let (sender, receiver) = mpsc::channel(WAITING);
            tokio::spawn(collect(receiver, Arc::clone(&shared), path));
            sender
        };
        Submits {
            plain: collector(Path::Plain),
            keyed: collector(Path::Keyed),
            shared,
            answer_within: ANSWER_WITHIN,
        }
    }

    /// As if a submit waited so long for its answer: a busy machine may be slower than a client likes.
    #[cfg(test)]
    pub(crate) fn patient(self, answer_within: Duration) -> Self {
        Submits {
            answer_within,
            ..self
        }
    }

    /// Submits one task; answers once it is committed.
    ///
    /// # Errors
    /// See [`Error`]. Dropping the future takes the submit back only if its group was not under way yet.
    pub async fn submit(&self, submit: Submit) -> Result<Submitted, Error> {
        let row = row(submit);
        let bytes = size(&row.submit);
        let queue = if row.fingerprint.is_some() {
            &self.keyed
        } else {
            &self.plain
        };
        let (answer, answered) = oneshot::channel();
        if self.shared.waiting_bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > WAITING_BYTES
            || queue.try_send(Entry { row, bytes, answer }).is_err()
        {
            self.shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            return counted(Err(Error::Busy));
        }
        counted(match tokio::time::timeout(self.answer_within, answered).await {
            Ok(Ok(answer)) => answer,
            // Late, or its group panicked.
            Err(_) | Ok(Err(_)) => Err(Error::Unknown),
        })
    }

    /// Submits all tasks in one transaction, or none. The ids of new tasks rise in the order of the submits, which is the
    /// order in which tasks of one key will run.
    ///
    /// # Errors
    /// See [`Error`]. Dropping the future does not take the submits back.
    pub async fn submit_all(&self, submits: Vec<Submit>) -> Result<Vec<Submitted>, Error> {
        if submits.is_empty() {
            return Ok(Vec::new());
        }
        let count_of = submits.len() as u64;
        let shared = Arc::clone(&self.shared);
        let run = tokio::spawn(async move {
            let bytes = submits.iter().map(size).sum::<usize>();
            // One batch alone always has room.
            let bytes = u32::try_from(bytes).unwrap_or(BATCH_BYTES).min(BATCH_BYTES);
            let Ok(_room) = shared.batch_bytes.try_acquire_many(bytes) else {
                return Err(Error::Busy);
            };
            let _runs = shared.batches.acquire().await.expect("never closed");
            insert_all(&shared, submits).await
        });
        let answer = match tokio::time::timeout(BATCH_ANSWER_WITHIN, run).await {
            Ok(Ok(answer)) => answer,
            Err(_) | Ok(Err(_)) => Err(Error::Unknown),
        };
        match &answer {
            Ok(done) => {
                let replayed = done.iter().filter(|one| one.replayed).count() as u64;
                count("replayed", replayed);
                count("accepted", count_of - replayed);
            }
            Err(error) => count(error.outcome(), count_of),
        }
        answer
    }
}

fn counted(answer: Answer) -> Answer {
    let outcome = match &answer {
        Ok(done) if done.replayed => "replayed",
        Ok(_) => "accepted",
        Err(error) => error.outcome(),
    };
    count(outcome, 1);
    answer
}

fn count(outcome: &'static str, tasks: u64) {
    metrics::counter!(metric::SUBMITS, field::OUTCOME => outcome).increment(tasks);
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Path {
    Plain,
    Keyed,
}

fn row(submit: Submit) -> Row {
    let slot = Slot::of(&submit.key);
    let fingerprint = submit.idempotency_key.is_some().then(|| fingerprint(&submit));
    Row {
        submit,
        slot,
        fingerprint,
    }
}

fn size(submit: &Submit) -> usize {
    512 + submit.payload.get().len() + submit.key.as_str().len()
}

/// Over kind, key, payload text, priority, attempts and timeout. When it is due is no part of it: a submit with a delay that is
/// sent again names another time and is the same submit.
fn fingerprint(submit: &Submit) -> Fingerprint {
    let mut hash = Sha256::new();
    for part in [&submit.kind, submit.key.as_str(), submit.payload.get()] {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part);
    }
    hash.update([submit.priority]);
    hash.update(submit.max_attempts.to_be_bytes());
    hash.update(submit.timeout.as_millis().to_be_bytes());
    hash.finalize().into()
}

/// Gathers groups until the last sender is gone.
async fn collect(mut queue: mpsc::Receiver<Entry>, shared: Arc<Shared>, path: Path) {
    let flights = Arc::new(Semaphore::new(FLIGHTS));
    while let Some(first) = queue.recv().await {
        let flight = Arc::clone(&flights).acquire_owned().await.expect("never closed");
        let mut bytes = first.bytes;
        let mut group = vec![first];
        drain(&mut queue, &mut group, &mut bytes);
        if flights.available_permits() == 0 && group.len() < GROUP && bytes < GROUP_BYTES {
            // Postgres is busy with another group anyway: a larger one costs it less.
            tokio::time::sleep(GATHER).await;
            drain(&mut queue, &mut group, &mut bytes);
        }
        shared.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        let shared = Arc::clone(&shared);
        tokio::spawn(async move {
            // Whoever stopped waiting was told that the outcome is unknown; this settles it as not written.
            group.retain(|entry| !entry.answer.is_closed());
            match path {
                Path::Plain => run_plain(&shared, group).await,
                Path::Keyed => run_keyed(&shared, group).await,
            }
            drop(flight);
        });
    }
}

fn drain(queue: &mut mpsc::Receiver<Entry>, group: &mut Vec<Entry>, bytes: &mut usize) {
    while group.len() < GROUP && *bytes < GROUP_BYTES {
        let Ok(entry) = queue.try_recv() else { return };
        *bytes += entry.bytes;
        group.push(entry);
    }
}

/// One insert, with the points around it.
async fn submitted<T>(insert: impl Future<Output = Result<T, store::Error>>) -> Result<T, store::Error> {
    droppable(async {
        failpoint::at(failpoint::SUBMIT).await?;
        let placed = insert.await?;
        failpoint::at(failpoint::SUBMITTED).await?;
        Ok(placed)
    })
    .await
}

async fn run_plain(shared: &Shared, group: Vec<Entry>) {
    let mut groups = vec![group];
    while let Some(mut group) = groups.pop() {
        if group.is_empty() {
            continue;
        }
        let began = Instant::now();
        let rows: Vec<&Row> = group.iter().map(|entry| &entry.row).collect();
        let inserted = submitted(shared.store.insert(&rows)).await;
        metrics::histogram!(metric::SUBMIT_SECONDS).record(began.elapsed());
        match inserted {
            Ok(numbers) => {
                shared.inserted(rows.iter().zip(&numbers).map(|(row, number)| (*row, *number)));
                for (entry, number) in group.into_iter().zip(numbers) {
                    let id = TaskId {
                        slot: entry.row.slot,
                        number,
                    };
                    let _ = entry.answer.send(Ok(Submitted { id, replayed: false }));
                }
            }
            Err(error) if group.len() > 1 && about_data(&error) => {
                let second = group.split_off(group.len() / 2);
                groups.extend([second, group]);
            }
            Err(error) => refuse(group, error),
        }
    }
}

fn refuse(group: Vec<Entry>, error: store::Error) {
    let error = Error::from(error);
    for entry in group {
        let _ = entry.answer.send(Err(error.clone()));
    }
}

/// What identifies a submit under an idempotency key.
type Id = (Key, String, String);

fn id_of(submit: &Submit) -> Option<Id> {
    submit
        .idempotency_key
        .as_ref()
        .map(|id| (submit.key.clone(), submit.kind.clone(), id.clone()))
}

async fn run_keyed(shared: &Shared, group: Vec<Entry>) {
    // Only the first of an id goes in; its repetitions are answered from it.
    let mut first: HashMap<Id, usize> = HashMap::with_capacity(group.len());
    let mut entries: Vec<(Entry, Vec<Entry>)> = Vec::with_capacity(group.len());
    for entry in group {
        let Some(id) = id_of(&entry.row.submit) else {
            continue;
        };
        match first.entry(id) {
            std::collections::hash_map::Entry::Occupied(at) => entries[*at.get()].1.push(entry),
            std::collections::hash_map::Entry::Vacant(free) => {
                free.insert(entries.len());
                entries.push((entry, Vec::new()));
            }
        }
    }
    let mut groups = vec![(entries, Patience::Long)];
    while let Some((mut group, patience)) = groups.pop() {
        if group.is_empty() {
            continue;
        }
        let began = Instant::now();
        let rows: Vec<&Row> = group.iter().map(|(entry, _)| &entry.row).collect();
        let placed = submitted(shared.store.insert_keyed(&rows, patience)).await;
        metrics::histogram!(metric::SUBMIT_SECONDS).record(began.elapsed());
        match placed {
            Ok(placed) => {
                shared.placed(&rows, &placed);
                for ((entry, repetitions), place) in group.into_iter().zip(placed) {
                    answer_keyed(entry, repetitions, place);
                }
            }
            Err(error) if group.len() > 1 && (about_data(&error) || waited_in_vain(&error)) => {
                let patience = if waited_in_vain(&error) {
                    Patience::Short
                } else {
                    patience
                };
                let second = group.split_off(group.len() / 2);
                groups.extend([(second, patience), (group, patience)]);
            }
            Err(error) => {
                refuse(
                    group
                        .into_iter()
                        .flat_map(|(entry, others)| std::iter::once(entry).chain(others))
                        .collect(),
                    error,
                );
            }
        }
    }
}

/// Each repetition is held against what is stored, which need not be what the first of its group said: another group, or another
/// node, may have come before it.
fn answer_keyed(entry: Entry, repetitions: Vec<Entry>, place: Placed) {
    let given = entry.row.fingerprint.unwrap_or_default();
    let (number, stored) = match place {
        Placed::New(number) | Placed::Replayed(number) => (number, given),
        Placed::Mismatch { number, stored } => (number, stored),
    };
    let slot = entry.row.slot;
    let _ = entry.answer.send(keyed_answer(slot, place, 0, given));
    for other in repetitions {
        let given = other.row.fingerprint.unwrap_or_default();
        let place = if given == stored {
            Placed::Replayed(number)
        } else {
            Placed::Mismatch { number, stored }
        };
        let _ = other.answer.send(keyed_answer(slot, place, 0, given));
    }
}

fn keyed_answer(slot: Slot, placed: Placed, place: usize, given: Fingerprint) -> Answer {
    match placed {
        Placed::New(number) => Ok(Submitted {
            id: TaskId { slot, number },
            replayed: false,
        }),
        Placed::Replayed(number) => Ok(Submitted {
            id: TaskId { slot, number },
            replayed: true,
        }),
        Placed::Mismatch { stored, .. } => Err(mismatch(place, stored, given)),
    }
}

fn mismatch(place: usize, stored: Fingerprint, given: Fingerprint) -> Error {
    Error::Mismatch {
        place,
        stored: hex(&stored),
        given: hex(&given),
    }
}

async fn insert_all(shared: &Shared, submits: Vec<Submit>) -> Result<Vec<Submitted>, Error> {
    let rows: Vec<Row> = submits.into_iter().map(row).collect();
    // For each submit the place of its row among those that go in.
    let mut places: Vec<usize> = Vec::with_capacity(rows.len());
    let mut first: HashMap<Id, usize> = HashMap::new();
    let mut distinct: Vec<&Row> = Vec::with_capacity(rows.len());
    let mut repeats = vec![false; rows.len()];
    for (at, row) in rows.iter().enumerate() {
        let place = match id_of(&row.submit) {
            None => distinct.len(),
            Some(id) => *first.entry(id).or_insert(distinct.len()),
        };
        if let Some(earlier) = distinct.get(place) {
            repeats[at] = true;
            let (stored, given) = (
                earlier.fingerprint.unwrap_or_default(),
                row.fingerprint.unwrap_or_default(),
            );
            if stored != given {
                return Err(mismatch(at, stored, given));
            }
        } else {
            distinct.push(row);
        }
        places.push(place);
    }
    let began = Instant::now();
    let placed = submitted(shared.store.insert_all(&distinct)).await;
    metrics::histogram!(metric::SUBMIT_SECONDS).record(began.elapsed());
    let placed = placed?;
    let answers = rows.iter().enumerate().map(|(at, row)| {
        let mut answer = keyed_answer(
            row.slot,
            placed[places[at]],
            at,
            row.fingerprint.unwrap_or_default(),
        )?;
        answer.replayed |= repeats[at];
        Ok(answer)
    });
    let answers = answers.collect::<Result<Vec<_>, Error>>()?;
    shared.placed(&distinct, &placed);
    Ok(answers)
}

impl Shared {
    /// Tells the owners about what is new.
    fn placed(&self, rows: &[&Row], placed: &[Placed]) {
        self.inserted(rows.iter().zip(placed).filter_map(|(row, place)| match place {
            Placed::New(number) => Some((*row, *number)),
            Placed::Replayed(_) | Placed::Mismatch { .. } => None,
        }));
    }

    fn inserted<'a>(&self, rows: impl Iterator<Item = (&'a Row, i64)>) {
        let mut hints: Vec<Hint> = rows
            .map(|(row, number)| Hint {
                slot: row.slot,
                lowest: number,
                urgent: row.submit.priority > 0,
            })
            .collect();
        hints.sort_unstable_by_key(|hint| hint.slot);
        hints.dedup_by(|next, kept| kept.absorb(next));
        self.hints.all_tasks(hints);
    }
}
