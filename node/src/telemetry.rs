//! Logs and metrics: how they are set up, and the names that they use.
//!
//! Every metric stands once, in the list below, with its kind and its text; other modules use the constants. Payloads
//! are never logged, and keys only at debug.

use std::sync::OnceLock;
use std::time::Duration;

use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::SubscriberBuilder;

use crate::config::LogFormat;

/// Names of log fields and of metric labels.
pub mod field {
    /// A node's name.
    pub const NODE: &str = "node";
    /// A node's incarnation.
    pub const INCARNATION: &str = "incarnation";
    /// A peer's name, where `node` is the node that logs.
    pub const PEER: &str = "peer";
    /// A slot's number.
    pub const SLOT: &str = "slot";
    /// How many slots.
    pub const SLOTS: &str = "slots";
    /// A slot's epoch.
    pub const EPOCH: &str = "epoch";
    /// A task's id.
    pub const TASK: &str = "task";
    /// A task's attempt.
    pub const ATTEMPT: &str = "attempt";
    /// A task's kind; in fences, why the node was fenced.
    pub const KIND: &str = "kind";
    /// How something ended.
    pub const OUTCOME: &str = "outcome";
    /// Why something happened.
    pub const REASON: &str = "reason";
    /// A route of the HTTP API, as its pattern.
    pub const ROUTE: &str = "route";
    /// An HTTP status.
    pub const STATUS: &str = "status";
    /// A pool of connections.
    pub const POOL: &str = "pool";
    /// What something is in.
    pub const STATE: &str = "state";
    /// What a statement does.
    pub const STATEMENT: &str = "statement";
}

/// What a metric is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only rises.
    Counter,
    /// Rises and falls.
    Gauge,
    /// Times, in seconds, sorted into buckets.
    Histogram,
}

