//! Submits: one idempotency id makes one task, whatever replies are lost.
//!
//! # What is modelled
//!
//! Clients send submits to nodes. With an idempotency id, a node opens a transaction, inserts the id and its task
//! (`submit_keyed.sql`), which waits for whoever is inserting the same id; where the id was there before it reads whose it is
//! (`find_keyed.sql`); and commits. Without one it inserts (`submit.sql`). Connections break before the commit, in it, or between it and
//! its reply; then the client is told *unknown*, and repeats what carries an id. Tasks may end at any time.
//!
//! # What is left out, and why
//!
//! - Groups and batches: each row of a group stands or falls by its own id; `submit.rs` halves a group that fails.
//! - The removal of old ids: a repetition after the window makes a new task by intent.

use stateright::{Model, Property};

/// The rules, or one of them broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Variant {
    /// The rules.
    Sound,
    /// A lock on the id instead of a row: under it the node looks for an open task with that id, and inserts if there is none.
    LockWithoutRow,
    /// The client is answered when the insert is done, before the commit.
    AnswerBeforeCommit,
    /// A node that gets no reply to its commit inserts again.
    NodeRepeats,
}

/// The model.
#[derive(Debug, Clone)]
pub struct Submits {
    /// The rules, or broken ones.
    pub variant: Variant,
    /// What each client submits.
    pub clients: Vec<Submit>,
    /// How many connections break.
    pub losses: u8,
}

/// A submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Submit {
    /// Whether it carries the idempotency id. (There is only one.)
    pub keyed: bool,
    /// What it says; two with the same id may differ.
    pub body: u8,
}

/// A task, by its place.
type Task = usize;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Stored {
    client: usize,
    submit: Submit,
    ended: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Client {
    /// Is about to send.
    Ready,
    Waits,
    /// Was told 503: unknown.
    Unknown,
    /// Was told 201, or 200 for a task that was there before.
    Accepted(Task),
    /// Was told 422: the id belongs to another body.
    Refused,
}

/// How far a node has come with a submit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stage {
    Sent,
    /// The id was new: the row is inserted and not committed, and others with this id wait.
    Inserted,
    /// The id was there, with this task.
    Found(Task),
}

/// Everything at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    /// Committed.
    tasks: Vec<Stored>,
    /// `ringmesh.idempotency`, committed.
    id: Option<Task>,
    clients: Vec<Client>,
    /// By client: the transaction of its submit.
    open: Vec<Option<Stage>>,
    /// By client: who was told of a task that is not committed yet.
    promised: Vec<bool>,
    losses: u8,
}

/// One step, for the client of this place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Action {
    /// It sends, or sends again what carries an id.
    Send(usize),
    /// Its node inserts, or finds what was there.
    Insert(usize),
    /// The commit, and its reply.
    Commit(usize),
    /// The connection to Postgres breaks: rolled back.
    Break(usize),
    /// The connection breaks between the commit and its reply.
    LoseReply(usize),
    /// The task of this number ends.
    End(usize),
}

impl Submits {
    /// The task that stands for the id, for who looks now.
    fn known(&self, state: &State) -> Option<Task> {
        match self.variant {
            Variant::LockWithoutRow => state
                .tasks
                .iter()
                .position(|task| task.submit.keyed && !task.ended),
            _ => state.id,
        }
    }

    /// Whether somebody holds the id's uncommitted row, or its lock.
    fn taken(&self, state: &State) -> bool {
        (0..self.clients.len())
            .any(|other| self.clients[other].keyed && state.open[other] == Some(Stage::Inserted))
    }

    fn commit(&self, state: &mut State, client: usize) {
        let submit = self.clients[client];
        if state.open[client].take() == Some(Stage::Inserted) {
            let task = state.tasks.len();
            state.tasks.push(Stored {
                client,
                submit,
                ended: false,
            });
            if submit.keyed {
                state.id.get_or_insert(task);
            }
            state.promised[client] = false;
        }
    }
}

