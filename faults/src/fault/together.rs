//! Several faults at once.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::{Begun, Fault, by_single_name};
use crate::lab::{Lab, Options};

/// What begins in which order.
const ALL: [(&str, &[&str]); 9] = [
    ("pause+kill", &["pause-one", "kill-one"]),
    ("halves+kill", &["halves", "kill-one"]),
    ("postgres-kill+pause", &["pause-minority", "postgres-kill"]),
    ("failover+rolling", &["failover-synchronous", "rolling-restart"]),
    ("kill+failover", &["kill-one", "failover-synchronous"]),
    ("small-packets+crash-loop", &["small-packets", "crash-loop"]),
    ("clock+pause", &["clock-shift", "pause-one"]),
    ("lost-commits+kill", &["lost-commits", "kill-one"]),
    (
        "everything",
        &[
            "lost-commits",
            "clock-shift",
            "terminate-backends",
            "one-way",
            "no-database-drop",
            "pause-one",
            "kill-one",
            "postgres-kill",
        ],
    ),
];

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    ALL.into_iter()
        .map(|(name, parts)| -> Box<dyn Fault> {
            let parts = parts.iter().filter_map(|part| by_single_name(part)).collect();
            Box::new(Together { name, parts })
        })
        .collect()
}

/// N30: one fault begins while another is not yet healed. Healed in the order in which they began.
///
/// Expected: what each of them leaves of the promises.
struct Together {
    name: &'static str,
    parts: Vec<Box<dyn Fault>>,
}

#[async_trait]
impl Fault for Together {
    fn id(&self) -> &'static str {
        "N30"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn can(&self) -> Result<()> {
        self.parts.iter().try_for_each(|part| part.can())
    }

    fn prepare(&self, options: &mut Options) {
        for part in &self.parts {
            part.prepare(options);
        }
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let mut all = Begun::default();
        let mut everybody = false;
        for part in &mut self.parts {
            let begun = part.begin(lab, rng).await?;
            everybody |= begun.incarnations.is_empty();
            all.hosts.extend(begun.hosts);
            all.incarnations.extend(begun.incarnations);
            all.detail += &format!("{} {}; ", part.name(), begun.detail);
            let apart = Duration::from_millis(rng.random_range(0..500));
            tokio::time::sleep(apart).await;
        }
        if everybody {
            all.hosts.clear();
            all.incarnations.clear();
        }
        Ok(all)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let mut healed = Ok(());
        for part in &mut self.parts {
            // One that cannot be healed must not leave the others as they are.
            healed = healed.and(part.heal(lab).await);
        }
        healed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_a_fault() {
        for part in ALL.iter().flat_map(|(_, parts)| *parts) {
            assert!(by_single_name(part).is_some(), "{part}");
        }
    }
}
