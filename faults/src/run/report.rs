//! What is shown of runs: progress and failures on standard error, figures on standard output.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use comfy_table::{Table, presets};
use indicatif::{ProgressBar, ProgressStyle};

use super::ageing;
use super::figures::Figures;
use super::runner::{Job, Outcome};
use super::scenario::{self, Scenario};
use crate::check::Violation;
use crate::{check, fault, workload};

/// Rows shown of one violation, and violations shown of one run.
const ROWS: usize = 20;
const VIOLATIONS: usize = 30;

/// A line that says what is going on.
#[derive(Debug)]
pub struct Progress(ProgressBar);

impl Progress {
    /// Nothing yet.
    pub fn new() -> Progress {
        let bar = ProgressBar::new_spinner();
        if let Ok(style) = ProgressStyle::with_template("{spinner} {elapsed_precise} {msg}") {
            bar.set_style(style);
        }
        bar.enable_steady_tick(Duration::from_millis(500));
        Progress(bar)
    }

    /// A run goes on to its next phase, which takes about so long.
    pub fn phase(&self, job: &Job, phase: &str, within: Option<Duration>) {
        let within = within.map_or(String::new(), |within| format!(", up to {} s", within.as_secs()));
        self.0.set_message(format!(
            "{} (seed {}): {phase}{within}",
            job.scenario.name, job.seed
        ));
    }

    /// Something that takes long.
    pub fn say(&self, text: impl Into<String>) {
        self.0.set_message(text.into());
    }

    /// Prints a line that stays.
    pub fn line(&self, text: &str) {
        self.0.suspend(|| eprintln!("{text}"));
    }
}

impl Default for Progress {
    fn default() -> Progress {
        Progress::new()
    }
}

/// What went wrong in a run: seed, timeline, rows; empty if nothing did.
pub fn failure(outcome: &Outcome) -> String {
    if outcome.passed() {
        return String::new();
    }
    let Job {
        scenario,
        seed,
        length,
        ..
    } = &outcome.job;
    let what = if outcome.violations.is_empty() {
        "INVALID"
    } else {
        "FAILED"
    };
    let seconds = length.as_secs();
    let mut text = format!(
        "{what}: {} with seed {seed}; to repeat: --run {} --seed {seed} --seconds {seconds}\n",
        scenario.name, scenario.name
    );
    for line in &outcome.timeline {
        text += &format!("  {line}\n");
    }
    text += &ageing::table(&outcome.minutes);
    for reason in &outcome.invalid {
        text += &format!("it proves nothing: {reason}\n");
    }
    text += &violations(&outcome.violations);
    for (checker, violation) in outcome.tolerated.iter().take(ROWS) {
        text += &format!("allowed here: {checker}: {}\n", violation.text);
    }
    if let Some(logs) = &outcome.logs {
        text += &format!("all logs are kept in {}\n", logs.display());
    }
    text
}

/// What was not as promised, with the rows that show it, as far as it can be read.
pub fn violations(found: &[(&'static str, Violation)]) -> String {
    let mut text = String::new();
    for (checker, violation) in found.iter().take(VIOLATIONS) {
        text += &format!("{checker}: {}\n", violation.text);
        for row in violation.rows.iter().take(ROWS) {
            text += &format!("    {row}\n");
        }
        if violation.rows.len() > ROWS {
            text += &format!("    and {} more\n", violation.rows.len() - ROWS);
        }
    }
    if found.len() > VIOLATIONS {
        text += &format!("and {} more; in all", found.len() - VIOLATIONS);
        let mut kinds: BTreeMap<(&str, &str), u64> = BTreeMap::new();
        for (checker, violation) in found {
            *kinds.entry((checker, violation.kind)).or_default() += 1;
        }
        for ((checker, kind), count) in kinds {
            text += &format!(" {checker} {kind}: {count};");
        }
        text += "\n";
    }
    text
}

/// A row for each run, and their sum.
pub fn table(outcomes: &[Outcome], sum: &Figures) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header([
        "scenario",
        "seed",
        "s",
        "faults",
        "tasks",
        "effects",
        "lost",
        "doubled",
        "stale",
        "reordered",
        "other",
        "refused",
        "takeovers",
        "unknown",
        "kill p99 ms",
        "pause p99 ms",
        "quiet p99 ms",
        "result",
    ]);
    for outcome in outcomes {
        let job = &outcome.job;
        let result = match (outcome.violations.is_empty(), outcome.invalid.is_empty()) {
            (true, true) => "passed",
            (true, false) => "INVALID",
            (false, _) => "FAILED",
        };
        let head = [
            job.scenario.name.to_owned(),
            job.seed.to_string(),
            job.length.as_secs().to_string(),
        ];
        table.add_row(row(head, &outcome.figures, result));
    }
    let head = [format!("{} runs", outcomes.len()), String::new(), String::new()];
    let passed = outcomes.iter().filter(|outcome| outcome.passed()).count();
    table.add_row(row(head, sum, &format!("{passed} passed")));
    table
}

/// For how long slots stood still that a fault hit, a row for each kind of fault, then how soon deaths were noticed, what is promised
/// of kills, and then all others.
pub fn gaps(sum: &Figures) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["fault", "injected", "gaps", "p50 ms", "p99 ms", "max ms"]);
    for (id, injected) in &sum.faults_by_kind {
        let mut row = vec![id.clone(), injected.to_string()];
        match sum.gaps_ms.get(id) {
            Some(gaps) => {
                row.push(gaps.count.to_string());
                row.extend([gaps.p50, gaps.p99, gaps.max].map(|ms| format!("{ms:.0}")));
            }
            None => row.extend(["0", "-", "-", "-"].map(String::from)),
        }
        table.add_row(row);
    }
    for (age, after) in &sum.detection_ms {
        let mut row = vec![
            format!("declared dead after a kill, {age} nodes"),
            String::new(),
            after.count.to_string(),
        ];
        row.extend([after.p50, after.p99, after.max].map(|ms| format!("{ms:.0}")));
        table.add_row(row);
    }
    if let Some(p99) = sum.gap_ms_p99_kill {
        let most = check::KILL as f64 / 1000.0;
        let kept = if p99 <= most { "kept" } else { "NOT kept" };
        let promise = format!("promised of kills: p99 of {most:.0} ms, {kept}");
        table.add_row([promise.as_str(), "", "", "", &format!("{p99:.0}"), ""]);
    }
    if let (Some(quiet), Some(others)) = (sum.quiet_gap_ms_p999, sum.other_gap_ms_max) {
        table.add_row([
            "slots of others under kills and pauses".to_owned(),
            String::new(),
            String::new(),
            String::new(),
            format!("{quiet:.0} (p99.9, nothing broken)"),
            format!("{others:.0}"),
        ]);
    }
    table
}

