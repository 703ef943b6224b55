//! What happens to the mesh while the flights are submitted: one node is killed and started again, another is drained.
//!
//! | when (share of the flights written) | what |
//! |---|---|
//! | 35 % | the third node is killed with SIGKILL |
//! | 55 % | it is started again |
//! | 75 % | the fourth node is drained over the API; its process ends by itself |
//!
//! Each waits for the one before to be over, so that its moves are not mixed with others. How long slots paused is read from
//! Postgres afterwards, from the times of commits:
//!
//! - *after the kill*, for each slot of the dead node: from the kill, or from the submit if that was later, to the commit
//!   of the first flight under the new epoch;
//! - *in the drain*, for each slot handed on: from the last commit under the old epoch, or from the submit or from the request to
//!   drain if those were later, to the commit of the first flight under the new epoch.
//!
//! Only slots count for which that first flight was submitted while the slot surely had not moved yet: others were
//! not waited for.

use std::collections::HashSet;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ringmesh_ring::{Incarnation, Row, Slot};

use super::Error;
use super::check::quantile;
use super::screen::Screen;
use super::watch::{Stage, View};
use crate::dev::Mesh;
use crate::store::demo::Moved;

/// How long nothing may be written before the story goes on without its next event.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);
/// How long the slots must have stood still before an event.
const STILL: Duration = Duration::from_secs(1);
/// How long an event may take to be over.
const OVER: Duration = Duration::from_secs(60);

/// What happened.
#[derive(Debug, Default)]
pub(crate) struct Story {
    pub(crate) death: Option<Death>,
    pub(crate) rejoin: Option<Rejoin>,
    pub(crate) drain: Option<Drain>,
}

/// A node was killed.
#[derive(Debug)]
pub(crate) struct Death {
    pub(crate) node: String,
    /// By the database's clock, just before the signal.
    at: DateTime<Utc>,
    /// What it owned.
    pub(crate) slots: usize,
    /// Slots with another epoch than before, when it was started again or, if it never was, when its slots had new owners.
    pub(crate) moved: usize,
    /// Those among them that it did not own.
    pub(crate) others: usize,
    /// From the kill until all its slots were seen under live owners; none: not in time.
    pub(crate) healed_ms: Option<f64>,
    /// How Postgres says that it was fenced.
    pub(crate) fenced_as: Option<String>,
    moves: Vec<Moved>,
    pub(crate) pauses: Pauses,
}

/// It was started again.
#[derive(Debug)]
pub(crate) struct Rejoin {
    pub(crate) moved: usize,
    /// Slots that moved and went to somebody else.
    pub(crate) others: usize,
}

/// A node was drained.
#[derive(Debug)]
pub(crate) struct Drain {
    pub(crate) node: String,
    at: DateTime<Utc>,
    pub(crate) slots: usize,
    pub(crate) moved: usize,
    pub(crate) others: usize,
    /// Whether its process ended by itself with exit code 0.
    pub(crate) ended_well: bool,
    moves: Vec<Moved>,
    pub(crate) pauses: Pauses,
}

/// How long slots paused.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct Pauses {
    /// Slots with a flight that waited.
    pub(crate) slots: usize,
    /// None without such slots.
    pub(crate) p50_ms: Option<f64>,
    pub(crate) max_ms: Option<f64>,
}

impl Pauses {
    fn of(mut values: Vec<f64>) -> Self {
        Pauses {
            slots: values.len(),
            p50_ms: quantile(&mut values, 0.5),
            max_ms: quantile(&mut values, 1.0),
        }
    }
}

/// Which nodes the events happen to: the third, or the last of fewer; and another one.
fn cast(nodes: usize) -> (usize, usize) {
    let killed = nodes.saturating_sub(1).min(2);
    let drained = if nodes > 3 { 3 } else { killed.saturating_sub(1) };
    (killed, drained)
}

