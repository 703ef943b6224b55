//! W4: runs shorter and longer than a lease.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::{Last, Way};
use super::{Targets, Workload};
use crate::history::Submit;

/// In lengths of a lease.
const DURATIONS: [f64; 6] = [0.0, 0.1, 0.9, 1.1, 3.0, 5.0];
/// Clients, each with [`KEYS`] keys of its own.
const CLIENTS: usize = 8;
const KEYS: i64 = 25;
/// Tasks a second if no rate is given: a task takes 5 s on average, so some forty run at a time.
const RATE: f64 = 8.0;

/// W4.
#[derive(Debug)]
pub(super) struct Durations;

#[async_trait]
impl Workload for Durations {
    fn id(&self) -> &'static str {
        "W4"
    }

    fn what(&self) -> &'static str {
        "runs of 0, 0.1, 0.9, 1.1, 3 and 5 leases that wait willingly, ignore their cancellation, or block; 8/s"
    }

    /// Its tasks take little, and hold their places for long.
    fn cost(&self) -> f64 {
        8.0
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let rate = Some(rate.unwrap_or(RATE).min(RATE));
        let ttl_ms = targets.ttl.as_millis() as f64;
        let submit = move |client, number, seed| submit(client, number, ttl_ms, seed);
        client::many(self.id(), CLIENTS, &targets, (seed, rate), &stop, submit).await
    }
}

async fn submit(mut client: Client, number: usize, ttl_ms: f64, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut turn = 0;
    while client.next().await {
        let (key, seq) = (format!("last{number}-{}", turn % KEYS), turn / KEYS + 1);
        turn += 1;
        let leases = DURATIONS.choose(&mut rng).copied().unwrap_or_default();
        let way = [Way::Willing, Way::Deaf, Way::Blocking].choose(&mut rng).copied();
        let payload = Last {
            seq,
            ms: (leases * ttl_ms) as u64,
            way: way.unwrap_or(Way::Willing),
            // An open transaction takes one of the node's few connections.
            open: rng.random_ratio(1, 8),
        };
        client.put(&Task::new("last", key, seq, payload)).await;
    }
    client.submits()
}
