//! What each action changes.

use super::actions::Action;
use super::audit::Breach;
use super::life::{Hold, Life, Process, Seen, What, Work};
use super::rows::{Incarnation, Node, TASKS, Task, Token, slot_of};
use super::rules::Variant;
use super::statement::{Answer, Flight, Picked, Stage, Statement, begin, commit, fence};
use super::{Mesh, State};

impl Mesh {
    pub(super) fn step(&self, state: &mut State, action: Action) {
        match action {
            Action::Submit { task } => {
                state.rows.tasks[task] = Task::Open {
                    claim: None,
                    attempt: 0,
                    failures: 0,
                    waits: false,
                };
                state.accepted[task] = true;
                state.hints[slot_of(task)] |= self.bounds.hints;
            }
            Action::HintArrives { slot } => {
                let owner = state.rows.slots[slot].owner;
                let told = state
                    .lives
                    .iter_mut()
                    .find(|life| life.up() && Some(life.me) == owner);
                told.into_iter().for_each(|life| life.dirty[slot] = true);
            }
            Action::HintLost { slot } => state.hints[slot] = false,
            Action::Execute(flight) => self.execute(state, flight, true),
            Action::LoseReply(flight) => {
                state.left.losses -= 1;
                self.execute(state, flight, false);
                self.without_answer(state, &flight);
            }
            Action::Begin(flight) => self.begin(state, flight),
            Action::Commit(flight) => {
                state.remove(&flight);
                if let Stage::Begun(picked) = flight.stage {
                    let answer = self.commit(state, &flight, picked);
                    self.answer(state, flight, answer);
                }
            }
            Action::Deliver(flight) => {
                state.remove(&flight);
                if let Stage::Answered(answer) = flight.stage {
                    self.on_answer(state, &flight, answer);
                }
            }
            Action::LoseRequest(flight) => {
                state.left.losses -= 1;
                state.remove(&flight);
                self.without_answer(state, &flight);
            }
            Action::GiveUp(flight) => {
                state.left.losses -= 1;
                state.remove(&flight);
                if !matches!(flight.stage, Stage::Answered(_)) {
                    state.insert(Flight {
                        awaited: false,
                        ..flight
                    });
                }
                self.without_answer(state, &flight);
            }
            Action::Break(flight) => state.remove(&flight),
            Action::Fence { node } => {
                if state.lives.iter().any(|life| life.me == node && life.up()) {
                    // (A number that two starts share may be hit where none was planned.)
                    state.left.suspicions = state.left.suspicions.saturating_sub(1);
                }
                fence(&mut state.rows, node);
            }
            Action::Crash { process } => {
                state.left.crashes -= 1;
                self.end_life(state, process, Process::Down);
            }
            Action::LearnFenced { process } => self.end_life(state, process, Process::Down),
            Action::Start { process } => self.start(state, process),
            Action::Look { process } => self.look(state, process),
            Action::Take { process, slot } => {
                let epoch = state.rows.slots[slot].epoch;
                state.send(process, Statement::Grant { slot, epoch });
            }
            Action::Leave { process, slot, to } => {
                let life = &mut state.lives[process];
                if let Hold::Owned(epoch) | Hold::Leaving(epoch, _) = life.holds[slot] {
                    if matches!(life.holds[slot], Hold::Owned(_)) && !life.draining {
                        state.left.moves -= 1;
                    }
                    life.holds[slot] = Hold::Leaving(epoch, to);
                }
            }
            Action::Stay { process, slot } => {
                let life = &mut state.lives[process];
                life.holds[slot] = life.holds[slot].epoch().map_or(Hold::No, Hold::Owned);
            }
            Action::Transfer { process, slot } => {
                if let Hold::Leaving(epoch, to) = state.lives[process].holds[slot] {
                    state.lives[process].holds[slot] = Hold::Moving(epoch, to);
                    state.send(process, Statement::Transfer { slot, epoch, to });
                }
            }
            Action::Drain { process } => {
                state.left.drains -= 1;
                state.lives[process].draining = true;
            }
            Action::Depart { process } => {
                fence(&mut state.rows, state.lives[process].me);
                self.end_life(state, process, Process::Gone);
            }
            Action::FaultsEnd => {
                state.calm = true;
                state.left = super::Left::default();
            }
            action => self.step_of_dispatch(state, action),
        }
    }

