//! What comes out: the figures for `--json`, and a report for a person.

use std::fmt::{self, Write};

use serde::Serialize;

use super::check::Verdict;
use super::flights::{Aircraft, Flight};
use super::logbook::Logbook;
use super::screen::grouped;
use super::story::{Pauses, Story};
use crate::store::demo::Stuck;

/// Miles around the Earth, at the equator.
const EARTH: i64 = 24_901;

/// The figures of one run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Figures {
    /// Flights whose submit was answered with 2xx.
    pub(crate) accepted: usize,
    /// Entries in Postgres.
    pub(crate) effects: usize,
    /// Accepted flights without an entry.
    pub(crate) lost: usize,
    /// Flights with more than one.
    pub(crate) doubled: usize,
    /// Entries with a line below an earlier one's of their aircraft.
    pub(crate) out_of_order: usize,
    /// Aircraft whose logbook differs from the recomputation.
    pub(crate) wrong_aircraft: usize,
    /// Slots whose epoch changed after the kill, before the node was started again.
    pub(crate) slots_moved_on_death: usize,
    /// Slots that the dead node owned.
    pub(crate) slots_of_dead_node: usize,
    /// Slots that moved on the death and were not the dead node's.
    pub(crate) other_slots_moved: usize,
    /// From the kill (or the submit, if later) to the next commit, over the dead node's slots with a flight that waited;
    /// null without any.
    pub(crate) gap_ms_p50: Option<f64>,
    /// The longest of these.
    pub(crate) gap_ms_max: Option<f64>,
    /// From the last commit before a handoff to the first after it (or from the submit, if later), the longest.
    pub(crate) drain_gap_ms_max: Option<f64>,
    /// Writes that Postgres refused for their fence, as the nodes counted them. What a killed node counted in its last half
    /// second is not known.
    pub(crate) fenced_writes: u64,
    /// The share of effects whose run found its aircraft in the node's memory.
    pub(crate) cache_hit_ratio: f64,
    /// Effects per second, from the first submit to the last effect.
    pub(crate) tasks_per_s: f64,
    /// From the first submit to the last effect.
    pub(crate) seconds: f64,
}

impl Figures {
    /// Gathers them. `warm`: effects whose run found its aircraft in memory.
    pub(crate) fn of(verdict: Verdict, story: &Story, warm: usize, seconds: f64, fenced_writes: u64) -> Self {
        let death = story.death.as_ref();
        let gap = death.map(|death| death.pauses).unwrap_or_default();
        let drain_gap = story.drain.as_ref().map(|drain| drain.pauses).unwrap_or_default();
        let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
        let effects = verdict.effects as f64;
        Figures {
            accepted: verdict.accepted,
            effects: verdict.effects,
            lost: verdict.lost,
            doubled: verdict.doubled,
            out_of_order: verdict.out_of_order,
            wrong_aircraft: verdict.wrong_aircraft,
            slots_moved_on_death: death.map_or(0, |death| death.moved),
            slots_of_dead_node: death.map_or(0, |death| death.slots),
            other_slots_moved: death.map_or(0, |death| death.others),
            gap_ms_p50: gap.p50_ms.map(|ms| rounded(ms, 10.0)),
            gap_ms_max: gap.max_ms.map(|ms| rounded(ms, 10.0)),
            drain_gap_ms_max: drain_gap.max_ms.map(|ms| rounded(ms, 10.0)),
            fenced_writes,
            cache_hit_ratio: rounded(share(warm as f64, effects), 10_000.0),
            tasks_per_s: rounded(share(effects, seconds), 10.0),
            seconds: rounded(seconds, 1000.0),
        }
    }

    /// Whether the promises held: nothing lost, doubled, out of order or wrong, and no slot moved that had no reason to.
    pub(crate) fn is_clean(&self) -> bool {
        [
            self.lost,
            self.doubled,
            self.out_of_order,
            self.wrong_aircraft,
            self.other_slots_moved,
        ]
        .iter()
        .all(|count| *count == 0)
    }
}

fn rounded(value: f64, steps: f64) -> f64 {
    (value * steps).round() / steps
}

