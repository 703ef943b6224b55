//! Runs the system's own programs (`ip`, `iptables-restore`, …), bounded in time.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use tokio::io::AsyncWriteExt as _;

/// How long such a program may take; on an idle machine it is done within 20 ms.
const WITHIN: Duration = Duration::from_secs(30);

/// Runs a program with this input and returns what it printed.
///
/// # Errors
/// It is not there, failed (with what it said), or took too long.
pub(super) async fn run(program: &str, arguments: &[&str], input: &str) -> Result<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).kill_on_drop(true).process_group(0);
    command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    let said = || format!("{program} {}", arguments.join(" "));
    let run = async {
        let mut child = command.spawn()?;
        if let Some(mut stdin) = child.stdin.take() {
            // A program that reads no input may have ended by now.
            let _ = stdin.write_all(input.as_bytes()).await;
        }
        child.wait_with_output().await
    };
    let output = tokio::time::timeout(WITHIN, run).await;
    let output = output
        .with_context(|| format!("{} took longer than {WITHIN:?}", said()))?
        .with_context(said)?;
    if !output.status.success() {
        let error = String::from_utf8_lossy(&output.stderr);
        bail!("{}: {}: {}\n{input}", said(), output.status, error.trim());
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As [`run`], for `Drop`, which cannot await; failures are ignored, since nobody can act on them.
pub(super) fn run_blocking(program: &str, arguments: &[&str], input: &str) {
    let mut command = Command::new(program);
    command
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    if let Ok(mut child) = command.spawn() {
        if let Some(mut stdin) = child.stdin.take() {
            let _ = stdin.write_all(input.as_bytes());
        }
        let _ = child.wait();
    }
}
