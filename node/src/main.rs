//! The binary `ringmesh`.

fn main() {}
