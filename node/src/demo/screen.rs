//! What a person sees while the demo runs: on a terminal a bar, a line for each member, and events scrolling above; elsewhere
//! plain lines. All of it on standard error.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::io::IsTerminal;
use std::sync::atomic::Ordering;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ringmesh_ring::SLOTS;

use super::submit::Submitted;
use super::watch::{Stage, View};

/// How often the terminal is drawn.
const DRAW: Duration = Duration::from_millis(200);
/// How often a plain line is written.
const SAY: Duration = Duration::from_secs(3);
/// Over how long rates are taken.
const WINDOW: Duration = Duration::from_secs(2);
/// The widest bar.
const WIDTH: usize = 30;

/// The screen.
#[derive(Debug)]
pub(crate) struct Screen {
    bars: Option<Bars>,
    began: Instant,
    names: Vec<String>,
    total: usize,
    /// What the demo has done to a node; it wins over what the mesh says.
    marks: Mutex<HashMap<String, &'static str>>,
}

#[derive(Debug)]
struct Bars {
    all: MultiProgress,
    head: ProgressBar,
    members: Vec<ProgressBar>,
}

impl Screen {
    /// A screen for these nodes and so many flights. Its clock starts now.
    pub(crate) fn new(names: Vec<String>, total: usize) -> Self {
        let bars = std::io::stderr().is_terminal().then(|| {
            let all = MultiProgress::new();
            let line = || {
                // Cut to the terminal's width: a wrapped line would break the drawing.
                let style = ProgressStyle::with_template("{wide_msg}");
                let style = style.unwrap_or_else(|_| ProgressStyle::default_bar());
                all.add(ProgressBar::new_spinner().with_style(style))
            };
            Bars {
                head: line(),
                members: names.iter().map(|_| line()).collect(),
                all,
            }
        });
        Screen {
            bars,
            began: Instant::now(),
            names,
            total,
            marks: Mutex::default(),
        }
    }

    /// Tells an event.
    pub(crate) fn event(&self, text: &str) {
        let line = format!("{:6.1} s  {text}", self.began.elapsed().as_secs_f64());
        match &self.bars {
            // A terminal that went away is no reason to stop.
            Some(bars) => drop(bars.all.println(line)),
            None => eprintln!("{line}"),
        }
    }

    /// Shows this state for a node, whatever the mesh says of it.
    pub(crate) fn mark(&self, node: &str, state: &'static str) {
        self.marks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .insert(node.to_owned(), state);
    }

    /// Shows again what the mesh says of a node.
    pub(crate) fn unmark(&self, node: &str) {
        self.marks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .remove(node);
    }

    /// Draws again and again. Never returns.
    pub(crate) async fn run(&self, stage: &Stage, submitted: &Submitted) {
        let mut ticks = tokio::time::interval(DRAW);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut rates = Rates::default();
        let mut said = Instant::now();
        loop {
            ticks.tick().await;
            let view = stage.view();
            rates.note(&view);
            match &self.bars {
                Some(bars) => self.draw(bars, &view, &rates, submitted),
                None if said.elapsed() >= SAY => {
                    self.say(&view, &rates, submitted);
                    said = Instant::now();
                }
                None => {}
            }
        }
    }

    /// Takes the bars away; events have scrolled and stay.
    pub(crate) fn clear(&self) {
        if let Some(bars) = &self.bars {
            let _ = bars.all.clear();
        }
    }

    fn draw(&self, bars: &Bars, view: &View, rates: &Rates, submitted: &Submitted) {
        let accepted = submitted.accepted.load(Ordering::Relaxed);
        let written = usize::try_from(view.total()).unwrap_or(0);
        bars.head.set_message(format!(
            "  {:>7}  {:<9}{}  {} of {} flights  {:.0}/s  {} waiting",
            "all",
            format!(
                "{} up",
                self.names.iter().filter(|name| view.live(name).is_some()).count()
            ),
            meter(written, self.total, WIDTH),
            grouped(written),
            grouped(self.total),
            rates.total(),
            grouped(accepted.saturating_sub(written)),
        ));
        // The widest member fills half of the bar.
        let fair = 2 * usize::from(SLOTS) / self.names.len().max(1);
        for (name, line) in self.names.iter().zip(&bars.members) {
            let slots = owned(view, name);
            line.set_message(format!(
                "  {name:>7}  {:<9}{}  {slots:>4} slots  {:.0}/s",
                self.state(view, name),
                meter(slots, fair, WIDTH),
                rates.of(name),
            ));
        }
    }

    fn say(&self, view: &View, rates: &Rates, submitted: &Submitted) {
        let members: Vec<String> = self
            .names
            .iter()
            .map(|name| match self.state(view, name) {
                "serving" => format!("{name} {}", owned(view, name)),
                state => format!("{name} {} {state}", owned(view, name)),
            })
            .collect();
        self.event(&format!(
            "{} submitted, {} written, {:.0}/s; slots: {}",
            grouped(submitted.accepted.load(Ordering::Relaxed)),
            grouped(usize::try_from(view.total()).unwrap_or(0)),
            rates.total(),
            members.join(", "),
        ));
    }

    fn state<'a>(&self, view: &'a View, name: &str) -> &'a str {
        if let Some(mark) = self
            .marks
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(name)
        {
            return mark;
        }
        match (view.live(name), view.members.get(name)) {
            (None, _) => "gone",
            (Some(_), Some(state)) => state,
            (Some(_), None) => "up",
        }
    }
}

fn owned(view: &View, name: &str) -> usize {
    view.live(name).map_or(0, |incarnation| view.owned(incarnation))
}

/// How many flights each node has written per second, over the last moments.
#[derive(Debug, Default)]
struct Rates {
    seen: VecDeque<(Instant, BTreeMap<String, i64>)>,
}

impl Rates {
    fn note(&mut self, view: &View) {
        let now = Instant::now();
        self.seen.push_back((now, view.written.clone()));
        while self.seen.len() > 2 && self.seen[1].0 + WINDOW <= now {
            self.seen.pop_front();
        }
    }

    fn between(&self, count: impl Fn(&BTreeMap<String, i64>) -> i64) -> f64 {
        let (Some((from, first)), Some((to, last))) = (self.seen.front(), self.seen.back()) else {
            return 0.0;
        };
        let seconds = (*to - *from).as_secs_f64();
        if seconds > 0.0 {
            (count(last) - count(first)) as f64 / seconds
        } else {
            0.0
        }
    }

    fn of(&self, name: &str) -> f64 {
        self.between(|written| written.get(name).copied().unwrap_or(0))
    }

    fn total(&self) -> f64 {
        self.between(|written| written.values().sum())
    }
}

/// A bar of `width` characters for a part of a whole, eight steps to a character.
fn meter(part: usize, whole: usize, width: usize) -> String {
    const STEPS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
    let eighths = part.min(whole) * width * 8 / whole.max(1);
    let bar = format!("{}{}", "█".repeat(eighths / 8), STEPS[eighths % 8]);
    format!("{bar:<width$}")
}

/// A number with commas.
pub(crate) fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_by_threes() {
        for (number, text) in [
            (0, "0"),
            (999, "999"),
            (1000, "1,000"),
            (26_849, "26,849"),
            (1_234_567, "1,234,567"),
        ] {
            assert_eq!(grouped(number), text);
        }
    }

    #[test]
    fn a_meter_keeps_its_width() {
        assert_eq!(meter(0, 8, 4), "    ");
        assert_eq!(meter(3, 8, 4), "█▌  ");
        assert_eq!(meter(9, 8, 4), "████");
        assert_eq!(meter(0, 0, 2), "  ");
    }
}
