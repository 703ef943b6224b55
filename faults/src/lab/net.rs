//! Two networks of a lab's own, and a network namespace for each host.
//!
//! ```text
//!              data 10.77.K.0/24: gossip, HTTP between nodes, Postgres. Faults happen here
//!  harness .1 ───┬──────────────┬──────────────┬──── .101 … the relay, speaking for n1 …
//!            .11 │ n1       .12 │ n2       .13 │ n3
//!  harness .1 ───┴──────────────┴──────────────┴──── control 10.78.K.0/24: harness and observer. No faults
//! ```
//!
//! The harness, Postgres, the proxies and the relay are in the namespace of this process. The bridges have one of their own:
//! where this machine's firewall forwards nothing, it would hold up bridged packets too.
//! A lab's folder holds a lock for as long as its process lives: whoever finds a folder whose lock is free removes what
//! that lab left behind.

use std::fs::{File, TryLockError};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use anyhow::{Context as _, Result, bail};

use super::command::{run, run_blocking};
use super::limits;

/// The names of labs' folders begin with it.
const FOLDER: &str = "ringmesh-faults-";
/// Held while addresses are chosen, so that labs that start together choose different ones.
const CHOICE: &str = "ringmesh-faults.lock";

/// A lab's name, folder and namespaces. Dropping it removes them.
#[derive(Debug)]
pub(super) struct Network {
    id: String,
    dir: PathBuf,
    subnet: u8,
    hosts: u8,
    keep: bool,
    _lock: File,
}

impl Network {
    /// Makes the networks for this many hosts.
    ///
    /// # Errors
    /// A program failed; nothing is left.
    pub(super) async fn start(hosts: u8) -> Result<Network> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let choice = std::env::temp_dir().join(CHOICE);
        let choice = File::options()
            .create(true)
            .append(true)
            .open(&choice)
            .with_context(|| format!("open {}", choice.display()))?;
        let choice = tokio::task::spawn_blocking(move || choice.lock().map(|()| choice)).await??;
        sweep();
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        // 15 characters are all that an interface's name may have.
        let id = format!("{:x}.{number:x}", std::process::id());
        let dir = std::env::temp_dir().join(format!("{FOLDER}{id}"));
        std::fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let lock = File::create(dir.join("lock"))?;
        lock.try_lock().context("lock the lab's folder")?;
        let network = Network {
            subnet: free_subnet().await?,
            id,
            dir,
            hosts,
            keep: false,
            _lock: lock,
        };
        network.make().await?;
        drop(choice);
        Ok(network)
    }

    async fn make(&self) -> Result<()> {
        let hub = self.hub();
        let mut here = format!("netns add {hub}\n");
        let mut there = String::new();
        for (net, name, address) in [('d', "data", self.data(1)), ('c', "control", self.control(1))] {
            let own = self.own(net);
            here += &format!("link add {own} type veth peer name harness-{net} netns {hub}\n");
            here += &format!("addr add {address}/24 dev {own}\nlink set {own} up\n");
            there += &format!("link add {name} type bridge\nlink set {name} up\n");
            there += &format!("link set harness-{net} master {name} up\n");
        }
        for number in 1..=self.hosts {
            let (space, own) = (self.space(number), self.own('d'));
            here += &format!("netns add {space}\n");
            // What the relay sends for this host comes from here.
            here += &format!("addr add {}/24 dev {own}\n", self.voice(number));
            for name in ["data", "control"] {
                let cable = format!("{name}-{number}");
                there += &format!("link add {cable} type veth peer name {name} netns {space}\n");
                there += &format!("link set {cable} master {name} up\n");
            }
        }
        run("ip", &["-batch", "-"], &here).await?;
        run("ip", &["-n", &hub, "-batch", "-"], &there).await?;
        for number in 1..=self.hosts {
            let (data, control) = (self.data(10 + number), self.control(10 + number));
            let batch = format!(
                "link set lo up\naddr add {data}/24 dev data\nlink set data up\n\
                 addr add {control}/24 dev control\nlink set control up\n"
            );
            run("ip", &["-n", &self.space(number), "-batch", "-"], &batch).await?;
        }
        Ok(())
    }

    /// The lab's folder.
    pub(super) fn dir(&self) -> &Path {
        &self.dir
    }

    /// What tells this lab from others of the machine.
    pub(super) fn id(&self) -> &str {
        &self.id
    }

    /// Leaves the folder when the lab ends.
    pub(super) fn keep(&mut self) {
        self.keep = true;
    }

    /// The name of a host's namespace; hosts count from 1.
    pub(super) fn space(&self, number: u8) -> String {
        format!("rm{}-n{number}", self.id)
    }

    /// An address of the network with faults.
    pub(super) fn data(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 77, self.subnet, last)
    }

    /// An address of the network without faults.
    pub(super) fn control(&self, last: u8) -> Ipv4Addr {
        Ipv4Addr::new(10, 78, self.subnet, last)
    }

    /// Where the relay speaks for a host from.
    pub(super) fn voice(&self, number: u8) -> Ipv4Addr {
        self.data(100 + number)
    }

    fn hub(&self) -> String {
        format!("rm{}-hub", self.id)
    }

    /// The name of this process's own interface in a network.
    fn own(&self, net: char) -> String {
        format!("r{net}{}", self.id)
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        remove(&self.id);
        if self.keep {
            let _ = std::fs::remove_file(self.dir.join("lock"));
        } else {
            let _ = std::fs::remove_dir_all(&self.dir);
        }
    }
}

