//! Time: when an owner may rely on its lease, and when a peer may call it expired.
//!
//! # What is modelled
//!
//! One node, the *owner*, renews its lease once a tick (`renew.sql`), and runs something for as long as it trusts it. Another, the
//! *observer*, reads the owner's counter once a tick (`unfenced_nodes.sql`) and fences it when it has expired (`lock_node.sql` with
//! the counter that it saw, `set_fenced.sql`). What they decide by is the real code: [`trusted_until`] and [`PeerWatch`].
//!
//! Three clocks stand apart: the owner's, the observer's and Postgres'. Every request and every reply may take any time, so Postgres
//! may be silent for any time, to one or to both; either node may stand still at any step, for ever too, which is how it dies.
//!
//! # What is left out, and why
//!
//! - Clocks that run at other speeds: the margin is for that, and it is a matter of proportions, not of order.
//! - What runs under the lease, and who takes the slots: [`mesh`](crate::mesh), where a fence may fall at any time.
//! - Notices and replacements: they fence without waiting for a TTL, and there the fence alone protects.

use std::time::Duration;

use ringmesh_ring::lease::{Terms, trusted_until};
use ringmesh_ring::{Incarnation, PeerWatch};
use stateright::{Model, Property};

/// The rules, or one of them broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The rules.
    Sound,
    /// Trust is counted from the reply to a renewal, not from its request.
    TrustFromReply,
    /// The observer compares `lease_until` with its own clock.
    ExpiryByNodeClock,
    /// Postgres compares `lease_until` with its own clock.
    ExpiryByDatabaseClock,
    /// The fence does not compare the counter.
    FenceWithoutCounter,
}

/// The model.
#[derive(Debug, Clone, Copy)]
pub struct Lease {
    /// The rules, or broken ones.
    pub variant: Variant,
    /// How many ticks pass.
    pub ticks: u8,
    /// How many renewals there are.
    pub renewals: u8,
}

/// A tick is a second. The smallest terms that are valid.
const TERMS: Terms = Terms {
    ttl: Duration::from_secs(TTL as u64),
    renew_every: Duration::from_secs(1),
    margin: Duration::from_secs(1),
};
const TTL: u8 = 3;
/// Between two reads of the observer.
const MAX_GAP: Duration = Duration::from_secs(1);
const OWNER: Incarnation = Incarnation(1);

/// How far the three clocks are ahead of the ticks.
const OWNER_AHEAD: u8 = 5;
const OBSERVER_AHEAD: u8 = 2;
const POSTGRES_AHEAD: u8 = 0;

/// A statement with its answer, on its way there and back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Trip<A> {
    Home,
    /// Sent at this tick.
    There {
        sent: u8,
    },
    /// Executed; the answer is on its way.
    Back {
        sent: u8,
        answer: A,
    },
}

/// What the observer's read found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Found {
    renewals: u8,
    /// By Postgres' clock.
    lease_until: u8,
    /// Whether Postgres had answered for a TTL. Known to nobody.
    answered: bool,
}

/// Both nodes and the owner's row at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Ticks that have passed.
    now: u8,
    renewals: u8,
    /// By Postgres' clock.
    lease_until: u8,
    fenced: bool,

    /// The owner's life goes on.
    alive: bool,
    renewal: Trip<bool>,
    /// The tick after the last one in which a renewal was sent.
    next_renewal: u8,
    /// By the owner's clock.
    trusted_until: Duration,
    /// Something runs: always, while it may.
    runs: bool,

    read: Trip<Found>,
    /// The tick after the last one in which a read was sent.
    next_read: u8,
    watch: PeerWatch,
    /// The counter at which the owner is to be fenced.
    expired: Option<u8>,

    /// The tick of the last renewal. Known to nobody.
    renewed: u8,
    /// The ticks in which Postgres executed anything, as bits. Known to nobody.
    answered: u32,
    breaches: Breaches,
}

/// What must not happen, and did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Breaches {
    fenced_early: bool,
    blamed_for_silence: bool,
}

/// One step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// Time passes.
    Tick,
    /// The owner sends a renewal.
    SendRenewal,
    /// `renew.sql`.
    ExecuteRenewal,
    /// Its answer arrives, with a row or without.
    ReceiveRenewal,
    /// The answer, or the request, is lost.
    LoseRenewal,
    /// The trust window is over, and what runs is cancelled.
    Cancel,
    /// The observer sends a read.
    SendRead,
    /// `unfenced_nodes.sql`.
    ExecuteRead,
    /// Its answer arrives, and the observer decides.
    ReceiveRead,
    /// `lock_node.sql`, `set_fenced.sql`.
    Fence,
}

