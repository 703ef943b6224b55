//! Submits the lines of a file.
//!
//! One thread reads the lines and deals them to a few lanes by their keys, so that the order within a key is the file's.
//! Each lane sends one batch at a time. A batch is taken or refused as a whole; one that is refused is halved until the bad
//! lines stand alone, and the others go on.

use std::fs::File;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use reqwest::StatusCode;
use ringmesh::task::TaskId;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;

use super::super::client::{Body, Client, ClientArgs, Error, Repeat};
use super::super::failure::{Failure, code};
use super::super::output;

/// How many batches are under way at once.
const LANES: usize = 4;
/// The most lines in a batch.
const BATCH: usize = 1000;
/// About the most bytes in a batch.
const BATCH_BYTES: usize = 4 << 20;
/// The most bytes in a line: more than any task may have.
const LONGEST_LINE: u64 = 2 << 20;

/// What some editors write in front of a file's UTF-8.
const BYTE_ORDER_MARK: &[u8] = "\u{feff}".as_bytes();

/// A line that looks like a task.
#[derive(Debug, Clone)]
struct Line {
    /// Counted from 1.
    number: u64,
    text: String,
    keyed: bool,
}

/// Why a line is refused.
#[derive(Debug)]
struct Bad {
    /// In bytes, counted from 1.
    column: Option<usize>,
    /// As the HTTP API has them.
    code: String,
    message: String,
}

impl Bad {
    /// Refused here, before it was sent.
    fn at(column: Option<usize>, message: &str) -> Self {
        Bad {
            column,
            code: "bad_json".to_owned(),
            message: message.to_owned(),
        }
    }

    fn coded(mut self, code: &str) -> Self {
        code.clone_into(&mut self.code);
        self
    }
}

/// What a lane needs to know of a line; the rest is the node's to judge.
#[derive(Debug, Deserialize)]
struct Glance {
    key: String,
    #[serde(default)]
    idempotency_key: Option<String>,
}

/// A batch's answer.
#[derive(Debug, Deserialize)]
struct Answer {
    ids: Vec<TaskId>,
    replayed: u64,
}

/// One task's answer, with `--json`.
#[derive(Debug, Serialize)]
struct Row {
    line: u64,
    id: TaskId,
}

/// What became of the lines so far.
#[derive(Debug, Default)]
struct Tally {
    taken: u64,
    replayed: u64,
    refused: u64,
    /// Lines whose outcome is not known, or that were not sent.
    stopped: u64,
    /// Why everything stopped.
    failure: Option<Failure>,
}

#[derive(Clone)]
struct Work {
    client: Client,
    json: bool,
    tally: Arc<Mutex<Tally>>,
    progress: ProgressBar,
}

/// Submits all lines.
pub(super) async fn run(path: &Path, resume: Option<&str>, args: &ClientArgs) -> Result<(), Failure> {
    let started = Instant::now();
    let (input, bytes) = open(path)?;
    let work = Work {
        client: args.client()?,
        json: args.json,
        tally: Arc::default(),
        progress: progress(bytes),
    };
    let mut lanes = Vec::new();
    let mut senders = Vec::new();
    for _ in 0..LANES {
        let (sender, batches) = mpsc::channel(1);
        senders.push(sender);
        lanes.push(tokio::spawn(lane(work.clone(), batches)));
    }
    let resume = resume.map(str::to_owned);
    let reading = work.clone();
    let reader = tokio::task::spawn_blocking(move || read(input, resume.as_deref(), &reading, &senders));
    let read = reader.await.map_err(Failure::failed)?;
    for lane in lanes {
        lane.await.map_err(Failure::failed)?;
    }
    work.progress.finish_and_clear();
    read.map_err(Failure::failed)?;
    let tally = std::mem::take(&mut *work.tally());
    summary(tally, started, args.json)
}

