//! `ringmesh-faults`: runs the scenarios.

fn main() {}
