//! Short ways to write histories: good ones, which a test then doctors.

use std::sync::Arc;

use ringmesh::task::TaskId;
use ringmesh_ring::Slot;

use super::{Checker, Violation};
use crate::history::{
    Answer, Change, Event, Expected, Fencing, FencingKind, History, Moment, Row, State, Step, Submit, Terms,
    What,
};

pub(super) const MS: i64 = 1_000_000;
pub(super) const S: i64 = 1_000 * MS;

/// A history in the making. Each call takes a millisecond on both clocks.
pub(super) struct Build {
    pub(super) history: History,
    pub(super) now: i64,
    transaction: u64,
    numbers: i64,
}

/// A claim of a task, as its effect will name it.
#[derive(Clone)]
pub(super) struct Claim {
    pub(super) id: TaskId,
    pub(super) key: Arc<str>,
    pub(super) seq: i64,
    pub(super) epoch: i64,
    pub(super) attempt: i32,
    pub(super) node: i64,
}

/// Keys are letters, each in a slot of its own: `a` in 0.
pub(super) fn slot_of(key: &str) -> i32 {
    i32::from(key.as_bytes()[0] - b'a')
}

pub(super) fn id(key: &str, number: i64) -> TaskId {
    TaskId {
        slot: Slot::new(u16::try_from(slot_of(key)).unwrap()).unwrap(),
        number,
    }
}

impl Build {
    /// A baseline of slots 0 to 25 without owners, then nodes 1 to 3, each granted every third slot.
    pub(super) fn mesh() -> Self {
        let mut build = Build {
            history: History {
                terms: Terms {
                    ttl: 3 * S,
                    margin: 500 * MS,
                    tick: S,
                },
                ..History::default()
            },
            now: 1000 * S,
            transaction: 0,
            numbers: 0,
        };
        let slots = (0..26).map(|slot| Row::Slot {
            slot,
            owner: None,
            epoch: 0,
        });
        build.commit([Row::Baseline].into_iter().chain(slots));
        for node in 1..=3 {
            build.node(node, 0, None);
            build.lease(node, 0);
            build.renew(node, 1);
        }
        for slot in 0..26 {
            build.grant(slot, 1 + i64::from(slot) % 3, 1);
        }
        build.step(Step::Quiet);
        build
    }

    pub(super) fn tick(&mut self, time: i64) -> i64 {
        self.now += time;
        self.now
    }

    /// A transaction of these changes.
    pub(super) fn commit(&mut self, rows: impl IntoIterator<Item = Row>) -> u64 {
        self.tick(MS);
        self.transaction += 1;
        let (transaction, committed_at) = (self.transaction, self.now / 1000);
        self.history.changes.extend(rows.into_iter().map(|row| Change {
            transaction,
            committed_at,
            row,
        }));
        transaction
    }

    pub(super) fn node(&mut self, incarnation: i64, renewals: i64, fenced: Option<Fencing>) {
        // n1 starts again as incarnation 4, and so on.
        let name = format!("n{}", (incarnation - 1) % 3 + 1).into();
        self.commit([Row::Node {
            incarnation,
            name,
            renewals,
            fenced,
        }]);
    }

    pub(super) fn lease(&mut self, incarnation: i64, renewals: i64) {
        self.commit([Row::Lease {
            incarnation,
            renewals,
        }]);
    }

    /// A renewal, in Postgres and as its node notes it.
    pub(super) fn renew(&mut self, incarnation: i64, renewals: i64) {
        let sent = self.now;
        self.lease(incarnation, renewals);
        self.event(incarnation, What::Renewed { sent, incarnation });
    }

    pub(super) fn fence(&mut self, incarnation: i64, renewals: i64, kind: FencingKind, by: i64) {
        self.node(incarnation, renewals, Some(Fencing { kind, by: Some(by) }));
    }

    pub(super) fn grant(&mut self, slot: i32, owner: i64, epoch: i64) -> u64 {
        self.commit([Row::Slot {
            slot,
            owner: Some(owner),
            epoch,
        }])
    }

    pub(super) fn step(&mut self, step: Step) {
        self.tick(MS);
        self.history.moments.push(Moment {
            at: self.now,
            wal: self.transaction,
            committed_at: self.now / 1000,
            step,
        });
    }

    pub(super) fn fault(&mut self, id: &str, name: &str, incarnations: &[i64]) {
        self.step(Step::Fault {
            id: id.into(),
            name: name.into(),
            hosts: incarnations
                .iter()
                .map(|i| format!("n{}", (i - 1) % 3 + 1))
                .collect(),
            incarnations: incarnations.to_vec(),
        });
    }

