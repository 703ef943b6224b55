//! Ownership and tasks: fences, grants, handoffs and drains; claims, runs and what is written about them.
//!
//! # What is modelled
//!
//! A few processes share one or two slots in Postgres, in which two or three tasks are submitted; the first two share a key. A
//! process lives one life after the other, each with its own incarnation. It takes orphaned slots, claims, runs one task of a
//! key after the other, writes how they ended, hands slots on, drains, dies and starts again. Statements travel; they may
//! wait for locks, commit without a reply, or arrive when their node has long given them up. Nodes are as slow
//! as can be: between any two steps of one, all others may do anything, which is what a pause or a starved CPU is.
//!
//! A node may be fenced at any time, deserved or not. So whatever clocks, gossip and notices lead to, the promises about rows (M1
//! to M7, M10) do not depend on it. Who *may* be fenced is the question of [`lease`](crate::lease).
//!
//! # What is left out, and why
//!
//! - The lease's end, and the trust window: they only make a node do less.
//! - The ring: any node may take any orphaned slot, and any slot may be wanted by any other node. More can happen here than in a
//!   mesh that agrees on a placement.
//! - Where a probe begins (ADR 2): claims look at all due tasks of a slot. See [`cursor`](crate::cursor).
//! - Tasks behind a held key (ADR 3), kinds, priorities, suspects, cancels: they never change who may write.
//! - A batch is one row. Rows of a batch share its locks and are otherwise apart.

mod actions;
mod audit;
#[cfg(test)]
mod counterexamples;
mod life;
mod properties;
mod rows;
mod rules;
mod statement;
mod steps;
#[cfg(test)]
mod tests;

use stateright::{Model, Property};

pub use actions::Action;
use audit::Breaches;
use life::{Life, Process};
use rows::{Epoch, Incarnation, Node, Rows, SLOTS, Slot, TASKS, Task};
pub use rules::{Bounds, Variant};
pub use statement::Flight;
use statement::Statement;

/// The model.
#[derive(Debug, Clone, Copy)]
pub struct Mesh {
    /// The protocol, or a broken one.
    pub variant: Variant,
    /// How much of everything there is.
    pub bounds: Bounds,
}

/// The mesh at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    rows: Rows,
    lives: Vec<Life>,
    /// Sorted, so that the order in which statements were sent makes no other state.
    flights: Vec<Flight>,
    hints: [bool; SLOTS],
    accepted: [bool; TASKS],
    left: Left,
    calm: bool,
    breaches: Breaches,
}

/// What may still go wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
struct Left {
    crashes: u8,
    suspicions: u8,
    moves: u8,
    drains: u8,
    losses: u8,
    failures: u8,
    overruns: u8,
}

impl State {
    fn send(&mut self, process: usize, statement: Statement) {
        self.insert(Flight::sent(self.lives[process].me, statement));
    }

    fn insert(&mut self, flight: Flight) {
        let place = self.flights.partition_point(|other| *other < flight);
        self.flights.insert(place, flight);
    }

    fn remove(&mut self, flight: &Flight) {
        let place = self
            .flights
            .binary_search(flight)
            .expect("an action names a flight of its state");
        self.flights.remove(place);
    }

    /// The node waits for no answer of these any more.
    fn abandon(&mut self, node: Incarnation, which: impl Fn(&Statement) -> bool) {
        for flight in &mut self.flights {
            if flight.by == node && which(&flight.statement) {
                flight.awaited = false;
            }
        }
        self.flights
            .retain(|flight| flight.awaited || !matches!(flight.stage, statement::Stage::Answered(_)));
        self.flights.sort_unstable();
    }

    fn awaits(&self, node: Incarnation, which: impl Fn(&Statement) -> bool) -> bool {
        self.flights
            .iter()
            .any(|flight| flight.by == node && flight.awaited && which(&flight.statement))
    }

    fn claims(&self, node: Incarnation, slot: usize) -> bool {
        self.awaits(
            node,
            |statement| matches!(statement, Statement::Claim { slot: other, .. } if *other == slot),
        )
    }

    fn claims_twice(&self, node: Incarnation, slot: usize) -> bool {
        let claim = |flight: &&Flight| {
            flight.by == node
                && matches!(flight.statement, Statement::Claim { slot: other, .. } if other == slot)
        };
        self.flights.iter().filter(claim).count() > 1
    }

    /// Whether an owner's statement under this epoch would pass the fence now. One that would not only tells the node what
    /// its next look tells it as well.
    fn worth(&self, node: Incarnation, slot: usize, epoch: Epoch) -> bool {
        let row = self.rows.slots[slot];
        row.owner == Some(node) && row.epoch == epoch && !self.rows.fenced(node)
    }

    /// Tickets are only compared with each other. Where none is on its way or in doubt, they may begin anew, so that how
    /// many claims there were makes no other state.
    fn renumber(&mut self) {
        for slot in 0..SLOTS {
            let on_its_way = |node: Incarnation| {
                self.flights.iter().any(|flight| {
                    flight.by == node
                        && flight.statement.slot() == slot
                        && flight.statement.ticket().is_some()
                })
            };
            let owner = self.rows.slots[slot].owner;
            for life in &mut self.lives {
                if !life.doubt[slot] && !on_its_way(life.me) {
                    life.tickets[slot] = 0;
                    if owner == Some(life.me) {
                        self.rows.slots[slot].settled = 0;
                    }
                }
            }
        }
    }

    fn process_of(&self, node: Incarnation) -> Option<usize> {
        self.lives.iter().position(|life| life.me == node && life.up())
    }
}

impl Mesh {
    /// Whether nothing more can happen.
    fn at_rest(&self, state: &State) -> bool {
        let mut actions = Vec::new();
        self.all_actions(state, &mut actions);
        actions.is_empty()
    }
}

impl Model for Mesh {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let Bounds {
            nodes,
            stranger,
            crashes,
            suspicions,
            moves,
            drains,
            losses,
            failures,
            overruns,
            ..
        } = self.bounds;
        let mut lives: Vec<Life> = (0..nodes).map(|node| Life::new(node as Incarnation)).collect();
        let mut rows = Rows {
            nodes: vec![Node::Unfenced; nodes],
            slots: [Slot {
                owner: None,
                epoch: 0,
                settled: 0,
            }; SLOTS],
            tasks: [Task::Absent; TASKS],
            held: [None; SLOTS],
            ledger: Vec::new(),
        };
        if stranger {
            rows.nodes.push(Node::Fenced);
            let mut life = Life::new(nodes as Incarnation);
            life.process = Process::Down;
            lives.push(life);
        }
        vec![State {
            rows,
            lives,
            flights: Vec::new(),
            hints: [false; SLOTS],
            accepted: [false; TASKS],
            left: Left {
                crashes,
                suspicions,
                moves,
                drains,
                losses,
                failures,
                overruns,
            },
            calm: false,
            breaches: Breaches::default(),
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.all_actions(state, actions);
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        self.step(&mut next, action);
        next.renumber();
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::all(self)
    }
}
