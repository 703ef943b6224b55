//! Reads what the nodes noted of themselves.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::io::{Read as _, Seek as _, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context as _, Result, bail};

use crate::history::{Event, What};

/// How each line begins.
const BEGIN: &str = "{\"at\":";

/// All notes of all nodes, in the order of time.
///
/// # Errors
/// A file cannot be read, or a line in it is none that a node writes, torn ones aside.
pub(super) fn read(folder: &Path) -> Result<Vec<Event>> {
    let mut events = Vec::new();
    let mut texts = Texts::default();
    for path in files(folder)? {
        let text = std::fs::read_to_string(&path)?;
        parse(&text, &mut texts, &mut events).with_context(|| format!("in {}", path.display()))?;
    }
    // Notes of one instant stay in the order of their file.
    events.sort_by_key(|event| event.at);
    Ok(events)
}

fn files(folder: &Path) -> Result<Vec<PathBuf>> {
    let entries = std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    let paths = entries
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<Vec<_>>>()?;
    let noted = paths
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "events"));
    Ok(noted.collect())
}

/// Reads notes while nodes write them.
#[derive(Debug)]
pub struct Follower {
    folder: PathBuf,
    /// How much of each file was read.
    read: HashMap<PathBuf, u64>,
}

impl Follower {
    /// Of the files in this folder, those that come later too.
    pub fn new(folder: PathBuf) -> Follower {
        let read = HashMap::new();
        Follower { folder, read }
    }

    /// What was noted since the last call, in the order of time. A line that is not whole yet comes with a later call.
    ///
    /// # Errors
    /// As for the reading of whole files.
    pub fn news(&mut self) -> Result<Vec<Event>> {
        let mut events = Vec::new();
        for path in files(&self.folder)? {
            let from = self.read.entry(path.clone()).or_default();
            let mut file = File::open(&path)?;
            file.seek(SeekFrom::Start(*from))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            let whole = bytes
                .iter()
                .rposition(|byte| *byte == b'\n')
                .map_or(0, |end| end + 1);
            *from += whole as u64;
            let text = str::from_utf8(&bytes[..whole])?;
            parse(text, &mut Texts::default(), &mut events)
                .with_context(|| format!("in {}", path.display()))?;
        }
        events.sort_by_key(|event| event.at);
        Ok(events)
    }
}

/// The process of each name that noted something last.
pub(super) fn processes(events: &[Event]) -> HashMap<String, u32> {
    let last = events.iter().map(|event| (event.node.to_string(), event.pid));
    last.collect()
}

/// A process may end in the middle of a line, killed or on a full disk; then the line is the last of the file, or the next start wrote on
/// where it ended.
fn parse(text: &str, texts: &mut Texts, events: &mut Vec<Event>) -> Result<()> {
    let mut lines = text.split('\n').peekable();
    while let Some(line) = lines.next() {
        let last = lines.peek().is_none();
        if line.is_empty() {
            continue;
        }
        let whole = serde_json::from_str(line).ok();
        let after_torn = || {
            let begin = line.rfind(BEGIN).filter(|begin| *begin > 0)?;
            serde_json::from_str(&line[begin..]).ok()
        };
        match whole.or_else(after_torn) {
            Some(event) => events.push(texts.share(event)),
            None if last => {}
            None => bail!("no note of a node: {line}"),
        }
    }
    Ok(())
}

/// Names and keys, each once in memory.
#[derive(Default)]
struct Texts(HashSet<Arc<str>>);

impl Texts {
    fn share(&mut self, mut event: Event) -> Event {
        self.shared(&mut event.node);
        if let What::RunStarted { key, .. } = &mut event.what {
            self.shared(key);
        }
        event
    }

    fn shared(&mut self, text: &mut Arc<str>) {
        if let Some(known) = self.0.get(text) {
            *text = known.clone();
        } else {
            self.0.insert(text.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: &str = r#"{"at":1,"node":"n1","pid":7,"what":{"refused":{"rows":2,"what":"x"}}}"#;
    const SECOND: &str = r#"{"at":2,"node":"n1","pid":8,"what":{"renewed":{"sent":1,"incarnation":3}}}"#;

    fn pids(text: &str) -> Result<Vec<u32>> {
        let mut events = Vec::new();
        parse(text, &mut Texts::default(), &mut events)?;
        Ok(events.iter().map(|event| event.pid).collect())
    }

    #[test]
    fn torn_lines_are_passed_over_and_others_are_not() {
        let torn = &FIRST[..30];
        assert_eq!(pids(&format!("{FIRST}\n{SECOND}\n")).unwrap(), [7, 8]);
        assert_eq!(pids(&format!("{SECOND}\n{torn}")).unwrap(), [8]);
        assert_eq!(pids(&format!("{torn}{SECOND}\n")).unwrap(), [8]);
        assert!(pids(&format!("{torn}\n{SECOND}\n")).is_err());
        assert!(pids(&format!("something else\n{SECOND}\n")).is_err());
    }

    #[test]
    fn notes_are_followed_line_by_line() {
        let folder = std::env::temp_dir().join(format!("ringmesh-faults-follow-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        let mut follower = Follower::new(folder.clone());
        let mut written = |more: &str| {
            let path = folder.join("n1.events");
            let mut file = File::options().create(true).append(true).open(path).unwrap();
            std::io::Write::write_all(&mut file, more.as_bytes()).unwrap();
            let news = follower.news().unwrap();
            news.iter().map(|event| event.pid).collect::<Vec<_>>()
        };
        assert_eq!(written(&FIRST[..30]), [] as [u32; 0]);
        assert_eq!(written(&format!("{}\n{}", &FIRST[30..], &SECOND[..9])), [7]);
        // Its process ended here, the next one goes on in the same line.
        assert_eq!(written(&format!("{SECOND}\n{FIRST}\n")), [7, 8]);
        assert_eq!(written(""), [] as [u32; 0]);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn files_are_merged_by_time() {
        let folder = std::env::temp_dir().join(format!("ringmesh-faults-events-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join("n2.events"), format!("{SECOND}\n")).unwrap();
        std::fs::write(folder.join("n1.events"), format!("{FIRST}\n")).unwrap();
        std::fs::write(folder.join("n1.log"), "not a note").unwrap();
        let events = read(&folder).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(events.iter().map(|event| event.at).collect::<Vec<_>>(), [1, 2]);
        assert_eq!(processes(&events)["n1"], 8);
    }
}
