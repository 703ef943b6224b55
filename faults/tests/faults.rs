//! Every fault begins, is healed, and leaves a mesh that takes work at every node. Long, so by hand:
//!
//! ```sh
//! FAULTS=kill-one,suspend cargo test -p ringmesh-faults --test faults -- --ignored --nocapture
//! ```

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::rngs::StdRng;
use ringmesh_faults::fault::{self, Fault};
use ringmesh_faults::lab::{Lab, Options};

/// From the heal until every node takes work again.
const BACK: Duration = Duration::from_secs(120);

fn options() -> Options {
    Options {
        nodes: 3,
        binary: Some(PathBuf::from(env!("CARGO_BIN_EXE_ringmesh-faults"))),
        ..Options::default()
    }
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "takes long; see above"]
async fn every_fault_begins_and_heals_and_work_goes_on() {
    let wanted = std::env::var("FAULTS").unwrap_or_default();
    let wanted = |name: &str| wanted.is_empty() || wanted.split(',').any(|part| part == name);
    // Faults that need the same lab share it.
    let mut groups: BTreeMap<String, (Options, Vec<Box<dyn Fault>>)> = BTreeMap::new();
    for fault in fault::all().into_iter().filter(|fault| wanted(fault.name())) {
        if let Err(why) = fault.can() {
            println!("{:4} {}: NOT TESTED: {why:#}", fault.id(), fault.name());
            continue;
        }
        let mut options = options();
        fault.prepare(&mut options);
        let group = groups.entry(format!("{options:?}"));
        group.or_insert((options, Vec::new())).1.push(fault);
    }
    assert!(!groups.is_empty(), "no such fault");
    let mut failed = Vec::new();
    for (options, faults) in groups.into_values() {
        let mut lab = Lab::start(options).await.unwrap();
        for mut fault in faults {
            let name = format!("{:4} {}", fault.id(), fault.name());
            match once(&mut lab, fault.as_mut()).await {
                Ok(text) => println!("{name}: {text}"),
                Err(error) => {
                    println!("{name}: FAILED: {error:#}");
                    failed.push(name);
                    lab.keep();
                    println!("     logs: {}", lab.dir().display());
                }
            }
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

async fn once(lab: &mut Lab, fault: &mut dyn Fault) -> anyhow::Result<String> {
    let mut rng = StdRng::seed_from_u64(1);
    let start = Instant::now();
    let begun = fault.begin(lab, &mut rng).await;
    let (begin, start) = (start.elapsed(), Instant::now());
    tokio::time::sleep(Duration::from_secs(1)).await;
    let healed = fault.heal(lab).await;
    let (heal, start) = (start.elapsed(), Instant::now());
    let begun = begun.map_err(|error| error.context("begin"))?;
    healed.map_err(|error| error.context("heal"))?;
    for node in 0..lab.nodes().len() {
        while let Err(why) = takes_work(lab, node).await {
            let name = lab.nodes()[node].name();
            anyhow::ensure!(
                start.elapsed() < BACK,
                "{name} takes no work {BACK:?} after the heal: {why:#}"
            );
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    Ok(format!(
        "{:?} {:?} {}; began in {begin:.1?}, healed in {heal:.1?}, back after {:.1?}",
        begun.hosts,
        begun.incarnations,
        begun.detail,
        start.elapsed()
    ))
}

/// A task that is submitted there and runs to its end.
async fn takes_work(lab: &Lab, node: usize) -> anyhow::Result<()> {
    let client = ringmesh::tls::http_client()
        .no_proxy()
        .timeout(Duration::from_secs(15));
    let url = format!("{}/v1/tasks?wait=10s", lab.nodes()[node].url());
    let body = serde_json::json!({"kind": "noop", "key": format!("key-{node}"), "payload": null});
    let request = client.build()?.post(url).bearer_auth(lab.token()).json(&body);
    let answer = request.send().await?.error_for_status()?;
    let task: serde_json::Value = answer.json().await?;
    anyhow::ensure!(task["state"] == "succeeded", "{task}");
    Ok(())
}
