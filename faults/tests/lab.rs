//! The lab does to nodes what it says, and leaves nothing behind.
//!
//! Needs root, `iproute2` and `iptables`; without them these tests pass WITHOUT HAVING TESTED ANYTHING, and say so.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use ringmesh_faults::lab::{self, Cut, Lab, Options};
use tokio::sync::{Semaphore, SemaphorePermit};

/// What a slow machine is granted.
const SLACK: Duration = Duration::from_secs(120);
/// Labs at once: each is many processes.
static LABS: Semaphore = Semaphore::const_new(1);

fn options() -> Options {
    Options {
        nodes: 3,
        binary: Some(PathBuf::from(env!("CARGO_BIN_EXE_ringmesh-faults"))),
        ..Options::default()
    }
}

/// `None`: not on this machine, which was said aloud.
async fn permit(test: &str) -> Option<SemaphorePermit<'static>> {
    if let Err(why) = lab::check().await {
        // Not through the harness, which keeps the output of tests that pass.
        let warning = format!("\n######## NOT TESTED: {test}: {why:#} ########\n");
        std::io::Write::write_all(&mut std::io::stderr(), warning.as_bytes()).unwrap();
        return None;
    }
    Some(LABS.acquire().await.unwrap())
}

async fn until(what: &str, mut look: impl AsyncFnMut() -> bool) {
    let deadline = Instant::now() + SLACK;
    while !look().await {
        assert!(Instant::now() < deadline, "not within {SLACK:?}: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Whether one host can open a connection to an address.
async fn reaches(lab: &Lab, from: usize, to: &str) -> bool {
    let (host, port) = to.split_once(':').unwrap();
    let open = format!("exec 3<>/dev/tcp/{host}/{port}");
    let mut command = tokio::process::Command::new("ip");
    command.args(["netns", "exec", lab.nodes()[from].space()]);
    command.args(["timeout", "1", "bash", "-c", &open]);
    command.stderr(std::process::Stdio::null());
    command.status().await.unwrap().success()
}

/// Submits a task to a node over the control network; what came back.
async fn submit(lab: &Lab, node: usize, key: &str) -> Result<reqwest::StatusCode, reqwest::Error> {
    let client = ringmesh::tls::http_client()
        .no_proxy()
        .timeout(Duration::from_secs(20));
    let request = client
        .build()?
        .post(format!("{}/v1/tasks", lab.nodes()[node].url()));
    let body = serde_json::json!({"kind": "noop", "key": key, "payload": null});
    let request = request.bearer_auth(lab.token()).json(&body);
    Ok(request.send().await?.status())
}

/// Everything of this process that a lab must not leave behind.
fn traces() -> BTreeSet<String> {
    let own = format!("{:x}.", std::process::id());
    let list = |program: &str, arguments: &[&str]| {
        let output = Command::new(program).args(arguments).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    };
    let links = list("ip", &["-o", "link"]);
    let spaces = list("ip", &["netns", "list"]);
    let mut found: BTreeSet<String> = links.lines().chain(spaces.lines()).map(str::to_owned).collect();
    for folder in [
        std::env::temp_dir(),
        "/sys/fs/cgroup/cpu".into(),
        "/sys/fs/cgroup".into(),
    ] {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            found.insert(entry.path().display().to_string());
        }
    }
    found.retain(|line| line.contains(&own));
    found
}

#[tokio::test(flavor = "multi_thread")]
async fn three_nodes_come_up_and_nothing_is_left_behind() {
    let Some(_permit) = permit("nothing is left behind").await else {
        return;
    };
    let lab = Lab::start(options()).await.unwrap();
    for node in 0..3 {
        assert!(lab.incarnation(node).await.unwrap().is_some());
    }
    let pids: Vec<u32> = lab.nodes().iter().filter_map(lab::Host::pid).collect();
    assert_eq!(pids.len(), 3);
    lab.nodes()[0].limit_processor(Some(0.5)).unwrap();
    assert!(!traces().is_empty());
    drop(lab);
    assert_eq!(traces(), BTreeSet::new());
    for pid in pids {
        assert!(
            !PathBuf::from(format!("/proc/{pid}")).exists(),
            "{pid} still runs"
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn cut_link_is_cut_and_healed_one_heals() {
    let Some(_permit) = permit("links can be cut").await else {
        return;
    };
    let mut lab = Lab::start(options()).await.unwrap();
    let second = format!("{}:7101", lab.nodes()[1].address());
    let third = format!("{}:7101", lab.nodes()[2].address());
    let postgres = lab.nodes()[0].proxy().address().to_string();
    assert!(reaches(&lab, 0, &second).await);

    lab.cut(0, 1).await.unwrap();
    assert!(!reaches(&lab, 0, &second).await);
    assert!(reaches(&lab, 0, &third).await);
    assert!(reaches(&lab, 0, &postgres).await);
    lab.heal(0, 1).await.unwrap();
    assert!(reaches(&lab, 0, &second).await);

    for cut in [Cut::Drop, Cut::Reject] {
        lab.cut_database(0, cut).await.unwrap();
        assert!(!reaches(&lab, 0, &postgres).await);
        assert!(reaches(&lab, 0, &second).await);
        lab.heal_database(0).await.unwrap();
        assert!(reaches(&lab, 0, &postgres).await);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn node_without_postgres_is_fenced_and_comes_back_anew() {
    let Some(_permit) = permit("a cut reaches the node").await else {
        return;
    };
    let mut lab = Lab::start(options()).await.unwrap();
    let before = lab.incarnation(0).await.unwrap();
    lab.cut_database(0, Cut::Drop).await.unwrap();
    until("n1 is fenced", async || {
        lab.incarnation(0).await.unwrap() != before
    })
    .await;
    lab.heal_database(0).await.unwrap();
    until("n1 is back", async || {
        let now = lab.incarnation(0).await.unwrap();
        now.is_some() && now > before
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn node_that_loses_replies_to_commits_goes_on_when_healed() {
    let Some(_permit) = permit("replies can be lost").await else {
        return;
    };
    let lab = Lab::start(options()).await.unwrap();
    lab.nodes()[0].proxy().set(|rules| rules.lose_commits = 1.0);
    until("a commit's reply is lost", async || {
        lab.proxied().lost_commits > 0
    })
    .await;
    assert!(lab.proxied().resets > 0);
    lab.nodes()[0].proxy().heal();
    until("the node goes on", async || {
        let answer = submit(&lab, 0, "a").await;
        answer.is_ok_and(|status| status.is_success())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn killed_and_paused_nodes_come_back() {
    let Some(_permit) = permit("nodes can be killed").await else {
        return;
    };
    let mut lab = Lab::start(options()).await.unwrap();
    let before = lab.incarnation(0).await.unwrap();
    let host = &mut lab.nodes_mut()[0];
    host.kill().await.unwrap();
    assert!(!host.goes_on());
    host.start_again().await.unwrap();
    assert!(host.goes_on());
    until("n1 has a new incarnation", async || {
        let now = lab.incarnation(0).await.unwrap();
        now.is_some() && now > before
    })
    .await;
    let host = &mut lab.nodes_mut()[1];
    host.pause().await.unwrap();
    assert!(!host.goes_on());
    host.resume().unwrap();
    host.wait_ready(SLACK).await.unwrap();
}
