//! W5: tasks that fail, panic, end their process, never return, and answer with hostile text. They come after some hundred
//! ordinary ones, if there are any: I14 compares.

use std::time::Duration;

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::{Harm, How};
use super::{Targets, Workload};
use crate::history::{Expected, Submit};

const CLIENTS: usize = 8;
/// Of each client.
const KEYS: i64 = 60;
/// Tasks a second if no rate is given; one of a thousand ends its process, again and again.
const RATE: f64 = 100.0;
/// It begins when so many ordinary tasks have come, if they come as often.
const BEFORE: f64 = 700.0;

/// W5.
#[derive(Debug)]
pub(super) struct Harmful;

#[async_trait]
impl Workload for Harmful {
    fn id(&self) -> &'static str {
        "W5"
    }

    fn what(&self) -> &'static str {
        "10 % fail and succeed later, 1 % panic, 0.1 % abort the process, 1 % never return, 2 % hostile text; 100/s"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let rate = rate.unwrap_or(RATE);
        let before = Duration::from_secs_f64(BEFORE / rate.max(1.0));
        if stop.run_until_cancelled(sleep(before)).await.is_none() {
            return Vec::new();
        }
        let rate = Some(rate.min(RATE));
        client::many(self.id(), CLIENTS, &targets, (seed, rate), &stop, submit).await
    }
}

async fn submit(mut client: Client, number: usize, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut turn = 0;
    while client.next().await {
        let (key, seq) = (format!("harm{number}-{}", turn % KEYS), turn / KEYS + 1);
        turn += 1;
        let how = how(rng.random_range(0..1000), rng.random_range(1..=3));
        let task = Task::new("harm", key, seq, Harm { seq, how });
        let task = match how {
            How::Well | How::Fail(_) | How::Panic(_) | How::HostileResult => task,
            // A panic and a timeout are tried again, to no avail. A crash is counted by the node's rule: three of them.
            How::PanicOdd => task.with("max_attempts", 2).expecting(Expected::Dead),
            How::Forever => task
                .with("max_attempts", 2)
                .with("timeout", "500ms")
                .expecting(Expected::Dead),
            How::Abort | How::HostileError => task.expecting(Expected::Dead),
        };
        client.put(&task).await;
    }
    client.submits()
}

/// What a task does, by a number below 1000.
fn how(number: u32, times: i32) -> How {
    match number {
        0..100 => How::Fail(times),
        100..105 => How::Panic(times),
        105..110 => How::PanicOdd,
        110..111 => How::Abort,
        111..121 => How::Forever,
        121..131 => How::HostileResult,
        131..141 => How::HostileError,
        _ => How::Well,
    }
}
