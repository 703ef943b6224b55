//! Links that are cut, slow or silent.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rand::rngs::StdRng;
use rand::seq::SliceRandom as _;
use rand::{RngExt as _, SeedableRng as _};
use tokio::net::UdpSocket;
use tokio_util::sync::DropGuard;

use super::again;
use super::process::Share;
use super::{Begun, Fault, about, one_of, some};
use crate::lab::{Cut, Hold, Lab, Options, Weather};

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(NoDatabase::of("no-database-drop", Cut::Drop)),
        Box::new(NoDatabase::of("no-database-reject", Cut::Reject)),
        Box::<NoDatabase>::default(),
        Box::new(Links::of("N10", "no-gossip-one", Shape::OneFromAll)),
        Box::new(Links::of("N10", "no-gossip-all", Shape::AllFromAll)),
        Box::new(Links::of("N11", "isolate-one", Shape::Isolated)),
        Box::new(Links::of("N11", "halves", Shape::Halves)),
        Box::new(Links::of("N11", "majority-ring", Shape::MajorityRing)),
        Box::new(Links::of("N11", "one-way", Shape::OneWay)),
        Box::new(Links::of("N11", "one-pair", Shape::OnePair)),
        Box::new(BlackHole),
        Box::new(LostCommits),
        Box::new(SlowDatabase),
        Box::new(CutRequests),
        Box::new(BadWeather),
        Box::new(SmallPackets),
        Box::<HostileDatagrams>::default(),
        Box::<SwizzleClog>::default(),
    ]
}

/// N9: a node cannot reach Postgres, while gossip and its HTTP are fine.
///
/// Expected: the node loses its slots within its lease and a second more; what it still writes afterwards is refused; healed,
/// it comes back by itself.
struct NoDatabase {
    name: &'static str,
    /// `None`: the proxy holds what passes, so that late writes do arrive.
    cut: Option<Cut>,
}

impl NoDatabase {
    fn of(name: &'static str, cut: Cut) -> NoDatabase {
        let cut = Some(cut);
        NoDatabase { name, cut }
    }
}

impl Default for NoDatabase {
    fn default() -> NoDatabase {
        let (name, cut) = ("no-database-late", None);
        NoDatabase { name, cut }
    }
}

#[async_trait]
impl Fault for NoDatabase {
    fn id(&self) -> &'static str {
        "N9"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let hit = Share::Minority.draw(rng, lab.nodes().len());
        let begun = about(lab, &hit, "").await;
        for node in hit {
            match self.cut {
                Some(cut) => lab.cut_database(node, cut).await?,
                None => lab.nodes()[node].proxy().set(|rules| rules.hold = Hold::Both),
            }
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for node in 0..lab.nodes().len() {
            match self.cut {
                Some(_) => lab.heal_database(node).await?,
                None => lab.nodes()[node].proxy().set(|rules| rules.hold = Hold::Nothing),
            }
        }
        Ok(())
    }
}

/// Which links between nodes are cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shape {
    /// One node from all others.
    OneFromAll,
    /// Every node from every other.
    AllFromAll,
    /// One node from all others and from Postgres.
    Isolated,
    /// A minority from the majority.
    Halves,
    /// Each node reaches only its two neighbours in a ring.
    MajorityRing,
    /// What one node sends to the others vanishes; what they send arrives.
    OneWay,
    /// Two nodes from each other.
    OnePair,
}

/// N10, N11: links between nodes are cut, for gossip as for HTTP. Postgres is reached by all but isolated ones.
///
/// Expected: a node that reaches Postgres keeps its slots, whoever else it does not reach; an isolated one loses them as in
/// N9. Where views differ, no slot has two owners, and views agree again 5 s after the heal.
struct Links {
    id: &'static str,
    name: &'static str,
    shape: Shape,
}

impl Links {
    fn of(id: &'static str, name: &'static str, shape: Shape) -> Links {
        Links { id, name, shape }
    }
}

