//! The proof: what should have come out, computed in one pass over the input, against what stands in Postgres.

use std::collections::{BTreeMap, HashMap, HashSet};

use super::flights::Flight;
use super::logbook::Logbook;
use crate::store::demo::Entry;

/// Every aircraft's logbook, as one process that reads the file from top to bottom would keep it.
pub(crate) fn recompute(flights: &[(String, Flight)]) -> BTreeMap<&str, Logbook> {
    let mut logbooks: BTreeMap<&str, Logbook> = BTreeMap::new();
    for (tailnum, flight) in flights {
        logbooks.entry(tailnum).or_default().add(flight);
    }
    logbooks
}

/// How effects and input compare. All but the first two should be 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Verdict {
    /// Flights whose submit was answered with 2xx.
    pub(crate) accepted: usize,
    /// Entries.
    pub(crate) effects: usize,
    /// Accepted flights without an entry.
    pub(crate) lost: usize,
    /// Flights with more than one entry.
    pub(crate) doubled: usize,
    /// Entries with a line below that of an earlier entry of their aircraft.
    pub(crate) out_of_order: usize,
    /// Aircraft whose logbook differs from the recomputation, or that have an entry of another aircraft's flight.
    pub(crate) wrong_aircraft: usize,
}

/// Compares. The first `accepted` flights were accepted; entries stand in the order of their commits within an aircraft.
pub(crate) fn compare(
    flights: &[(String, Flight)],
    accepted: usize,
    entries: &[Entry],
    logbooks: &[(String, Logbook)],
) -> Verdict {
    let mut entries_of: HashMap<i64, usize> = HashMap::new();
    let mut highest: HashMap<&str, i64> = HashMap::new();
    let mut wrong: HashSet<&str> = HashSet::new();
    let mut out_of_order = 0;
    let owner: HashMap<i64, &str> = flights
        .iter()
        .map(|(tailnum, f)| (f.line, tailnum.as_str()))
        .collect();
    for entry in entries {
        *entries_of.entry(entry.line).or_default() += 1;
        if owner.get(&entry.line) != Some(&entry.tailnum.as_str()) {
            wrong.insert(&entry.tailnum);
        }
        let highest = highest.entry(&entry.tailnum).or_default();
        if entry.line < *highest {
            out_of_order += 1;
        }
        *highest = entry.line.max(*highest);
    }
    let mut expected = recompute(flights);
    for (tailnum, found) in logbooks {
        if expected.remove(tailnum.as_str()).unwrap_or_default() != *found {
            wrong.insert(tailnum);
        }
    }
    // What is left has no logbook at all.
    wrong.extend(expected.into_keys());
    Verdict {
        accepted,
        effects: entries.len(),
        lost: flights[..accepted]
            .iter()
            .filter(|(_, f)| !entries_of.contains_key(&f.line))
            .count(),
        doubled: entries_of.values().filter(|count| **count > 1).count(),
        out_of_order,
        wrong_aircraft: wrong.len(),
    }
}

