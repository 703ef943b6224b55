//! Runs: starting them, and what their outcomes lead to.

use super::writes::count_elsewhere;
use super::*;

impl Engine {
    pub(super) fn cancel(&mut self, run: RunId, reason: Reason) {
        let until = now() + ms(self.parts.limits.grace);
        if let Some(run) = self.runs.get_mut(&run)
            && run.cancelled.is_none()
        {
            run.cancelled = Some((reason, until));
            run.cancellation.cancel();
        }
    }

    pub(super) fn cancel_all(&mut self, reason: Reason) {
        let runs: Vec<RunId> = self.runs.keys().copied().collect();
        runs.into_iter().for_each(|run| self.cancel(run, reason));
    }

    /// A task whose turn it is.
    pub(super) fn begin(&mut self, start: Start, now: i64) {
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
                self.finish(lane, run, &Task::of(&task), Err(text), Instant::now(), false);
            }
            None => {
                tracing::warn!(kind = task.kind, task = %task.id, "no handler for the kind: its key waits for a node that has one");
                self.send_back(lane, run, &Task::of(&task), What::SetAside);
            }
            Some(Handler::Quick(handler)) if task.payload.is_some() => {
                let began = Instant::now();
                let answer = handler(task.payload.clone().unwrap_or_default());
                self.conclude(lane, run, &Task::of(&task), answer, began, None);
            }
            Some(_) => self.spawn_run(lane, run, task, now),
        }
    }

    pub(super) fn spawn_run(&mut self, lane: LaneId, run: RunId, task: Claimed, now: i64) {
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
                boot: self.parts.me.boot,
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
            began: Instant::now(),
            timeout: now.saturating_add(ms(task.timeout)),
            cancellation,
            abort: handle.abort_handle(),
            transaction,
            cancelled: None,
        };
        self.runs.insert(run, running);
    }

    pub(super) fn on_ran(&mut self, run: RunId, outcome: Outcome) {
        // A run that was aborted or whose slot was lost: nothing of it could be committed any more.
        let Some(it) = self.runs.remove(&run) else { return };
        metrics::histogram!(metric::RUN_SECONDS).record(it.began.elapsed());
        let reason = it.cancelled.map(|(reason, _)| reason);
        match outcome {
            Outcome::Answered(answer) => self.conclude(it.lane, run, &it.task, answer, it.began, reason),
            Outcome::Committed => {
                let write = self.finish_row(it.lane, run, &it.task, Ok(None), it.began, false);
                self.on_applied(&write);
            }
            Outcome::Ended => {
                tracing::error!(
                    task = %it.task.token.id,
                    "a run's own transaction was rolled back: its task had been completed by SQL"
                );
                count_elsewhere("transaction");
                let write = self.finish_row(it.lane, run, &it.task, Ok(None), it.began, false);
                self.on_applied(&write);
            }
            Outcome::NotStarted(error) => {
                tracing::warn!(error = %chain(&error), "a payload could not be read, its task goes back");
                self.send_back(it.lane, run, &it.task, What::GiveBack);
            }
            // Nothing was committed, or who knows: a read tells. If the task is still ours, it runs again.
            Outcome::Refused | Outcome::Unknown | Outcome::Gone => {
                if matches!(outcome, Outcome::Refused) {
                    self.stats.fenced += 1;
                }
                let mut row = self.close_for(it.lane, run, &it.task, What::GiveBack);
                row.unanswered = true;
                self.read_back(vec![row], false, Duration::ZERO);
            }
        }
    }

    pub(super) fn conclude(
        &mut self,
        lane: LaneId,
        run: RunId,
        task: &Task,
        answer: Answer,
        began: Instant,
        reason: Option<Reason>,
    ) {
        let failure = match answer.and_then(|result| result.map(run::result_text).transpose()) {
            // Also after a cancellation: it did its work, and if it may not count the fence says so.
            Ok(result) => return self.finish(lane, run, task, Ok(result), began, false),
            Err(failure) => failure,
        };
        let failure = match reason {
            Some(Reason::Leaving | Reason::Trust | Reason::Cancelled) => {
                return self.send_back(lane, run, task, What::GiveBack);
            }
            Some(Reason::Timeout) => Failure {
                text: format!(
                    "timeout: cancelled after {} ms: {}",
                    began.elapsed().as_millis(),
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
            return self.finish(lane, run, task, Err(text), began, true);
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

    pub(super) fn finish_row(
        &self,
        lane: LaneId,
        run: RunId,
        task: &Task,
        end: Result<Option<String>, String>,
        began: Instant,
        failed: bool,
    ) -> Write {
        Write {
            lane,
            run: Some(run),
            token: task.token,
            waiter: task.waiter,
            unanswered: false,
            what: What::Finish {
                end,
                began,
                failed,
                head: task.head,
            },
        }
    }

    pub(super) fn finish(
        &mut self,
        lane: LaneId,
        run: RunId,
        task: &Task,
        end: Result<Option<String>, String>,
        began: Instant,
        failed: bool,
    ) {
        let row = self.finish_row(lane, run, task, end, began, failed);
        self.outbox.push(row);
    }

    /// Closes the lane of a run, gives back what waits in it, and answers with the row about the run's own task.
    pub(super) fn close_for(&mut self, lane: LaneId, run: RunId, task: &Task, what: What) -> Write {
        let back = self.lanes.close(lane, Some(run));
        self.give_back(back);
        Write {
            lane,
            run: Some(run),
            token: task.token,
            waiter: task.waiter,
            unanswered: false,
            what,
        }
    }

    pub(super) fn send_back(&mut self, lane: LaneId, run: RunId, task: &Task, what: What) {
        let row = self.close_for(lane, run, task, what);
        self.outbox.push(row);
    }

    pub(super) fn give_back(&mut self, back: Vec<Return>) {
        for Return { lane, token } in back {
            self.outbox.push(Write {
                lane,
                run: None,
                token,
                waiter: None,
                unanswered: false,
                what: What::GiveBack,
            });
        }
    }
}
