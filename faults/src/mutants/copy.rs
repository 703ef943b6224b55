//! The copy of the sources that the mutants are made in. The sources themselves are never touched.

use std::fs::File;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};

use super::Change;

/// The root of the workspace that this program was built from.
pub(super) fn root() -> PathBuf {
    let package = Path::new(env!("CARGO_MANIFEST_DIR"));
    package.parent().unwrap_or(package).to_owned()
}

/// The copy, held by this process alone.
#[derive(Debug)]
pub(super) struct Copy {
    sources: PathBuf,
    target: PathBuf,
    _lock: File,
}

impl Copy {
    /// Copies what git knows of the workspace into the target folder, always to the same place: cargo then builds anew only
    /// what has changed since the last time.
    pub(super) fn make() -> Result<Self> {
        let root = root();
        let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root.join("target"), PathBuf::from);
        let target = std::path::absolute(target)?;
        let folder = target.join("mutants");
        std::fs::create_dir_all(&folder).with_context(|| format!("create {}", folder.display()))?;
        let lock = File::create(folder.join("lock"))?;
        if lock.try_lock().is_err() {
            bail!("another run works in {}", folder.display());
        }
        let sources = folder.join("sources");
        let listed = std::process::Command::new("git")
            .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
            .current_dir(&root)
            .output()
            .context("run git")?;
        ensure!(
            listed.status.success(),
            "git ls-files: {}",
            String::from_utf8_lossy(&listed.stderr)
        );
        let mut wanted = std::collections::HashSet::new();
        for name in String::from_utf8(listed.stdout)?
            .split('\0')
            .filter(|name| !name.is_empty())
        {
            let (from, to) = (root.join(name), sources.join(name));
            // Deleted and not committed yet.
            if !from.is_file() {
                continue;
            }
            wanted.insert(to.clone());
            let content = std::fs::read(&from).with_context(|| format!("read {}", from.display()))?;
            if std::fs::read(&to).is_ok_and(|there| there == content) {
                continue;
            }
            let parent = to.parent().context("a file without a folder")?;
            std::fs::create_dir_all(parent)?;
            std::fs::write(&to, content).with_context(|| format!("write {}", to.display()))?;
        }
        forget_others(&sources, &wanted)?;
        Ok(Copy {
            sources,
            target,
            _lock: lock,
        })
    }

    pub(super) fn sources(&self) -> &Path {
        &self.sources
    }

    pub(super) fn target(&self) -> &Path {
        &self.target
    }

    /// Makes the changes; they are taken back when the value is dropped.
    pub(super) fn change(&self, changes: &[Change]) -> Result<Changed> {
        let mut changed = Changed(Vec::new());
        for change in changes {
            let path = self.sources.join(change.file);
            let before =
                std::fs::read_to_string(&path).with_context(|| format!("read {}", path.display()))?;
            let count = before.matches(change.from).count();
            ensure!(
                count == 1,
                "{:?} stands {count} times in {}",
                change.from,
                change.file
            );
            let after = before.replacen(change.from, change.to, 1);
            changed.0.push((path.clone(), before));
            std::fs::write(&path, after).with_context(|| format!("write {}", path.display()))?;
        }
        Ok(changed)
    }
}

/// Files as they were before a mutant.
#[derive(Debug)]
#[must_use]
pub(super) struct Changed(Vec<(PathBuf, String)>);

impl Drop for Changed {
    fn drop(&mut self) {
        // A file that was changed twice gets its first content last.
        for (path, before) in self.0.iter().rev() {
            if let Err(error) = std::fs::write(path, before) {
                eprintln!("{} stays changed: {error}", path.display());
            }
        }
    }
}

/// Removes what an earlier copy had and the workspace has no more: a migration, say.
fn forget_others(folder: &Path, wanted: &std::collections::HashSet<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_dir() {
            forget_others(&path, wanted)?;
        } else if !wanted.contains(&path) {
            std::fs::remove_file(&path)?;
        }
    }
    Ok(())
}
