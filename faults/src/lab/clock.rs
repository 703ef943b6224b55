//! The wall clock of a host, shifted by libfaketime. Its other clocks stay true.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result};

/// Debian's package `faketime`.
const LIBRARIES: [&str; 2] = [
    "/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1",
    "/usr/lib/aarch64-linux-gnu/faketime/libfaketimeMT.so.1",
];
/// A process sees a change of its offset within this time.
pub const SEEN_WITHIN: Duration = Duration::from_secs(1);

/// What a wall clock does.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Offset {
    /// Seconds from the true time.
    pub seconds: f64,
    /// How fast it goes; 1.05: 5 % too fast.
    pub speed: f64,
}

impl Default for Offset {
    fn default() -> Offset {
        Offset {
            seconds: 0.0,
            speed: 1.0,
        }
    }
}

/// A file from which processes take their offset, again and again.
#[derive(Debug)]
pub(super) struct Clock {
    library: &'static str,
    file: PathBuf,
}

impl Clock {
    pub(super) fn new(file: PathBuf) -> Result<Clock> {
        let library = LIBRARIES.into_iter().find(|path| Path::new(path).exists());
        let library = library.context("libfaketime is missing (Debian: faketime)")?;
        let clock = Clock { library, file };
        clock.set(Offset::default())?;
        Ok(clock)
    }

    pub(super) fn set(&self, offset: Offset) -> Result<()> {
        let text = format!("{:+.3} x{:.4}\n", offset.seconds, offset.speed);
        // Read at any moment: it must never be half written.
        let next = self.file.with_extension("next");
        std::fs::write(&next, text)?;
        std::fs::rename(&next, &self.file).with_context(|| format!("write {}", self.file.display()))
    }

    /// What makes a process see it.
    pub(super) fn environment(&self) -> [(String, String); 5] {
        [
            ("LD_PRELOAD", self.library.to_owned()),
            ("FAKETIME_TIMESTAMP_FILE", self.file.display().to_string()),
            ("FAKETIME_CACHE_DURATION", SEEN_WITHIN.as_secs().to_string()),
            ("FAKETIME_DONT_FAKE_MONOTONIC", "1".to_owned()),
            ("DONT_FAKE_MONOTONIC", "1".to_owned()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
    }
}
