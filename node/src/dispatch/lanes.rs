//! The lanes of the keys whose slots this node owns: what may start, what may be claimed, from where to look.
//!
//! Pure: no IO, no clock (times are given, in milliseconds), no randomness. The engine acts on the answers.
//!
//! # Order within a key (P4)
//!
//! If a submit was answered before the next of its key was sent, its task has the lower number, and both are to start in that
//! order. Three rules keep it:
//!
//! 1. *A lane runs one task at a time, the lowest number first, and the next only after the end of the one before is known
//!    to be committed* ([`Lanes::done`], [`Lanes::settled`]).
//! 2. *While tasks of a key are being sent back to Postgres, its lane is closed, and no claim of its slot begins.* It opens
//!    when all of them are known to be back **and** no claim of the slot is in flight: that one began before, and may bring
//!    later tasks of the key, read before the earlier ones were back, or before the hold of a retry was visible. What it
//!    brings for the key is sent back as well. What a later claim brings obeys the holds in Postgres, which its snapshot
//!    contains, and starts with the lowest number.
//! 3. *A probe starts no higher than the lowest task that a claim could still have to find.* This is the `start` of a slot.
//!    A hint may be lost, or overtake another, so hints decide nothing here. A claim that looked from `start` on and did not
//!    fill its room has taken all that was due and visible. What it could not see is: tasks whose transaction had not ended;
//!    tasks that hide behind a held key; and what its room left over. So after a claim the start rises to the *horizon* as it
//!    was known before that claim began (below it, every number's transaction has ended), or, if its room was filled, to
//!    the last number that it took, whichever is less; and it rises not at all while the slot has held keys, since a
//!    cancel at another node may lift a hold at any time. Whatever makes an earlier task claimable again (a return, a
//!    promotion) lowers the start; a grant begins at 0. While a promotion is in flight the slot is pinned: probes begin at 0.
//!
//! The horizon comes from polls of `horizon.sql`: a poll reads the last number given (`last_id`), then takes a transaction
//! number (`here`). Who holds a task number took its transaction number before it, so it is below `here`. Once a later poll
//! sees that all transactions below `here` have ended (`xmin >= here`), every task up to `last_id` is visible to all later
//! snapshots, or never will be. A poll's own commit writes WAL and waits for it, so that a crash of Postgres takes back
//! neither of the two numbers; what it does take back was given to transactions that died with it.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use ringmesh_ring::{Epoch, Key, SLOTS, Slot};

use crate::store::{ClaimAnswer, Horizon, Probe, Ticket, Token};
use crate::task::{Claimed, TaskId};

/// Names a lane for its life; never reused.
pub(crate) type LaneId = u64;
/// Names a run of a task; never reused.
pub(crate) type RunId = u64;

/// A step of priority is worth this much waiting. More: urgent tasks overtake older ones; less: the others wait less long under a
/// flood of urgent ones, at most nine steps.
const PRIORITY_MS: i64 = 1000;
/// At most so many slots in one claim.
const SLOTS_PER_CLAIM: usize = 256;
/// A probe has room for this many at least, unless memory is short, and this many at most.
const ROOM_PER_PROBE: (usize, usize) = (8, 64);
/// An urgent probe picks this many urgent tasks; each may bring 32 of its key, itself included.
const URGENT_PER_PROBE: usize = 2;
const URGENT_ROOM: usize = URGENT_PER_PROBE * 32;
/// However many urgent tasks there are, the others may have this part of the room: a task that is not in memory does not age.
const SHARE: usize = 8;
/// How many suspects run at once while none of them has to run alone.
const SUSPECTS: usize = 16;
/// A suspect that has run for so long makes room for the next.
const SEAT_MS: i64 = 5000;

/// Bounds of what is in memory.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Tasks claimed and not yet ended. Urgent claims may exceed it by a quarter; [`SHARE`] says what is left to the others.
    pub(crate) tasks: usize,
    /// Of these, of one slot.
    pub(crate) per_slot: usize,
}

/// A claim to be made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Plan {
    pub(crate) ticket: Ticket,
    pub(crate) urgent: bool,
    pub(crate) probes: Vec<Probe>,
}

/// A task whose turn it is.
#[derive(Debug)]
pub(crate) struct Start {
    pub(crate) run: RunId,
    pub(crate) lane: LaneId,
    pub(crate) task: Claimed,
}