/// The value at quantile `q` (0 to 1) of some values: the smallest that at least this share of them does not exceed.
pub(crate) fn quantile(values: &mut [f64], q: f64) -> Option<f64> {
    values.sort_unstable_by(f64::total_cmp);
    let at = (q * values.len() as f64).ceil() as usize;
    values.get(at.saturating_sub(1)).copied()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;

    /// N1 flies on lines 2, 4, 5 (cancelled) and N2 on line 3.
    fn flights() -> Vec<(String, Flight)> {
        [("N1", Some(0)), ("N2", Some(30)), ("N1", Some(10)), ("N1", None)]
            .into_iter()
            .zip(2..)
            .map(|((tailnum, delay), line)| {
                let text = String::new;
                let (date, number, origin, dest) = (text(), text(), text(), text());
                let flight = Flight {
                    line,
                    date,
                    number,
                    origin,
                    dest,
                    delay,
                    air_minutes: 60,
                    miles: 400,
                };
                (tailnum.to_owned(), flight)
            })
            .collect()
    }

    fn entries(lines: &[(i64, &str)]) -> Vec<Entry> {
        let entry = |(line, tailnum): &(i64, &str)| Entry {
            line: *line,
            tailnum: (*tailnum).to_owned(),
            warm: true,
            written_at: DateTime::UNIX_EPOCH,
        };
        lines.iter().map(entry).collect()
    }

    /// What the mesh would have left after processing these lines in this order.
    fn state(lines: &[(i64, &str)]) -> (Vec<Entry>, Vec<(String, Logbook)>) {
        let flights = flights();
        let mut logbooks: BTreeMap<&str, Logbook> = flights
            .iter()
            .map(|(tailnum, _)| (tailnum.as_str(), Logbook::default()))
            .collect();
        for (line, tailnum) in lines {
            logbooks
                .get_mut(tailnum)
                .unwrap()
                .add(&flights[*line as usize - 2].1);
        }
        let logbooks = logbooks
            .into_iter()
            .map(|(tailnum, logbook)| (tailnum.to_owned(), logbook));
        (entries(lines), logbooks.collect())
    }

    fn verdict(lines: &[(i64, &str)]) -> [usize; 5] {
        let (entries, logbooks) = state(lines);
        let v = compare(&flights(), 4, &entries, &logbooks);
        assert_eq!(v.accepted, 4);
        [v.effects, v.lost, v.doubled, v.out_of_order, v.wrong_aircraft]
    }

    #[test]
    fn the_recomputation_of_a_small_file_is_known() {
        let flights = flights();
        let logbooks = recompute(&flights);
        let n1 = &logbooks["N1"];
        assert_eq!(
            (
                n1.flights,
                n1.cancellations,
                n1.miles,
                n1.air_minutes,
                n1.longest_run
            ),
            (2, 1, 800, 120, 2)
        );
        let n2 = &logbooks["N2"];
        assert_eq!((n2.flights, n2.longest_run, n2.last_line), (1, 0, 3));
    }

    #[test]
    fn what_went_well_passes() {
        // Aircraft may overtake each other.
        let lines = [(3, "N2"), (2, "N1"), (4, "N1"), (5, "N1")];
        assert_eq!(verdict(&lines), [4, 0, 0, 0, 0]);
    }

    #[test]
    fn a_lost_flight_is_seen() {
        assert_eq!(verdict(&[(2, "N1"), (4, "N1"), (5, "N1")]), [3, 1, 0, 0, 1]);
    }

    #[test]
    fn a_doubled_flight_is_seen() {
        assert_eq!(
            verdict(&[(2, "N1"), (3, "N2"), (3, "N2"), (4, "N1"), (5, "N1")]),
            [5, 0, 1, 0, 1]
        );
    }

    #[test]
    fn swapped_flights_are_seen() {
        assert_eq!(
            verdict(&[(4, "N1"), (2, "N1"), (3, "N2"), (5, "N1")]),
            [4, 0, 0, 1, 1]
        );
    }

    #[test]
    fn a_doctored_logbook_is_seen() {
        let (entries, mut logbooks) = state(&[(2, "N1"), (3, "N2"), (4, "N1"), (5, "N1")]);
        logbooks[1].1.miles += 1;
        assert_eq!(compare(&flights(), 4, &entries, &logbooks).wrong_aircraft, 1);
        logbooks.remove(0);
        assert_eq!(compare(&flights(), 4, &entries, &logbooks).wrong_aircraft, 2);
    }

    #[test]
    fn an_entry_of_another_aircrafts_flight_is_seen() {
        let (mut entries, logbooks) = state(&[(2, "N1"), (3, "N2"), (4, "N1"), (5, "N1")]);
        entries[1].tailnum = "N1".into();
        assert_eq!(compare(&flights(), 4, &entries, &logbooks).wrong_aircraft, 1);
    }

    #[test]
    fn quantiles_are_values_that_were_measured() {
        assert_eq!(quantile(&mut [], 0.5), None);
        assert_eq!(quantile(&mut [7.0], 0.5), Some(7.0));
        let mut values = [4.0, 1.0, 3.0, 2.0];
        assert_eq!(quantile(&mut values, 0.5), Some(2.0));
        assert_eq!(quantile(&mut values, 1.0), Some(4.0));
    }
}
