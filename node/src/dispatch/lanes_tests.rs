//! A small Postgres in memory, nodes that submit, cancel, lose hints and answers, and what must hold whatever happens.

#![allow(clippy::manual_is_multiple_of)] // Choices, not multiples.

use std::collections::{BTreeMap, HashSet};

use chrono::DateTime;
use proptest::prelude::*;

use super::*;
use crate::store::Probed;

/// So that one urgent claim fits in, and no second one.
const ROOM: Room = Room {
    tasks: 60,
    per_slot: 10,
};
/// Slots of the model, and keys per slot.
const PLACES: [u16; 2] = [3, 900];
const KEYS: usize = 3;

#[derive(Debug, Clone)]
struct Row {
    key: usize,
    priority: u8,
    epoch: Option<Epoch>,
    attempt: i32,
    waits: bool,
    trial: i16,
    sent: usize,
    committed: Option<usize>,
}

/// What a statement is about to do, or has done without its answer being heard yet.
#[derive(Debug)]
enum Step {
    Claim {
        plan: Plan,
        /// Its node waits for the answer. Otherwise it was given up, and is still on its way.
        awaited: bool,
    },
    Claimed(Ticket, ClaimAnswer),
    ClaimLost(Ticket),
    Settle(Ticket, Vec<(Slot, Epoch, i64)>),
    Note(i16, Vec<Start>),
    Finish(Start),
    Finished(Start),
    Retry(Start),
    Back(LaneId, Token),
    Settled(LaneId, Token),
    Poll(Horizon),
    Promote {
        ticket: Ticket,
        slot: Slot,
        epoch: Epoch,
        awaited: bool,
    },
    Promoted {
        ticket: Ticket,
        slot: Slot,
        epoch: Epoch,
        ids: Vec<i64>,
        lost: bool,
    },
}

struct World {
    lanes: Lanes,
    rows: BTreeMap<i64, Row>,
    held: BTreeMap<usize, i64>,
    epochs: BTreeMap<Slot, Epoch>,
    settled: BTreeMap<Slot, Ticket>,
    running: Vec<Start>,
    steps: Vec<Step>,
    /// Open transactions of submits: their number, and their task's.
    open: BTreeMap<i64, i64>,
    next_id: i64,
    next_xid: i64,
    /// What a crash does not take back.
    durable: (i64, i64),
    /// How many keys get tasks.
    keys: usize,
    time: usize,
    ended: HashSet<i64>,
}

fn slot_of(key: usize) -> Slot {
    Slot::new(PLACES[key / KEYS]).unwrap()
}

impl World {
    fn new() -> Self {
        let mut world = World {
            lanes: Lanes::new(ROOM),
            rows: BTreeMap::new(),
            held: BTreeMap::new(),
            epochs: BTreeMap::new(),
            settled: BTreeMap::new(),
            running: Vec::new(),
            steps: Vec::new(),
            open: BTreeMap::new(),
            next_id: 1,
            next_xid: 100,
            durable: (0, 99),
            keys: PLACES.len() * KEYS,
            time: 0,
            ended: HashSet::new(),
        };
        for place in PLACES {
            world.grant(Slot::new(place).unwrap());
        }
        world
    }

    fn grant(&mut self, slot: Slot) {
        let epoch = self.epochs.get(&slot).copied().unwrap_or(Epoch(0));
        let gone = self.lanes.lose(slot, epoch);
        self.running.retain(|start| !gone.contains(&start.run));
        let epoch = epoch.next();
        self.epochs.insert(slot, epoch);
        self.settled.remove(&slot);
        self.lanes.grant(slot, epoch);
    }

    fn begin_submit(&mut self, key: usize, priority: u8) {
        self.open.insert(self.next_xid, self.next_id);
        self.next_xid += 1;
        let row = Row {
            key,
            priority,
            epoch: None,
            attempt: 0,
            waits: false,
            trial: 0,
            sent: self.time,
            committed: None,
        };
        self.rows.insert(self.next_id, row);
        self.next_id += 1;
    }