fn open(path: &Path) -> Result<(Box<dyn BufRead + Send>, Option<u64>), Failure> {
    if path == Path::new("-") {
        return Ok((Box::new(BufReader::new(std::io::stdin())), None));
    }
    let error = |error| {
        Failure::usage(anyhow::Error::from(error).context(format!("{} cannot be read", path.display())))
    };
    let file = File::open(path).map_err(error)?;
    let bytes = file.metadata().map_err(error)?;
    let bytes = bytes.is_file().then_some(bytes.len());
    Ok((Box::new(BufReader::with_capacity(1 << 16, file)), bytes))
}

/// Drawn only where standard error is a terminal.
fn progress(bytes: Option<u64>) -> ProgressBar {
    let target = ProgressDrawTarget::stderr();
    match bytes {
        Some(bytes) => {
            let style = "{wide_bar} {bytes}/{total_bytes} {msg} {elapsed}, {eta} left";
            ProgressBar::with_draw_target(Some(bytes), target).with_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()),
            )
        }
        None => {
            let style = "{spinner} {bytes} {msg} {elapsed}";
            ProgressBar::with_draw_target(None, target).with_style(
                ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_spinner()),
            )
        }
    }
}

/// Reads lines and deals them, until the end or until a lane has stopped everything.
fn read(
    mut input: Box<dyn BufRead + Send>,
    resume: Option<&str>,
    work: &Work,
    lanes: &[mpsc::Sender<Vec<Line>>],
) -> std::io::Result<()> {
    let mut batches: Vec<(Vec<Line>, usize)> = vec![Default::default(); lanes.len()];
    let mut bytes = Vec::new();
    for number in 1.. {
        bytes.clear();
        if input.by_ref().take(LONGEST_LINE).read_until(b'\n', &mut bytes)? == 0 {
            break;
        }
        if bytes.len() as u64 == LONGEST_LINE && bytes.last() != Some(&b'\n') {
            input.skip_until(b'\n')?;
            work.refused(
                number,
                &Bad::at(None, "longer than a task may be").coded("too_large"),
            );
            continue;
        }
        work.progress.inc(bytes.len() as u64);
        if number == 1 && bytes.starts_with(BYTE_ORDER_MARK) {
            bytes.drain(..BYTE_ORDER_MARK.len());
        }
        let (line, lane) = match parse(&bytes, number, resume) {
            Ok(Some((line, hash))) => (
                line,
                usize::try_from(hash % lanes.len() as u64).unwrap_or_default(),
            ),
            Ok(None) => continue,
            Err(why) => {
                work.refused(number, &why);
                continue;
            }
        };
        let (batch, size) = &mut batches[lane];
        *size += line.text.len();
        batch.push(line);
        if batch.len() >= BATCH || *size >= BATCH_BYTES {
            *size = 0;
            if lanes[lane].blocking_send(std::mem::take(batch)).is_err() {
                break;
            }
        }
        if work.has_stopped() {
            break;
        }
    }
    for ((batch, _), lane) in batches.into_iter().zip(lanes) {
        if !batch.is_empty() && lane.blocking_send(batch).is_err() {
            break;
        }
    }
    Ok(())
}

/// A line as a task, and the hash of its key; `None`: an empty line.
fn parse(bytes: &[u8], number: u64, resume: Option<&str>) -> Result<Option<(Line, u64)>, Bad> {
    let whole =
        std::str::from_utf8(bytes).map_err(|error| Bad::at(Some(error.valid_up_to() + 1), "not UTF-8"))?;
    let text = whole.trim();
    if text.is_empty() {
        return Ok(None);
    }
    let glance: Glance = serde_json::from_str(text).map_err(|error| {
        let indent = whole.len() - whole.trim_start().len();
        // Its own line number is always 1, which helps nobody.
        let message = error.to_string();
        let place = format!(" at line {} column {}", error.line(), error.column());
        let message = message.strip_suffix(&place).unwrap_or(&message);
        Bad::at((error.line() > 0).then_some(indent + error.column()), message)
    })?;
    let mut hasher = DefaultHasher::new();
    glance.key.hash(&mut hasher);
    let keyed = glance.idempotency_key.is_some();
    let text = match (keyed, resume, text.strip_prefix('{')) {
        // Written in front of the text, which goes on as it is: numbers keep their digits.
        (false, Some(name), Some(rest)) if !text.contains("\"idempotency_key\"") => {
            let key = serde_json::Value::from(format!("{name}:{number}"));
            format!("{{\"idempotency_key\":{key},{rest}")
        }
        _ => text.to_owned(),
    };
    let keyed = keyed || text.starts_with("{\"idempotency_key\":");
    Ok(Some((Line { number, text, keyed }, hasher.finish())))
}

