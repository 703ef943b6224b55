//! Finds the programs `initdb` and `postgres`, or fetches them.
//!
//! In this order: `RINGMESH_PG_BIN`; `pg_config --bindir`; the folders that packages use, newest first; `PATH`; what an
//! earlier start fetched; then two downloads into a cache folder of the user's own, without any change to the system:
//! the archives of the crate `postgresql_embedded`, or the packages of a Debian-like machine.
//! `RINGMESH_PG_BIN` is an answer, not a hint: when it does not fit, nothing else is tried.

use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use super::process::effective_uid;
use super::{Doing, Error, Result};

/// A question to a local program.
const QUICK: Duration = Duration::from_secs(10);
/// One download step (17 MB for Debian's package, 10 to 20 MB for the crate's archive).
const DOWNLOAD: Duration = Duration::from_secs(120);

/// Where the programs are, and what they need to run.
#[derive(Debug, Clone)]
pub(super) struct Programs {
    /// The folder with `initdb` and `postgres`.
    pub(super) bin: PathBuf,
    /// The major version, as 15.
    pub(super) major: u32,
    /// The full text of `postgres --version`.
    pub(super) version: String,
    /// `LD_LIBRARY_PATH` for unpacked packages.
    libraries: Option<String>,
}

impl Programs {
    /// Finds programs, of the major version `wanted` if it is given (a data folder belongs to one).
    pub(super) async fn find(dir: &Path, wanted: Option<u32>) -> Result<Self> {
        let mut search = Search {
            wanted,
            tried: Vec::new(),
            others: Vec::new(),
        };
        if let Some(bin) = std::env::var_os("RINGMESH_PG_BIN").filter(|bin| !bin.is_empty()) {
            let found = search.check("RINGMESH_PG_BIN", Path::new(&bin)).await;
            return found.ok_or_else(|| search.error(dir));
        }
        let mut places: Vec<(&str, PathBuf)> = Vec::new();
        match run("pg_config", ["--bindir"], QUICK).await {
            Ok(bin) => places.push(("pg_config --bindir", bin.trim().into())),
            Err(error) => search
                .tried
                .push(format!("pg_config --bindir: {}", first_line(&error))),
        }
        places.extend(usual_folders().into_iter().map(|bin| ("usual folder", bin)));
        places.extend(path_folders().into_iter().map(|bin| ("PATH", bin)));
        places.extend(fetched_folders().into_iter().map(|bin| ("fetched earlier", bin)));
        for (origin, bin) in &places {
            if let Some(programs) = search.check(origin, bin).await {
                return Ok(programs);
            }
        }
        let cache = cache_folder()?;
        tracing::warn!(cache = %cache.display(), "no Postgres on this machine, fetching one");
        match embedded(&cache, wanted).await {
            Ok(bin) => {
                if let Some(programs) = search.check("postgresql_embedded", &bin).await {
                    return Ok(programs);
                }
            }
            Err(reason) => search.tried.push(format!("postgresql_embedded: {reason}")),
        }
        match debian::fetch(&cache, wanted).await {
            Ok(bin) => {
                if let Some(programs) = search.check("apt-get download", &bin).await {
                    return Ok(programs);
                }
            }
            Err(reason) => search.tried.push(format!("apt-get download: {reason}")),
        }
        Err(search.error(dir))
    }

    /// The path of one program.
    pub(super) fn path(&self, program: &str) -> PathBuf {
        self.bin.join(program)
    }

    /// The environment that the programs need.
    pub(super) fn environment(&self) -> impl Iterator<Item = (&'static str, &str)> {
        // initdb would otherwise write the machine's zone into the configuration.
        let zone = std::iter::once(("TZ", "UTC"));
        zone.chain(
            self.libraries
                .as_deref()
                .map(|folders| ("LD_LIBRARY_PATH", folders)),
        )
    }