    fn step_of_dispatch(&self, state: &mut State, action: Action) {
        match action {
            Action::Claim { process, slot } => {
                let life = &mut state.lives[process];
                life.dirty[slot] = false;
                if !matches!(life.holds[slot], Hold::Owned(_)) {
                    state.breaches.add(Breach::ClaimAfterStop);
                }
                let life = &mut state.lives[process];
                if let Some(epoch) = life.holds[slot].epoch() {
                    life.tickets[slot] += 1;
                    let ticket = life.tickets[slot];
                    state.send(process, Statement::Claim { slot, epoch, ticket });
                }
            }
            Action::Settle { process, slot } => {
                // The last claim is the one without an answer: none begins while it is in doubt.
                let ticket = state.lives[process].tickets[slot];
                if let Some(epoch) = state.lives[process].holds[slot].epoch() {
                    state.send(process, Statement::Settle { slot, epoch, ticket });
                }
            }
            Action::Succeed { process, task } => {
                self.end_run(state, process, task, What::Finish { succeeded: true });
            }
            Action::Fail { process, task } => {
                state.left.failures -= 1;
                let again = matches!(state.rows.tasks[task], Task::Open { failures: 0, .. });
                let what = if again {
                    What::Retry
                } else {
                    What::Finish { succeeded: false }
                };
                self.end_run(state, process, task, what);
            }
            Action::Return { process, task } => self.end_run(state, process, task, What::GiveBack),
            Action::Overrun { process, task } => {
                state.left.overruns -= 1;
                state.lives[process].zombies[task] = state.lives[process].work[task].token();
                self.end_run(state, process, task, What::GiveBack);
            }
            Action::ZombieFinish { process, task } => {
                if let Some(token) = state.lives[process].zombies[task].take() {
                    let finish = Statement::Finish {
                        task,
                        token,
                        succeeded: true,
                    };
                    let me = state.lives[process].me;
                    state.insert(Flight {
                        awaited: false,
                        ..Flight::sent(me, finish)
                    });
                }
            }
            Action::ReadBack { process, task } => self.read_back(state, process, task),
            Action::Promote { task, .. } => {
                if let Task::Open { waits, .. } = &mut state.rows.tasks[task] {
                    *waits = false;
                }
            }
            _ => {}
        }
    }

    /// Begins and commits in one step.
    fn execute(&self, state: &mut State, flight: Flight, delivered: bool) {
        state.remove(&flight);
        let answer = match begin(&state.rows, &flight, self.variant) {
            Some(picked) => self.commit(state, &flight, picked),
            None => self.refuse(state, &flight),
        };
        if delivered {
            self.answer(state, flight, answer);
        }
    }

    fn begin(&self, state: &mut State, flight: Flight) {
        state.remove(&flight);
        match begin(&state.rows, &flight, self.variant) {
            Some(picked) => state.insert(Flight {
                stage: Stage::Begun(picked),
                ..flight
            }),
            None => {
                let answer = self.refuse(state, &flight);
                self.answer(state, flight, answer);
            }
        }
    }

    fn commit(&self, state: &mut State, flight: &Flight, picked: Picked) -> Answer {
        let before = state.rows.clone();
        let answer = commit(&mut state.rows, flight, picked, self.variant);
        state.breaches.see(&before, &state.rows, flight, answer);
        if answer == Answer::Nothing {
            self.refuse(state, flight);
        }
        answer
    }

    /// 0 rows. A draining node that waits for the answer of a finish must not get this because it let the slot go.
    fn refuse(&self, state: &mut State, flight: &Flight) -> Answer {
        if let Statement::Finish { token, .. } = flight.statement
            && flight.awaited
            && !state.rows.fenced(flight.by)
            && token.epoch < state.rows.slots[flight.statement.slot()].epoch
            && state
                .lives
                .iter()
                .any(|life| life.me == flight.by && life.up() && life.draining)
        {
            state.breaches.add(Breach::ResultDropped);
        }
        Answer::Nothing
    }