impl State {
    fn owners_clock(&self) -> Duration {
        Duration::from_secs((self.now + OWNER_AHEAD).into())
    }

    fn trusts(&self) -> bool {
        self.alive && self.owners_clock() < self.trusted_until
    }

    fn lease_over(&self) -> bool {
        self.lease_until <= self.now + POSTGRES_AHEAD
    }

    /// Time passes. What is over is forgotten as far as it makes no difference any more, so that states meet.
    fn tick(&mut self) {
        self.now += 1;
        self.renewed = self.renewed.max(self.now.saturating_sub(TTL));
        self.answered &= !0 << self.now.saturating_sub(TTL);
        if self.lease_over() {
            self.lease_until = 0;
        }
        if !self.trusts() {
            self.trusted_until = Duration::ZERO;
        }
        self.next_renewal = self.next_renewal.max(self.now);
        self.next_read = self.next_read.max(self.now);
        if let Trip::There { sent } | Trip::Back { sent, .. } = &mut self.renewal {
            *sent = (*sent).max(self.now.saturating_sub(TTL));
        }
    }

    fn execute(&mut self) {
        self.answered |= 1 << self.now;
    }

    /// Whether Postgres executed something in each tick of the last TTL.
    fn answered_for_a_ttl(&self) -> bool {
        self.now >= TTL && (self.now - TTL..=self.now).all(|tick| self.answered & 1 << tick != 0)
    }

    /// The owner is called expired.
    fn call_expired(&mut self, renewals: u8, answered: bool) {
        self.expired = Some(renewals);
        self.breaches.blamed_for_silence |= !answered;
    }
}

impl Lease {
    fn receive_read(&self, state: &mut State) {
        let Trip::Back { sent, answer } = state.read else {
            return;
        };
        state.read = Trip::Home;
        let clock = |tick: u8| Duration::from_secs((tick + OBSERVER_AHEAD).into());
        match self.variant {
            Variant::Sound | Variant::TrustFromReply | Variant::FenceWithoutCounter => {
                let peers = [(OWNER, answer.renewals.into())];
                let expired = state.watch.on_read(clock(sent), clock(state.now), &peers);
                if !expired.is_empty() {
                    state.call_expired(answer.renewals, answer.answered);
                }
            }
            Variant::ExpiryByNodeClock => {
                if answer.lease_until < state.now + OBSERVER_AHEAD {
                    state.call_expired(answer.renewals, answer.answered);
                }
            }
            // Asks Postgres at once.
            Variant::ExpiryByDatabaseClock => state.expired = Some(answer.renewals),
        }
    }

    fn fence(&self, state: &mut State) {
        let Some(renewals) = state.expired.take() else {
            return;
        };
        state.execute();
        let passes = match self.variant {
            Variant::FenceWithoutCounter => true,
            Variant::ExpiryByDatabaseClock => state.lease_over(),
            _ => renewals == state.renewals,
        };
        if !passes {
            return;
        }
        if self.variant == Variant::ExpiryByDatabaseClock {
            let answered = state.answered_for_a_ttl();
            state.call_expired(renewals, answered);
            state.expired = None;
        }
        state.fenced = true;
        state.breaches.fenced_early |= state.now < state.renewed + TTL;
    }
}

