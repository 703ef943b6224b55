//! The input: departures and the register of aircraft, as CSV, plain or packed with gzip.
//!
//! Columns are found by their names in the header. Flights need `tailnum`, `dep_time`, `dep_delay`, `air_time` and
//! `distance`; the register needs `tailnum`; the other columns are taken when they are there. An empty field and `NA` mean
//! "not known". A flight without `dep_time` was cancelled; one without a tail number goes to the key [`NO_TAILNUM`].

use std::collections::HashSet;
use std::io::Read;
use std::ops::RangeInclusive;
use std::path::Path;

use csv::{Position, StringRecord};
use flate2::read::MultiGzDecoder;
use ringmesh_ring::Key;
use serde::{Deserialize, Serialize};

/// January 2013 from New York's airports.
const FLIGHTS: &[u8] = include_bytes!("../../../examples/data/flights-2013-01.csv.gz");
/// The register that goes with it.
const PLANES: &[u8] = include_bytes!("../../../examples/data/planes.csv.gz");
/// Unpacked, a file may have this many bytes: more than a year of flights, less than the memory of a small machine.
const MOST_BYTES: u64 = 256 << 20;
/// The key of flights without a tail number.
pub(crate) const NO_TAILNUM: &str = "unknown";

/// Why a file is no input. Lines are counted from 1, the header being the first.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be read.
    #[error("cannot read {file}")]
    Read {
        /// The file.
        file: String,
        /// The reason.
        source: std::io::Error,
    },
    /// The file begins as gzip does, and cannot be unpacked.
    #[error("{file} is cut off or damaged: it begins as a gzip file and cannot be unpacked")]
    Packed {
        /// The file.
        file: String,
        /// The reason.
        source: std::io::Error,
    },
    /// More than this program takes into memory.
    #[error("{file} has more than {} MiB (unpacked)", MOST_BYTES >> 20)]
    TooLarge {
        /// The file.
        file: String,
    },
    /// Not UTF-8, or a line with more or fewer fields than the header.
    #[error("{file} is no CSV file")]
    Csv {
        /// The file.
        file: String,
        /// The reason, with its place.
        source: csv::Error,
    },
    /// The header lacks a column that is needed.
    #[error("{file} has no column `{column}`; its first line must name: {needed}")]
    NoColumn {
        /// The file.
        file: String,
        /// The column.
        column: &'static str,
        /// All columns that are needed.
        needed: String,
    },
    /// A field that cannot be.
    #[error("{file}, line {line}: {column} is {found:?}, expected {expected}")]
    Field {
        /// The file.
        file: String,
        /// The line.
        line: u64,
        /// The column.
        column: &'static str,
        /// What stands there.
        found: String,
        /// What should.
        expected: String,
    },
    /// A header and nothing else.
    #[error("{file} has no flights")]
    Empty {
        /// The file.
        file: String,
    },
}

/// One departure. The payload of its task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Flight {
    /// Its line in the file.
    pub(crate) line: i64,
    /// `2013-01-31`, as far as known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) date: String,
    /// Airline and number: `UA 1545`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) number: String,
    /// Airport.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) origin: String,
    /// Airport.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub(crate) dest: String,
    /// Minutes after the scheduled departure; below 0: early; none: cancelled.
    pub(crate) delay: Option<i32>,
    /// Minutes in the air; 0 when it landed elsewhere.
    pub(crate) air_minutes: i32,
    /// Miles to the destination.
    pub(crate) miles: i32,
}

/// An aircraft, as its register describes it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Aircraft {
    /// Year of manufacture.
    pub(crate) year: Option<i32>,
    /// Its maker.
    pub(crate) manufacturer: Option<String>,
    /// Its model.
    pub(crate) model: Option<String>,
    /// How many seats.
    pub(crate) seats: Option<i32>,
}

/// Flights with the keys of their tasks, in the file's order, and the register.
#[derive(Debug)]
pub(crate) struct Input {
    /// Tail number and flight.
    pub(crate) flights: Vec<(String, Flight)>,
    /// Tail number and description, each tail number once.
    pub(crate) register: Vec<(String, Aircraft)>,
    /// Whether it is the input that came with the program.
    pub(crate) own: bool,
}

