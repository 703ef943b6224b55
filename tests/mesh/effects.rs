//! Handlers that work in transactions of their own, through SQL: one effect and one end for each task, whoever dies when.

use std::time::{Duration, Instant};

use ringmesh::sqlx;
use serde_json::{Value, json};

use crate::harness::{Accepted, Lab, Loaded, Program, SLACK, TTL, UNHURRIED};

/// Where runs end their process, and whether they complete their task or only guard it.
const DEATHS: [(&str, &str); 7] = [
    ("complete", "begun"),
    ("complete", "written"),
    ("complete", "registered"),
    ("complete", "committed"),
    ("guard", "written"),
    ("guard", "registered"),
    ("guard", "committed"),
];

/// Submits a task that writes by itself; by SQL, since nodes die. Those that only guard their run apply their task's id once, as they
/// may be repeated.
async fn submit(lab: &Lab, loaded: &mut Loaded, kind: &str, key: &str, more: Value) {
    let seq = loaded.accepted.len() as i64;
    let mut payload = json!({"seq": seq, "once": kind == "guard"});
    for (name, value) in more.as_object().unwrap() {
        payload[name] = value.clone();
    }
    let submit = sqlx::query_scalar("select ringmesh.enqueue($1, $2, $3, max_attempts => 100)")
        .bind(kind)
        .bind(key)
        .bind(payload);
    let id = submit.fetch_one(&lab.db).await.unwrap();
    let key = key.to_owned();
    loaded.accepted.push(Accepted { id, key, seq });
}

/// What a supervisor does, until no task is open and all nodes are there again; and one kill from outside. Answers with how many died.
async fn supervise(lab: &mut Lab) -> usize {
    let (mut deaths, deadline) = (0, Instant::now() + SLACK * 5);
    let mut killed = false;
    loop {
        for node in lab.mesh.nodes_mut() {
            if node.ended().is_some() {
                deaths += 1;
                node.spawn().await.unwrap();
            }
        }
        let open = lab.number("select count(*) from ringmesh.task").await;
        let all = ready(lab).await;
        // One that is about to start would be missed for as long as its lease.
        if deaths >= 3 && !killed && all.contains(&"n2".to_owned()) {
            killed = true;
            deaths += 1;
            let node = lab.mesh.node_mut("n2").unwrap();
            node.kill().await.unwrap();
            node.spawn().await.unwrap();
        } else if open == 0 && all.len() == lab.mesh.nodes().len() {
            return deaths;
        }
        if Instant::now() > deadline {
            lab.fail(&format!(
                "after {deaths} deaths {open} tasks are open, or a node is not ready"
            ));
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// The names of those that hold all slots that the ring gives them.
async fn ready(lab: &Lab) -> Vec<String> {
    let mut names = Vec::new();
    for node in lab.mesh.nodes() {
        let url = format!("{}/health/ready", node.url());
        if lab.client.text(&url).await == "ready\n" {
            names.push(node.name().to_owned());
        }
    }
    names
}

/// A counter, over all nodes.
async fn sum(lab: &Lab, name: &str) -> f64 {
    let mut sum = 0.0;
    for node in lab.mesh.nodes() {
        sum += lab.metric(node.url(), name).await;
    }
    sum
}

#[tokio::test]
async fn tasks_that_complete_themselves_by_sql_have_one_effect_and_one_end_beside_deaths_at_each_point() {
    let env = [UNHURRIED, ("RINGMESH_REJOIN_DELAY", "0s")];
    let mut lab = Lab::start(3, Program::Worker, &env).await;
    let mut loaded = Loaded::default();
    for (number, (kind, point)) in DEATHS.into_iter().enumerate() {
        let key = format!("d{number}");
        submit(&lab, &mut loaded, kind, &key, json!({"die": point})).await;
        for turn in 0..30 {
            let kind = ["complete", "guard"][turn % 2];
            let key = format!("k{}-{}", number % 3, turn % 10);
            submit(&lab, &mut loaded, kind, &key, json!({"ms": 20})).await;
        }
        // The key of a task that dies goes on.
        submit(&lab, &mut loaded, "complete", &key, json!({})).await;
    }
    let deaths = supervise(&mut lab).await;
    let history = lab.drained(SLACK).await;
    lab.check_effects(&history, &loaded).await;
    // Two may have died in one process; and one that dies by another's hand after its commit never comes to its own point.
    let points = lab.marks(".died").len();
    lab.check(points >= DEATHS.len() - 2 && deaths > 2, || {
        format!("{deaths} nodes died, at {points} points")
    });

    // Without deaths: what SQL has completed is a finish, and no refused write.
    let (elsewhere, fenced) = (
        "ringmesh_completed_elsewhere_total",
        "ringmesh_fenced_writes_total",
    );
    let before = (sum(&lab, elsewhere).await, sum(&lab, fenced).await);
    for number in 0..30 {
        submit(&lab, &mut loaded, "complete", &format!("calm{number}"), json!({})).await;
    }
    let history = lab.drained(SLACK).await;
    lab.check_effects(&history, &loaded).await;
    lab.until(SLACK, "each node knows what has ended", async || {
        let now = (sum(&lab, elsewhere).await, sum(&lab, fenced).await);
        if now == (before.0 + 30.0, before.1) {
            Ok(())
        } else {
            Err(format!("(completed, fenced) was {before:?} and is {now:?}"))
        }
    })
    .await;
    println!("{deaths} deaths, at {points} points");
}

#[tokio::test]
async fn transactions_of_a_node_that_was_paused_come_to_nothing() {
    let mut lab = Lab::start(3, Program::Worker, &[]).await;
    let mut loaded = Loaded::default();
    for number in 0..60 {
        let kind = ["complete", "guard"][number % 2];
        submit(&lab, &mut loaded, kind, &format!("k{number}"), json!({"ms": 500})).await;
    }
    let paused = lab.incarnation("n2").await;
    lab.until(SLACK, "it has begun some runs", async || {
        match lab.runs_of("n2").len() {
            runs if runs >= 3 => Ok(()),
            runs => Err(format!("{runs} have begun")),
        }
    })
    .await;
    lab.mesh.node_mut("n2").unwrap().pause().await.unwrap();
    lab.all_owned(TTL + SLACK, paused).await;
    let history = lab.drained(SLACK).await;
    lab.check_effects(&history, &loaded).await;
    lab.mesh.node_mut("n2").unwrap().resume().unwrap();
    lab.until(SLACK, "it has come back anew", async || {
        match lab.incarnation("n2").await {
            next if next > paused => Ok(()),
            next => Err(format!("it is {next}")),
        }
    })
    .await;
    submit(&lab, &mut loaded, "complete", "after", json!({})).await;
    let history = lab.drained(SLACK).await;
    lab.check_effects(&history, &loaded).await;
}
