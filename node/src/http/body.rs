//! Reads bodies and queries within their limits.

use std::collections::HashMap;
use std::time::Duration;

use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{FromRequestParts, Query, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use bytes::{Bytes, BytesMut};
use http_body_util::BodyExt;
use tokio::sync::SemaphorePermit;

use super::Shared;
use super::error::{Code, Failure};
use super::fields::duration;
use crate::wait;

/// A body, and its share of the memory for bodies.
pub(super) struct Held<'a> {
    pub(super) bytes: Bytes,
    _share: Option<SemaphorePermit<'a>>,
}

impl Held<'_> {
    pub(super) fn text(&self) -> Result<&str, Failure> {
        utf8(&self.bytes)
    }
}

pub(super) fn utf8(bytes: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(bytes).map_err(|error| {
        Failure::new(
            Code::BadUtf8,
            format!("the body is not UTF-8 at byte {}", error.valid_up_to()),
        )
    })
}

/// Reads a whole body of at most `limit` bytes, within the time for bodies.
pub(super) async fn read<'a>(
    context: &'a Shared,
    request: Request,
    limit: usize,
) -> Result<Held<'a>, Failure> {
    let too_large = || Failure::new(Code::TooLarge, format!("the body has more than {limit} bytes"));
    let announced = request
        .headers()
        .get(CONTENT_LENGTH)
        .and_then(|value| value.to_str().ok()?.parse::<u64>().ok());
    if announced.is_some_and(|length| length > limit as u64) {
        return Err(too_large());
    }
    let read = read_frames(context, request.into_body(), limit, too_large);
    tokio::time::timeout(context.limits.body_within, read)
        .await
        .unwrap_or_else(|_| Err(Failure::new(Code::TooSlow, "the body came too slowly")))
}

async fn read_frames(
    context: &Shared,
    mut body: Body,
    limit: usize,
    too_large: impl Fn() -> Failure,
) -> Result<Held<'_>, Failure> {
    let mut whole = Bytes::new();
    let mut pieces: Option<BytesMut> = None;
    let mut share: Option<SemaphorePermit<'_>> = None;
    let mut length = 0;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Failure::new(Code::BadBody, "the body broke off"))?;
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > limit {
            return Err(too_large());
        }
        let more = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let more = context
            .bodies
            .try_acquire_many(more)
            .map_err(|_| Failure::new(Code::Busy, "too many bodies are in memory, nothing was written"))?;
        match &mut share {
            Some(share) => share.merge(more),
            None => share = Some(more),
        }
        // Most bodies come in one piece: no copy then.
        match &mut pieces {
            None if whole.is_empty() => whole = data,
            None => {
                let mut joined = BytesMut::from(&*whole);
                joined.extend_from_slice(&data);
                pieces = Some(joined);
            }
            Some(pieces) => pieces.extend_from_slice(&data),
        }
    }
    Ok(Held {
        bytes: pieces.map_or(whole, BytesMut::freeze),
        _share: share,
    })
}

/// The media type of a body, which must be one of these. A charset, if named, must be UTF-8.
pub(super) fn media_type(
    headers: &HeaderMap,
    taken: &'static [&'static str],
) -> Result<&'static str, Failure> {
    let refused = || {
        let taken = taken.join(" or ");
        Failure::new(
            Code::UnsupportedMediaType,
            format!("the content type must be {taken}, in UTF-8, not compressed"),
        )
    };
    let mut named = headers.get_all(CONTENT_TYPE).iter();
    let text = named
        .next()
        .and_then(|value| value.to_str().ok())
        .ok_or_else(refused)?;
    let encoded = headers
        .get_all(CONTENT_ENCODING)
        .iter()
        .any(|value| !value.as_bytes().eq_ignore_ascii_case(b"identity"));
    if named.next().is_some() || encoded {
        return Err(refused());
    }
    let mut parts = text.split(';').map(str::trim);
    let essence = parts.next().unwrap_or_default();
    for parameter in parts {
        if let Some((name, value)) = parameter.split_once('=')
            && name.trim().eq_ignore_ascii_case("charset")
            && !value.trim().trim_matches('"').eq_ignore_ascii_case("utf-8")
        {
            return Err(refused());
        }
    }
    taken
        .iter()
        .find(|taken| taken.eq_ignore_ascii_case(essence))
        .copied()
        .ok_or_else(refused)
}

/// Refuses a query where a route takes none, or a misspelt or misplaced parameter would go unnoticed.
pub(super) struct NoQuery;

impl<S: Sync> FromRequestParts<S> for NoQuery {
    type Rejection = Failure;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Failure> {
        match parts.uri.query() {
            None | Some("") => Ok(NoQuery),
            Some(_) => Err(Failure::new(
                Code::BadQuery,
                "this route takes no query parameters",
            )),
        }
    }
}

/// `?wait=10s`, the only query parameter that clients may give.
pub(super) async fn wait(parts: &mut Parts) -> Result<Option<Duration>, Failure> {
    if parts.uri.query().is_none_or(str::is_empty) {
        return Ok(None);
    }
    let query: Result<Query<Vec<(String, String)>>, QueryRejection> =
        Query::from_request_parts(parts, &()).await;
    let Query(pairs) = query.map_err(|_| Failure::new(Code::BadQuery, "the query is malformed"))?;
    let mut wait = None;
    for (name, value) in pairs {
        if name != "wait" || wait.is_some() {
            return Err(Failure::new(
                Code::BadQuery,
                "the only query parameter is `wait`, once",
            ));
        }
        let time = duration(&value).filter(|time| *time <= wait::LONGEST);
        wait = Some(time.ok_or_else(|| Failure::new(Code::BadQuery, "wait: a time like 10s, at most 60s"))?);
    }
    Ok(wait.filter(|time| !time.is_zero()))
}

/// The value of one named query parameter.
pub(super) async fn parameter(parts: &mut Parts, name: &str) -> Option<String> {
    let query: Result<Query<HashMap<String, String>>, QueryRejection> =
        Query::from_request_parts(parts, &()).await;
    query.ok()?.0.remove(name)
}