/// All that the report tells.
#[derive(Debug)]
pub(crate) struct Report<'a> {
    pub(crate) figures: &'a Figures,
    pub(crate) story: &'a Story,
    pub(crate) flights: &'a [(String, Flight)],
    pub(crate) register: &'a [(String, Aircraft)],
    pub(crate) logbooks: &'a [(String, Logbook)],
    pub(crate) stuck: &'a [Stuck],
    pub(crate) nodes: usize,
    /// Batches that had to be sent again.
    pub(crate) repeated: usize,
    /// Where the state is, and how to look at it: a word and a text for each line.
    pub(crate) state: Vec<(&'static str, String)>,
    /// Whether headings may be bold.
    pub(crate) bold: bool,
}

impl fmt::Display for Report<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.title(f)?;
        self.month(f)?;
        self.proof(f)?;
        self.moves(f)?;
        self.heading(f, "State")?;
        for (word, text) in &self.state {
            writeln!(f, "  {word:<16}{text}")?;
        }
        writeln!(f)?;
        self.last_word(f)
    }
}

impl Report<'_> {
    fn heading(&self, f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
        if self.bold {
            writeln!(f, "\n\x1b[1m{text}\x1b[0m")
        } else {
            writeln!(f, "\n{text}")
        }
    }

    fn title(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let aircraft = grouped(self.logbooks.len());
        let (flights, nodes) = (grouped(self.figures.accepted), self.nodes);
        let text =
            format!("{flights} flights of {aircraft} aircraft, one task each, on a mesh of {nodes} nodes");
        self.heading(f, &text)
    }

    fn month(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dates = || {
            self.flights
                .iter()
                .map(|(_, f)| f.date.as_str())
                .filter(|d| !d.is_empty())
        };
        let heading = match (dates().min(), dates().max()) {
            (Some(first), Some(last)) if first != last => format!("The logbooks, {first} to {last}"),
            (Some(day), _) => format!("The logbooks of {day}"),
            _ => "The logbooks".to_owned(),
        };
        self.heading(f, &heading)?;
        if let Some((tailnum, logbook)) = self.most(|logbook| logbook.flights) {
            let text = format!("{} with {} departures", self.named(tailnum), logbook.flights);
            writeln!(f, "  {:<16}{text}", "busiest")?;
        }
        if let Some((tailnum, logbook)) = self.most(|logbook| logbook.longest_run) {
            let run = logbook.longest_run;
            let text = format!(
                "{}: {run} departures in a row less than 15 minutes late",
                self.named(tailnum)
            );
            writeln!(f, "  {:<16}{text}", "most punctual")?;
        }
        if let Some((tailnum, logbook)) = self.most(|logbook| logbook.miles) {
            let (miles, hours) = (count(logbook.miles), count(logbook.air_minutes / 60));
            let text = format!("{}: {miles} miles, {hours} hours in the air", self.named(tailnum));
            writeln!(f, "  {:<16}{text}", "farthest")?;
        }
        let sum = |of: fn(&Logbook) -> i64| -> i64 { self.logbooks.iter().map(|(_, l)| of(l)).sum() };
        let miles = sum(|logbook| logbook.miles);
        let mut all = format!("{} miles", count(miles));
        if miles >= 2 * EARTH {
            let _ = write!(all, ", {} times around the Earth", count(miles / EARTH));
        }
        let _ = write!(
            all,
            "; {} hours in the air",
            count(sum(|logbook| logbook.air_minutes) / 60)
        );
        writeln!(f, "  {:<16}{all}", "all together")?;
        let (departed, cancelled) = (sum(|l| l.flights), sum(|l| l.cancellations));
        writeln!(
            f,
            "  {:<16}{} departed, {} were cancelled",
            "",
            count(departed),
            count(cancelled)
        )
    }

    /// The aircraft with the highest value above 0, by name when there are several. The collective key of flights without a
    /// tail number is no aircraft.
    fn most(&self, of: fn(&Logbook) -> i64) -> Option<(&str, &Logbook)> {
        let aircraft = self
            .logbooks
            .iter()
            .filter(|(t, l)| t != super::flights::NO_TAILNUM && of(l) > 0);
        let most = aircraft.max_by(|(a, x), (b, y)| of(x).cmp(&of(y)).then_with(|| b.cmp(a)));
        most.map(|(tailnum, logbook)| (tailnum.as_str(), logbook))
    }

    /// The tail number, and what the register says of it.
    fn named(&self, tailnum: &str) -> String {
        let found = self.register.iter().find(|(known, _)| known == tailnum);
        let known = found.map(|(_, aircraft)| {
            let words = [aircraft.manufacturer.as_deref(), aircraft.model.as_deref()];
            let year = aircraft.year.map(|year| format!("of {year}"));
            let words: Vec<&str> = words.into_iter().chain([year.as_deref()]).flatten().collect();
            words.join(" ")
        });
        match known.filter(|known| !known.is_empty()) {
            Some(known) => plain(&format!("{tailnum} ({known})")),
            None => plain(tailnum),
        }
    }

    fn proof(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.heading(f, "The proof: all logbooks recomputed in one pass over the file")?;
        let figures = self.figures;
        let rows = [
            ("accepted", figures.accepted, "submits answered with 2xx"),
            ("effects", figures.effects, "entries in Postgres"),
            ("lost", figures.lost, "accepted, but without an entry"),
            ("doubled", figures.doubled, "with more than one entry"),
            (
                "out of order",
                figures.out_of_order,
                "entered after a later flight of the same aircraft",
            ),
            (
                "wrong aircraft",
                figures.wrong_aircraft,
                "logbooks that differ from the recomputation",
            ),
        ];
        for (name, value, meaning) in rows {
            writeln!(f, "  {name:<16}{:>9}  {meaning}", grouped(value))?;
        }
        for task in self.stuck {
            let error = task.error.as_deref().unwrap_or("no error");
            let (slot, id, key) = (task.slot, task.id, &task.key);
            let text = format!(
                "task {slot}-{id} of {key} is {}: {} failures, {error}",
                task.state, task.failures
            );
            writeln!(f, "  {}", plain(&text))?;
        }
        Ok(())
    }

    fn moves(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.heading(
            f,
            "The mesh: what moved, and how long those who waited had to wait",
        )?;
        let mut rows = Vec::new();
        if let Some(death) = &self.story.death {
            rows.push(Move::new(
                &format!("{} killed", death.node),
                death.slots,
                death.moved,
                death.others,
                death.pauses,
            ));
            if let Some(rejoin) = &self.story.rejoin {
                let text = format!("{} again", death.node);
                let mut row = Move::new(&text, 0, rejoin.moved, rejoin.others, Pauses::default());
                row.slots = "-".into();
                rows.push(row);
            }
        }
        if let Some(drain) = &self.story.drain {
            rows.push(Move::new(
                &format!("{} drained", drain.node),
                drain.slots,
                drain.moved,
                drain.others,
                drain.pauses,
            ));
        }
        if rows.is_empty() {
            writeln!(f, "  nothing was killed or drained")?;
        } else {
            let (had, moved, others) = ("its slots", "moved", "others");
            let (waited, p50, max) = ("waited for", "pause p50", "max");
            writeln!(
                f,
                "  {:<14}{had:>11}{moved:>9}{others:>9}{waited:>13}{p50:>12}{max:>12}",
                ""
            )?;
        }
        for row in rows {
            let Move {
                what,
                slots,
                moved,
                others,
                waited,
                p50,
                max,
            } = row;
            writeln!(
                f,
                "  {what:<14}{slots:>11}{moved:>9}{others:>9}{waited:>13}{p50:>12}{max:>12}"
            )?;
        }
        if let Some(death) = &self.story.death {
            let how = match death.fenced_as.as_deref() {
                Some("noticed") => "fenced because its session ended",
                Some("expired") => "fenced because its lease expired",
                Some("replaced") => "fenced by its successor",
                _ => "not fenced",
            };
            let healed = death
                .healed_ms
                .map_or("not all slots found new owners".to_owned(), |ms| {
                    format!("all slots with new owners {ms:.0} ms after the kill")
                });
            writeln!(f, "  {} was {how}; {healed}", death.node)?;
        }
        if let Some(drain) = self.story.drain.as_ref().filter(|drain| !drain.ended_well) {
            writeln!(
                f,
                "  {} did not end by itself with exit code 0 after its drain",
                drain.node
            )?;
        }
        let figures = self.figures;
        writeln!(
            f,
            "  {:.1} % of runs found their aircraft in memory; {} writes were fenced off; {} batches sent again",
            figures.cache_hit_ratio * 100.0,
            figures.fenced_writes,
            self.repeated,
        )?;
        writeln!(
            f,
            "  {:.0} tasks/s over {:.1} s",
            figures.tasks_per_s, figures.seconds
        )
    }

    fn last_word(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let figures = self.figures;
        if figures.is_clean() {
            let mut text =
                "Every flight has its effect exactly once, in order, in the right logbook".to_owned();
            if self.story.death.is_some() {
                text.push_str(", and no slot moved but the dead node's");
            }
            return writeln!(f, "{text}.");
        }
        writeln!(
            f,
            "NOT AS PROMISED: {} lost, {} doubled, {} out of order, {} aircraft wrong, {} other slots moved.",
            figures.lost,
            figures.doubled,
            figures.out_of_order,
            figures.wrong_aircraft,
            figures.other_slots_moved
        )
    }
}

