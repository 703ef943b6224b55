//! Ownership: the only writer of the slot table.
//!
//! One task owns the table and decides; IO runs in a set of tasks whose results come back as events. Every event changes
//! memory by a sync `on_*` method, and then one function, [`Ownership::steer`], compares all that is known with all that
//! should be and starts what is missing. So an event and a tick take the same way, a lost event costs a tick, and nothing
//! is decided from what an event said.
//!
//! Gossip and the ring say who should own a slot; only Postgres says who does. A grant or a transfer counts when Postgres
//! has answered it; an answer that never came counts as *not held* until the next read.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use ringmesh_ring::lease::Terms;
use ringmesh_ring::plan::{Input, Orphans};
use ringmesh_ring::table::State;
use ringmesh_ring::{Epoch, Incarnation, Placement, Plan, Row, Settings, Slot, Table};
use tokio::sync::{mpsc, watch};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::directory::{Directory, Node};
use crate::dispatch::Dispatch;
use crate::failpoint::{self, droppable};
use crate::gossip::{self, Gossip};
use crate::hint::Hints;
use crate::lease;
use crate::members::Members;
use crate::notice::Notices;
use crate::store::{Ask, Error, FenceKind, Fencing, Known, Me, Peer, Store};
use crate::telemetry::metric;
use crate::trust::Trust;

/// How many slots may be on their way out at once: few enough that each is away for milliseconds only.
const HANDOFF_CHUNK: usize = 64;

/// Slots whose tasks take longer than this to end do not hold up the next chunk.
const HANDOFF_PATIENCE: Duration = Duration::from_millis(100);

/// How long an offer that was declined rests: the two views differ, and gossip needs a moment.
const OFFER_REST: Duration = Duration::from_millis(200);

/// What ownership needs.
pub struct Parts {
    /// Where ownership is kept.
    pub store: Store,
    /// Whose it is.
    pub me: Me,
    /// How leases are kept.
    pub terms: Terms,
    /// What placement is computed from, but for the members.
    pub settings: Settings,
    /// How long joins are collected.
    pub join_window: Duration,
    /// How long this node waits before it takes slots, because its name came and went lately.
    pub join_delay: Duration,
    /// How often everything is read and compared anew.
    pub tick: Duration,
    /// How long running tasks may take to end when their slot leaves.
    pub drain_deadline: Duration,
    /// This node's trust window.
    pub trust: Arc<Trust>,
    /// The other members.
    pub gossip: Arc<Gossip>,
    /// Where the tasks of owned slots run.
    pub dispatch: Dispatch,
    /// Slots of which nothing runs any more.
    pub quiet: mpsc::UnboundedReceiver<Vec<(Slot, Epoch)>>,
    /// From the lease thread.
    pub lease: mpsc::UnboundedReceiver<lease::Event>,
    /// To and from the other nodes.
    pub hints: Hints,
    /// To ask whether a peer lives.
    pub http: reqwest::Client,
    /// The snapshot for everybody else.
    pub directory: watch::Sender<Arc<Directory>>,
    /// What this life answers to those who offer it slots.
    pub standing: Arc<Standing>,
    /// Asks the node to hand everything on and end.
    pub drain: CancellationToken,
}

/// What a node that offers slots must know of this one: whether it takes slots, and under which placement.
#[derive(Debug, Default)]
pub struct Standing {
    digest: Mutex<String>,
    serving: AtomicBool,
}

impl Standing {
    /// The digest of the present placement.
    pub fn digest(&self) -> String {
        self.digest.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Whether this node is on its own ring, and takes slots.
    pub fn serving(&self) -> bool {
        self.serving.load(Ordering::Acquire)
    }

    fn set_digest(&self, digest: String) {
        *self.digest.lock().unwrap_or_else(PoisonError::into_inner) = digest;
    }

    fn set_serving(&self, serving: bool) {
        self.serving.store(serving, Ordering::Release);
    }
}

/// How a life ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// Fenced: another life begins.
    Fenced,
    /// The server has another history: another life begins, with an empty memory.
    Failover,
    /// All slots were handed on, or the time for it is over.
    Drained,
}

