//! The binary `ringmesh`.

mod cli;

/// A tenth of the processor's time went into glibc's allocator when submits or claims came in quickly.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    cli::main()
}
