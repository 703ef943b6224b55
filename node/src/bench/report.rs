//! The figures: as a table for people and as JSON for programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use comfy_table::{CellAlignment, Table, presets};
use serde::Serialize;

use super::BenchArgs;
use super::drain::Drain;
use super::floor::Floor;
use super::kill::{self, Kills};
use super::load::{Closed, quantile};
use super::start::{self, Start};
use super::submit::{BATCH, BATCH_CONNECTIONS, Submits};
use crate::store::bench::Facts;

/// All that was measured; `None`: not asked for.
#[derive(Debug)]
pub(super) struct Report {
    facts: Facts,
    args: BenchArgs,
    pub(super) submit: Option<Submits>,
    pub(super) drain_1: Option<Drain>,
    pub(super) drain_n: Option<Drain>,
    pub(super) floor: Option<Floor>,
    pub(super) start: Option<Start>,
    pub(super) kill: Option<Kills>,
    pub(super) leave: Option<Kills>,
}

/// The file's content; null: not measured.
#[derive(Debug, Serialize)]
struct Figures {
    submit_single_per_s: Option<f64>,
    submit_batch_per_s: Option<f64>,
    drain_1_per_s: Option<f64>,
    drain_n_per_s: Option<f64>,
    start_p50_ms: Option<f64>,
    start_p99_ms: Option<f64>,
    kill_gap_p50_ms: Option<f64>,
    kill_gap_max_ms: Option<f64>,
    floor: FloorFigures,
    more: More,
}

#[derive(Debug, Serialize)]
struct FloorFigures {
    submit_batch_per_s: Option<f64>,
    drain_per_s: Option<f64>,
}

/// What stands in the table beside the figures proper, and what they depend on.
#[derive(Debug, Serialize)]
struct More {
    submit_single_p50_ms: Option<f64>,
    submit_single_p99_ms: Option<f64>,
    submit_single_refusals: Option<usize>,
    submit_single_running_per_s: Option<f64>,
    drain_1_noticed_ms: Option<f64>,
    drain_n_noticed_ms: Option<f64>,
    start_rate_per_s: Option<f64>,
    start_max_ms: Option<f64>,
    start_submit_p50_ms: Option<f64>,
    start_submit_p99_ms: Option<f64>,
    kill_gap_p99_ms: Option<f64>,
    kill_slots: Option<usize>,
    kill_others_max_ms: Option<f64>,
    kill_submit_p99_ms: Option<f64>,
    kill_submit_max_ms: Option<f64>,
    kill_others_moved: Option<usize>,
    leave_gap_p50_ms: Option<f64>,
    leave_gap_p99_ms: Option<f64>,
    leave_gap_max_ms: Option<f64>,
    leave_slots: Option<usize>,
    leave_others_moved: Option<usize>,
    leave_claimed_again: Option<usize>,
    leave_failed: Option<usize>,
    tasks: u32,
    keys: u32,
    connections: u16,
    nodes: u16,
    kills: u16,
    cores: usize,
    postgres: String,
    settings: Vec<String>,
}

impl Report {
    pub(super) fn new(facts: Facts, args: &BenchArgs) -> Self {
        Self {
            facts,
            args: args.clone(),
            submit: None,
            drain_1: None,
            drain_n: None,
            floor: None,
            start: None,
            kill: None,
            leave: None,
        }
    }

    /// Writes the JSON file.
    pub(super) fn write(&self, file: &Path) -> std::io::Result<()> {
        let mut out = BufWriter::new(File::create(file)?);
        serde_json::to_writer_pretty(&mut out, &self.figures())?;
        writeln!(out)?;
        out.flush()
    }

    /// Prints the table to standard output.
    pub(super) fn print(&self) -> std::io::Result<()> {
        let mut out = std::io::stdout().lock();
        writeln!(out, "{}\n", self.heading())?;
        for line in self.table().lines() {
            writeln!(out, "{}", line.trim_end())?;
        }
        out.flush()
    }

    fn heading(&self) -> String {
        format!(
            "{} cores, shared by Postgres {}, the nodes and this load\n{}",
            cores(),
            self.facts.version,
            self.facts.settings.join(", ")
        )
    }

