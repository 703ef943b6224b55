//! The upkeep of held keys, and of the ids of submits and of the inbox, by the owner of their slots.
//!
//! Each round works in chunks, goes on after an error (it is logged, and the next round reads the state anew), and touches
//! only slots that this node owns. It first reads, without locks, which slots need anything at all.

use std::time::Duration;

use ringmesh_ring::{Epoch, Slot};

use crate::failpoint::{self, droppable};
use crate::store::{Error, Holds, Me, Store};
use crate::task::TaskId;
use crate::telemetry::metric;

const SLOTS_PER_READ: usize = 1024;
const SLOTS_PER_CHUNK: usize = 128;
/// At most so many chunks of one kind per round; the next round goes on.
const CHUNKS: usize = 8;

/// What a round made claimable.
#[derive(Debug, Default)]
pub(crate) struct Report {
    /// Tasks that are due again.
    pub(crate) tasks: Vec<TaskId>,
    /// Slots with holds that were lifted, or may have been: a statement about them gave no answer. One that is still on its
    /// way does no harm later either, see docs/adr/0005.
    pub(crate) lifted: Vec<Slot>,
}

impl Report {
    fn failed(&mut self, step: &'static str, slots: &[(Slot, Epoch)], error: &Error) {
        warn(step, error);
        if matches!(error, Error::Unknown(_)) {
            self.lifted.extend(slots.iter().map(|(slot, _)| *slot));
        }
    }
}

/// Work that is due in this round besides the lifting of holds.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Round {
    pub(crate) take_up_kinds: bool,
    pub(crate) move_behind: bool,
    pub(crate) forget_idempotency: Option<Duration>,
    pub(crate) forget_inbox: Option<Duration>,
    pub(crate) count_inbox: bool,
}

/// One round.
pub(crate) async fn round(
    store: &Store,
    me: Me,
    slots: &[(Slot, Epoch)],
    kinds: &[String],
    round: Round,
) -> Report {
    let mut report = Report::default();
    for slots in slots.chunks(SLOTS_PER_READ) {
        let numbers: Vec<Slot> = slots.iter().map(|(slot, _)| *slot).collect();
        let holds = droppable(async {
            let holds = store.holds(&numbers).await?;
            failpoint::at(failpoint::SWEPT).await?;
            Ok(holds)
        });
        match holds.await {
            Ok(holds) => {
                if !holds.is_empty() {
                    keys(store, me, slots, &holds, kinds, round, &mut report).await;
                }
            }
            Err(error) => warn("holds", &error),
        }
    }
    for slots in slots.chunks(SLOTS_PER_CHUNK) {
        if let Some(window) = round.forget_idempotency {
            let forget = || store.forget_idempotency(me, slots, window);
            in_chunks("forget_idempotency", forget).await;
        }
        if let Some(window) = round.forget_inbox {
            in_chunks("forget_inbox", || store.forget_inbox(me, slots, window)).await;
        }
    }
    // One node is enough to tell what all of them share.
    if round.count_inbox && slots.iter().any(|(slot, _)| slot.get() == 0) {
        match store.inbox_again().await {
            Ok(again) => {
                metrics::counter!(metric::INBOX_DUPLICATES).absolute(again.unsigned_abs());
            }
            Err(error) => warn("inbox_again", &error),
        }
    }
    report
}

/// Deletes until nothing is left to delete, or as often as one round may.
async fn in_chunks<F: Future<Output = Result<u64, Error>>>(step: &'static str, delete: impl Fn() -> F) {
    for _ in 0..CHUNKS {
        match at(failpoint::IDEMPOTENCY, delete()).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(error) => {
                warn(step, &error);
                break;
            }
        }
    }
}

async fn keys(
    store: &Store,
    me: Me,
    slots: &[(Slot, Epoch)],
    holds: &[Holds],
    kinds: &[String],
    round: Round,
    report: &mut Report,
) {
    let those = |needs: fn(&Holds) -> bool| -> Vec<(Slot, Epoch)> {
        slots
            .iter()
            .filter(|(slot, _)| holds.iter().any(|holds| holds.slot == *slot && needs(holds)))
            .copied()
            .collect()
    };
    let mut lifting = those(|holds| holds.lifting);
    let orphaned = those(|holds| holds.orphaned);
    for slots in orphaned.chunks(SLOTS_PER_CHUNK) {
        if let Err(error) = at(failpoint::ORPHANS, store.lift_orphans(me, slots)).await {
            warn("lift_orphans", &error);
        }
    }
    lifting.extend(orphaned);
    lifting.sort_unstable();
    lifting.dedup();
    for slots in lifting.chunks(SLOTS_PER_CHUNK) {
        for _ in 0..CHUNKS {
            match at(failpoint::HELD, store.lift_behind(me, slots)).await {
                Ok(0) => break,
                Ok(_) => {}
                Err(error) => {
                    report.failed("lift_behind", slots, &error);
                    break;
                }
            }
        }
        match at(failpoint::HELD, store.lift_done(me, slots)).await {
            Ok(lifted) => report.lifted.extend(lifted),
            Err(error) => report.failed("lift_done", slots, &error),
        }
    }
    if round.take_up_kinds {
        for slots in those(|holds| holds.kind).chunks(SLOTS_PER_CHUNK) {
            match at(failpoint::HELD, store.take_up_kinds(me, slots, kinds)).await {
                Ok(tasks) => report.tasks.extend(tasks),
                Err(error) => report.failed("take_up_kinds", slots, &error),
            }
        }
    }
    if round.move_behind {
        for slots in those(|holds| holds.long).chunks(SLOTS_PER_CHUNK) {
            for _ in 0..CHUNKS {
                match at(failpoint::HELD, store.move_behind(me, slots)).await {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) => {
                        warn("move_behind", &error);
                        break;
                    }
                }
            }
        }
    }
}

/// One write, with the point before it.
async fn at<T>(point: &'static str, write: impl Future<Output = Result<T, Error>>) -> Result<T, Error> {
    droppable(async {
        failpoint::at(point).await?;
        write.await
    })
    .await
}

fn warn(step: &'static str, error: &Error) {
    tracing::warn!(step, error = %crate::dispatch::chain(error), "a step of upkeep failed, the next round goes on");
}
