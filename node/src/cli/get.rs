//! `ringmesh get`: shows a task, on request when it has ended.

use std::time::Duration;

use ringmesh::task::{State, TaskId, View};
use tokio::time::Instant;

use super::client::{Client, ClientArgs, wait_until};
use super::failure::{Failure, code};
use super::output;

/// Which task, and how long to wait for its end.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The task's id, SLOT-NUMBER
    id: TaskId,
    /// Wait at most so long for the task's end (exit code 1 if it has not ended then, or ended otherwise than well)
    #[arg(long, value_name = "DURATION", value_parser = super::duration::read)]
    wait: Option<Duration>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Shows the task; with a wait, an end that is not a success is a failure.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.client.client()?;
    let view = match args.wait {
        None => client.get(&format!("/v1/tasks/{}", args.id)).await?,
        Some(wait) => wait_for(&client, args.id, Instant::now() + wait).await?,
    };
    show(&view, args.client.json)?;
    match args.wait {
        None => Ok(()),
        Some(_) => verdict(&view),
    }
}

/// Waits for a task's end, longer than a node lets one request wait.
pub(crate) async fn wait_for(client: &Client, id: TaskId, until: Instant) -> Result<View, Failure> {
    loop {
        let left = wait_until(until);
        let view: View = client
            .wait(&format!("/v1/tasks/{id}{}", left.as_deref().unwrap_or_default()))
            .await?;
        if view.state.is_final() || left.is_none() {
            return Ok(view);
        }
    }
}

/// Whether a task that was waited for ended well.
pub(crate) fn verdict(view: &View) -> Result<(), Failure> {
    match view.state {
        State::Succeeded => Ok(()),
        State::Dead | State::Cancelled => Err(Failure::new(
            code::FAILED,
            anyhow::anyhow!("the task ended {}", name(view.state)),
        )),
        State::Scheduled | State::Pending | State::Running => Err(Failure::new(
            code::FAILED,
            anyhow::anyhow!("the task has not ended yet, it is {}", name(view.state)),
        )),
    }
}

/// Prints a task.
pub(crate) fn show(view: &View, json: bool) -> Result<(), Failure> {
    if json {
        return output::json(view);
    }
    let time = |time: Option<chrono::DateTime<chrono::Utc>>| time.map(|time| time.to_rfc3339());
    let lines = [
        ("id", Some(view.id.to_string())),
        ("kind", Some(output::plain(&view.kind))),
        ("key", Some(output::plain(&view.key))),
        ("state", Some(name(view.state).to_owned())),
        (
            "priority",
            (view.priority != 0).then(|| view.priority.to_string()),
        ),
        ("attempt", Some(view.attempt.to_string())),
        (
            "failures",
            (view.failures != 0).then(|| view.failures.to_string()),
        ),
        ("crashes", (view.crashes != 0).then(|| view.crashes.to_string())),
        ("node", view.node.clone()),
        ("epoch", view.epoch.map(|epoch| epoch.to_string())),
        ("created", time(Some(view.created_at))),
        ("due", time(view.run_at)),
        ("started", time(view.started_at)),
        ("finished", time(view.finished_at)),
        (
            "result",
            view.result.as_ref().map(|result| result.get().to_owned()),
        ),
        ("error", view.error.as_deref().map(output::plain)),
    ];
    let lines = lines
        .into_iter()
        .filter_map(|(name, value)| Some(format!("{name:<9} {}", value?)));
    output::text(lines.collect::<Vec<_>>().join("\n"))
}

fn name(state: State) -> &'static str {
    match state {
        State::Scheduled => "scheduled",
        State::Pending => "pending",
        State::Running => "running",
        State::Succeeded => "succeeded",
        State::Dead => "dead",
        State::Cancelled => "cancelled",
    }
}
