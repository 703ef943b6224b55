//! Looks at the mesh while the demo runs: at Postgres for owners, epochs and effects (only it says who owns what), at a
//! node's `/v1/mesh` for what the members say of each other, at every node's `/metrics` for refused writes.

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use ringmesh_ring::{Epoch, Incarnation, Row, Slot};
use serde::Deserialize;
use tokio::sync::watch;

use super::screen::Screen;
use crate::store::Store;
use crate::store::demo::{Moved, NodeRow, Slots};
use crate::telemetry::metric;

/// How often the slots are read; pauses are measured in Postgres, so this is no limit of their precision.
const LOOK: Duration = Duration::from_millis(50);
/// How often the effects are counted.
const COUNT: Duration = Duration::from_millis(250);
/// How often the nodes are asked.
const ASK: Duration = Duration::from_millis(500);
/// Moves are told once none followed for this long.
const TELL: Duration = Duration::from_millis(400);

/// The mesh at one moment.
#[derive(Debug, Clone, Default)]
pub(crate) struct View {
    /// When the slots below were read, by the database's clock; none before the first time.
    pub(crate) at: Option<DateTime<Utc>>,
    /// By slot.
    pub(crate) slots: Vec<Row>,
    /// The latest incarnation of each name.
    pub(crate) nodes: Vec<NodeRow>,
    /// Flights written, by node.
    pub(crate) written: BTreeMap<String, i64>,
    /// What a node's `/v1/mesh` said last: the members' states by name.
    pub(crate) members: BTreeMap<String, String>,
    /// Since when no slot has moved.
    pub(crate) still_since: Option<Instant>,
}

impl View {
    /// The present incarnation of a name, unless it is fenced.
    pub(crate) fn live(&self, name: &str) -> Option<Incarnation> {
        let node = self.nodes.iter().find(|node| node.name == name)?;
        node.fenced_at.is_none().then_some(Incarnation(node.incarnation))
    }

    /// Whether an incarnation is the present one of its name, and not fenced.
    pub(crate) fn is_live(&self, incarnation: Incarnation) -> bool {
        self.nodes
            .iter()
            .any(|node| node.incarnation == incarnation.0 && node.fenced_at.is_none())
    }

    /// How many slots an incarnation owns.
    pub(crate) fn owned(&self, incarnation: Incarnation) -> usize {
        self.slots
            .iter()
            .filter(|row| row.owner == Some(incarnation))
            .count()
    }

    /// All flights written.
    pub(crate) fn total(&self) -> i64 {
        self.written.values().sum()
    }

    fn name(&self, incarnation: Option<Incarnation>) -> &str {
        let known = incarnation.and_then(|i| self.nodes.iter().find(|node| node.incarnation == i.0));
        known.map_or("-", |node| &node.name)
    }
}

/// Counters of processes that may end: what they had reached when they were read last is kept.
#[derive(Debug, Default)]
struct Meter {
    /// By node: the counter's last value, and what its earlier processes had reached.
    fenced: HashMap<String, (f64, f64)>,
}

impl Meter {
    fn read(&mut self, url: &str, value: f64) {
        let (last, before) = self.fenced.entry(url.to_owned()).or_default();
        // A counter only rises: below its last value it is another process's.
        if value < *last {
            *before += *last;
        }
        *last = value;
    }

    /// Another process answers at this address from now on.
    fn restart(&mut self, url: &str) {
        self.read(url, 0.0);
    }

    fn total(&self) -> f64 {
        self.fenced.values().map(|(last, before)| last + before).sum()
    }
}

/// What the demo's parts share.
#[derive(Debug)]
pub(crate) struct Stage {
    pub(crate) store: Store,
    pub(crate) http: reqwest::Client,
    /// The nodes' names and addresses.
    pub(crate) nodes: Vec<(String, String)>,
    view: watch::Sender<Arc<View>>,
    /// For each move seen: slot, the epoch before it, and the last moment at which it was seen under that epoch.
    moves: Mutex<Vec<Moved>>,
    meter: Mutex<Meter>,
}

impl Stage {
    pub(crate) fn new(store: Store, http: reqwest::Client, nodes: Vec<(String, String)>) -> Self {
        let view = watch::Sender::new(Arc::default());
        Stage {
            store,
            http,
            nodes,
            view,
            moves: Mutex::default(),
            meter: Mutex::default(),
        }
    }