    fn table(&self) -> Table {
        let mut table = Table::new();
        table
            .load_style(presets::NOTHING)
            .set_header(["", "", "FLOOR", "RATIO", ""]);
        for column in 1..=3 {
            if let Some(column) = table.column_mut(column) {
                column.set_cell_alignment(CellAlignment::Right);
            }
        }
        let args = &self.args;
        if let Some(submit) = &self.submit {
            let p = |closed: &Closed| {
                let (p50, p99) = (
                    quantile(&closed.latencies, 0.5),
                    quantile(&closed.latencies, 0.99),
                );
                let refusals = match closed.refusals {
                    0 => String::new(),
                    some => format!("; {some} answers were 503"),
                };
                format!("p50 {}, p99 {}{refusals}", ms(p50), ms(p99))
            };
            let connections = args.connections;
            table.add_row(row(
                "submit, single",
                rate(submit.single.per_s),
                None,
                format!("{connections} connections to one node, {}", p(&submit.single)),
            ));
            table.add_row(row(
                "submit, single, while they run",
                rate(submit.single_running.per_s),
                None,
                p(&submit.single_running),
            ));
            table.add_row(row(
                "submit, batches",
                rate(submit.batch_per_s),
                self.ratio(submit.batch_per_s, |floor| floor.submit_per_s),
                format!("{BATCH} tasks each, {BATCH_CONNECTIONS} connections to one node"),
            ));
        }
        let drains = [(1, &self.drain_1), (args.nodes, &self.drain_n)];
        for (nodes, drain) in drains {
            if let Some(drain) = drain {
                table.add_row(row(
                    &format!("drain by {nodes}"),
                    rate(drain.per_s),
                    self.ratio(drain.per_s, |floor| floor.drain_per_s),
                    format!(
                        "{} tasks over {} keys; first start after {}",
                        args.tasks,
                        args.keys,
                        ms(drain.noticed_ms)
                    ),
                ));
            }
        }
        if let (Some(floor), None, None) = (&self.floor, &self.submit, &self.drain_1) {
            let text = |per_s| Some((rate(per_s), String::new()));
            table.add_row(row(
                "submit, batches",
                String::new(),
                text(floor.submit_per_s),
                String::new(),
            ));
            table.add_row(row(
                "drain",
                String::new(),
                text(floor.drain_per_s),
                String::new(),
            ));
        }
        if let Some(start) = &self.start {
            let load = format!(
                "{:.0} of {} submits/s sent, over {} nodes",
                start.rate,
                start::RATE,
                args.nodes
            );
            table.add_row(row("submit to start, p50", ms(start.p50), None, load));
            let rest = format!(
                "max {}; submit to 201: p50 {}, p99 {}",
                ms(start.max),
                ms(start.submit_p50),
                ms(start.submit_p99)
            );
            table.add_row(row("submit to start, p99", ms(start.p99), None, rest));
        }
        for (what, kill) in [("kill", &self.kill), ("drain", &self.leave)] {
            let Some(kill) = kill else { continue };
            let load = format!(
                "{} times, {} nodes, {} slots with tasks waiting; {} submits/s over {} keys",
                args.kills,
                args.nodes,
                kill.slots,
                kill::RATE,
                kill::KEYS
            );
            table.add_row(row(
                &format!("gap after a {what}, p50"),
                ms(kill.gap_p50),
                None,
                load,
            ));
            let rest = format!(
                "p99 {}; other slots: {} moved, max {}; {} tasks claimed again, {} failed; submit to 201: p99 {}, max {}",
                ms(kill.gap_p99),
                kill.others_moved,
                ms(kill.others_max),
                kill.claimed_again,
                kill.failed,
                ms(kill.submit_p99),
                ms(kill.submit_max)
            );
            table.add_row(row(
                &format!("gap after a {what}, max"),
                ms(kill.gap_max),
                None,
                rest,
            ));
        }
        table
    }

    /// The floor's rate, and which part of it was reached.
    fn ratio(&self, reached: f64, of: impl FnOnce(&Floor) -> f64) -> Option<(String, String)> {
        let floor = of(self.floor.as_ref()?);
        Some((rate(floor), format!("{:.2}", reached / floor)))
    }