impl Input {
    /// Reads both files; `None` takes the one that came with the program.
    pub(crate) fn read(flights: Option<&Path>, planes: Option<&Path>) -> Result<Self, Error> {
        let own = flights.is_none() && planes.is_none();
        let (name, bytes) = open(flights, "the built-in flights", FLIGHTS)?;
        let flights = parse_flights(&name, &unpack(&name, &bytes)?)?;
        let (name, bytes) = open(planes, "the built-in register", PLANES)?;
        let register = parse_planes(&name, &unpack(&name, &bytes)?)?;
        Ok(Input {
            flights,
            register,
            own,
        })
    }

    /// Every key once, sorted.
    pub(crate) fn keys(&self) -> Vec<&str> {
        let keys: std::collections::BTreeSet<&str> =
            self.flights.iter().map(|(key, _)| key.as_str()).collect();
        keys.into_iter().collect()
    }
}

fn open(path: Option<&Path>, own_name: &str, own: &'static [u8]) -> Result<(String, Vec<u8>), Error> {
    let Some(path) = path else {
        return Ok((own_name.to_owned(), own.to_vec()));
    };
    let file = path.display().to_string();
    let read = |path| {
        let mut bytes = Vec::new();
        std::fs::File::open(path)?
            .take(MOST_BYTES + 1)
            .read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    match read(path) {
        Ok(bytes) if bytes.len() as u64 > MOST_BYTES => Err(Error::TooLarge { file }),
        Ok(bytes) => Ok((file, bytes)),
        Err(source) => Err(Error::Read { file, source }),
    }
}

/// The text of a packed file, or the bytes as they are.
fn unpack(file: &str, bytes: &[u8]) -> Result<Vec<u8>, Error> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes.to_vec());
    }
    let mut text = Vec::new();
    let unpacked = MultiGzDecoder::new(bytes)
        .take(MOST_BYTES + 1)
        .read_to_end(&mut text);
    let file = file.to_owned();
    match unpacked {
        Ok(_) if text.len() as u64 > MOST_BYTES => Err(Error::TooLarge { file }),
        Ok(_) => Ok(text),
        Err(source) => Err(Error::Packed { file, source }),
    }
}

fn parse_flights(file: &str, text: &[u8]) -> Result<Vec<(String, Flight)>, Error> {
    let table = Table::open(
        file,
        text,
        &["tailnum", "dep_time", "dep_delay", "air_time", "distance"],
    )?;
    let mut flights = Vec::new();
    table.each(|row| {
        let key = match row.text("tailnum") {
            "" => NO_TAILNUM,
            tailnum => tailnum,
        };
        Key::new(key).map_err(|error| row.bad("tailnum", &format!("a key ({error})")))?;
        let cancelled = row.text("dep_time").is_empty();
        let delay = row.number("dep_delay", -10_000..=100_000)?;
        if !cancelled && delay.is_none() {
            return Err(row.bad("dep_delay", "minutes, since the flight has a dep_time"));
        }
        let number = [row.text("carrier"), row.text("flight")].join(" ");
        flights.push((
            key.to_owned(),
            Flight {
                line: row.line as i64,
                date: row.date(),
                number: number.trim().to_owned(),
                origin: row.text("origin").to_owned(),
                dest: row.text("dest").to_owned(),
                delay: if cancelled { None } else { delay },
                air_minutes: row.number("air_time", 0..=10_000)?.unwrap_or(0),
                miles: row.number("distance", 0..=100_000)?.unwrap_or(0),
            },
        ));
        Ok(())
    })?;
    if flights.is_empty() {
        return Err(Error::Empty {
            file: file.to_owned(),
        });
    }
    Ok(flights)
}

