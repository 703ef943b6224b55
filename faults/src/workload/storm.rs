//! W6: many clients submit the same task at once, under one idempotency key, some with another body.

use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{Client, Task};
use super::handlers::Append;
use super::{Targets, Workload};
use crate::history::{Answer, Submit};

const CLIENTS: usize = 64;
const KEYS: i64 = 200;

/// W6.
#[derive(Debug)]
pub(super) struct Storm;

#[async_trait]
impl Workload for Storm {
    fn id(&self) -> &'static str {
        "W6"
    }

    fn what(&self) -> &'static str {
        "storms: 64 clients submit one task at once under one idempotency key, a few of them with another body"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let mut rng = StdRng::seed_from_u64(seed);
        let client = |number| Client::new(format!("W6/{number}"), &targets, None, &stop);
        let mut clients: Vec<Client> = (0..CLIENTS).map(client).collect();
        // The rate is that of requests: each of them is work.
        let pause = rate.map_or(0.0, |rate| CLIENTS as f64 / rate.max(1.0));
        let pause = Duration::from_secs_f64(pause);
        let mut round = 0;
        while !stop.is_cancelled() {
            let began = tokio::time::Instant::now();
            let (key, seq) = (format!("storm{}", round % KEYS), round / KEYS + 1);
            let idempotency_key = format!("storm/{round}");
            round += 1;
            let other = rng.random_range(0..4);
            let task = |ms| Task::new("append", key.clone(), seq, Append { seq, ms });
            let answers = clients.iter_mut().enumerate().map(|(number, client)| {
                // Which of the two bodies comes first is a race.
                let task = task(u64::from((number * 7) % CLIENTS < other));
                let idempotency_key = &idempotency_key;
                async move { client.put_as(&task, idempotency_key).await }
            });
            join_all(answers).await;
            tokio::select! {
                () = tokio::time::sleep_until(began + pause) => {}
                () = stop.cancelled() => {}
            }
        }
        clients.into_iter().flat_map(Client::submits).collect()
    }
}

/// How many requests were refused since their idempotency key belongs to another body.
pub fn mismatches(submits: &[Submit]) -> usize {
    let of = |submit: &&Submit| matches!(&submit.answer, Answer::Refused { status: 422, .. });
    submits.iter().filter(of).count()
}