    fn commit(&mut self, choice: usize, hinted: bool) {
        let Some(xid) = self.open.keys().nth(choice % self.open.len().max(1)).copied() else {
            return;
        };
        let id = self.open.remove(&xid).unwrap();
        let row = self.rows.get_mut(&id).unwrap();
        row.committed = Some(self.time);
        self.durable = (self.durable.0.max(id), self.durable.1.max(xid));
        if hinted {
            self.lanes.mark(slot_of(row.key), row.priority > 0);
        }
    }

    fn claim(&mut self, plan: &Plan) -> ClaimAnswer {
        let mut answer = ClaimAnswer::default();
        for probe in &plan.probes {
            if !self.admits(probe.slot, probe.epoch, plan.ticket) {
                continue;
            }
            let due: Vec<i64> = self
                .rows
                .iter()
                .filter(|(id, row)| {
                    slot_of(row.key) == probe.slot
                        && row.committed.is_some()
                        && !row.waits
                        && row.epoch != Some(probe.epoch)
                        && self.held.get(&row.key).is_none_or(|head| head == *id)
                })
                .map(|(id, _)| *id)
                .collect();
            let room = usize::try_from(probe.room).unwrap();
            let picked: Vec<i64> = if plan.urgent {
                let urgent: Vec<i64> = due
                    .iter()
                    .copied()
                    .filter(|id| self.rows[id].priority > 0)
                    .take(room)
                    .collect();
                if urgent.is_empty() {
                    continue;
                }
                let last: BTreeMap<usize, i64> = urgent.iter().map(|id| (self.rows[id].key, *id)).collect();
                due.into_iter()
                    .filter(|id| {
                        *id >= probe.start && last.get(&self.rows[id].key).is_some_and(|last| id <= last)
                    })
                    .collect()
            } else {
                due.into_iter()
                    .filter(|id| *id >= probe.start)
                    .take(room)
                    .collect()
            };
            answer.probed.push(Probed {
                slot: probe.slot,
                picked: i32::try_from(picked.len()).unwrap(),
                holds: self.held.keys().any(|key| slot_of(*key) == probe.slot),
            });
            for id in picked {
                let row = self.rows.get_mut(&id).unwrap();
                let lost = row.epoch.is_some();
                row.attempt += 1;
                row.epoch = Some(probe.epoch);
                row.trial = match row.trial {
                    trial if !lost => -trial.abs(),
                    trial if trial < 0 => trial,
                    trial => -(trial + 1).min(2),
                };
                answer.tasks.push(Claimed {
                    id: TaskId {
                        slot: probe.slot,
                        number: id,
                    },
                    epoch: probe.epoch,
                    attempt: row.attempt,
                    key: Key::new(format!("k{}", row.key)).unwrap(),
                    kind: "noop".to_owned(),
                    payload: None,
                    priority: row.priority,
                    failures: 0,
                    crashes: 0,
                    trial: row.trial,
                    lost,
                    head: self.held.contains_key(&row.key),
                    max_attempts: 10,
                    timeout: std::time::Duration::from_secs(1),
                    waiter: None,
                    created_at: DateTime::UNIX_EPOCH,
                });
            }
        }
        answer.tasks.sort_by_key(|task| task.id.number);
        answer
    }

    fn admits(&self, slot: Slot, epoch: Epoch, ticket: Ticket) -> bool {
        self.epochs[&slot] == epoch && self.settled.get(&slot).is_none_or(|settled| *settled < ticket)
    }

    fn holds(&self, token: Token) -> bool {
        self.epochs[&token.id.slot] == token.epoch
            && self
                .rows
                .get(&token.id.number)
                .is_some_and(|row| row.epoch == Some(token.epoch) && row.attempt == token.attempt)
    }

    fn end(&mut self, id: i64) {
        let row = self.rows.remove(&id).unwrap();
        if self.held.get(&row.key) == Some(&id) {
            self.held.remove(&row.key);
        }
        self.ended.insert(id);
    }

    fn back(&mut self, back: Vec<Return>) {
        self.steps
            .extend(back.into_iter().map(|back| Step::Back(back.lane, back.token)));
    }

