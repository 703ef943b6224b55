//! `/v1/tasks`: submit, read, cancel.

use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use chrono::Utc;
use ringmesh_ring::Slot;
use serde::Serialize;

use super::body::NoQuery;
use super::error::{Code, Failure};
use super::{Context, body, fields, to_its_end};
use crate::submit::Submitted;
use crate::task::{State as TaskState, Submit, TaskId, View};

const IDEMPOTENCY_KEY: &str = "idempotency-key";

/// A task just committed.
#[derive(Serialize)]
struct Created<'a> {
    id: TaskId,
    kind: &'a str,
    key: &'a str,
    slot: Slot,
    #[serde(skip_serializing_if = "Option::is_none")]
    state: Option<TaskState>,
    replayed: bool,
}

/// A task as it stands, in answer to a submit.
#[derive(Serialize)]
struct Present {
    #[serde(flatten)]
    view: View,
    replayed: bool,
}

/// A silent Postgres would keep each request waiting, and then leave the outcome of a write unknown.
pub(super) fn refuse_when_stalled(context: &Context) -> Result<(), Failure> {
    if context.directory.borrow().stalled {
        return Err(Failure::new(Code::Unavailable, "Postgres does not answer"));
    }
    Ok(())
}

/// Answers 201 after the commit, or 200 for a repetition under its idempotency key; with `?wait`, once the task has ended or the
/// time is over, with the task as it then stands.
pub(super) async fn create(State(context): State<Context>, request: Request) -> Result<Response, Failure> {
    let (mut parts, stream) = request.into_parts();
    let wait = body::wait(&mut parts).await?;
    body::media_type(&parts.headers, &["application/json"])?;
    let header = header_key(&parts.headers)?;
    refuse_when_stalled(&context)?;
    let mut submit = {
        let held = body::read(
            &context,
            Request::from_parts(parts, stream),
            fields::MAX_TASK_BYTES,
        )
        .await?;
        fields::submit(held.text()?, Utc::now())?
    };
    if let Some(header) = header {
        if submit.idempotency_key.as_ref().is_some_and(|key| *key != header) {
            return Err(Failure::invalid(
                "idempotency_key",
                "the header Idempotency-Key says something else",
            ));
        }
        submit.idempotency_key = Some(header);
    }
    if wait.is_some() {
        submit.waiter = context.directory.borrow().me;
    }
    let (kind, key, run_at) = (submit.kind.clone(), submit.key.clone(), submit.run_at);
    let Submitted { id, replayed } = context.submits.submit(submit).await?;
    let view = match wait {
        Some(wait) => end_of(&context, id, wait).await?,
        None if replayed => look(&context, id).await?,
        None => None,
    };
    let state = match run_at {
        // A repetition's task has ended, and its retention with it.
        _ if replayed => None,
        Some(due) if due > Utc::now() => Some(TaskState::Scheduled),
        _ => Some(TaskState::Pending),
    };
    let mut response = match view {
        Some(view) => Json(Present { view, replayed }).into_response(),
        None => Json(Created {
            id,
            kind: &kind,
            key: key.as_str(),
            slot: id.slot,
            state,
            replayed,
        })
        .into_response(),
    };
    *response.status_mut() = if replayed {
        StatusCode::OK
    } else {
        StatusCode::CREATED
    };
    // An id has only digits and a dash.
    if let Ok(location) = HeaderValue::try_from(format!("/v1/tasks/{id}")) {
        response.headers_mut().insert(header::LOCATION, location);
    }
    Ok(response)
}

/// The idempotency key of the header, if there is one.
fn header_key(headers: &HeaderMap) -> Result<Option<String>, Failure> {
    let mut values = headers.get_all(IDEMPOTENCY_KEY).iter();
    let Some(value) = values.next() else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value.as_bytes())
        .map_err(|_| Failure::invalid("idempotency_key", "the header Idempotency-Key is not UTF-8"))?;
    if values.next().is_some() {
        return Err(Failure::invalid(
            "idempotency_key",
            "the header Idempotency-Key is given twice",
        ));
    }
    fields::idempotency_key(text.to_owned()).map(Some)
}

/// Answers with the task as it stands; with `?wait`, once it has ended or the time is over.
pub(super) async fn read(
    State(context): State<Context>,
    id: Result<Path<String>, PathRejection>,
    request: Request,
) -> Result<Json<View>, Failure> {
    let id = parse(id)?;
    let wait = body::wait(&mut request.into_parts().0).await?;
    refuse_when_stalled(&context)?;
    let mut view = look(&context, id).await?.ok_or_else(unknown)?;
    if let Some(wait) = wait
        && !view.state.is_final()
    {
        view = end_of(&context, id, wait).await?.ok_or_else(unknown)?;
    }
    Ok(Json(view))
}

/// Answers with the cancelled task.
pub(super) async fn cancel(
    State(context): State<Context>,
    _: NoQuery,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<View>, Failure> {
    let id = parse(id)?;
    refuse_when_stalled(&context)?;
    let shared = Arc::clone(&context);
    let cancelled = to_its_end(async move {
        let cancelled = shared.store.cancel(id).await?;
        if cancelled {
            shared.hints.cancelled(id);
            shared.hints.waits().ended(id);
        }
        Ok(cancelled)
    })
    .await?;
    let view = look(&context, id).await?.ok_or_else(unknown)?;
    if cancelled {
        Ok(Json(view))
    } else {
        let state = format!("{:?}", view.state).to_lowercase();
        Err(Failure::new(
            Code::AlreadyFinal,
            format!("the task has ended already: {state}"),
        ))
    }
}

fn parse(id: Result<Path<String>, PathRejection>) -> Result<TaskId, Failure> {
    let Path(text) = id.map_err(|_| Failure::new(Code::BadUtf8, "the path is not UTF-8"))?;
    text.parse()
        .map_err(|error: crate::task::BadTaskId| Failure::new(Code::BadId, error.to_string()))
}

fn unknown() -> Failure {
    Failure::new(Code::NotFound, "there is no such task, or its retention is over")
}

async fn look(context: &Context, id: TaskId) -> Result<Option<View>, Failure> {
    Ok(context.hints.waits().look(id).await?)
}

/// The task as it stands once it has ended or the time is over.
async fn end_of(context: &Context, id: TaskId, wait: Duration) -> Result<Option<View>, Failure> {
    match context.hints.waits().end_of(id, wait).await {
        Some(view) => Ok(Some(view)),
        None => look(context, id).await,
    }
}

/// For the batch, which reads tasks in the same form.
pub(super) fn refuse_header_key(headers: &HeaderMap) -> Result<(), Failure> {
    if headers.contains_key(IDEMPOTENCY_KEY) {
        return Err(Failure::invalid(
            "idempotency_key",
            "in a batch each task names its own, there is none for the batch",
        ));
    }
    Ok(())
}

/// For the batch.
pub(super) fn parse_submit(text: &str) -> Result<Submit, Failure> {
    fields::submit(text, Utc::now())
}
