//! Where values come from: defaults < file < environment < flags. What nobody knows is refused.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};

use super::{Config, Definition, OPTIONS, Problem};
use crate::secret::Secret;

/// The variables that begin with `RINGMESH_` and are no options of a node.
pub const ENVIRONMENT: &[(&str, &str)] = &[
    ("RINGMESH_CONFIG", "The file to read, as `--config`."),
    (
        "RINGMESH_LOG",
        "What is logged, as `info` or `ringmesh=debug,warn`; by default `warn,ringmesh=info`.",
    ),
    (
        "RINGMESH_URL",
        "Where commands reach a node's HTTP API, as `--url`.",
    ),
    (
        "RINGMESH_DEMO",
        "Set by `ringmesh demo` for the nodes that it starts: they handle its kind too.",
    ),
    (
        "RINGMESH_PG_BIN",
        "Where local commands find the programs of Postgres.",
    ),
];

/// Where a value comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// Nobody set it.
    Default,
    /// The file.
    File(PathBuf),
    /// This variable.
    Environment(String),
    /// This flag, with its dashes.
    Flag(String),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Source::Default => f.write_str("default"),
            Source::File(path) => write!(f, "{}", path.display()),
            Source::Environment(name) | Source::Flag(name) => f.write_str(name),
        }
    }
}

/// A configuration whose values could be read. Whether they fit is another question: [`Loaded::check`].
#[derive(Debug, Clone)]
pub struct Loaded {
    config: Config,
    sources: BTreeMap<&'static str, Source>,
}

impl Loaded {
    /// The values, unchecked.
    pub fn unchecked(&self) -> &Config {
        &self.config
    }

    /// Where an option's value comes from.
    pub fn source(&self, option: &str) -> &Source {
        self.sources.get(option).unwrap_or(&Source::Default)
    }

    /// The values, once they keep the rules.
    ///
    /// # Errors
    /// All rules that do not hold, and where their options were set.
    pub fn check(self) -> Result<Config, Error> {
        let broken: Vec<Broken> = self
            .config
            .problems()
            .into_iter()
            .map(|problem| Broken {
                from: self.source(problem.option).clone(),
                problem,
            })
            .collect();
        match broken.is_empty() {
            true => Ok(self.config),
            false => Err(Error::Rules(broken)),
        }
    }
}

/// Why no configuration could be read.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The file cannot be read.
    #[error("the configuration file {} cannot be read", .0.display())]
    File(PathBuf, #[source] std::io::Error),
    /// The file is no TOML. Only the line is named: its text may be a secret.
    #[error("{} is not TOML at line {line}: {text}", path.display())]
    Syntax {
        /// The file.
        path: PathBuf,
        /// Counted from 1.
        line: usize,
        /// What the parser said.
        text: String,
    },
    /// A key or a variable that is no option.
    #[error("{place} is unknown; the nearest is {nearest}")]
    Unknown {
        /// What was given, and where.
        place: String,
        /// A name that exists.
        nearest: String,
    },
    /// A value that is not of its option's type.
    #[error("{option}: {text} (from {from})")]
    Value {
        /// The option.
        option: &'static str,
        /// Where the value comes from.
        from: Source,
        /// What it should look like.
        text: String,
    },
    /// A file that holds one value cannot be read.
    #[error("the file that {0} names cannot be read")]
    ValueFile(String, #[source] std::io::Error),
    /// An option given both ways.
    #[error("{0} and {0}_FILE are both set; only one may be")]
    Both(String),
    /// Values that do not fit; one line for each rule.
    #[error("{}", .0.iter().map(Broken::to_string).collect::<Vec<_>>().join("\n"))]
    Rules(Vec<Broken>),
}

/// A rule that does not hold.
#[derive(Debug, thiserror::Error)]
#[error("{problem}{}", origin(.from))]
pub struct Broken {
    /// Which rule.
    pub problem: Problem,
    /// Where the option was set.
    pub from: Source,
}

/// Reads a configuration. Does not check whether the values fit.
///
/// `flags` are pairs of an option's name and a text. Of `environment` only the variables that begin with `RINGMESH_`
/// count; empty ones count as not set, as container tools pass them on.
///
/// # Errors
/// The first thing that cannot be read.
pub fn load(
    file: Option<&Path>,
    environment: impl IntoIterator<Item = (OsString, OsString)>,
    flags: &[(&str, &str)],
) -> Result<Loaded, Error> {
    let mut loaded = Loaded {
        config: Config::default(),
        sources: BTreeMap::new(),
    };
    if let Some(path) = file {
        loaded.read_file(path)?;
    }
    loaded.read_environment(environment)?;
    for (name, text) in flags {
        let definition = find(name).ok_or_else(|| unknown(format!("the flag {name}"), name, names()))?;
        loaded.set(definition, text, Source::Flag(format!("--{}", definition.flag())))?;
    }
    Ok(loaded)
}

impl Loaded {
    fn set(&mut self, definition: &Definition, text: &str, from: Source) -> Result<(), Error> {
        if let Err(expected) = (definition.set)(&mut self.config, text) {
            let text = match definition.secret {
                true => expected,
                false => format!("{expected}, not {text:?}"),
            };
            return Err(Error::Value {
                option: definition.name,
                from,
                text,
            });
        }
        self.sources.insert(definition.name, from);
        Ok(())
    }

    fn read_file(&mut self, path: &Path) -> Result<(), Error> {
        let text = std::fs::read_to_string(path).map_err(|error| Error::File(path.to_owned(), error))?;
        self.read_text(path, &text)
    }

    fn read_text(&mut self, path: &Path, text: &str) -> Result<(), Error> {
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| Error::Syntax {
            path: path.to_owned(),
            line: 1 + text[..error.span().map_or(0, |span| span.start.min(text.len()))]
                .matches('\n')
                .count(),
            text: error.message().to_owned(),
        })?;
        for (key, value) in &table {
            let definition = find(key)
                .ok_or_else(|| unknown(format!("the key {key} in {}", path.display()), key, names()))?;
            let from = Source::File(path.to_owned());
            (definition.set_toml)(&mut self.config, value).map_err(|text| Error::Value {
                option: definition.name,
                from: from.clone(),
                text,
            })?;
            self.sources.insert(definition.name, from);
        }
        Ok(())
    }

    fn read_environment(
        &mut self,
        environment: impl IntoIterator<Item = (OsString, OsString)>,
    ) -> Result<(), Error> {
        let mut variables = ours(environment);
        for definition in OPTIONS {
            let name = definition.variable();
            let direct = variables.remove(&name);
            let file_name = format!("{name}_FILE");
            let file = if definition.from_file {
                variables.remove(&file_name)
            } else {
                None
            };
            let (name, value) = match (direct, file) {
                (Some(_), Some(_)) => return Err(Error::Both(name)),
                (Some(value), None) => {
                    let value = value.into_string().map_err(|_| Error::Value {
                        option: definition.name,
                        from: Source::Environment(name.clone()),
                        text: "is not UTF-8".to_owned(),
                    })?;
                    (name, value)
                }
                (None, Some(path)) => {
                    let value = std::fs::read_to_string(path)
                        .map_err(|error| Error::ValueFile(file_name.clone(), error))?;
                    (file_name, value.trim_end_matches(['\r', '\n']).to_owned())
                }
                (None, None) => continue,
            };
            self.set(definition, &value, Source::Environment(name))?;
        }
        refuse_others(&variables)
    }
}

