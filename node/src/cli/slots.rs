//! `ringmesh slots`: the owner and the epoch of each slot.

use super::client::ClientArgs;
use super::failure::{Failure, code};
use super::mesh::{self, Member, SlotRow};
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
    let client = args.client.client()?;
    let slots: Vec<SlotRow> = client.get("/v1/slots").await?;
    let wanted = |row: &&SlotRow| args.node.is_none() || row.owner == args.node;
    let rows: Vec<&SlotRow> = slots.iter().filter(wanted).collect();
    // A node may own no slot; one that nobody knows is a mistake.
    if let (Some(name), true) = (&args.node, rows.is_empty()) {
        let members = mesh::read(&client).await?.members;
        if !members.iter().any(|node| node.name == *name) {
            return Err(no_such_node(name, &members));
        }
    }
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

fn no_such_node(name: &str, members: &[Member]) -> Failure {
    let mut names: Vec<&str> = members.iter().map(|node| node.name.as_str()).collect();
    names.sort_unstable();
    let known = output::plain(&names.join(", "));
    Failure::new(code::REFUSED, anyhow::anyhow!("there is no node {name:?}"))
        .named("not_found")
        .help(format!("the nodes are {known}"))
}
