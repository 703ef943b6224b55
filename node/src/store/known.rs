//! What a reader of the unfenced nodes knows of them, so that its looks walk none of the dead.

use ringmesh_ring::Incarnation;

use super::Peer;

/// Which unfenced nodes are to be read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// All: beside an old snapshot this walks each life that has begun under it.
    All,
    /// Those of these, and those that started after a number: this does not.
    Beside {
        /// Their incarnations.
        nodes: Vec<i64>,
        /// An incarnation.
        above: i64,
    },
}

impl Ask {
    /// One node.
    pub fn only(node: Incarnation) -> Ask {
        Ask::Beside {
            nodes: vec![node.0],
            above: i64::MAX,
        }
    }
}

/// What a reader of the unfenced nodes has seen of them: its next look is for these and for newcomers.
///
/// A number is drawn in the statement that commits it, so a newcomer's is above all that were seen, but for as many as register at the
/// same moment. Should one commit later still, it is seen by the next look at all; until then this reader neither watches it nor
/// gives it slots.
#[derive(Debug, Default)]
pub struct Known {
    nodes: Vec<i64>,
    looks: u32,
}

impl Known {
    /// One look of so many is at all nodes.
    const ALL_EVERY: u32 = 60;
    /// So far below the highest number that was seen newcomers are looked for.
    const AT_ONCE: i64 = 64;

    /// What to read next.
    pub fn ask(&mut self) -> Ask {
        let all = self.looks.is_multiple_of(Self::ALL_EVERY);
        self.looks = self.looks.wrapping_add(1);
        match self.nodes.iter().max() {
            Some(highest) if !all => {
                let above = highest.saturating_sub(Self::AT_ONCE);
                let old = self.nodes.iter().copied().filter(|node| *node <= above);
                Ask::Beside {
                    nodes: old.collect(),
                    above,
                }
            }
            _ => Ask::All,
        }
    }

    /// Takes note of what was read.
    pub fn learn(&mut self, read: &[Peer]) {
        self.nodes = read.iter().map(|peer| peer.incarnation.0).collect();
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing_owner::Database;
    use super::super::{FenceKind, Me};
    use super::*;
    use std::time::Duration;

    fn peers(incarnations: &[i64]) -> Vec<Peer> {
        let peer = |incarnation: &i64| Peer {
            incarnation: Incarnation(*incarnation),
            boot: 0,
            name: String::new(),
            http: String::new(),
            gossip: String::new(),
            weight: 1,
            renewals: 0,
            lease_ms: 0,
        };
        incarnations.iter().map(peer).collect()
    }

    #[test]
    fn the_known_and_newcomers_are_asked_for_and_now_and_then_all() {
        let mut known = Known::default();
        assert_eq!(known.ask(), Ask::All);
        // Nothing was learned: as at first.
        assert_eq!(known.ask(), Ask::All);
        known.learn(&peers(&[3, 900, 950]));
        let beside = Ask::Beside {
            nodes: vec![3],
            above: 950 - Known::AT_ONCE,
        };
        for _ in 2..Known::ALL_EVERY {
            assert_eq!(known.ask(), beside);
        }
        assert_eq!(known.ask(), Ask::All);
        assert_eq!(known.ask(), beside);
    }

    #[tokio::test]
    async fn a_look_beside_finds_what_a_look_at_all_finds() {
        let db = Database::new().await;
        let ttl = Duration::from_secs(60);
        let fence = async |node: Me| {
            let by = node.incarnation;
            db.store
                .fence(node.incarnation, None, FenceKind::Left, by)
                .await
                .unwrap();
        };
        let mut known = Known::default();
        let mut living = Vec::new();
        for round in 0..150 {
            // One lives on now and then, among many that start and die.
            let node = db.node(&format!("n{round}"), ttl).await;
            match round % 40 {
                0 => living.push(node),
                39 => fence(living.remove(0)).await,
                _ => fence(node).await,
            }
            let all = db.store.unfenced_nodes(&Ask::All).await.unwrap();
            let read = db.store.unfenced_nodes(&known.ask()).await.unwrap();
            // Times differ from look to look.
            let told = |peers: &[Peer]| -> Vec<(Incarnation, String, i64)> {
                let of = |peer: &Peer| (peer.incarnation, peer.name.clone(), peer.renewals);
                peers.iter().map(of).collect()
            };
            assert_eq!(told(&read), told(&all), "round {round}");
            known.learn(&read);
        }
        let only = db
            .store
            .unfenced_nodes(&Ask::only(living[0].incarnation))
            .await
            .unwrap();
        assert_eq!(only.len(), 1);
    }
}
