//! `ringmesh key`: where a key is and what waits for it.

use ringmesh_ring::Key;
use serde_json::Value;

use super::client::{ClientArgs, part};
use super::failure::Failure;
use super::output;

/// Which key.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The key
    #[arg(value_parser = read)]
    key: Key,
    #[command(flatten)]
    client: ClientArgs,
}

/// Shows what the mesh knows about it. A key that was never used has a slot and an owner too.
pub(crate) async fn run(args: Args) -> Result<(), Failure> {
    let status: Value = args.client.client()?.get(&path(&args.key)).await?;
    match args.client.json {
        true => output::json(&status),
        false => output::text(lines(&status)),
    }
}

fn read(text: &str) -> Result<Key, ringmesh_ring::key::Error> {
    Key::new(text)
}

/// In the query, since a path cannot hold the keys `.` and `..`.
fn path(key: &Key) -> String {
    format!("/v1/keys?key={}", part(key.as_str()))
}

/// One line for each fact, nested ones with a dotted name; what is not there is left out.
fn lines(status: &Value) -> String {
    let mut facts = Vec::new();
    flatten("", status, &mut facts);
    let width = facts.iter().map(|(name, _)| name.len()).max().unwrap_or_default();
    facts
        .iter()
        .map(|(name, value)| format!("{name:<width$} {value}"))
        .collect::<Vec<_>>()
        .join("\n")
}

fn flatten(name: &str, value: &Value, facts: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => {
            for (field, value) in fields {
                let name = if name.is_empty() {
                    field.clone()
                } else {
                    format!("{name}.{field}")
                };
                flatten(&name, value, facts);
            }
        }
        Value::Null => {}
        Value::String(text) => facts.push((name.to_owned(), output::plain(text))),
        other => facts.push((name.to_owned(), other.to_string())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_key_reaches_the_node_as_it_is() {
        for text in ["..", ".", "a/../b", "a+b &key=c#d", "é"] {
            let path = path(&Key::new(text).unwrap());
            let url = reqwest::Url::parse(&format!("http://n1{path}")).unwrap();
            let sent: Vec<_> = url.query_pairs().collect();
            assert_eq!((url.path(), sent.len(), &*sent[0].1), ("/v1/keys", 1, text));
        }
        assert!(read("").is_err());
    }

    #[test]
    fn facts_stand_in_lines() {
        let status = serde_json::json!({"key": "a\n", "slot": 7, "held": {"task": "7-1", "until": null}});
        assert_eq!(lines(&status), "held.task 7-1\nkey       a\\n\nslot      7");
    }
}
