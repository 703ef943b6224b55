//! `ringmesh mesh`: the nodes, and how many slots each owns; on request again and again.

use std::collections::BTreeMap;
use std::time::Duration;

use comfy_table::{Cell, Color};
use serde::{Deserialize, Serialize};
use tokio::time::MissedTickBehavior;

use super::client::{Client, ClientArgs, Error};
use super::failure::Failure;
use super::output;

/// How often `--watch` looks.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// How many characters the longest bar has.
const BAR: u64 = 24;

/// Once, or until Ctrl-C.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Look again every 500 ms, until Ctrl-C
    #[arg(long, short)]
    watch: bool,
    #[command(flatten)]
    client: ClientArgs,
}

/// What a node answers about its mesh.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Mesh {
    /// The node that answers.
    pub(crate) node: String,
    /// All slots there are, and those with an owner.
    slots: u64,
    owned: u64,
    pub(crate) members: Vec<Member>,
}

/// A node, as the answering node sees it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) name: String,
    incarnation: i64,
    state: String,
    address: String,
    weight: u32,
    pub(crate) slots: u64,
    lease_ms: i64,
}

/// A slot.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct SlotRow {
    pub(crate) slot: u16,
    pub(crate) owner: Option<String>,
    pub(crate) incarnation: Option<i64>,
    pub(crate) epoch: i64,
}

/// One look, from the same node. The nodes come from its memory; who owns which slot comes from Postgres, and is left out while
/// that does not answer.
#[derive(Debug, Clone, Serialize)]
struct Look {
    members: Vec<Member>,
    /// Slots that nobody owns.
    without_owner: u64,
    /// Slots whose owner changed since the look before; none at the first, and without both lists of owners.
    moved: Option<u64>,
    #[serde(skip)]
    owners: Option<Owners>,
}

type Owners = BTreeMap<u16, Option<String>>;

/// Reads the nodes.
pub(crate) async fn read(client: &Client) -> Result<Mesh, Error> {
    client.get("/v1/mesh").await
}

/// Prints the mesh.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let client = args.client.client()?;
    if !args.watch {
        return show(&Look::new(read(&client).await?, None, None), args.client.json);
    }
    let mut ticks = tokio::time::interval(LOOK_EVERY);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut last = None;
    let mut trouble = output::Status::default();
    let interrupt = tokio::signal::ctrl_c();
    tokio::pin!(interrupt);
    loop {
        tokio::select! {
            _ = &mut interrupt => {
                trouble.clear();
                return Ok(());
            }
            _ = ticks.tick() => {}
        }
        let looked = tokio::select! {
            _ = &mut interrupt => {
                trouble.clear();
                return Ok(());
            }
            looked = look(&client, last.as_ref()) => looked,
        };
        let screen = output::is_terminal() && !args.client.json;
        match looked {
            Ok(look) => {
                trouble.clear();
                if screen {
                    output::clear()?;
                }
                show(&look, args.client.json)?;
                last = Some(look);
            }
            // A mesh that is being watched is often one that is being broken.
            Err(error @ (Error::Unreachable { .. } | Error::NoAnswer { .. } | Error::Unavailable { .. })) => {
                trouble.show(&format!("{error}; looking again"));
            }
            Err(error) => {
                trouble.clear();
                return Err(error.into());
            }
        }
    }
}

async fn look(client: &Client, last: Option<&Look>) -> Result<Look, Error> {
    let mesh = read(client).await?;
    let owners = match client.get_once::<Vec<SlotRow>>("/v1/slots").await {
        Ok(slots) => Some(slots.into_iter().map(|row| (row.slot, row.owner)).collect()),
        Err(Error::NoAnswer { .. } | Error::Unavailable { .. }) => None,
        Err(error) => return Err(error),
    };
    Ok(Look::new(mesh, owners, last))
}

