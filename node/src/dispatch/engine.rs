//! The loop of dispatch: takes events, changes the lanes, starts what follows. It waits for nothing but events.
//!
//! Each statement runs in a task of its own that is never dropped half-way, and comes back as an event.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringmesh_ring::slot::ranges;
use ringmesh_ring::{Epoch, Key, Slot};
use tokio::sync::mpsc;
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::lanes::{Cancelled, LaneId, Lanes, Return, Room, RunId, Start};
use super::outbox::{self, Batch, Outbox, What, Write};
use super::{Command, Limits, Parts, Stats, chain};
use crate::cache::Caches;
use crate::context::{Context, Inner};
use crate::handler::{Answer, Failure, Handler, Then};
use crate::run::{self, Outcome};
use crate::store::{ClaimAnswer, Error, Horizon, Me, ReadBack, Store, Token, TransactionCell};
use crate::task::{Claimed, TaskId};
use crate::telemetry::{field, metric};
use crate::upkeep::{self, Round};
use crate::{clock, store};

/// Claims in flight at once.
const CLAIMS: usize = 2;
/// The pace of timeouts and of everything periodic.
const SWEEP_MS: i64 = 100;
/// How often the horizon is polled.
const HORIZON_MS: i64 = 500;
/// How often memory is compared with what Postgres holds as claimed.
const COMPARE_MS: i64 = 30_000;
/// The pause after a failure of anything periodic.
const PAUSE: Duration = Duration::from_millis(300);
/// Slots in one statement that only reads, and in one that promotes.
const SLOTS_PER_READ: usize = 1024;
const SLOTS_PER_PROMOTION: usize = 256;
/// Tasks of a slot that one promotion makes due.
const PROMOTED_PER_SLOT: i32 = 200;
/// A full probe of each slot takes its turn once in so many ticks.
const FULL_EVERY: usize = 5;
/// Crashes that end a task whatever its attempts.
const CRASHES: i32 = 3;

#[derive(Debug)]
pub(super) enum Event {
    Command(Command),
    Ran {
        run: RunId,
        outcome: Outcome,
    },
    Claimed {
        number: u64,
        result: Result<ClaimAnswer, Error>,
    },
    Wrote {
        batch: Batch,
        result: Result<Vec<TaskId>, Error>,
    },
    Known {
        rows: Vec<Write>,
        result: Result<Vec<(TaskId, ReadBack)>, Error>,
    },
    Noted {
        starts: Vec<Start>,
        mark: i16,
        result: Result<Vec<TaskId>, Error>,
    },
    Horizon(Result<Horizon, Error>),
    News {
        full: HashSet<Slot>,
        result: Result<Vec<(Slot, bool)>, Error>,
    },
    Due(Result<Vec<(Slot, i64)>, Error>),
    Promoted {
        slots: Vec<(Slot, Epoch)>,
        tasks: Vec<(TaskId, u8)>,
        unsure: bool,
    },
    Upkept {
        report: upkeep::Report,
        took: Duration,
    },
    Settled {
        slots: Vec<(Slot, Epoch)>,
        result: Result<Vec<Token>, Error>,
    },
    Compared {
        slots: Vec<(Slot, Epoch, u64)>,
        result: Result<Vec<Token>, Error>,
    },
}

/// Why a run was cancelled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Reason {
    Timeout,
    Leaving,
    Trust,
    Cancelled,
}

/// A task that was started and whose outcome is not known yet.
#[derive(Debug)]
struct Running {
    lane: LaneId,
    task: Task,
    began: i64,
    timeout: i64,
    cancellation: CancellationToken,
    abort: AbortHandle,
    transaction: Arc<TransactionCell>,
    cancelled: Option<(Reason, i64)>,
}

/// What the end of a run needs to know of its task.
#[derive(Debug, Clone)]
struct Task {
    token: Token,
    key: Key,
    head: bool,
    failures: i32,
    crashes: i32,
    max_attempts: i32,
    waiter: Option<ringmesh_ring::Incarnation>,
}

impl Task {
    fn of(task: &Claimed) -> Self {
        Task {
            token: task.token(),
            key: task.key.clone(),
            head: task.head,
            failures: task.failures,
            crashes: task.crashes,
            max_attempts: task.max_attempts,
            waiter: task.waiter,
        }
    }
}

/// A run whose slot was lost: it is cancelled, and aborted if it goes on.
#[derive(Debug)]
struct Zombie {
    abort: AbortHandle,
    transaction: Arc<TransactionCell>,
    until: i64,
}

/// When each periodic step comes next, in milliseconds; `MAX` while it is in flight.
#[derive(Debug)]
struct Next {
    sweep: i64,
    horizon: i64,
    news: i64,
    due: i64,
    upkeep: i64,
    compare: i64,
    claim: i64,
}

pub(super) struct Engine {
    parts: Parts,
    store: Arc<Store>,
    caches: Arc<Caches>,
    kinds: Arc<Vec<String>>,
    events: mpsc::UnboundedSender<Event>,
    shared: Arc<Mutex<Stats>>,
    lanes: Lanes,
    outbox: Outbox,
    runs: HashMap<RunId, Running>,
    noted: VecDeque<Start>,
    zombies: Vec<Zombie>,
    leaving: BTreeMap<Slot, i64>,
    claims: usize,
    next: Next,
    /// A task became due while the next due time was being read.
    due_again: bool,
    rounds: u64,
    ticks: usize,
    random: u64,
    stats: Stats,
}

