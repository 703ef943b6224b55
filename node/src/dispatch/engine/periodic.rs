//! What happens by the clock: timeouts, looks for news, promotions, upkeep.

use super::*;

impl Engine {
    pub(super) fn on_sweep(&mut self, now: i64) {
        self.next.sweep = now + SWEEP_MS;
        self.outbox.wake(now);
        self.lanes.free_seats(now);
        self.sweep_runs(now);
        self.zombies.retain(|zombie| {
            let over = zombie.abort.is_finished() || zombie.until <= now;
            if over && !zombie.abort.is_finished() {
                end(zombie);
            }
            !over
        });
        if self.next.horizon <= now {
            self.next.horizon = i64::MAX;
            let store = self.store.clone();
            self.spawn(async move { Event::Horizon(store.horizon().await) });
        }
        if self.next.news <= now {
            self.look_for_news();
        }
        if self.next.upkeep <= now {
            self.start_upkeep();
        }
        self.publish();
    }

    pub(super) fn sweep_runs(&mut self, now: i64) {
        if !self.parts.trust.holds() {
            self.cancel_all(Reason::Trust);
        }
        let mut cancel = Vec::new();
        let mut abort = Vec::new();
        for (id, run) in &self.runs {
            match run.cancelled {
                Some((_, until)) if until <= now => abort.push(*id),
                Some(_) => {}
                None if run.timeout <= now => cancel.push((*id, Reason::Timeout)),
                None => {
                    let slot = run.task.token.id.slot;
                    if self
                        .leaving
                        .get(&slot)
                        .is_some_and(|leaving| leaving.until <= now)
                    {
                        cancel.push((*id, Reason::Leaving));
                    }
                }
            }
        }
        for (run, reason) in cancel {
            self.cancel(run, reason);
        }
        for id in abort {
            let Some(run) = self.runs.remove(&id) else {
                continue;
            };
            run.abort.abort();
            run.transaction.end();
            tracing::info!(task = %run.task.token.id, took_ms = run.began.elapsed().as_millis(), "a run ignored its cancellation and was aborted");
            let reason = run.cancelled.map(|(reason, _)| reason);
            let failure = Failure::new("it went on and was aborted");
            self.conclude(run.lane, id, &run.task, Err(failure), run.began, reason);
        }
    }

    pub(super) fn look_for_news(&mut self) {
        self.next.news = i64::MAX;
        self.ticks += 1;
        let mut full = HashSet::new();
        let turn = self.ticks % FULL_EVERY;
        let probes: Vec<store::Probe> = self
            .lanes
            .staying()
            .filter_map(|(slot, _)| self.lanes.look(slot))
            .map(|mut probe| {
                if probe.slot.index() % FULL_EVERY == turn {
                    full.insert(probe.slot);
                    probe.start = 0;
                }
                probe
            })
            .collect();
        let store = self.store.clone();
        self.spawn(async move {
            let mut news = Vec::new();
            for probes in probes.chunks(SLOTS_PER_READ) {
                match store.news(probes).await {
                    Ok(found) => news.extend(found),
                    Err(error) => {
                        return Event::News {
                            full,
                            result: Err(error),
                        };
                    }
                }
            }
            Event::News {
                full,
                result: Ok(news),
            }
        });
    }

    pub(super) fn on_news(&mut self, full: &HashSet<Slot>, result: Result<Vec<(Slot, bool)>, Error>) {
        self.next.news = now() + ms(self.parts.limits.tick);
        match result {
            Ok(news) => {
                for (slot, urgent) in news {
                    if full.contains(&slot) {
                        self.lanes.reset(slot);
                    }
                    self.lanes.mark(slot, urgent);
                }
            }
            Err(error) => tracing::debug!(error = %chain(&error), "the look for news failed"),
        }
    }

    /// Something is due at this time.
    pub(super) fn due_soon(&mut self, at: i64) {
        if self.next.due == i64::MAX {
            self.due_again |= at <= now() + ms(self.parts.limits.tick);
        } else {
            self.next.due = self.next.due.min(at);
        }
    }

    pub(super) fn read_due(&mut self) {
        self.next.due = i64::MAX;
        self.due_again = false;
        let slots: Vec<Slot> = self.lanes.staying().map(|(slot, _)| slot).collect();
        let store = self.store.clone();
        self.spawn(async move {
            let mut due = Vec::new();
            for slots in slots.chunks(SLOTS_PER_READ) {
                match store.next_due(slots).await {
                    Ok(found) => due.extend(found),
                    Err(error) => return Event::Due(Err(error)),
                }
            }
            Event::Due(Ok(due))
        });
    }

