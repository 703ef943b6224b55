//! `ringmesh drain`: lets a node hand all its slots on and stop.

use std::time::Duration;

use tokio::time::Instant;

use super::client::{Body, ClientArgs, Error, Repeat, part};
use super::failure::{Failure, code};
use super::mesh::{Mesh, read};
use super::output;

/// How often the mesh is looked at while waiting.
const LOOK_EVERY: Duration = Duration::from_millis(200);

/// Which node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The node's name
    name: String,
    /// Wait until it owns no slot and has left, at most so long
    #[arg(long, value_name = "DURATION", value_parser = super::duration::read, num_args = 0..=1, default_missing_value = "60s")]
    wait: Option<Duration>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Asks for it, and on request waits for its end. Asking again does nothing.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.client.client()?;
    let path = format!("/v1/nodes/{}/drain", part(&args.name));
    let _: serde_json::Value = client.post(Repeat::Safe, &path, Body::Nothing).await?;
    let said = |state: &str| match args.client.json {
        true => output::json(&serde_json::json!({ "name": args.name, "state": state })),
        false => output::text(format!("{} {state}", args.name)),
    };
    let Some(wait) = args.wait else {
        return said("drains");
    };
    let until = Instant::now() + wait;
    let mut asks_itself = false;
    loop {
        let mesh: Mesh = match read(&client).await {
            Ok(mesh) => mesh,
            // The node that is asked is the one that leaves.
            Err(Error::Unreachable { .. } | Error::NoAnswer { .. }) if asks_itself => {
                return said("has left");
            }
            Err(error) => return Err(error.into()),
        };
        asks_itself = mesh.node == args.name;
        let Some(node) = mesh.members.iter().find(|node| node.name == args.name) else {
            return said("has left");
        };
        if Instant::now() > until {
            let slots = node.slots;
            return Err(Failure::new(
                code::FAILED,
                anyhow::anyhow!("{} still owns {slots} slots after {wait:?}", args.name),
            ));
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}
