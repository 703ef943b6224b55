//! An aircraft's logbook, and the handler that keeps it.
//!
//! The handler holds the logbook in the key's cache. It computes the next state, writes it and an entry through the task's
//! transaction, and leaves it in the cache before it knows whether that transaction will commit. So the cache may run ahead of
//! Postgres when a commit is refused. That cannot go unnoticed: the chain stands for all lines so far in their order, and
//! the write asks for the chain that it was computed from; without it the run loads afresh.

use std::sync::Arc;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::flights::{Aircraft, Flight};
use crate::context::Context;
use crate::handler::{Failure, Handlers};
use crate::store::demo::{self as tables, Author, Loaded};

/// The kind of the demo's tasks.
pub(crate) const KIND: &str = "flight";
/// The chain before the first line.
pub(crate) const START: [u8; 32] = [0; 32];
/// A departure is punctual when it is less late than this, in minutes.
const LATE: i32 = 15;

/// What has been written about one aircraft.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Logbook {
    /// Departures.
    pub(crate) flights: i64,
    /// Flights that did not depart. They neither lengthen nor end a run of punctual departures.
    pub(crate) cancellations: i64,
    /// Miles of all departures.
    pub(crate) miles: i64,
    /// Minutes in the air.
    pub(crate) air_minutes: i64,
    /// Punctual departures since the last late one.
    pub(crate) punctual: i64,
    /// The most punctual departures in a row.
    pub(crate) longest_run: i64,
    /// `SHA-256(chain before ‖ line as 8 bytes, big-endian)`, over all lines in the order of processing.
    pub(crate) chain: [u8; 32],
    /// The line processed last; 0: none.
    pub(crate) last_line: i64,
}

impl Default for Logbook {
    fn default() -> Self {
        Logbook {
            flights: 0,
            cancellations: 0,
            miles: 0,
            air_minutes: 0,
            punctual: 0,
            longest_run: 0,
            chain: START,
            last_line: 0,
        }
    }
}

impl Logbook {
    /// Enters a flight.
    pub(crate) fn add(&mut self, flight: &Flight) {
        match flight.delay {
            None => self.cancellations += 1,
            Some(delay) => {
                self.flights += 1;
                self.miles += i64::from(flight.miles);
                self.air_minutes += i64::from(flight.air_minutes);
                self.punctual = if delay < LATE { self.punctual + 1 } else { 0 };
                self.longest_run = self.longest_run.max(self.punctual);
            }
        }
        let mut hash = Sha256::new();
        hash.update(self.chain);
        hash.update(flight.line.to_be_bytes());
        self.chain = hash.finalize().into();
        self.last_line = flight.line;
    }
}

/// A task's payload.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Payload {
    /// The run of the demo that submitted it.
    pub(crate) run: String,
    /// The flight.
    #[serde(flatten)]
    pub(crate) flight: Flight,
}

/// What a node keeps for an aircraft between its flights.
#[derive(Debug)]
struct Known {
    run: String,
    logbook: Logbook,
    aircraft: Aircraft,
}

impl From<Loaded> for Known {
    fn from(loaded: Loaded) -> Self {
        Known {
            run: loaded.run,
            logbook: loaded.logbook,
            aircraft: loaded.aircraft,
        }
    }
}

/// The answer of a run, kept as the task's result.
#[derive(Debug, Serialize)]
struct Done {
    /// Entries in the logbook after it.
    #[serde(skip_serializing_if = "Option::is_none")]
    entries: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    model: Option<String>,
    /// Set when nothing was written.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<&'static str>,
}

/// Adds the demo's handler to those of a node, whose name its entries bear.
pub fn handlers(handlers: Handlers, node: &str) -> Handlers {
    let node: Arc<str> = node.into();
    handlers.add(KIND, move |ctx: Context, payload: Payload| {
        let node = Arc::clone(&node);
        async move { enter(&ctx, payload, &node).await }
    })
}