macro_rules! metrics {
    ($( $name:ident = $text:literal, $kind:ident, $help:literal; )+) => {
        /// Names of metrics.
        pub mod metric {
            $( #[doc = $help] pub const $name: &str = $text; )+
        }

        /// All metrics: name, kind, text.
        pub const METRICS: &[(&str, Kind, &str)] = &[$( ($text, Kind::$kind, $help) ),+];
    };
}

metrics! {
    SUBMITS = "ringmesh_submits_total", Counter,
        "Submitted tasks, by outcome: accepted, replayed, refused, unavailable, unknown.";
    CLAIMED = "ringmesh_claimed_total", Counter, "Tasks claimed into memory.";
    FINISHES = "ringmesh_finishes_total", Counter,
        "Ends of runs, by outcome: succeeded, retried, dead, cancelled, returned.";
    RETRIES = "ringmesh_retries_total", Counter, "Failed runs that will be tried again.";
    FENCED_WRITES = "ringmesh_fenced_writes_total", Counter,
        "Writes that Postgres refused because their slot, or their node, has moved on.";
    COMPLETED_ELSEWHERE = "ringmesh_completed_elsewhere_total", Counter,
        "Tasks that SQL completed, by what their runs came to besides, which is not kept: nothing, result, failure, transaction.";
    INBOX_DUPLICATES = "ringmesh_inbox_duplicates_total", Counter,
        "Ids that came again to the inbox, in the whole mesh; told by the owner of slot 0.";
    DEATHS_NOTICED = "ringmesh_deaths_noticed_total", Counter,
        "Peers whose session ended and that did not answer.";
    FENCES = "ringmesh_fences_total", Counter,
        "Nodes fenced by this node, by kind: expired, noticed, replaced, left.";
    GRANTS = "ringmesh_slots_granted_total", Counter, "Slots granted to this node without a handoff.";
    TRANSFERS = "ringmesh_slots_transferred_total", Counter, "Slots that this node handed on.";
    SLOTS_OWNED = "ringmesh_slots_owned", Gauge, "Slots that this node owns.";
    SLOTS_PLACED = "ringmesh_slots_placed", Gauge, "Slots that the ring gives this node.";
    MEMBERS = "ringmesh_members", Gauge, "Members on the ring, as this node sees it.";
    GOSSIP_NODES = "ringmesh_gossip_nodes", Gauge,
        "Starts of nodes that gossip remembers, this one and the dead of the last minutes included.";
    TRUST_REMAINING = "ringmesh_trust_remaining_seconds", Gauge,
        "How long this node may still rely on its lease; 0 or less: it starts nothing.";
    RUNS_RUNNING = "ringmesh_runs_running", Gauge, "Runs that go on now.";
    TASKS_WAITING = "ringmesh_tasks_waiting", Gauge, "Tasks claimed and not started.";
    LANES = "ringmesh_lanes", Gauge, "Keys with tasks in memory.";
    CACHE_LOOKUPS = "ringmesh_cache_lookups_total", Counter, "Runs by whether their key had a cache: hit, miss.";
    HINTS_SENT = "ringmesh_hints_sent_total", Counter, "Hints sent to other nodes.";
    HINTS_DROPPED = "ringmesh_hints_dropped_total", Counter, "Hints that could not be sent; ticks make up for them.";
    GOSSIP_SEND_ERRORS = "ringmesh_gossip_send_errors_total", Counter, "Gossip datagrams that the operating system refused to send.";
    DATAGRAMS_DROPPED = "ringmesh_gossip_dropped_total", Counter, "Gossip datagrams dropped, by reason.";
    HTTP_REQUESTS = "ringmesh_http_requests_total", Counter, "HTTP requests, by route and status.";
    HTTP_SECONDS = "ringmesh_http_request_seconds", Histogram, "From an HTTP request to its answer, by route.";
    RUN_SECONDS = "ringmesh_run_seconds", Histogram, "How long runs take, those of handlers that neither wait nor block aside.";
    PROBE_SECONDS = "ringmesh_claim_seconds", Histogram, "How long a claim takes in Postgres.";
    FINISH_SECONDS = "ringmesh_finish_seconds", Histogram, "How long a batch of finishes takes in Postgres.";
    SUBMIT_SECONDS = "ringmesh_submit_seconds", Histogram, "How long a group of submits takes in Postgres.";
    POOL_CONNECTIONS = "ringmesh_pool_connections", Gauge,
        "Connections to Postgres, by pool (main, hot, control) and state (in_use, idle).";
    SILENCES = "ringmesh_postgres_silences_total", Counter,
        "Questions to Postgres that had no answer in time; each cost its connection.";
    RENEWAL_SECONDS = "ringmesh_renewal_seconds", Histogram, "How long a renewal of the lease takes.";
}

/// Upper bounds of the buckets of all histograms, in seconds.
const BUCKETS: [f64; 16] = [
    0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 60.0, 300.0,
];

/// How often histograms are emptied into their buckets when nobody asks for them; without it they would grow.
const UPKEEP: Duration = Duration::from_secs(5);

/// The filter when `RINGMESH_LOG` is not set.
pub const DEFAULT_FILTER: &str = "warn,ringmesh=info";

/// Why telemetry could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter is not one.
    #[error("RINGMESH_LOG is no filter; give one such as `info` or `ringmesh=debug,warn`")]
    Filter(#[source] tracing_subscriber::filter::ParseError),
    /// The filter is not UTF-8.
    #[error("RINGMESH_LOG is not UTF-8")]
    NotText,
    /// Somebody else in this process has set one up.
    #[error("this process already sends its {0} elsewhere")]
    Taken(&'static str),
    /// No thread for the upkeep of histograms.
    #[error("no thread could be started for metrics")]
    Thread(#[source] std::io::Error),
}

/// Sends log lines to standard error, chosen by `RINGMESH_LOG`.
///
/// # Errors
/// The filter does not parse, or this process has a subscriber. Nothing has changed then.
pub fn log(format: LogFormat) -> Result<(), Error> {
    let filter = match std::env::var("RINGMESH_LOG") {
        Ok(text) if !text.is_empty() => text,
        Ok(_) | Err(std::env::VarError::NotPresent) => DEFAULT_FILTER.to_owned(),
        Err(std::env::VarError::NotUnicode(_)) => return Err(Error::NotText),
    };
    let filter = EnvFilter::try_new(filter).map_err(Error::Filter)?;
    let lines: SubscriberBuilder = tracing_subscriber::fmt();
    let lines = lines.with_writer(std::io::stderr).with_env_filter(filter);
    let set = match format {
        LogFormat::Text => {
            let colours = std::io::IsTerminal::is_terminal(&std::io::stderr());
            lines
                .with_ansi(colours && std::env::var_os("NO_COLOR").is_none())
                .try_init()
        }
        LogFormat::Json => lines.json().flatten_event(true).try_init(),
    };
    set.map_err(|_| Error::Taken("logs"))
}

/// Gathers this process's metrics, and returns what prints them in the Prometheus text format.
///
/// Metrics belong to the process; a second call returns the same.
///
/// # Errors
/// The process sends its metrics elsewhere, or has no thread to spare. Nothing is gathered then.
pub fn install() -> Result<impl Fn() -> String + Clone + Send + Sync + 'static, Error> {
    static INSTALLED: OnceLock<PrometheusHandle> = OnceLock::new();
    static ONE: std::sync::Mutex<()> = std::sync::Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    let handle = match INSTALLED.get() {
        Some(handle) => handle.clone(),
        None => {
            let handle = set_recorder()?;
            INSTALLED.get_or_init(|| handle).clone()
        }
    };
    Ok(move || handle.render())
}

fn set_recorder() -> Result<PrometheusHandle, Error> {
    let recorder = builder().build_recorder();
    let handle = recorder.handle();
    metrics::set_global_recorder(recorder).map_err(|_| Error::Taken("metrics"))?;
    describe();
    let upkeep = handle.clone();
    std::thread::Builder::new()
        .name("metrics".to_owned())
        .spawn(move || {
            loop {
                std::thread::sleep(UPKEEP);
                upkeep.run_upkeep();
            }
        })
        .map_err(Error::Thread)?;
    Ok(handle)
}

fn builder() -> PrometheusBuilder {
    PrometheusBuilder::new()
        .set_buckets_for_metric(Matcher::Suffix("_seconds".to_owned()), &BUCKETS)
        .expect("there are buckets")
}

fn describe() {
    for (name, kind, help) in METRICS {
        match kind {
            Kind::Counter => metrics::describe_counter!(*name, *help),
            Kind::Gauge => metrics::describe_gauge!(*name, *help),
            Kind::Histogram => metrics::describe_histogram!(*name, *help),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn names_are_unique_and_tell_their_kind() {
        let names: BTreeSet<&str> = METRICS.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names.len(), METRICS.len());
        for (name, kind, _) in METRICS {
            assert_eq!(*kind == Kind::Counter, name.ends_with("_total"), "{name}");
            assert!(*kind != Kind::Histogram || name.ends_with("_seconds"), "{name}");
        }
    }

    #[test]
    fn histograms_are_printed_as_buckets_with_their_text() {
        let recorder = builder().build_recorder();
        let handle = recorder.handle();
        metrics::with_local_recorder(&recorder, || {
            describe();
            metrics::histogram!(metric::PROBE_SECONDS).record(0.0015);
            metrics::counter!(metric::FENCES, field::KIND => "expired").increment(2);
        });
        let page = handle.render();
        assert!(
            page.contains("ringmesh_claim_seconds_bucket{le=\"0.002\"} 1"),
            "{page}"
        );
        assert!(
            page.contains("ringmesh_fences_total{kind=\"expired\"} 2"),
            "{page}"
        );
        assert!(
            page.contains("# HELP ringmesh_fences_total Nodes fenced"),
            "{page}"
        );
    }
}