/// Plays it over `total` flights. With one node there is none.
pub(crate) async fn play(
    stage: &Stage,
    mesh: &mut Mesh,
    screen: &Screen,
    total: usize,
    kill: bool,
) -> Result<Story, Error> {
    let mut story = Story::default();
    let share = |percent: usize| i64::try_from(total * percent / 100).unwrap_or(i64::MAX);
    let count = mesh.nodes().len();
    if count < 2 {
        return Ok(story);
    }
    let (killed, drained) = cast(count);
    if kill {
        stage.until_written(share(35), PATIENCE).await;
        let (before, mut death) = die(stage, mesh, screen, killed).await?;
        stage.until_written(share(55), PATIENCE).await;
        let after = stage.view();
        (death.moved, death.others) = compare(&before, &after, |old, _| owned_by(old, &before, &death.node));
        story.death = Some(death);
        story.rejoin = Some(rejoin(stage, mesh, screen, killed).await?);
    }
    stage.until_written(share(75), PATIENCE).await;
    story.drain = Some(drain(stage, mesh, screen, drained).await?);
    Ok(story)
}

/// Waits until all slots have live owners and have stood still for a while, and answers with how things are then. A mesh
/// that does not come to rest in time is taken as it is: the comparison shows it.
async fn at_rest(stage: &Stage) -> std::sync::Arc<View> {
    let rest = |view: &View| {
        view.still_since.is_some_and(|since| since.elapsed() >= STILL)
            && view
                .slots
                .iter()
                .all(|row| row.owner.is_some_and(|owner| view.is_live(owner)))
    };
    stage.until(OVER, rest).await.unwrap_or_else(|| stage.view())
}

fn owned_by(row: &Row, view: &View, name: &str) -> bool {
    let incarnation = view
        .nodes
        .iter()
        .find(|node| node.name == name)
        .map(|n| Incarnation(n.incarnation));
    row.owner.is_some() && row.owner == incarnation
}

/// How many slots have another epoch, and how many of them are not as `expected(old, new)` says.
fn compare(before: &View, after: &View, expected: impl Fn(&Row, &Row) -> bool) -> (usize, usize) {
    let pairs = before.slots.iter().zip(&after.slots);
    let moved: Vec<(&Row, &Row)> = pairs.filter(|(old, new)| old.epoch != new.epoch).collect();
    let others = moved.iter().filter(|(old, new)| !expected(old, new)).count();
    (moved.len(), others)
}

async fn die(
    stage: &Stage,
    mesh: &mut Mesh,
    screen: &Screen,
    number: usize,
) -> Result<(std::sync::Arc<View>, Death), Error> {
    let name = stage.nodes[number].0.clone();
    let before = at_rest(stage).await;
    let dead: HashSet<Slot> = before
        .slots
        .iter()
        .filter(|row| owned_by(row, &before, &name))
        .map(|row| row.slot)
        .collect();
    stage.read_metrics(&stage.nodes[number].1).await;
    screen.event(&format!(
        "{name} is killed with SIGKILL; it owns {} slots",
        dead.len()
    ));
    screen.mark(&name, "killed");
    let at = stage.store.demo_now().await?;
    mesh.nodes_mut()[number].kill().await?;
    let healed = |view: &View| {
        view.slots.iter().zip(&before.slots).all(|(now, then)| {
            !dead.contains(&now.slot)
                || (now.epoch > then.epoch && now.owner.is_some_and(|owner| view.is_live(owner)))
        })
    };
    let after = stage.until(OVER, healed).await;
    let healed_ms = after
        .as_ref()
        .and_then(|view| view.at)
        .map(|seen| millis(at, seen).max(0.0));
    let after = after.unwrap_or_else(|| stage.view());
    match healed_ms {
        Some(ms) => screen.event(&format!(
            "all slots of {name} have new owners {ms:.0} ms after the kill"
        )),
        None => screen.event(&format!(
            "slots of {name} still have no new owner after {} s",
            OVER.as_secs()
        )),
    }
    let rows: Vec<Row> = before
        .slots
        .iter()
        .filter(|row| dead.contains(&row.slot))
        .copied()
        .collect();
    let fenced_as = after
        .nodes
        .iter()
        .find(|node| node.name == name)
        .and_then(|n| n.fenced_as.clone());
    let death = Death {
        slots: dead.len(),
        moved: 0,
        others: 0,
        healed_ms,
        fenced_as,
        moves: stage.first_moves(&rows),
        pauses: Pauses::default(),
        node: name,
        at,
    };
    Ok((before, death))
}