async fn enter(ctx: &Context, payload: Payload, node: &str) -> Result<Done, Failure> {
    let key = ctx.key().as_str();
    let cache = ctx.cache::<Known>();
    let kept = cache.get().filter(|known| known.run == payload.run);
    let mut transaction = ctx.transaction().await?;
    let mut warm = kept.is_some();
    let mut known = match kept {
        Some(known) => known,
        None => Arc::new(load(&mut transaction, key).await?),
    };
    // Left over from a demo that was interrupted: the tables are another one's now.
    if known.run != payload.run {
        return Ok(Done {
            entries: None,
            model: None,
            skipped: Some("a task of an earlier run"),
        });
    }
    loop {
        let mut after = known.logbook.clone();
        after.add(&payload.flight);
        let author = Author {
            node,
            task: ctx.task(),
            fence: ctx.fence(),
            warm,
        };
        if tables::write(&mut transaction, key, &known.logbook, &after, author).await? {
            let entries = Some(after.flights + after.cancellations);
            let (run, aircraft) = (payload.run, known.aircraft.clone());
            let model = aircraft.model.clone();
            cache.insert(Known {
                run,
                logbook: after,
                aircraft,
            });
            return Ok(Done {
                entries,
                model,
                skipped: None,
            });
        }
        cache.remove();
        if !warm {
            return Err(Failure::new(
                "the logbook was changed by another run at the same time",
            ));
        }
        warm = false;
        known = Arc::new(load(&mut transaction, key).await?);
    }
}

async fn load(connection: &mut crate::store::Transaction<'_>, key: &str) -> Result<Known, Failure> {
    let loaded = tables::load(connection, key).await?;
    loaded
        .map(Known::from)
        .ok_or_else(|| Failure::new("this key has no logbook").fatal())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flight(line: i64, delay: Option<i32>) -> Flight {
        Flight {
            line,
            date: String::new(),
            number: String::new(),
            origin: String::new(),
            dest: String::new(),
            delay,
            air_minutes: 50,
            miles: 300,
        }
    }

    #[test]
    fn a_late_departure_ends_a_run_and_a_cancellation_does_not() {
        let mut logbook = Logbook::default();
        for (line, delay) in [Some(0), Some(14), None, Some(-20), Some(15), Some(3)]
            .into_iter()
            .enumerate()
        {
            logbook.add(&flight(line as i64 + 2, delay));
        }
        assert_eq!((logbook.flights, logbook.cancellations), (5, 1));
        assert_eq!((logbook.punctual, logbook.longest_run), (1, 3));
        assert_eq!(
            (logbook.miles, logbook.air_minutes, logbook.last_line),
            (1500, 250, 7)
        );
    }

    #[test]
    fn the_chain_tells_the_order_of_lines() {
        let mut one = Logbook::default();
        let mut other = Logbook::default();
        [2, 3].iter().for_each(|line| one.add(&flight(*line, Some(0))));
        [3, 2].iter().for_each(|line| other.add(&flight(*line, Some(0))));
        assert_ne!(one.chain, other.chain);
        // printf '%064x%016x' 0 2 | xxd -r -p | sha256sum
        let mut first = Logbook::default();
        first.add(&flight(2, None));
        let hex: String = first.chain.iter().map(|byte| format!("{byte:02x}")).collect();
        assert_eq!(
            hex,
            "975674ca076421782e993e85324e31cfcd295f0cabbff7a0ec07845f23c5e9d8"
        );
    }

    #[test]
    fn a_payload_reads_back_as_it_was() {
        let payload = Payload {
            run: "r".into(),
            flight: flight(7, Some(-2)),
        };
        let text = serde_json::to_string(&payload).unwrap();
        assert_eq!(serde_json::from_str::<Payload>(&text).unwrap(), payload);
        assert!(serde_json::from_str::<Payload>("{\"run\":\"r\"}").is_err());
    }
}