    /// The last view.
    pub(crate) fn view(&self) -> Arc<View> {
        self.view.borrow().clone()
    }

    /// The first view, from now on, for which this holds; none if there was none in time.
    pub(crate) async fn until(&self, within: Duration, holds: impl Fn(&View) -> bool) -> Option<Arc<View>> {
        let mut views = self.view.subscribe();
        let found = async {
            views
                .wait_for(|view| holds(view))
                .await
                .map(|view| view.clone())
                .ok()
        };
        tokio::time::timeout(within, found).await.ok().flatten()
    }

    /// Waits until so many flights are written. False: nothing was written for `patience`.
    pub(crate) async fn until_written(&self, wanted: i64, patience: Duration) -> bool {
        loop {
            let so_far = self.view().total();
            if so_far >= wanted {
                return true;
            }
            if self.until(patience, |view| view.total() > so_far).await.is_none() {
                return false;
            }
        }
    }

    /// The moves seen since `since`, of slots that then had these epochs: the first of each slot.
    pub(crate) fn first_moves(&self, before: &[Row]) -> Vec<Moved> {
        let moves = self.moves.lock().unwrap_or_else(PoisonError::into_inner);
        let mut first: BTreeMap<Slot, Moved> = BTreeMap::new();
        let wanted: HashMap<(Slot, Epoch), ()> =
            before.iter().map(|row| ((row.slot, row.epoch), ())).collect();
        for moved in moves
            .iter()
            .filter(|moved| wanted.contains_key(&(moved.slot, moved.epoch)))
        {
            first.entry(moved.slot).or_insert(*moved);
        }
        first.into_values().collect()
    }

    /// Reads a node's counters now, for instance because it will be killed next.
    pub(crate) async fn read_metrics(&self, url: &str) {
        let page = async { self.http.get(format!("{url}/metrics")).send().await?.text().await };
        if let Ok(page) = page.await {
            let value = counter(&page, metric::FENCED_WRITES);
            self.meter
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .read(url, value);
        }
    }

    /// Another process will answer at this address.
    pub(crate) fn restarted(&self, url: &str) {
        self.meter
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .restart(url);
    }

    /// Refused writes of all nodes, as far as their counters could be read.
    pub(crate) fn fenced_writes(&self) -> u64 {
        self.meter.lock().unwrap_or_else(PoisonError::into_inner).total() as u64
    }

    /// Reads the slots again and again, and publishes views. Never returns; losing it half-way loses nothing.
    pub(crate) async fn watch(&self, screen: &Screen) {
        let mut ticks = tokio::time::interval(LOOK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut counted: Option<Instant> = None;
        let mut told = Tellings::default();
        loop {
            ticks.tick().await;
            // Without Postgres there is nothing new to see; the next tick looks again.
            let (Ok(slots), Ok(nodes)) = (self.store.demo_slots().await, self.store.demo_nodes().await)
            else {
                continue;
            };
            let before = self.view();
            let moved = self.note_moves(&before, &slots);
            let mut view = View {
                at: Some(slots.at),
                slots: slots.rows,
                nodes,
                written: before.written.clone(),
                members: before.members.clone(),
                still_since: before
                    .still_since
                    .filter(|_| moved == 0)
                    .or_else(|| Some(Instant::now())),
            };
            if counted.is_none_or(|at| at.elapsed() >= COUNT)
                && let Ok(counts) = self.store.demo_counts().await
            {
                view.written = counts.into_iter().collect();
                counted = Some(Instant::now());
            }
            told.compare(&before, &view);
            told.tell(screen);
            // The other writer of views changes only the members.
            self.view.send_modify(|present| {
                view.members.clone_from(&present.members);
                *present = Arc::new(view);
            });
        }
    }

    /// Remembers which slots have moved, and answers how many.
    fn note_moves(&self, before: &View, now: &Slots) -> usize {
        let Some(at) = before.at else { return 0 };
        let pairs = before.slots.iter().zip(&now.rows);
        let moved: Vec<Moved> = pairs
            .filter(|(before, now)| before.epoch != now.epoch)
            .map(|(before, _)| Moved {
                slot: before.slot,
                epoch: before.epoch,
                until: at,
            })
            .collect();
        let count = moved.len();
        self.moves
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend(moved);
        count
    }

    /// Asks the nodes again and again. Never returns.
    pub(crate) async fn ask(&self) {
        let mut ticks = tokio::time::interval(ASK);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            let metrics = self.nodes.iter().map(|(_, url)| self.read_metrics(url));
            futures::future::join_all(metrics).await;
            if let Some(members) = self.members().await {
                self.view
                    .send_modify(|view| Arc::make_mut(view).members = members);
            }
        }
    }