#[async_trait]
impl Fault for Links {
    fn id(&self) -> &'static str {
        self.id
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let count = lab.nodes().len();
        let all: Vec<usize> = (0..count).collect();
        let (hit, cut): (Vec<usize>, Vec<(usize, usize)>) = match self.shape {
            Shape::OneFromAll | Shape::Isolated => {
                let one = rng.random_range(0..count);
                (vec![one], both_ways(&[one], &all))
            }
            Shape::AllFromAll => (all.clone(), both_ways(&all, &all)),
            Shape::Halves => {
                let few = Share::Minority.draw(rng, count);
                let others: Vec<usize> = all.iter().copied().filter(|node| !few.contains(node)).collect();
                let cut = both_ways(&few, &others);
                (few, cut)
            }
            Shape::MajorityRing => {
                let mut ring = all.clone();
                ring.shuffle(rng);
                let far = |(a, b): &(usize, usize)| {
                    let place = |node| ring.iter().position(|other| *other == node).unwrap_or(0);
                    let apart = place(*a).abs_diff(place(*b));
                    apart != 1 && apart != count - 1
                };
                let cut = both_ways(&all, &all).into_iter().filter(far).collect();
                (Vec::new(), cut)
            }
            Shape::OneWay => {
                let one = rng.random_range(0..count);
                let others = all.iter().filter(|other| **other != one);
                (vec![one], others.map(|other| (one, *other)).collect())
            }
            Shape::OnePair => {
                let pair = some(rng, count, 2);
                let cut = both_ways(&pair, &pair);
                (pair, cut)
            }
        };
        let begun = about(lab, &hit, format!("{} links, one way each", cut.len())).await;
        for (from, to) in cut {
            lab.cut_one_way(from, to).await?;
        }
        if self.shape == Shape::Isolated {
            lab.cut_database(hit[0], Cut::Drop).await?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        heal_links(lab).await?;
        if self.shape == Shape::Isolated {
            for node in 0..lab.nodes().len() {
                lab.heal_database(node).await?;
            }
        }
        Ok(())
    }
}

/// All links between nodes of one group and nodes of another, in both directions.
fn both_ways(these: &[usize], those: &[usize]) -> Vec<(usize, usize)> {
    let mut links = Vec::new();
    for a in these {
        for b in those.iter().filter(|b| *b != a) {
            links.extend([(*a, *b), (*b, *a)]);
        }
    }
    links.sort_unstable();
    links.dedup();
    links
}

async fn heal_links(lab: &mut Lab) -> Result<()> {
    let count = lab.nodes().len();
    for a in 0..count {
        for b in a + 1..count {
            lab.heal(a, b).await?;
        }
    }
    Ok(())
}

/// N13: the connections to Postgres that there are stand still without a reset; new ones pass. Healing lets the old ones go
/// on, so that what was held arrives late.
///
/// Expected: the node gives up on them in time and goes on over new ones, or loses its slots by its lease and comes back.
struct BlackHole;

#[async_trait]
impl Fault for BlackHole {
    fn id(&self) -> &'static str {
        "N13"
    }

    fn name(&self) -> &'static str {
        "black-hole"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let share = one_of(rng, &[Share::One, Share::Minority, Share::All]);
        let hit = share.draw(rng, lab.nodes().len());
        let begun = about(lab, &hit, "").await;
        for node in hit {
            lab.nodes()[node].proxy().black_hole_established();
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for host in lab.nodes() {
            host.proxy().heal();
        }
        Ok(())
    }
}

/// N29: commits are made, and the connection breaks instead of the reply: of 1 %, of 10 %, of all.
///
/// Expected: a submit is answered as unknown, and its repetition under its idempotency key names the one task; a finish is
/// read back; no effect is doubled.
struct LostCommits;

#[async_trait]
impl Fault for LostCommits {
    fn id(&self) -> &'static str {
        "N29"
    }

    fn name(&self) -> &'static str {
        "lost-commits"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let part = one_of(rng, &[0.01, 0.1, 1.0]);
        for host in lab.nodes() {
            host.proxy().set(|rules| rules.lose_commits = part);
        }
        Ok(about(lab, &[], format!("of {part} of all commits")).await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for host in lab.nodes() {
            host.proxy().set(|rules| rules.lose_commits = 0.0);
        }
        Ok(())
    }
}

