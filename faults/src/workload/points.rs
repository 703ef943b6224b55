//! The fail points of a node: told by `FAILPOINTS` at its start, and while it runs by a file.
//!
//! The file has a line for each point that shall act, `NAME=ACTION`; a point without a line is off, and lines that begin with `#`
//! say nothing. It is read anew whenever it has changed, so whoever writes it shall rename a whole one into its place; what was
//! read is noted. What a point does is in `ringmesh::failpoint`.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::Duration;

use ringmesh::failpoint::{self, fail};

use super::note::note;
use crate::history::What;

/// The variable that names the file.
pub const POINTS: &str = "FAULTS_FAILPOINTS";

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(100);

/// Sets the points up for the life of this process: each time one acts is noted.
pub(super) fn set_up() {
    // Its end would switch all points off.
    std::mem::forget(fail::FailScenario::setup());
    failpoint::observe(|name, action| {
        note(What::FailPoint {
            name: name.into(),
            action: action.into(),
        });
    });
    if let Some(file) = std::env::var_os(POINTS) {
        let file = PathBuf::from(file);
        let mut told = Told::default();
        // Before anything runs, so that also the first migration meets its points.
        told.read(&file);
        // A thread of its own, so that a busy runtime cannot keep a point from being switched off.
        std::thread::spawn(move || {
            loop {
                std::thread::sleep(LOOK);
                told.read(&file);
            }
        });
    }
}

/// What the file said last.
#[derive(Debug, Default)]
struct Told {
    text: String,
    points: BTreeSet<String>,
}

impl Told {
    fn read(&mut self, file: &Path) {
        let text = std::fs::read_to_string(file).unwrap_or_default();
        if text == self.text {
            return;
        }
        let mut points = BTreeSet::new();
        let says = |line: &&str| !line.trim().is_empty() && !line.starts_with('#');
        for line in text.lines().filter(says) {
            let told = line
                .split_once('=')
                .ok_or_else(|| "it has no action".to_owned())
                .and_then(|(name, action)| fail::cfg(name, action).map(|()| name));
            match told {
                Ok(name) => points.insert(name.to_owned()),
                // A run that goes on without the fault it was to have would prove nothing.
                Err(error) => {
                    eprintln!("{}: {line}: {error}", file.display());
                    std::process::abort();
                }
            };
        }
        for gone in self.points.difference(&points) {
            fail::remove(gone);
        }
        note(What::Told {
            points: text.as_str().into(),
        });
        (self.text, self.points) = (text, points);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn points_follow_the_file() {
        let file = std::env::temp_dir().join(format!("faults-points-{}", std::process::id()));
        let mut told = Told::default();
        let listed = || {
            let mut points = fail::list();
            points.retain(|(name, _)| name.starts_with("test-"));
            points.sort();
            points
        };
        for (text, expected) in [
            ("test-a=return(error)\ntest-b=off\n", &["test-a", "test-b"][..]),
            ("# again\n\ntest-b=1*return(delay 5)\n", &["test-b"]),
            ("", &[]),
        ] {
            std::fs::write(&file, text).unwrap();
            told.read(&file);
            let names: Vec<String> = listed().into_iter().map(|(name, _)| name).collect();
            assert_eq!(names, expected);
        }
        std::fs::remove_file(file).unwrap();
    }
}