    /// One statement is executed, or one answer heard.
    fn step(&mut self, choice: usize) {
        if self.steps.is_empty() {
            return;
        }
        let step = self.steps.swap_remove(choice % self.steps.len());
        match step {
            Step::Claim { plan, awaited: false } => {
                self.claim(&plan);
            }
            Step::Claim { plan, awaited: true } => {
                let ticket = plan.ticket;
                if choice % 7 == 3 {
                    self.steps.push(Step::ClaimLost(ticket));
                    if choice % 2 == 0 {
                        let awaited = false;
                        self.steps.push(Step::Claim { plan, awaited });
                    } else {
                        self.claim(&plan);
                    }
                } else {
                    let answer = self.claim(&plan);
                    self.steps.push(Step::Claimed(ticket, answer));
                }
            }
            Step::Claimed(ticket, answer) => {
                let (back, _) = self.lanes.on_claim(ticket, answer, self.time as i64);
                self.back(back);
            }
            Step::ClaimLost(ticket) => {
                let doubtful = self.lanes.on_claim_failed(ticket, true);
                if !doubtful.is_empty() {
                    self.steps.push(Step::Settle(ticket, doubtful));
                }
            }
            Step::Settle(ticket, slots) => {
                for (slot, epoch, _) in &slots {
                    if self.epochs[slot] == *epoch {
                        let settled = self.settled.entry(*slot).or_insert(ticket);
                        *settled = ticket.max(*settled);
                    }
                }
                let tokens = self
                    .rows
                    .iter()
                    .filter_map(|(id, row)| {
                        let slot = slot_of(row.key);
                        let epoch = row.epoch.filter(|epoch| {
                            slots
                                .iter()
                                .any(|(of, at, start)| *of == slot && at == epoch && start <= id)
                        })?;
                        Some(Token {
                            id: TaskId { slot, number: *id },
                            epoch,
                            attempt: row.attempt,
                        })
                    })
                    .collect();
                for token in self.lanes.strays(tokens) {
                    self.lanes.doubt(token.id.slot);
                    self.steps.push(Step::Back(0, token));
                }
                slots
                    .into_iter()
                    .for_each(|(slot, epoch, _)| self.lanes.resolve(slot, epoch));
            }
            Step::Note(mark, starts) => {
                for start in starts {
                    if !self.lanes.is_active(start.lane, start.run) {
                        continue;
                    }
                    let token = start.task.token();
                    if self.holds(token) {
                        self.rows.get_mut(&token.id.number).unwrap().trial = mark;
                    }
                    self.lanes.seated(start.run, self.time as i64);
                    self.start(start);
                }
            }
            Step::Finish(start) => {
                let token = start.task.token();
                let held = self.holds(token);
                if held {
                    self.end(token.id.number);
                }
                self.steps.push(Step::Finished(start));
            }
            Step::Finished(start) => {
                self.lanes.done(start.lane, start.run);
                self.lanes.mark(start.task.id.slot, false);
            }
            Step::Retry(start) => {
                let token = start.task.token();
                if self.holds(token) {
                    let row = self.rows.get_mut(&token.id.number).unwrap();
                    row.epoch = None;
                    row.waits = true;
                    row.trial = 0;
                    self.held.insert(row.key, token.id.number);
                }
                self.steps.push(Step::Settled(start.lane, token));
            }
            Step::Back(lane, token) => {
                if self.holds(token) {
                    self.rows.get_mut(&token.id.number).unwrap().epoch = None;
                }
                self.steps.push(Step::Settled(lane, token));
            }
            Step::Settled(0, token) => self.lanes.resolve(token.id.slot, token.epoch),
            Step::Settled(lane, token) => self.lanes.settled(lane, token),
            Step::Poll(poll) => self.lanes.on_horizon(poll),
            Step::Promote {
                ticket,
                slot,
                epoch,
                awaited,
            } => {
                let late = awaited && choice % 6 == 0;
                let admitted = !late && self.admits(slot, epoch, ticket);
                let mut ids = Vec::new();
                for (id, row) in &mut self.rows {
                    if admitted && row.waits && slot_of(row.key) == slot {
                        row.waits = false;
                        ids.push(*id);
                    }
                }
                if late {
                    self.steps.push(Step::Promote {
                        ticket,
                        slot,
                        epoch,
                        awaited: false,
                    });
                }
                if awaited {
                    self.steps.push(Step::Promoted {
                        ticket,
                        slot,
                        epoch,
                        ids,
                        lost: choice % 3 == 0,
                    });
                }
            }
            Step::Promoted {
                ticket,
                slot,
                epoch,
                ids,
                lost,
            } => {
                if self.lanes.epoch(slot) != Some(epoch) {
                    return;
                }
                self.lanes.unpin(slot);
                if lost {
                    self.lanes.doubt(slot);
                    self.steps
                        .push(Step::Settle(ticket, vec![(slot, epoch, i64::MAX)]));
                    return;
                }
                for id in ids {
                    self.lanes.lower(slot, id);
                    self.lanes.mark(slot, false);
                }
            }
        }
    }

