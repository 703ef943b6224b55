//! How many submits a node takes per second. Not a test: it needs `wrk`, an idle machine and a release build:
//!
//! ```text
//! cargo test --release -p ringmesh --lib http::tests::rate -- --ignored --nocapture
//! ```

use super::*;
use crate::dev::postgres::{self, Durability};
use crate::store::testing::fresh_with;

const SINGLE: &str = r#"
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local n = math.random(1000000)
request = function()
  n = n + 1
  return wrk.format(nil, nil, nil, '{"kind":"k","key":"key-' .. n % 100000 .. '","payload":{"n":' .. n .. '}}')
end
"#;

const KEYED: &str = r#"
wrk.method = "POST"
wrk.headers["content-type"] = "application/json"
local seed, n = 0, 0
function setup(thread) thread:set("seed", math.random(1000000000)) end
request = function()
  n = n + 1
  return wrk.format(nil, nil, nil, '{"kind":"k","key":"key-' .. n % 100000 .. '","payload":{"n":' .. n
    .. '},"idempotency_key":"' .. seed .. "-" .. n .. '"}')
end
"#;

const BATCH: &str = r#"
wrk.method = "POST"
wrk.path = "/v1/tasks/batch"
wrk.headers["content-type"] = "application/x-ndjson"
local lines = {}
for n = 1, 1000 do lines[n] = '{"kind":"k","key":"key-' .. n .. '","payload":{"n":' .. n .. '}}' end
wrk.body = table.concat(lines, "\n")
"#;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn submits_per_second() {
    let fresh = fresh_with(postgres::Options {
        durability: Durability::Real,
        ..postgres::Options::for_tests()
    })
    .await;
    let node = start(&fresh.store, Setup::default()).await;
    let script = fresh.server.dir().with_extension("lua");
    for (what, lua, connections) in [
        ("single", SINGLE, "16"),
        ("single", SINGLE, "64"),
        ("single", SINGLE, "256"),
        ("keyed", KEYED, "64"),
        ("batches of 1,000", BATCH, "4"),
    ] {
        std::fs::write(&script, lua).unwrap();
        let before = fresh.number("select count(*) from ringmesh.task").await;
        let mut wrk = tokio::process::Command::new("wrk");
        wrk.args(["-t1", "-c", connections, "-d10s", "--latency", "-s"])
            .arg(&script)
            .arg(node.url("/v1/tasks"));
        let output = wrk.output().await.unwrap();
        let rows = fresh.number("select count(*) from ringmesh.task").await - before;
        println!(
            "{what}, {connections} connections: {} rows/s\n{}",
            rows / 10,
            String::from_utf8_lossy(&output.stdout)
        );
    }
    std::fs::remove_file(script).unwrap();
}