impl Model for Submits {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            tasks: Vec::new(),
            id: None,
            clients: vec![Client::Ready; self.clients.len()],
            open: vec![None; self.clients.len()],
            promised: vec![false; self.clients.len()],
            losses: self.losses,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (client, submit) in self.clients.iter().enumerate() {
            match state.clients[client] {
                Client::Ready => actions.push(Action::Send(client)),
                Client::Unknown if submit.keyed => actions.push(Action::Send(client)),
                _ => {}
            }
            match state.open[client] {
                Some(Stage::Sent) if !submit.keyed || !self.taken(state) => {
                    actions.push(Action::Insert(client))
                }
                Some(Stage::Inserted | Stage::Found(_)) => {
                    actions.push(Action::Commit(client));
                    if state.losses > 0 {
                        actions.push(Action::LoseReply(client));
                    }
                }
                Some(Stage::Sent) | None => {}
            }
            if state.open[client].is_some() && state.losses > 0 {
                actions.push(Action::Break(client));
            }
        }
        actions.extend(
            (0..state.tasks.len())
                .filter(|task| !state.tasks[*task].ended)
                .map(Action::End),
        );
    }

    fn next_state(&self, state: &State, action: Action) -> Option<State> {
        let mut next = state.clone();
        match action {
            Action::Send(client) => {
                next.clients[client] = Client::Waits;
                next.open[client] = Some(Stage::Sent);
            }
            Action::Insert(client) => {
                let known = self.known(state).filter(|_| self.clients[client].keyed);
                next.open[client] = Some(known.map_or(Stage::Inserted, Stage::Found));
                if self.variant == Variant::AnswerBeforeCommit && known.is_none() {
                    next.clients[client] = Client::Accepted(state.tasks.len());
                    next.promised[client] = true;
                }
            }
            Action::Commit(client) => {
                let task = match state.open[client] {
                    Some(Stage::Found(task)) => task,
                    _ => state.tasks.len(),
                };
                self.commit(&mut next, client);
                let same = next.tasks[task].submit.body == self.clients[client].body;
                next.clients[client] = if same {
                    Client::Accepted(task)
                } else {
                    Client::Refused
                };
            }
            Action::Break(client) => {
                next.losses -= 1;
                next.open[client] = None;
                if next.clients[client] == Client::Waits {
                    next.clients[client] = Client::Unknown;
                }
            }
            Action::LoseReply(client) => {
                next.losses -= 1;
                self.commit(&mut next, client);
                if self.variant == Variant::NodeRepeats {
                    next.open[client] = Some(Stage::Sent);
                } else if next.clients[client] == Client::Waits {
                    next.clients[client] = Client::Unknown;
                }
            }
            Action::End(task) => next.tasks[task].ended = true,
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::<Self>::always(ONE_TASK, |_, state| {
                state.tasks.iter().filter(|task| task.submit.keyed).count() <= 1
            }),
            Property::<Self>::always(ONE_EACH, |this, state| {
                (0..this.clients.len()).all(|client| {
                    state
                        .tasks
                        .iter()
                        .filter(|task| task.client == client && !task.submit.keyed)
                        .count()
                        <= 1
                })
            }),
            Property::<Self>::always(ANSWERED_IS_COMMITTED, |_, state| {
                state.clients.iter().all(|client| match client {
                    Client::Accepted(task) => *task < state.tasks.len(),
                    _ => true,
                })
            }),
            Property::<Self>::always(OWN_BODY, |this, state| {
                state
                    .clients
                    .iter()
                    .zip(&this.clients)
                    .all(|(client, submit)| match client {
                        Client::Accepted(task) => {
                            state.tasks.get(*task).is_none_or(|task| task.submit == *submit)
                        }
                        _ => true,
                    })
            }),
            Property::<Self>::sometimes(
                "S4 a submit is unknown to its client and committed",
                |_, state| {
                    (0..state.clients.len()).any(|client| {
                        state.clients[client] == Client::Unknown
                            && state.tasks.iter().any(|task| task.client == client)
                    })
                },
            ),
            Property::<Self>::sometimes("a submit waits for another with its id", |this, state| {
                this.taken(state)
                    && (0..state.clients.len())
                        .any(|client| this.clients[client].keyed && state.open[client] == Some(Stage::Sent))
            }),
            Property::<Self>::sometimes("a repetition gets a task that has ended", |_, state| {
                state
                    .clients
                    .iter()
                    .enumerate()
                    .any(|(place, client)| match client {
                        Client::Accepted(task) => state
                            .tasks
                            .get(*task)
                            .is_some_and(|task| task.ended && task.client != place),
                        _ => false,
                    })
            }),
            Property::<Self>::sometimes("another body is refused", |_, state| {
                state.clients.contains(&Client::Refused)
            }),
            Property::<Self>::eventually("E every client with an id is answered", |this, state| {
                (0..this.clients.len()).all(|client| {
                    !this.clients[client].keyed
                        || matches!(state.clients[client], Client::Accepted(_) | Client::Refused)
                })
            }),
        ]
    }
}

const ONE_TASK: &str = "M8 submits under one idempotency id are one task";
const ONE_EACH: &str = "M8 a submit without an id is inserted once";
const ANSWERED_IS_COMMITTED: &str = "M4 a task that its client knows of is committed";
const OWN_BODY: &str = "M8 nobody is given the task of another body";

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check;

    fn keyed(body: u8) -> Submit {
        Submit { keyed: true, body }
    }

    const PLAIN: Submit = Submit {
        keyed: false,
        body: 0,
    };

    fn submits(variant: Variant, clients: Vec<Submit>) -> Submits {
        Submits {
            variant,
            clients,
            losses: 2,
        }
    }

    #[test]
    fn submits_under_one_id_with_lost_replies() {
        let submits = submits(Variant::Sound, vec![keyed(0), keyed(0), keyed(1), PLAIN]);
        check::ends(&submits);
        check::holds("submits", submits);
    }

    #[test]
    fn a_lock_without_a_row_forgets_the_id_when_its_task_has_ended() {
        check::finds(
            submits(Variant::LockWithoutRow, vec![keyed(0), keyed(0)]),
            ONE_TASK,
        );
    }

    #[test]
    fn an_answer_before_the_commit_may_be_about_nothing() {
        check::finds(
            submits(Variant::AnswerBeforeCommit, vec![keyed(0)]),
            ANSWERED_IS_COMMITTED,
        );
    }

    #[test]
    fn a_node_that_inserts_again_after_an_unknown_commit_makes_two_tasks() {
        check::finds(submits(Variant::NodeRepeats, vec![PLAIN]), ONE_EACH);
    }
}
