//! `ringmesh health`: whether a node is ready, for containers and scripts.

use std::time::Duration;

use super::client::ClientArgs;
use super::failure::{Failure, code};
use super::output;

/// Which node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// How long the node may take to answer
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = super::duration::read)]
    within: Duration,
    #[command(flatten)]
    client: ClientArgs,
}

/// Asks once.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let (status, body) = args.client.client()?.probe("/health/ready", args.within).await?;
    let ready = status.is_success();
    if args.client.json {
        output::json(&serde_json::json!({ "ready": ready, "status": status.as_u16() }))?;
    } else if ready {
        output::text("ready")?;
    }
    match ready {
        true => Ok(()),
        false => {
            let json = serde_json::from_str::<serde_json::Value>(&body).ok();
            let message = json
                .as_ref()
                .and_then(|body| body["message"].as_str())
                .unwrap_or(&body);
            let text = output::plain(message.chars().take(500).collect::<String>().trim());
            Err(Failure::new(
                code::UNAVAILABLE,
                anyhow::anyhow!("the node is not ready ({status}): {text}"),
            ))
        }
    }
}
