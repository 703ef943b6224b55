//! The loop of dispatch: takes events, changes the lanes, starts what follows. It waits for nothing but events.
//!
//! Each statement runs in a task of its own that is never dropped half-way, and comes back as an event.

mod claims;
mod leaving;
mod periodic;
mod runs;
mod writes;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

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
use crate::failpoint::{self, droppable};
use crate::handler::{Answer, Failure, Handler, Then};
use crate::run::{self, Outcome};
use crate::store::{
    ClaimAnswer, Error, Horizon, Me, ReadBack, Settled, Store, Ticket, Token, TransactionCell,
};
use crate::task::{Claimed, TaskId};
use crate::telemetry::{field, metric};
use crate::upkeep::{self, Round};
use crate::{clock, store};
use leaving::Leaving;

/// Claims in flight at once.
const CLAIMS: usize = 2;
/// The pace of timeouts and of everything periodic.
const SWEEP_MS: i64 = 100;
/// How often the horizon is polled.
const HORIZON_MS: i64 = 500;
/// The pause after a failure of anything periodic.
const PAUSE: Duration = Duration::from_millis(300);
/// Slots in one statement that only reads, and in one that promotes.
const SLOTS_PER_READ: usize = 1024;
const SLOTS_PER_PROMOTION: usize = 256;
/// Tasks of a slot that one promotion makes due.
const PROMOTED_PER_SLOT: i32 = 200;
/// A full probe of each slot takes its turn once in so many ticks. It is a net below what [`super::lanes`] promises; more often, and under
/// an old snapshot it costs more than all other probes, as it walks all that has ended since.
const FULL_EVERY: usize = 60;
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
        ticket: Ticket,
        result: Result<ClaimAnswer, Error>,
    },
    Wrote {
        batch: Batch,
        result: Result<Vec<TaskId>, Error>,
    },
    Known {
        rows: Vec<Write>,
        /// Postgres had refused to write them; else it gave no answer.
        refused: bool,
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
        ticket: Ticket,
        slots: Vec<(Slot, Epoch)>,
        tasks: Vec<(TaskId, u8)>,
        unsure: Vec<(Slot, Epoch)>,
    },
    Upkept {
        report: upkeep::Report,
        took: Duration,
    },
    Settled {
        ticket: Ticket,
        slots: Vec<(Slot, Epoch, i64)>,
        result: Result<Settled, Error>,
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
    began: Instant,
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
    leaving: BTreeMap<Slot, Leaving>,
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
            Event::Claimed { ticket, result } => self.on_claimed(ticket, result),
            Event::Wrote { batch, result } => self.on_wrote(batch, result),
            Event::Known {
                rows,
                refused,
                result,
            } => self.on_known(rows, refused, result),
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
            Event::Promoted {
                ticket,
                slots,
                tasks,
                unsure,
            } => self.on_promoted(ticket, slots, tasks, unsure),
            Event::Upkept { report, took } => self.on_upkept(report, took),
            Event::Settled {
                ticket,
                slots,
                result,
            } => self.on_settled(ticket, slots, result),
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
            Command::Leave {
                slots,
                deadline,
                at_once,
            } => self.leave(&slots, deadline, at_once),
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

    // ---- what follows ----

    fn pump(&mut self, now: i64) {
        self.steer_leaving(now);
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
                let began = Instant::now();
                let result = droppable(async {
                    failpoint::at(failpoint::WRITE).await?;
                    let written = outbox::write(&store, me, &batch).await?;
                    failpoint::at(failpoint::WRITTEN).await?;
                    Ok(written)
                })
                .await;
                metrics::histogram!(metric::FINISH_SECONDS).record(began.elapsed());
                Event::Wrote { batch, result }
            });
        }
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