fn parse_planes(file: &str, text: &[u8]) -> Result<Vec<(String, Aircraft)>, Error> {
    let table = Table::open(file, text, &["tailnum"])?;
    let mut seen = HashSet::new();
    let mut planes = Vec::new();
    table.each(|row| {
        let tailnum = row.text("tailnum");
        if tailnum.is_empty() || !seen.insert(tailnum.to_owned()) {
            return Ok(());
        }
        Key::new(tailnum).map_err(|error| row.bad("tailnum", &format!("a key ({error})")))?;
        let some = |column| match row.text(column) {
            "" => None,
            text => Some(text.replace('\0', "")),
        };
        planes.push((
            tailnum.to_owned(),
            Aircraft {
                year: row.number("year", 0..=10_000)?,
                manufacturer: some("manufacturer"),
                model: some("model"),
                seats: row.number("seats", 0..=10_000)?,
            },
        ));
        Ok(())
    })?;
    Ok(planes)
}

/// A CSV text with its header.
struct Table<'a> {
    file: &'a str,
    header: StringRecord,
    reader: csv::Reader<&'a [u8]>,
}

/// One line of it.
struct Row<'a> {
    file: &'a str,
    header: &'a StringRecord,
    fields: &'a StringRecord,
    line: u64,
}

impl<'a> Table<'a> {
    fn open(file: &'a str, text: &'a [u8], needed: &[&'static str]) -> Result<Self, Error> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text);
        let header = reader
            .headers()
            .map_err(|source| Error::Csv {
                file: file.to_owned(),
                source,
            })?
            .clone();
        if let Some(column) = needed
            .iter()
            .find(|column| !header.iter().any(|name| name == **column))
        {
            let (file, needed) = (file.to_owned(), needed.join(", "));
            return Err(Error::NoColumn { file, column, needed });
        }
        Ok(Table { file, header, reader })
    }

    fn each(mut self, mut take: impl FnMut(&Row<'_>) -> Result<(), Error>) -> Result<(), Error> {
        let csv_error = |source| Error::Csv {
            file: self.file.to_owned(),
            source,
        };
        let mut fields = StringRecord::new();
        while self.reader.read_record(&mut fields).map_err(csv_error)? {
            let line = fields.position().map_or(0, Position::line);
            take(&Row {
                file: self.file,
                header: &self.header,
                fields: &fields,
                line,
            })?;
        }
        Ok(())
    }
}

impl Row<'_> {
    /// The field's text; empty when it is not known, or when there is no such column.
    fn text(&self, column: &str) -> &str {
        let at = self.header.iter().position(|name| name == column);
        match at.and_then(|at| self.fields.get(at)) {
            None | Some("NA") => "",
            Some(text) => text,
        }
    }

    fn number(&self, column: &'static str, range: RangeInclusive<i32>) -> Result<Option<i32>, Error> {
        let text = self.text(column);
        if text.is_empty() {
            return Ok(None);
        }
        match text.parse() {
            Ok(number) if range.contains(&number) => Ok(Some(number)),
            _ => Err(self.bad(
                column,
                &format!("a number from {} to {}", range.start(), range.end()),
            )),
        }
    }

    fn date(&self) -> String {
        match [self.text("year"), self.text("month"), self.text("day")] {
            [year, month, day] if !year.is_empty() && !month.is_empty() && !day.is_empty() => {
                format!("{year}-{month:0>2}-{day:0>2}")
            }
            _ => String::new(),
        }
    }

    fn bad(&self, column: &'static str, expected: &str) -> Error {
        Error::Field {
            file: self.file.to_owned(),
            line: self.line,
            column,
            found: self.text(column).chars().take(80).collect(),
            expected: expected.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    const HEADER: &str = "tailnum,dep_time,dep_delay,air_time,distance";

    fn refusal(text: &[u8]) -> String {
        let read = unpack("f.csv", text).and_then(|text| parse_flights("f.csv", &text));
        let error = read.expect_err("refused");
        let source = std::error::Error::source(&error).map(|source| format!(": {source}"));
        format!("{error}{}", source.unwrap_or_default())
    }

    fn packed(text: &[u8]) -> Vec<u8> {
        let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        gz.write_all(text).unwrap();
        gz.finish().unwrap()
    }

    #[test]
    fn the_built_in_month_is_read_in_full() {
        let input = Input::read(None, None).unwrap();
        assert_eq!(
            (input.flights.len(), input.keys().len(), input.register.len()),
            (26_849, 3_148, 3_322)
        );
        assert_eq!(
            input
                .flights
                .iter()
                .filter(|(_, flight)| flight.delay.is_none())
                .count(),
            366
        );
        let (key, first) = &input.flights[0];
        assert_eq!(
            (key.as_str(), first.line, first.date.as_str()),
            ("N14228", 2, "2013-01-01")
        );
        assert_eq!(
            (first.delay, first.air_minutes, first.miles),
            (Some(2), 227, 1400)
        );
        assert!(
            input
                .flights
                .windows(2)
                .all(|pair| pair[0].1.line < pair[1].1.line)
        );
    }

    #[test]
    fn plain_text_and_other_orders_of_columns_are_read_too() {
        let text =
            b"distance,air_time,dep_delay,dep_time,tailnum\n100,50,-3,900,N1\n100,,,,\n200,NA,20,1000,N1\n";
        for text in [text.to_vec(), packed(text)] {
            let flights = parse_flights("f.csv", &unpack("f.csv", &text).unwrap()).unwrap();
            let seen: Vec<_> = flights
                .iter()
                .map(|(key, f)| (key.as_str(), f.line, f.delay, f.air_minutes))
                .collect();
            assert_eq!(
                seen,
                [
                    ("N1", 2, Some(-3), 50),
                    ("unknown", 3, None, 0),
                    ("N1", 4, Some(20), 0)
                ]
            );
        }
    }

    #[test]
    fn hostile_files_are_refused_with_their_place() {
        let with = |line: &str| format!("{HEADER}\n{line}\n").into_bytes();
        let cut = {
            let all = packed(&with(&"N1,900,1,50,100\n".repeat(500)));
            all[..all.len() - 20].to_vec()
        };
        let cases: [(Vec<u8>, &str); 12] = [
            (Vec::new(), "f.csv has no column `tailnum`"),
            (b"PK\x03\x04 not a csv".to_vec(), "f.csv has no column `tailnum`"),
            (b"\xff\xfe\xfd".to_vec(), "f.csv is no CSV file"),
            (cut, "cut off or damaged"),
            (
                b"tailnum,dep_time,dep_delay,air_time\nN1,1,1,1\n".to_vec(),
                "no column `distance`",
            ),
            (with("N1,900"), "no CSV file"),
            (with("N1,900,x,50,100"), "line 2: dep_delay is \"x\""),
            (with("N1,900,,50,100"), "line 2: dep_delay is \"\""),
            (
                with("N1,900,1,-5,100"),
                "line 2: air_time is \"-5\", expected a number from 0 to 10000",
            ),
            (with("N1,900,1,5,99999999999999999999"), "line 2: distance"),
            (
                with(&format!("{},900,1,5,100", "N".repeat(1025))),
                "line 2: tailnum",
            ),
            (format!("{HEADER}\n").into_bytes(), "has no flights"),
        ];
        for (text, expected) in cases {
            let found = refusal(&text);
            assert!(found.contains(expected), "{expected}: {found}");
        }
        let mut latin = with("N1,900,1,5,100");
        latin.extend(b"N\xe9,900,1,5,100\n");
        assert!(refusal(&latin).contains("line 3"), "{}", refusal(&latin));
    }

    #[test]
    fn a_register_names_each_aircraft_once() {
        let planes = parse_planes("p.csv", b"tailnum,seats,model\nN1,2,A\nN1,3,B\n,9,C\nN2,NA,\n").unwrap();
        let seats: Vec<_> = planes
            .iter()
            .map(|(tail, plane)| (tail.as_str(), plane.seats))
            .collect();
        assert_eq!(seats, [("N1", Some(2)), ("N2", None)]);
        assert!(parse_planes("p.csv", b"plane\nN1\n").is_err());
    }
}
