//! What is to be written about tasks, in batches: whatever waits goes out as soon as a statement of its kind may start.
//!
//! A row leaves the outbox when it is known what became of it. An answer that never came, or that lacks the row, is
//! followed by a read; a refused batch is halved until the bad row stands alone.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use ringmesh_ring::{Incarnation, Key};

use super::lanes::{LaneId, RunId};
use crate::store::{Error, Finish, Me, Retry, Store, Token};
use crate::task::TaskId;

/// At most so many rows in one statement.
const ROWS: usize = 1000;
/// After a failure a kind of statement waits for so long.
const PAUSE_MS: i64 = 200;

/// What is to be written about one task.
#[derive(Debug, Clone)]
pub(crate) struct Write {
    pub(crate) lane: LaneId,
    /// The run that it ends, if there was one.
    pub(crate) run: Option<RunId>,
    pub(crate) token: Token,
    pub(crate) waiter: Option<Incarnation>,
    /// Whether a statement that may have written it gave no answer.
    pub(crate) unanswered: bool,
    pub(crate) what: What,
}

#[derive(Debug, Clone)]
pub(crate) enum What {
    Finish {
        end: Result<Option<String>, String>,
        began: Instant,
        failed: bool,
        head: bool,
    },
    Retry {
        key: Key,
        delay: Duration,
        failed: bool,
        error: Option<String>,
    },
    GiveBack,
    SetAside,
}

impl What {
    fn kind(&self) -> usize {
        match self {
            What::Finish { .. } => 0,
            What::Retry { .. } => 1,
            What::GiveBack => 2,
            What::SetAside => 3,
        }
    }
}

/// Rows of one kind on their way.
#[derive(Debug)]
pub(crate) struct Batch {
    kind: usize,
    pub(crate) rows: Vec<Write>,
}

#[derive(Debug, Default)]
struct Queue {
    rows: VecDeque<Write>,
    /// Halves of refused batches, to be sent as they are.
    halves: VecDeque<Vec<Write>>,
    in_flight: usize,
    paused_until: i64,
}

#[derive(Debug, Default)]
pub(crate) struct Outbox {
    queues: [Queue; 4],
    /// Rows that are known to be unwritten and wait a little.
    later: Vec<(i64, Write)>,
}

/// How many statements of each kind run at once.
const IN_FLIGHT: [usize; 4] = [2, 1, 1, 1];

impl Outbox {
    pub(crate) fn push(&mut self, write: Write) {
        self.queues[write.what.kind()].rows.push_back(write);
    }

    /// Tries a row again after a pause.
    pub(crate) fn push_later(&mut self, write: Write, now: i64) {
        self.later.push((now + PAUSE_MS, write));
    }

    /// Puts rows in line again whose pause is over.
    pub(crate) fn wake(&mut self, now: i64) {
        let mut place = 0;
        while place < self.later.len() {
            if self.later[place].0 <= now {
                let (_, write) = self.later.swap_remove(place);
                self.push(write);
            } else {
                place += 1;
            }
        }
    }

    /// The next batch that may be sent now; without the rows for which `still_ours` is false.
    pub(crate) fn next(&mut self, now: i64, still_ours: impl Fn(&Token) -> bool) -> Option<Batch> {
        for (kind, queue) in self.queues.iter_mut().enumerate() {
            while queue.in_flight < IN_FLIGHT[kind] && queue.paused_until <= now {
                let mut rows = match queue.halves.pop_front() {
                    Some(rows) => rows,
                    None => queue.rows.drain(..queue.rows.len().min(ROWS)).collect(),
                };
                if rows.is_empty() {
                    break;
                }
                rows.retain(|row| still_ours(&row.token));
                if !rows.is_empty() {
                    queue.in_flight += 1;
                    return Some(Batch { kind, rows });
                }
            }
        }
        None
    }

    /// A batch came back.
    pub(crate) fn returned(&mut self, batch: &Batch) {
        self.queues[batch.kind].in_flight -= 1;
    }

    /// A batch that was surely not written: its kind pauses, then it is tried again first.
    pub(crate) fn again(&mut self, batch: Batch, now: i64) {
        let queue = &mut self.queues[batch.kind];
        queue.paused_until = now + PAUSE_MS;
        queue.halves.push_front(batch.rows);
    }

