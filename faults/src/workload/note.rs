//! What a node notes of itself: a line of JSON per event, at once, in `$FAULTS_EVENTS/NAME.events`.
//!
//! Each line is one `write` to a file that is open for appending, so that lines of one node never mix and a killed process
//! leaves whole ones.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use ringmesh::context::Context;
use tracing::field::{Field, Visit};
use tracing_subscriber::layer;

use crate::history::{At, Event, What};

/// The variable that names the folder.
pub const EVENTS: &str = "FAULTS_EVENTS";

/// Nanoseconds of `CLOCK_BOOTTIME`.
pub fn now() -> At {
    At::try_from(ringmesh::clock::now().as_nanos()).unwrap_or(At::MAX)
}

/// Where a node with this name notes its events.
pub fn file_of(folder: &Path, node: &str) -> PathBuf {
    folder.join(format!("{node}.events"))
}

static NOTES: OnceLock<Notes> = OnceLock::new();

struct Notes {
    file: File,
    node: Arc<str>,
}

/// Opens this process' file, if [`EVENTS`] is set. From then on events are noted.
///
/// # Errors
/// The file cannot be opened.
pub fn open(node: &str) -> std::io::Result<()> {
    let Some(folder) = std::env::var_os(EVENTS) else {
        return Ok(());
    };
    let path = file_of(Path::new(&folder), node);
    let file = File::options().create(true).append(true).open(path)?;
    let node = node.into();
    let _ = NOTES.set(Notes { file, node });
    Ok(())
}

/// The name under which this process notes.
pub fn node() -> &'static str {
    NOTES.get().map_or("?", |notes| &notes.node)
}

/// Notes an event. A note that cannot be written ends the process: a history with holes would prove nothing.
pub fn note(what: What) {
    let Some(notes) = NOTES.get() else {
        return;
    };
    let event = Event {
        at: now(),
        node: notes.node.clone(),
        pid: std::process::id(),
        what,
    };
    let line = serde_json::to_string(&event).map(|line| line + "\n");
    let written = line.map(|line| (&notes.file).write_all(line.as_bytes()));
    if !matches!(written, Ok(Ok(()))) {
        std::process::abort();
    }
}

/// Notes the start of a run, and when dropped its end: also when the handler panics or is aborted.
#[derive(Debug)]
pub(super) struct Run(Context);

impl Run {
    pub(super) fn started(context: &Context) -> Run {
        let fence = context.fence();
        note(What::RunStarted {
            task: context.task(),
            key: context.key().as_str().into(),
            epoch: fence.epoch.get(),
            attempt: fence.attempt,
        });
        Run(context.clone())
    }
}

impl Drop for Run {
    fn drop(&mut self) {
        let fence = self.0.fence();
        note(What::RunEnded {
            task: self.0.task(),
            epoch: fence.epoch.get(),
            attempt: fence.attempt,
        });
    }
}

/// Turns what the product logs of itself into notes: each renewal, each other ring, each write that its fence refused.
#[derive(Debug)]
pub struct FromLog;

/// How the product logs a renewal.
const RENEWED: &str = "renewed the lease";
/// How it logs that placement is computed from something else.
const RING: &str = "the ring changed";
/// How it logs a claim that found a slot not its own, or shut.
pub const CLAIMED_NOTHING: &str = "claimed nothing";
/// How it logs writes that were refused.
const REFUSED: [&str; 3] = [
    "the commit of a run was refused",
    "writes were refused",
    CLAIMED_NOTHING,
];

impl<S: tracing::Subscriber> layer::Layer<S> for FromLog {
    fn on_event(&self, event: &tracing::Event<'_>, _: layer::Context<'_, S>) {
        let mut fields = Fields {
            message: String::new(),
            sent_ns: 0,
            incarnation: 0,
            rows: 1,
            digest: String::new(),
        };
        event.record(&mut fields);
        if fields.message == RENEWED {
            note(What::Renewed {
                sent: fields.sent_ns,
                incarnation: fields.incarnation,
            });
        } else if fields.message == RING {
            note(What::Ring {
                digest: fields.digest.into(),
            });
        } else if REFUSED.iter().any(|start| fields.message.starts_with(start)) {
            note(What::Refused {
                rows: fields.rows,
                what: fields.message.into(),
            });
        }
    }
}

struct Fields {
    message: String,
    sent_ns: i64,
    incarnation: i64,
    /// One, unless the line says otherwise.
    rows: u64,
    digest: String,
}

impl Visit for Fields {
    fn record_i64(&mut self, field: &Field, value: i64) {
        match field.name() {
            "sent_ns" => self.sent_ns = value,
            "incarnation" => self.incarnation = value,
            _ => {}
        }
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        if field.name() == "rows" {
            self.rows = value;
        }
        self.record_i64(field, i64::try_from(value).unwrap_or(i64::MAX));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        if field.name() == "digest" {
            value.clone_into(&mut self.digest);
        }
    }

    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            self.message = format!("{value:?}");
        }
    }
}