async fn lane(work: Work, mut batches: mpsc::Receiver<Vec<Line>>) {
    while let Some(batch) = batches.recv().await {
        work.send(batch).await;
    }
}

impl Work {
    fn tally(&self) -> std::sync::MutexGuard<'_, Tally> {
        self.tally
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn has_stopped(&self) -> bool {
        self.tally().failure.is_some()
    }

    fn refused(&self, line: u64, bad: &Bad) {
        self.tally().refused += 1;
        let column = bad.column.map(|column| format!(", column {column}"));
        let text = match self.json {
            true => serde_json::json!({
                "line": line, "column": bad.column, "code": bad.code, "message": bad.message,
            })
            .to_string(),
            false => format!(
                "line {line}{}: {}",
                column.unwrap_or_default(),
                output::plain(&bad.message)
            ),
        };
        self.progress.suspend(|| eprintln!("{text}"));
    }

    /// Sends a batch, and the halves of what is refused, in order.
    async fn send(&self, batch: Vec<Line>) {
        let mut rest = vec![batch];
        while let Some(batch) = rest.pop() {
            if self.has_stopped() {
                self.tally().stopped += batch.len() as u64;
                continue;
            }
            match self.post(&batch).await {
                Ok(answer) => self.taken(&batch, &answer),
                Err(Error::Refused {
                    status,
                    message,
                    code,
                    line,
                }) if is_about_lines(status) => {
                    let bad = Bad {
                        column: None,
                        code,
                        message,
                    };
                    rest.extend(self.without_the_bad(batch, line, &bad).into_iter().rev());
                }
                Err(error) => {
                    let mut tally = self.tally();
                    tally.stopped += batch.len() as u64;
                    tally.failure.get_or_insert(error.into());
                }
            }
        }
    }

    /// What to send next, in order, after a batch was refused: all but the line that the node names, or else two halves.
    fn without_the_bad(&self, mut batch: Vec<Line>, line: Option<usize>, why: &Bad) -> Vec<Vec<Line>> {
        let named = line
            .and_then(|line| line.checked_sub(1))
            .filter(|at| *at < batch.len());
        let bad = if batch.len() == 1 { Some(0) } else { named };
        match bad {
            Some(at) => {
                let bad = batch.remove(at);
                self.refused(bad.number, why);
                if batch.is_empty() { Vec::new() } else { vec![batch] }
            }
            None => {
                let second = batch.split_off(batch.len() / 2);
                vec![batch, second]
            }
        }
    }

    async fn post(&self, batch: &[Line]) -> Result<Answer, Error> {
        let texts: Vec<&str> = batch.iter().map(|line| line.text.as_str()).collect();
        let repeat = if batch.iter().all(|line| line.keyed) {
            Repeat::Safe
        } else {
            Repeat::Never
        };
        let answer: Answer = self
            .client
            .post(repeat, "/v1/tasks/batch", Body::Lines(texts.join("\n")))
            .await?;
        match answer.ids.len() == batch.len() {
            true => Ok(answer),
            false => Err(self.client.strange("it answered for another number of tasks")),
        }
    }

    fn taken(&self, batch: &[Line], answer: &Answer) {
        let message = {
            let mut tally = self.tally();
            tally.taken += batch.len() as u64;
            tally.replayed += answer.replayed;
            output::count(tally.taken, "task")
        };
        self.progress.set_message(message);
        if self.json {
            for (line, id) in batch.iter().zip(&answer.ids) {
                if let Err(failure) = output::json(&Row {
                    line: line.number,
                    id: *id,
                }) {
                    self.tally().failure.get_or_insert(failure);
                    return;
                }
            }
        }
    }
}

