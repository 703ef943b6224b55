//! SIGTERM and Ctrl-C: the first drains, the second ends the process at once.

use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

/// The exit code after a second signal.
const IMPATIENT: i32 = 130;

/// Cancels `drain` at the first signal, and ends the process at the second. Returns only if signals cannot be had.
pub async fn on_signals(drain: CancellationToken) {
    let (Ok(mut term), Ok(mut int)) = (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        tracing::warn!("signals cannot be received, the node ends without draining");
        return;
    };
    for patient in [true, false] {
        tokio::select! {
            _ = term.recv() => {}
            _ = int.recv() => {}
        }
        if patient {
            tracing::info!("asked to end, draining; once more ends at once");
            drain.cancel();
        } else {
            tracing::warn!("asked to end a second time");
            std::process::exit(IMPATIENT);
        }
    }
}
