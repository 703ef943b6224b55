//! What every request passes: the token, or the loopback rules in its place; and panics end here.

use std::net::IpAddr;
use std::panic::AssertUnwindSafe;
use std::time::Instant;

use axum::extract::{MatchedPath, Request, State};
use axum::http::header::{AUTHORIZATION, HOST, ORIGIN};
use axum::http::uri::Authority;
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use futures::FutureExt;
use metrics::SharedString;

use super::error::{Code, Failure};
use super::{Api, Context};
use crate::telemetry::{field, metric};

pub(super) async fn guard(State(context): State<Context>, request: Request, next: Next) -> Response {
    let began = Instant::now();
    // A path that is no route counts under no name of its own, or clients could make any number of them.
    let route = request.extensions().get::<MatchedPath>().map_or_else(
        || "none".into(),
        |path| SharedString::from(path.as_str().to_owned()),
    );
    let response = match admit(&context, &request) {
        Err(failure) => failure.into_response(),
        Ok(()) => match AssertUnwindSafe(next.run(request)).catch_unwind().await {
            Ok(response) => response,
            // The panic hook has logged it.
            Err(_) => Failure::internal().into_response(),
        },
    };
    metrics::histogram!(metric::HTTP_SECONDS, field::ROUTE => route.clone()).record(began.elapsed());
    let status = response.status().as_str().to_owned();
    metrics::counter!(metric::HTTP_REQUESTS, field::ROUTE => route, field::STATUS => status).increment(1);
    response
}

fn admit(api: &Api, request: &Request) -> Result<(), Failure> {
    let path = request.uri().path();
    if path.starts_with("/health/") || path.starts_with("/internal/") {
        return Ok(());
    }
    match &api.token {
        Some(token) => {
            let shown = request
                .headers()
                .get(AUTHORIZATION)
                .map(|value| value.as_bytes())
                .and_then(bearer);
            if shown.is_some_and(|shown| token.matches(shown)) {
                Ok(())
            } else {
                Err(Failure::new(
                    Code::Unauthorized,
                    "needs the header `Authorization: Bearer TOKEN`",
                ))
            }
        }
        None => loopback_only(request),
    }
}

fn bearer(value: &[u8]) -> Option<&[u8]> {
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(token)
}

/// Without a token the listener is on loopback, and what remains are browsers: a page whose name was made to point here (DNS
/// rebinding) shows in the host, a page of another site in the origin.
fn loopback_only(request: &Request) -> Result<(), Failure> {
    let foreign = || {
        Failure::new(
            Code::ForeignHost,
            "without a token the host must be localhost or a loopback address",
        )
    };
    if request.uri().host().is_some_and(|host| !is_loopback(host)) {
        return Err(foreign());
    }
    let mut hosts = request.headers().get_all(HOST).iter();
    let host = hosts
        .next()
        .and_then(|value| Authority::try_from(value.as_bytes()).ok())
        .ok_or_else(foreign)?;
    if hosts.next().is_some() || host.as_str().contains('@') || !is_loopback(host.host()) {
        return Err(foreign());
    }
    for origin in request.headers().get_all(ORIGIN) {
        if origin.as_bytes().strip_prefix(b"http://") != Some(host.as_str().as_bytes()) {
            return Err(Failure::new(
                Code::CrossSite,
                "without a token no other site may send requests",
            ));
        }
    }
    Ok(())
}

fn is_loopback(host: &str) -> bool {
    let bare = host
        .strip_prefix('[')
        .and_then(|host| host.strip_suffix(']'))
        .unwrap_or(host);
    host.eq_ignore_ascii_case("localhost")
        || bare.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loopback_is_meant_literally() {
        for host in ["localhost", "LOCALHOST", "127.0.0.1", "127.9.9.9", "[::1]"] {
            assert!(is_loopback(host), "{host}");
        }
        for host in [
            "",
            "localhost.evil.example",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "0.0.0.0",
            "[::]",
            "2130706433",
        ] {
            assert!(!is_loopback(host), "{host}");
        }
    }
}