fn now() -> i64 {
    i64::try_from(clock::now().as_millis()).unwrap_or(i64::MAX)
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis())
        .unwrap_or(i64::MAX / 4)
        .min(i64::MAX / 4)
}

impl Engine {
    pub(super) fn new(parts: Parts, events: mpsc::UnboundedSender<Event>, shared: Arc<Mutex<Stats>>) -> Self {
        let Limits {
            tasks,
            tasks_per_slot,
            cached_keys,
            ..
        } = parts.limits;
        let mut seed = [0; 8];
        // Only spreads retries; without it they spread a little less.
        let _ = getrandom::fill(&mut seed);
        Engine {
            store: Arc::new(parts.store.clone()),
            caches: Caches::new(cached_keys),
            kinds: Arc::new(parts.handlers.kinds()),
            events,
            shared,
            lanes: Lanes::new(Room {
                tasks,
                per_slot: tasks_per_slot,
            }),
            outbox: Outbox::default(),
            runs: HashMap::new(),
            noted: VecDeque::new(),
            zombies: Vec::new(),
            leaving: BTreeMap::new(),
            claims: 0,
            next: Next {
                sweep: 0,
                horizon: 0,
                news: 0,
                due: 0,
                upkeep: 0,
                compare: now() + COMPARE_MS,
                claim: 0,
            },
            due_again: false,
            rounds: 0,
            ticks: 0,
            random: u64::from_le_bytes(seed) | 1,
            stats: Stats::default(),
            parts,
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::UnboundedReceiver<Event>) {
        let mut batch = Vec::with_capacity(1024);
        loop {
            let wake = self
                .next
                .sweep
                .min(self.next.due)
                .saturating_sub(now())
                .clamp(0, SWEEP_MS);
            let wake = Duration::from_millis(u64::try_from(wake).unwrap_or(0));
            tokio::select! {
                _ = inbox.recv_many(&mut batch, 1024) => {}
                () = tokio::time::sleep(wake) => {}
            }
            for event in batch.drain(..) {
                if let Some(stopped) = self.on_event(event) {
                    self.stop();
                    // Nobody waits for it any more, if it fails.
                    let _ = stopped.send(());
                    return;
                }
            }
            let now = now();
            if self.next.sweep <= now {
                self.on_sweep(now);
            }
            if self.next.due <= now {
                self.read_due();
            }
            self.pump(now);
        }
    }

    /// Runs a statement in a task of its own; its event comes back.
    fn spawn(&self, work: impl Future<Output = Event> + Send + 'static) {
        let events = self.events.clone();
        tokio::spawn(async move {
            // An error means that dispatch has ended.
            let _ = events.send(work.await);
        });
    }

    fn me(&self) -> Me {
        self.parts.me
    }

    // ---- events ----

    fn on_event(&mut self, event: Event) -> Option<tokio::sync::oneshot::Sender<()>> {
        match event {
            Event::Command(Command::Stop(stopped)) => return Some(stopped),
            Event::Command(command) => self.on_command(command),
            Event::Ran { run, outcome } => self.on_ran(run, outcome),
            Event::Claimed { number, result } => self.on_claimed(number, result),
            Event::Wrote { batch, result } => self.on_wrote(batch, result),
            Event::Known { rows, result } => self.on_known(rows, result),
            Event::Noted { starts, mark, result } => self.on_noted(starts, mark, result),
            Event::Horizon(result) => {
                self.next.horizon = now() + HORIZON_MS;
                match result {
                    Ok(poll) => self.lanes.on_horizon(poll),
                    Err(error) => tracing::debug!(error = %chain(&error), "the horizon could not be read"),
                }
            }
            Event::News { full, result } => self.on_news(&full, result),
            Event::Due(result) => self.on_due(result),
            Event::Promoted { slots, tasks, unsure } => self.on_promoted(slots, tasks, unsure),
            Event::Upkept { report, took } => self.on_upkept(report, took),
            Event::Settled { slots, result } => self.on_settled(slots, result),
            Event::Compared { slots, result } => self.on_compared(slots, result),
        }
        None
    }

    fn on_command(&mut self, command: Command) {
        match command {
            Command::Granted(slots) => {
                for (slot, epoch) in slots {
                    self.leaving.remove(&slot);
                    let void = self.lanes.grant(slot, epoch);
                    self.void(void);
                }
                // What was set aside for a kind that is known here, and what is due.
                self.next.upkeep = self.next.upkeep.min(now());
                self.due_soon(now());
            }
            Command::Leave(slots, deadline) => {
                let until = now().saturating_add(ms(deadline));
                for slot in slots {
                    if self.lanes.epoch(slot).is_some() {
                        self.leaving.insert(slot, until);
                        let back = self.lanes.leave(slot);
                        self.give_back(back);
                    }
                }
            }
            Command::Stay(slots) => {
                for slot in slots {
                    self.leaving.remove(&slot);
                    self.lanes.stay(slot);
                }
            }
            Command::Lost(slots) => {
                for (slot, epoch) in &slots {
                    if self.lanes.epoch(*slot) == Some(*epoch) {
                        self.leaving.remove(slot);
                        let void = self.lanes.lose(*slot, *epoch);
                        self.void(void);
                    }
                }
                self.caches.forget(&slots.iter().map(|(slot, _)| *slot).collect());
            }
            Command::Hint(hints) => {
                for hint in hints {
                    if hint.lowest > 0 {
                        self.lanes.lower(hint.slot, hint.lowest);
                    }
                    self.lanes.mark(hint.slot, hint.urgent);
                }
            }
            Command::Cancelled(task) => match self.lanes.cancelled(task) {
                Cancelled::Runs(run) => self.cancel(run, Reason::Cancelled),
                Cancelled::Forgotten => {}
            },
            Command::TrustEnded => self.cancel_all(Reason::Trust),
            Command::Stop(_) => {}
        }
    }

    /// The runs of slots that are not ours any more.
    fn void(&mut self, runs: Vec<RunId>) {
        let until = now() + ms(self.parts.limits.grace);
        for run in runs {
            if let Some(run) = self.runs.remove(&run) {
                run.cancellation.cancel();
                self.zombies.push(Zombie {
                    abort: run.abort,
                    transaction: run.transaction,
                    until,
                });
            }
        }
    }

    fn stop(&mut self) {
        let runs = self.runs.keys().copied().collect();
        self.void(runs);
        let zombies = std::mem::take(&mut self.zombies);
        let grace = self.parts.limits.grace;
        tokio::spawn(async move {
            tokio::time::sleep(grace).await;
            zombies.iter().for_each(end);
        });
    }

    // ---- runs ----

    fn cancel(&mut self, run: RunId, reason: Reason) {
        let until = now() + ms(self.parts.limits.grace);
        if let Some(run) = self.runs.get_mut(&run)
            && run.cancelled.is_none()
        {
            run.cancelled = Some((reason, until));
            run.cancellation.cancel();
        }
    }

    fn cancel_all(&mut self, reason: Reason) {
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        runs.into_iter().for_each(|run| self.cancel(run, reason));
    }

    /// A task whose turn it is.
    fn begin(&mut self, start: Start, now: i64) {
        let Start { run, lane, task } = start;
        if !self.lanes.is_active(lane, run) {
            return;
        }
        let crashed =
            task.crashes >= CRASHES || task.failures.saturating_add(task.crashes) >= task.max_attempts;
        let handlers = self.parts.handlers.clone();
        match handlers.get(&task.kind) {
            _ if crashed => {
                let text = format!(
                    "its runs ended their process {} times and failed {} times, of {} attempts",
                    task.crashes, task.failures, task.max_attempts
                );
                self.finish(lane, run, &Task::of(&task), Err(text), Duration::ZERO, false);
            }
            None => {
                tracing::warn!(kind = task.kind, task = %task.id, "no handler for the kind: its key waits for a node that has one");
                self.send_back(lane, run, &Task::of(&task), What::SetAside);
            }
            Some(Handler::Quick(handler)) if task.payload.is_some() => {
                let answer = handler(task.payload.clone().unwrap_or_default());
                self.conclude(lane, run, &Task::of(&task), answer, Duration::ZERO, None);
            }
            Some(_) => self.spawn_run(lane, run, task, now),
        }
    }

    fn spawn_run(&mut self, lane: LaneId, run: RunId, task: Claimed, now: i64) {
        let cancellation = CancellationToken::new();
        let grace = self.parts.limits.grace;
        let transaction = Arc::new(TransactionCell::new(
            self.store.clone(),
            task.timeout.saturating_add(grace * 2),
        ));
        let meta = Task::of(&task);
        let context = Context {
            inner: Arc::new(Inner {
                token: meta.token,
                key: task.key,
                kind: task.kind,
                failures: task.failures,
                cancellation: cancellation.clone(),
                caches: self.caches.clone(),
                transaction: transaction.clone(),
            }),
        };
        let work = run::run(
            self.parts.handlers.clone(),
            self.store.clone(),
            self.me(),
            context,
            task.payload,
            task.head,
        );
        let events = self.events.clone();
        let handle = tokio::spawn(async move {
            let outcome = work.await;
            // An error means that dispatch has ended.
            let _ = events.send(Event::Ran { run, outcome });
        });
        let running = Running {
            lane,
            task: meta,
            began: now,
            timeout: now.saturating_add(ms(task.timeout)),
            cancellation,
            abort: handle.abort_handle(),
            transaction,
            cancelled: None,
        };
        self.runs.insert(run, running);
    }

    fn on_ran(&mut self, run: RunId, outcome: Outcome) {
        // A run that was aborted or whose slot was lost: nothing of it could be committed any more.
        let Some(it) = self.runs.remove(&run) else { return };
        let took = Duration::from_millis(u64::try_from(now() - it.began).unwrap_or(0));
        let reason = it.cancelled.map(|(reason, _)| reason);
        match outcome {
            Outcome::Answered(answer) => self.conclude(it.lane, run, &it.task, answer, took, reason),
            Outcome::Committed => {
                let write = self.finish_row(it.lane, run, &it.task, Ok(None), took, false);
                self.on_applied(&write);
            }
            Outcome::NotStarted(error) => {
                tracing::warn!(error = %chain(&error), "a payload could not be read, its task goes back");
                self.send_back(it.lane, run, &it.task, What::GiveBack);
            }
            // Nothing was committed, or who knows: a read tells. If the task is still ours, it runs again.
            Outcome::Refused | Outcome::Unknown | Outcome::Gone => {
                if matches!(outcome, Outcome::Refused) {
                    self.count_fenced(1);
                }
                let row = self.close_for(it.lane, run, &it.task, What::GiveBack);
                self.read_back(vec![row], Duration::ZERO);
            }
        }
    }

    fn conclude(
        &mut self,
        lane: LaneId,
        run: RunId,
        task: &Task,
        answer: Answer,
        took: Duration,
        reason: Option<Reason>,
    ) {
        let failure = match answer.and_then(|result| result.map(run::result_text).transpose()) {
            // Also after a cancellation: it did its work, and if it may not count the fence says so.
            Ok(result) => return self.finish(lane, run, task, Ok(result), took, false),
            Err(failure) => failure,
        };
        let failure = match reason {
            Some(Reason::Leaving | Reason::Trust | Reason::Cancelled) => {
                return self.send_back(lane, run, task, What::GiveBack);
            }
            Some(Reason::Timeout) => Failure {
                text: format!(
                    "timeout: cancelled after {} ms: {}",
                    took.as_millis(),
                    failure.text
                ),
                // What it asked for besides: a run past its timeout is a failure like any other.
                then: if failure.then == Then::End {
                    Then::End
                } else {
                    Then::Retry
                },
            },
            None => failure,
        };
        if let Then::Snooze(delay) = failure.then {
            let what = What::Retry {
                key: task.key.clone(),
                delay,
                failed: false,
                error: None,
            };
            return self.send_back(lane, run, task, what);
        }
        let text = run::error_text(&failure.text);
        let failures = task.failures.saturating_add(1);
        if failure.then == Then::End || failures.saturating_add(task.crashes) >= task.max_attempts {
            return self.finish(lane, run, task, Err(text), took, true);
        }
        let delay = match failure.then {
            Then::RetryAfter(delay) => delay,
            _ => {
                // xorshift64
                self.random ^= self.random << 13;
                self.random ^= self.random >> 7;
                self.random ^= self.random << 17;
                let Limits {
                    backoff,
                    backoff_most,
                    ..
                } = self.parts.limits;
                run::backoff(task.failures, backoff, backoff_most, self.random)
            }
        };
        let what = What::Retry {
            key: task.key.clone(),
            delay,
            failed: true,
            error: Some(text),
        };
        self.send_back(lane, run, task, what);
    }

    fn finish_row(
        &self,
        lane: LaneId,
        run: RunId,
        task: &Task,
        end: Result<Option<String>, String>,
        took: Duration,
        failed: bool,
    ) -> Write {
        Write {
            lane,
            run: Some(run),
            token: task.token,
            waiter: task.waiter,
            what: What::Finish {
                end,
                run: took,
                failed,
                head: task.head,
            },
        }
    }

    fn finish(
        &mut self,
        lane: LaneId,
        run: RunId,
        task: &Task,
        end: Result<Option<String>, String>,
        took: Duration,
        failed: bool,
    ) {
        let row = self.finish_row(lane, run, task, end, took, failed);
        self.outbox.push(row);
    }

    /// Closes the lane of a run, gives back what waits in it, and answers with the row about the run's own task.
    fn close_for(&mut self, lane: LaneId, run: RunId, task: &Task, what: What) -> Write {
        let back = self.lanes.close(lane, Some(run));
        self.give_back(back);
        Write {
            lane,
            run: Some(run),
            token: task.token,
            waiter: None,
            what,
        }
    }

    fn send_back(&mut self, lane: LaneId, run: RunId, task: &Task, what: What) {
        let row = self.close_for(lane, run, task, what);
        self.outbox.push(row);
    }

    fn give_back(&mut self, back: Vec<Return>) {
        for Return { lane, token } in back {
            self.outbox.push(Write {
                lane,
                run: None,
                token,
                waiter: None,
                what: What::GiveBack,
            });
        }
    }

    // ---- writes ----

    fn on_wrote(&mut self, batch: Batch, result: Result<Vec<TaskId>, Error>) {
        self.outbox.returned(&batch);
        let now = now();
        match result {
            Ok(written) => {
                let written: HashSet<TaskId> = written.into_iter().collect();
                let (done, missing): (Vec<Write>, Vec<Write>) = batch
                    .rows
                    .into_iter()
                    .partition(|row| written.contains(&row.token.id));
                done.iter().for_each(|row| self.on_applied(row));
                if !missing.is_empty() {
                    self.count_fenced(missing.len());
                    self.read_back(missing, Duration::ZERO);
                }
            }
            Err(error @ Error::Unknown(_)) => {
                tracing::warn!(rows = batch.rows.len(), error = %chain(&error), "a write gave no answer, reading back");
                self.read_back(batch.rows, PAUSE);
            }
            Err(error) if error.is_about_data() => {
                if let Some(row) = self.outbox.halve(batch) {
                    self.on_bad_row(row, &error, now);
                }
            }
            Err(error) => {
                if matches!(error, Error::Refused(_)) {
                    tracing::error!(rows = batch.rows.len(), error = %chain(&error), "a write was refused, trying again");
                } else {
                    tracing::warn!(rows = batch.rows.len(), error = %chain(&error), "a write failed, trying again");
                }
                self.outbox.again(batch, now);
            }
        }
    }

    /// Postgres takes this row not even alone. It ends with a failure that says so, in plain letters.
    fn on_bad_row(&mut self, mut row: Write, error: &Error, now: i64) {
        let text = run::error_text(&format!(
            "Postgres refused the outcome of the run: {}",
            chain(error)
        ));
        let plain: String = text
            .chars()
            .map(|c| if c.is_ascii_graphic() || c == ' ' { c } else { '?' })
            .collect();
        tracing::error!(task = %row.token.id, error = plain, "the outcome of a task was refused");
        match &mut row.what {
            What::Finish { end, failed, .. } if *end != Err(plain.clone()) => {
                *end = Err(plain);
                *failed = true;
                self.outbox.push_later(row, now);
            }
            What::Retry {
                error: kept, delay, ..
            } if kept.as_deref() != Some(&plain) => {
                *kept = Some(plain);
                *delay = (*delay).min(Duration::from_secs(24 * 3600));
                self.outbox.push_later(row, now);
            }
            _ => self.outbox.push_later(row, now),
        }
    }

    fn on_applied(&mut self, row: &Write) {
        let slot = row.token.id.slot;
        match &row.what {
            What::Finish { end, head, .. } => {
                let outcome = if end.is_ok() {
                    self.stats.succeeded += 1;
                    "succeeded"
                } else {
                    self.stats.dead += 1;
                    "dead"
                };
                metrics::counter!(metric::FINISHES, field::OUTCOME => outcome).increment(1);
                if let Some(run) = row.run {
                    self.lanes.done(row.lane, run);
                }
                if *head {
                    // Its hold is lifted, or being lifted.
                    self.lanes.reset(slot);
                    self.lanes.mark(slot, true);
                    self.next.upkeep = self.next.upkeep.min(now());
                }
                if let Some(waiter) = row.waiter {
                    self.parts.hints.ended(waiter, row.token.id);
                }
            }
            What::Retry { delay, .. } => {
                self.stats.retried += 1;
                metrics::counter!(metric::FINISHES, field::OUTCOME => "retried").increment(1);
                metrics::counter!(metric::RETRIES).increment(1);
                self.lanes.settled(row.lane, row.token);
                self.due_soon(now().saturating_add(ms(*delay)));
            }
            What::GiveBack | What::SetAside => self.settle_row(row),
        }
    }

    /// A task is back in Postgres, or gone.
    fn settle_row(&mut self, row: &Write) {
        if row.lane == 0 {
            // A stray: claimed by a claim whose answer never came.
            self.lanes.resolve(row.token.id.slot, row.token.epoch);
        } else {
            self.lanes.settled(row.lane, row.token);
        }
    }

    fn count_fenced(&mut self, rows: usize) {
        let rows = rows as u64;
        self.stats.fenced += rows;
        metrics::counter!(metric::FENCED_WRITES).increment(rows);
        tracing::info!(
            rows,
            "writes were refused: fenced, ended elsewhere, or the lease was over"
        );
    }

    fn read_back(&self, rows: Vec<Write>, pause: Duration) {
        let store = self.store.clone();
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            let tokens: Vec<Token> = rows.iter().map(|row| row.token).collect();
            let result = store.read_back(&tokens).await;
            Event::Known { rows, result }
        });
    }

    fn on_known(&mut self, mut rows: Vec<Write>, result: Result<Vec<(TaskId, ReadBack)>, Error>) {
        rows.retain(|row| self.lanes.epoch(row.token.id.slot) == Some(row.token.epoch));
        if rows.is_empty() {
            return;
        }
        let known: HashMap<TaskId, ReadBack> = match result {
            Ok(known) => known.into_iter().collect(),
            Err(_) => return self.read_back(rows, PAUSE),
        };
        let now = now();
        for row in rows {
            match (known.get(&row.token.id), &row.what) {
                (Some(ReadBack::Open), _) => self.outbox.push_later(row, now),
                (Some(ReadBack::Ended), What::Finish { .. }) => self.on_applied(&row),
                (_, What::Finish { .. }) => {
                    if let Some(run) = row.run {
                        self.lanes.done(row.lane, run);
                    }
                    self.lanes.reset(row.token.id.slot);
                    self.lanes.mark(row.token.id.slot, true);
                }
                (known, _) => {
                    if let Some(waiter) = row.waiter
                        && known == Some(&ReadBack::Ended)
                    {
                        self.parts.hints.ended(waiter, row.token.id);
                    }
                    self.settle_row(&row);
                    self.lanes.reset(row.token.id.slot);
                    self.lanes.mark(row.token.id.slot, true);
                }
            }
        }
    }

    // ---- claims ----

    fn claim(&mut self, now: i64) {
        while self.claims < CLAIMS && self.next.claim <= now {
            let Some(plan) = self.lanes.plan() else { return };
            self.claims += 1;
            let (store, me) = (self.store.clone(), self.me());
            self.spawn(async move {
                let result = if plan.urgent {
                    store.claim_urgent(me, &plan.probes).await
                } else {
                    store.claim(me, &plan.probes).await
                };
                Event::Claimed {
                    number: plan.number,
                    result,
                }
            });
        }
    }

    fn on_claimed(&mut self, number: u64, result: Result<ClaimAnswer, Error>) {
        self.claims -= 1;
        match result {
            Ok(answer) => {
                metrics::counter!(metric::CLAIMED).increment(answer.tasks.len() as u64);
                let (back, missing) = self.lanes.on_claim(number, answer, now());
                self.give_back(back);
                if !missing.is_empty() {
                    tracing::info!(slots = %ranges(missing), "claimed nothing: not owned in Postgres, or the lease was over");
                }
            }
            Err(error) => {
                self.next.claim = now() + ms(PAUSE);
                tracing::warn!(error = %chain(&error), "a claim failed");
                let doubtful = self
                    .lanes
                    .on_claim_failed(number, matches!(error, Error::Unknown(_)));
                if !doubtful.is_empty() {
                    self.settle(doubtful);
                }
            }
        }
    }

    /// Finds what an unanswered claim took.
    fn settle(&self, slots: Vec<(Slot, Epoch)>) {
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            tokio::time::sleep(PAUSE).await;
            let result = store.settle(me, &slots).await;
            Event::Settled { slots, result }
        });
    }

    fn on_settled(&mut self, mut slots: Vec<(Slot, Epoch)>, result: Result<Vec<Token>, Error>) {
        slots.retain(|(slot, epoch)| self.lanes.epoch(*slot) == Some(*epoch));
        match result {
            Ok(tokens) => {
                self.return_strays(tokens);
                slots
                    .into_iter()
                    .for_each(|(slot, epoch)| self.lanes.resolve(slot, epoch));
            }
            Err(_) if slots.is_empty() => {}
            Err(_) => self.settle(slots),
        }
    }

    fn return_strays(&mut self, tokens: Vec<Token>) {
        for token in self.lanes.strays(tokens) {
            self.lanes.doubt(token.id.slot);
            self.outbox.push(Write {
                lane: 0,
                run: None,
                token,
                waiter: None,
                what: What::GiveBack,
            });
        }
    }

    fn compare(&mut self) {
        self.next.compare = i64::MAX;
        let slots = self.lanes.at_rest();
        let store = self.store.clone();
        self.spawn(async move {
            let mut tokens = Vec::new();
            for chunk in slots.chunks(SLOTS_PER_READ) {
                let chunk: Vec<(Slot, Epoch)> =
                    chunk.iter().map(|(slot, epoch, _)| (*slot, *epoch)).collect();
                match store.claimed(&chunk).await {
                    Ok(found) => tokens.extend(found),
                    Err(error) => {
                        return Event::Compared {
                            slots,
                            result: Err(error),
                        };
                    }
                }
            }
            Event::Compared {
                slots,
                result: Ok(tokens),
            }
        });
    }

    fn on_compared(&mut self, slots: Vec<(Slot, Epoch, u64)>, result: Result<Vec<Token>, Error>) {
        self.next.compare = now() + COMPARE_MS;
        let Ok(mut tokens) = result else { return };
        let at_rest: HashMap<Slot, (Epoch, u64)> = slots
            .into_iter()
            .map(|(slot, epoch, last)| (slot, (epoch, last)))
            .collect();
        tokens.retain(|token| {
            at_rest.get(&token.id.slot).is_some_and(|(epoch, last)| {
                *epoch == token.epoch && self.lanes.still_at_rest(token.id.slot, *epoch, *last)
            })
        });
        self.return_strays(tokens);
    }

    // ---- suspects ----

    fn note(&self, mark: i16, starts: Vec<Start>, pause: Duration) {
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            let tokens: Vec<Token> = starts.iter().map(|start| start.task.token()).collect();
            let result = store.start_trial(me, &tokens, mark).await;
            Event::Noted { starts, mark, result }
        });
    }

    fn on_noted(&mut self, mut starts: Vec<Start>, mark: i16, result: Result<Vec<TaskId>, Error>) {
        starts.retain(|start| self.lanes.is_active(start.lane, start.run));
        match result {
            Ok(noted) => {
                for start in starts {
                    if noted.contains(&start.task.id) && !self.lanes.is_leaving(start.task.id.slot) {
                        self.noted.push_back(start);
                    } else {
                        self.send_back(start.lane, start.run, &Task::of(&start.task), What::GiveBack);
                    }
                }
            }
            Err(_) if starts.is_empty() => {}
            // To note it twice does no harm, so an unknown outcome is a failed one.
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the start of suspects could not be noted");
                self.note(mark, starts, PAUSE);
            }
        }
    }

    // ---- periodic ----

    fn on_sweep(&mut self, now: i64) {
        self.next.sweep = now + SWEEP_MS;
        self.outbox.wake(now);
        self.lanes.free_seats(now);
        self.sweep_runs(now);
        self.zombies.retain(|zombie| {
            let over = zombie.abort.is_finished() || zombie.until <= now;
            if over && !zombie.abort.is_finished() {
                end(zombie);
            }
            !over
        });
        if self.next.horizon <= now {
            self.next.horizon = i64::MAX;
            let store = self.store.clone();
            self.spawn(async move { Event::Horizon(store.horizon().await) });
        }
        if self.next.news <= now {
            self.look_for_news();
        }
        if self.next.upkeep <= now {
            self.start_upkeep();
        }
        if self.next.compare <= now {
            self.compare();
        }
        self.publish();
    }

    fn sweep_runs(&mut self, now: i64) {
        if !self.parts.trust.holds() {
            self.cancel_all(Reason::Trust);
        }
        let mut cancel = Vec::new();
        let mut abort = Vec::new();
        for (id, run) in &self.runs {
            match run.cancelled {
                Some((_, until)) if until <= now => abort.push(*id),
                Some(_) => {}
                None if run.timeout <= now => cancel.push((*id, Reason::Timeout)),
                None => {
                    let slot = run.task.token.id.slot;
                    if self.leaving.get(&slot).is_some_and(|until| *until <= now) {
                        cancel.push((*id, Reason::Leaving));
                    }
                }
            }
        }
        for (run, reason) in cancel {
            self.cancel(run, reason);
        }
        for id in abort {
            let Some(run) = self.runs.remove(&id) else {
                continue;
            };
            run.abort.abort();
            run.transaction.end();
            let took = Duration::from_millis(u64::try_from(now - run.began).unwrap_or(0));
            tracing::info!(task = %run.task.token.id, took_ms = took.as_millis(), "a run ignored its cancellation and was aborted");
            let reason = run.cancelled.map(|(reason, _)| reason);
            let failure = Failure::new("it went on and was aborted");
            self.conclude(run.lane, id, &run.task, Err(failure), took, reason);
        }
    }

    fn look_for_news(&mut self) {
        self.next.news = i64::MAX;
        self.ticks += 1;
        let mut full = HashSet::new();
        let turn = self.ticks % FULL_EVERY;
        let probes: Vec<store::Probe> = self
            .lanes
            .staying()
            .filter_map(|(slot, _)| self.lanes.look(slot))
            .map(|mut probe| {
                if probe.slot.index() % FULL_EVERY == turn {
                    full.insert(probe.slot);
                    probe.start = 0;
                }
                probe
            })
            .collect();
        let store = self.store.clone();
        self.spawn(async move {
            let mut news = Vec::new();
            for probes in probes.chunks(SLOTS_PER_READ) {
                match store.news(probes).await {
                    Ok(found) => news.extend(found),
                    Err(error) => {
                        return Event::News {
                            full,
                            result: Err(error),
                        };
                    }
                }
            }
            Event::News {
                full,
                result: Ok(news),
            }
        });
    }

    fn on_news(&mut self, full: &HashSet<Slot>, result: Result<Vec<(Slot, bool)>, Error>) {
        self.next.news = now() + ms(self.parts.limits.tick);
        match result {
            Ok(news) => {
                for (slot, urgent) in news {
                    if full.contains(&slot) {
                        self.lanes.reset(slot);
                    }
                    self.lanes.mark(slot, urgent);
                }
            }
            Err(error) => tracing::debug!(error = %chain(&error), "the look for news failed"),
        }
    }

    /// Something is due at this time.
    fn due_soon(&mut self, at: i64) {
        if self.next.due == i64::MAX {
            self.due_again |= at <= now() + ms(self.parts.limits.tick);
        } else {
            self.next.due = self.next.due.min(at);
        }
    }

    fn read_due(&mut self) {
        self.next.due = i64::MAX;
        self.due_again = false;
        let slots: Vec<Slot> = self.lanes.staying().map(|(slot, _)| slot).collect();
        let store = self.store.clone();
        self.spawn(async move {
            let mut due = Vec::new();
            for slots in slots.chunks(SLOTS_PER_READ) {
                match store.next_due(slots).await {
                    Ok(found) => due.extend(found),
                    Err(error) => return Event::Due(Err(error)),
                }
            }
            Event::Due(Ok(due))
        });
    }

    fn on_due(&mut self, result: Result<Vec<(Slot, i64)>, Error>) {
        let tick = ms(self.parts.limits.tick);
        let due = match result {
            Ok(due) => due,
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the next due time could not be read");
                self.next.due = now() + tick;
                return;
            }
        };
        let next = due
            .iter()
            .map(|(_, in_ms)| *in_ms)
            .filter(|in_ms| *in_ms > 0)
            .min()
            .unwrap_or(tick);
        let slots: Vec<(Slot, Epoch)> = due
            .iter()
            .filter(|(slot, in_ms)| *in_ms <= 0 && !self.lanes.is_leaving(*slot))
            .filter_map(|(slot, _)| Some((*slot, self.lanes.epoch(*slot)?)))
            .collect();
        if slots.is_empty() {
            // A little later rather than a little early; and the tick, for what is inserted with a nearer time.
            self.next.due = now()
                + if self.due_again {
                    20
                } else {
                    (next + 1).clamp(20, tick)
                };
            return;
        }
        slots.iter().for_each(|(slot, _)| self.lanes.pin(*slot));
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            let (mut tasks, mut unsure) = (Vec::new(), false);
            for slots in slots.chunks(SLOTS_PER_PROMOTION) {
                match store.promote(me, slots, PROMOTED_PER_SLOT).await {
                    Ok(promoted) => tasks.extend(promoted),
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "scheduled tasks could not be made due");
                        unsure = true;
                    }
                }
            }
            Event::Promoted { slots, tasks, unsure }
        });
    }

    fn on_promoted(&mut self, slots: Vec<(Slot, Epoch)>, tasks: Vec<(TaskId, u8)>, unsure: bool) {
        for (slot, epoch) in slots {
            if self.lanes.epoch(slot) != Some(epoch) {
                continue;
            }
            self.lanes.unpin(slot);
            if unsure {
                self.lanes.reset(slot);
            }
        }
        // There may be more; none at all means that the fence refused it, which must not turn without a pause.
        self.next.due = now()
            + if tasks.is_empty() {
                ms(self.parts.limits.tick)
            } else {
                0
            };
        for (task, priority) in tasks {
            self.lanes.lower(task.slot, task.number);
            self.lanes.mark(task.slot, priority > 0);
        }
    }

    fn start_upkeep(&mut self) {
        self.next.upkeep = i64::MAX;
        self.rounds += 1;
        let slots: Vec<(Slot, Epoch)> = self.lanes.staying().collect();
        let (store, me, kinds) = (self.store.clone(), self.me(), self.kinds.clone());
        let round = Round {
            take_up_kinds: self.rounds % 3 == 1,
            move_behind: self.rounds.is_multiple_of(5),
            forget_idempotency: self
                .rounds
                .is_multiple_of(60)
                .then_some(self.parts.limits.idempotency_window),
        };
        self.spawn(async move {
            let began = std::time::Instant::now();
            let report = upkeep::round(&store, me, &slots, &kinds, round).await;
            Event::Upkept {
                report,
                took: began.elapsed(),
            }
        });
    }

    fn on_upkept(&mut self, report: upkeep::Report, took: Duration) {
        // A mesh with very many held keys must not do upkeep all the time.
        self.next.upkeep = now() + ms(took * 10).max(1000);
        for task in report.tasks {
            self.lanes.lower(task.slot, task.number);
            self.lanes.mark(task.slot, true);
        }
        for slot in report.lifted {
            self.lanes.reset(slot);
            self.lanes.mark(slot, true);
        }
    }

    // ---- what follows ----

    fn pump(&mut self, now: i64) {
        if self.parts.trust.may_start() {
            self.start_runs(now);
        }
        self.flush(now);
        if self.parts.trust.may_start() {
            self.claim(now);
        }
        self.tell_quiet();
    }

    fn start_runs(&mut self, now: i64) {
        let most = self.parts.limits.concurrency;
        while self.runs.len() < most {
            let Some(start) = self.noted.pop_front() else {
                break;
            };
            self.lanes.seated(start.run, now);
            self.begin(start, now);
        }
        while self.runs.len() < most && self.parts.trust.may_start() {
            let Some(start) = self.lanes.take() else { break };
            self.begin(start, now);
        }
        if self.runs.len() < most
            && let Some((mark, starts)) = self.lanes.take_suspects()
        {
            self.note(mark, starts, Duration::ZERO);
        }
    }

    fn flush(&mut self, now: i64) {
        let lanes = &self.lanes;
        let mut batches = Vec::new();
        while let Some(batch) = self
            .outbox
            .next(now, |token| lanes.epoch(token.id.slot) == Some(token.epoch))
        {
            batches.push(batch);
        }
        for batch in batches {
            let (store, me) = (self.store.clone(), self.me());
            self.spawn(async move {
                let result = outbox::write(&store, me, &batch).await;
                Event::Wrote { batch, result }
            });
        }
    }

    fn tell_quiet(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let quiet: Vec<(Slot, Epoch)> = self
            .leaving
            .keys()
            .filter(|slot| self.lanes.is_quiet(**slot))
            .filter_map(|slot| Some((*slot, self.lanes.epoch(*slot)?)))
            .collect();
        if quiet.is_empty() {
            return;
        }
        for (slot, _) in &quiet {
            self.leaving.remove(slot);
        }
        // An error means that nobody moves slots any more.
        let _ = self.parts.quiet.send(quiet);
    }

    fn publish(&mut self) {
        let (tasks, active, lanes) = self.lanes.counts();
        let (cached_keys, hits, misses) = self.caches.stats();
        self.stats.running = self.runs.len() as u64;
        self.stats.waiting = (tasks - active) as u64;
        self.stats.lanes = lanes as u64;
        self.stats.slots = self.lanes.slots().count() as u64;
        self.stats.cached_keys = cached_keys as u64;
        self.stats.cache_hits = hits;
        self.stats.cache_misses = misses;
        metrics::gauge!(metric::RUNS_RUNNING).set(self.stats.running as f64);
        metrics::gauge!(metric::TASKS_WAITING).set(self.stats.waiting as f64);
        metrics::gauge!(metric::LANES).set(self.stats.lanes as f64);
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = self.stats;
    }
}

fn end(zombie: &Zombie) {
    zombie.abort.abort();
    zombie.transaction.end();
}
