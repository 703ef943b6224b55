//! Every error that the API answers with: its code, its status and its form.
//!
//! Codes are stable: clients may match on them. Messages are for people and may change.

use std::borrow::Cow;

use axum::Json;
use axum::http::{HeaderName, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use serde::Serialize;

use crate::{json, store, submit, wait};

/// The stable codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Code {
    /// 400: the body is not JSON.
    BadJson,
    /// 400: the body or the path is not UTF-8.
    BadUtf8,
    /// 400: the body broke off or was framed wrongly.
    BadBody,
    /// 400: not a task id.
    BadId,
    /// 400: an unknown or malformed query parameter.
    BadQuery,
    /// 401: no token, or a wrong one.
    Unauthorized,
    /// 403: without a token only requests that name a loopback host are taken.
    ForeignHost,
    /// 403: without a token a browser's request from another site is not taken.
    CrossSite,
    /// 403: the request between nodes does not carry this mesh's MAC.
    BadMac,
    /// 404: no such route, task or node.
    NotFound,
    /// 405: the route exists, the method does not.
    MethodNotAllowed,
    /// 408: the body came too slowly.
    TooSlow,
    /// 409: the task has ended already.
    AlreadyFinal,
    /// 410: this process does not live as that incarnation.
    NotThisLife,
    /// 413: the body, the payload or the batch is too large.
    TooLarge,
    /// 415: the content type or the content encoding is not taken.
    UnsupportedMediaType,
    /// 422: a field is missing, unknown or out of range; `field` names it.
    Invalid,
    /// 422: the idempotency key belongs to a submit that said something else.
    IdempotencyMismatch,
    /// 422: Postgres refuses the task's data.
    Refused,
    /// 500: a fault of the node.
    Internal,
    /// 429: too much waits already. Nothing was written.
    Busy,
    /// 503: Postgres is not available. Nothing was written.
    Unavailable,
    /// 503: the answer to the commit was lost. Send it again under the same idempotency key.
    OutcomeUnknown,
    /// 503: this node does not hold all its slots yet, or no longer.
    NotReady,
    /// 503: the other node does not answer.
    NodeSilent,
}

impl Code {
    /// Its HTTP status.
    pub fn status(self) -> StatusCode {
        match self {
            Code::BadJson | Code::BadUtf8 | Code::BadBody | Code::BadId | Code::BadQuery => {
                StatusCode::BAD_REQUEST
            }
            Code::Unauthorized => StatusCode::UNAUTHORIZED,
            Code::ForeignHost | Code::CrossSite | Code::BadMac => StatusCode::FORBIDDEN,
            Code::NotFound => StatusCode::NOT_FOUND,
            Code::MethodNotAllowed => StatusCode::METHOD_NOT_ALLOWED,
            Code::TooSlow => StatusCode::REQUEST_TIMEOUT,
            Code::AlreadyFinal => StatusCode::CONFLICT,
            Code::NotThisLife => StatusCode::GONE,
            Code::TooLarge => StatusCode::PAYLOAD_TOO_LARGE,
            Code::UnsupportedMediaType => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Code::Invalid | Code::IdempotencyMismatch | Code::Refused => StatusCode::UNPROCESSABLE_ENTITY,
            Code::Internal => StatusCode::INTERNAL_SERVER_ERROR,
            Code::Busy => StatusCode::TOO_MANY_REQUESTS,
            Code::Unavailable | Code::OutcomeUnknown | Code::NotReady | Code::NodeSilent => {
                StatusCode::SERVICE_UNAVAILABLE
            }
        }
    }
}