    /// Postgres crashes: open transactions are gone, and numbers that nobody made durable are given out again.
    fn crash(&mut self) {
        for id in std::mem::take(&mut self.open).into_values() {
            self.rows.remove(&id);
        }
        (self.next_id, self.next_xid) = (self.durable.0 + 1, self.durable.1 + 1);
    }

    /// P4: nothing of its key that was answered before it was sent is still open; nothing of its key runs.
    fn start(&mut self, start: Start) {
        let id = start.task.id.number;
        if let Some(row) = self.rows.get(&id) {
            let before = self.rows.range(..id).find(|(_, other)| {
                other.key == row.key && other.committed.is_some_and(|answered| answered < row.sent)
            });
            assert!(before.is_none(), "{id} overtook {before:?}");
        }
        assert!(
            !self.running.iter().any(|other| other.task.key == start.task.key),
            "two of {:?} at once",
            start.task.key
        );
        self.running.push(start);
    }

    fn run_some(&mut self, most: usize) {
        while self.running.len() < most {
            let Some(start) = self.lanes.take() else { break };
            self.start(start);
        }
        if let Some((mark, starts)) = self.lanes.take_suspects() {
            assert!(mark == 1 || starts.len() == 1);
            self.steps.push(Step::Note(mark, starts));
        }
    }

    fn poll(&mut self) {
        // Answers come in order: one poll at a time.
        if self.steps.iter().any(|step| matches!(step, Step::Poll(_))) {
            return;
        }
        let here = self.next_xid;
        self.next_xid += 1;
        self.durable = (self.next_id - 1, here);
        let xmin = self.open.keys().next().copied().unwrap_or(self.next_xid);
        self.steps.push(Step::Poll(Horizon {
            last_id: self.next_id - 1,
            here,
            xmin,
        }));
    }

    fn act(&mut self, action: u8, choice: usize) {
        self.time += 1;
        match action {
            0..=2 => {
                let priority = if choice / 8 % 5 == 0 { 9 } else { 0 };
                self.begin_submit(choice % self.keys, priority);
                if choice / 64 % 3 > 0 {
                    self.time += 1;
                    let last = self.open.len() - 1;
                    self.commit(last, choice / 512 % 4 > 0);
                }
            }
            3 => self.commit(choice, choice % 2 == 0),
            4 | 5 => {
                if let Some(plan) = self.lanes.plan() {
                    let awaited = true;
                    self.steps.push(Step::Claim { plan, awaited });
                }
            }
            6..=9 => self.step(choice),
            10 => self.run_some(4),
            11 | 12 => {
                if !self.running.is_empty() {
                    let start = self.running.swap_remove(choice % self.running.len());
                    self.steps.push(Step::Finish(start));
                }
            }
            13 => {
                if !self.running.is_empty() {
                    let start = self.running.swap_remove(choice % self.running.len());
                    let back = self.lanes.close(start.lane, Some(start.run));
                    self.back(back);
                    self.steps.push(Step::Retry(start));
                }
            }
            14 => self.promote(),
            15 => self.poll(),
            16 => {
                let ids: Vec<i64> = self
                    .rows
                    .iter()
                    .filter(|(_, row)| row.committed.is_some())
                    .map(|(id, _)| *id)
                    .collect();
                if let Some(id) = ids.get(choice % ids.len().max(1)).copied() {
                    let slot = slot_of(self.rows[&id].key);
                    self.end(id);
                    if choice % 3 > 0 {
                        let _ = self.lanes.cancelled(TaskId { slot, number: id });
                    }
                }
            }
            17 => {
                let slot = Slot::new(PLACES[choice % PLACES.len()]).unwrap();
                match choice % 8 {
                    0 => self.grant(slot),
                    1 | 2 => {
                        let back = self.lanes.leave(slot);
                        self.back(back);
                    }
                    _ => self.lanes.stay(slot),
                }
            }
            18 if choice % 4 == 0 => self.crash(),
            _ => self
                .lanes
                .mark(Slot::new(PLACES[choice % PLACES.len()]).unwrap(), choice % 2 == 0),
        }
        let (tasks, active, _) = self.lanes.counts();
        let most = ROOM.tasks + ROOM.tasks / 4 + ROOM.tasks / SHARE + URGENT_ROOM;
        assert!(tasks + self.lanes.reserved <= most);
        assert!(self.lanes.hurried <= tasks && self.lanes.reserved_for_oldest <= self.lanes.reserved);
        assert!(active <= tasks);
    }

