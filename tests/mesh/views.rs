//! All nodes see the same owners; a join moves only what the joiner takes.

use serde_json::Value;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

async fn agreed(lab: &Lab, nodes: usize) -> Vec<(Option<i64>, i64)> {
    lab.until(
        SLACK * 2,
        "all nodes agree on who owns what, evenly",
        async || {
            let mut views: Vec<Value> = Vec::new();
            for node in lab.mesh.nodes() {
                let slots = lab.client.text(&format!("{}/v1/slots", node.url())).await;
                views.push(serde_json::from_str(&slots).map_err(|error| error.to_string())?);
                let mesh: Value =
                    serde_json::from_str(&lab.client.text(&format!("{}/v1/mesh", node.url())).await)
                        .map_err(|error| error.to_string())?;
                let members = mesh["members"].as_array().map_or(0, Vec::len);
                if mesh["owned"] != 4096 || mesh["ready"] != true || members != nodes {
                    return Err(mesh.to_string());
                }
            }
            let first = views[0].as_array().unwrap();
            if first.len() != 4096 || first.iter().any(|slot| slot["owner"].is_null()) {
                return Err(format!("of {} slots some have no owner", first.len()));
            }
            if let Some(other) = views.iter().position(|view| *view != views[0]) {
                return Err(format!("n1 and n{} differ", other + 1));
            }
            Ok(())
        },
    )
    .await;
    lab.slots().await
}

#[tokio::test]
async fn nodes_agree_on_owners_and_a_join_moves_only_what_the_joiner_takes() {
    let mut lab = Lab::start(3, Program::Ringmesh, &[UNHURRIED]).await;
    let before = agreed(&lab, 3).await;
    if let Err(error) = lab.mesh.add().await {
        lab.fail(&format!("n4 did not join: {error}"));
    }
    let joiner = lab.incarnation("n4").await;
    let after = agreed(&lab, 4).await;
    let moved: Vec<_> = before
        .iter()
        .zip(&after)
        .filter(|(before, after)| before != after)
        .collect();
    let wrong = moved
        .iter()
        .filter(|(before, after)| after.0 != Some(joiner) || after.1 != before.1 + 1);
    let wrong: Vec<String> = wrong.map(|pair| format!("(owner, epoch): {pair:?}")).collect();
    lab.check_none("moves to others than the joiner, or more than one", &wrong);
    let most = 4096 / 4 * 5 / 4;
    lab.check((1..=most).contains(&moved.len()), || {
        format!("{} slots moved, at most {most} should", moved.len())
    });
    println!("a fourth node took {} of 4096 slots", moved.len());
}