/// An error as it is answered.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Failure {
    /// What it is, for programs.
    pub code: Code,
    /// What it is and what to do, for people.
    pub message: Cow<'static, str>,
    /// The field at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub field: Option<Cow<'static, str>>,
    /// The line or element of the batch at fault, from 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub line: Option<usize>,
    /// The fingerprint under the idempotency key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stored_fingerprint: Option<String>,
    /// The fingerprint of the submit at fault.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub given_fingerprint: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: Code, message: impl Into<Cow<'static, str>>) -> Self {
        Failure {
            code,
            message: message.into(),
            field: None,
            line: None,
            stored_fingerprint: None,
            given_fingerprint: None,
        }
    }

    /// A field at fault.
    pub(crate) fn invalid(
        field: impl Into<Cow<'static, str>>,
        message: impl Into<Cow<'static, str>>,
    ) -> Self {
        Failure {
            field: Some(field.into()),
            ..Failure::new(Code::Invalid, message)
        }
    }

    pub(crate) fn at_line(self, line: usize) -> Self {
        Failure {
            line: Some(line),
            ..self
        }
    }

    /// What a read came to. No outcome of it can be unknown, and it says nothing about writes.
    pub(crate) fn of_read(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(_) | store::Error::Unknown(_) => wait::Unavailable.into(),
            refused @ store::Error::Refused(_) => refused.into(),
        }
    }

    /// A task that ended badly for reasons of the node. The reason goes to the log.
    pub(crate) fn internal() -> Self {
        Failure::new(Code::Internal, "a fault of the node, see its log")
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        let code = self.code;
        let mut response = (code.status(), Json(self)).into_response();
        let extra: Option<(HeaderName, &'static str)> = match code {
            _ if matches!(
                code.status(),
                StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
            ) =>
            {
                Some((header::RETRY_AFTER, "1"))
            }
            Code::Unauthorized => Some((header::WWW_AUTHENTICATE, "Bearer realm=\"ringmesh\"")),
            Code::TooSlow | Code::BadBody => Some((header::CONNECTION, "close")),
            _ => None,
        };
        if let Some((name, value)) = extra {
            response
                .headers_mut()
                .insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl From<store::Error> for Failure {
    fn from(error: store::Error) -> Self {
        match error {
            store::Error::Unavailable(_) => Failure::new(
                Code::Unavailable,
                "Postgres is not available, nothing was written",
            ),
            store::Error::Unknown(_) => Failure::new(
                Code::OutcomeUnknown,
                "Postgres did not answer: read again before repeating",
            ),
            store::Error::Refused(source) => {
                tracing::error!(error = %source, "Postgres refused a statement");
                Failure::internal()
            }
        }
    }
}

impl From<wait::Unavailable> for Failure {
    fn from(_: wait::Unavailable) -> Self {
        Failure::new(Code::Unavailable, "Postgres does not answer")
    }
}

impl From<submit::Error> for Failure {
    fn from(error: submit::Error) -> Self {
        match error {
            submit::Error::Busy => Failure::new(Code::Busy, "too many submits wait, nothing was written"),
            submit::Error::Unavailable => Failure::new(
                Code::Unavailable,
                "Postgres is not available, nothing was written",
            ),
            submit::Error::Unknown => Failure::new(
                Code::OutcomeUnknown,
                "Postgres did not answer: the task may exist; repeat it under the same idempotency key",
            ),
            submit::Error::Mismatch { stored, given, .. } => Failure {
                field: Some("idempotency_key".into()),
                stored_fingerprint: Some(stored),
                given_fingerprint: Some(given),
                ..Failure::new(
                    Code::IdempotencyMismatch,
                    "this idempotency key belongs to a submit with another payload or other options",
                )
            },
            submit::Error::Refused(objection) => Failure::new(Code::Refused, objection),
            submit::Error::Broken => Failure::internal(),
        }
    }
}

impl From<json::Error> for Failure {
    fn from(error: json::Error) -> Self {
        let code = match error {
            json::Error::TooLarge { .. } => Code::TooLarge,
            json::Error::Syntax { .. } => Code::BadJson,
            _ => Code::Invalid,
        };
        Failure {
            field: Some("payload".into()),
            ..Failure::new(code, error.to_string())
        }
    }
}
