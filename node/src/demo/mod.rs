//! `ringmesh demo`: a month of flights through a mesh that loses a node on the way, and the proof that nothing was lost.
//!
//! | file | does |
//! |---|---|
//! | `flights` | reads the input; one month comes with the program |
//! | `logbook` | an aircraft's logbook, and the handler that keeps it |
//! | `submit` | submits each flight as a task, in order, at a pace |
//! | `story` | kills a node, starts it again, drains another; and how the pauses are measured |
//! | `watch` | looks at the mesh meanwhile |
//! | `check` | recomputes all logbooks and compares |
//! | `screen`, `report` | what a person sees, and the figures |
//!
//! Each run makes its tables anew, in a schema of its own (`ringmesh_demo`), and marks its tasks by a run id, so that it works
//! on kept data too.

mod check;
pub(crate) mod flights;
pub(crate) mod logbook;
mod report;
mod screen;
mod story;
mod submit;
mod watch;

use std::io::{IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crate::dev::command::{DRAIN, Signals, hold, kept_secret, shown, start_server};
use crate::dev::{self, Mesh, Postgres, mesh};
use crate::store::{self, Store};
use flights::Input;
use report::{Figures, Report};
use screen::Screen;
use story::{PATIENCE, Story};
use submit::Submitted;
use watch::Stage;

pub use flights::Error as InputError;
pub use logbook::handlers;

/// Set to `1` in a node's environment: it runs the demo's tasks.
pub const ENV: &str = "RINGMESH_DEMO";

/// By default all flights are submitted within about this time, so that a person can watch.
const WATCHABLE: Duration = Duration::from_secs(30);
/// But not at more than this many per second.
const FASTEST: u32 = 2000;

/// Arguments of `ringmesh demo`.
#[derive(Debug, Clone, clap::Args)]
pub struct DemoArgs {
    /// Flights to submit, CSV or CSV with gzip [default: January 2013 from New York, built in]
    #[arg(long, value_name = "FILE")]
    pub flights: Option<PathBuf>,

    /// Register of aircraft, CSV or CSV with gzip [default: the one that goes with it, built in]
    #[arg(long, value_name = "FILE")]
    pub planes: Option<PathBuf>,

    /// How many nodes to start
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub nodes: u16,

    /// HTTP port of the first node; the others follow, gossip (UDP) is 1000 above
    #[arg(long, default_value_t = 7101, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Flights per second; 0: as fast as the nodes accept them [default: all within 30 s, at most 2000 per second]
    #[arg(long, value_name = "N")]
    pub rate: Option<u32>,

    /// Do not kill a node midway (one is drained nevertheless)
    #[arg(long)]
    pub no_kill: bool,

    /// Folder for the database and the logs, kept for the next run
    #[arg(long, default_value = ".ringmesh", value_name = "DIR")]
    pub data: PathBuf,

    /// Use this Postgres instead of starting one
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,

    /// Write the figures to this file as JSON; `-`: to stdout, and the report to stderr
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
}

/// Why the demo did not come to its end.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input cannot be used. Nothing was started.
    #[error(transparent)]
    Input(#[from] InputError),
    /// Postgres or the nodes could not be started, or ended.
    #[error(transparent)]
    Dev(#[from] dev::Error),
    /// The database does not do what the demo needs.
    #[error(transparent)]
    Store(#[from] store::Error),
    /// The nodes refused a batch for good.
    #[error("the nodes refuse the flights: {0}")]
    Refused(String),
    /// No node took a batch in time.
    #[error("no node took the flights within {within:?}; the last one: {why}")]
    NotAccepted {
        /// The time that was given.
        within: Duration,
        /// The last answer.
        why: String,
    },
    /// The node to be drained could not be asked.
    #[error("the node to drain could not be asked")]
    Drain(#[source] reqwest::Error),
    /// A task cannot be written as JSON.
    #[error("cannot write JSON")]
    Json(#[source] serde_json::Error),
    /// The operating system refused something.
    #[error("cannot {doing}")]
    Io {
        /// What was tried.
        doing: String,
        /// The reason.
        source: std::io::Error,
    },
    /// A signal asked it to stop. Everything was stopped.
    #[error("interrupted; what was submitted is in Postgres still, but was not checked")]
    Interrupted,
}

/// What was started, to be stopped in order.
#[derive(Debug, Default)]
struct Running {
    mesh: Option<Mesh>,
    server: Option<Postgres>,
}

/// What a run came to.
struct Outcome {
    figures: Figures,
    report: String,
}

/// Runs the demo from start to end and prints its report. True: the promises held.
///
/// # Errors
///
/// When it could not be played to its end. Nothing runs after a return.
pub async fn run(args: DemoArgs) -> Result<bool, Error> {
    let mut signals = Signals::listen()?;
    let input = Input::read(args.flights.as_deref(), args.planes.as_deref())?;
    let data = std::path::absolute(&args.data);
    let data = data.map_err(|source| Error::Io {
        doing: "find the current folder".into(),
        source,
    })?;
    let _lock = hold(&data)?;
    let mut running = Running::default();
    let outcome = tokio::select! {
        outcome = perform(&args, &data, &input, &mut running) => outcome,
        () = signals.next() => Err(Error::Interrupted),
    };
    // The figures are taken; what follows a second signal is only the nodes' leave.
    let stopped = tokio::select! {
        stopped = running.stop() => stopped,
        () = signals.next() => Ok(()),
    };
    let outcome = outcome?;
    let told = tell(&args, &outcome);
    told.map_err(|source| Error::Io {
        doing: "write the report".into(),
        source,
    })?;
    stopped?;
    Ok(outcome.figures.is_clean())
}

impl Running {
    async fn stop(&mut self) -> Result<(), dev::Error> {
        let mut stopped = Ok(());
        if let Some(mut mesh) = self.mesh.take() {
            stopped = mesh.stop(DRAIN).await;
        }
        if let Some(mut server) = self.server.take() {
            server.stop().await?;
        }
        stopped
    }
}

async fn perform(
    args: &DemoArgs,
    data: &Path,
    input: &Input,
    running: &mut Running,
) -> Result<Outcome, Error> {
    let mut options = mesh::Options::new(args.database_url.clone().unwrap_or_default())?;
    options.nodes = args.nodes.into();
    options.base_port = args.port;
    options.log_dir = data.join("logs");
    options.cluster_secret = Some(kept_secret(data)?);
    // A token in this process's environment is for other nodes than these.
    let env = [(ENV, "1"), ("RINGMESH_TOKEN", ""), ("RINGMESH_TOKEN_FILE", "")];
    options.extra_env = env
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .into();
    options.check()?;
    if options.database_url.is_empty() {
        let server = start_server(data).await?;
        options.database_url = server.url();
        running.server = Some(server);
    }
    let store = Store::new(&store::Options {
        url: options.database_url.clone(),
        lease_url: None,
        pooler: crate::store::Pooler::Auto,
        connections: 4,
        hot_connections: 1,
        ttl: Duration::from_secs(10),
        application: "ringmesh demo".to_owned(),
    })?;
    let run = run_id()?;
    // Before the nodes start: they may find flights that an interrupted demo has left behind.
    store.demo_create(&run, &input.register, &input.keys()).await?;
    eprintln!("starting {} nodes", options.nodes);
    let mesh = running.mesh.insert(Mesh::start(options).await?);
    let http = crate::tls::http_client()
        .no_proxy()
        .timeout(Duration::from_secs(10))
        .build();
    let http = http.map_err(|error| Error::Io {
        doing: "make an HTTP client".into(),
        source: std::io::Error::other(error),
    })?;
    let nodes: Vec<(String, String)> = mesh
        .nodes()
        .iter()
        .map(|node| (node.name().to_owned(), node.url().to_owned()))
        .collect();
    let stage = Stage::new(store, http, nodes);

    let (acted, submitted) = act(args, input, &run, &stage, mesh, running.server.as_mut()).await?;
    let Acted { mut story, began } = acted;
    story.measure(&stage).await?;
    let stuck = stage.store.demo_stuck(&run).await?;
    let entries = stage.store.demo_entries().await?;
    let logbooks = stage.store.demo_logbooks().await?;
    let accepted = submitted.accepted.load(Ordering::Relaxed);
    let verdict = check::compare(&input.flights, accepted, &entries, &logbooks);
    let warm = entries.iter().filter(|entry| entry.warm).count();
    let last = entries
        .iter()
        .map(|entry| entry.written_at)
        .max()
        .unwrap_or(began);
    let seconds = (last - began).to_std().unwrap_or_default().as_secs_f64();
    let figures = Figures::of(verdict, &story, warm, seconds, stage.fenced_writes());
    let report = Report {
        figures: &figures,
        story: &story,
        flights: &input.flights,
        register: &input.register,
        logbooks: &logbooks,
        stuck: &stuck,
        nodes: stage.nodes.len(),
        repeated: submitted.repeated.load(Ordering::Relaxed),
        state: state(args, data, running),
        bold: may_be_bold(args),
    };
    let report = report.to_string();
    Ok(Outcome { figures, report })
}

/// What the play leaves to be measured.
struct Acted {
    story: Story,
    /// Just before the first submit, by the database's clock.
    began: chrono::DateTime<chrono::Utc>,
}

/// Submits and lets things happen, until all accepted tasks have ended or nothing moves any more.
async fn act(
    args: &DemoArgs,
    input: &Input,
    run: &str,
    stage: &Stage,
    mesh: &mut Mesh,
    server: Option<&mut Postgres>,
) -> Result<(Acted, Submitted), Error> {
    let total = input.flights.len();
    let rate = args.rate.unwrap_or_else(|| watchable(total));
    let screen = Screen::new(stage.nodes.iter().map(|(name, _)| name.clone()).collect(), total);
    let what = if input.own {
        "January 2013 from New York's airports"
    } else {
        "the given flights"
    };
    screen.event(&format!(
        "{what}: {} flights, one task each, in order",
        screen::grouped(total)
    ));
    let submitted = Submitted::default();
    let urls: Vec<String> = stage.nodes.iter().map(|(_, url)| url.clone()).collect();
    let play = async {
        let began = stage.store.demo_now().await?;
        let submit = async {
            submit::submit(&stage.http, &urls, run, &input.flights, rate, &submitted).await?;
            screen.event("all flights are accepted");
            Ok(())
        };
        let story = story::play(stage, mesh, &screen, total, !args.no_kill);
        let ((), story) = tokio::try_join!(submit, story)?;
        ended(stage, run).await?;
        Ok::<_, Error>(Acted { story, began })
    };
    let acted = tokio::select! {
        acted = play => acted,
        error = server_ended(server) => Err(error.into()),
        () = async { tokio::join!(stage.watch(&screen), stage.ask(), screen.run(stage, &submitted)); } => {
            unreachable!("the watchers do not return")
        }
    };
    screen.clear();
    Ok((acted?, submitted))
}

/// Waits until no task of the run is open, or nothing has changed for long.
async fn ended(stage: &Stage, run: &str) -> Result<(), Error> {
    let mut before = i64::MAX;
    let mut changed = Instant::now();
    loop {
        let open = stage.store.demo_open(run).await?;
        if open == 0 || changed.elapsed() >= PATIENCE {
            return Ok(());
        }
        if open < before {
            before = open;
            changed = Instant::now();
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

/// Returns when the server ends although nobody asked for it; never without a server of its own.
async fn server_ended(mut server: Option<&mut Postgres>) -> dev::Error {
    loop {
        if let Some(server) = &mut server
            && let Some(error) = server.ended()
        {
            return error;
        }
        tokio::time::sleep(Duration::from_millis(250)).await;
    }
}

fn watchable(total: usize) -> u32 {
    let rate = total as u64 / WATCHABLE.as_secs();
    u32::try_from(rate).unwrap_or(FASTEST).clamp(1, FASTEST)
}

fn run_id() -> Result<String, Error> {
    let mut bytes = [0; 6];
    getrandom::fill(&mut bytes).map_err(|error| Error::Io {
        doing: "read random bytes".into(),
        source: std::io::Error::other(error),
    })?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn state(args: &DemoArgs, data: &Path, running: &Running) -> Vec<(&'static str, String)> {
    let mut lines = Vec::new();
    match &running.server {
        Some(server) => {
            lines.push(("database", shown(server.dir())));
            lines.push(("look again", format!("ringmesh dev --data {}", shown(data))));
            lines.push((
                "",
                format!("psql {} -c 'table ringmesh_demo.logbook'", server.url()),
            ));
        }
        None => lines.push((
            "database",
            format!(
                "the one given; psql {} -c 'table ringmesh_demo.logbook'",
                shown_url(args)
            ),
        )),
    }
    lines.push(("logs", shown(&data.join("logs"))));
    lines
}

/// The database's URL without its password.
fn shown_url(args: &DemoArgs) -> String {
    let text = args.database_url.clone().unwrap_or_default();
    match reqwest::Url::parse(&text) {
        Ok(mut url) if url.password().is_some() => {
            let _ = url.set_password(Some("***"));
            url.into()
        }
        _ => text,
    }
}

fn to_stdout(args: &DemoArgs) -> bool {
    args.json.as_deref() == Some(Path::new("-"))
}

fn may_be_bold(args: &DemoArgs) -> bool {
    let terminal = if to_stdout(args) {
        std::io::stderr().is_terminal()
    } else {
        std::io::stdout().is_terminal()
    };
    terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

fn tell(args: &DemoArgs, outcome: &Outcome) -> std::io::Result<()> {
    let mut json = serde_json::to_string(&outcome.figures)?;
    json.push('\n');
    let mut stdout = std::io::stdout().lock();
    match &args.json {
        Some(_) if to_stdout(args) => {
            eprint!("{}", outcome.report);
            stdout.write_all(json.as_bytes())?;
        }
        other => {
            if let Some(file) = other {
                std::fs::write(file, json)?;
            }
            stdout.write_all(outcome.report.as_bytes())?;
        }
    }
    stdout.flush()
}
