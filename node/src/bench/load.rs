//! Loops that submit: closed (each connection sends again once it is answered) and open (at a given rate, whatever
//! the answers take).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use futures::future::try_join_all;
use tokio::time::{Instant, sleep, sleep_until};

use super::client::{Connection, Request};
use super::{Error, Result};
use crate::task::TaskId;

/// How long a closed loop runs before it counts.
const WARM_UP: Duration = Duration::from_secs(1);
/// Connections of an open loop: enough that none waits for another one's answer.
const OPEN_CONNECTIONS: usize = 32;
/// How long one submit may be tried again.
const PATIENCE: Duration = Duration::from_secs(20);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(5);

/// What a closed loop brought.
#[derive(Debug, Clone)]
pub(super) struct Closed {
    pub(super) per_s: f64,
    /// From the first send to the 201, in ms, ascending.
    pub(super) latencies: Vec<f64>,
    /// How many answers said "not now" (503 or 429); such a submit is sent again.
    pub(super) refusals: usize,
}

/// Submits single tasks of distinct keys to one node, each connection one at a time.
pub(super) async fn closed(
    address: &str,
    connections: usize,
    time: Duration,
    first_key: u64,
    later: bool,
) -> Result<Closed> {
    let keys = Arc::new(AtomicU64::new(first_key));
    let start = Instant::now() + WARM_UP;
    let end = start + time;
    let workers = (0..connections).map(|_| {
        let (address, keys) = (address.to_owned(), keys.clone());
        spawn(async move {
            let mut connection = connect(&address).await?;
            let mut request = Request::single(&address, later);
            let mut latencies = Vec::new();
            let mut refusals = 0;
            loop {
                let sent = Instant::now();
                if sent >= end {
                    return Ok((latencies, refusals));
                }
                let key = keys.fetch_add(1, Ordering::Relaxed);
                refusals += submit(&mut connection, &address, request.keyed(key)).await?;
                let answered = Instant::now();
                if answered >= start && answered < end {
                    latencies.push((answered - sent).as_secs_f64() * 1000.0);
                }
            }
        })
    });
    let (mut latencies, mut refusals) = (Vec::new(), 0);
    for (some, refused) in try_join_all(workers).await? {
        latencies.extend(some);
        refusals += refused;
    }
    latencies.sort_unstable_by(f64::total_cmp);
    Ok(Closed {
        per_s: latencies.len() as f64 / time.as_secs_f64(),
        latencies,
        refusals,
    })
}

/// Sends the same batches again and again, one connection for each; answers with tasks per second, `size` in each batch.
pub(super) async fn batches(
    address: &str,
    requests: Vec<Vec<u8>>,
    size: usize,
    time: Duration,
) -> Result<f64> {
    let start = Instant::now();
    let end = start + time;
    let workers = requests.into_iter().map(|request| {
        let address = address.to_owned();
        spawn(async move {
            let mut connection = connect(&address).await?;
            let mut sent = 0_usize;
            while Instant::now() < end {
                submit(&mut connection, &address, &request).await?;
                sent += size;
            }
            Ok(sent)
        })
    });
    let sent: usize = try_join_all(workers).await?.iter().sum();
    // The last batches end after the time; they count, and so does the time they took.
    Ok(sent as f64 / start.elapsed().as_secs_f64())
}

/// What an open loop brought.
#[derive(Debug, Default)]
pub(super) struct Open {
    /// All tasks that were answered with 201.
    pub(super) accepted: Vec<TaskId>,
    /// From the send to the answer, tries included, in ms, ascending.
    pub(super) latencies: Vec<f64>,
}

/// Submits at a rate, to the nodes in turn, keys in turn, until told to stop. What a node cannot take now, or a node that
/// is away, is tried at the next node.
pub(super) async fn open(addresses: &[String], per_s: u32, keys: u64, stop: Arc<AtomicBool>) -> Result<Open> {
    let tickets = Arc::new(AtomicU64::new(0));
    let start = Instant::now();
    let workers = (0..OPEN_CONNECTIONS).map(|_| {
        let (tickets, stop) = (tickets.clone(), stop.clone());
        let mut nodes = Nodes::new(addresses);
        spawn(async move {
            let mut mine = Open::default();
            loop {
                let ticket = tickets.fetch_add(1, Ordering::Relaxed);
                let due = start + Duration::from_secs_f64(ticket as f64 / f64::from(per_s));
                sleep_until(due).await;
                if stop.load(Ordering::Relaxed) {
                    return Ok(mine);
                }
                let sent = Instant::now();
                mine.accepted.push(nodes.submit(ticket, ticket % keys).await?);
                mine.latencies.push(sent.elapsed().as_secs_f64() * 1000.0);
            }
        })
    });
    let mut all = Open::default();
    for one in try_join_all(workers).await? {
        all.accepted.extend(one.accepted);
        all.latencies.extend(one.latencies);
    }
    all.latencies.sort_unstable_by(f64::total_cmp);
    Ok(all)
}

