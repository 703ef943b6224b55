//! Wall clocks that are wrong.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;

use super::process::Share;
use super::{Begun, Fault, about, one_of};
use crate::lab::{Lab, Offset, Options, SEEN_WITHIN};

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Shift::of("clock-shift", What::Nodes)),
        Box::new(Shift::of("clock-drift", What::Drift)),
        Box::new(Shift::of("clock-strobe", What::Strobe)),
        Box::new(Shift::of("clock-of-postgres", What::Postgres)),
    ]
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum What {
    /// Each node's clock is wrong by a time of its own.
    Nodes,
    /// Each goes 5 % too fast or too slow.
    Drift,
    /// They jump to and fro.
    Strobe,
    /// That of Postgres jumps by a minute, forward or back.
    Postgres,
}

/// Seconds by which a clock is wrong.
const WRONG: [f64; 8] = [-3600.0, -60.0, -1.0, -0.25, 0.25, 1.0, 60.0, 3600.0];
/// Jumps of a strobe.
const JUMPS: u32 = 4;

/// N18: wall clocks of nodes or of Postgres are shifted, drift, or jump.
///
/// Expected: nothing of ownership or leases follows from a wall clock, so no slot moves. When tasks are due is by the clock
/// of Postgres.
struct Shift {
    name: &'static str,
    what: What,
}

impl Shift {
    fn of(name: &'static str, what: What) -> Shift {
        Shift { name, what }
    }
}

#[async_trait]
impl Fault for Shift {
    fn id(&self) -> &'static str {
        "N18"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, options: &mut Options) {
        options.clocks = true;
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let rounds = if self.what == What::Strobe { JUMPS } else { 1 };
        let hit = match self.what {
            What::Postgres => Vec::new(),
            What::Nodes | What::Drift | What::Strobe => {
                let share = one_of(rng, &[Share::One, Share::Minority, Share::All]);
                share.draw(rng, lab.nodes().len())
            }
        };
        let mut begun = about(lab, &hit, "").await;
        for _ in 0..rounds {
            let mut words = Vec::new();
            let mut offset = |words: &mut Vec<String>| {
                let offset = match self.what {
                    What::Nodes | What::Strobe => Offset {
                        seconds: one_of(rng, &WRONG),
                        ..Offset::default()
                    },
                    What::Drift => Offset {
                        speed: one_of(rng, &[0.95, 1.05]),
                        ..Offset::default()
                    },
                    What::Postgres => Offset {
                        seconds: one_of(rng, &[-60.0, 60.0]) + rng.random_range(-1.0..1.0),
                        ..Offset::default()
                    },
                };
                words.push(format!("{:+} s x{}", offset.seconds, offset.speed));
                offset
            };
            if self.what == What::Postgres {
                lab.database().shift_clock(offset(&mut words))?;
            }
            for node in &hit {
                lab.nodes()[*node].shift_clock(offset(&mut words))?;
            }
            begun.detail = words.join(", ");
            tokio::time::sleep(SEEN_WITHIN + Duration::from_millis(200)).await;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if self.what == What::Postgres {
            lab.database().shift_clock(Offset::default())?;
        }
        for host in lab.nodes() {
            host.shift_clock(Offset::default())?;
        }
        tokio::time::sleep(SEEN_WITHIN).await;
        Ok(())
    }
}
