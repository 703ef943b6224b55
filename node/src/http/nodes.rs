//! `/v1/nodes/{name}/drain`: ask a node to hand on its slots and leave.

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use axum::http::{HeaderMap, StatusCode};
use serde::Serialize;

use super::Context;
use super::body::NoQuery;
use super::error::{Code, Failure};

/// Marks a request that a node has passed on, so that two nodes that disagree about a name do not pass it on for ever.
const PASSED_ON: &str = "x-ringmesh-passed-on";

#[derive(Serialize)]
pub(super) struct Draining {
    node: String,
    state: &'static str,
}

/// Answers 202 once the node has taken the wish; `/v1/mesh` shows how it goes.
pub(super) async fn drain(
    State(context): State<Context>,
    _: NoQuery,
    name: Result<Path<String>, PathRejection>,
    headers: HeaderMap,
) -> Result<(StatusCode, Json<Draining>), Failure> {
    let Path(name) = name.map_err(|_| Failure::new(Code::BadUtf8, "the name is not UTF-8"))?;
    if name == context.name {
        // A full channel: it was asked already.
        let _ = context.drain.try_send(());
    } else {
        let address = {
            let directory = context.directory.borrow();
            directory
                .nodes
                .values()
                .find(|node| node.name == name)
                .map(|node| node.http.clone())
        };
        let address = address.filter(|_| !headers.contains_key(PASSED_ON));
        let address = address.ok_or_else(|| Failure::new(Code::NotFound, "there is no node of this name"))?;
        pass_on(&context, &name, &address).await?;
    }
    Ok((
        StatusCode::ACCEPTED,
        Json(Draining {
            node: name,
            state: "draining",
        }),
    ))
}

async fn pass_on(context: &Context, name: &str, address: &str) -> Result<(), Failure> {
    let silent = || Failure::new(Code::NodeSilent, "the node does not answer");
    let mut url = reqwest::Url::parse(&format!("http://{address}/v1/nodes")).map_err(|_| silent())?;
    url.path_segments_mut()
        .map_err(|()| silent())?
        .push(name)
        .push("drain");
    let mut request = context.hints.client().post(url).header(PASSED_ON, "1");
    if let Some(token) = &context.token {
        request = request.bearer_auth(token.expose());
    }
    let answer = request.send().await.map_err(|_| silent())?;
    if answer.status() == StatusCode::ACCEPTED {
        Ok(())
    } else {
        Err(silent())
    }
}
