//! The kinds that every node knows: for trying things out, for benchmarks, and for the tests of faults.

use std::time::Duration;

use serde::Deserialize;
use serde_json::value::RawValue;

use crate::context::Context;
use crate::handler::{Failure, Handlers};

#[derive(Debug, Deserialize)]
struct Sleep {
    ms: u64,
}

#[derive(Debug, Deserialize)]
struct Fail {
    times: i32,
}

/// The built-in handlers: `noop`; `echo`, whose result is its payload; `sleep {"ms"}`; `fail {"times"}`, which fails that
/// many times and then succeeds.
///
/// With `faults` also those that misbehave on purpose: `panic`; `abort`, which ends its process; `spin {"ms"}`, which blocks a
/// thread; `stubborn {"ms"}`, which ignores its cancellation.
pub fn handlers(faults: bool) -> Handlers {
    let handlers = Handlers::new()
        .add_quick("noop", |_| Ok(None))
        .add_quick("echo", |payload| Ok(Some(payload)))
        .add("sleep", |context: Context, sleep: Sleep| async move {
            tokio::select! {
                () = tokio::time::sleep(Duration::from_millis(sleep.ms)) => Ok(()),
                () = context.cancellation().cancelled() => Err(Failure::new("cancelled while it slept")),
            }
        })
        .add("fail", |context: Context, fail: Fail| async move {
            if context.failures() < fail.times {
                return Err(Failure::new(format_args!(
                    "failure {} of {}, as asked",
                    context.failures().saturating_add(1),
                    fail.times
                )));
            }
            Ok(())
        });
    if faults { handlers.and(faulty()) } else { handlers }
}

fn faulty() -> Handlers {
    Handlers::new()
        .add("panic", |_, _: Box<RawValue>| async move {
            if true {
                panic!("as asked");
            }
            Ok::<(), Failure>(())
        })
        .add("abort", |_, _: Box<RawValue>| async move {
            if true {
                std::process::abort();
            }
            Ok::<(), Failure>(())
        })
        .add("spin", |_, spin: Sleep| async move {
            std::thread::sleep(Duration::from_millis(spin.ms));
            Ok::<(), Failure>(())
        })
        .add("stubborn", |_, sleep: Sleep| async move {
            tokio::time::sleep(Duration::from_millis(sleep.ms)).await;
            Ok::<(), Failure>(())
        })
}