    fn answer(&self, state: &mut State, flight: Flight, answer: Answer) {
        if flight.awaited && self.bounds.slow_replies {
            state.insert(Flight {
                stage: Stage::Answered(answer),
                ..flight
            });
        } else {
            self.on_answer(state, &flight, answer);
        }
    }

    /// A node gets an answer that it still waits for.
    fn on_answer(&self, state: &mut State, flight: &Flight, answer: Answer) {
        if !flight.awaited {
            return;
        }
        let Some(process) = state.process_of(flight.by) else {
            return;
        };
        let life = &mut state.lives[process];
        match (flight.statement, answer) {
            (Statement::Grant { slot, epoch }, Answer::Done) => {
                if epoch + 1 > life.known[slot] {
                    life.adopt(slot, epoch + 1, self.bounds.overruns > 0);
                }
            }
            (Statement::Transfer { slot, epoch, .. }, Answer::Done) => {
                life.drop_slot(slot, self.bounds.overruns > 0);
                life.known[slot] = life.known[slot].max(epoch + 1);
            }
            (Statement::Transfer { slot, epoch, to }, _) => life.holds[slot] = Hold::Leaving(epoch, to),
            (Statement::Claim { slot, epoch, .. }, Answer::Claimed(claimed)) => {
                for (task, attempt) in claimed.into_iter().enumerate() {
                    if let Some(attempt) = attempt {
                        self.on_claimed(state, process, task, Token { epoch, attempt });
                    }
                }
                self.reopen(state, process, slot);
            }
            (
                Statement::Finish { task, token, .. }
                | Statement::Retry { task, token }
                | Statement::GiveBack { task, token },
                answer,
            ) => match &mut life.work[task] {
                work @ Work::Ending { .. } if work.token() == Some(token) && answer == Answer::Done => {
                    *work = Work::No;
                    self.reopen(state, process, slot_of(task));
                }
                Work::Ending {
                    token: mine, unknown, ..
                } if *mine == token => *unknown = true,
                _ => {}
            },
            (Statement::Settle { slot, epoch, .. }, Answer::Claimed(claimed))
                if life.holds[slot].epoch() == Some(epoch) =>
            {
                let tokens = claimed.map(|attempt| attempt.map(|attempt| Token { epoch, attempt }));
                self.on_settled(state, process, slot, tokens);
            }
            (Statement::Grant { .. } | Statement::Claim { .. } | Statement::Settle { .. }, _) => {}
        }
    }

    fn on_claimed(&self, state: &mut State, process: usize, task: usize, token: Token) {
        let slot = slot_of(task);
        state.lives[process].work[task] = Work::Claimed(token);
        if state.lives[process].closed[slot] {
            self.end_run(state, process, task, What::GiveBack);
        }
    }

    /// The answer will never come.
    fn without_answer(&self, state: &mut State, flight: &Flight) {
        let Some(process) = state.process_of(flight.by) else {
            return;
        };
        let life = &mut state.lives[process];
        match flight.statement {
            // Not held, until a look says otherwise. Not settled, and to be asked again.
            Statement::Grant { .. } | Statement::Settle { .. } => {}
            Statement::Transfer { slot, epoch, to } => life.holds[slot] = Hold::InDoubt(epoch, to),
            Statement::Claim { slot, .. } => {
                life.doubt[slot] = true;
                self.reopen(state, process, slot);
            }
            Statement::Finish { task, token, .. }
            | Statement::Retry { task, token }
            | Statement::GiveBack { task, token } => {
                if let Work::Ending {
                    token: mine, unknown, ..
                } = &mut life.work[task]
                    && *mine == token
                {
                    *unknown = true;
                }
            }
        }
    }

    /// A task leaves its lane, and what is to be written about it is sent. What goes back closes its lane, and takes
    /// with it what waits there: nothing of the key may overtake it.
    fn end_run(&self, state: &mut State, process: usize, task: usize, what: What) {
        let slot = slot_of(task);
        let Some(token) = state.lives[process].work[task].token() else {
            return;
        };
        state.lives[process].work[task] = Work::Ending {
            token,
            what,
            unknown: false,
        };
        state.send(process, statement_of(task, token, what));
        if !matches!(what, What::Retry | What::GiveBack) {
            return;
        }
        state.lives[process].closed[slot] = true;
        for other in (0..TASKS).filter(|other| slot_of(*other) == slot) {
            if let Work::Claimed(token) = state.lives[process].work[other] {
                let what = What::GiveBack;
                state.lives[process].work[other] = Work::Ending {
                    token,
                    what,
                    unknown: false,
                };
                state.send(process, statement_of(other, token, what));
            }
        }
    }

