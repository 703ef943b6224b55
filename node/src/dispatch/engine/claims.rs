//! Claims, what became of unanswered ones, and the start of suspects.

use super::*;

impl Engine {
    pub(super) fn claim(&mut self, now: i64) {
        while self.claims < CLAIMS && self.next.claim <= now {
            let Some(plan) = self.lanes.plan() else { return };
            self.claims += 1;
            let (store, me) = (self.store.clone(), self.me());
            self.spawn(async move {
                let began = Instant::now();
                let result = droppable(async {
                    let answer = if plan.urgent {
                        store.claim_urgent(me, plan.ticket, &plan.probes).await?
                    } else {
                        store.claim(me, plan.ticket, &plan.probes).await?
                    };
                    failpoint::at(failpoint::CLAIMED).await?;
                    Ok(answer)
                })
                .await;
                metrics::histogram!(metric::PROBE_SECONDS).record(began.elapsed());
                Event::Claimed {
                    ticket: plan.ticket,
                    result,
                }
            });
        }
    }

    pub(super) fn on_claimed(&mut self, ticket: Ticket, result: Result<ClaimAnswer, Error>) {
        self.claims -= 1;
        match result {
            Ok(answer) => {
                metrics::counter!(metric::CLAIMED).increment(answer.tasks.len() as u64);
                let (back, missing) = self.lanes.on_claim(ticket, answer, now());
                self.give_back(back);
                if !missing.is_empty() {
                    tracing::info!(slots = %ranges(missing), "claimed nothing: not owned in Postgres, or settled, or the node was cut short");
                }
            }
            Err(error) => {
                self.next.claim = now() + ms(PAUSE);
                tracing::warn!(error = %chain(&error), "a claim failed");
                let doubtful = self
                    .lanes
                    .on_claim_failed(ticket, matches!(error, Error::Unknown(_)));
                if !doubtful.is_empty() {
                    self.settle(ticket, doubtful);
                }
            }
        }
    }

    /// A promotion of these slots gave no answer, and may still run or arrive: nothing is claimed from them until it can change
    /// nothing any more, and then they are looked at from the beginning.
    pub(super) fn in_doubt(&mut self, ticket: Ticket, slots: Vec<(Slot, Epoch)>) {
        // Nothing was claimed by it.
        let slots: Vec<_> = slots
            .into_iter()
            .filter(|(slot, epoch)| self.lanes.epoch(*slot) == Some(*epoch))
            .map(|(slot, epoch)| (slot, epoch, i64::MAX))
            .collect();
        slots.iter().for_each(|(slot, ..)| self.lanes.doubt(*slot));
        slots
            .chunks(SLOTS_PER_PROMOTION)
            .for_each(|slots| self.settle(ticket, slots.to_vec()));
    }

    /// Sees to it that an unanswered statement changes nothing from now on, and finds what it claimed if it was a claim; each
    /// slot with the number from which that looked.
    fn settle(&self, ticket: Ticket, slots: Vec<(Slot, Epoch, i64)>) {
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            tokio::time::sleep(PAUSE).await;
            let result = droppable(store.settle(me, ticket, &slots)).await;
            Event::Settled {
                ticket,
                slots,
                result,
            }
        });
    }

    pub(super) fn on_settled(
        &mut self,
        ticket: Ticket,
        mut slots: Vec<(Slot, Epoch, i64)>,
        result: Result<Settled, Error>,
    ) {
        slots.retain(|(slot, epoch, _)| self.lanes.epoch(*slot) == Some(*epoch));
        let settled = result.unwrap_or_else(|error| {
            tracing::debug!(error = %chain(&error), "slots could not be settled");
            Settled::default()
        });
        // What is not settled has another owner, which this node is about to learn, or waits for the lease.
        let (done, again): (Vec<_>, Vec<_>) = slots
            .into_iter()
            .partition(|(slot, ..)| settled.slots.contains(slot));
        self.return_strays(settled.claimed);
        for (slot, epoch, _) in done {
            self.lanes.resolve(slot, epoch);
        }
        if !again.is_empty() {
            self.settle(ticket, again);
        }
    }

    fn return_strays(&mut self, tokens: Vec<Token>) {
        for token in self.lanes.strays(tokens) {
            self.lanes.doubt(token.id.slot);
            self.outbox.push(Write {
                lane: 0,
                run: None,
                token,
                waiter: None,
                unanswered: false,
                what: What::GiveBack,
            });
        }
    }

    pub(super) fn note(&self, mark: i16, starts: Vec<Start>, pause: Duration) {
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            let tokens: Vec<Token> = starts.iter().map(|start| start.task.token()).collect();
            let result = droppable(async {
                failpoint::at(failpoint::TRIAL).await?;
                store.start_trial(me, &tokens, mark).await
            })
            .await;
            Event::Noted { starts, mark, result }
        });
    }

    pub(super) fn on_noted(&mut self, mut starts: Vec<Start>, mark: i16, result: Result<Vec<TaskId>, Error>) {
        starts.retain(|start| self.lanes.is_active(start.lane, start.run));
        match result {
            Ok(noted) => {
                for start in starts {
                    if noted.contains(&start.task.id) && !self.lanes.is_leaving(start.task.id.slot) {
                        self.noted.push_back(start);
                    } else {
                        self.send_back(start.lane, start.run, &Task::of(&start.task), What::GiveBack);
                    }
                }
            }
            Err(_) if starts.is_empty() => {}
            // To note it twice does no harm, so an unknown outcome is a failed one.
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the start of suspects could not be noted");
                self.note(mark, starts, PAUSE);
            }
        }
    }
}
