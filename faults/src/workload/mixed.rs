//! What the numbered workloads leave out: submits without an idempotency key, submits in SQL, and tasks that fail and come back.

use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use ringmesh::sqlx::PgPool;
use ringmesh::sqlx::postgres::PgPoolOptions;
use tokio_util::sync::CancellationToken;

use super::client::{self, Client, Task};
use super::handlers::{Append, Harm, How};
use super::{Targets, Workload};
use crate::history::Submit;

const CLIENTS: usize = 9;
/// Of each client.
const KEYS: i64 = 40;

/// Each third client submits in one of three ways.
#[derive(Debug)]
pub(super) struct Mixed;

#[async_trait]
impl Workload for Mixed {
    fn id(&self) -> &'static str {
        "mixed"
    }

    fn what(&self) -> &'static str {
        "submits without an idempotency key, submits in SQL, and tasks that fail once or twice"
    }

    async fn run(
        &self,
        targets: Targets,
        seed: u64,
        rate: Option<f64>,
        stop: CancellationToken,
    ) -> Vec<Submit> {
        let database = PgPoolOptions::new().max_connections(2);
        let Ok(database) = database.connect_lazy(&targets.database) else {
            return Vec::new();
        };
        let submit = move |client, number, seed| submit(client, number, seed, database.clone());
        client::many(self.id(), CLIENTS, &targets, (seed, rate), &stop, submit).await
    }
}

async fn submit(mut client: Client, number: usize, seed: u64, database: PgPool) -> Vec<Submit> {
    let mut rng = StdRng::seed_from_u64(seed);
    let mut turn = 0;
    while client.next().await {
        let (key, seq) = (format!("mixed{number}-{}", turn % KEYS), turn / KEYS + 1);
        turn += 1;
        let append = |key| Task::new("append", key, seq, Append { seq, ms: 0 });
        match number % 3 {
            0 => client.put_plain(&append(key)).await,
            1 => client.enqueue(&database, &append(key)).await,
            _ => {
                let how = How::Fail(rng.random_range(1..=2));
                client.put(&Task::new("harm", key, seq, Harm { seq, how })).await
            }
        };
    }
    client.submits()
}
