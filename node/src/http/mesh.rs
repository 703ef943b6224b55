//! `/v1/mesh` and `/v1/slots`: who is there, and who owns what.

use std::collections::HashMap;
use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use ringmesh_ring::{Epoch, Incarnation, SLOTS, Slot};
use serde::Serialize;

use super::body::NoQuery;
use super::error::Failure;
use super::{Context, tasks, to_its_end};

/// The mesh as this node sees it.
#[derive(Serialize)]
pub(super) struct Mesh {
    /// All slots there are.
    slots: u16,
    /// Those with an unfenced owner.
    owned: usize,
    /// The node that answers.
    node: String,
    incarnation: Option<Incarnation>,
    ready: bool,
    members: Vec<Member>,
}

#[derive(Serialize)]
struct Member {
    name: String,
    incarnation: Incarnation,
    state: &'static str,
    address: String,
    weight: u32,
    /// How many slots it owns.
    slots: usize,
    lease_ms: i64,
}

pub(super) async fn mesh(State(context): State<Context>, _: NoQuery) -> Json<Mesh> {
    let directory = Arc::clone(&context.directory.borrow());
    let mut owned: HashMap<Incarnation, usize> = HashMap::new();
    for owner in directory.slots.iter().filter_map(|(owner, _)| *owner) {
        *owned.entry(owner).or_default() += 1;
    }
    let members: Vec<Member> = directory
        .nodes
        .iter()
        .map(|(incarnation, node)| Member {
            name: node.name.clone(),
            incarnation: *incarnation,
            state: node.state,
            address: node.http.clone(),
            weight: node.weight,
            slots: owned.get(incarnation).copied().unwrap_or(0),
            lease_ms: node.lease_ms,
        })
        .collect();
    Json(Mesh {
        slots: SLOTS,
        owned: members.iter().map(|member| member.slots).sum(),
        node: context.name.clone(),
        incarnation: directory.me,
        ready: directory.ready,
        members,
    })
}

/// A slot, as Postgres has it now.
#[derive(Serialize)]
pub(super) struct Row {
    slot: Slot,
    /// The owner's name; none if it has no owner, or one that this node does not know or knows to be fenced.
    owner: Option<String>,
    incarnation: Option<Incarnation>,
    epoch: Epoch,
}

pub(super) async fn slots(State(context): State<Context>, _: NoQuery) -> Result<Json<Vec<Row>>, Failure> {
    tasks::refuse_when_stalled(&context)?;
    let shared = Arc::clone(&context);
    let rows = to_its_end(async move { shared.store.read_slots().await.map_err(Failure::of_read) }).await?;
    let directory = Arc::clone(&context.directory.borrow());
    let rows = rows.into_iter().map(|row| Row {
        slot: row.slot,
        owner: row
            .owner
            .and_then(|owner| directory.nodes.get(&owner))
            .map(|node| node.name.clone()),
        incarnation: row.owner,
        epoch: row.epoch,
    });
    Ok(Json(rows.collect()))
}