    /// A batch with a bad row: its halves are sent on their own. Answers with the row if it stands alone.
    pub(crate) fn halve(&mut self, mut batch: Batch) -> Option<Write> {
        if batch.rows.len() == 1 {
            return batch.rows.pop();
        }
        let half = batch.rows.split_off(batch.rows.len() / 2);
        let queue = &mut self.queues[batch.kind];
        queue.halves.push_back(batch.rows);
        queue.halves.push_back(half);
        None
    }
}

/// Executes a batch.
pub(crate) async fn write(store: &Store, me: Me, batch: &Batch) -> Result<Vec<TaskId>, Error> {
    let tokens = || -> Vec<Token> { batch.rows.iter().map(|row| row.token).collect() };
    match batch.kind {
        0 => {
            let rows: Vec<Finish> = batch
                .rows
                .iter()
                .filter_map(|row| match &row.what {
                    What::Finish {
                        end,
                        began,
                        failed,
                        head,
                    } => Some(Finish {
                        token: row.token,
                        end: end.clone(),
                        run: began.elapsed(),
                        failed: *failed,
                        head: *head,
                    }),
                    _ => None,
                })
                .collect();
            store.finish(me, &rows).await
        }
        1 => {
            let rows: Vec<Retry> = batch
                .rows
                .iter()
                .filter_map(|row| match &row.what {
                    What::Retry {
                        key,
                        delay,
                        failed,
                        error,
                    } => Some(Retry {
                        token: row.token,
                        key: key.clone(),
                        delay: *delay,
                        failed: *failed,
                        error: error.clone(),
                    }),
                    _ => None,
                })
                .collect();
            store.retry(me, &rows).await
        }
        2 => store.give_back(me, &tokens()).await,
        _ => store.set_aside(me, &tokens()).await,
    }
}

#[cfg(test)]
mod tests {
    use ringmesh_ring::{Epoch, Slot};

    use super::*;

    fn row(number: i64) -> Write {
        let id = TaskId {
            slot: Slot::new(1).unwrap(),
            number,
        };
        Write {
            lane: 1,
            run: None,
            token: Token {
                id,
                epoch: Epoch(1),
                attempt: 1,
            },
            waiter: None,
            unanswered: false,
            what: What::GiveBack,
        }
    }

    #[test]
    fn a_refused_batch_is_halved_until_the_bad_row_stands_alone() {
        let mut outbox = Outbox::default();
        (1..=1000).for_each(|number| outbox.push(row(number)));
        let (mut passed, mut alone, mut statements) = (0, Vec::new(), 0);
        while let Some(batch) = outbox.next(0, |_| true) {
            statements += 1;
            outbox.returned(&batch);
            if batch.rows.iter().any(|row| row.token.id.number == 137) {
                alone.extend(outbox.halve(batch).map(|row| row.token.id.number));
            } else {
                passed += batch.rows.len();
            }
        }
        assert_eq!((alone, passed), (vec![137], 999));
        assert!(statements <= 21, "{statements}");
    }

    #[test]
    fn a_failed_batch_waits_and_goes_first_again() {
        let mut outbox = Outbox::default();
        outbox.push(row(1));
        let batch = outbox.next(0, |_| true).unwrap();
        assert!(outbox.next(0, |_| true).is_none());
        outbox.push(row(2));
        assert!(
            outbox.next(0, |_| true).is_none(),
            "one statement of this kind at a time"
        );
        outbox.returned(&batch);
        outbox.again(batch, 0);
        assert!(outbox.next(PAUSE_MS - 1, |_| true).is_none());
        assert_eq!(
            outbox.next(PAUSE_MS, |_| true).unwrap().rows[0].token.id.number,
            1
        );
    }

    #[test]
    fn rows_of_lost_slots_are_dropped() {
        let mut outbox = Outbox::default();
        outbox.push(row(1));
        outbox.push(row(2));
        let batch = outbox.next(0, |token| token.id.number == 2).unwrap();
        assert_eq!(batch.rows.len(), 1);
    }
}