    /// UTC by a name that these programs can look up: Debian's read the system's zone files, which a small image lacks,
    /// and only `GMT` needs none.
    pub(super) fn utc(&self) -> &'static str {
        let from_packages = self.libraries.is_some();
        if from_packages && !Path::new("/usr/share/zoneinfo/UTC").exists() {
            "GMT"
        } else {
            "UTC"
        }
    }
}

struct Search {
    wanted: Option<u32>,
    tried: Vec<String>,
    /// Usable programs of another major version.
    others: Vec<String>,
}

impl Search {
    async fn check(&mut self, origin: &str, bin: &Path) -> Option<Programs> {
        match inspect(bin).await {
            Ok(programs) if self.wanted.is_none_or(|wanted| wanted == programs.major) => {
                tracing::debug!(bin = %bin.display(), version = programs.version, origin, "found Postgres");
                return Some(programs);
            }
            Ok(other) => self.others.push(format!("{} ({})", bin.display(), other.version)),
            Err(reason) => self.tried.push(format!("{origin}: {reason}")),
        }
        None
    }

    fn error(self, dir: &Path) -> Error {
        match self.wanted {
            Some(made_by) if !self.others.is_empty() => Error::OtherVersion {
                dir: dir.to_owned(),
                made_by,
                found: self.others.join(", "),
            },
            _ => {
                let tried: Vec<String> = self.tried.iter().map(|line| format!("  {line}")).collect();
                Error::NoPostgres {
                    tried: tried.join("\n"),
                }
            }
        }
    }
}

/// Whether `bin` holds programs that start, and which.
async fn inspect(bin: &Path) -> Result<Programs, String> {
    for program in ["initdb", "postgres"] {
        if !bin.join(program).is_file() {
            return Err(format!("{} holds no {program}", bin.display()));
        }
    }
    let libraries = debian::libraries(bin);
    let mut command = tokio::process::Command::new(bin.join("postgres"));
    command.arg("--version");
    if let Some(folders) = &libraries {
        command.env("LD_LIBRARY_PATH", folders);
    }
    let version = output(command, QUICK).await?.trim().to_owned();
    let major =
        major(&version).ok_or_else(|| format!("{}: cannot read the version {version:?}", bin.display()))?;
    Ok(Programs {
        bin: bin.to_owned(),
        major,
        version,
        libraries,
    })
}

/// 15 of `postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)`; also of `16beta1`.
fn major(version: &str) -> Option<u32> {
    let number = version.split_once("(PostgreSQL) ")?.1;
    let digits = number.split(|c: char| !c.is_ascii_digit()).next()?;
    digits.parse().ok()
}

fn usual_folders() -> Vec<PathBuf> {
    let mut folders = versioned("/usr/lib/postgresql", "");
    folders.extend(versioned("/usr", "pgsql-"));
    for brew in ["/opt/homebrew/opt", "/usr/local/opt"] {
        folders.extend(versioned(brew, "postgresql@"));
        folders.push(Path::new(brew).join("postgresql"));
    }
    folders.extend(versioned("/Applications/Postgres.app/Contents/Versions", ""));
    folders.push("/usr/local/pgsql".into());
    folders
        .iter()
        .map(|folder| folder.join("bin"))
        .filter(|bin| bin.is_dir())
        .collect()
}

/// Folders in `parent` whose name is `prefix` and a number, the highest first.
fn versioned(parent: impl AsRef<Path>, prefix: &str) -> Vec<PathBuf> {
    let Ok(entries) = std::fs::read_dir(parent) else {
        return Vec::new();
    };
    let mut found: Vec<(u32, PathBuf)> = entries
        .flatten()
        .filter_map(|entry| {
            let number = entry.file_name().to_str()?.strip_prefix(prefix)?.parse().ok()?;
            Some((number, entry.path()))
        })
        .collect();
    found.sort_by(|a, b| b.cmp(a));
    found.into_iter().map(|(_, path)| path).collect()
}

