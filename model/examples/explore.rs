//! Explores the mesh within bounds of your own, each `name` or `name=number` (the fields of `mesh::Bounds`):
//!
//! ```text
//! cargo run --release -p ringmesh-model --example explore -- nodes=3 suspicions=1 losses=1 late
//! ```

use ringmesh_model::check;
use ringmesh_model::mesh::{Bounds, Mesh, Variant};

fn main() {
    let mut bounds = Bounds::QUIET;
    for argument in std::env::args().skip(1) {
        let (name, value) = argument.split_once('=').unwrap_or((&argument, "1"));
        let Some(number) = value
            .parse()
            .ok()
            .filter(|number| set(&mut bounds, name, *number))
        else {
            eprintln!("no such bound: {argument}");
            std::process::exit(2);
        };
        let _: u8 = number;
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
