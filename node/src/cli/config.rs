//! `ringmesh config`: the values in effect and where each comes from.

use ringmesh::config::{Loaded, OPTIONS, markdown};
use serde_json::json;

use super::failure::Failure;
use super::options::NodeOptions;
use super::output;

/// What to show, and the options of a node.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Print one line of JSON
    #[arg(long)]
    json: bool,
    /// Print the page about all options, docs/configuration.md
    #[arg(long, conflicts_with = "json")]
    markdown: bool,
    #[command(flatten)]
    options: NodeOptions,
}

/// Prints also what does not fit; the failure then says so.
pub(crate) fn run(args: Args) -> Result<(), Failure> {
    if args.markdown {
        return output::text(markdown().trim_end());
    }
    let loaded = args.options.load()?;
    match args.json {
        true => output::json(&as_json(&loaded))?,
        false => output::text(as_text(&loaded))?,
    }
    loaded.check().map(drop).map_err(Failure::usage)
}

fn as_text(loaded: &Loaded) -> String {
    let mut table = output::table(["OPTION", "VALUE", "FROM"]);
    for option in OPTIONS {
        let value = option.show(loaded.unchecked()).unwrap_or_else(|| "-".to_owned());
        table.add_row([
            option.name,
            &output::plain(&value),
            &loaded.source(option.name).to_string(),
        ]);
    }
    output::lines(&table)
}

fn as_json(loaded: &Loaded) -> serde_json::Value {
    let values = OPTIONS.iter().map(|option| {
        let value = json!({
            "value": option.show(loaded.unchecked()),
            "from": loaded.source(option.name).to_string(),
        });
        (option.name.to_owned(), value)
    });
    serde_json::Value::Object(values.collect())
}

#[cfg(test)]
mod tests {
    use ringmesh::config::load;

    use super::*;

    fn loaded() -> Loaded {
        let environment = [
            ("RINGMESH_TOKEN", "hunter2hunter2hunter2"),
            ("RINGMESH_DATABASE_URL", "postgres://me:hunter2@db/app"),
            ("RINGMESH_SEEDS", "n1:7201,n2:7201"),
        ];
        let environment = environment.map(|(name, value)| (name.into(), value.into()));
        load(None, environment, &[("name", "n1"), ("ttl", "5s")]).unwrap()
    }

    #[test]
    fn values_in_effect_are_shown_with_their_sources_and_without_secrets() {
        let expected = "\
OPTION              VALUE                     FROM
name                n1                        --name
database_url        postgres://me:***@db/app  RINGMESH_DATABASE_URL
lease_url           -                         default
pooler              auto                      default
listen              127.0.0.1:7101            default
advertise           -                         default
gossip              127.0.0.1:7201            default
gossip_advertise    -                         default
seeds               n1:7201,n2:7201           RINGMESH_SEEDS
cluster_id          ringmesh                  default
cluster_secret      -                         default
token               ***                       RINGMESH_TOKEN
weight              1                         default
tokens              512                       default
load_bound          1.25                      default
ttl                 5s                        --ttl
renew_every         500ms                     default
margin              500ms                     default
tick                500ms                     default
join_window         1s                        default
rejoin_delay        1m                        default
drain_deadline      10s                       default
run_grace           5s                        default
concurrency         512                       default
room                8192                      default
cache_keys          10000                     default
backoff_min         1s                        default
backoff_max         5m                        default
connections         10                        default
hot_connections     4                         default
retention           7days                     default
idempotency_window  1day                      default
inbox_window        7days                     default
max_connections     4096                      default
builtin_kinds       true                      default
fault_kinds         false                     default
log_format          text                      default";
        assert_eq!(as_text(&loaded()), expected);
    }

    #[test]
    fn json_has_every_option_and_no_secret() {
        let json = as_json(&loaded());
        assert_eq!(json["token"], json!({"value": "***", "from": "RINGMESH_TOKEN"}));
        assert_eq!(json["advertise"], json!({"value": null, "from": "default"}));
        assert_eq!(json.as_object().unwrap().len(), OPTIONS.len());
        assert!(!json.to_string().contains("hunter2"));
    }
}