/// What an IO task brought back.
enum Done {
    Read(Result<(Vec<Peer>, Vec<Row>), Error>),
    Granted {
        wanted: Vec<(Slot, Epoch)>,
        answer: Result<Vec<(Slot, Epoch)>, Error>,
    },
    Offered {
        to: Incarnation,
        slots: Vec<Slot>,
        accepted: bool,
    },
    Transferred {
        to: Incarnation,
        slots: Vec<Slot>,
        answer: Result<Vec<Slot>, Error>,
    },
    Fenced {
        node: Incarnation,
        kind: FenceKind,
        answer: Result<Fencing, Error>,
    },
}

/// A slot that is leaving.
struct Leaving {
    since: Instant,
    /// Nothing of it runs any more.
    quiet: bool,
}

struct Ownership {
    parts: Parts,
    io: JoinSet<Done>,
    table: Table,
    orphans: Orphans,
    members: Members,
    placement: Placement,
    notices: Notices,
    /// What the last read of the unfenced nodes found.
    known: Known,
    /// The rows of all slots, as last read.
    rows: Vec<Row>,
    /// The unfenced nodes, as last read.
    peers: BTreeMap<Incarnation, Peer>,
    /// Nodes known to be fenced: an older read does not bring them back.
    fenced: BTreeSet<Incarnation>,
    seen_by_gossip: Arc<Vec<gossip::Peer>>,
    leaving: BTreeMap<Slot, Leaving>,
    /// When a target may be offered slots again.
    offer_after: BTreeMap<Incarnation, Instant>,
    offering: BTreeSet<Incarnation>,
    fencing: BTreeSet<Incarnation>,
    reading: bool,
    read_wanted: bool,
    /// The next read is one of a tick, by which orphaned slots count their age.
    ticked: bool,
    granting: bool,
    serving: bool,
    draining: Option<Instant>,
    trusted: bool,
    was_trusted: bool,
    may_start: bool,
    started: Instant,
    over: Option<End>,
}

/// Runs until the life ends. On return the table is empty of trust: nothing may be written any more.
pub async fn run(parts: Parts) -> End {
    let (deaths, mut dead) = mpsc::unbounded_channel();
    let mut seen = parts.gossip.peers();
    let moved = parts.hints.on_moved();
    let drain = parts.drain.clone();
    let notices = Notices::new(parts.store.clone(), parts.http.clone(), deaths);
    let mut tick = tokio::time::interval(parts.tick);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut watchdog = tokio::time::interval(Duration::from_millis(50));
    watchdog.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);

    let mut it = Ownership::new(parts, notices);
    it.seen_by_gossip = seen.borrow_and_update().clone();
    loop {
        let window = it.members.window();
        let mut news = true;
        tokio::select! {
            Some(event) = it.parts.lease.recv() => news = it.on_lease(event),
            Some(slots) = it.parts.quiet.recv() => it.on_quiet(&slots),
            Some(done) = it.io.join_next() => match done {
                Ok(done) => it.on_done(done),
                Err(error) => tracing::error!(error = &error as &dyn std::error::Error, "an ownership task failed"),
            },
            Some(node) = dead.recv() => it.on_death(node),
            Ok(()) = seen.changed() => it.seen_by_gossip = seen.borrow_and_update().clone(),
            () = moved.notified() => it.read_wanted = true,
            () = drain.cancelled(), if it.draining.is_none() => it.on_drain(),
            _ = tick.tick() => it.on_tick(),
            _ = watchdog.tick() => news = it.on_watchdog(),
            () = sleep_until(window.unwrap_or_else(Instant::now)), if window.is_some() => {}
        }
        if news {
            it.steer();
        }
        if let Some(end) = it.over {
            it.close();
            return end;
        }
    }
}