impl Look {
    fn new(mesh: Mesh, owners: Option<Owners>, last: Option<&Look>) -> Look {
        let mut members = mesh.members;
        members.sort_by(|a, b| a.name.cmp(&b.name).then(a.incarnation.cmp(&b.incarnation)));
        let moved = |now: &Owners, last: &Owners| {
            now.iter()
                .filter(|(slot, owner)| last.get(slot) != Some(owner))
                .count() as u64
        };
        let last = last.and_then(|last| last.owners.as_ref());
        Look {
            members,
            without_owner: mesh.slots.saturating_sub(mesh.owned),
            moved: owners.as_ref().zip(last).map(|(now, last)| moved(now, last)),
            owners,
        }
    }
}

fn show(look: &Look, json: bool) -> Result<(), Failure> {
    match json {
        true => output::json(look),
        false => output::text(as_text(look, output::colours())),
    }
}

fn as_text(look: &Look, colours: bool) -> String {
    let mut table = output::table([
        "NODE",
        "INCARNATION",
        "STATE",
        "WEIGHT",
        "LEASE",
        "ADDRESS",
        "SLOTS",
        "",
    ]);
    let most = look
        .members
        .iter()
        .map(|node| node.slots)
        .max()
        .unwrap_or_default();
    for node in &look.members {
        let colour = match node.state.as_str() {
            "serving" => Color::Green,
            "silent" => Color::Red,
            _ => Color::Yellow,
        };
        let state = Cell::new(output::plain(&node.state));
        table.add_row([
            Cell::new(&node.name),
            Cell::new(node.incarnation),
            if colours { state.fg(colour) } else { state },
            Cell::new(node.weight),
            Cell::new(format!("{:.1}s", node.lease_ms as f64 / 1000.0)),
            Cell::new(&node.address),
            Cell::new(node.slots),
            Cell::new(output::bar(node.slots, most, BAR)),
        ]);
    }
    let mut text = output::lines(&table);
    let owned: u64 = look.members.iter().map(|node| node.slots).sum();
    text.push_str(&format!(
        "\n\n{}, {} owned",
        output::count(look.members.len() as u64, "node"),
        output::count(owned, "slot")
    ));
    if look.without_owner > 0 {
        text.push_str(&format!(", {} without an owner", look.without_owner));
    }
    if let Some(moved) = look.moved {
        text.push_str(&format!(", {moved} moved since the last look"));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, slots: u64) -> Member {
        let incarnation = i64::try_from(slots).unwrap();
        Member {
            name: name.into(),
            incarnation,
            address: "127.0.0.1:7101".into(),
            state: "serving".into(),
            weight: 1,
            slots,
            lease_ms: 2980,
        }
    }

    #[test]
    fn a_look_counts_what_moved_since_the_last() {
        let owners =
            |names: [Option<&str>; 3]| (0..3).zip(names.map(|name| name.map(str::to_owned))).collect();
        let mesh = |members, owned| Mesh {
            node: "a".into(),
            slots: 3,
            owned,
            members,
        };
        let first = Look::new(
            mesh(vec![member("b", 1), member("a", 2)], 3),
            Some(owners([Some("a"), Some("a"), Some("b")])),
            None,
        );
        let second = Look::new(
            mesh(vec![member("a", 2)], 2),
            Some(owners([Some("a"), Some("a"), None])),
            Some(&first),
        );
        let without_postgres = Look::new(mesh(vec![member("a", 2)], 2), None, Some(&second));
        assert_eq!(
            (without_postgres.moved, without_postgres.without_owner),
            (None, 1)
        );
        assert_eq!((first.moved, first.without_owner), (None, 0));
        assert_eq!((second.moved, second.without_owner), (Some(1), 1));
        let expected = "\
NODE  INCARNATION  STATE    WEIGHT  LEASE  ADDRESS         SLOTS
a     2            serving  1       3.0s   127.0.0.1:7101  2      ████████████████████████
b     1            serving  1       3.0s   127.0.0.1:7101  1      ████████████

2 nodes, 3 slots owned";
        assert_eq!(as_text(&first, false), expected);
        assert!(
            as_text(&second, false)
                .ends_with("1 node, 2 slots owned, 1 without an owner, 1 moved since the last look")
        );
    }
}
