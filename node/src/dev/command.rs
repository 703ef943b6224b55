//! `ringmesh dev`: a Postgres and a mesh on this machine until Ctrl-C, with all state kept for the next run.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::Duration;

use comfy_table::{Table, presets};
use serde::Serialize;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::home::lock;
use super::keep::{NODE_PAUSE, keep};
use super::process::effective_uid;
use super::{Doing, Error, Mesh, Postgres, Result, mesh, postgres};

/// Where the client commands look for a node by default.
const DEFAULT_URL: &str = "http://127.0.0.1:7101";
/// How long the nodes may drain.
pub(crate) const DRAIN: Duration = Duration::from_secs(20);

/// Arguments of `ringmesh dev`.
#[derive(Debug, Clone, clap::Args)]
pub struct DevArgs {
    /// How many nodes to start
    #[arg(long, default_value_t = 5, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=100))]
    pub nodes: u16,

    /// HTTP port of the first node; the others follow, gossip (UDP) is 1000 above
    #[arg(long, default_value_t = 7101, value_name = "PORT", value_parser = clap::value_parser!(u16).range(1..))]
    pub port: u16,

    /// Folder for the database and the logs, kept for the next run
    #[arg(long, default_value = ".ringmesh", value_name = "DIR")]
    pub data: PathBuf,

    /// Use this Postgres instead of starting one
    #[arg(long, value_name = "URL")]
    pub database_url: Option<String>,

    /// Print one line of JSON instead of the table, once all nodes are ready
    #[arg(long)]
    pub json: bool,
}

/// What runs; the first line on stdout with `--json`.
#[derive(Debug, Serialize)]
struct Running<'a> {
    database_url: &'a str,
    nodes: Vec<RunningNode<'a>>,
}

#[derive(Debug, Serialize)]
struct RunningNode<'a> {
    name: &'a str,
    url: &'a str,
    pid: Option<u32>,
}

/// Starts a Postgres and a mesh, says where they are, keeps them running, and stops them in order (nodes first) at Ctrl-C,
/// SIGTERM or SIGHUP, or once all nodes have been drained. A second signal ends the nodes without their drain.
///
/// A Postgres or a node that is killed or fails is started again after a pause; a node that was drained stays away.
///
/// # Errors
///
/// When something cannot be started (nothing runs then), when Postgres ends again and again, or when a node had to be killed
/// at the stop. Nothing runs after a return.
pub async fn run(args: DevArgs) -> Result<()> {
    let mut signals = Signals::listen()?;
    let data = std::path::absolute(&args.data).doing(|| "find the current folder".into())?;
    let _lock = hold(&data)?;
    let base = mesh::Options::new(args.database_url.clone().unwrap_or_default())?;
    let wanted = mesh::Options {
        nodes: args.nodes.into(),
        base_port: args.port,
        log_dir: data.join("logs"),
        cluster_secret: Some(kept_secret(&data)?),
        ..base
    };
    wanted.check()?;

    // A signal during the start drops what has been started so far, which ends it.
    let (mut server, mut mesh) = tokio::select! {
        started = start(wanted, &data) => started?,
        () = signals.next() => return Ok(()),
    };
    let said = if args.json {
        say_json(&mesh)
    } else {
        say(server.as_ref(), &mesh)
    };
    said.doing(|| "write to stdout".into())?;
    let ended = tokio::select! {
        ended = keep(server.as_mut(), &mut mesh) => ended,
        () = signals.next() => Ok(()),
    };
    if ended.is_err() {
        eprintln!("Postgres does not stay up");
    }
    match running(&mut mesh) {
        0 => {}
        1 => eprintln!("stopping 1 node (Ctrl-C: at once)"),
        nodes => eprintln!("stopping {nodes} nodes (Ctrl-C: at once)"),
    }
    let stopped = tokio::select! {
        stopped = mesh.stop(DRAIN) => stopped,
        () = signals.next() => Ok(()),
    };
    drop(mesh);
    if let Some(mut server) = server {
        server.stop().await?;
    }
    ended.and(stopped)
}

/// Makes the data folder and takes it for this process.
pub(crate) fn hold(data: &Path) -> Result<std::fs::File> {
    if !data.exists() {
        std::fs::create_dir_all(data).doing(|| format!("create {}", data.display()))?;
        if effective_uid() == 0 {
            // Postgres runs as another user, who must be able to walk through, whatever the umask was.
            let mode = std::os::unix::fs::PermissionsExt::from_mode(0o711);
            std::fs::set_permissions(data, mode)
                .doing(|| format!("change the mode of {}", data.display()))?;
        }
    }
    lock(data).map_err(|error| match error {
        Error::InUse { dir, by } => Error::InUse {
            dir,
            by: format!(
                "another `ringmesh dev` or `ringmesh demo` ({by}); stop it, or choose another folder (--data)"
            ),
        },
        other => other,
    })
}

