//! `/health/live`, `/health/ready` and `/metrics`.

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::IntoResponse;

use super::Context;
use super::error::{Code, Failure};

/// Whether a restart would help: 200 while the process's loops live, whatever Postgres does.
pub(super) async fn live(State(context): State<Context>) -> Result<&'static str, Failure> {
    if (context.live)() {
        Ok("live\n")
    } else {
        Err(Failure::internal())
    }
}

/// Whether the node holds all slots that the ring gives it.
pub(super) async fn ready(State(context): State<Context>) -> Result<&'static str, Failure> {
    if context.directory.borrow().ready {
        Ok("ready\n")
    } else {
        Err(Failure::new(
            Code::NotReady,
            "the node does not hold all its slots",
        ))
    }
}

pub(super) async fn metrics(State(context): State<Context>) -> impl IntoResponse {
    (
        [(CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")],
        (context.metrics)(),
    )
}
