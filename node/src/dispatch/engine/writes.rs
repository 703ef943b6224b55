//! Writes about tasks, and what their answers lead to.

use super::*;

impl Engine {
    pub(super) fn on_wrote(&mut self, mut batch: Batch, result: Result<Vec<TaskId>, Error>) {
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
                    self.read_back(missing, true, Duration::ZERO);
                }
            }
            Err(error @ Error::Unknown(_)) => {
                tracing::warn!(rows = batch.rows.len(), error = %chain(&error), "a write gave no answer, reading back");
                batch.rows.iter_mut().for_each(|row| row.unanswered = true);
                self.read_back(batch.rows, false, PAUSE);
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
    pub(super) fn on_bad_row(&mut self, mut row: Write, error: &Error, now: i64) {
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

    pub(super) fn on_applied(&mut self, row: &Write) {
        let slot = row.token.id.slot;
        match &row.what {
            What::Finish { end, head, .. } => {
                self.count_finish(end.is_ok());
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
    pub(super) fn settle_row(&mut self, row: &Write) {
        if row.lane == 0 {
            // A stray: claimed by a claim whose answer never came.
            self.lanes.resolve(row.token.id.slot, row.token.epoch);
        } else {
            self.lanes.settled(row.lane, row.token);
        }
    }

    fn count_finish(&mut self, succeeded: bool) {
        let outcome = if succeeded {
            self.stats.succeeded += 1;
            "succeeded"
        } else {
            self.stats.dead += 1;
            "dead"
        };
        metrics::counter!(metric::FINISHES, field::OUTCOME => outcome).increment(1);
    }

    fn count_fenced(&mut self, rows: usize) {
        if rows == 0 {
            return;
        }
        let rows = rows as u64;
        self.stats.fenced += rows;
        metrics::counter!(metric::FENCED_WRITES).increment(rows);
        tracing::info!(
            rows,
            "writes were refused: fenced, cancelled, or the node was cut short"
        );
    }

    pub(super) fn read_back(&self, rows: Vec<Write>, refused: bool, pause: Duration) {
        let store = self.store.clone();
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            let tokens: Vec<Token> = rows.iter().map(|row| row.token).collect();
            let result = store.read_back(&tokens).await;
            Event::Known {
                rows,
                refused,
                result,
            }
        });
    }

    pub(super) fn on_known(
        &mut self,
        mut rows: Vec<Write>,
        refused: bool,
        result: Result<Vec<(TaskId, ReadBack)>, Error>,
    ) {
        let all = rows.len();
        rows.retain(|row| self.lanes.epoch(row.token.id.slot) == Some(row.token.epoch));
        let mut fenced = if refused { all - rows.len() } else { 0 };
        let known: HashMap<TaskId, ReadBack> = match result {
            Ok(known) => known.into_iter().collect(),
            Err(_) if rows.is_empty() => return self.count_fenced(fenced),
            Err(_) => {
                self.count_fenced(fenced);
                return self.read_back(rows, refused, PAUSE);
            }
        };
        let now = now();
        for row in rows {
            let state = known.get(&row.token.id);
            fenced += usize::from(refused && state != Some(&ReadBack::Ended));
            match (state, &row.what) {
                (Some(ReadBack::Open), _) => self.outbox.push_later(row, now),
                (Some(ReadBack::Ended), _) => self.on_ended(row, refused),
                (Some(ReadBack::Waits), What::Finish { .. }) => {
                    // Those after it in its lane must not overtake it.
                    let back = self.lanes.close(row.lane, row.run);
                    self.give_back(back);
                    self.lanes.settled(row.lane, row.token);
                    self.lanes.reset(row.token.id.slot);
                    self.lanes.mark(row.token.id.slot, true);
                }
                (_, What::Finish { .. }) => {
                    if let Some(run) = row.run {
                        self.lanes.done(row.lane, run);
                    }
                    self.lanes.reset(row.token.id.slot);
                    self.lanes.mark(row.token.id.slot, true);
                }
                _ => {
                    if let Some(waiter) = row.waiter
                        && state == Some(&ReadBack::Gone)
                    {
                        self.parts.hints.ended(waiter, row.token.id);
                    }
                    self.settle_row(&row);
                    self.lanes.reset(row.token.id.slot);
                    self.lanes.mark(row.token.id.slot, true);
                }
            }
        }
        self.count_fenced(fenced);
    }

    /// The run's task has ended under its claim: by a write whose answer never came, or, if Postgres refused the only one, by
    /// `ringmesh.complete` before it.
    fn on_ended(&mut self, mut row: Write, refused: bool) {
        if refused && !row.unanswered {
            let task = row.token.id;
            let left = match &row.what {
                What::Finish { end: Ok(None), .. } | What::GiveBack | What::SetAside => "nothing",
                What::Retry { failed: false, .. } => "nothing",
                What::Finish { end: Ok(Some(_)), .. } => {
                    tracing::error!(%task, "a run's result is not kept: its task had been completed by SQL");
                    "result"
                }
                What::Finish { end: Err(_), .. } | What::Retry { failed: true, .. } => {
                    tracing::warn!(%task, "a run failed after its task had been completed by SQL");
                    "failure"
                }
            };
            count_elsewhere(left);
            if let What::Finish { end, .. } = &mut row.what {
                *end = Ok(None);
            }
        }
        if matches!(row.what, What::Finish { .. }) {
            return self.on_applied(&row);
        }
        self.count_finish(true);
        if let Some(waiter) = row.waiter {
            self.parts.hints.ended(waiter, row.token.id);
        }
        self.settle_row(&row);
        self.lanes.reset(row.token.id.slot);
        self.lanes.mark(row.token.id.slot, true);
    }
}

/// Counts a task that SQL completed, by what its run came to besides.
pub(super) fn count_elsewhere(left: &'static str) {
    metrics::counter!(metric::COMPLETED_ELSEWHERE, field::OUTCOME => left).increment(1);
}