/// Folders of `PATH` that hold `postgres`; behind a symbolic link stands the folder with the other programs.
fn path_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .filter_map(|folder| {
            folder
                .join("postgres")
                .canonicalize()
                .ok()?
                .parent()
                .map(Path::to_owned)
        })
        .collect()
}

fn fetched_folders() -> Vec<PathBuf> {
    let Ok(cache) = cache_folder() else {
        return Vec::new();
    };
    let mut folders = Vec::new();
    for unpacked in versioned(&cache, debian::PREFIX) {
        folders.extend(versioned(unpacked.join("usr/lib/postgresql"), ""));
    }
    let Ok(entries) = std::fs::read_dir(cache.join(EMBEDDED)) else {
        return bins(folders);
    };
    folders.extend(entries.flatten().map(|entry| entry.path()));
    bins(folders)
}

fn bins(folders: Vec<PathBuf>) -> Vec<PathBuf> {
    folders
        .iter()
        .map(|folder| folder.join("bin"))
        .filter(|bin| bin.is_dir())
        .collect()
}

/// A folder of this user's own for what is fetched. For root it lies outside root's home, because Postgres runs as
/// another user, which must reach it.
pub(super) fn cache_folder() -> Result<PathBuf> {
    let base = match effective_uid() {
        0 => None,
        _ => std::env::var_os("XDG_CACHE_HOME")
            .map(PathBuf::from)
            .or_else(|| std::env::home_dir().map(|home| home.join(".cache")))
            .filter(|base| base.is_absolute()),
    };
    match base {
        Some(base) => private_folder(&base.join("ringmesh")),
        None => Ok(private_folder(
            &Path::new("/var/tmp").join(format!("ringmesh-{}", effective_uid())),
        )?),
    }
}

/// Makes a folder that only this user can write and others can walk through; refuses one that somebody else has prepared
/// (programs are run from it, possibly under a name that others can guess).
pub(super) fn private_folder(path: &Path) -> Result<PathBuf> {
    if let Some(parent) = path.parent() {
        std::fs::create_dir_all(parent).doing(|| format!("create {}", parent.display()))?;
    }
    match std::fs::DirBuilder::new().mode(0o711).create(path) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(error).doing(|| format!("create {}", path.display()));
        }
        _ => {}
    }
    let found = std::fs::symlink_metadata(path).doing(|| format!("read {}", path.display()))?;
    if !found.is_dir() || found.uid() != effective_uid() || found.mode() & 0o022 != 0 {
        return Err(Error::BadOption(format!(
            "{} is not a folder that only this user can write; remove it, or change its owner and mode",
            path.display()
        )));
    }
    // Whatever the umask was.
    std::fs::set_permissions(path, PermissionsExt::from_mode(0o711))
        .doing(|| format!("change the mode of {}", path.display()))?;
    Ok(path.to_owned())
}

/// Runs a program in a process group of its own; its stdout, or what it said when it failed.
pub(super) async fn run<'a>(
    program: &str,
    arguments: impl IntoIterator<Item = &'a str>,
    within: Duration,
) -> Result<String, String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments);
    output(command, within).await
}

/// As [`run`], for a command that is set up already.
pub(super) async fn output(mut command: tokio::process::Command, within: Duration) -> Result<String, String> {
    command.stdin(Stdio::null());
    let Output {
        status,
        stdout,
        stderr,
    } = any_output(command, within).await?;
    if status.success() {
        return Ok(String::from_utf8_lossy(&stdout).into_owned());
    }
    let said = [stdout, stderr].concat();
    Err(format!("{status}: {}", String::from_utf8_lossy(&said).trim()))
}

async fn any_output(mut command: tokio::process::Command, within: Duration) -> Result<Output, String> {
    command.process_group(0).kill_on_drop(true);
    let program = command.as_std().get_program().to_string_lossy().into_owned();
    match tokio::time::timeout(within, command.output()).await {
        Ok(Ok(output)) => Ok(output),
        Ok(Err(error)) => Err(format!("{program}: {error}")),
        Err(_) => Err(format!("{program} took longer than {within:?}")),
    }
}