/// The secret of the mesh in a data folder: that of `RINGMESH_CLUSTER_SECRET`, else one that is kept in the folder, since the
/// database knows it from the first start on and refuses nodes with another.
pub(crate) fn kept_secret(data: &Path) -> Result<String> {
    if let Some(given) = std::env::var("RINGMESH_CLUSTER_SECRET")
        .ok()
        .filter(|given| !given.is_empty())
    {
        return Ok(given);
    }
    let path = data.join("cluster-secret");
    match std::fs::read_to_string(&path) {
        Ok(kept) if !kept.trim().is_empty() => return Ok(kept.trim().to_owned()),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => return Err(error).doing(|| format!("read {}", path.display())),
    }
    let secret = super::random_hex::<32>()?;
    let mut options = std::fs::File::options();
    options.write(true).create(true).truncate(true);
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let written = options
        .open(&path)
        .and_then(|mut file| file.write_all(secret.as_bytes()));
    written.doing(|| format!("write {}", path.display()))?;
    Ok(secret)
}

/// An empty database URL asks for a server of its own.
async fn start(mut wanted: mesh::Options, data: &Path) -> Result<(Option<Postgres>, Mesh)> {
    let mut server = None;
    if wanted.database_url.is_empty() {
        let started = start_server(data).await?;
        wanted.database_url = started.url();
        server = Some(started);
    }
    eprintln!("starting {} nodes", wanted.nodes);
    let mesh = Mesh::start(wanted).await?;
    Ok((server, mesh))
}

/// Starts the Postgres of a data folder.
pub(crate) async fn start_server(data: &Path) -> Result<Postgres> {
    let dir = data.join("postgres");
    eprintln!("starting Postgres in {}", shown(&dir));
    let started = Postgres::start(postgres::Options {
        dir: dir.clone(),
        ..Default::default()
    })
    .await?;
    if started.dir() != dir {
        eprintln!(
            "(its user cannot reach that folder; it is in {})",
            started.dir().display()
        );
    }
    Ok(started)
}

/// How many nodes run now.
fn running(mesh: &mut Mesh) -> usize {
    let runs = |node: &mut mesh::Node| node.pid().is_some() && node.ended().is_none();
    mesh.nodes_mut().iter_mut().map(runs).filter(|runs| *runs).count()
}

fn say_json(mesh: &Mesh) -> std::io::Result<()> {
    let nodes = mesh.nodes().iter();
    let nodes = nodes
        .map(|node| RunningNode {
            name: node.name(),
            url: node.url(),
            pid: node.pid(),
        })
        .collect();
    let running = Running {
        database_url: mesh.database_url(),
        nodes,
    };
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, &running)?;
    writeln!(stdout)?;
    stdout.flush()
}

fn say(server: Option<&Postgres>, mesh: &Mesh) -> std::io::Result<()> {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["NODE", "URL", "PID", "LOG"]);
    for node in mesh.nodes() {
        let pid = node.pid().map(|pid| pid.to_string()).unwrap_or_default();
        table.add_row([node.name(), node.url(), &pid, &shown(node.log())]);
    }
    let mut stdout = std::io::stdout().lock();
    writeln!(stdout, "\n{table}\n")?;
    if let Some(server) = server {
        writeln!(stdout, " database  {}", mesh.database_url())?;
        writeln!(
            stdout,
            "           {}, log {}",
            server.version(),
            shown(&server.log())
        )?;
    }
    let (Some(first), Some(last)) = (mesh.nodes().first(), mesh.nodes().last()) else {
        return Ok(());
    };
    // The client commands talk to the default port unless told otherwise.
    let url = match first.url() {
        DEFAULT_URL => String::new(),
        url => format!(" --url {url}"),
    };
    writeln!(
        stdout,
        " submit    ringmesh submit{url} echo tenant-1 '{{\"hello\":\"mesh\"}}'"
    )?;
    writeln!(stdout, " watch     ringmesh mesh --watch{url}")?;
    writeln!(
        stdout,
        " logs      tail -f {}",
        shown(&first.log().with_file_name("*.log"))
    )?;
    if let (Some(pid), true) = (last.pid(), mesh.nodes().len() > 1) {
        writeln!(stdout, " break     kill -9 {pid}")?;
        writeln!(stdout, " drain     ringmesh drain{url} {}", last.name())?;
    }
    let pause = NODE_PAUSE.as_secs();
    writeln!(
        stdout,
        "           (a killed node comes back after {pause} s, Postgres sooner; a drained node stays away)"
    )?;
    writeln!(stdout, " stop      Ctrl-C")?;
    stdout.flush()
}

/// A path as the user would write it: relative when it lies below the current folder.
pub(crate) fn shown(path: &Path) -> String {
    let here = std::env::current_dir().unwrap_or_default();
    path.strip_prefix(here).unwrap_or(path).display().to_string()
}

/// The signals that end the command.
pub(crate) struct Signals {
    interrupt: Signal,
    terminate: Signal,
    hang_up: Signal,
}

impl Signals {
    pub(crate) fn listen() -> Result<Self> {
        let listen = |kind| signal(kind).doing(|| "listen for signals".into());
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hang_up: listen(SignalKind::hangup())?,
        })
    }

    pub(crate) async fn next(&mut self) {
        tokio::select! {
            _ = self.interrupt.recv() => {}
            _ = self.terminate.recv() => {}
            _ = self.hang_up.recv() => {}
        }
    }
}
