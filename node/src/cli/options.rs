//! The flags of a node, one for each option of its configuration.

use std::path::PathBuf;
use std::sync::LazyLock;

use clap::{Arg, ArgMatches, Command};
use ringmesh::config::{self, Definition, Loaded, OPTIONS};

use super::failure::Failure;

/// What was given of a node's options.
#[derive(Debug, Clone, Default)]
pub(crate) struct NodeOptions {
    file: Option<PathBuf>,
    flags: Vec<(&'static str, String)>,
}

impl NodeOptions {
    /// Reads the configuration from all its sources. Whether its values fit is not checked yet.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let flags: Vec<(&str, &str)> = self
            .flags
            .iter()
            .map(|(name, text)| (*name, text.as_str()))
            .collect();
        config::load(self.file.as_deref(), std::env::vars_os(), &flags).map_err(Failure::usage)
    }
}

static FLAGS: LazyLock<Vec<String>> = LazyLock::new(|| OPTIONS.iter().map(Definition::flag).collect());

fn augment(command: Command) -> Command {
    let file = Arg::new("config")
        .long("config")
        .value_name("FILE")
        .env("RINGMESH_CONFIG")
        .value_parser(clap::value_parser!(PathBuf))
        .help("Read options from this TOML file");
    let flags = OPTIONS
        .iter()
        .zip(FLAGS.iter())
        .filter(|(option, _)| !option.secret);
    let defaults = config::Config::default();
    let flags = flags.map(|(option, flag)| {
        let text = option
            .doc
            .iter()
            .map(|line| line.trim())
            .collect::<Vec<_>>()
            .join(" ");
        let first = text
            .split_inclusive(". ")
            .next()
            .unwrap_or_default()
            .trim()
            .trim_end_matches('.')
            .to_owned();
        let default = match option.default_text {
            "" => option.show(&defaults).map(|value| format!(" [default: {value}]")),
            words => Some(format!(" [default: {words}]")),
        };
        let default = default.unwrap_or_default();
        Arg::new(option.name)
            .long(flag.as_str())
            .value_name("VALUE")
            .allow_hyphen_values(true)
            .help(format!("{first}{default}"))
            .long_help(format!(
                "{text} {}.{default} [variable: {}]",
                capital(option.shape),
                option.variable()
            ))
            .help_heading("Options of the node")
    });
    command.arg(file).args(flags).after_help(
        "Options come from flags, then RINGMESH_ variables, then the file, then defaults. The secrets `token` and \
         `cluster_secret` have no flags: set RINGMESH_TOKEN and RINGMESH_CLUSTER_SECRET, or name files that hold them by \
         RINGMESH_TOKEN_FILE and RINGMESH_CLUSTER_SECRET_FILE. All options: docs/configuration.md.",
    )
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}

impl clap::FromArgMatches for NodeOptions {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut options = NodeOptions::default();
        options.update_from_arg_matches(matches)?;
        Ok(options)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        self.file = matches
            .get_one::<PathBuf>("config")
            .filter(|file| !file.as_os_str().is_empty())
            .cloned();
        for option in OPTIONS.iter().filter(|option| !option.secret) {
            if let Some(text) = matches.get_one::<String>(option.name) {
                self.flags.push((option.name, text.clone()));
            }
        }
        Ok(())
    }
}

impl clap::Args for NodeOptions {
    fn augment_args(command: Command) -> Command {
        augment(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        augment(command)
    }
}