    fn reopen(&self, state: &mut State, process: usize, slot: usize) {
        let claims = state.claims(state.lives[process].me, slot);
        state.lives[process].reopen(slot, claims);
    }

    /// As `Engine::on_known`.
    fn read_back(&self, state: &mut State, process: usize, task: usize) {
        let slot = slot_of(task);
        let Work::Ending { token, what, .. } = state.lives[process].work[task] else {
            return;
        };
        let row = state.rows.tasks[task];
        if row.has(token) {
            state.lives[process].work[task] = Work::Ending {
                token,
                what,
                unknown: false,
            };
            state.send(process, statement_of(task, token, what));
            return;
        }
        state.lives[process].work[task] = Work::No;
        if matches!(what, What::Finish { .. }) && matches!(row, Task::Open { .. }) {
            // Open, and another run's or nobody's: those after it must not overtake it.
            for other in (0..TASKS).filter(|other| slot_of(*other) == slot) {
                if let Work::Claimed(_) = state.lives[process].work[other] {
                    self.end_run(state, process, other, What::GiveBack);
                }
            }
        }
        self.reopen(state, process, slot);
    }

    /// Whatever Postgres holds as claimed under this epoch, and memory does not know, is given back.
    fn on_settled(&self, state: &mut State, process: usize, slot: usize, claimed: [Option<Token>; TASKS]) {
        state.lives[process].doubt[slot] = false;
        for (task, token) in claimed.into_iter().enumerate() {
            if let Some(token) = token
                && state.lives[process].work[task].token() != Some(token)
            {
                state.lives[process].work[task] = Work::Ending {
                    token,
                    what: What::Stray,
                    unknown: false,
                };
                state.send(process, statement_of(task, token, What::Stray));
            }
        }
    }

    fn look(&self, state: &mut State, process: usize) {
        let seen = state.lives[process].look(&state.rows, self.bounds.slots);
        let runs_go_on = self.bounds.overruns > 0;
        for (slot, seen) in seen.into_iter().enumerate() {
            let me = state.lives[process].me;
            let Some(seen) = seen else { continue };
            if !matches!(seen, Seen::Kept(..)) {
                // What was asked about the epoch before is not waited for.
                state.abandon(me, |statement| statement.slot() == slot);
            }
            let life = &mut state.lives[process];
            match seen {
                Seen::Mine(epoch) => life.adopt(slot, epoch, runs_go_on),
                Seen::Lost(epoch) => {
                    life.drop_slot(slot, runs_go_on);
                    life.known[slot] = epoch;
                }
                Seen::Kept(epoch, to) => life.holds[slot] = Hold::Leaving(epoch, to),
            }
        }
    }

    fn end_life(&self, state: &mut State, process: usize, into: Process) {
        let me = state.lives[process].me;
        state.abandon(me, |_| true);
        state.lives[process].end(into);
    }

    fn start(&self, state: &mut State, process: usize) {
        if self.bounds.stranger && process + 1 == state.lives.len() && self.variant != Variant::StrangerLetIn
        {
            // `mesh_settings.sql` says that it computes otherwise: it is refused at its start, and ends.
            state.lives[process].process = Process::Gone;
            return;
        }
        let next = state.rows.nodes.len() as Incarnation;
        let me = if self.variant == Variant::IncarnationFromClock {
            next - 1
        } else {
            next
        };
        state.breaches.see_start(&state.rows, me);
        if me == next {
            state.rows.nodes.push(Node::Unfenced);
        } else {
            state.rows.nodes[usize::from(me)] = Node::Unfenced;
        }
        state.lives[process] = Life::new(me);
    }
}

fn statement_of(task: usize, token: Token, what: What) -> Statement {
    match what {
        What::Finish { succeeded } => Statement::Finish {
            task,
            token,
            succeeded,
        },
        What::Retry => Statement::Retry { task, token },
        What::GiveBack | What::Stray => Statement::GiveBack { task, token },
    }
}
