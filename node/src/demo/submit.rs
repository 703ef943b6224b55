//! Submits the flights: in the file's order, a batch at a time, round robin over the nodes.
//!
//! The next batch is sent only when the one before was answered, so the flights of an aircraft keep their order (P4). When a
//! node does not answer, or answers that it does not know, the same batch goes to the next node under the same
//! idempotency keys: what was accepted already is not accepted twice. So a killed node costs a retry.

use std::fmt::Write;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use serde::Serialize;

use super::Error;
use super::flights::Flight;
use super::logbook::{KIND, Payload};

/// How often a batch leaves.
const STEP: Duration = Duration::from_millis(100);
/// The largest batch; flat out all have this size.
const MOST: usize = 1000;
/// How long one batch may be refused by everybody.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two rounds over nodes that all refused.
const PAUSE: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Task<'a> {
    kind: &'a str,
    key: &'a str,
    payload: Payload,
    idempotency_key: String,
}

/// How far it is.
#[derive(Debug, Default)]
pub(crate) struct Submitted {
    /// Flights answered with 2xx; always the first ones of the file.
    pub(crate) accepted: AtomicUsize,
    /// Batches that had to be sent again.
    pub(crate) repeated: AtomicUsize,
}

/// Submits all flights of a run at `rate` per second; 0: flat out.
pub(crate) async fn submit(
    http: &reqwest::Client,
    urls: &[String],
    run: &str,
    flights: &[(String, Flight)],
    rate: u32,
    done: &Submitted,
) -> Result<(), Error> {
    let began = Instant::now();
    let mut ticks = tokio::time::interval(STEP);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut next_node = 0;
    let mut sent = 0;
    while sent < flights.len() {
        let due = if rate == 0 {
            sent + MOST
        } else {
            ticks.tick().await;
            (began.elapsed().as_secs_f64() * f64::from(rate)) as usize + 1
        };
        let end = due.min(sent + MOST).min(flights.len());
        if end <= sent {
            continue;
        }
        let body = batch(run, &flights[sent..end])?;
        send(http, urls, &mut next_node, body, done).await?;
        sent = end;
        done.accepted.store(sent, Ordering::Relaxed);
    }
    Ok(())
}

fn batch(run: &str, flights: &[(String, Flight)]) -> Result<String, Error> {
    let mut body = String::new();
    for (key, flight) in flights {
        let task = Task {
            kind: KIND,
            key,
            idempotency_key: format!("{run}-{}", flight.line),
            payload: Payload {
                run: run.to_owned(),
                flight: flight.clone(),
            },
        };
        let line = serde_json::to_string(&task).map_err(Error::Json)?;
        let _ = writeln!(body, "{line}");
    }
    Ok(body)
}

/// Sends one batch until somebody has taken it.
async fn send(
    http: &reqwest::Client,
    urls: &[String],
    next_node: &mut usize,
    body: String,
    done: &Submitted,
) -> Result<(), Error> {
    let deadline = Instant::now() + PATIENCE;
    let mut refused = 0;
    loop {
        let url = &urls[*next_node % urls.len()];
        *next_node += 1;
        let request = http
            .post(format!("{url}/v1/tasks/batch"))
            .header("content-type", "application/x-ndjson")
            .body(body.clone());
        let why = match request.send().await {
            Ok(answer) if answer.status().is_success() => return Ok(()),
            Ok(answer) => {
                let status = answer.status();
                let text = answer.text().await.unwrap_or_default();
                let text: String = text.trim().chars().take(300).collect();
                let why = format!("{url} answered {status}: {text}");
                // Too many requests, and all that the server blames on itself, may go well elsewhere or later.
                if status.is_client_error() && status.as_u16() != 429 {
                    return Err(Error::Refused(why));
                }
                why
            }
            Err(error) => format!("{url}: {}", chain(&error)),
        };
        done.repeated.fetch_add(1, Ordering::Relaxed);
        if Instant::now() >= deadline {
            return Err(Error::NotAccepted {
                within: PATIENCE,
                why,
            });
        }
        refused += 1;
        if refused % urls.len() == 0 {
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let _ = write!(text, ": {cause}");
        source = cause.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::flights::Input;

    #[test]
    fn a_batch_is_one_task_per_line_with_the_line_as_its_idempotency_key() {
        let input = Input::read(None, None).unwrap();
        let body = batch("r1", &input.flights[..3]).unwrap();
        let lines: Vec<serde_json::Value> = body
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 3);
        assert_eq!(lines[0]["key"], "N14228");
        assert_eq!(lines[0]["kind"], "flight");
        assert_eq!(lines[2]["idempotency_key"], "r1-4");
        assert_eq!(lines[0]["payload"]["run"], "r1");
        assert_eq!(lines[0]["payload"]["line"], 2);
    }
}