async fn rejoin(stage: &Stage, mesh: &mut Mesh, screen: &Screen, number: usize) -> Result<Rejoin, Error> {
    let (name, url) = stage.nodes[number].clone();
    let before = stage.view();
    stage.restarted(&url);
    screen.event(&format!("{name} is started again"));
    screen.mark(&name, "starting");
    mesh.nodes_mut()[number].start_again().await?;
    screen.unmark(&name);
    let after = at_rest(stage).await;
    let (moved, others) = compare(&before, &after, |_, new| owned_by(new, &after, &name));
    screen.event(&format!("{name} is back with {moved} slots"));
    Ok(Rejoin { moved, others })
}

async fn drain(stage: &Stage, mesh: &mut Mesh, screen: &Screen, number: usize) -> Result<Drain, Error> {
    let (name, url) = stage.nodes[number].clone();
    let before = at_rest(stage).await;
    let rows: Vec<Row> = before
        .slots
        .iter()
        .filter(|row| owned_by(row, &before, &name))
        .copied()
        .collect();
    screen.event(&format!("{name} is asked to drain; it owns {} slots", rows.len()));
    stage.read_metrics(&url).await;
    let at = stage.store.demo_now().await?;
    // Asked through another node, as an operator may.
    let through = &stage.nodes[(number + 1) % stage.nodes.len()].1;
    let request = stage
        .http
        .post(format!("{through}/v1/nodes/{name}/drain"))
        .send()
        .await;
    let answer = request
        .and_then(reqwest::Response::error_for_status)
        .map_err(Error::Drain)?;
    drop(answer);
    let ended_well = end_of(mesh, number, OVER).await;
    screen.mark(&name, if ended_well { "left" } else { "failed" });
    screen.event(&match ended_well {
        true => format!("{name} has handed everything on and ended with exit code 0"),
        false => format!("{name} did not end by itself with exit code 0; its log tells why"),
    });
    let handed_on = |view: &View| {
        view.live(&name)
            .is_none_or(|incarnation| view.owned(incarnation) == 0)
    };
    let after = stage
        .until(Duration::from_secs(10), handed_on)
        .await
        .unwrap_or_else(|| stage.view());
    let (moved, others) = compare(&before, &after, |old, _| owned_by(old, &before, &name));
    let moves = stage.first_moves(&rows);
    let (slots, pauses) = (rows.len(), Pauses::default());
    Ok(Drain {
        node: name,
        at,
        slots,
        moved,
        others,
        ended_well,
        moves,
        pauses,
    })
}

/// Waits for a node to end by itself; whether it did, and with exit code 0.
async fn end_of(mesh: &mut Mesh, number: usize, within: Duration) -> bool {
    let ended = async {
        loop {
            if let Some(status) = mesh.nodes_mut()[number].ended() {
                return status.success();
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(within, ended).await.unwrap_or(false)
}

impl Story {
    /// Reads from Postgres how long the slots paused. To be called once all flights have been written.
    pub(crate) async fn measure(&mut self, stage: &Stage) -> Result<(), Error> {
        if let Some(death) = &mut self.death {
            let pauses = stage.store.demo_pauses(&death.moves).await?;
            let values = pauses
                .iter()
                .map(|pause| millis(death.at.max(pause.created_at), pause.first_after));
            death.pauses = Pauses::of(values.collect());
        }
        if let Some(drain) = &mut self.drain {
            let pauses = stage.store.demo_pauses(&drain.moves).await?;
            let values = pauses.iter().map(|pause| {
                let from = drain.at.max(pause.created_at);
                millis(
                    pause.last_before.map_or(from, |last| from.max(last)),
                    pause.first_after,
                )
            });
            drain.pauses = Pauses::of(values.collect());
        }
        Ok(())
    }
}

fn millis(from: DateTime<Utc>, to: DateTime<Utc>) -> f64 {
    (to - from)
        .num_microseconds()
        .map_or(f64::MAX, |micros| micros as f64 / 1000.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_both_killed_and_drained() {
        assert_eq!(cast(2), (1, 0));
        assert_eq!(cast(3), (2, 1));
        assert_eq!(cast(4), (2, 3));
        assert_eq!(cast(5), (2, 3));
        assert_eq!(cast(100), (2, 3));
    }

    #[test]
    fn without_a_slot_that_waited_there_is_no_pause() {
        assert_eq!(Pauses::of(Vec::new()), Pauses::default());
        let pauses = Pauses::of(vec![30.0, 10.0, 20.0]);
        assert_eq!(
            (pauses.slots, pauses.p50_ms, pauses.max_ms),
            (3, Some(20.0), Some(30.0))
        );
    }
}
