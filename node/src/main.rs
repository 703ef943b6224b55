//! The binary `ringmesh`.

mod cli;

fn main() -> std::process::ExitCode {
    cli::main()
}