/// The first K of which no interface of this machine has an address.
async fn free_subnet() -> Result<u8> {
    let taken = run("ip", &["-o", "-4", "addr"], "").await?;
    let free = |k: &u8| {
        let ours = [format!(" 10.77.{k}."), format!(" 10.78.{k}.")];
        !ours.iter().any(|prefix| taken.contains(prefix.as_str()))
    };
    (1..=250).find(free).context("no free network is left")
}

/// Removes what labs left behind whose processes are gone.
fn sweep() {
    let Ok(entries) = std::fs::read_dir(std::env::temp_dir()) else {
        return;
    };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let Some(id) = name.to_str().and_then(|name| name.strip_prefix(FOLDER)) else {
            continue;
        };
        let Ok(lock) = File::open(entry.path().join("lock")) else {
            continue;
        };
        match lock.try_lock() {
            Ok(()) => {
                remove(id);
                limits::unmount_below(&entry.path());
                let _ = std::fs::remove_dir_all(entry.path());
            }
            Err(TryLockError::WouldBlock | TryLockError::Error(_)) => {}
        }
    }
}

/// Removes the namespaces, interfaces and groups of a lab; its processes have ended, or end with their namespaces' last use.
fn remove(id: &str) {
    limits::remove(id);
    let prefix = format!("rm{id}-");
    let mut batch = String::new();
    for entry in std::fs::read_dir("/run/netns").into_iter().flatten().flatten() {
        if let Some(name) = entry
            .file_name()
            .to_str()
            .filter(|name| name.starts_with(&prefix))
        {
            batch += &format!("netns del {name}\n");
        }
    }
    for net in ['d', 'c'] {
        batch += &format!("link del r{net}{id}\n");
    }
    run_blocking("ip", &["-force", "-batch", "-"], &batch);
}

/// Says what is missing for labs on this machine, if anything is.
///
/// # Errors
/// Not root, or a program is missing.
pub(super) async fn check() -> Result<()> {
    if std::fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) != 0) {
        bail!("a lab makes network namespaces, and needs root for that");
    }
    for (program, version, package) in [
        ("ip", "-V", "iproute2"),
        ("iptables-restore", "--version", "iptables"),
    ] {
        run(program, &[version], "")
            .await
            .with_context(|| format!("{program} is missing (Debian: {package})"))?;
    }
    Ok(())
}
