//! W1: keyed append. Each key has one writer, which counts.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{Rng as _, RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::Append;
use super::keys::Zipf;
use super::{Targets, Workload};
use crate::history::Submit;

/// Keys, beside the one that gets half of all tasks.
const KEYS: usize = 10_000;
/// Writers of these keys.
const WRITERS: usize = 31;

/// W1.
#[derive(Debug)]
pub(super) struct KeyedAppend;

#[async_trait]
impl Workload for KeyedAppend {
    fn id(&self) -> &'static str {
        "W1"
    }

    fn what(&self) -> &'static str {
        "keyed append: 10,000 keys by Zipf's law and one key with half of all tasks; one writer per key, which counts"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let mut seeds = StdRng::seed_from_u64(seed);
        let mut clients = Vec::with_capacity(WRITERS + 1);
        let half = rate.map(|rate| rate / 2.0);
        let hot = Client::new("W1/hot".to_owned(), &targets, half, &stop);
        clients.push(write(hot, None, seeds.next_u64()));
        for writer in 0..WRITERS {
            let Some(keys) = Zipf::part(KEYS, writer, WRITERS) else {
                continue;
            };
            let share = half.map(|half| half * keys.share());
            let client = Client::new(format!("W1/{writer}"), &targets, share, &stop);
            clients.push(write(client, Some(keys), seeds.next_u64()));
        }
        client::all(clients).await
    }
}

/// `keys`: none means the hot key.
async fn write(mut client: Client, keys: Option<Zipf>, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut counters = vec![0; KEYS + 1];
    while client.next().await {
        let rank = keys.as_ref().map_or(0, |keys| keys.draw(&mut rng));
        counters[rank] += 1;
        let seq = counters[rank];
        let key = match rank {
            0 => "hot".to_owned(),
            rank => format!("k{rank}"),
        };
        // Some transactions are open for a while, so that faults find them so.
        let ms = if keys.is_some() && rng.random_ratio(1, 20) {
            20
        } else {
            0
        };
        client
            .put(&Task::new("append", key, seq, Append { seq, ms }))
            .await;
    }
    client.submits()
}
