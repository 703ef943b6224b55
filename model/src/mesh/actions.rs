//! What may happen next. Each action names the code or the SQL that it stands for.

use super::life::{Hold, Life, Process, Work};
use super::rows::{Incarnation, Task, slot_of};
use super::rules::Variant;
use super::statement::{Flight, Stage, Statement, may_fence};
use super::{Mesh, State};

/// One step of the mesh.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Action {
    /// `submit.sql` commits, and the client is answered. What may go wrong before is in [`submit`](crate::submit).
    Submit {
        /// Which task.
        task: usize,
    },
    /// A hint reaches the slot's owner. It may come again: a hint on its way is never used up. (`hint.rs`)
    HintArrives {
        /// About which slot.
        slot: usize,
    },
    /// A hint is lost, with all its copies.
    HintLost {
        /// About which slot.
        slot: usize,
    },
    /// Postgres executes a statement and its answer arrives, all in one step.
    Execute(Flight),
    /// A statement gets its locks and its snapshot.
    Begin(Flight),
    /// A statement that has begun re-checks its targets and commits. Its answer is delivered, unless it may be slow.
    Commit(Flight),
    /// A slow answer arrives.
    Deliver(Flight),
    /// The connection breaks before the request has arrived.
    LoseRequest(Flight),
    /// The statement commits, and the connection breaks before its reply.
    LoseReply(Flight),
    /// The node gives up waiting. The statement is still on its way, or still runs.
    GiveUp(Flight),
    /// A statement that nobody waits for never arrives, or its backend is ended (`end_blockers.sql`).
    Break(Flight),
    /// Somebody fences a node: `lock_node.sql`, `set_fenced.sql`. Whether it deserved that is the question of
    /// [`lease`](crate::lease); here it may be hit at any time.
    Fence {
        /// Whom.
        node: u8,
    },
    /// `kill -9`. What it has sent may still arrive.
    Crash {
        /// Which process.
        process: usize,
    },
    /// A node finds itself fenced (`renew.sql` gives 0 rows) and ends its life.
    LearnFenced {
        /// Which process.
        process: usize,
    },
    /// `register_node.sql`: the next life, once the one before is fenced.
    Start {
        /// Which process.
        process: usize,
    },
    /// The tick compares `read_slots.sql` with memory.
    Look {
        /// Which process.
        process: usize,
    },
    /// Sends a grant for an orphaned slot. (The ring names one node first, and any after two ticks.)
    Take {
        /// Which process.
        process: usize,
        /// Which slot.
        slot: usize,
    },
    /// A handoff is agreed with another node.
    Leave {
        /// Which process.
        process: usize,
        /// Which slot.
        slot: usize,
        /// The next owner.
        to: u8,
    },
    /// A handoff is called off: the ring wants the slot here again, or its next owner is gone.
    Stay {
        /// Which process.
        process: usize,
        /// Which slot.
        slot: usize,
    },
    /// Sends the transfer of a slot that has become quiet.
    Transfer {
        /// Which process.
        process: usize,
        /// Which slot.
        slot: usize,
    },
    /// SIGTERM: the node takes nothing more and hands everything on.
    Drain {
        /// Which process.
        process: usize,
    },
    /// A drained node fences itself (`left`) and goes.
    Depart {
        /// Which process.
        process: usize,
    },
    /// Sends a claim, on a hint or after `news.sql` found something.
    Claim {
        /// Which process.
        process: usize,
        /// Which slot.
        slot: usize,
    },
    /// Sends `settle.sql` and `claimed.sql`, which find what an unanswered claim took and refuse it from then on.
    Settle {
        /// Which process.
        process: usize,
        /// Which slot.
        slot: usize,
    },
    /// A run ends well, and its finish is sent.
    Succeed {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// A run fails: a retry is sent, or, the second time, a finish as dead.
    Fail {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// A claimed task of a slot that leaves, whose turn has not come, is given back.
    Return {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// The drain deadline cancels a run, which ignores that; the task is given back.
    Overrun {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// A run that ignored its cancellation comes to its end and sends a finish.
    ZombieFinish {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// `read_back.sql` about a write whose answer never came or lacked the row.
    ReadBack {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// `promote.sql`: the pause before a retry is over.
    Promote {
        /// Which process.
        process: usize,
        /// Which task.
        task: usize,
    },
    /// No more faults from here on.
    FaultsEnd,
}

impl Mesh {
    pub(super) fn all_actions(&self, state: &State, actions: &mut Vec<Action>) {
        self.client(state, actions);
        for (place, flight) in state.flights.iter().enumerate() {
            // Two alike may be on their way; which of them goes on makes no difference.
            if state.flights[..place].last() != Some(flight) {
                self.on_the_way(state, flight, actions);
            }
        }
        for (process, life) in state.lives.iter().enumerate() {
            self.death_and_birth(state, process, life, actions);
            if life.up() {
                self.ownership(state, process, life, actions);
                self.dispatch(state, process, life, actions);
            }
        }
        if self.bounds.calm && !state.calm {
            actions.push(Action::FaultsEnd);
        }
    }

    fn client(&self, state: &State, actions: &mut Vec<Action>) {
        // In the order of their numbers: one is answered before the next is sent.
        if let Some(task) = (0..self.bounds.tasks).find(|task| state.rows.tasks[*task] == Task::Absent) {
            actions.push(Action::Submit { task });
        }
        for slot in (0..self.bounds.slots).filter(|slot| state.hints[*slot]) {
            let owner = state.rows.slots[slot].owner;
            let told = |life: &Life| life.up() && Some(life.me) == owner && !life.dirty[slot];
            if state.lives.iter().any(told) {
                actions.push(Action::HintArrives { slot });
            }
            actions.push(Action::HintLost { slot });
        }
    }

    fn on_the_way(&self, state: &State, flight: &Flight, actions: &mut Vec<Action>) {
        let flight = *flight;
        let may_lose = flight.awaited && state.left.losses > 0;
        match flight.stage {
            Stage::Sent => {
                if !flight.waits(&state.flights, self.variant) {
                    if self.bounds.split {
                        actions.push(Action::Begin(flight));
                    } else {
                        actions.push(Action::Execute(flight));
                        if may_lose {
                            actions.push(Action::LoseReply(flight));
                        }
                    }
                }
                if may_lose {
                    actions.push(Action::LoseRequest(flight));
                    if self.bounds.late {
                        actions.push(Action::GiveUp(flight));
                    }
                }
                if !flight.awaited {
                    actions.push(Action::Break(flight));
                }
            }
            Stage::Begun(_) => {
                actions.push(Action::Commit(flight));
                if may_lose {
                    actions.push(Action::GiveUp(flight));
                }
                if !flight.awaited {
                    actions.push(Action::Break(flight));
                }
            }
            Stage::Answered(_) => {
                actions.push(Action::Deliver(flight));
                if may_lose {
                    actions.push(Action::GiveUp(flight));
                }
            }
        }
    }

    fn death_and_birth(&self, state: &State, process: usize, life: &Life, actions: &mut Vec<Action>) {
        let node = life.me;
        match life.process {
            Process::Up => {
                if state.left.suspicions > 0 && may_fence(&state.rows, node, &state.flights, self.variant) {
                    actions.push(Action::Fence { node });
                }
                if state.left.crashes > 0 {
                    actions.push(Action::Crash { process });
                }
                if state.rows.fenced(node) {
                    actions.push(Action::LearnFenced { process });
                }
            }
            Process::Down if state.rows.fenced(node) => actions.push(Action::Start { process }),
            Process::Down => {
                if may_fence(&state.rows, node, &state.flights, self.variant) {
                    actions.push(Action::Fence { node });
                }
            }
            Process::Gone => {}
        }
    }

    fn ownership(&self, state: &State, process: usize, life: &Life, actions: &mut Vec<Action>) {
        if life
            .look(&state.rows, self.bounds.slots)
            .iter()
            .any(Option::is_some)
        {
            actions.push(Action::Look { process });
        }
        let others = || self.live_others(state, life.me);
        for slot in 0..self.bounds.slots {
            match life.holds[slot] {
                Hold::No => {
                    let asked = state.awaits(life.me, |statement| {
                        matches!(statement, Statement::Grant { slot: other, .. } if *other == slot)
                    });
                    let can = !life.draining && !state.rows.fenced(life.me) && !asked;
                    if can && state.rows.orphaned(slot) {
                        actions.push(Action::Take { process, slot });
                    }
                }
                Hold::Owned(_) if state.left.moves > 0 || life.draining => {
                    actions.extend(others().map(|to| Action::Leave { process, slot, to }));
                }
                Hold::Owned(_) => {}
                Hold::Leaving(epoch, to) => {
                    if !life.draining {
                        actions.push(Action::Stay { process, slot });
                    }
                    if state.rows.fenced(to) {
                        actions.extend(others().map(|to| Action::Leave { process, slot, to }));
                    } else if self.may_transfer(state, life, slot) && state.worth(life.me, slot, epoch) {
                        actions.push(Action::Transfer { process, slot });
                    }
                }
                Hold::Moving(..) | Hold::InDoubt(..) => {}
            }
        }
        if state.left.drains > 0 && !life.draining && others().next().is_some() {
            actions.push(Action::Drain { process });
        }
        let idle = (0..self.bounds.slots).all(|slot| life.quiet(slot)) && !state.awaits(life.me, |_| true);
        let empty = life.holds.iter().all(|hold| *hold == Hold::No);
        if life.draining && idle && (empty || others().next().is_none()) {
            actions.push(Action::Depart { process });
        }
    }

    fn may_transfer(&self, state: &State, life: &Life, slot: usize) -> bool {
        let claims = state.claims(life.me, slot);
        !claims && (life.quiet(slot) || self.variant == Variant::TransferBeforeDrain)
    }

    fn live_others(&self, state: &State, me: Incarnation) -> impl Iterator<Item = Incarnation> {
        state
            .lives
            .iter()
            .filter(move |life| life.up() && life.me != me && !life.draining && !state.rows.fenced(life.me))
            .map(|life| life.me)
    }

    fn dispatch(&self, state: &State, process: usize, life: &Life, actions: &mut Vec<Action>) {
        for slot in 0..self.bounds.slots {
            if self.may_claim(state, life, slot) {
                actions.push(Action::Claim { process, slot });
            }
            let asked = state.awaits(
                life.me,
                |statement| matches!(statement, Statement::Settle { slot: other, .. } if *other == slot),
            );
            if let Some(epoch) = life.holds[slot].epoch()
                && life.doubt[slot]
                && !asked
                && state.worth(life.me, slot, epoch)
            {
                actions.push(Action::Settle { process, slot });
            }
        }
        for task in 0..self.bounds.tasks {
            if life.zombies[task].is_some() {
                actions.push(Action::ZombieFinish { process, task });
            }
            self.dispatch_task(state, process, life, task, actions);
        }
    }

    fn dispatch_task(
        &self,
        state: &State,
        process: usize,
        life: &Life,
        task: usize,
        actions: &mut Vec<Action>,
    ) {
        let slot = slot_of(task);
        let leaves = matches!(life.holds[slot], Hold::Leaving(..));
        match life.work[task] {
            Work::Claimed(_) if !life.closed[slot] => {
                let early = self.variant == Variant::NextBeforeCommit;
                if life.first_in_lane(task, early) {
                    actions.push(Action::Succeed { process, task });
                    if state.left.failures > 0 {
                        actions.push(Action::Fail { process, task });
                    }
                    if leaves && state.left.overruns > 0 {
                        actions.push(Action::Overrun { process, task });
                    }
                } else if leaves {
                    actions.push(Action::Return { process, task });
                }
            }
            // To read back and write again what the fence would refuse again changes nothing: the look comes first.
            Work::Ending {
                token, unknown: true, ..
            } if !state.rows.tasks[task].has(token) || state.worth(life.me, slot, token.epoch) => {
                actions.push(Action::ReadBack { process, task });
            }
            _ => {}
        }
        if let (Task::Open { waits: true, .. }, Hold::Owned(epoch)) =
            (state.rows.tasks[task], life.holds[slot])
            && state.worth(life.me, slot, epoch)
        {
            actions.push(Action::Promote { process, task });
        }
    }

    fn may_claim(&self, state: &State, life: &Life, slot: usize) -> bool {
        let epoch = match life.holds[slot] {
            Hold::Owned(epoch) => epoch,
            Hold::Leaving(epoch, _) if self.variant == Variant::ClaimWhileLeaving => epoch,
            _ => return false,
        };
        // A claim that overlaps another is what its target's condition is for: the variant shows it, and so there is one.
        let overlaps = self.variant == Variant::ClaimWithoutToken && !state.claims_twice(life.me, slot);
        let free = !life.doubt[slot] && !life.closed[slot] && !life.returning(slot);
        let told = self.variant != Variant::HintWithoutTick || life.dirty[slot];
        let news = (0..self.bounds.tasks).any(|task| slot_of(task) == slot && state.rows.due(task, epoch));
        (overlaps || free && !state.claims(life.me, slot))
            && told
            && news
            && state.worth(life.me, slot, epoch)
    }
}