impl Ownership {
    fn new(parts: Parts, notices: Notices) -> Self {
        Ownership {
            table: Table::new(parts.me.incarnation),
            orphans: Orphans::new(),
            members: Members::new(parts.join_window),
            placement: Placement::compute(&[], &parts.settings),
            parts,
            io: JoinSet::new(),
            notices,
            known: Known::default(),
            rows: Vec::new(),
            peers: BTreeMap::new(),
            fenced: BTreeSet::new(),
            seen_by_gossip: Arc::default(),
            leaving: BTreeMap::new(),
            offer_after: BTreeMap::new(),
            offering: BTreeSet::new(),
            fencing: BTreeSet::new(),
            reading: false,
            read_wanted: true,
            ticked: false,
            granting: false,
            serving: false,
            draining: None,
            trusted: false,
            was_trusted: false,
            may_start: false,
            started: Instant::now(),
            over: None,
        }
    }

    fn me(&self) -> Incarnation {
        self.parts.me.incarnation
    }

    // ---- Events -----------------------------------------------------------------------------------------------------

    /// Answers whether there is anything new: peers are read often, and mostly nothing has changed.
    fn on_lease(&mut self, event: lease::Event) -> bool {
        match event {
            lease::Event::Peers(peers) => return self.on_peers(peers),
            lease::Event::Expired(expired) => {
                for (node, renewals) in expired {
                    self.fence(node, Some(renewals), FenceKind::Expired);
                }
            }
            lease::Event::Fenced => self.over = Some(End::Fenced),
            lease::Event::Failover => self.over = Some(End::Failover),
        }
        true
    }

    fn on_peers(&mut self, peers: Vec<Peer>) -> bool {
        let before = self.unfenced();
        self.peers = peers
            .into_iter()
            .filter(|peer| !self.fenced.contains(&peer.incarnation))
            .map(|peer| (peer.incarnation, peer))
            .collect();
        let changed = self.unfenced() != before;
        if changed {
            let gossip = self.peers.values().filter_map(|peer| peer.gossip.parse().ok());
            self.parts.gossip.suggest(gossip.collect());
        }
        // Each time: a watch that has ended is begun anew.
        self.notices.on_peers(self.me(), self.peers.values());
        changed
    }

    /// A peer's session ended and it does not answer.
    fn on_death(&mut self, node: Incarnation) {
        if self.peers.contains_key(&node) {
            tracing::info!(%node, "noticed a death");
            metrics::counter!(metric::DEATHS_NOTICED).increment(1);
            self.fence(node, None, FenceKind::Noticed);
        }
    }

    fn on_quiet(&mut self, slots: &[(Slot, Epoch)]) {
        for (slot, epoch) in slots {
            if self.table.epoch(*slot) == Some(*epoch)
                && let Some(leaving) = self.leaving.get_mut(slot)
            {
                leaving.quiet = true;
            }
        }
    }

    fn on_drain(&mut self) {
        tracing::info!(slots = self.table.len(), "draining");
        self.draining = Some(Instant::now());
        let busy = self.leaving.iter().filter(|(_, leaving)| !leaving.quiet);
        let busy = busy.map(|(slot, _)| *slot).collect();
        self.parts.dispatch.leave(busy, self.parts.drain_deadline);
        let gossip = self.parts.gossip.clone();
        tokio::spawn(async move { gossip.set_draining(true).await });
    }

    fn on_tick(&mut self) {
        self.read_wanted = true;
        self.ticked = true;
    }

    /// Follows what happens by the clock alone: the trust window, and handoffs that wait. Answers whether there is any.
    fn on_watchdog(&mut self) -> bool {
        let (holds, may_start) = (self.parts.trust.holds(), self.parts.trust.may_start());
        if self.trusted && !holds {
            tracing::warn!("the trust window ended, nothing starts until the lease is renewed");
            self.parts.dispatch.trust_ended();
        }
        let changed = (holds, may_start) != (self.trusted, self.may_start);
        (self.trusted, self.may_start) = (holds, may_start);
        self.was_trusted |= holds;
        self.offer_after.retain(|_, after| Instant::now() < *after);
        changed || self.draining.is_some() || !self.leaving.is_empty() || !self.offer_after.is_empty()
    }

