//! What fuzzers do with one input, and the good inputs from which they start.
//!
//! A target takes bytes, does with them what a node does, and panics where something does not hold that must hold whatever
//! they are. Each is run in two ways: by the tests at the end, which mutate good inputs blindly (`FUZZ_CASES` says how many for
//! each target), and by cargo-fuzz, which follows what the code does with them (`fuzz/`).

mod bodies;
mod requests;
mod texts;

#[cfg(test)]
pub(crate) mod mutate;

use crate::gossip::fuzzing as gossip;

/// One way into the product.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Its name, as cargo-fuzz knows it.
    pub name: &'static str,
    /// Does what a node does with these bytes. Panics if something does not hold.
    pub run: fn(&[u8]),
    /// Good inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
}

macro_rules! targets {
    ($( $(#[doc = $doc:literal])+ $name:ident = $run:path, $seeds:path; )+) => {
        /// All of them.
        pub const TARGETS: &[Target] = &[$(
            Target { name: stringify!($name), run: $run, seeds: $seeds },
        )+];

        #[cfg(test)]
        mod tests {
            $( $(#[doc = $doc])+ #[test] fn $name() { super::mutate::run(stringify!($name)); } )+
        }
    };
}

targets! {
    /// Datagrams in a row, with and without a good MAC: none is delivered twice, none without a good MAC at all.
    datagrams = gossip::run, gossip::seeds;
    /// Gossip messages behind their seal: understood or not, the next one is.
    messages = gossip::run_message, gossip::message_seeds;
    /// What a connection sends: each answer is one that the API has, and none is a fault of the node.
    requests = requests::run, requests::seeds;
    /// A body of `POST /v1/tasks`: taken within all limits, or refused with a code and a field.
    tasks = bodies::run_task, bodies::task_seeds;
    /// A body of `POST /v1/tasks/batch`, as lines and as an array.
    batches = bodies::run_batch, bodies::batch_seeds;
    /// A body of what nodes tell each other.
    hints = bodies::run_hint, bodies::hint_seeds;
    /// A payload: whatever is taken, serde_json reads; whatever is no JSON to one is none to the other.
    payloads = bodies::run_payload, bodies::payload_seeds;
    /// A task's id: one spelling.
    ids = texts::run_id, texts::id_seeds;
    /// Times and durations: never early, never out of range.
    times = texts::run_time, texts::time_seeds;
    /// A configuration file: refused, or the same when it is read back.
    configs = texts::run_config, texts::config_seeds;
    /// A handler's result and its error text: JSON stays JSON, and Postgres takes both.
    answers = texts::run_answer, texts::answer_seeds;
    /// A database's URL: its password is never shown.
    urls = texts::run_url, texts::url_seeds;
}

/// Runs the target of this name.
///
/// # Panics
/// There is none, or something does not hold.
pub fn run(name: &str, bytes: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name);
    (target.expect("there is such a target").run)(bytes);
}

/// Bytes as text, of what is text in them.
fn text(bytes: &[u8]) -> &str {
    match std::str::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => std::str::from_utf8(&bytes[..error.valid_up_to()]).unwrap_or_default(),
    }
}

fn owned(texts: &[&str]) -> Vec<Vec<u8>> {
    texts.iter().map(|text| text.as_bytes().to_vec()).collect()
}
