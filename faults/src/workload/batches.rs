//! W1 by batches: most of the tasks of a run at little cost, and the way that most tasks go.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::Append;
use super::keys::Zipf;
use super::{Targets, Workload};
use crate::history::{Expected, Submit};

/// Keys.
const KEYS: usize = 10_000;
/// Their writers.
const WRITERS: usize = 8;
/// Tasks in a request.
const BATCH: usize = 50;
/// Of so many tasks one has a transaction of its own.
const EFFECTS: u32 = 10;

/// W1 in requests of fifty tasks. Nine of ten write nothing, so that their nodes claim and finish many of them at once; their
/// end is their effect.
#[derive(Debug)]
pub(super) struct Batches;

#[async_trait]
impl Workload for Batches {
    fn id(&self) -> &'static str {
        "W1-batch"
    }

    fn what(&self) -> &'static str {
        "W1 in requests of 50 tasks, of which nine in ten write nothing but their end"
    }

    fn cost(&self) -> f64 {
        0.1
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let mut seeds = StdRng::seed_from_u64(seed);
        let mut clients = Vec::with_capacity(WRITERS);
        for writer in 0..WRITERS {
            let Some(keys) = Zipf::part(KEYS, writer, WRITERS) else {
                continue;
            };
            let batches = rate.map(|rate| rate / BATCH as f64 * keys.share());
            let client = Client::new(format!("W1-batch/{writer}"), &targets, batches, &stop);
            clients.push(write(client, keys, seeds.next_u64()));
        }
        client::all(clients).await
    }
}

async fn write(mut client: Client, keys: Zipf, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut counters = vec![0; KEYS + 1];
    while client.next().await {
        let mut batch = Vec::with_capacity(BATCH);
        for _ in 0..BATCH {
            let rank = keys.draw(&mut rng);
            counters[rank] += 1;
            let seq = counters[rank];
            let (kind, expected) = match rng.random_ratio(1, EFFECTS) {
                true => ("append", Expected::Effect),
                false => ("count", Expected::NoEffect),
            };
            let task = Task::new(kind, format!("m{rank}"), seq, Append { seq, ms: 0 });
            batch.push(task.expecting(expected));
        }
        client.put_all(&batch).await;
    }
    client.submits()
}