/// Whether the node objects to what the lines say, and not to the client or its address.
fn is_about_lines(status: StatusCode) -> bool {
    let about = [
        StatusCode::BAD_REQUEST,
        StatusCode::PAYLOAD_TOO_LARGE,
        StatusCode::UNPROCESSABLE_ENTITY,
    ];
    about.contains(&status)
}

fn summary(tally: Tally, started: Instant, json: bool) -> Result<(), Failure> {
    let Tally {
        taken,
        replayed,
        refused,
        stopped,
        failure,
    } = tally;
    let mut text = format!("{} submitted", output::count(taken, "task"));
    if replayed > 0 {
        text.push_str(&format!(" ({replayed} of them had been before)"));
    }
    if refused > 0 {
        text.push_str(&format!(", {} refused", output::count(refused, "line")));
    }
    text.push_str(&format!(", in {:.1} s", started.elapsed().as_secs_f64()));
    match json {
        true => {
            eprintln!(
                "{}",
                serde_json::json!({ "submitted": taken, "replayed": replayed, "refused": refused, "stopped": stopped })
            );
        }
        false => output::text(text)?,
    }
    match failure {
        Some(failure) => {
            if stopped > 0 && !json {
                eprintln!(
                    "stopped: {stopped} lines that were read are not known to be taken, nor is any after them. Lines with \
                     an idempotency key, or all with --resume NAME, can be submitted again without doubt."
                );
            }
            Err(failure)
        }
        None if refused > 0 => Err(Failure::new(
            code::REFUSED,
            anyhow::anyhow!("{} refused", output::count(refused, "line")),
        )),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resumed_line_gets_its_key_and_is_otherwise_as_it_was() {
        let (line, _) = parse(b" {\"key\":\"a\",\"payload\":1e400}\n", 7, Some("im\"port"))
            .unwrap()
            .unwrap();
        assert_eq!(
            line.text,
            "{\"idempotency_key\":\"im\\\"port:7\",\"key\":\"a\",\"payload\":1e400}"
        );
        assert!(line.keyed);
        let own = "{\"key\":\"a\",\"idempotency_key\":\"x\"}";
        let (line, _) = parse(own.as_bytes(), 7, Some("n")).unwrap().unwrap();
        assert_eq!((line.text.as_str(), line.keyed), (own, true));
        let (line, _) = parse(b"{\"key\":\"a\"}", 7, None).unwrap().unwrap();
        assert!(!line.keyed);
    }

    #[test]
    fn a_bad_line_is_told_with_its_column_alone() {
        let bad = parse(b"  {\"key\":\"a\", x}\n", 5, None).unwrap_err();
        assert_eq!(
            (bad.column, bad.message.as_str()),
            (Some(15), "key must be a string")
        );
        let bad = parse(b"{\"key\":\"\xff\"}", 5, None).unwrap_err();
        assert_eq!((bad.column, bad.message.as_str()), (Some(9), "not UTF-8"));
    }

    #[test]
    fn lines_of_one_key_go_to_one_lane() {
        let hash = |text: &str| parse(text.as_bytes(), 1, None).unwrap().unwrap().1;
        assert_eq!(
            hash("{\"key\":\"a\",\"payload\":1}"),
            hash("{\"payload\":2,\"key\":\"\\u0061\"}")
        );
    }

    #[test]
    fn what_is_no_task_is_refused_here() {
        assert!(parse(b"\n", 1, None).unwrap().is_none());
        for bad in [
            &b"\xff"[..],
            b"[]",
            b"{}",
            b"{\"key\":1}",
            b"{\"key\":\"a\"} x",
            b"nul",
        ] {
            assert!(parse(bad, 1, None).is_err(), "{bad:?}");
        }
    }
}
