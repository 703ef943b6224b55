//! Inputs that were made to hurt: what they are, by the door at which they knock, and how many.
//!
//! Each door's test walks through its own table, sends every row, and checks the answer; afterwards the process lives, answers
//! others, and nothing half-written is in the database. Tables that only one door needs stand with its test.

#[expect(
    dead_code,
    reason = "the test that runs the commands reads the rows, here they are counted"
)]
pub(crate) mod cli;
mod numbers;
mod payloads;
pub(crate) mod tasks;

/// The doors, and how many rows their tables have.
fn doors() -> Vec<(&'static str, usize)> {
    vec![
        ("HTTP", crate::http::tests::hostile::count()),
        ("hints", crate::http::tests::hints::count()),
        ("SQL", crate::store::hostile_tests::count()),
        ("CLI", cli::count()),
        ("gossip", crate::gossip::tests::hostile::count()),
        ("config", crate::config::tests::hostile::count()),
        ("handlers", crate::dispatch::hostile_tests::count()),
    ]
}

#[test]
fn the_pages_count_the_hostile_inputs_as_the_tables_do() {
    let doors = doors();
    let all: usize = doors.iter().map(|(_, rows)| rows).sum();
    let each: Vec<String> = doors
        .iter()
        .map(|(door, rows)| format!("{door} {rows}"))
        .collect();
    let counted = format!("{all} hostile inputs: {}", each.join(", "));
    println!("{counted}");
    for page in ["README.md", "docs/reliability.md"] {
        let path = format!("{}/../{page}", env!("CARGO_MANIFEST_DIR"));
        let text = std::fs::read_to_string(path).unwrap_or_default();
        // Lines are broken anywhere.
        let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.contains(&counted), "{page} does not say: {counted}");
    }
}
