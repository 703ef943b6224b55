//! `/health/live`, `/health/ready` and `/metrics`.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::Context;
use super::body::NoQuery;
use super::error::{Code, Failure};

/// Whether a restart would help: 200 while the process's loops live, whatever Postgres does.
pub(super) async fn live(State(context): State<Context>, _: NoQuery) -> Result<&'static str, Failure> {
    if (context.live)() {
        Ok("live\n")
    } else {
        Err(Failure::internal())
    }
}

/// Whether the node holds all slots that the ring gives it.
pub(super) async fn ready(State(context): State<Context>, _: NoQuery) -> Result<&'static str, Failure> {
    let directory = context.directory.borrow();
    if directory.ready {
        return Ok("ready\n");
    }
    let cause = if directory.draining {
        "the node is draining"
    } else if directory.stalled {
        "Postgres does not answer"
    } else if directory.me.is_none() {
        "the node has no lease yet"
    } else if !directory.leased {
        "the node cannot rely on its lease"
    } else {
        "the node does not hold all its slots yet"
    };
    Err(Failure::new(Code::NotReady, cause))
}

pub(super) async fn metrics(State(context): State<Context>, _: NoQuery) -> impl IntoResponse {
    context.store.report_connections();
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        (context.metrics)(),
    )
}
