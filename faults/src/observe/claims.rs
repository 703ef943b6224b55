//! What each claim says of its fence: looked at while the log is read, and kept only if it is wrong.
//!
//! An update shows the new row alone (the key of an open task is its identity, and never changes), so the claims that stand are
//! remembered: as many as nodes hold. A claim sets an epoch or raises the attempt, and must stand under the epoch that its slot has
//! now; a retry, a snooze or a give-back clears the epoch, which must have been the slot's. Whatever leaves both as they are (a
//! hold, a time that has come) may find a claim of a former owner, and says nothing.

use std::collections::HashMap;

use ringmesh::task::TaskId;

use crate::history::Row;

/// The claims that stand, and the epochs of slots.
#[derive(Debug, Default)]
pub(super) struct Claims {
    epochs: HashMap<u16, i64>,
    /// Open tasks that are claimed: under which epoch, and as which attempt.
    standing: HashMap<TaskId, (i64, i32)>,
    /// Tasks that the transaction inserted or changed: epoch and attempt from now on.
    changed: Vec<(TaskId, Option<i64>, i32)>,
}

impl Claims {
    /// A transaction begins; what was noted of one that was broken off is dropped.
    pub(super) fn begin(&mut self) {
        self.changed.clear();
    }

    /// A baseline begins: all is forgotten.
    pub(super) fn begin_baseline(&mut self) {
        *self = Claims::default();
    }

    /// Keeps for the end of the transaction who holds a task now. One that was never claimed has nothing to say.
    pub(super) fn note(&mut self, task: TaskId, epoch: Option<i64>, attempt: i32) {
        if epoch.is_some() || attempt > 0 {
            self.changed.push((task, epoch, attempt));
        }
    }

    /// The transaction is whole. Adds to its rows one for each claim, and each return of one, that is not of its slot's epoch; and
    /// remembers what stands.
    pub(super) fn judge(&mut self, rows: &mut Vec<Row>) {
        let mut baseline = false;
        for row in rows.iter() {
            match row {
                Row::Baseline => baseline = true,
                Row::Slot { slot, epoch, .. } => {
                    if let Ok(slot) = u16::try_from(*slot) {
                        self.epochs.insert(slot, *epoch);
                    }
                }
                _ => {}
            }
        }
        for (task, epoch, attempt) in self.changed.drain(..) {
            let before = match epoch {
                Some(epoch) => self.standing.insert(task, (epoch, attempt)),
                None => self.standing.remove(&task),
            };
            let under = match (before, epoch) {
                (before, Some(epoch)) if before != Some((epoch, attempt)) => epoch,
                (Some((epoch, _)), None) => epoch,
                _ => continue,
            };
            // Those that stand in a baseline may be of former owners.
            let now = self.epochs.get(&task.slot.get()).copied();
            if let Some(slot_epoch) = now.filter(|now| *now != under && !baseline) {
                rows.push(Row::Stale {
                    task,
                    epoch: under,
                    slot_epoch,
                });
            }
        }
        for row in rows.iter() {
            if let Row::Finished { id, .. } | Row::TaskGone { id } = row {
                self.standing.remove(id);
            }
        }
    }
}
