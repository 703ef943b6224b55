//! Slots on their way out: nothing of them is claimed, their runs end, and who moves them is told.
//!
//! A long run would let its slot's other keys wait for nothing. So a slot that need not leave at once closes only for a
//! moment: if a long run is still there after it, the slot works again, and closes anew as the last long run ends, before
//! anything else of it starts. What runs at the deadline is cancelled.

use super::*;

/// A run that takes longer does not hold up its slot's other keys: longer, and they wait longer for nothing; shorter, and tasks are
/// given back and claimed again more often.
const LONG: Duration = Duration::from_millis(500);

/// A slot on its way out. While it works, [`Lanes::is_leaving`] is false.
#[derive(Debug)]
pub(super) struct Leaving {
    /// When its runs are cancelled.
    pub(super) until: i64,
    /// Its other keys wait for a long run, too.
    at_once: bool,
    /// When it was closed last.
    closed: i64,
}

impl Engine {
    pub(super) fn leave(&mut self, slots: &[Slot], deadline: Duration, at_once: bool) {
        let closed = now();
        let until = closed.saturating_add(ms(deadline));
        for slot in slots {
            if self.lanes.epoch(*slot).is_none() {
                continue;
            }
            let leaving = Leaving {
                until,
                at_once,
                closed,
            };
            self.leaving.insert(*slot, leaving);
            let back = self.lanes.leave(*slot);
            self.give_back(back);
        }
    }

    /// Opens slots that wait for a long run, and closes them again.
    pub(super) fn steer_leaving(&mut self, now: i64) {
        if self.leaving.is_empty() {
            return;
        }
        let long: HashSet<Slot> = self
            .runs
            .values()
            .filter(|run| run.began.elapsed() >= LONG)
            .map(|run| run.task.token.id.slot)
            .collect();
        let mut back = Vec::new();
        for (slot, leaving) in &mut self.leaving {
            // What starts shall have time to end.
            let late = now >= leaving.until.saturating_sub(ms(LONG));
            let stays = long.contains(slot) && !leaving.at_once && !late;
            if !stays && !self.lanes.is_leaving(*slot) {
                leaving.closed = now;
                back.extend(self.lanes.leave(*slot));
            } else if stays && self.lanes.is_leaving(*slot) && now - leaving.closed >= ms(LONG) {
                self.lanes.stay(*slot);
            }
        }
        self.give_back(back);
    }

    pub(super) fn tell_quiet(&mut self) {
        if self.leaving.is_empty() {
            return;
        }
        let quiet: Vec<(Slot, Epoch)> = self
            .leaving
            .keys()
            .filter(|slot| self.lanes.is_leaving(**slot) && self.lanes.is_quiet(**slot))
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
}