/// A claimed task to be sent back to Postgres.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Return {
    pub(crate) lane: LaneId,
    pub(crate) token: Token,
}

/// What is known here of a task that was cancelled elsewhere.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Cancelled {
    /// It runs.
    Runs(RunId),
    /// It did not run here.
    Forgotten,
}

#[derive(Debug)]
pub(crate) struct Lanes {
    room: Room,
    slots: Vec<Option<Owned>>,
    lanes: HashMap<LaneId, Lane>,
    /// Lanes whose next task may start: rank, number of that task, lane.
    ready: BTreeSet<(i64, i64, LaneId)>,
    /// The same for lanes whose next task is a suspect of level 1 or 2.
    suspects: [BTreeSet<(i64, i64, LaneId)>; 2],
    seats: BTreeMap<RunId, Seat>,
    dirty: VecDeque<Slot>,
    urgent: VecDeque<Slot>,
    claims: HashMap<Ticket, (Plan, i64)>,
    polls: VecDeque<(i64, i64)>,
    last_poll: Option<Horizon>,
    horizon: i64,
    tasks: usize,
    /// Of these, those that urgent claims brought.
    hurried: usize,
    active: usize,
    reserved: usize,
    /// Of these, for claims of the oldest.
    reserved_for_oldest: usize,
    /// The last claim was an urgent one: those of the oldest are next in turn.
    was_urgent: bool,
    next: u64,
    last_ticket: Ticket,
}

#[derive(Debug)]
struct Seat {
    level: usize,
    /// `None`: its start is being noted.
    since: Option<i64>,
}

#[derive(Debug)]
struct Owned {
    epoch: Epoch,
    leaving: bool,
    start: i64,
    /// The claim in flight, and the lowest number that became claimable since it began.
    claim: Option<Ticket>,
    lowered: i64,
    pins: u32,
    /// More than 0: a claim's outcome is unknown; nothing is claimed until what it took is back.
    doubts: u32,
    dirty: bool,
    queued: bool,
    urgent: bool,
    urgent_queued: bool,
    tasks: usize,
    /// The numbers of those that urgent claims brought.
    hurried: HashSet<i64>,
    lanes: HashMap<Key, LaneId>,
    closed: Vec<LaneId>,
}

impl Owned {
    /// Whether a claim may begin. Not while a lane is closed: what it brought for that key would have to go back, which
    /// could go on for ever.
    fn is_claimable(&self) -> bool {
        !self.leaving && self.claim.is_none() && self.doubts == 0 && self.closed.is_empty()
    }

    /// How many more of its oldest tasks may come into memory.
    fn room_for_oldest(&self, per_slot: usize) -> usize {
        let oldest = self.tasks - self.hurried.len();
        let share = (per_slot / SHARE).max(1).saturating_sub(oldest);
        per_slot.saturating_sub(self.tasks).max(share)
    }
}

#[derive(Debug)]
struct Lane {
    slot: Slot,
    key: Key,
    /// Ascending by number; with the time of the claim.
    waiting: VecDeque<(i64, Claimed)>,
    active: Option<(RunId, Token)>,
    queued: Option<(usize, i64, i64)>,
    /// `Some`: closed; with the tasks that are being sent back.
    closed: Option<Vec<Token>>,
}

fn level(task: &Claimed) -> usize {
    usize::from(task.trial.unsigned_abs()).min(2)
}

impl Lanes {
    pub(crate) fn new(room: Room) -> Self {
        Lanes {
            room,
            slots: (0..SLOTS).map(|_| None).collect(),
            lanes: HashMap::new(),
            ready: BTreeSet::new(),
            suspects: [BTreeSet::new(), BTreeSet::new()],
            seats: BTreeMap::new(),
            dirty: VecDeque::new(),
            urgent: VecDeque::new(),
            claims: HashMap::new(),
            polls: VecDeque::new(),
            last_poll: None,
            horizon: 0,
            tasks: 0,
            hurried: 0,
            active: 0,
            reserved: 0,
            reserved_for_oldest: 0,
            was_urgent: false,
            next: 1,
            last_ticket: Ticket(0),
        }
    }

    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    /// For a claim or a promotion that is about to be sent.
    pub(crate) fn ticket(&mut self) -> Ticket {
        self.last_ticket.0 += 1;
        self.last_ticket
    }

    fn owned(&mut self, slot: Slot) -> Option<&mut Owned> {
        self.slots[slot.index()].as_mut()
    }