    pub(super) fn event(&mut self, node: i64, what: What) {
        self.history.events.push(Event {
            at: self.now,
            node: format!("n{}", (node - 1) % 3 + 1).into(),
            pid: u32::try_from(node).unwrap(),
            what,
        });
    }

    /// A request, its row if it was accepted, and its answer.
    pub(super) fn submit(&mut self, key: &str, seq: i64) -> Claim {
        self.submit_as(key, seq, Expected::Effect)
    }

    pub(super) fn submit_as(&mut self, key: &str, seq: i64, expected: Expected) -> Claim {
        self.numbers += 1;
        let id = id(key, self.numbers);
        let sent = self.tick(1);
        self.commit([task(id, key)]);
        self.request(key, seq, sent, Answer::Accepted { id, replay: false });
        self.history.submits.last_mut().unwrap().expected = expected;
        Claim {
            id,
            key: key.into(),
            seq,
            epoch: 1,
            attempt: 1,
            node: 1 + i64::from(slot_of(key)) % 3,
        }
    }

    /// A request and its answer alone.
    pub(super) fn request(&mut self, key: &str, seq: i64, sent: i64, answer: Answer) -> &mut Submit {
        let answered = self.tick(MS);
        self.history.submits.push(Submit {
            client: "w1".into(),
            key: key.into(),
            seq,
            kind: "append".into(),
            idempotency_key: None,
            body: 0,
            sent,
            answered,
            answer,
            scheduled: false,
            expected: Expected::Effect,
        });
        self.history.submits.last_mut().unwrap()
    }

    pub(super) fn start(&mut self, claim: &Claim) {
        self.tick(MS);
        self.event(
            claim.node,
            What::RunStarted {
                task: claim.id,
                key: claim.key.clone(),
                epoch: claim.epoch,
                attempt: claim.attempt,
            },
        );
    }

    pub(super) fn end(&mut self, claim: &Claim) {
        self.tick(MS);
        self.event(
            claim.node,
            What::RunEnded {
                task: claim.id,
                epoch: claim.epoch,
                attempt: claim.attempt,
            },
        );
    }

    /// The commit of a run: its effect and the end of its task.
    pub(super) fn finish(&mut self, claim: &Claim) {
        self.commit([effect(claim), finished(claim, State::Succeeded)]);
    }

    /// A whole run.
    pub(super) fn run(&mut self, claim: &Claim) {
        self.start(claim);
        self.end(claim);
        self.finish(claim);
    }

    /// A task from its submit to its end.
    pub(super) fn done(&mut self, key: &str, seq: i64) -> Claim {
        let claim = self.submit(key, seq);
        self.run(&claim);
        claim
    }

    /// Node 1 is killed, and its slots that the keys `a` to `f` are in go to node 2: `a` and `d`.
    pub(super) fn kill_and_take_over(&mut self) {
        self.kill_and_take_over_at(1);
    }

    /// The same, after so many renewals.
    pub(super) fn kill_and_take_over_at(&mut self, renewals: i64) {
        self.fault("N1", "kill", &[1]);
        self.fence(1, renewals, FencingKind::Noticed, 2);
        for slot in (0..26).step_by(3) {
            self.grant(slot, 2, 2);
        }
        self.step(Step::Heal { id: "N1".into() });
    }

    /// Passes the checker.
    #[track_caller]
    pub(super) fn passes(&self, checker: &dyn Checker) {
        let found = checker.check(&self.history);
        assert_eq!(found, [], "{}", checker.title());
    }

    /// Fails with exactly one violation, of this kind.
    #[track_caller]
    pub(super) fn fails(&self, checker: &dyn Checker, kind: &str) -> Violation {
        let mut found = checker.check(&self.history);
        let kinds: Vec<&str> = found.iter().map(|violation| violation.kind).collect();
        assert_eq!(kinds, [kind], "{found:#?}");
        found.remove(0)
    }
}

pub(super) fn task(id: TaskId, key: &str) -> Row {
    Row::Task {
        id,
        key: key.into(),
        attempt: 0,
        failures: 0,
        crashes: 0,
        max_attempts: 10,
    }
}

pub(super) fn effect(claim: &Claim) -> Row {
    Row::Effect {
        task: claim.id,
        key: claim.key.clone(),
        seq: claim.seq,
        slot: i32::from(claim.id.slot.get()),
        epoch: claim.epoch,
        attempt: claim.attempt,
        node: format!("n{}", claim.node).into(),
    }
}

pub(super) fn finished(claim: &Claim, state: State) -> Row {
    Row::Finished {
        id: claim.id,
        state,
        epoch: Some(claim.epoch),
        attempt: claim.attempt,
        failures: 0,
        crashes: 0,
        error: None,
    }
}
