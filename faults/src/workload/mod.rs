//! What the mesh is given to do: handlers in the nodes, clients outside.
//!
//! | file | is |
//! |---|---|
//! | [`schema`] | the tables of effects and accounts |
//! | [`handlers`](mod@handlers) | the kinds of task that nodes know |
//! | [`node`] | a node that knows them |
//! | [`note`] | what a node notes of itself |
//! | `client` | a client that repeats what was not answered |
//! | `keys` | which keys, how often |
//! | `append` … `admin` | W1 to W9 |
//! | `mixed` | ways to submit and to end that these leave out; for the matrix of fail points |
//! | `errands` | single tasks for given keys |
//!
//! W3, an outbox to HTTP sinks, is left out: the product has no outbox and calls nobody.

mod admin;
mod append;
mod backlog;
mod bank;
mod batches;
mod client;
mod durations;
mod errands;
pub mod handlers;
mod harm;
mod keys;
mod mixed;
pub mod node;
pub mod note;
pub mod points;
mod scheduled;
pub mod schema;
mod storm;

use std::time::Duration;

use async_trait::async_trait;
use tokio_util::sync::CancellationToken;

use crate::history::{Answer, Submit};

pub use errands::Errands;
pub use handlers::handlers;
pub use storm::mismatches;

/// All workloads; of W8 the smaller backlog.
pub fn all() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(append::KeyedAppend),
        Box::new(batches::Batches),
        Box::new(bank::Bank),
        Box::new(durations::Durations),
        Box::new(harm::Harmful),
        Box::new(storm::Storm),
        Box::new(scheduled::Scheduled),
        Box::new(backlog::Backlog {
            due: 1_000_000,
            future: 0,
        }),
        Box::new(admin::Admin),
    ]
}

/// The workload of this name: an id, or `W8-10m` for the larger backlog.
pub fn by_name(name: &str) -> Option<Box<dyn Workload>> {
    if name == "W8-10m" {
        return Some(Box::new(backlog::Backlog {
            due: 5_000_000,
            future: 5_000_000,
        }));
    }
    all().into_iter().find(|workload| workload.id() == name)
}

/// What passes every fail point on a node's usual ways: transactions, transfers, priorities, cancels, delays, retries, and all ways
/// to submit.
pub fn of_all_kinds() -> Vec<Box<dyn Workload>> {
    vec![
        Box::new(append::KeyedAppend),
        Box::new(bank::Bank),
        Box::new(admin::Admin),
        Box::new(mixed::Mixed),
    ]
}

/// To how many submits a node said that it does not know what came of its commit. A request without an answer need not have
/// reached a commit.
pub fn unknown_outcomes(submits: &[Submit]) -> u64 {
    let unknown = submits.iter().filter(
        |submit| matches!(&submit.answer, Answer::Unknown { why } if why.contains("outcome_unknown")),
    );
    unknown.count() as u64
}

/// Whom the clients of a workload ask.
#[derive(Debug, Clone)]
pub struct Targets {
    /// The base URLs of all nodes, over the network without faults.
    pub urls: Vec<String>,
    /// What every request must carry.
    pub token: Option<String>,
    /// The address of Postgres without faults, for those who submit in SQL.
    pub database: String,
    /// Sends the requests.
    pub http: reqwest::Client,
    /// The length of a lease.
    pub ttl: Duration,
}

/// Clients that give the mesh work.
#[async_trait]
pub trait Workload: Send + Sync {
    /// `W1` and so on.
    fn id(&self) -> &'static str;

    /// What it does, in a line.
    fn what(&self) -> &'static str;

    /// What a task of it costs the mesh, in tasks of W1.
    fn cost(&self) -> f64 {
        1.0
    }

    /// Makes what must be there before the record of changes begins.
    async fn prepare(&self, _database_url: &str) -> anyhow::Result<()> {
        Ok(())
    }

    /// Submits until it is told to stop, then brings each submit that is under way to an end and returns all of them.
    ///
    /// `rate` is in tasks a second over all its clients; `None`: each client sends the next when the last was answered.
    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit>;
}
