//! `ringmesh cancel`: cancels a task.

use ringmesh::task::{TaskId, View};

use super::client::ClientArgs;
use super::failure::Failure;
use super::get;

/// Which task.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The task's id, SLOT-NUMBER
    id: TaskId,
    #[command(flatten)]
    client: ClientArgs,
}

/// Cancels it, and shows it as it is then. A task that has ended otherwise is refused.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let view: View = args
        .client
        .client()?
        .delete(&format!("/v1/tasks/{}", args.id))
        .await?;
    get::show(&view, args.client.json)
}
