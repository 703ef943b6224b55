//! W7: tasks that are not due yet. Only the scheduled half: the product knows no recurring tasks.
//!
//! Leave it out where Postgres' clock is moved: its handler looks at that clock.

use async_trait::async_trait;
use chrono::{DateTime, FixedOffset, SecondsFormat, TimeDelta, Utc};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::Due;
use super::{Targets, Workload};
use crate::history::{Expected, Submit};

const CLIENTS: usize = 8;
/// Of each client.
const KEYS: i64 = 50;
/// Tasks a second if no rate is given.
const RATE: f64 = 200.0;

/// Times that have been, at the edges of clocks and calendars: the task is due at once.
const PAST: [&str; 8] = [
    "1970-01-01T00:00:00Z",
    "1999-12-31T23:59:59.999999999Z",
    "2024-02-29T23:59:59+14:00",
    // The hour that Berlin has twice, and the one that it does not have.
    "2026-10-25T02:30:00+02:00",
    "2026-10-25T02:30:00+01:00",
    "2026-03-29T02:30:00+01:00",
    // The same in Havana, at midnight.
    "2026-11-01T00:30:00-04:00",
    "2016-12-31T23:59:60Z",
];

/// Times beyond any run.
const FUTURE: [&str; 4] = [
    "9999-12-31T23:59:59Z",
    "2999-03-29T02:30:00+01:00",
    "2400-02-29T00:00:00-12:00",
    "2038-01-19T03:14:08Z",
];

/// Offsets from UTC in minutes, of places that have them: some of them change twice a year.
const OFFSETS: [i32; 8] = [0, 60, 120, 345, 570, 840, -570, -720];

/// W7.
#[derive(Debug)]
pub(super) struct Scheduled;

#[async_trait]
impl Workload for Scheduled {
    fn id(&self) -> &'static str {
        "W7"
    }

    fn what(&self) -> &'static str {
        "scheduled: run_at and delay, near, at edges of clocks and calendars, and far (no recurring tasks: the product has none)"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let rate = Some(rate.unwrap_or(RATE).min(RATE));
        client::many(self.id(), CLIENTS, &targets, (seed, rate), &stop, submit).await
    }
}

async fn submit(mut client: Client, number: usize, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut turn = 0;
    while client.next().await {
        let (key, seq) = (format!("due{number}-{}", turn % KEYS), turn / KEYS + 1);
        turn += 1;
        client.put(&task(&mut rng, key, seq, Utc::now())).await;
    }
    client.submits()
}

fn task(rng: &mut StdRng, key: String, seq: i64, now: DateTime<Utc>) -> Task {
    let due = |not_before: DateTime<Utc>| Due {
        seq,
        not_before: not_before.timestamp_micros(),
    };
    let soon = TimeDelta::milliseconds(rng.random_range(0..8000));
    match rng.random_range(0..20) {
        0 => {
            let run_at = PAST.choose(rng).copied().unwrap_or_default();
            Task::new("due", key, seq, due(DateTime::UNIX_EPOCH)).with("run_at", run_at)
        }
        1 => {
            let run_at = FUTURE.choose(rng).copied().unwrap_or_default();
            Task::new("due", key, seq, due(DateTime::UNIX_EPOCH))
                .with("run_at", run_at)
                .expecting(Expected::Future)
        }
        2 => Task::new("due", key, seq, due(DateTime::UNIX_EPOCH))
            .with("delay", "3650days")
            .expecting(Expected::Future),
        3..8 => {
            let delay = format!("{}ms", soon.num_milliseconds());
            Task::new("due", key, seq, due(now + soon)).with("delay", delay)
        }
        _ => {
            let at = now + soon;
            let offset = OFFSETS
                .choose(rng)
                .and_then(|minutes| FixedOffset::east_opt(minutes * 60));
            let text = match offset {
                Some(offset) => at
                    .with_timezone(&offset)
                    .to_rfc3339_opts(SecondsFormat::Nanos, true),
                None => at.to_rfc3339_opts(SecondsFormat::Nanos, true),
            };
            Task::new("due", key, seq, due(at)).with("run_at", text)
        }
    }
}