    /// The members as the first node that answers sees them.
    async fn members(&self) -> Option<BTreeMap<String, String>> {
        #[derive(Deserialize)]
        struct Mesh {
            members: Vec<Member>,
        }
        #[derive(Deserialize)]
        struct Member {
            name: String,
            state: String,
        }
        for (_, url) in &self.nodes {
            let request = self
                .http
                .get(format!("{url}/v1/mesh"))
                .timeout(Duration::from_millis(500));
            let answer = async { request.send().await?.error_for_status()?.json::<Mesh>().await };
            if let Ok(mesh) = answer.await {
                let members = mesh.members.into_iter();
                return Some(members.map(|member| (member.name, member.state)).collect());
            }
        }
        None
    }
}

/// The sum of a counter over its labels, from a page in the Prometheus text format.
fn counter(page: &str, name: &str) -> f64 {
    let values = page.lines().filter_map(|line| {
        let rest = line.strip_prefix(name)?;
        if !rest.starts_with([' ', '{']) {
            return None;
        }
        rest.rsplit(' ').next()?.parse::<f64>().ok()
    });
    values.sum()
}

/// Events that are told to the watching person.
#[derive(Debug, Default)]
struct Tellings {
    moves: BTreeMap<(String, String), usize>,
    last_move: Option<Instant>,
    lines: Vec<String>,
}

impl Tellings {
    fn compare(&mut self, before: &View, now: &View) {
        if before.at.is_none() {
            return;
        }
        for node in &now.nodes {
            let known = before.nodes.iter().find(|known| known.name == node.name);
            let was_live = known.is_some_and(|known| known.fenced_at.is_none());
            if let (true, Some(kind)) = (was_live, &node.fenced_as)
                && known.is_some_and(|known| known.incarnation == node.incarnation)
            {
                let how = match kind.as_str() {
                    "noticed" => "its peers saw its session end and fenced it",
                    "expired" => "its lease expired and a peer fenced it",
                    "left" => "it handed everything on and fenced itself",
                    _ => "it was replaced by its successor",
                };
                self.lines.push(format!("{}: {how}", node.name));
            }
            if known.is_some_and(|known| known.incarnation < node.incarnation) {
                self.lines.push(format!(
                    "{} has registered as incarnation {}",
                    node.name, node.incarnation
                ));
            }
        }
        for (old, new) in before.slots.iter().zip(&now.slots) {
            if old.epoch != new.epoch {
                let route = (before.name(old.owner).to_owned(), now.name(new.owner).to_owned());
                *self.moves.entry(route).or_default() += 1;
                self.last_move = Some(Instant::now());
            }
        }
        if self.last_move.is_some_and(|at| at.elapsed() >= TELL) {
            self.last_move = None;
            let moves = std::mem::take(&mut self.moves);
            let total: usize = moves.values().sum();
            let routes: Vec<String> = moves
                .iter()
                .map(|((from, to), count)| format!("{from} > {to} {count}"))
                .collect();
            self.lines
                .push(format!("{total} slots have moved: {}", routes.join(", ")));
        }
    }

    fn tell(&mut self, screen: &Screen) {
        self.lines.drain(..).for_each(|line| screen.event(&line));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_counter_is_the_sum_over_its_labels() {
        let page = "# HELP x_total 9\n# TYPE x_total counter\nx_total{a=\"b c\"} 2\nx_total{a=\"d\"} 3\nx_total_more 7\n";
        assert!((counter(page, "x_total") - 5.0).abs() < 1e-9);
        assert!(counter(page, "y_total").abs() < 1e-9);
    }

    #[test]
    fn counters_of_killed_processes_are_kept() {
        let mut meter = Meter::default();
        for (url, value) in [("a", 2.0), ("b", 1.0), ("a", 5.0), ("a", 1.0)] {
            meter.read(url, value);
        }
        assert!((meter.total() - 7.0).abs() < 1e-9);
        // A successor that has more than its predecessor is told only by the restart.
        meter.restart("b");
        meter.read("b", 4.0);
        assert!((meter.total() - 11.0).abs() < 1e-9);
    }
}
