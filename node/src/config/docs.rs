//! `docs/configuration.md`, from the same list as everything else.

use std::fmt::Write as _;

use super::{Config, ENVIRONMENT, OPTIONS};

const HEAD: &str = "# Configuration

<!-- Written by `ringmesh config --markdown`; change node/src/config.rs instead. -->

A node takes each option from the first of these that gives it:

1. a flag (`ringmesh node --ttl 5s`);
2. an environment variable (`RINGMESH_TTL=5s`); an empty one counts as not set;
3. the TOML file named by `--config` or `RINGMESH_CONFIG` (`ttl = \"5s\"`);
4. its default.

Keys and `RINGMESH_` variables that do not exist are refused, with the nearest name that does; the other commands refuse
such variables too. All values are checked together when the node starts. `ringmesh config` prints the values in effect
(secrets masked), where each comes from, and all that does not fit; it takes the same flags, file and environment as
`ringmesh node`.

Durations have a unit: `500ms`, `3s`, `5m`, `24h`, `7days`. Secrets have no flag, since command lines are public on a host;
a variable that ends in `_FILE` names a file that holds the value, as container secrets do.

A program that embeds a node sets the same options as fields of `ringmesh::config::Config`.

## Options
";

/// The whole page.
pub fn markdown() -> String {
    let config = Config::default();
    let mut page = HEAD.to_owned();
    for option in OPTIONS {
        let default = match (option.default_text, option.show(&config)) {
            ("", Some(value)) => format!("`{value}`"),
            ("", None) => "not set".to_owned(),
            (words, _) => words.to_owned(),
        };
        let text: Vec<&str> = option.doc.iter().map(|line| line.trim()).collect();
        let mut ways = format!("`{}`", option.variable());
        if option.from_file {
            let _ = write!(ways, ", `{}_FILE`", option.variable());
        }
        if !option.secret {
            let _ = write!(ways, ", `--{}`", option.flag());
        }
        let _ = write!(
            page,
            "\n### `{}`\n\n{}\n\nDefault: {default}. Value: {}. Also: {ways}.\n",
            option.name,
            text.join("\n"),
            option.shape,
        );
    }
    page.push_str("\n## Other variables\n\n| variable | meaning |\n|---|---|\n");
    for (name, text) in ENVIRONMENT {
        let _ = writeln!(page, "| `{name}` | {text} |");
    }
    page
}