    // ---- slots ----

    /// The slot is ours now. A grant of what we hold already begins it anew only under a new epoch.
    pub(crate) fn grant(&mut self, slot: Slot, epoch: Epoch) -> Vec<RunId> {
        let gone = match self.owned(slot) {
            Some(owned) if owned.epoch == epoch => return Vec::new(),
            Some(owned) => {
                let old = owned.epoch;
                self.lose(slot, old)
            }
            None => Vec::new(),
        };
        self.slots[slot.index()] = Some(Owned {
            epoch,
            leaving: false,
            start: 0,
            claim: None,
            lowered: i64::MAX,
            pins: 0,
            doubts: 0,
            dirty: true,
            queued: false,
            urgent: true,
            urgent_queued: false,
            tasks: 0,
            hurried: HashSet::new(),
            lanes: HashMap::new(),
            closed: Vec::new(),
        });
        self.enqueue(slot);
        gone
    }

    /// Claims no more of it. Answers with what is claimed and did not start.
    pub(crate) fn leave(&mut self, slot: Slot) -> Vec<Return> {
        let Some(owned) = self.owned(slot) else {
            return Vec::new();
        };
        owned.leaving = true;
        let mut lanes: Vec<LaneId> = owned.lanes.values().copied().collect();
        lanes.sort_unstable();
        lanes
            .into_iter()
            .flat_map(|lane| self.close(lane, None))
            .collect()
    }

    /// It stays after all.
    pub(crate) fn stay(&mut self, slot: Slot) {
        let Some(owned) = self.owned(slot) else { return };
        if owned.leaving {
            owned.leaving = false;
            self.reset(slot);
            self.mark(slot, true);
        }
    }

    /// It is not ours any more: forgets it, if we hold it under this epoch. Answers with the runs that are void now.
    pub(crate) fn lose(&mut self, slot: Slot, epoch: Epoch) -> Vec<RunId> {
        match self.owned(slot) {
            Some(owned) if owned.epoch == epoch => {}
            _ => return Vec::new(),
        }
        let Some(owned) = self.slots[slot.index()].take() else {
            return Vec::new();
        };
        self.tasks -= owned.tasks;
        self.hurried -= owned.hurried.len();
        let mut runs = Vec::new();
        for id in owned.lanes.into_values() {
            self.unqueue(id);
            if let Some((run, _)) = self.lanes.remove(&id).and_then(|lane| lane.active) {
                self.active -= 1;
                self.seats.remove(&run);
                runs.push(run);
            }
        }
        runs.sort_unstable();
        runs
    }