/// One worker's connections to all nodes.
struct Nodes {
    addresses: Vec<String>,
    requests: Vec<Request>,
    connections: Vec<Option<Connection>>,
}

impl Nodes {
    fn new(addresses: &[String]) -> Self {
        Self {
            addresses: addresses.to_vec(),
            requests: addresses
                .iter()
                .map(|address| Request::single(address, false))
                .collect(),
            connections: addresses.iter().map(|_| None).collect(),
        }
    }

    async fn submit(&mut self, first: u64, key: u64) -> Result<TaskId> {
        let count = self.addresses.len();
        let begun = Instant::now();
        for at in (0..count)
            .cycle()
            .skip(usize::try_from(first % count as u64).unwrap_or(0))
        {
            match self.try_at(at, key).await? {
                Some(id) => return Ok(id),
                None if begun.elapsed() > PATIENCE => break,
                None => sleep(PAUSE).await,
            }
        }
        Err(Error::TooLong {
            what: "no node accepted a submit".into(),
            within: PATIENCE,
        })
    }

    /// `None`: not there, or not now.
    async fn try_at(&mut self, at: usize, key: u64) -> Result<Option<TaskId>> {
        let mut connection = match self.connections[at].take() {
            Some(connection) => connection,
            None => match Connection::open(&self.addresses[at]).await {
                Ok(connection) => connection,
                Err(_) => return Ok(None),
            },
        };
        let Ok(answer) = connection.exchange(self.requests[at].keyed(key)).await else {
            return Ok(None);
        };
        let id = match answer.status {
            201 => Some(id(answer.body).ok_or_else(|| unexpected(&self.addresses[at], 201, answer.text()))?),
            429 | 503 => None,
            status => return Err(unexpected(&self.addresses[at], status, answer.text())),
        };
        self.connections[at] = Some(connection);
        Ok(id)
    }
}

/// The first thing in the answer to a submit.
fn id(body: &[u8]) -> Option<TaskId> {
    let text = std::str::from_utf8(body).ok()?.strip_prefix(r#"{"id":""#)?;
    text.split_once('"')?.0.parse().ok()
}

pub(super) async fn connect(address: &str) -> Result<Connection> {
    Connection::open(address).await.map_err(|source| Error::Io {
        doing: format!("connect to {address}"),
        source,
    })
}

/// Sends a submit until it is accepted; answers with how often it was refused with 503 or 429.
pub(super) async fn submit(connection: &mut Connection, address: &str, request: &[u8]) -> Result<usize> {
    let begun = Instant::now();
    let mut refusals = 0;
    loop {
        let answer = connection.exchange(request).await.map_err(|source| Error::Io {
            doing: format!("submit to {address}"),
            source,
        })?;
        match answer.status {
            201 => return Ok(refusals),
            429 | 503 if begun.elapsed() < PATIENCE => refusals += 1,
            status => return Err(unexpected(address, status, answer.text())),
        }
        sleep(PAUSE).await;
    }
}

fn unexpected(node: &str, status: u16, body: String) -> Error {
    Error::Answer {
        node: node.into(),
        status,
        body,
    }
}

/// On any thread of the runtime; ends with the future that waits for it.
async fn spawn<T: Send + 'static>(work: impl Future<Output = Result<T>> + Send + 'static) -> Result<T> {
    let mut tasks = tokio::task::JoinSet::new();
    tasks.spawn(work);
    match tasks.join_next().await {
        Some(Ok(done)) => done,
        Some(Err(error)) => Err(Error::Io {
            doing: "run the load".into(),
            source: error.into(),
        }),
        None => Err(Error::Interrupted),
    }
}

/// The value below which this part of ascending values lies; NaN without values.
pub(super) fn quantile(ascending: &[f64], part: f64) -> f64 {
    let rank = (ascending.len() as f64 * part).ceil() as usize;
    ascending
        .get(rank.max(1) - 1)
        .or(ascending.last())
        .copied()
        .unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quantile_is_a_value_that_was_seen() {
        let values: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!(quantile(&values, 0.5), 50.0);
        assert_eq!(quantile(&values, 0.99), 99.0);
        assert_eq!(quantile(&values, 1.0), 100.0);
        assert_eq!(quantile(&[7.0], 0.5), 7.0);
        assert!(quantile(&[], 0.5).is_nan());
    }

    #[test]
    fn the_id_stands_first_in_an_answer() {
        let found = id(br#"{"id":"163-42","kind":"noop"}"#).unwrap();
        assert_eq!(found.to_string(), "163-42");
        assert!(id(br#"{"error":"x"}"#).is_none());
    }
}
