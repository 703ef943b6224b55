//! What is broken, and how it is healed.
//!
//! A fault is a value. Its parameters are drawn from the seed when it begins, and healing undoes it, so that it can begin
//! again. One file per family.
//!
//! | file | has |
//! |---|---|
//! | `process` | ends of processes: N1, N3, N6, N7 |
//! | `pause` | processes that stand still: N2, N19 |
//! | `starve` | too little processor, memory, file descriptors: N4, N5 |
//! | `identity` | clones, strangers, other addresses: N8, N16 |
//! | `network` | links: N9 to N15, N17, N29 |
//! | `clock` | wall clocks: N18 |
//! | `database` | Postgres goes away, and sessions end: N14, N20, N21 |
//! | `neighbour` | others who use the same Postgres: N22, N23, N25 to N27 |
//! | `pooler` | PgBouncer: N24 |
//! | `http` | clients that behave badly: N28 |
//! | `together` | several at once: N30 |
//!
//! What could not be built:
//!
//! | of | is missing | because |
//! |---|---|---|
//! | N5 | a full disk of the node | a node writes nothing but its log, to standard error |
//! | N12 | delay and disorder of packets of TCP | no netem here; the relay and the proxies delay streams as a whole instead |
//! | N16 | stale A records | nodes are told addresses; a server of names would test the resolver |
//! | N19 | a `CLOCK_BOOTTIME` that jumps | it is the kernel's, and an offset of it is given to a process before it starts; pauses move it as well |
//! | N22 | a role that loses its rights | the lab's nodes are superusers of their Postgres |

mod clock;
mod database;
mod http;
mod identity;
mod neighbour;
mod network;
mod pause;
mod pooler;
mod process;
mod starve;
mod together;

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio_util::sync::{CancellationToken, DropGuard};

use crate::lab::{Lab, Options};

/// What a fault has hit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Begun {
    /// The hosts; empty: all, or none in particular.
    pub hosts: Vec<String>,
    /// The incarnations that these hosts had just before.
    pub incarnations: Vec<i64>,
    /// What was drawn, in words.
    pub detail: String,
}

/// One thing that goes wrong.
#[async_trait]
pub trait Fault: Send {
    /// Its number in the list of faults, `N2`.
    fn id(&self) -> &'static str;

    /// What it is called, unique among all.
    fn name(&self) -> &'static str;

    /// Whether it can happen on this machine at all.
    ///
    /// # Errors
    /// What is missing.
    fn can(&self) -> Result<()> {
        Ok(())
    }

    /// What it needs of a lab.
    fn prepare(&self, _options: &mut Options) {}

    /// Breaks something. Returns once it is broken.
    ///
    /// # Errors
    /// It could not be broken; what is half broken is undone by [`Self::heal`].
    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun>;

    /// Undoes it. Returns once all nodes run that ran before; whether they are ready is for others to see.
    ///
    /// # Errors
    /// It could not be undone, or a node did not come back.
    async fn heal(&mut self, lab: &mut Lab) -> Result<()>;
}

/// All faults.
pub fn all() -> Vec<Box<dyn Fault>> {
    single().into_iter().chain(together::all()).collect()
}

/// All faults that are not made of others.
fn single() -> Vec<Box<dyn Fault>> {
    let families = [
        process::all(),
        pause::all(),
        starve::all(),
        identity::all(),
        network::all(),
        clock::all(),
        database::all(),
        neighbour::all(),
        pooler::all(),
        http::all(),
    ];
    families.into_iter().flatten().collect()
}

/// The fault of this name.
pub fn by_name(name: &str) -> Option<Box<dyn Fault>> {
    all().into_iter().find(|fault| fault.name() == name)
}

/// The fault of this name, if it is not made of others.
fn by_single_name(name: &str) -> Option<Box<dyn Fault>> {
    single().into_iter().find(|fault| fault.name() == name)
}

/// Some of the numbers below `of`, in ascending order.
fn some(rng: &mut StdRng, of: usize, count: usize) -> Vec<usize> {
    let mut left: Vec<usize> = (0..of).collect();
    let mut chosen = Vec::new();
    while chosen.len() < count.min(of) {
        chosen.push(left.swap_remove(rng.random_range(0..left.len())));
    }
    chosen.sort_unstable();
    chosen
}

/// One of these.
fn one_of<T: Copy>(rng: &mut StdRng, these: &[T]) -> T {
    these[rng.random_range(0..these.len())]
}

/// Does something again and again until it is dropped, in a task of its own.
fn again<F>(every: Duration, mut what: impl FnMut() -> F + Send + 'static) -> DropGuard
where
    F: Future<Output = ()> + Send,
{
    let end = CancellationToken::new();
    let repeated = async move {
        loop {
            what().await;
            tokio::time::sleep(every).await;
        }
    };
    tokio::spawn(end.clone().run_until_cancelled_owned(repeated));
    end.drop_guard()
}

/// Names and incarnations of nodes that are about to be hit.
async fn about(lab: &Lab, nodes: &[usize], detail: impl Into<String>) -> Begun {
    let mut begun = Begun {
        detail: detail.into(),
        ..Begun::default()
    };
    for node in nodes {
        begun.hosts.push(lab.nodes()[*node].name().to_owned());
        // Postgres may be away by another fault.
        begun
            .incarnations
            .extend(lab.incarnation(*node).await.ok().flatten());
    }
    begun
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn names_tell_faults_apart() {
        let names: BTreeSet<&str> = all().iter().map(|fault| fault.name()).collect();
        assert_eq!(names.len(), all().len());
        assert!(names.iter().all(|name| by_name(name).is_some()));
    }

    #[test]
    fn every_kind_of_fault_is_there() {
        let ids: BTreeSet<&str> = all().iter().map(|fault| fault.id()).collect();
        let wanted: Vec<String> = (1..=30).map(|number| format!("N{number}")).collect();
        assert_eq!(ids, wanted.iter().map(String::as_str).collect());
    }

    #[test]
    fn a_seed_decides_who_is_hit() {
        let draw = |seed| some(&mut StdRng::seed_from_u64(seed), 5, 2);
        assert_eq!(draw(1), draw(1));
        assert!((0..20).any(|seed| draw(seed) != draw(1)));
        assert!((0..20).all(|seed| BTreeSet::from_iter(draw(seed)).len() == 2));
    }
}
