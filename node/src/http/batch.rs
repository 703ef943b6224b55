//! `POST /v1/tasks/batch`: many tasks, all or none.

use std::fmt;

use axum::Json;
use axum::extract::{Request, State};
use axum::http::StatusCode;
use serde::Serialize;
use serde::de::{Deserializer as _, Error as _, SeqAccess, Visitor};
use serde_json::value::RawValue;

use super::body::NoQuery;
use super::error::{Code, Failure};
use super::{Context, body, fields, tasks};
use crate::submit;
use crate::task::{Submit, TaskId};

const MAX_TASKS: usize = 10_000;
const MAX_BYTES: usize = 32 << 20;
pub(super) const LINES: &str = "application/x-ndjson";
pub(super) const ARRAY: &str = "application/json";

#[derive(Serialize)]
pub(super) struct Created {
    /// In the order of the tasks.
    ids: Vec<TaskId>,
    /// How many of them were there before.
    replayed: usize,
}

pub(super) async fn create(
    State(context): State<Context>,
    _: NoQuery,
    request: Request,
) -> Result<(StatusCode, Json<Created>), Failure> {
    let form = body::media_type(request.headers(), &[LINES, ARRAY])?;
    tasks::refuse_header_key(request.headers())?;
    tasks::refuse_when_stalled(&context)?;
    let held = body::read(&context, request, MAX_BYTES).await?;
    let bytes = held.bytes.clone();
    // A large batch takes a while to check, during which a runtime thread would serve nobody.
    let parsed = tokio::task::spawn_blocking(move || parse(body::utf8(&bytes)?, form)).await;
    let (submits, lines) = parsed.unwrap_or_else(|_| Err(Failure::internal()))?;
    drop(held);
    let done = context
        .submits
        .submit_all(submits)
        .await
        .map_err(|error| match error {
            submit::Error::Mismatch { place, .. } => Failure::from(error).at_line(lines[place]),
            other => other.into(),
        })?;
    let replayed = done.iter().filter(|one| one.replayed).count();
    Ok((
        StatusCode::CREATED,
        Json(Created {
            ids: done.into_iter().map(|one| one.id).collect(),
            replayed,
        }),
    ))
}

/// The tasks, and the line of each.
pub(super) fn parse(text: &str, form: &str) -> Result<(Vec<Submit>, Vec<usize>), Failure> {
    let mut submits = Vec::new();
    let mut lines = Vec::new();
    let mut take = |line: usize, text: &str| {
        if submits.len() == MAX_TASKS {
            return Err(too_many());
        }
        if text.len() > fields::MAX_TASK_BYTES {
            return Err(Failure::new(Code::TooLarge, "the task is too large").at_line(line));
        }
        submits.push(tasks::parse_submit(text).map_err(|failure| failure.at_line(line))?);
        lines.push(line);
        Ok(())
    };
    if form == LINES {
        for (at, line) in text.split('\n').enumerate() {
            let line = line.trim_matches([' ', '\t', '\r']);
            if !line.is_empty() {
                take(at + 1, line)?;
            }
        }
    } else {
        for (at, element) in elements(text)?.into_iter().enumerate() {
            take(at + 1, element.get())?;
        }
    }
    if submits.is_empty() {
        return Err(Failure::new(Code::Invalid, "the batch has no task"));
    }
    Ok((submits, lines))
}

fn too_many() -> Failure {
    Failure::new(
        Code::TooLarge,
        format!("the batch has more than {MAX_TASKS} tasks"),
    )
}

/// Cuts an array into its elements, at most one more than may be in it.
fn elements(text: &str) -> Result<Vec<&RawValue>, Failure> {
    struct Cut;
    impl<'de> Visitor<'de> for Cut {
        type Value = Vec<&'de RawValue>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of tasks")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut array: A) -> Result<Self::Value, A::Error> {
            let mut elements = Vec::new();
            while let Some(element) = array.next_element()? {
                elements.push(element);
                if elements.len() > MAX_TASKS {
                    return Err(A::Error::custom(TOO_MANY));
                }
            }
            Ok(elements)
        }
    }
    const TOO_MANY: &str = "more tasks than a batch may have";
    let mut reader = serde_json::Deserializer::from_str(text);
    let elements = reader
        .deserialize_seq(Cut)
        .and_then(|elements| reader.end().map(|()| elements));
    elements.map_err(|error| match error.classify() {
        serde_json::error::Category::Data if error.to_string().starts_with(TOO_MANY) => too_many(),
        serde_json::error::Category::Data => Failure::new(Code::Invalid, error.to_string()),
        _ => Failure::new(Code::BadJson, error.to_string()),
    })
}
