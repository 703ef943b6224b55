//! `/v1/keys/{key}` and `/v1/keys?key={key}`: where a key stands.

use std::sync::Arc;

use axum::Json;
use axum::extract::rejection::{PathRejection, QueryRejection};
use axum::extract::{Path, Query, State};
use chrono::{DateTime, Utc};
use ringmesh_ring::{Epoch, Incarnation, Key, Slot};
use serde::{Deserialize, Serialize};

use super::body::NoQuery;
use super::error::{Code, Failure};
use super::{Context, tasks, to_its_end};
use crate::task::TaskId;

#[derive(Serialize)]
pub(super) struct Status {
    key: Key,
    slot: Slot,
    owner: Option<String>,
    incarnation: Option<Incarnation>,
    epoch: Epoch,
    waiting: i64,
    running: i64,
    scheduled: i64,
    held: Option<Held>,
}

#[derive(Serialize)]
struct Held {
    reason: String,
    task: Option<TaskId>,
    until: Option<DateTime<Utc>>,
    kind: Option<String>,
}

/// The key is all that follows `/v1/keys/`, percent-decoded once; slashes may stand as they are.
pub(super) async fn read(
    State(context): State<Context>,
    _: NoQuery,
    key: Result<Path<String>, PathRejection>,
) -> Result<Json<Status>, Failure> {
    let Path(key) = key.map_err(|_| Failure::new(Code::BadUtf8, "the key is not UTF-8"))?;
    status(context, key).await
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Asked {
    key: String,
}

/// The keys `.` and `..` cannot stand in a path: clients take them for steps, percent-encoded or not.
pub(super) async fn read_by_query(
    State(context): State<Context>,
    asked: Result<Query<Asked>, QueryRejection>,
) -> Result<Json<Status>, Failure> {
    let Query(asked) = asked.map_err(|error| Failure::new(Code::BadQuery, error.body_text()))?;
    status(context, asked.key).await
}

async fn status(context: Context, key: String) -> Result<Json<Status>, Failure> {
    let key = Key::new(key).map_err(|error| Failure::invalid("key", error.to_string()))?;
    tasks::refuse_when_stalled(&context)?;
    let shared = Arc::clone(&context);
    to_its_end(async move {
        let status = shared.store.key_status(&key).await.map_err(Failure::of_read)?;
        let (incarnation, owner) = status.owner.unzip();
        Ok(Json(Status {
            key,
            slot: status.slot,
            owner,
            incarnation,
            epoch: status.epoch,
            waiting: status.waiting,
            running: status.running,
            scheduled: status.scheduled,
            held: status.held.map(|held| Held {
                reason: held.reason,
                task: held.task,
                until: held.until,
                kind: held.kind,
            }),
        }))
    })
    .await
}
