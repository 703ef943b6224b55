//! `ringmesh slots`: the owner and the epoch of each slot.

use super::client::ClientArgs;
use super::failure::Failure;
use super::mesh::SlotRow;
use super::output;

/// Which slots.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only those of this node
    #[arg(long, value_name = "NAME")]
    node: Option<String>,
    #[command(flatten)]
    client: ClientArgs,
}

/// Prints a line for each slot.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let slots: Vec<SlotRow> = args.client.client()?.get("/v1/slots").await?;
    let wanted = |row: &&SlotRow| args.node.is_none() || row.owner == args.node;
    let rows: Vec<&SlotRow> = slots.iter().filter(wanted).collect();
    if args.client.json {
        return output::json(&rows);
    }
    let mut table = output::table(["SLOT", "OWNER", "EPOCH"]);
    for row in rows {
        table.add_row([
            row.slot.to_string(),
            row.owner.clone().unwrap_or_else(|| "-".to_owned()),
            row.epoch.to_string(),
        ]);
    }
    output::text(output::lines(&table))
}
