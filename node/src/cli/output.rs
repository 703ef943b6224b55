//! What goes to standard output.

use std::io::{IsTerminal, Write};

use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use super::failure::Failure;

/// Prints a text and ends its line.
pub(crate) fn text(text: impl std::fmt::Display) -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    writeln!(out, "{text}")
        .and_then(|()| out.flush())
        .map_err(Failure::failed)
}

/// Prints one line of JSON.
pub(crate) fn json(value: &impl Serialize) -> Result<(), Failure> {
    text(serde_json::to_string(value).map_err(Failure::failed)?)
}

/// Clears the screen of a terminal.
pub(crate) fn clear() -> Result<(), Failure> {
    let mut out = std::io::stdout().lock();
    write!(out, "\x1b[H\x1b[2J").map_err(Failure::failed)
}

/// A number and what it counts: `1 node`, `2 nodes`.
pub(crate) fn count(number: u64, one: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {one}{plural}")
}

/// A line on standard error that says how it stands: on a terminal it is written over, elsewhere it is told once.
#[derive(Debug, Default)]
pub(crate) struct Status {
    shown: String,
}

impl Status {
    /// Shows a text in place of the one before.
    pub(crate) fn show(&mut self, text: &str) {
        let terminal = std::io::stderr().is_terminal();
        if terminal {
            eprint!("\r\x1b[K{text}");
        } else if text != self.shown {
            eprintln!("{text}");
        }
        text.clone_into(&mut self.shown);
    }

    /// Takes it away.
    pub(crate) fn clear(&mut self) {
        if !self.shown.is_empty() && std::io::stderr().is_terminal() {
            eprint!("\r\x1b[K");
        }
        self.shown.clear();
    }
}

/// Whether colours and cursor movements may be used.
pub(crate) fn is_terminal() -> bool {
    std::io::stdout().is_terminal()
}

/// Whether colours are wanted.
pub(crate) fn colours() -> bool {
    is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// A table without lines, so that other programs can read its columns too.
pub(crate) fn table<const N: usize>(header: [&str; N]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    // Lines are cut to a terminal's width only where there is one.
    if is_terminal() {
        table.set_content_arrangement(ContentArrangement::Dynamic);
    }
    table.set_header(header);
    table
}

/// A table's text, without the space in front of each line and those at its end.
pub(crate) fn lines(table: &Table) -> String {
    let lines = table
        .lines()
        .map(|line| line.strip_prefix(' ').unwrap_or(&line).trim_end().to_owned());
    lines.collect::<Vec<_>>().join("\n")
}

/// A bar for a part of a whole, eight steps to a character.
pub(crate) fn bar(part: u64, whole: u64, width: u64) -> String {
    const STEPS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    if whole == 0 {
        return String::new();
    }
    let eighths = part.min(whole) * width * 8 / whole;
    let full = usize::try_from(eighths / 8).unwrap_or_default();
    let rest = usize::try_from(eighths % 8).unwrap_or_default();
    format!("{}{}", "█".repeat(full), STEPS[rest])
}

/// Text of others for a terminal: control characters, which could move its cursor or change its title, are escaped.
pub(crate) fn plain(text: &str) -> String {
    text.chars()
        .flat_map(|c| {
            if c.is_control() {
                c.escape_default().collect::<Vec<_>>()
            } else {
                vec![c]
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_part() {
        assert_eq!(bar(0, 8, 4), "");
        assert_eq!(bar(8, 8, 4), "████");
        assert_eq!(bar(9, 8, 4), "████");
        assert_eq!(bar(3, 8, 4), "█▌");
        assert_eq!(bar(1, 0, 4), "");
    }

    #[test]
    fn a_key_cannot_steer_the_terminal() {
        assert_eq!(plain("a\u{1b}[2Jé\n"), "a\\u{1b}[2Jé\\n");
    }
}