/// N12: what some node, or every one, asks Postgres and is answered is late, by 10 to 100 ms each way.
///
/// Expected: less is done, and nothing else: leases are renewed in time, no slot moves.
struct SlowDatabase;

#[async_trait]
impl Fault for SlowDatabase {
    fn id(&self) -> &'static str {
        "N12"
    }

    fn name(&self) -> &'static str {
        "slow-database"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let hit = one_of(rng, &[Share::One, Share::All]).draw(rng, lab.nodes().len());
        let begun = about(lab, &hit, "").await;
        let (least, more) = (Duration::from_millis(10), Duration::from_millis(90));
        for node in hit {
            lab.nodes()[node]
                .proxy()
                .set(|rules| rules.delay = Some((least, more)));
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for host in lab.nodes() {
            host.proxy().set(|rules| rules.delay = None);
        }
        Ok(())
    }
}

/// N14: connections to Postgres break at some of the requests, of whatever kind: before Postgres gets them, or instead of the reply.
///
/// Expected: as of sessions that are ended. What was not begun is done again; a commit that was under way is read back, and no
/// effect is lost or doubled; a node whose lease session breaks opens another one and keeps its slots.
struct CutRequests;

#[async_trait]
impl Fault for CutRequests {
    fn id(&self) -> &'static str {
        "N14"
    }

    fn name(&self) -> &'static str {
        "cut-requests"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let part = one_of(rng, &[0.001, 0.01, 0.03]);
        for host in lab.nodes() {
            host.proxy()
                .set(|rules| (rules.cut_before, rules.cut_after) = (part, part));
        }
        Ok(about(lab, &[], format!("{part} before and {part} after it")).await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for host in lab.nodes() {
            host.proxy()
                .set(|rules| (rules.cut_before, rules.cut_after) = (0.0, 0.0));
        }
        Ok(())
    }
}

/// N12: what nodes send each other is late, lost, doubled, out of order or corrupt.
///
/// Expected: no datagram counts that is not whole; nodes that reach Postgres keep their slots; hints that are lost cost time
/// only.
struct BadWeather;

#[async_trait]
impl Fault for BadWeather {
    fn id(&self) -> &'static str {
        "N12"
    }

    fn name(&self) -> &'static str {
        "bad-weather"
    }

    fn prepare(&self, options: &mut Options) {
        options.relayed = true;
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let loss = one_of(rng, &[0.05, 0.2, 0.5]);
        let weather = Weather {
            delay: Duration::from_millis(50),
            jitter: Duration::from_millis(100),
            loss,
            twice: 0.1,
            reorder: 0.25,
            corrupt: 0.01,
            ..Weather::default()
        };
        set_weather(lab, weather)?;
        Ok(about(lab, &[], format!("{loss} lost")).await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        set_weather(lab, Weather::default())
    }
}

fn set_weather(lab: &Lab, weather: Weather) -> Result<()> {
    let count = lab.nodes().len();
    for (from, to) in (0..count).flat_map(|from| (0..count).map(move |to| (from, to))) {
        lab.weather(from, to, weather)?;
    }
    Ok(())
}

/// N12: links take packets of 576 bytes at most, and fragments are dropped.
///
/// Expected: gossip whose datagrams are longer is cut off, which costs nobody its slots; HTTP and Postgres go on.
struct SmallPackets;

#[async_trait]
impl Fault for SmallPackets {
    fn id(&self) -> &'static str {
        "N12"
    }

    fn name(&self) -> &'static str {
        "small-packets"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let hit = Share::Minority.draw(rng, lab.nodes().len());
        let begun = about(lab, &hit, "").await;
        for node in hit {
            lab.limit_packets(node, 576).await?;
        }
        for node in 0..lab.nodes().len() {
            lab.drop_fragments(node).await?;
        }
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        for node in 0..lab.nodes().len() {
            lab.limit_packets(node, 1500).await?;
            lab.pass_fragments(node).await?;
        }
        Ok(())
    }
}