    fn figures(&self) -> Figures {
        let (submit, floor) = (self.submit.as_ref(), self.floor.as_ref());
        let (start, kill, leave) = (self.start.as_ref(), self.kill.as_ref(), self.leave.as_ref());
        let single = |part| submit.map(|submit| quantile(&submit.single.latencies, part));
        Figures {
            submit_single_per_s: submit.map(|submit| submit.single.per_s),
            submit_batch_per_s: submit.map(|submit| submit.batch_per_s),
            drain_1_per_s: self.drain_1.map(|drain| drain.per_s),
            drain_n_per_s: self.drain_n.map(|drain| drain.per_s),
            start_p50_ms: start.map(|start| start.p50),
            start_p99_ms: start.map(|start| start.p99),
            kill_gap_p50_ms: kill.map(|kill| kill.gap_p50),
            kill_gap_max_ms: kill.map(|kill| kill.gap_max),
            floor: FloorFigures {
                submit_batch_per_s: floor.map(|floor| floor.submit_per_s),
                drain_per_s: floor.map(|floor| floor.drain_per_s),
            },
            more: More {
                submit_single_p50_ms: single(0.5),
                submit_single_p99_ms: single(0.99),
                submit_single_refusals: submit.map(|submit| submit.single.refusals),
                submit_single_running_per_s: submit.map(|submit| submit.single_running.per_s),
                drain_1_noticed_ms: self.drain_1.map(|drain| drain.noticed_ms),
                drain_n_noticed_ms: self.drain_n.map(|drain| drain.noticed_ms),
                start_rate_per_s: start.map(|start| start.rate),
                start_max_ms: start.map(|start| start.max),
                start_submit_p50_ms: start.map(|start| start.submit_p50),
                start_submit_p99_ms: start.map(|start| start.submit_p99),
                kill_gap_p99_ms: kill.map(|kill| kill.gap_p99),
                kill_slots: kill.map(|kill| kill.slots),
                kill_others_max_ms: kill.map(|kill| kill.others_max),
                kill_submit_p99_ms: kill.map(|kill| kill.submit_p99),
                kill_submit_max_ms: kill.map(|kill| kill.submit_max),
                kill_others_moved: kill.map(|kill| kill.others_moved),
                leave_gap_p50_ms: leave.map(|leave| leave.gap_p50),
                leave_gap_p99_ms: leave.map(|leave| leave.gap_p99),
                leave_gap_max_ms: leave.map(|leave| leave.gap_max),
                leave_slots: leave.map(|leave| leave.slots),
                leave_others_moved: leave.map(|leave| leave.others_moved),
                leave_claimed_again: leave.map(|leave| leave.claimed_again),
                leave_failed: leave.map(|leave| leave.failed),
                tasks: self.args.tasks,
                keys: self.args.keys,
                connections: self.args.connections,
                nodes: self.args.nodes,
                kills: self.args.kills,
                cores: cores(),
                postgres: self.facts.version.clone(),
                settings: self.facts.settings.clone(),
            },
        }
    }
}

fn row(name: &str, figure: String, floor: Option<(String, String)>, rest: String) -> [String; 5] {
    let (floor, ratio) = floor.unwrap_or_default();
    [name.into(), figure, floor, ratio, rest]
}

fn cores() -> usize {
    std::thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// `12,345/s`
fn rate(per_s: f64) -> String {
    let digits = format!("{per_s:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            text.push(',');
        }
        text.push(digit);
    }
    text + "/s"
}

/// Three digits, which is what such a measurement is good for.
fn ms(value: f64) -> String {
    match value {
        v if v < 10.0 => format!("{v:.2} ms"),
        v if v < 100.0 => format!("{v:.1} ms"),
        v => format!("{v:.0} ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_are_readable() {
        assert_eq!(rate(999.4), "999/s");
        assert_eq!(rate(1_234_567.0), "1,234,567/s");
        assert_eq!(ms(1.234), "1.23 ms");
        assert_eq!(ms(123.4), "123 ms");
    }
}