/// Where in a row the lost tasks stand.
const LOST: usize = 6;

fn row(head: [String; 3], figures: &Figures, result: &str) -> Vec<String> {
    let ms = |gap: Option<f64>| gap.map_or("-".to_owned(), |gap| format!("{gap:.0}"));
    let mut row = Vec::from(head);
    row.extend(
        [
            figures.faults,
            figures.tasks,
            figures.effects,
            figures.lost,
            figures.doubled,
            figures.stale,
            figures.reordered,
            figures.other_violations,
            figures.refused_writes,
            figures.takeovers,
            figures.unknown_commits,
        ]
        .map(|count| count.to_string()),
    );
    if figures.lost_declared > 0 {
        row[LOST] += &format!(" (+{} declared)", figures.lost_declared);
    }
    row.extend(
        [
            figures.gap_ms_p99_kill,
            figures.gap_ms_p99_pause,
            figures.quiet_ms_p99,
        ]
        .map(ms),
    );
    row.push(result.to_owned());
    row
}

/// The scenarios, and what is left out.
pub fn list() -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    table.set_header(["name", "workload", "faults", "rhythm", "what", "must be seen"]);
    for scenario in &scenario::all() {
        table.add_row(listed(scenario));
    }
    let mut text = format!("{table}\n\nIn every run must hold:\n");
    for checker in check::all() {
        text += &format!("  {:4} {}\n", checker.id(), checker.title());
    }
    text += "\nWorkloads:\n";
    for workload in workload::all() {
        text += &format!("  {:4} {}\n", workload.id(), workload.what());
    }
    text += "\nFaults:\n";
    for fault in fault::all() {
        let can = fault
            .can()
            .err()
            .map(|why| format!(" (not on this machine: {why:#})"));
        text += &format!("  {:4} {}{}\n", fault.id(), fault.name(), can.unwrap_or_default());
    }
    text += "\nLeft out:\n";
    for (id, what, why) in check::UNCHECKED {
        text += &format!("  {id} {what}: {why}\n");
    }
    for (what, why) in scenario::LEFT_OUT {
        text += &format!("  {what}: {why}\n");
    }
    text
}

fn listed(scenario: &Scenario) -> [String; 6] {
    let rhythm = if scenario.faults.is_empty() {
        "-".to_owned()
    } else {
        scenario.rhythm.to_string()
    };
    let needs = [
        (scenario.needs.takeovers, "takeovers"),
        (scenario.needs.refused_writes, "refused writes"),
        (scenario.needs.unknown_commits, "unknown commits"),
        (scenario.needs.isolation, "isolation"),
        (scenario.needs_mismatches, "mismatches"),
    ];
    let needs: Vec<&str> = needs
        .into_iter()
        .filter(|(needed, _)| *needed)
        .map(|(_, what)| what)
        .collect();
    [
        scenario.name.to_owned(),
        scenario.workloads.join(" "),
        scenario.faults.join(" "),
        rhythm,
        scenario.what.to_owned(),
        needs.join(", "),
    ]
}

/// Writes the sums to a file.
///
/// # Errors
/// The file cannot be written.
pub fn write(figures: &Figures, file: &Path) -> Result<()> {
    let text = serde_json::to_string_pretty(figures)?;
    std::fs::write(file, text + "\n").with_context(|| format!("cannot write {}", file.display()))
}
