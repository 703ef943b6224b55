//! Claims, what became of unanswered ones, and the start of suspects.

use super::*;

impl Engine {
    pub(super) fn claim(&mut self, now: i64) {
        while self.claims < CLAIMS && self.next.claim <= now {
            let Some(plan) = self.lanes.plan() else { return };
            self.claims += 1;
            let (store, me) = (self.store.clone(), self.me());
            self.spawn(async move {
                let result = if plan.urgent {
                    store.claim_urgent(me, &plan.probes).await
                } else {
                    store.claim(me, &plan.probes).await
                };
                Event::Claimed {
                    number: plan.number,
                    result,
                }
            });
        }
    }

    pub(super) fn on_claimed(&mut self, number: u64, result: Result<ClaimAnswer, Error>) {
        self.claims -= 1;
        match result {
            Ok(answer) => {
                metrics::counter!(metric::CLAIMED).increment(answer.tasks.len() as u64);
                let (back, missing) = self.lanes.on_claim(number, answer, now());
                self.give_back(back);
                if !missing.is_empty() {
                    tracing::info!(slots = %ranges(missing), "claimed nothing: not owned in Postgres, or the lease was over");
                }
            }
            Err(error) => {
                self.next.claim = now() + ms(PAUSE);
                tracing::warn!(error = %chain(&error), "a claim failed");
                let doubtful = self
                    .lanes
                    .on_claim_failed(number, matches!(error, Error::Unknown(_)));
                if !doubtful.is_empty() {
                    self.settle(doubtful);
                }
            }
        }
    }

    /// Finds what an unanswered claim took.
    pub(super) fn settle(&self, slots: Vec<(Slot, Epoch)>) {
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            tokio::time::sleep(PAUSE).await;
            let result = store.settle(me, &slots).await;
            Event::Settled { slots, result }
        });
    }

    pub(super) fn on_settled(&mut self, mut slots: Vec<(Slot, Epoch)>, result: Result<Vec<Token>, Error>) {
        slots.retain(|(slot, epoch)| self.lanes.epoch(*slot) == Some(*epoch));
        match result {
            Ok(tokens) => {
                self.return_strays(tokens);
                slots
                    .into_iter()
                    .for_each(|(slot, epoch)| self.lanes.resolve(slot, epoch));
            }
            Err(_) if slots.is_empty() => {}
            Err(_) => self.settle(slots),
        }
    }

    pub(super) fn return_strays(&mut self, tokens: Vec<Token>) {
        for token in self.lanes.strays(tokens) {
            self.lanes.doubt(token.id.slot);
            self.outbox.push(Write {
                lane: 0,
                run: None,
                token,
                waiter: None,
                what: What::GiveBack,
            });
        }
    }

    pub(super) fn compare(&mut self) {
        self.next.compare = i64::MAX;
        let slots = self.lanes.at_rest();
        let store = self.store.clone();
        self.spawn(async move {
            let mut tokens = Vec::new();
            for chunk in slots.chunks(SLOTS_PER_READ) {
                let chunk: Vec<(Slot, Epoch)> =
                    chunk.iter().map(|(slot, epoch, _)| (*slot, *epoch)).collect();
                match store.claimed(&chunk).await {
                    Ok(found) => tokens.extend(found),
                    Err(error) => {
                        return Event::Compared {
                            slots,
                            result: Err(error),
                        };
                    }
                }
            }
            Event::Compared {
                slots,
                result: Ok(tokens),
            }
        });
    }

    pub(super) fn on_compared(&mut self, slots: Vec<(Slot, Epoch, u64)>, result: Result<Vec<Token>, Error>) {
        self.next.compare = now() + COMPARE_MS;
        let Ok(mut tokens) = result else { return };
        let at_rest: HashMap<Slot, (Epoch, u64)> = slots
            .into_iter()
            .map(|(slot, epoch, last)| (slot, (epoch, last)))
            .collect();
        tokens.retain(|token| {
            at_rest.get(&token.id.slot).is_some_and(|(epoch, last)| {
                *epoch == token.epoch && self.lanes.still_at_rest(token.id.slot, *epoch, *last)
            })
        });
        self.return_strays(tokens);
    }

    pub(super) fn note(&self, mark: i16, starts: Vec<Start>, pause: Duration) {
        let (store, me) = (self.store.clone(), self.me());
        self.spawn(async move {
            tokio::time::sleep(pause).await;
            let tokens: Vec<Token> = starts.iter().map(|start| start.task.token()).collect();
            let result = store.start_trial(me, &tokens, mark).await;
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