    fn promote(&mut self) {
        for place in PLACES {
            let slot = Slot::new(place).unwrap();
            self.lanes.pin(slot);
            self.steps.push(Step::Promote {
                ticket: self.lanes.ticket(),
                slot,
                epoch: self.epochs[&slot],
                awaited: true,
            });
        }
    }

    /// With everybody at work and the tick's full probes, all that was accepted ends.
    fn drain(&mut self) {
        while !self.open.is_empty() {
            self.commit(0, false);
        }
        for round in 0..2000 {
            self.time += 1;
            if self.rows.is_empty() && self.steps.is_empty() && self.running.is_empty() {
                break;
            }
            for place in PLACES {
                let slot = Slot::new(place).unwrap();
                self.lanes.stay(slot);
                self.lanes.reset(slot);
                self.lanes.mark(slot, true);
            }
            self.promote();
            self.act(4, 0);
            // 5: answers are heard, and not lost.
            while !self.steps.is_empty() {
                self.step(5);
            }
            self.lanes.free_seats(i64::from(round) * 10_000);
            self.run_some(usize::MAX);
            for start in std::mem::take(&mut self.running) {
                self.steps.push(Step::Finish(start));
            }
        }
        assert!(
            self.rows.is_empty(),
            "left over: {:?}; {:?}",
            self.rows,
            self.lanes
        );
        while !self.steps.is_empty() {
            self.step(5);
        }
        self.lanes.set_aside_dirt();
        assert_eq!(self.lanes.counts(), (0, 0, 0), "{:?}", self.lanes);
        assert_eq!(
            (
                self.lanes.hurried,
                self.lanes.reserved,
                self.lanes.reserved_for_oldest
            ),
            (0, 0, 0)
        );
        for place in PLACES {
            assert!(self.lanes.is_quiet(Slot::new(place).unwrap()));
        }
    }
}

impl Lanes {
    /// Cancelled tasks whose hint was lost may wait in their lanes still; their finish would get 0 rows.
    fn set_aside_dirt(&mut self) {
        while let Some(start) = self.take() {
            self.done(start.lane, start.run);
        }
        while let Some((_, starts)) = self.take_suspects() {
            starts
                .into_iter()
                .for_each(|start| self.done(start.lane, start.run));
        }
    }
}

