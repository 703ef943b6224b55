//! A PgBouncer between the nodes and Postgres, as Debian installs it, with its own defaults.

use std::net::TcpListener;
use std::path::PathBuf;
use std::process::Stdio;

use ringmesh::dev::Postgres;
use tokio::process::{Child, Command};

use super::SLACK;

/// How a pooler gives its servers to clients.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Behind {
    /// `transaction` or `session`.
    pub(crate) mode: &'static str,
    /// How many servers it has for them.
    pub(crate) servers: usize,
    /// Whether leases go past it.
    pub(crate) direct_leases: bool,
}

/// A running PgBouncer. It ends with the value.
pub(crate) struct Pooler {
    port: u16,
    file: PathBuf,
    child: Child,
}

impl Pooler {
    /// Whether there is one to be had; says loudly if not.
    pub(crate) fn is_installed(test: &str) -> bool {
        let there = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
            .chain(["/usr/sbin".into()])
            .any(|dir| dir.join("pgbouncer").is_file());
        if !there {
            println!("##### PgBouncer is not installed: {test} WAS LEFT OUT #####");
        }
        there
    }

    pub(super) async fn start(postgres: &Postgres, dir: &std::path::Path, behind: Behind) -> Pooler {
        let port = TcpListener::bind("127.0.0.1:0")
            .unwrap()
            .local_addr()
            .unwrap()
            .port();
        let url = postgres.url();
        let account = url
            .strip_prefix("postgres://")
            .unwrap()
            .split('@')
            .next()
            .unwrap();
        let (user, password) = account.split_once(':').unwrap();
        let Behind { mode, servers, .. } = behind;
        let file = dir.join("pgbouncer.ini");
        let text = format!(
            "[databases]\n* = host=127.0.0.1 port={} user={user} password={password}\n\
             [pgbouncer]\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\nauth_type = any\n\
             pool_mode = {mode}\ndefault_pool_size = {servers}\nmax_client_conn = 1000\nserver_login_retry = 1\n",
            postgres.port()
        );
        std::fs::write(&file, text).unwrap();
        let child = spawn(&file);
        let mut pooler = Pooler { port, file, child };
        pooler.answers().await;
        pooler
    }

    /// The URL of the same database through it.
    pub(super) fn url(&self, direct: &str, port: u16) -> String {
        direct.replace(&format!(":{port}/"), &format!(":{}/", self.port))
    }

    /// Ends it at once, with all its connections, and starts it anew.
    pub(crate) async fn restart(&mut self) {
        self.child.kill().await.unwrap();
        self.child = spawn(&self.file);
        self.answers().await;
    }

    async fn answers(&mut self) {
        let deadline = tokio::time::Instant::now() + SLACK;
        while tokio::net::TcpStream::connect(("127.0.0.1", self.port))
            .await
            .is_err()
        {
            let log = std::fs::read_to_string(self.file.with_extension("log")).unwrap_or_default();
            let ended = self.child.try_wait().unwrap();
            assert!(
                ended.is_none() && tokio::time::Instant::now() < deadline,
                "PgBouncer does not answer:\n{log}"
            );
            tokio::time::sleep(super::LOOK).await;
        }
    }
}

fn spawn(file: &std::path::Path) -> Child {
    let log = std::fs::File::options()
        .create(true)
        .append(true)
        .open(file.with_extension("log"))
        .unwrap();
    let path = format!("{}:/usr/sbin", std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("pgbouncer");
    // As root it must be told who to be.
    if std::fs::metadata("/proc/self").is_ok_and(|this| std::os::unix::fs::MetadataExt::uid(&this) == 0) {
        command.args(["-u", "postgres"]);
    }
    command
        .arg(file)
        .env("PATH", path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(log)
        .kill_on_drop(true)
        .spawn()
        .unwrap()
}