fn first_line(text: &str) -> &str {
    text.lines().next().unwrap_or(text)
}

/// The folder in the cache for what the crate unpacks, one folder per release in it.
const EMBEDDED: &str = "embedded";

/// Downloads a build by the crate `postgresql_embedded`; only its download is used.
async fn embedded(cache: &Path, wanted: Option<u32>) -> Result<PathBuf, String> {
    use postgresql_embedded::{PostgreSQL, Settings, VersionReq};
    // Its set-up skips initdb when the data folder looks initialised; initdb would fail for root.
    let pretended = cache.join("embedded-no-data");
    let version = VersionReq::parse(&wanted.unwrap_or(17).to_string()).map_err(|error| error.to_string())?;
    std::fs::create_dir_all(&pretended)
        .and_then(|()| std::fs::write(pretended.join("postgresql.conf"), ""))
        .map_err(|error| error.to_string())?;
    // All fields are named because the crate's default leaves temporary folders behind.
    let mut download = PostgreSQL::new(Settings {
        releases_url: "https://github.com/theseus-rs/postgresql-binaries".into(),
        version,
        installation_dir: cache.join(EMBEDDED),
        password_file: pretended.join("password"),
        data_dir: pretended,
        host: "localhost".into(),
        port: 0,
        username: "postgres".into(),
        password: String::new(),
        temporary: false,
        timeout: Some(DOWNLOAD),
        configuration: std::collections::HashMap::new(),
        trust_installation_dir: false,
        socket_dir: None,
    });
    match tokio::time::timeout(DOWNLOAD, download.setup()).await {
        Ok(Ok(())) => Ok(download.settings().binary_dir()),
        Ok(Err(error)) => Err(format!("the download failed: {error}")),
        Err(_) => Err(format!("the download took longer than {DOWNLOAD:?}")),
    }
}

/// Packages of a Debian-like machine, unpacked without being installed.
mod debian {
    use super::*;

    /// The folders in the cache: this and the major version.
    pub(super) const PREFIX: &str = "debian-";

    /// Fetches `postgresql-NN` and those of its libraries that the machine lacks, and unpacks them with `dpkg -x`.
    pub(super) async fn fetch(cache: &Path, wanted: Option<u32>) -> Result<PathBuf, String> {
        for (program, argument) in [("apt-get", "--version"), ("dpkg", "--version")] {
            run(program, [argument], QUICK)
                .await
                .map_err(|error| first_line(&error).to_owned())?;
        }
        let major = match newest(wanted).await {
            Ok(major) => major,
            Err(reason) if effective_uid() != 0 => {
                return Err(format!("{reason} (as root, apt-get update would be tried)"));
            }
            // A fresh container has no package lists.
            Err(_) => {
                run("apt-get", ["update", "-qq"], DOWNLOAD).await?;
                newest(wanted).await?
            }
        };
        let packages = match needed(major).await {
            Ok(packages) => packages,
            Err(reason) if effective_uid() != 0 => return Err(reason),
            Err(_) => {
                run("apt-get", ["update", "-qq"], DOWNLOAD).await?;
                needed(major).await?
            }
        };
        // A folder of this process's own, renamed at the end: an interrupted download leaves nothing that looks whole.
        let unfinished = cache.join(format!("unfinished-{}", std::process::id()));
        let target = cache.join(format!("{PREFIX}{major}"));
        let unpacked = unpack(&unfinished, &packages).await;
        let moved = unpacked.and_then(|()| {
            if target.exists() {
                std::fs::remove_dir_all(&target).map_err(|error| error.to_string())?;
            }
            std::fs::rename(unfinished.join("root"), &target).map_err(|error| error.to_string())
        });
        let _ = std::fs::remove_dir_all(&unfinished);
        moved.map(|()| target.join(format!("usr/lib/postgresql/{major}/bin")))
    }

