//! W2: a bank. Money moves between accounts, and none is made or lost.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::Transfer;
use super::schema::ACCOUNTS;
use super::{Targets, Workload};
use crate::history::Submit;

/// Tellers, each with one key: transfers of different tellers meet at the accounts.
const TELLERS: usize = 32;

/// W2.
#[derive(Debug)]
pub(super) struct Bank;

#[async_trait]
impl Workload for Bank {
    fn id(&self) -> &'static str {
        "W2"
    }

    fn what(&self) -> &'static str {
        "bank: transfers between 100 accounts, from 32 keys; the total stays"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        client::many(self.id(), TELLERS, &targets, (seed, rate), &stop, transfer).await
    }
}

async fn transfer(mut client: Client, teller: usize, seed: u64) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut seq = 0;
    while client.next().await {
        seq += 1;
        let from = rng.random_range(1..=ACCOUNTS);
        let to = 1 + (from - 1 + rng.random_range(1..ACCOUNTS)) % ACCOUNTS;
        let amount = rng.random_range(1..=50);
        let payload = Transfer {
            seq,
            from,
            to,
            amount,
        };
        client
            .put(&Task::new("transfer", format!("teller{teller}"), seq, payload))
            .await;
    }
    client.submits()
}