impl Model for Lease {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            now: 0,
            renewals: 0,
            lease_until: TTL + POSTGRES_AHEAD,
            fenced: false,
            alive: true,
            renewal: Trip::Home,
            next_renewal: 0,
            // It registered in this tick.
            trusted_until: trusted_until(Duration::from_secs(OWNER_AHEAD.into()), &TERMS),
            runs: true,
            read: Trip::Home,
            next_read: 0,
            watch: PeerWatch::new(TERMS.ttl, MAX_GAP),
            expired: None,
            renewed: 0,
            answered: 1,
            breaches: Breaches::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.now < self.ticks {
            actions.push(Action::Tick);
        }
        if state.alive {
            match state.renewal {
                Trip::Home if state.next_renewal <= state.now && state.renewals < self.renewals => {
                    actions.push(Action::SendRenewal)
                }
                Trip::Home => {}
                Trip::There { .. } => actions.push(Action::LoseRenewal),
                Trip::Back { .. } => actions.extend([Action::ReceiveRenewal, Action::LoseRenewal]),
            }
            if state.runs && !state.trusts() {
                actions.push(Action::Cancel);
            }
        }
        if matches!(state.renewal, Trip::There { .. }) {
            actions.push(Action::ExecuteRenewal);
        }
        match state.read {
            Trip::Home if state.next_read <= state.now => actions.push(Action::SendRead),
            Trip::Home => {}
            Trip::There { .. } if !state.fenced => actions.push(Action::ExecuteRead),
            Trip::There { .. } => {}
            Trip::Back { .. } => actions.push(Action::ReceiveRead),
        }
        if state.expired.is_some() && !state.fenced {
            actions.push(Action::Fence);
        }
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Tick => next.tick(),
            Action::SendRenewal => {
                next.renewal = Trip::There { sent: state.now };
                next.next_renewal = state.now + 1;
            }
            Action::ExecuteRenewal => {
                let Trip::There { sent } = state.renewal else {
                    return None;
                };
                next.execute();
                let answer = !state.fenced;
                next.renewal = Trip::Back { sent, answer };
                if answer {
                    next.renewals += 1;
                    next.renewed = state.now;
                    next.lease_until = state.now + POSTGRES_AHEAD + TTL;
                }
            }
            Action::ReceiveRenewal => {
                let Trip::Back { sent, answer } = state.renewal else {
                    return None;
                };
                next.renewal = Trip::Home;
                if !answer {
                    // Fenced: the life is over, and what ran is cancelled.
                    next.alive = false;
                    next.runs = false;
                    return Some(next);
                }
                let anchor = if self.variant == Variant::TrustFromReply {
                    state.now
                } else {
                    sent
                };
                let anchor = Duration::from_secs((anchor + OWNER_AHEAD).into());
                next.trusted_until = state.trusted_until.max(trusted_until(anchor, &TERMS));
                next.runs |= next.trusts();
            }
            Action::LoseRenewal => next.renewal = Trip::Home,
            Action::Cancel => next.runs = false,
            Action::SendRead => {
                next.read = Trip::There { sent: state.now };
                next.next_read = state.now + 1;
            }
            Action::ExecuteRead => {
                let Trip::There { sent } = state.read else {
                    return None;
                };
                next.execute();
                let answer = Found {
                    renewals: state.renewals,
                    lease_until: state.lease_until,
                    answered: next.answered_for_a_ttl(),
                };
                next.read = Trip::Back { sent, answer };
            }
            Action::ReceiveRead => self.receive_read(&mut next),
            Action::Fence => self.fence(&mut next),
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(NOT_EARLY, |_, state| !state.breaches.fenced_early),
            Property::<Self>::always(NO_BLAME, |_, state| !state.breaches.blamed_for_silence),
            Property::<Self>::always(TRUST_ENDS_FIRST, |_, state| !(state.fenced && state.trusts())),
            Property::<Self>::sometimes("S3 a lease ends while something runs under it", |_, state| {
                state.runs && state.lease_over()
            }),
            Property::<Self>::sometimes("an owner learns that it is fenced", |_, state| {
                state.fenced && !state.alive
            }),
            Property::<Self>::sometimes("an owner that stood still is fenced", |_, state| {
                state.fenced && state.alive
            }),
            Property::<Self>::sometimes("an owner renews just before it would be fenced", |_, state| {
                state.expired.is_some_and(|seen| seen < state.renewals)
            }),
            Property::<Self>::sometimes("Postgres is silent for longer than a TTL", |_, state| {
                !state.fenced && state.lease_over() && state.answered == 0
            }),
        ]
    }
}

const NOT_EARLY: &str = "L1 nobody is fenced as expired who renewed within a TTL";
const NO_BLAME: &str = "L2 nobody is called expired for a silence of Postgres";
const TRUST_ENDS_FIRST: &str = "L3 who is fenced as expired trusts its lease no longer";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn lease(variant: Variant, ticks: u8, renewals: u8) -> Lease {
        Lease {
            variant,
            ticks,
            renewals,
        }
    }

    #[test]
    fn leases_on_three_clocks() {
        check::holds("leases", lease(Variant::Sound, 6, 2));
    }

    #[test]
    fn trust_counted_from_the_reply_outlasts_the_lease() {
        check::finds(lease(Variant::TrustFromReply, 5, 1), TRUST_ENDS_FIRST);
    }

    #[test]
    fn expiry_by_the_clock_of_a_node_fences_a_healthy_owner() {
        check::finds(lease(Variant::ExpiryByNodeClock, 4, 1), NOT_EARLY);
    }

    #[test]
    fn expiry_by_the_clock_of_the_database_fences_after_its_own_silence() {
        check::finds(lease(Variant::ExpiryByDatabaseClock, 4, 1), NO_BLAME);
    }

    #[test]
    fn a_fence_that_does_not_compare_the_counter_hits_an_owner_that_came_back() {
        check::finds(lease(Variant::FenceWithoutCounter, 4, 1), NOT_EARLY);
    }
}
