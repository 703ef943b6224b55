//! What is shown of a matrix: a table of points and actions, and what went wrong.

use std::fmt;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};
use serde::{Serialize, Serializer};

use super::plan::{Action, Cell, IMPOSSIBLE, WAYS, impossible};
use crate::check::Violation;
use crate::run::figures::Figures;
use crate::run::report::violations;

/// What became of a cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "verdict", content = "why", rename_all = "snake_case")]
pub enum Verdict {
    /// Its point acted, and all was well afterwards.
    Acted,
    /// Its point was not seen to act in time.
    NotReached,
    /// Not all was well.
    Failed(Vec<String>),
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Verdict::Acted => f.write_str("ok"),
            Verdict::NotReached => f.write_str("NOT REACHED"),
            Verdict::Failed(why) => write!(f, "FAILED: {}", why.join("; ")),
        }
    }
}

/// A cell that was run.
#[derive(Debug, Serialize)]
pub struct Done {
    /// Which point.
    pub point: &'static str,
    /// What it did.
    pub action: Action,
    /// What came of it.
    #[serde(flatten)]
    pub verdict: Verdict,
    /// From arming to a whole mesh.
    pub ms: u64,
}

/// A whole run.
#[derive(Debug, Serialize)]
pub struct Report {
    /// What decided all that was random.
    pub seed: u64,
    /// What became of the cells, in the order in which they were run.
    #[serde(rename = "cells")]
    pub done: Vec<Done>,
    /// What was not as promised, and who says so.
    #[serde(serialize_with = "texts")]
    pub violations: Vec<(&'static str, Violation)>,
    /// Why the history proves nothing; empty: it does.
    pub lacks: Vec<String>,
    /// What was counted.
    pub figures: Figures,
    /// What happened when, a line each.
    #[serde(skip)]
    pub timeline: Vec<String>,
    /// Where logs are kept.
    #[serde(skip)]
    pub logs: Option<PathBuf>,
}

impl Report {
    /// Whether every cell has acted and every promise was kept.
    pub fn passed(&self) -> bool {
        let acted = |done: &Done| done.verdict == Verdict::Acted;
        self.done.iter().all(acted) && self.violations.is_empty() && self.lacks.is_empty()
    }
}

fn texts<S: Serializer>(found: &[(&'static str, Violation)], serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(
        found
            .iter()
            .map(|(checker, violation)| format!("{checker}: {}", violation.text)),
    )
}

/// The cells, and what makes nodes pass their points.
pub fn list(cells: &[Cell]) -> String {
    let mut table = new_table(&["cell", "armed", "by"]);
    for cell in cells {
        let armed = format!("n{}", cell.armed + 1);
        table.add_row([cell.name(), armed, cell.way.what().to_owned()]);
    }
    format!("{table}\n{}", reasons())
}

/// Points and actions, what cannot be, and the sums.
pub fn table(report: &Report) -> String {
    let mut table = new_table(&["point", "crash", "error", "delay", "drop"]);
    for (point, _) in WAYS {
        let cells = Action::ALL.map(|action| shown(report, point, action));
        // Not asked for.
        if cells.iter().any(|text| !text.is_empty() && text != NOT_POSSIBLE) {
            table.add_row([(*point).to_owned()].into_iter().chain(cells));
        }
    }
    let acted = report.done.iter().filter(|done| done.verdict == Verdict::Acted);
    let figures = &report.figures;
    format!(
        "{table}\n{}{} of {} cells ok; {} tasks, {} effects, {} lost, {} doubled, {} stale, {} reordered, {} other violations; \
         {} takeovers, {} writes refused, {} unknown commits",
        reasons(),
        acted.count(),
        report.done.len(),
        figures.tasks,
        figures.effects,
        figures.lost,
        figures.doubled,
        figures.stale,
        figures.reordered,
        figures.other_violations,
        figures.takeovers,
        figures.refused_writes,
        figures.unknown_commits,
    )
}

const NOT_POSSIBLE: &str = "not possible";

fn shown(report: &Report, point: &str, action: Action) -> String {
    if impossible(point, action).is_some() {
        return NOT_POSSIBLE.to_owned();
    }
    let mut cells = report.done.iter();
    let Some(done) = cells.find(|done| (done.point, done.action) == (point, action)) else {
        return String::new();
    };
    match done.verdict {
        Verdict::Acted => format!("ok {:.1} s", done.ms as f64 / 1000.0),
        Verdict::NotReached => "NOT REACHED".to_owned(),
        Verdict::Failed(_) => "FAILED".to_owned(),
    }
}

/// What cannot be, a line for each reason.
fn reasons() -> String {
    let mut lines: Vec<(Action, &str, Vec<&str>)> = Vec::new();
    for (point, action, why) in IMPOSSIBLE {
        match lines.iter_mut().find(|line| (line.0, line.1) == (*action, *why)) {
            Some(line) => line.2.push(point),
            None => lines.push((*action, why, vec![point])),
        }
    }
    let lines = lines.into_iter();
    lines
        .map(|(action, why, points)| format!("no {} of {}: {why}\n", action.name(), points.join(", ")))
        .collect()
}

fn new_table(head: &[&str]) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(head.iter().copied());
    table
}

/// What went wrong: seed, timeline, cells, violations; empty if nothing did.
pub fn failure(report: &Report) -> String {
    if report.passed() {
        return String::new();
    }
    let seed = report.seed;
    let mut text = format!("FAILED: matrix with seed {seed}; to repeat: matrix --seed {seed}\n");
    for line in &report.timeline {
        text += &format!("  {line}\n");
    }
    for done in report.done.iter().filter(|done| done.verdict != Verdict::Acted) {
        text += &format!("{}/{}: {}\n", done.point, done.action.name(), done.verdict);
    }
    for lack in &report.lacks {
        text += &format!("it proves nothing: {lack}\n");
    }
    text += &violations(&report.violations);
    if let Some(logs) = &report.logs {
        text += &format!("all logs are kept in {}\n", logs.display());
    }
    text
}

/// Writes what became of each cell, and the sums.
///
/// # Errors
/// The file cannot be written.
pub fn write(report: &Report, file: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(report)?;
    std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn report(verdicts: [Verdict; 3]) -> Report {
        let cells = [
            ("claimed", Action::Crash),
            ("handler", Action::Error),
            ("handler", Action::Delay),
        ];
        let done = cells
            .into_iter()
            .zip(verdicts)
            .map(|((point, action), verdict)| Done {
                point,
                action,
                verdict,
                ms: 1234,
            });
        Report {
            seed: 7,
            done: done.collect(),
            violations: Vec::new(),
            lacks: Vec::new(),
            figures: Figures::default(),
            timeline: vec!["0.000 s  all began".to_owned()],
            logs: None,
        }
    }

    #[test]
    fn a_table_shows_what_acted_what_cannot_be_and_what_failed() {
        let failed = Verdict::Failed(vec!["n2 ended".to_owned()]);
        let report = report([Verdict::Acted, Verdict::NotReached, failed]);
        let table = table(&report);
        let row = |point: &str| {
            let line = table.lines().find(|line| line.trim_start().starts_with(point));
            line.unwrap().split_whitespace().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(row("claimed"), "claimed ok 1.2 s");
        assert_eq!(row("handler"), "handler NOT REACHED FAILED not possible");
        assert!(!table.contains("fencing"), "it was not asked for");
        assert!(table.contains("no drop of handler, handled: "));
        assert!(table.contains("1 of 3 cells ok"));
        let failure = failure(&report);
        for part in [
            "seed 7",
            "all began",
            "handler/error: NOT REACHED",
            "handler/delay: FAILED: n2 ended",
        ] {
            assert!(failure.contains(part), "{failure}");
        }
    }

    #[test]
    fn one_cell_that_was_not_seen_to_act_fails_the_matrix() {
        let all = || [Verdict::Acted, Verdict::Acted, Verdict::Acted];
        assert!(report(all()).passed());
        assert_eq!(failure(&report(all())), "");
        let mut verdicts = all();
        verdicts[1] = Verdict::NotReached;
        assert!(!report(verdicts).passed());
        let mut empty = report(all());
        empty.lacks.push("no slot was taken over".to_owned());
        assert!(!empty.passed());
    }

    #[test]
    fn json_names_cell_by_cell_what_came_of_it() {
        let report = report([
            Verdict::Acted,
            Verdict::NotReached,
            Verdict::Failed(vec!["x".to_owned()]),
        ]);
        let json = serde_json::to_value(&report).unwrap();
        assert_eq!(json["cells"][0]["verdict"], "acted");
        assert_eq!(json["cells"][1]["action"], "error");
        assert_eq!(json["cells"][2]["why"][0], "x");
        assert_eq!(json["figures"]["lost"], 0);
    }
}
