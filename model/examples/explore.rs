//! Explores the mesh within bounds of your own, each `name` or `name=number` (the fields of `mesh::Bounds`):
//!
//! ```text
//! cargo run --release -p ringmesh-model --example explore -- nodes=3 suspicions=1 losses=1 late
//! cargo run --release -p ringmesh-model --example explore -- --large
//! ```
//!
//! `--large` takes what is too long for a test, one after the other.

use ringmesh_model::check;
use ringmesh_model::lease::{self, Lease};
use ringmesh_model::mesh::{Bounds, Mesh, Variant};

const LARGE: [&str; 5] = [
    "nodes=3 crashes=1 suspicions=1 calm",
    "suspicions=1 failures=1 losses=1 split late calm",
    "suspicions=1 losses=1 late slow_replies split",
    "drains=1 suspicions=1 overruns=1 losses=1 late",
    "slots=2 tasks=3 suspicions=1 losses=1",
];

fn main() {
    if std::env::args().nth(1).as_deref() == Some("--large") {
        LARGE.iter().for_each(|bounds| explore(bounds.split(' ')));
        let variant = lease::Variant::Sound;
        let lease = Lease {
            variant,
            ticks: 7,
            renewals: 3,
        };
        println!("{lease:?}");
        check::holds("leases", lease);
    } else {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        explore(arguments.iter().map(String::as_str));
    }
}

fn explore<'a>(arguments: impl Iterator<Item = &'a str>) {
    let mut bounds = Bounds::QUIET;
    for argument in arguments {
        let (name, value) = argument.split_once('=').unwrap_or((argument, "1"));
        let known = value.parse().is_ok_and(|number| set(&mut bounds, name, number));
        if !known {
            eprintln!("no such bound: {argument}");
            std::process::exit(2);
        }
    }
    println!("{bounds:?}");
    let variant = Variant::Sound;
    check::holds("explored", Mesh { variant, bounds });
}

/// Whether there is such a bound.
fn set(bounds: &mut Bounds, name: &str, number: u8) -> bool {
    match name {
        "nodes" => bounds.nodes = number.into(),
        "slots" => bounds.slots = number.into(),
        "tasks" => bounds.tasks = number.into(),
        "crashes" => bounds.crashes = number,
        "suspicions" => bounds.suspicions = number,
        "moves" => bounds.moves = number,
        "drains" => bounds.drains = number,
        "losses" => bounds.losses = number,
        "failures" => bounds.failures = number,
        "overruns" => bounds.overruns = number,
        "split" => bounds.split = number > 0,
        "late" => bounds.late = number > 0,
        "slow_replies" => bounds.slow_replies = number > 0,
        "hints" => bounds.hints = number > 0,
        "stranger" => bounds.stranger = number > 0,
        "calm" => bounds.calm = number > 0,
        _ => return false,
    }
    true
}