    fn on_done(&mut self, done: Done) {
        match done {
            Done::Read(answer) => {
                self.reading = false;
                match answer {
                    Ok((peers, rows)) => {
                        self.known.learn(&peers);
                        self.on_peers(peers);
                        self.on_rows(rows);
                    }
                    Err(error) => tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "could not read the slots"
                    ),
                }
            }
            Done::Granted { wanted, answer } => {
                self.granting = false;
                self.on_granted(&wanted, answer);
            }
            Done::Offered { to, slots, accepted } => {
                self.offering.remove(&to);
                self.on_offered(to, slots, accepted);
            }
            Done::Transferred { to, slots, answer } => self.on_transferred(to, &slots, answer),
            Done::Fenced { node, kind, answer } => {
                self.fencing.remove(&node);
                self.on_fenced(node, kind, answer);
            }
        }
    }

    fn on_rows(&mut self, rows: Vec<Row>) {
        if std::mem::take(&mut self.ticked) {
            self.orphans.on_tick(&rows, &self.unfenced());
        }
        let changes = self.table.on_read(&rows);
        if !changes.dropped.is_empty() {
            tracing::info!(slots = changes.dropped.len(), "slots were granted to others");
            self.drop_slots(changes.dropped);
        }
        if !changes.adopted.is_empty() {
            tracing::info!(slots = changes.adopted.len(), "slots were handed to this node");
            self.parts.dispatch.granted(changes.adopted);
        }
        self.rows = rows;
    }

    fn on_granted(&mut self, wanted: &[(Slot, Epoch)], answer: Result<Vec<(Slot, Epoch)>, Error>) {
        let granted = match answer {
            Ok(granted) => granted,
            Err(error) => {
                tracing::warn!(
                    slots = wanted.len(),
                    error = &error as &dyn std::error::Error,
                    "a grant gave no answer"
                );
                self.read_wanted = true;
                return;
            }
        };
        if granted.len() < wanted.len() {
            // Somebody else was faster, or what this node read is old.
            self.read_wanted = true;
        }
        let mut owned = Vec::with_capacity(granted.len());
        for (slot, epoch) in granted {
            self.answered(slot, self.me(), epoch);
            match self.table.on_granted(slot, epoch) {
                Ok(_) => owned.push((slot, epoch)),
                Err(error) => tracing::info!(%error, "a grant came too late"),
            }
        }
        if !owned.is_empty() {
            tracing::info!(slots = owned.len(), "took slots");
            metrics::counter!(metric::GRANTS).increment(owned.len() as u64);
            self.parts.dispatch.granted(owned);
        }
    }

    fn on_offered(&mut self, to: Incarnation, slots: Vec<Slot>, accepted: bool) {
        if !accepted {
            self.offer_after.insert(to, Instant::now() + OFFER_REST);
            return;
        }
        let leaving: Vec<Slot> = slots
            .into_iter()
            .filter(|slot| self.table.on_leaving(*slot, to).is_ok())
            .collect();
        for slot in &leaving {
            let since = Instant::now();
            self.leaving
                .entry(*slot)
                .or_insert(Leaving { since, quiet: false });
        }
        let deadline = self.parts.drain_deadline;
        match self.draining {
            Some(_) => self.parts.dispatch.leave(leaving, deadline),
            None => self.parts.dispatch.leave_when_idle(leaving, deadline),
        }
    }

    fn on_transferred(&mut self, to: Incarnation, slots: &[Slot], answer: Result<Vec<Slot>, Error>) {
        let moved: BTreeSet<Slot> = match answer {
            Ok(moved) => moved.into_iter().collect(),
            Err(error) => {
                tracing::warn!(%to, slots = slots.len(), error = &error as &dyn std::error::Error, "a transfer gave no answer");
                for slot in slots {
                    self.table.on_no_answer(*slot).ok();
                }
                self.read_wanted = true;
                return;
            }
        };
        let mut gone = Vec::with_capacity(moved.len());
        for slot in slots {
            if moved.contains(slot) {
                if let Ok(Some(epoch)) = self.table.on_transferred(*slot) {
                    self.answered(*slot, to, epoch.next());
                    gone.push((*slot, epoch));
                }
            } else {
                // Refused: this node or the next owner is fenced. The next read tells which.
                self.table.on_refused(*slot).ok();
                self.read_wanted = true;
            }
        }
        if !gone.is_empty() {
            tracing::info!(%to, slots = gone.len(), "handed slots on");
            metrics::counter!(metric::TRANSFERS).increment(gone.len() as u64);
            self.parts.hints.moved(to);
            self.drop_slots(gone);
        }
    }

    /// Postgres answered a grant or a transfer: the row is known without reading it.
    fn answered(&mut self, slot: Slot, owner: Incarnation, epoch: Epoch) {
        if let Some(row) = self.rows.get_mut(slot.index()).filter(|row| row.epoch < epoch) {
            *row = Row {
                slot,
                owner: Some(owner),
                epoch,
            };
        }
    }

    fn on_fenced(&mut self, node: Incarnation, kind: FenceKind, answer: Result<Fencing, Error>) {
        match answer {
            Ok(Fencing::Fenced) => {
                tracing::info!(%node, kind = kind.as_str(), "fenced a node");
                metrics::counter!(metric::FENCES, "kind" => kind.as_str()).increment(1);
                self.fenced.insert(node);
                self.peers.remove(&node);
                self.parts.hints.moved_all();
            }
            Ok(Fencing::Nothing) => {}
            Err(error) => {
                tracing::warn!(%node, error = &error as &dyn std::error::Error, "could not fence a node")
            }
        }
        self.read_wanted = true;
    }

    // ---- Decisions --------------------------------------------------------------------------------------------------

    /// Compares what is with what should be, and starts what is missing.
    fn steer(&mut self) {
        self.steer_serving();
        let unfenced = self.unfenced();
        let changed = self.members.update(
            &self.seen_by_gossip,
            &unfenced,
            self.draining.map(|_| self.me()),
            Instant::now(),
        );
        if changed {
            self.placement = Placement::compute(&self.members.all(), &self.parts.settings);
            self.parts.standing.set_digest(self.placement.digest());
            tracing::info!(members = %self.members, digest = self.placement.digest(), "the ring changed");
        }
        self.parts
            .standing
            .set_serving(self.members.incarnations().contains(&self.me()));
        if self.read_wanted && !self.reading {
            self.read();
        }
        if !self.rows.is_empty() && self.parts.trust.may_start() {
            let plan = Plan::build(&Input {
                rows: &self.rows,
                unfenced: &unfenced,
                table: &self.table,
                placement: &self.placement,
                serving: &self.members.incarnations(),
                orphans: &self.orphans,
            });
            self.act(plan);
            self.transfer_quiet();
        }
        self.steer_drain();
        self.publish();
    }

    /// A joiner takes slots only when its view holds every unfenced node, or has been still for a window: otherwise it would
    /// compute placements that nobody shares.
    fn steer_serving(&mut self) {
        if self.serving || self.draining.is_some() || !self.parts.trust.may_start() {
            return;
        }
        if self.started.elapsed() < self.parts.join_delay {
            return;
        }
        let complete = self
            .peers
            .keys()
            .all(|node| self.seen_by_gossip.iter().any(|peer| peer.incarnation == *node));
        if self.peers.contains_key(&self.me())
            && (complete || self.members.still_for(self.parts.join_window * 2))
        {
            self.serving = true;
            let gossip = self.parts.gossip.clone();
            tokio::spawn(async move { gossip.set_serving(true).await });
        }
    }

    fn act(&mut self, plan: Plan) {
        if !plan.is_empty() {
            tracing::debug!(%plan, "plan");
        }
        if !plan.takes.is_empty() && !self.granting {
            self.granting = true;
            tracing::info!(slots = plan.takes.len(), "taking slots");
            let wanted: Vec<_> = plan.takes.iter().map(|take| (take.slot, take.expected)).collect();
            let (store, me) = (self.parts.store.clone(), self.parts.me);
            self.io.spawn(async move {
                let answer = droppable(async {
                    failpoint::at(failpoint::GRANT).await?;
                    let granted = store.grant(me, &wanted).await?;
                    failpoint::at(failpoint::GRANTED).await?;
                    Ok(granted)
                })
                .await;
                Done::Granted { wanted, answer }
            });
        }
        if !plan.stays.is_empty() {
            for slot in &plan.stays {
                if self.table.on_stay(*slot).is_ok() {
                    self.leaving.remove(slot);
                }
            }
            self.parts.dispatch.stay(plan.stays);
        }
        let mut room = HANDOFF_CHUNK.saturating_sub(self.in_hand());
        let mut by_target: BTreeMap<Incarnation, Vec<Slot>> = BTreeMap::new();
        for hand_off in plan.hand_offs {
            by_target.entry(hand_off.to).or_default().push(hand_off.slot);
        }
        for (to, mut slots) in by_target {
            let rests = self
                .offer_after
                .get(&to)
                .is_some_and(|after| Instant::now() < *after);
            if room == 0 || rests || self.offering.contains(&to) {
                continue;
            }
            slots.truncate(room);
            room -= slots.len();
            self.offer(to, slots);
        }
    }

    /// Slots that are on their way out and do not wait for a long task.
    fn in_hand(&self) -> usize {
        self.leaving
            .values()
            .filter(|leaving| leaving.quiet || leaving.since.elapsed() < HANDOFF_PATIENCE)
            .count()
    }

    /// Sends the transfers of slots of which nothing runs any more.
    fn transfer_quiet(&mut self) {
        let mut by_target: BTreeMap<Incarnation, Vec<(Slot, Epoch)>> = BTreeMap::new();
        for (slot, leaving) in &self.leaving {
            if leaving.quiet
                && let Some(held) = self.table.get(*slot)
                && let State::Leaving { to } = held.state
            {
                by_target.entry(to).or_default().push((*slot, held.epoch));
            }
        }
        for (to, held) in by_target {
            let moving: Vec<_> = held
                .into_iter()
                .filter(|(slot, _)| self.table.on_moving(*slot).is_ok())
                .collect();
            let slots: Vec<_> = moving.iter().map(|(slot, _)| *slot).collect();
            let (store, me) = (self.parts.store.clone(), self.parts.me);
            self.io.spawn(async move {
                let answer = droppable(async {
                    failpoint::at(failpoint::TRANSFER).await?;
                    let moved = store.transfer(me, to, &moving).await?;
                    failpoint::at(failpoint::TRANSFERRED).await?;
                    Ok(moved)
                })
                .await;
                Done::Transferred { to, slots, answer }
            });
        }
    }

    /// A drain ends when nothing is held any more, or nothing runs and nobody is there to take it, or its time is over.
    fn steer_drain(&mut self) {
        let Some(since) = self.draining else { return };
        let nobody = self.placement.members().is_empty();
        if nobody {
            let owned: Vec<Slot> = self
                .table
                .claimable()
                .map(|(slot, _)| slot)
                .filter(|slot| !self.leaving.contains_key(slot))
                .collect();
            if !owned.is_empty() {
                for slot in &owned {
                    self.leaving.insert(
                        *slot,
                        Leaving {
                            since: Instant::now(),
                            quiet: false,
                        },
                    );
                }
                self.parts.dispatch.leave(owned, self.parts.drain_deadline);
            }
        }
        let quiet = self
            .table
            .iter()
            .all(|(slot, _)| self.leaving.get(&slot).is_some_and(|leaving| leaving.quiet));
        let late = since.elapsed() > self.parts.drain_deadline + self.parts.terms.ttl;
        if self.table.is_empty() || (nobody && quiet) || late {
            tracing::info!(left = self.table.len(), "drained");
            self.over = Some(End::Drained);
        }
    }

    // ---- Actions ----------------------------------------------------------------------------------------------------

    fn read(&mut self) {
        self.reading = true;
        self.read_wanted = false;
        let (store, ask) = (self.parts.store.clone(), self.known.ask());
        self.io.spawn(
            async move { Done::Read(tokio::try_join!(store.unfenced_nodes(&ask), store.read_slots())) },
        );
    }

    fn offer(&mut self, to: Incarnation, slots: Vec<Slot>) {
        self.offering.insert(to);
        let (hints, digest) = (self.parts.hints.clone(), self.placement.digest());
        self.io.spawn(async move {
            let accepted = match hints.offer(to, digest, slots.clone()).await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::info!(%to, error = &error as &dyn std::error::Error, "an offer of slots gave no answer");
                    false
                }
            };
            Done::Offered { to, slots, accepted }
        });
    }

    /// Fences a node whose counter was seen at `seen`; `None`: reads the counter first.
    fn fence(&mut self, node: Incarnation, seen: Option<i64>, kind: FenceKind) {
        // A node that may not rely on its own lease has no say in others'.
        if !self.parts.trust.holds() || !self.fencing.insert(node) {
            return;
        }
        let (store, me) = (self.parts.store.clone(), self.me());
        self.io.spawn(async move {
            let answer = async {
                let seen = match seen {
                    Some(seen) => Some(seen),
                    None => store
                        .unfenced_nodes(&Ask::only(node))
                        .await?
                        .iter()
                        .find(|peer| peer.incarnation == node)
                        .map(|peer| peer.renewals),
                };
                match seen {
                    Some(seen) => store.fence(node, Some(seen), kind, me).await,
                    None => Ok(Fencing::Nothing),
                }
            };
            Done::Fenced {
                node,
                kind,
                answer: answer.await,
            }
        });
    }

    fn drop_slots(&mut self, slots: Vec<(Slot, Epoch)>) {
        for (slot, _) in &slots {
            self.leaving.remove(slot);
        }
        self.parts.dispatch.lost(slots);
    }

    fn unfenced(&self) -> BTreeSet<Incarnation> {
        self.peers.keys().copied().collect()
    }

    fn publish(&self) {
        let me = self.me();
        let placed: BTreeSet<Slot> = self.placement.slots_of(me).collect();
        let trusted = self.parts.trust.may_start();
        let ready = self.serving
            && self.draining.is_none()
            && trusted
            && self.members.incarnations().contains(&me)
            && placed.iter().all(|slot| self.table.may_claim(*slot));
        let mut slots: Vec<_> = self.rows.iter().map(|row| (row.owner, row.epoch)).collect();
        for (slot, held) in self.table.iter() {
            if let Some(entry) = slots.get_mut(slot.index()) {
                *entry = (Some(me), held.epoch);
            }
        }
        let ring = self.members.incarnations();
        let nodes = self
            .peers
            .values()
            .map(|peer| {
                let seen = self
                    .seen_by_gossip
                    .iter()
                    .find(|seen| seen.incarnation == peer.incarnation);
                let state = match seen {
                    None => "silent",
                    Some(seen) if seen.draining => "draining",
                    Some(_) if ring.contains(&peer.incarnation) => "serving",
                    Some(_) => "joining",
                };
                let node = Node {
                    name: peer.name.clone(),
                    http: peer.http.clone(),
                    weight: u32::try_from(peer.weight).unwrap_or(1),
                    state,
                    lease_ms: peer.lease_ms,
                };
                (peer.incarnation, node)
            })
            .collect();
        let directory = Directory {
            slots,
            nodes,
            me: Some(me),
            placed_here: placed.len(),
            stalled: self.was_trusted && !self.parts.trust.holds(),
            leased: trusted,
            draining: self.draining.is_some(),
            ready,
        };
        metrics::gauge!(metric::SLOTS_OWNED).set(self.table.len() as f64);
        metrics::gauge!(metric::SLOTS_PLACED).set(placed.len() as f64);
        metrics::gauge!(metric::MEMBERS).set(ring.len() as f64);
        let remaining = self.parts.trust.until().saturating_sub(clock::now());
        metrics::gauge!(metric::TRUST_REMAINING).set(remaining.as_secs_f64());
        self.parts.directory.send_replace(Arc::new(directory));
    }

    /// The end of this life: nothing is held any more.
    fn close(&mut self) {
        self.parts.standing.set_serving(false);
        let held = self.table.on_fenced();
        if !held.is_empty() {
            tracing::info!(slots = held.len(), "this life ends with slots held");
        }
        self.drop_slots(held);
        self.parts.directory.send_modify(|directory| {
            let mut closed = Directory::clone(directory);
            closed.me = None;
            closed.ready = false;
            *directory = Arc::new(closed);
        });
    }
}