    pub(super) fn on_due(&mut self, result: Result<Vec<(Slot, i64)>, Error>) {
        let tick = ms(self.parts.limits.tick);
        let due = match result {
            Ok(due) => due,
            Err(error) => {
                tracing::debug!(error = %chain(&error), "the next due time could not be read");
                self.next.due = now() + tick;
                return;
            }
        };
        let next = due
            .iter()
            .map(|(_, in_ms)| *in_ms)
            .filter(|in_ms| *in_ms > 0)
            .min()
            .unwrap_or(tick);
        let slots: Vec<(Slot, Epoch)> = due
            .iter()
            .filter(|(slot, in_ms)| *in_ms <= 0 && !self.lanes.is_leaving(*slot))
            .filter_map(|(slot, _)| Some((*slot, self.lanes.epoch(*slot)?)))
            .collect();
        if slots.is_empty() {
            // A little later rather than a little early; and the tick, for what is inserted with a nearer time.
            self.next.due = now()
                + if self.due_again {
                    20
                } else {
                    (next + 1).clamp(20, tick)
                };
            return;
        }
        slots.iter().for_each(|(slot, _)| self.lanes.pin(*slot));
        let ticket = self.lanes.ticket();
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            let (mut tasks, mut unsure) = (Vec::new(), Vec::new());
            for slots in slots.chunks(SLOTS_PER_PROMOTION) {
                let promoted = droppable(async {
                    failpoint::at(failpoint::PROMOTE).await?;
                    let promoted = store.promote(me, ticket, slots, PROMOTED_PER_SLOT).await?;
                    failpoint::at(failpoint::PROMOTED).await?;
                    Ok(promoted)
                });
                match promoted.await {
                    Ok(promoted) => tasks.extend(promoted),
                    Err(error) => {
                        tracing::warn!(error = %chain(&error), "scheduled tasks could not be made due");
                        if matches!(error, Error::Unknown(_)) {
                            unsure.extend(slots);
                        }
                    }
                }
            }
            Event::Promoted {
                ticket,
                slots,
                tasks,
                unsure,
            }
        });
    }

    pub(super) fn on_promoted(
        &mut self,
        ticket: Ticket,
        slots: Vec<(Slot, Epoch)>,
        tasks: Vec<(TaskId, u8)>,
        unsure: Vec<(Slot, Epoch)>,
    ) {
        for (slot, epoch) in slots {
            if self.lanes.epoch(slot) == Some(epoch) {
                self.lanes.unpin(slot);
            }
        }
        self.in_doubt(ticket, unsure);
        // There may be more; none at all means that the fence refused it, which must not turn without a pause.
        self.next.due = now()
            + if tasks.is_empty() {
                ms(self.parts.limits.tick)
            } else {
                0
            };
        for (task, priority) in tasks {
            self.lanes.lower(task.slot, task.number);
            self.lanes.mark(task.slot, priority > 0);
        }
    }

    pub(super) fn start_upkeep(&mut self) {
        self.next.upkeep = i64::MAX;
        self.rounds += 1;
        let slots: Vec<(Slot, Epoch)> = self.lanes.staying().collect();
        let (store, me, kinds) = (self.store.clone(), self.me(), self.kinds.clone());
        let round = Round {
            take_up_kinds: self.rounds % 3 == 1,
            move_behind: self.rounds.is_multiple_of(5),
            forget_idempotency: (self.rounds.is_multiple_of(60)
                || failpoint::is_armed(failpoint::IDEMPOTENCY))
            .then_some(self.parts.limits.idempotency_window),
            forget_inbox: (self.rounds % 60 == 30).then_some(self.parts.limits.inbox_window),
            count_inbox: self.rounds % 10 == 1,
        };
        self.spawn(async move {
            let began = std::time::Instant::now();
            let report = upkeep::round(&store, me, &slots, &kinds, round).await;
            Event::Upkept {
                report,
                took: began.elapsed(),
            }
        });
    }

    pub(super) fn on_upkept(&mut self, report: upkeep::Report, took: Duration) {
        // A mesh with very many held keys must not do upkeep all the time.
        self.next.upkeep = now() + ms(took * 10).max(1000);
        for task in report.tasks {
            self.lanes.lower(task.slot, task.number);
            self.lanes.mark(task.slot, true);
        }
        for slot in report.lifted {
            self.lanes.reset(slot);
            self.lanes.mark(slot, true);
        }
    }
}