/// What order hangs on, often, and few keys: commits that are late, polls, answers that come late, holds.
fn close_calls() -> impl Strategy<Value = Vec<(u8, u16)>> {
    let action = prop_oneof![
        4 => Just(0_u8),
        3 => Just(3),
        6 => Just(4),
        14 => Just(6),
        4 => Just(10),
        4 => Just(11),
        2 => Just(13),
        2 => Just(14),
        6 => Just(15),
        2 => Just(16),
        1 => Just(18),
    ];
    prop::collection::vec((action, any::<u16>()), 1..200)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_key_runs_one_at_a_time_in_order_and_nothing_is_lost(
        actions in prop::collection::vec((0_u8..19, any::<u16>()), 1..300)
    ) {
        let mut world = World::new();
        for (action, choice) in actions {
            world.act(action, usize::from(choice));
        }
        world.drain();
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 1500, max_shrink_iters: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn late_commits_late_answers_and_lifted_holds_keep_the_order(actions in close_calls()) {
        let mut world = World::new();
        world.keys = 2;
        for (action, choice) in actions {
            world.act(action, usize::from(choice));
        }
        world.drain();
    }
}

fn answer(world: &mut World, plan: Plan) {
    let answer = world.claim(&plan);
    let (back, _) = world.lanes.on_claim(plan.ticket, answer, 0);
    assert!(back.is_empty());
}

fn polls(world: &mut World, count: usize) {
    for _ in 0..count {
        world.poll();
        world.step(0);
    }
}

#[test]
fn a_task_that_commits_late_without_a_hint_is_not_overtaken() {
    let mut world = World::new();
    while let Some(plan) = world.lanes.plan() {
        answer(&mut world, plan);
    }
    // Task 1 takes its number; task 2 of the same key does and commits: a claim takes 2 alone, and must not look past 1.
    world.begin_submit(0, 0);
    world.begin_submit(1, 0);
    world.time += 1;
    world.commit(1, true);
    polls(&mut world, 5);
    let plan = world.lanes.plan().unwrap();
    answer(&mut world, plan);
    assert_eq!(world.lanes.take().unwrap().task.id.number, 2);
    // Task 1 commits, its hint is lost; its client then sends task 3 of the same key, with a hint.
    world.time += 1;
    world.commit(0, false);
    world.time += 1;
    world.begin_submit(0, 0);
    world.time += 1;
    world.commit(0, true);
    let plan = world.lanes.plan().unwrap();
    answer(&mut world, plan);
    assert_eq!(world.lanes.take().unwrap().task.id.number, 1);
    assert!(world.lanes.take().is_none());
}

#[test]
fn the_start_of_probes_rises_with_the_horizon_only() {
    let mut world = World::new();
    for _ in 0..3 {
        world.begin_submit(0, 0);
    }
    world.commit(0, false);
    world.commit(1, false);
    // 2 is open. Its number is 2, since 1 and 3 were committed.
    let start = |world: &World| world.lanes.slots[slot_of(0).index()].as_ref().unwrap().start;
    let look = |world: &mut World| {
        world.lanes.mark(slot_of(0), false);
        while let Some(plan) = world.lanes.plan() {
            answer(world, plan);
        }
    };
    look(&mut world);
    polls(&mut world, 3);
    look(&mut world);
    assert_eq!(
        start(&world),
        0,
        "a transaction is open that is older than every poll"
    );
    world.commit(0, false);
    polls(&mut world, 2);
    look(&mut world);
    assert_eq!(start(&world), 4);
    world.held.insert(0, 99);
    world.begin_submit(0, 0);
    world.commit(0, false);
    polls(&mut world, 2);
    look(&mut world);
    assert_eq!(start(&world), 4, "the slot has a held key");
}

#[test]
fn priority_orders_between_keys_and_waiting_makes_up_for_it() {
    let mut lanes = Lanes::new(ROOM);
    let slot = slot_of(0);
    lanes.grant(slot, Epoch(1));
    let mut world = World::new();
    for (key, priority) in [(0, 0), (1, 9), (2, 1)] {
        world.begin_submit(key, priority);
        world.commit(0, true);
    }
    while let Some(plan) = world.lanes.plan() {
        answer(&mut world, plan);
    }
    let order: Vec<i64> = std::iter::from_fn(|| world.lanes.take())
        .map(|start| start.task.id.number)
        .collect();
    assert_eq!(order, [2, 3, 1]);
    let plan = lanes.plan().unwrap();
    let mut task = |number: i64, priority: u8, now: i64| {
        let mut task = world_task(number, slot);
        task.priority = priority;
        lanes.put(task, false, now);
    };
    task(1, 0, 0);
    task(2, 9, 45_001);
    lanes.on_claim_failed(plan.ticket, false);
    assert_eq!(lanes.take().unwrap().task.id.number, 1);
}

#[test]
fn a_flood_of_urgent_tasks_does_not_keep_the_others_out_of_memory() {
    // First the flood fills the slot of the other task, then the whole memory from another slot.
    let floods = [
        (
            Room {
                tasks: 4096,
                per_slot: 16,
            },
            1,
        ),
        (
            Room {
                tasks: 1024,
                per_slot: 4096,
            },
            KEYS,
        ),
    ];
    for (room, first_key) in floods {
        let mut world = World::new();
        world.lanes = Lanes::new(room);
        for (slot, epoch) in world.epochs.clone() {
            world.lanes.grant(slot, epoch);
        }
        let submit = |world: &mut World, key: usize, priority: u8| {
            world.begin_submit(key, priority);
            world.commit(0, true);
        };
        for number in 0..2_000 {
            submit(&mut world, first_key + number % 2, 9);
        }
        let (mut plain, mut ended, mut urgent_claims) = (None, None, 0);
        for round in 0..4_000 {
            if round == 100 {
                plain = Some(world.next_id);
                submit(&mut world, 0, 0);
            }
            while let Some(plan) = world.lanes.plan() {
                urgent_claims += usize::from(plan.urgent);
                let answer = world.claim(&plan);
                world.lanes.on_claim(plan.ticket, answer, round * 10);
            }
            // One ends, another one comes.
            let start = world.lanes.take().unwrap();
            let id = start.task.id.number;
            world.lanes.done(start.lane, start.run);
            world.end(id);
            if Some(id) == plain {
                ended = Some(round);
                break;
            }
            let key = first_key + usize::try_from(round).unwrap() % 2;
            submit(&mut world, key, 9);
        }
        assert!(urgent_claims > 10, "{room:?}: {urgent_claims} urgent claims");
        let ended = ended.unwrap_or_else(|| panic!("{room:?}: it never ran"));
        println!("{room:?}: it ran after {} others", ended - 100);
    }
}

fn world_task(number: i64, slot: Slot) -> Claimed {
    Claimed {
        id: TaskId { slot, number },
        epoch: Epoch(1),
        attempt: 1,
        key: Key::new(format!("k{number}")).unwrap(),
        kind: "noop".to_owned(),
        payload: None,
        priority: 0,
        failures: 0,
        crashes: 0,
        trial: 0,
        lost: false,
        head: false,
        max_attempts: 10,
        timeout: std::time::Duration::from_secs(1),
        waiter: None,
        created_at: DateTime::UNIX_EPOCH,
    }
}

#[test]
fn suspects_run_few_at_a_time_and_those_of_the_second_degree_alone() {
    let mut lanes = Lanes::new(Room {
        tasks: 1000,
        per_slot: 1000,
    });
    let slot = slot_of(0);
    lanes.grant(slot, Epoch(1));
    for number in 1..=20 {
        lanes.put(
            Claimed {
                lost: true,
                trial: -1,
                ..world_task(number, slot)
            },
            false,
            0,
        );
    }
    for number in 21..=22 {
        lanes.put(
            Claimed {
                lost: true,
                trial: -2,
                ..world_task(number, slot)
            },
            false,
            0,
        );
    }
    lanes.put(world_task(23, slot), false, 0);
    assert_eq!(
        lanes.take().unwrap().task.id.number,
        23,
        "other keys do not wait for suspects"
    );
    assert!(lanes.take().is_none());
    let (mark, first) = lanes.take_suspects().unwrap();
    assert_eq!((mark, first.len()), (1, 16));
    assert!(lanes.take_suspects().is_none());
    first.iter().for_each(|start| lanes.seated(start.run, 0));
    lanes.free_seats(4999);
    assert!(lanes.take_suspects().is_none());
    lanes.free_seats(5000);
    let (mark, rest) = lanes.take_suspects().unwrap();
    assert_eq!((mark, rest.len()), (1, 4));
    assert!(
        lanes.take_suspects().is_none(),
        "the second degree waits until no suspect sits"
    );
    rest.iter().for_each(|start| lanes.done(start.lane, start.run));
    let (mark, alone) = lanes.take_suspects().unwrap();
    assert_eq!((mark, alone.len()), (2, 1));
    assert!(lanes.take_suspects().is_none());
    lanes.done(alone[0].lane, alone[0].run);
    assert_eq!(lanes.take_suspects().unwrap().1.len(), 1);
}