/// A row of the table of moves.
struct Move {
    what: String,
    slots: String,
    moved: String,
    others: String,
    waited: String,
    p50: String,
    max: String,
}

impl Move {
    fn new(what: &str, slots: usize, moved: usize, others: usize, pauses: Pauses) -> Self {
        let ms = |value: Option<f64>| value.map_or("-".to_owned(), |ms| format!("{ms:.0} ms"));
        let waited = if pauses.slots == 0 {
            "-".to_owned()
        } else {
            grouped(pauses.slots)
        };
        Move {
            what: what.to_owned(),
            slots: grouped(slots),
            moved: grouped(moved),
            others: grouped(others),
            waited,
            p50: ms(pauses.p50_ms),
            max: ms(pauses.max_ms),
        }
    }
}

fn count(number: i64) -> String {
    grouped(usize::try_from(number).unwrap_or(0))
}

/// Text from a file, for a terminal: control characters could move its cursor.
fn plain(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '?' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::check::{compare, recompute};
    use crate::demo::flights::Input;

    fn figures(verdict: Verdict) -> Figures {
        Figures::of(verdict, &Story::default(), 0, 2.0, 0)
    }

    #[test]
    fn the_figures_have_the_names_that_readers_expect() {
        let json = serde_json::to_value(figures(Verdict::default())).unwrap();
        let names: Vec<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        let mut expected = [
            "accepted",
            "effects",
            "lost",
            "doubled",
            "out_of_order",
            "wrong_aircraft",
            "slots_moved_on_death",
            "slots_of_dead_node",
            "other_slots_moved",
            "gap_ms_p50",
            "gap_ms_max",
            "drain_gap_ms_max",
            "fenced_writes",
            "cache_hit_ratio",
            "tasks_per_s",
            "seconds",
        ];
        expected.sort_unstable();
        let mut names = names;
        names.sort_unstable();
        assert_eq!(names, expected);
    }

    #[test]
    fn any_broken_promise_makes_the_run_fail() {
        assert!(
            figures(Verdict {
                accepted: 3,
                effects: 3,
                ..Verdict::default()
            })
            .is_clean()
        );
        let broken: [fn(&mut Figures); 5] = [
            |f| f.lost = 1,
            |f| f.doubled = 1,
            |f| f.out_of_order = 1,
            |f| f.wrong_aircraft = 1,
            |f| f.other_slots_moved = 1,
        ];
        for break_it in broken {
            let mut figures = figures(Verdict::default());
            break_it(&mut figures);
            assert!(!figures.is_clean());
        }
    }

    #[test]
    fn the_report_of_the_built_in_month_tells_its_facts() {
        let input = Input::read(None, None).unwrap();
        let logbooks: Vec<(String, Logbook)> = recompute(&input.flights)
            .into_iter()
            .map(|(tailnum, l)| (tailnum.to_owned(), l))
            .collect();
        let verdict = compare(&input.flights, 0, &[], &logbooks);
        assert_eq!(verdict, Verdict::default());
        let verdict = Verdict {
            accepted: 26_849,
            effects: 26_849,
            ..verdict
        };
        let report = Report {
            figures: &figures(verdict),
            story: &Story::default(),
            flights: &input.flights,
            register: &input.register,
            logbooks: &logbooks,
            stuck: &[],
            nodes: 5,
            repeated: 0,
            state: vec![("database", "here".into())],
            bold: false,
        }
        .to_string();
        for fact in [
            "26,849 flights of 3,148 aircraft",
            "2013-01-01 to 2013-01-31",
            "26,483 departed, 366 were cancelled",
            "exactly once, in order",
        ] {
            assert!(report.contains(fact), "{fact}: {report}");
        }
    }
}
