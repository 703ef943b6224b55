//! W9: priorities, and cancels that race with claims, runs and finishes.

use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::Append;
use super::{Targets, Workload};
use crate::history::{Expected, Submit};

const CLIENTS: usize = 16;
/// Of each client.
const KEYS: i64 = 30;

/// W9.
#[derive(Debug)]
pub(super) struct Admin;

#[async_trait]
impl Workload for Admin {
    fn id(&self) -> &'static str {
        "W9"
    }

    fn what(&self) -> &'static str {
        "admin mix: any priority, and every second task is cancelled at some moment \
         (no retry, reschedule or pause by hand: the product has none)"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        client::many(self.id(), CLIENTS, &targets, (seed, rate), &stop, submit).await
    }
}

async fn submit(mut client: Client, number: usize, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut turn = 0;
    while client.next().await {
        let (key, seq) = (format!("admin{number}-{}", turn % KEYS), turn / KEYS + 1);
        turn += 1;
        let ms = if rng.random_ratio(1, 4) { 30 } else { 0 };
        let mut task =
            Task::new("append", key, seq, Append { seq, ms }).with("priority", rng.random_range(0..=9));
        if rng.random_ratio(1, 5) {
            task = task.with("delay", format!("{}ms", rng.random_range(1..500)));
        }
        let cancelled = rng.random_ratio(1, 2);
        if cancelled {
            task = task.expecting(Expected::Race);
        }
        let id = client.put(&task).await;
        if let Some(id) = id.filter(|_| cancelled) {
            // From before the claim to after the finish.
            tokio::time::sleep(Duration::from_micros(rng.random_range(0..40_000))).await;
            client.cancel(id).await;
        }
    }
    client.submits()
}