/// N17: datagrams are cut, changed, and recorded ones sent again; and garbage arrives at every gossip port.
///
/// Expected: none of it counts, each is dropped with its reason counted, nobody loses a slot or ends.
#[derive(Default)]
struct HostileDatagrams {
    garbage: Option<DropGuard>,
}

#[async_trait]
impl Fault for HostileDatagrams {
    fn id(&self) -> &'static str {
        "N17"
    }

    fn name(&self) -> &'static str {
        "hostile-datagrams"
    }

    fn prepare(&self, options: &mut Options) {
        options.relayed = true;
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let weather = Weather {
            truncate: 0.05,
            corrupt: 0.1,
            replay: 0.5,
            ..Weather::default()
        };
        set_weather(lab, weather)?;
        let socket = Arc::new(UdpSocket::bind("0.0.0.0:0").await?);
        let ports = lab.nodes().iter().map(|host| host.gossip());
        let ports: Vec<SocketAddr> = ports.collect();
        let dice = Arc::new(Mutex::new(StdRng::seed_from_u64(rng.random())));
        self.garbage = Some(again(Duration::from_millis(5), move || {
            let (socket, ports, dice) = (socket.clone(), ports.clone(), dice.clone());
            async move {
                for port in ports {
                    let bytes = garbage(&mut dice.lock().unwrap_or_else(PoisonError::into_inner));
                    // A node may be dead by another fault.
                    let _ = socket.send_to(&bytes, port).await;
                }
            }
        }));
        Ok(about(lab, &[], "").await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        self.garbage = None;
        set_weather(lab, Weather::default())
    }
}

/// Bytes that mean nothing.
fn garbage(rng: &mut StdRng) -> Vec<u8> {
    let length = one_of(rng, &[0, 1, 16, 64, 200, 1400]);
    (0..length).map(|_| rng.random()).collect()
}

/// N15: swizzle-clog: nodes lose all their links one after the other, and get them back in another order.
///
/// Expected: as N11, with every mixture of who sees whom on the way; at the end views agree.
#[derive(Default)]
struct SwizzleClog {
    back: Vec<usize>,
}

/// Between two steps of it.
const STEP: Duration = Duration::from_millis(700);

#[async_trait]
impl Fault for SwizzleClog {
    fn id(&self) -> &'static str {
        "N15"
    }

    fn name(&self) -> &'static str {
        "swizzle-clog"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let count = lab.nodes().len();
        let hits = rng.random_range(1..=count);
        let mut hit = some(rng, count, hits);
        let begun = about(lab, &hit, "").await;
        hit.shuffle(rng);
        for node in &hit {
            for other in (0..count).filter(|other| other != node) {
                lab.cut(*node, other).await?;
            }
            lab.cut_database(*node, Cut::Drop).await?;
            tokio::time::sleep(STEP).await;
        }
        hit.shuffle(rng);
        self.back = hit;
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let count = lab.nodes().len();
        let back = std::mem::take(&mut self.back);
        for (number, node) in back.iter().enumerate() {
            lab.heal_database(*node).await?;
            // A link to one that is still clogged stays cut.
            let still = &back[number + 1..];
            for other in (0..count).filter(|other| other != node && !still.contains(other)) {
                lab.heal(*node, other).await?;
            }
            tokio::time::sleep(STEP).await;
        }
        // Also what an interrupted beginning has left.
        heal_links(lab).await?;
        for node in 0..count {
            lab.heal_database(node).await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_between_groups_go_both_ways_and_none_to_itself() {
        assert_eq!(both_ways(&[0], &[0, 1, 2]), [(0, 1), (0, 2), (1, 0), (2, 0)]);
        assert_eq!(both_ways(&[0, 1], &[0, 1]), [(0, 1), (1, 0)]);
    }
}