/// Reads a file's text alone.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn load_text(text: &str) -> Result<Loaded, Error> {
    let mut loaded = Loaded {
        config: Config::default(),
        sources: BTreeMap::new(),
    };
    loaded.read_text(Path::new("fuzzed.toml"), text)?;
    Ok(loaded)
}

/// Variables that begin with `RINGMESH_`; empty ones count as not set.
fn ours(environment: impl IntoIterator<Item = (OsString, OsString)>) -> BTreeMap<String, OsString> {
    // Sorted, so that of two errors always the same one is reported.
    environment
        .into_iter()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value)))
        .filter(|(name, value)| name.starts_with("RINGMESH_") && !value.is_empty())
        .collect()
}

/// Refuses variables that are not in [`ENVIRONMENT`].
fn refuse_others(variables: &BTreeMap<String, OsString>) -> Result<(), Error> {
    for (name, value) in variables {
        let known = ENVIRONMENT.iter().any(|(known, _)| known == name);
        if !known && !from_kubernetes(name, &value.to_string_lossy()) {
            let all = OPTIONS.iter().map(Definition::variable);
            let all = all.chain(ENVIRONMENT.iter().map(|(name, _)| (*name).to_owned()));
            return Err(unknown(format!("the environment variable {name}"), name, all));
        }
    }
    Ok(())
}

/// Refuses variables that begin with `RINGMESH_` and that nobody reads, for commands that are no nodes: a misspelt one would
/// go unnoticed. Values are not looked at.
///
/// # Errors
/// [`Error::Unknown`] for the first one.
pub fn check_names(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<(), Error> {
    let mut variables = ours(environment);
    for definition in OPTIONS {
        let name = definition.variable();
        variables.remove(&name);
        if definition.from_file {
            variables.remove(&format!("{name}_FILE"));
        }
    }
    refuse_others(&variables)
}

/// The token of the environment alone, for clients: that of `RINGMESH_TOKEN`, or of the file that `RINGMESH_TOKEN_FILE` names.
///
/// # Errors
/// When both are set, or when it cannot be read.
pub fn token(environment: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Option<Secret>, Error> {
    let about_it =
        |(name, _): &(OsString, OsString)| name == "RINGMESH_TOKEN" || name == "RINGMESH_TOKEN_FILE";
    let loaded = load(None, environment.into_iter().filter(about_it), &[])?;
    Ok(loaded.config.token)
}

/// Where a value was set, for the end of a sentence.
fn origin(from: &Source) -> String {
    match from {
        Source::Default => String::new(),
        from => format!(" (from {from})"),
    }
}

fn find(name: &str) -> Option<&'static Definition> {
    OPTIONS.iter().find(|definition| definition.name == name)
}

fn names() -> impl Iterator<Item = String> {
    OPTIONS.iter().map(|definition| definition.name.to_owned())
}

fn unknown(place: String, given: &str, known: impl Iterator<Item = String>) -> Error {
    let nearest = known.min_by_key(|name| distance(name, given)).unwrap_or_default();
    Error::Unknown { place, nearest }
}

/// Kubernetes gives every container variables about each service of its namespace; one called `ringmesh` must not keep
/// the nodes from starting.
fn from_kubernetes(name: &str, value: &str) -> bool {
    name.ends_with("_SERVICE_HOST")
        || name.contains("_SERVICE_PORT")
        || (name.contains("_PORT")
            && (value.contains("://") || name.contains("_TCP_") || name.contains("_UDP_")))
}

/// How many letters must be added, removed or exchanged to make one of the other (Levenshtein).
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let exchanged = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = exchanged.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}
