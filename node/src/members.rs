//! The ring's members: who counts as one, and when a newcomer begins to count.
//!
//! A member is a node that gossip calls live, that serves and does not drain, and whose incarnation Postgres knows as
//! unfenced. Whoever stops being one leaves the ring at once. Newcomers are collected for a fixed window, which later ones
//! do not extend: five nodes that start together, or a rolling deploy, move each key once or twice and not five times.
//! The first members of an empty ring do not wait.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use ringmesh_ring::{Incarnation, Member, member};
use tokio::time::Instant;

use crate::gossip::Peer;

/// The members, and the window that is open for newcomers.
#[derive(Debug)]
pub struct Members {
    join_window: Duration,
    ring: BTreeMap<Incarnation, Member>,
    window: Option<Instant>,
    /// What gossip showed last, and since when it shows that.
    seen: BTreeSet<Incarnation>,
    still_since: Option<Instant>,
}

impl Members {
    /// No members yet.
    pub fn new(join_window: Duration) -> Self {
        Members {
            join_window,
            ring: BTreeMap::new(),
            window: None,
            seen: BTreeSet::new(),
            still_since: None,
        }
    }

    /// Takes the present views of gossip and Postgres; `leaving` never counts. Answers whether the members changed.
    pub fn update(
        &mut self,
        seen: &[Peer],
        unfenced: &BTreeSet<Incarnation>,
        leaving: Option<Incarnation>,
        now: Instant,
    ) -> bool {
        let live: BTreeSet<_> = seen.iter().map(|peer| peer.incarnation).collect();
        if self.still_since.is_none() || live != self.seen {
            self.seen = live;
            self.still_since = Some(now);
        }
        let eligible: BTreeMap<Incarnation, Member> = member::by_name(
            seen.iter()
                .filter(|peer| peer.serving && !peer.draining)
                .filter(|peer| unfenced.contains(&peer.incarnation) && leaving != Some(peer.incarnation))
                .map(|peer| Member::new(peer.name.clone(), peer.incarnation, peer.weight)),
        )
        .into_iter()
        .map(|member| (member.incarnation, member))
        .collect();

        let before = self.ring.len();
        self.ring
            .retain(|incarnation, member| eligible.get(incarnation) == Some(member));
        let mut changed = self.ring.len() != before;
        if eligible.len() == self.ring.len() {
            self.window = None;
            return changed;
        }
        let opens = now
            + if before == 0 {
                Duration::ZERO
            } else {
                self.join_window
            };
        if *self.window.get_or_insert(opens) <= now {
            self.window = None;
            self.ring = eligible;
            changed = true;
        }
        changed
    }

    /// When the window for newcomers ends, if one is open.
    pub fn window(&self) -> Option<Instant> {
        self.window
    }

    /// Whether gossip's view has not changed for this long.
    pub fn still_for(&self, time: Duration) -> bool {
        self.still_since.is_some_and(|since| since.elapsed() >= time)
    }

    /// The members, by incarnation.
    pub fn all(&self) -> Vec<Member> {
        self.ring.values().cloned().collect()
    }

    /// Their incarnations.
    pub fn incarnations(&self) -> BTreeSet<Incarnation> {
        self.ring.keys().copied().collect()
    }
}

impl fmt::Display for Members {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, member) in self.ring.values().enumerate() {
            let space = if index == 0 { "" } else { " " };
            write!(f, "{space}{}:{}", member.name, member.incarnation)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(name: &str, incarnation: i64, serving: bool) -> Peer {
        Peer {
            name: name.to_owned(),
            incarnation: Incarnation(incarnation),
            weight: 1,
            http: String::new(),
            gossip: ([127, 0, 0, 1], 1).into(),
            serving,
            draining: false,
        }
    }

    fn unfenced(numbers: &[i64]) -> BTreeSet<Incarnation> {
        numbers.iter().map(|n| Incarnation(*n)).collect()
    }

    const WINDOW: Duration = Duration::from_secs(1);

    #[test]
    fn newcomers_are_collected_and_deaths_act_at_once() {
        let start = Instant::now();
        let all = unfenced(&[1, 2, 3, 4]);
        let mut members = Members::new(WINDOW);
        assert!(
            members.update(&[peer("a", 1, true)], &all, None, start),
            "an empty ring does not wait"
        );

        let second = [peer("a", 1, true), peer("b", 2, true)];
        assert!(!members.update(&second, &all, None, start));
        let third = [peer("a", 1, true), peer("b", 2, true), peer("c", 3, true)];
        assert!(
            !members.update(&third, &all, None, start + WINDOW / 2),
            "a later join does not extend the window"
        );
        assert_eq!(members.window(), Some(start + WINDOW));
        assert!(members.update(&third, &all, None, start + WINDOW));
        assert_eq!(members.to_string(), "a:N1 b:N2 c:N3");

        assert!(
            members.update(&third[..2], &all, None, start + WINDOW),
            "gossip lost one"
        );
        assert!(
            members.update(&third[..2], &unfenced(&[1, 3]), None, start + WINDOW),
            "another is fenced"
        );
        assert_eq!(members.to_string(), "a:N1");
    }

    #[test]
    fn whoever_gossip_tells_of_and_postgres_does_not_know_is_no_member() {
        let start = Instant::now();
        let mut members = Members::new(Duration::ZERO);
        let strangers = [0, -1, 2, i64::MAX, i64::MIN].map(|number| peer("a", number, true));
        for stranger in strangers {
            members.update(&[stranger], &unfenced(&[1]), None, start);
            assert_eq!(members.to_string(), "");
        }
        // A stranger under the name of a member does not take its place.
        members.update(
            &[peer("a", 1, true), peer("a", 2, true)],
            &unfenced(&[1]),
            None,
            start,
        );
        assert_eq!(members.to_string(), "a:N1");
    }

    #[test]
    fn only_serving_members_count_and_a_name_counts_once() {
        let start = Instant::now();
        let all = unfenced(&[1, 2, 3]);
        let mut members = Members::new(WINDOW);
        members.update(
            &[peer("a", 1, true), peer("a", 3, true), peer("b", 2, false)],
            &all,
            None,
            start,
        );
        assert_eq!(members.to_string(), "a:N3");
        members.update(&[peer("a", 3, true)], &all, Some(Incarnation(3)), start);
        assert_eq!(
            members.to_string(),
            "",
            "a node that leaves does not count itself"
        );
    }
}
