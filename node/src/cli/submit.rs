//! `ringmesh submit`: one task from the command line, or many from a file.

mod file;

use std::path::PathBuf;
use std::time::Duration;

use chrono::{DateTime, Utc};
use ringmesh::task::{TaskId, View};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use tokio::time::Instant;

use super::client::{Body, ClientArgs, Repeat, wait_until};
use super::failure::Failure;
use super::{get, output};

/// A task, or a file of them.
#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each line of a file is a task as the HTTP API takes it: {\"kind\":\"echo\",\"key\":\"tenant-1\",\"payload\":1}. Tasks of \
                        one key are sent in the order of their lines. Lines that are refused are told on standard error, and the others go \
                        on (exit code 3)."
)]
pub(crate) struct Args {
    /// Which handler runs it
    #[arg(required_unless_present = "file")]
    kind: Option<String>,
    /// The routing value: tasks of one key run on one node, one at a time and in order
    #[arg(required_unless_present = "file")]
    key: Option<String>,
    /// JSON for the handler [default: null]
    payload: Option<String>,
    /// Orders between keys, 0 to 9; higher starts sooner
    #[arg(long, value_name = "0-9", value_parser = clap::value_parser!(u8).range(0..=9))]
    priority: Option<u8>,
    /// Start it so long from now at the earliest
    #[arg(long, value_name = "DURATION", value_parser = super::duration::read, conflicts_with = "run_at")]
    delay: Option<Duration>,
    /// Start it at this time at the earliest (RFC 3339)
    #[arg(long, value_name = "TIME")]
    run_at: Option<DateTime<Utc>>,
    /// Submitting again under this key returns the first task
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
    /// How many failures end it
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1000))]
    max_attempts: Option<u32>,
    /// How long one run may take
    #[arg(long, value_name = "DURATION", value_parser = super::duration::read)]
    timeout: Option<Duration>,
    /// Wait at most so long for its end, and show it (exit code 1 unless it ends well)
    #[arg(long, value_name = "DURATION", value_parser = super::duration::read)]
    wait: Option<Duration>,
    /// Submit the tasks of this file, one JSON object a line; - is standard input
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with_all = ["kind", "key", "payload", "priority", "delay", "run_at", "idempotency_key", "max_attempts", "timeout", "wait"],
    )]
    file: Option<PathBuf>,
    /// With a file: give each line that has no idempotency key the key NAME:LINE, so that the same file can be submitted
    /// again after an interruption
    #[arg(long, value_name = "NAME", requires = "file", conflicts_with = "kind")]
    resume: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
}

/// A task as the API takes it.
#[derive(Debug, Serialize)]
struct Task<'a> {
    kind: &'a str,
    key: &'a str,
    payload: Box<RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    priority: Option<u8>,
    #[serde(skip_serializing_if = "Option::is_none")]
    run_at: Option<DateTime<Utc>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    delay: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    idempotency_key: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    max_attempts: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    timeout: Option<String>,
}

/// What a submit is answered with.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Submitted {
    id: TaskId,
    replayed: bool,
}

/// Submits one task, or a file of them.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    if let Some(path) = &args.file {
        return file::run(path, args.resume.as_deref(), &args.client).await;
    }
    let client = args.client.client()?;
    let repeat = if args.idempotency_key.is_some() {
        Repeat::Safe
    } else {
        Repeat::Never
    };
    let until = args.wait.map(|wait| Instant::now() + wait);
    let wait = until.and_then(wait_until).unwrap_or_default();
    let body = Body::Json(args.body()?);
    let answer: Box<RawValue> = match client.post(repeat, &format!("/v1/tasks{wait}"), body).await {
        Ok(answer) => answer,
        Err(error) => {
            let unknown = error.is_unknown();
            let failure = Failure::from(error);
            return Err(match unknown && repeat == Repeat::Never {
                true => failure.help(
                    "the task may have been taken; submit with --idempotency-key to be able to submit it again without doubt",
                ),
                false => failure,
            });
        }
    };
    let submitted: Submitted = client.read(answer.get().as_bytes())?;
    if submitted.replayed && !args.client.json {
        eprintln!("it was submitted before under this idempotency key; this is that task");
    }
    let Some(until) = until else {
        return match args.client.json {
            true => output::json(&submitted),
            false => output::text(submitted.id),
        };
    };
    let view = match serde_json::from_str::<View>(answer.get()) {
        Ok(view) if view.state.is_final() => view,
        _ => get::wait_for(&client, submitted.id, until).await?,
    };
    get::show(&view, args.client.json)?;
    get::verdict(&view)
}

impl Args {
    fn body(&self) -> Result<String, Failure> {
        let payload = self.payload.clone().unwrap_or_else(|| "null".to_owned());
        let payload = RawValue::from_string(payload).map_err(|error| {
            Failure::usage(anyhow::Error::from(error).context("the payload is not JSON"))
                .help("text is JSON in quotes: '\"hello\"'")
        })?;
        let task = Task {
            kind: self.kind.as_deref().unwrap_or_default(),
            key: self.key.as_deref().unwrap_or_default(),
            payload,
            priority: self.priority,
            run_at: self.run_at,
            delay: self
                .delay
                .map(|delay| humantime::format_duration(delay).to_string()),
            idempotency_key: self.idempotency_key.as_deref(),
            max_attempts: self.max_attempts,
            timeout: self
                .timeout
                .map(|timeout| humantime::format_duration(timeout).to_string()),
        };
        serde_json::to_string(&task).map_err(Failure::failed)
    }
}
