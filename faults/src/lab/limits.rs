//! What a host's node may use: processor time and memory by control groups, file descriptors by limits of its process.
//!
//! Control groups of the first version are used where their tree is mounted, else those of the second. Where neither can
//! be written, a limit is refused with that reason.

use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};

use super::command::{run, run_blocking};

const ROOT: &str = "/sys/fs/cgroup";
/// The length of the period in which a share of a processor is granted, in microseconds.
const PERIOD: u64 = 100_000;

/// The control groups of one host.
#[derive(Debug)]
pub(super) struct Group {
    name: String,
}

impl Group {
    pub(super) fn new(name: String) -> Group {
        Group { name }
    }

    /// Puts a process with all its threads into the groups that there are.
    pub(super) fn join(&self, pid: u32) -> Result<()> {
        for controller in ["cpu", "memory"] {
            let folder = self.folder(controller);
            if folder.is_dir() {
                write(&folder.join("cgroup.procs"), &pid.to_string())?;
            }
        }
        Ok(())
    }

    /// Grants this share of one processor; `None`: no limit.
    pub(super) fn processor(&self, share: Option<f64>, pid: Option<u32>) -> Result<()> {
        let folder = self.make("cpu")?;
        let micros = share.map(|share| ((PERIOD as f64 * share) as u64).max(1000));
        if is_first_version() {
            let quota = micros.map_or("-1".into(), |micros| micros.to_string());
            write(&folder.join("cpu.cfs_quota_us"), &quota)?;
        } else {
            let quota = micros.map_or("max".into(), |micros| micros.to_string());
            write(&folder.join("cpu.max"), &format!("{quota} {PERIOD}"))?;
        }
        pid.map_or(Ok(()), |pid| self.join(pid))
    }

    /// Lets it have so many bytes; the kernel kills it when it needs more. `None`: no limit.
    pub(super) fn memory(&self, bytes: Option<u64>, pid: Option<u32>) -> Result<()> {
        let folder = self.make("memory")?;
        if let Some(pid) = pid {
            self.join(pid)?;
        }
        let (file, none) = if is_first_version() {
            ("memory.limit_in_bytes", "-1")
        } else {
            ("memory.max", "max")
        };
        let limit = bytes.map_or(none.to_owned(), |bytes| bytes.to_string());
        write(&folder.join(file), &limit)
    }

    fn make(&self, controller: &str) -> Result<PathBuf> {
        let folder = self.folder(controller);
        let parent = folder.parent().unwrap_or(Path::new(ROOT));
        if !is_first_version() {
            write(&parent.join("cgroup.subtree_control"), "+cpu +memory")?;
        } else if !parent.join("cgroup.procs").exists() {
            bail!("no control groups for {controller} on this machine");
        }
        std::fs::create_dir_all(&folder).with_context(|| format!("make {}", folder.display()))?;
        Ok(folder)
    }

    fn folder(&self, controller: &str) -> PathBuf {
        if is_first_version() {
            Path::new(ROOT).join(controller).join(&self.name)
        } else {
            Path::new(ROOT).join(&self.name)
        }
    }
}

fn is_first_version() -> bool {
    !Path::new(ROOT).join("cgroup.controllers").exists()
}

fn write(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text).with_context(|| format!("write {text} to {}", file.display()))
}

/// Removes the groups of all hosts of a lab, whose processes have ended.
pub(super) fn remove(id: &str) {
    let prefix = format!("rm{id}-n");
    for parent in [ROOT.into(), format!("{ROOT}/cpu"), format!("{ROOT}/memory")] {
        for entry in std::fs::read_dir(parent).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(&prefix) {
                let _ = std::fs::remove_dir(entry.path());
            }
        }
    }
}

/// Limits the file descriptors of a process that runs.
pub(super) async fn descriptors(pid: u32, at_most: u64) -> Result<()> {
    let (pid, limit) = (pid.to_string(), format!("--nofile={at_most}:"));
    run("prlimit", &["--pid", &pid, &limit], "").await.map(drop)
}

/// Mounts a disk of this size in memory.
pub(super) async fn mount(folder: &Path, bytes: u64) -> Result<()> {
    std::fs::create_dir_all(folder)?;
    let (folder, size) = (folder.display().to_string(), format!("size={bytes},mode=0755"));
    run(
        "mount",
        &["-t", "tmpfs", "-o", &size, "ringmesh-faults", &folder],
        "",
    )
    .await
    .map(drop)
}

/// Unmounts what is mounted in a folder.
pub(super) fn unmount_below(folder: &Path) {
    let mounts = std::fs::read_to_string("/proc/self/mounts").unwrap_or_default();
    let points = mounts.lines().filter_map(|line| line.split(' ').nth(1));
    for point in points.filter(|point| Path::new(point).starts_with(folder)) {
        run_blocking("umount", &["--lazy", point], "");
    }
}