    /// The slots held, ascending, those that leave included.
    pub(crate) fn slots(&self) -> impl Iterator<Item = (Slot, Epoch)> + '_ {
        self.held().map(|(slot, owned)| (slot, owned.epoch))
    }

    /// The slots held that do not leave.
    pub(crate) fn staying(&self) -> impl Iterator<Item = (Slot, Epoch)> + '_ {
        self.held()
            .filter(|(_, owned)| !owned.leaving)
            .map(|(slot, owned)| (slot, owned.epoch))
    }

    fn held(&self) -> impl Iterator<Item = (Slot, &Owned)> + '_ {
        Slot::all()
            .zip(&self.slots)
            .filter_map(|(slot, owned)| Some((slot, owned.as_ref()?)))
    }

    pub(crate) fn epoch(&self, slot: Slot) -> Option<Epoch> {
        self.slots[slot.index()].as_ref().map(|owned| owned.epoch)
    }

    pub(crate) fn is_leaving(&self, slot: Slot) -> bool {
        self.slots[slot.index()]
            .as_ref()
            .is_some_and(|owned| owned.leaving)
    }

    /// Whether nothing of the slot is claimed here, and no claim of it is in flight or in doubt.
    pub(crate) fn is_quiet(&self, slot: Slot) -> bool {
        self.slots[slot.index()]
            .as_ref()
            .is_none_or(|owned| owned.tasks == 0 && owned.claim.is_none() && owned.doubts == 0)
    }

    /// There is news for the slot. Counts also while a claim of it is in flight.
    pub(crate) fn mark(&mut self, slot: Slot, urgent: bool) {
        if let Some(owned) = self.owned(slot) {
            owned.dirty = true;
            owned.urgent |= urgent;
            self.enqueue(slot);
        }
    }

    /// A task from this number on may be claimable that was not before.
    pub(crate) fn lower(&mut self, slot: Slot, number: i64) {
        if let Some(owned) = self.owned(slot) {
            owned.start = owned.start.min(number);
            owned.lowered = owned.lowered.min(number);
        }
    }

    /// The next probe of the slot looks at everything.
    pub(crate) fn reset(&mut self, slot: Slot) {
        self.lower(slot, 0);
    }

    /// Until the matching [`Lanes::unpin`], probes of the slot look at everything.
    pub(crate) fn pin(&mut self, slot: Slot) {
        if let Some(owned) = self.owned(slot) {
            owned.pins += 1;
        }
    }

    pub(crate) fn unpin(&mut self, slot: Slot) {
        if let Some(owned) = self.owned(slot) {
            owned.pins = owned.pins.saturating_sub(1);
        }
    }

    /// Where a look without a claim begins; `None` if a claim will look anyway.
    pub(crate) fn look(&self, slot: Slot) -> Option<Probe> {
        let owned = self.slots[slot.index()].as_ref()?;
        if owned.leaving || owned.dirty || owned.claim.is_some() {
            return None;
        }
        Some(Probe {
            slot,
            epoch: owned.epoch,
            start: owned.start,
            room: 0,
        })
    }

    fn enqueue(&mut self, slot: Slot) {
        let Some(owned) = self.slots[slot.index()].as_mut() else {
            return;
        };
        if !owned.is_claimable() {
            return;
        }
        if owned.dirty && !owned.queued && owned.room_for_oldest(self.room.per_slot) > 0 {
            owned.queued = true;
            self.dirty.push_back(slot);
        }
        if owned.urgent && !owned.urgent_queued && owned.tasks < 2 * self.room.per_slot {
            owned.urgent_queued = true;
            self.urgent.push_back(slot);
        }
    }

    // ---- the horizon ----

    /// A poll's answer; polls come one after the other.
    pub(crate) fn on_horizon(&mut self, poll: Horizon) {
        if let Some(last) = self.last_poll.replace(poll)
            && (poll.last_id < last.last_id || poll.here <= last.here)
        {
            self.forget_horizon();
        }
        while let Some((last_id, here)) = self.polls.front().copied() {
            if poll.xmin < here {
                break;
            }
            self.horizon = self.horizon.max(last_id + 1);
            self.polls.pop_front();
        }
        // A transaction that stays open for hours must not fill the memory; a later poll covers what is left out.
        if self.polls.len() < 1024 {
            self.polls.push_back((poll.last_id, poll.here));
        }
    }

    /// The server gave numbers back: another history than the one that the horizon was learned from. A crash does not do that,
    /// since polls are durable; a restored or promoted server may.
    fn forget_horizon(&mut self) {
        self.polls.clear();
        self.horizon = 0;
        for (_, horizon) in self.claims.values_mut() {
            *horizon = 0;
        }
        for owned in self.slots.iter_mut().flatten() {
            owned.start = 0;
            owned.lowered = 0;
        }
    }

    // ---- claims ----

    /// The next claim, if there is a dirty slot and room for its tasks. In turns, so that neither sort starves the other.
    pub(crate) fn plan(&mut self) -> Option<Plan> {
        let plan = if self.was_urgent {
            self.plan_oldest().or_else(|| self.plan_urgent())
        } else {
            self.plan_urgent().or_else(|| self.plan_oldest())
        };
        self.was_urgent = plan.as_ref().is_some_and(|plan| plan.urgent);
        plan
    }

    fn free(&self, room: usize) -> usize {
        room.saturating_sub(self.tasks + self.reserved)
    }

    fn free_for_oldest(&self) -> usize {
        let oldest = self.tasks - self.hurried + self.reserved_for_oldest;
        let share = (self.room.tasks / SHARE).saturating_sub(oldest);
        self.free(self.room.tasks).max(share)
    }

    fn plan_urgent(&mut self) -> Option<Plan> {
        let most = (self.free(self.room.tasks + self.room.tasks / 4) / URGENT_ROOM).min(SLOTS_PER_CLAIM);
        let mut slots = Vec::new();
        while slots.len() < most {
            let Some(slot) = self.urgent.pop_front() else {
                break;
            };
            let Some(owned) = self.owned(slot) else { continue };
            owned.urgent_queued = false;
            if owned.urgent && owned.is_claimable() {
                owned.urgent = false;
                slots.push((slot, URGENT_PER_PROBE));
            }
        }
        self.begin(slots, true)
    }

    fn plan_oldest(&mut self) -> Option<Plan> {
        let free = self.free_for_oldest();
        let want = self.dirty.len().min(SLOTS_PER_CLAIM);
        // Rather wait for room than make many small claims.
        if want == 0 || (free < self.room.tasks / 8 && free < want * ROOM_PER_PROBE.0) {
            return None;
        }
        let (least, most) = ROOM_PER_PROBE;
        // Where urgent tasks leave only the share, it goes to as many slots as it can: what is claimed then waits in memory for its turn.
        let least = if self.free(self.room.tasks) < free {
            1
        } else {
            least
        };
        let each = (free / want).clamp(least, most).min(free);
        let per_slot = self.room.per_slot;
        let mut left = free;
        let mut slots = Vec::new();
        while slots.len() < SLOTS_PER_CLAIM && left >= each && each > 0 {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some(owned) = self.owned(slot) else { continue };
            owned.queued = false;
            let room = each.min(owned.room_for_oldest(per_slot));
            // A slot without room stays dirty, and is queued again when one of its tasks ends.
            if !owned.dirty || !owned.is_claimable() || room == 0 {
                continue;
            }
            owned.dirty = false;
            left -= room;
            slots.push((slot, room));
        }
        self.begin(slots, false)
    }

    fn begin(&mut self, mut slots: Vec<(Slot, usize)>, urgent: bool) -> Option<Plan> {
        if slots.is_empty() {
            return None;
        }
        slots.sort_unstable();
        let ticket = self.ticket();
        let mut probes = Vec::with_capacity(slots.len());
        for (slot, room) in slots {
            let Some(owned) = self.slots[slot.index()].as_mut() else {
                continue;
            };
            owned.claim = Some(ticket);
            owned.lowered = i64::MAX;
            self.reserved += if urgent { URGENT_ROOM } else { room };
            self.reserved_for_oldest += if urgent { 0 } else { room };
            let start = if owned.pins > 0 { 0 } else { owned.start };
            probes.push(Probe {
                slot,
                epoch: owned.epoch,
                start,
                room: i32::try_from(room).unwrap_or(i32::MAX),
            });
        }
        let plan = Plan {
            ticket,
            urgent,
            probes,
        };
        self.claims.insert(ticket, (plan.clone(), self.horizon));
        Some(plan)
    }

    fn end_claim(&mut self, ticket: Ticket) -> Option<(Plan, i64)> {
        let (plan, horizon) = self.claims.remove(&ticket)?;
        for probe in &plan.probes {
            let room = usize::try_from(probe.room).unwrap_or(0);
            self.reserved -= if plan.urgent { URGENT_ROOM } else { room };
            self.reserved_for_oldest -= if plan.urgent { 0 } else { room };
        }
        Some((plan, horizon))
    }

    /// A claim's answer. Answers with the tasks that must go back, and the slots that were not ours in Postgres at that
    /// moment (or the node was cut short); those are left for the next tick, so that nothing turns without a pause.
    pub(crate) fn on_claim(
        &mut self,
        ticket: Ticket,
        answer: ClaimAnswer,
        now: i64,
    ) -> (Vec<Return>, Vec<Slot>) {
        let Some((plan, horizon)) = self.end_claim(ticket) else {
            return Default::default();
        };
        let mut last: HashMap<Slot, i64> = HashMap::new();
        for task in &answer.tasks {
            let last = last.entry(task.id.slot).or_default();
            *last = (*last).max(task.id.number);
        }
        let probed: HashMap<Slot, _> = answer
            .probed
            .iter()
            .map(|probed| (probed.slot, *probed))
            .collect();
        let mut missing = Vec::new();
        for probe in &plan.probes {
            let Some(owned) = self.slots[probe.slot.index()].as_mut() else {
                continue;
            };
            if owned.claim != Some(ticket) {
                continue;
            }
            let found = probed.get(&probe.slot).copied();
            if plan.urgent {
                // Says nothing about the tasks without a priority, so the start stays.
                owned.urgent |= found.is_some_and(|found| found.picked > 0);
                continue;
            }
            let Some(found) = found else {
                missing.push(probe.slot);
                continue;
            };
            let full = found.picked >= probe.room;
            owned.dirty |= full;
            let seen = match last.get(&probe.slot) {
                _ if !full => horizon,
                Some(last) => horizon.min(last + 1),
                None => probe.start,
            };
            if !found.holds && owned.pins == 0 {
                owned.start = owned.start.max(seen).min(owned.lowered);
            }
        }
        let mut back = Vec::new();
        for task in answer.tasks {
            back.extend(self.put(task, plan.urgent, now));
        }
        for probe in &plan.probes {
            self.claim_over(probe.slot, ticket);
        }
        (back, missing)
    }

    /// A claim came to nothing. If its outcome is unknown, its slots are in doubt until [`Lanes::resolve`]; they are in the
    /// answer, each with the number from which it looked.
    pub(crate) fn on_claim_failed(&mut self, ticket: Ticket, unknown: bool) -> Vec<(Slot, Epoch, i64)> {
        let Some((plan, _)) = self.end_claim(ticket) else {
            return Vec::new();
        };
        let mut doubtful = Vec::new();
        for probe in &plan.probes {
            let Some(owned) = self.slots[probe.slot.index()].as_mut() else {
                continue;
            };
            if owned.claim != Some(ticket) {
                continue;
            }
            owned.dirty = true;
            owned.urgent |= plan.urgent;
            if unknown {
                owned.doubts += 1;
                doubtful.push((probe.slot, probe.epoch, probe.start));
            }
            self.claim_over(probe.slot, ticket);
        }
        doubtful
    }

    fn claim_over(&mut self, slot: Slot, ticket: Ticket) {
        let Some(owned) = self.slots[slot.index()].as_mut() else {
            return;
        };
        if owned.claim != Some(ticket) {
            return;
        }
        owned.claim = None;
        if owned.doubts == 0 {
            for lane in owned.closed.clone() {
                self.open(lane);
            }
        }
        self.enqueue(slot);
    }

    /// One more thing to wait for before the slot's doubt is over.
    pub(crate) fn doubt(&mut self, slot: Slot) {
        if let Some(owned) = self.owned(slot) {
            owned.doubts += 1;
        }
    }

    /// One thing less.
    pub(crate) fn resolve(&mut self, slot: Slot, epoch: Epoch) {
        let Some(owned) = self.owned(slot).filter(|owned| owned.epoch == epoch) else {
            return;
        };
        owned.doubts = owned.doubts.saturating_sub(1);
        if owned.doubts == 0 {
            for lane in owned.closed.clone() {
                self.open(lane);
            }
            self.reset(slot);
            self.mark(slot, true);
        }
    }

    /// Which of these claims, read from Postgres, are under an epoch that we hold and nobody here knows of.
    pub(crate) fn strays(&self, tokens: Vec<Token>) -> Vec<Token> {
        let known: HashSet<Token> = self
            .lanes
            .values()
            .flat_map(|lane| {
                lane.waiting
                    .iter()
                    .map(|(_, task)| task.token())
                    .chain(lane.active.map(|(_, token)| token))
                    .chain(lane.closed.iter().flat_map(|closed| closed.iter().copied()))
            })
            .collect();
        tokens
            .into_iter()
            .filter(|token| self.epoch(token.id.slot) == Some(token.epoch) && !known.contains(token))
            .collect()
    }

    fn put(&mut self, task: Claimed, hurried: bool, now: i64) -> Option<Return> {
        let slot = task.id.slot;
        let token = task.token();
        if self.epoch(slot) != Some(task.epoch) {
            return None;
        }
        let next = self.number();
        let owned = self.slots[slot.index()].as_mut()?;
        let id = *owned.lanes.entry(task.key.clone()).or_insert(next);
        let leaving = owned.leaving;
        let lane = self.lanes.entry(id).or_insert_with(|| Lane {
            slot,
            key: task.key.clone(),
            waiting: VecDeque::new(),
            active: None,
            queued: None,
            closed: None,
        });
        let place = lane
            .waiting
            .partition_point(|(_, other)| other.id.number < task.id.number);
        if lane
            .waiting
            .get(place)
            .is_some_and(|(_, other)| other.id.number == task.id.number)
        {
            // Claimed once more: the former claim is void.
            lane.waiting[place] = (now, task);
            return None;
        }
        owned.tasks += 1;
        self.tasks += 1;
        if hurried && owned.hurried.insert(task.id.number) {
            self.hurried += 1;
        }
        if lane.closed.is_some() || leaving {
            if lane.closed.is_none() {
                owned.closed.push(id);
            }
            let closed = lane.closed.get_or_insert_default();
            closed.push(token);
            self.unqueue(id);
            return Some(Return { lane: id, token });
        }
        lane.waiting.insert(place, (now, task));
        self.queue(id);
        None
    }

    // ---- lanes ----

    fn unqueue(&mut self, id: LaneId) {
        let Some((set, rank, number)) = self.lanes.get_mut(&id).and_then(|lane| lane.queued.take()) else {
            return;
        };
        self.set(set).remove(&(rank, number, id));
    }

    fn set(&mut self, level: usize) -> &mut BTreeSet<(i64, i64, LaneId)> {
        match level {
            0 => &mut self.ready,
            level => &mut self.suspects[level - 1],
        }
    }

    /// Puts the lane where its next task belongs; removes it if it is empty.
    fn queue(&mut self, id: LaneId) {
        self.unqueue(id);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        if lane.active.is_some() || lane.closed.is_some() {
            return;
        }
        let Some((_, head)) = lane.waiting.front() else {
            let lane = self.lanes.remove(&id);
            if let (Some(lane), Some(owned)) = (
                &lane,
                lane.as_ref()
                    .and_then(|lane| self.slots[lane.slot.index()].as_mut()),
            ) {
                owned.lanes.remove(&lane.key);
            }
            return;
        };
        let (level, number) = (level(head), head.id.number);
        // The best of all that wait: an urgent task hurries those of its key before it.
        let rank = lane
            .waiting
            .iter()
            .map(|(since, task)| since - i64::from(task.priority) * PRIORITY_MS)
            .min()
            .unwrap_or(0);
        lane.queued = Some((level, rank, number));
        self.set(level).insert((rank, number, id));
    }

    fn activate(&mut self, id: LaneId) -> Option<Start> {
        self.unqueue(id);
        let run = self.number();
        let lane = self.lanes.get_mut(&id)?;
        let (_, task) = lane.waiting.pop_front()?;
        lane.active = Some((run, task.token()));
        self.active += 1;
        Some(Start { run, lane: id, task })
    }

    /// The next task that may run, suspects aside.
    pub(crate) fn take(&mut self) -> Option<Start> {
        let (_, _, id) = self.ready.first().copied()?;
        self.activate(id)
    }

    /// The next suspects that may run, with the mark that they get: 1 for those that run among few, 2 for one alone.
    pub(crate) fn take_suspects(&mut self) -> Option<(i16, Vec<Start>)> {
        if self.seats.values().any(|seat| seat.level == 2) {
            return None;
        }
        let mut starts = Vec::new();
        while self.seats.len() < SUSPECTS {
            let Some((_, _, id)) = self.suspects[0].first().copied() else {
                break;
            };
            let Some(start) = self.activate(id) else { break };
            self.seats.insert(
                start.run,
                Seat {
                    level: 1,
                    since: None,
                },
            );
            starts.push(start);
        }
        if !starts.is_empty() {
            return Some((1, starts));
        }
        if !self.seats.is_empty() {
            return None;
        }
        let (_, _, id) = self.suspects[1].first().copied()?;
        let start = self.activate(id)?;
        self.seats.insert(
            start.run,
            Seat {
                level: 2,
                since: None,
            },
        );
        Some((2, vec![start]))
    }

    /// A suspect's start is noted, it runs.
    pub(crate) fn seated(&mut self, run: RunId, now: i64) {
        if let Some(seat) = self.seats.get_mut(&run) {
            seat.since = Some(now);
        }
    }

    /// Suspects that have run for long make room for the next.
    pub(crate) fn free_seats(&mut self, now: i64) {
        self.seats
            .retain(|_, seat| seat.since.is_none_or(|since| now - since < SEAT_MS));
    }

    /// The run's task has ended, and that is committed. The lane goes on.
    pub(crate) fn done(&mut self, lane: LaneId, run: RunId) {
        self.seats.remove(&run);
        let Some(it) = self.lanes.get_mut(&lane) else {
            return;
        };
        let Some((_, token)) = it.active.take_if(|(active, _)| *active == run) else {
            return;
        };
        self.active -= 1;
        self.forget(token.id);
        self.queue(lane);
    }

    fn forget(&mut self, task: TaskId) {
        self.tasks -= 1;
        if let Some(owned) = self.slots[task.slot.index()].as_mut() {
            owned.tasks -= 1;
            if owned.hurried.remove(&task.number) {
                self.hurried -= 1;
            }
            self.enqueue(task.slot);
        }
    }

    /// Closes a lane: its waiting tasks, which are in the answer, go back to Postgres. With `run`, its running task goes back
    /// as well (to wait for its retry, for its kind, or for another run), by a statement of the caller's choice.
    pub(crate) fn close(&mut self, id: LaneId, run: Option<RunId>) -> Vec<Return> {
        self.unqueue(id);
        let Some(lane) = self.lanes.get_mut(&id) else {
            return Vec::new();
        };
        let active = lane
            .active
            .filter(|(active, _)| Some(*active) == run)
            .map(|(_, token)| token);
        let tokens: Vec<Token> = lane.waiting.drain(..).map(|(_, task)| task.token()).collect();
        let slot = lane.slot;
        if lane.closed.is_none() && tokens.is_empty() && active.is_none() {
            return Vec::new();
        }
        let newly = lane.closed.is_none();
        let closed = lane.closed.get_or_insert_default();
        closed.extend(active.iter().chain(&tokens));
        let lowest = active.iter().chain(&tokens).map(|token| token.id.number).min();
        if let Some(owned) = self.owned(slot)
            && newly
        {
            owned.closed.push(id);
        }
        if let Some(lowest) = lowest {
            self.lower(slot, lowest);
        }
        tokens
            .into_iter()
            .map(|token| Return { lane: id, token })
            .collect()
    }

    /// A task of a closed lane is known to be back in Postgres, or to be gone.
    pub(crate) fn settled(&mut self, id: LaneId, token: Token) {
        let slot = token.id.slot;
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(closed) = lane.closed.as_mut() else {
            return;
        };
        let Some(place) = closed.iter().position(|other| *other == token) else {
            return;
        };
        closed.swap_remove(place);
        if let Some((run, _)) = lane.active.filter(|(_, active)| *active == token) {
            lane.active = None;
            self.active -= 1;
            self.seats.remove(&run);
        }
        self.lower(slot, token.id.number);
        if let Some(owned) = self.owned(slot) {
            owned.dirty = true;
        }
        self.forget(token.id);
        self.open(id);
    }

    /// Opens a closed lane, if nothing stands against it any more.
    fn open(&mut self, id: LaneId) {
        let Some(lane) = self.lanes.get_mut(&id) else {
            return;
        };
        let Some(owned) = self.slots[lane.slot.index()].as_mut() else {
            return;
        };
        let Some(closed) = &lane.closed else {
            return;
        };
        if !closed.is_empty() || owned.claim.is_some() || owned.doubts > 0 {
            return;
        }
        lane.closed = None;
        owned.closed.retain(|other| *other != id);
        let slot = lane.slot;
        self.queue(id);
        self.mark(slot, false);
    }

    /// A task was cancelled elsewhere, and that is committed.
    pub(crate) fn cancelled(&mut self, task: TaskId) -> Cancelled {
        // Its hold is lifted, if it had one.
        self.mark(task.slot, false);
        let Some(owned) = self.slots[task.slot.index()].as_ref() else {
            return Cancelled::Forgotten;
        };
        let found = owned.lanes.values().copied().find_map(|id| {
            let lane = self.lanes.get(&id)?;
            if let Some((run, token)) = lane.active
                && token.id == task
            {
                return Some((id, Some(run)));
            }
            lane.waiting
                .iter()
                .any(|(_, waiting)| waiting.id == task)
                .then_some((id, None))
        });
        match found {
            Some((_, Some(run))) => Cancelled::Runs(run),
            Some((id, None)) => {
                if let Some(lane) = self.lanes.get_mut(&id) {
                    lane.waiting.retain(|(_, waiting)| waiting.id != task);
                }
                self.forget(task);
                self.queue(id);
                Cancelled::Forgotten
            }
            None => Cancelled::Forgotten,
        }
    }

    /// Whether this run still holds its lane: its slot was not lost since.
    pub(crate) fn is_active(&self, lane: LaneId, run: RunId) -> bool {
        self.lanes
            .get(&lane)
            .is_some_and(|lane| lane.active.is_some_and(|(active, _)| active == run))
    }

    /// Tasks in memory, those of them that run or are ending, lanes.
    pub(crate) fn counts(&self) -> (usize, usize, usize) {
        (self.tasks, self.active, self.lanes.len())
    }
}

#[cfg(test)]
#[path = "lanes_tests.rs"]
mod tests;