    /// The highest `postgresql-NN` that the package lists know.
    async fn newest(wanted: Option<u32>) -> Result<u32, String> {
        let names = run(
            "apt-cache",
            ["search", "--names-only", "^postgresql-[0-9]+$"],
            QUICK,
        )
        .await?;
        let majors = names.lines().filter_map(|line| {
            let name = line.split_whitespace().next()?;
            name.strip_prefix("postgresql-")?.parse().ok()
        });
        let fitting = majors.filter(|major| wanted.is_none_or(|wanted| wanted == *major));
        fitting.max().ok_or_else(|| match wanted {
            Some(wanted) => format!("the package lists know no postgresql-{wanted}"),
            None => "the package lists know no Postgres server".into(),
        })
    }

    /// What installing the server would install, without what only an installed server needs. Never the C library: one
    /// that differs from the machine's loader crashes every program.
    async fn needed(major: u32) -> Result<Vec<String>, String> {
        let server = format!("postgresql-{major}");
        let arguments = [
            "install",
            "--simulate",
            "--reinstall",
            "--no-install-recommends",
            "-qq",
            &server,
        ];
        let plan = run("apt-get", arguments, QUICK * 3).await?;
        Ok(packages_of(&plan, &server))
    }

    pub(super) fn packages_of(plan: &str, server: &str) -> Vec<String> {
        let installed = plan
            .lines()
            .filter_map(|line| line.strip_prefix("Inst ")?.split_whitespace().next());
        let client = server.replacen("postgresql-", "postgresql-client-", 1);
        let useful = |name: &&str| {
            *name == server
                || *name == client
                || (name.starts_with("lib")
                    && !name.starts_with("libc6")
                    && !name.starts_with("libc-")
                    && !name.ends_with("-dev")
                    && !name.ends_with("-perl"))
        };
        installed.filter(useful).map(str::to_owned).collect()
    }

    async fn unpack(unfinished: &Path, packages: &[String]) -> Result<(), String> {
        let downloads = unfinished.join("packages");
        let root = unfinished.join("root");
        for folder in [unfinished, &downloads, &root] {
            private_folder(folder).map_err(|error| error.to_string())?;
        }
        let mut download = tokio::process::Command::new("apt-get");
        download
            .args(["download", "-qq"])
            .args(packages)
            .current_dir(&downloads);
        output(download, DOWNLOAD).await?;
        let files = std::fs::read_dir(&downloads).map_err(|error| error.to_string())?;
        for file in files.flatten() {
            let mut dpkg = tokio::process::Command::new("dpkg");
            dpkg.arg("-x").arg(file.path()).arg(&root);
            output(dpkg, QUICK * 3).await?;
        }
        Ok(())
    }

    /// `LD_LIBRARY_PATH` for programs that were unpacked by [`fetch`]; None for all others.
    pub(super) fn libraries(bin: &Path) -> Option<String> {
        let root = bin.ancestors().find(|folder| {
            folder
                .file_name()
                .and_then(|name| name.to_str())
                .is_some_and(|name| name.starts_with(PREFIX))
                && folder.join("usr/lib/postgresql").is_dir()
        })?;
        let mut folders = Vec::new();
        for lib in [root.join("usr/lib"), root.join("lib")] {
            let entries = std::fs::read_dir(&lib).into_iter().flatten().flatten();
            folders.extend(
                entries
                    .filter(|entry| entry.file_name().to_string_lossy().contains("-linux-"))
                    .map(|entry| entry.path()),
            );
            folders.push(lib);
        }
        Some(
            folders
                .iter()
                .map(|folder| folder.display().to_string())
                .collect::<Vec<_>>()
                .join(":"),
        )
    }
}

#[cfg(test)]
#[path = "programs_tests.rs"]
mod tests;
