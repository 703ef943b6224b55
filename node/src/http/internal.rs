//! `/internal/v1/…`: what nodes ask and tell each other. Bodies carry a MAC under the cluster secret.

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use ringmesh_ring::Incarnation;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::{Code, Failure};
use super::{Context, LifeHandle, body};
use crate::hint::{HANDOFF_PATH, HINTS_PATH, Message, Offer, OfferAnswer};
use crate::secret::Signer;

const MAX_BYTES: usize = 1 << 20;

async fn read<T: DeserializeOwned>(context: &Context, request: Request, path: &str) -> Result<T, Failure> {
    let foreign = || Failure::new(Code::BadMac, "only nodes of this mesh may send this");
    // Whoever cannot even look like a node does not get its body read.
    let mut macs = request.headers().get_all(Signer::HEADER).iter();
    let mac = macs.next().filter(|mac| mac.len() == Signer::LENGTH).cloned();
    let mac = mac.filter(|_| macs.next().is_none()).ok_or_else(foreign)?;
    let held = body::read(context, request, MAX_BYTES).await?;
    if !context.hints.verify(path, &held.bytes, mac.as_bytes()) {
        return Err(foreign());
    }
    serde_json::from_slice(&held.bytes).map_err(|error| Failure::new(Code::BadJson, error.to_string()))
}

fn life(context: &Context, to: i64) -> Result<std::sync::Arc<LifeHandle>, Failure> {
    let life = context
        .life
        .get()
        .filter(|life| life.me.incarnation == Incarnation(to));
    life.ok_or_else(|| {
        Failure::new(
            Code::NotThisLife,
            "this process does not live as that incarnation",
        )
    })
}

/// Takes hints for the present life.
pub(super) async fn hints(State(context): State<Context>, request: Request) -> Result<StatusCode, Failure> {
    let message: Message = read(&context, request, HINTS_PATH).await?;
    life(&context, message.to)?;
    context.hints.take(message);
    Ok(StatusCode::NO_CONTENT)
}

/// Accepts slots only if this life serves and computes placement from the same as the other node.
pub(super) async fn handoff(
    State(context): State<Context>,
    request: Request,
) -> Result<Json<OfferAnswer>, Failure> {
    let offer: Offer = read(&context, request, HANDOFF_PATH).await?;
    let life = life(&context, offer.to)?;
    let accept = (life.serving)() && (life.digest)() == offer.digest;
    if !accept {
        tracing::info!(from = offer.from, slots = offer.slots.len(), "declined a handoff");
    }
    Ok(Json(OfferAnswer { accept }))
}

#[derive(Serialize)]
pub(super) struct Alive {
    incarnation: Incarnation,
    /// A string: it uses all 64 bits, which JSON's readers may not.
    boot: String,
}

/// Whether this process still lives as that incarnation. Asked by a peer before it calls it dead; needs no secret, as it says
/// nothing that `/health` does not.
pub(super) async fn alive(State(context): State<Context>, request: Request) -> Result<Json<Alive>, Failure> {
    let asked = body::parameter(&mut request.into_parts().0, "incarnation").await;
    let asked = asked.and_then(|text| text.parse().ok());
    let asked = asked.ok_or_else(|| Failure::new(Code::BadQuery, "needs ?incarnation=NUMBER"))?;
    let me = life(&context, asked)?.me;
    Ok(Json(Alive {
        incarnation: me.incarnation,
        boot: me.boot.to_string(),
    }))
}
