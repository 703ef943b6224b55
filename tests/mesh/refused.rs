//! Nodes that do not fit: refused at the start, with a text that says why, and nothing is written.

use std::process::Stdio;

use tokio::process::Command;

use crate::harness::{Lab, Program, SLACK, UNHURRIED};

/// Starts `ringmesh node` as n1 was started, but for these variables; its exit code and its words.
async fn refusal(lab: &Lab, env: &[(&str, &str)]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ringmesh"));
    command
        .arg("node")
        .env("RINGMESH_NAME", "other")
        .env("RINGMESH_DATABASE_URL", lab.mesh.database_url())
        .env("RINGMESH_CLUSTER_SECRET", lab.mesh.cluster_secret())
        .env("RINGMESH_SEEDS", lab.mesh.seeds())
        .env("RINGMESH_LISTEN", "127.0.0.1:0")
        .env("RINGMESH_GOSSIP", "127.0.0.1:0")
        .envs([UNHURRIED])
        .envs(env.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    match tokio::time::timeout(SLACK * 2, command.output()).await {
        Ok(ended) => {
            let ended = ended.unwrap();
            let text = String::from_utf8_lossy(&ended.stdout) + String::from_utf8_lossy(&ended.stderr);
            (ended.status.code(), text.into_owned())
        }
        Err(_) => lab.fail(&format!("a node with {env:?} was not refused")),
    }
}

/// All that a refused node could have written.
async fn written(lab: &Lab) -> Vec<String> {
    let mut rows = lab
        .rows("select incarnation, name, fenced_at from ringmesh.node order by 1")
        .await;
    rows.extend(lab.rows("select * from ringmesh.mesh").await);
    rows.extend(
        lab.rows("select slot, owner, epoch from ringmesh.slot order by 1")
            .await,
    );
    rows.extend(
        lab.rows("select version from ringmesh._sqlx_migrations order by 1")
            .await,
    );
    rows.extend(lab.rows("select last_value from ringmesh.incarnation").await);
    rows
}

#[tokio::test]
async fn node_that_does_not_fit_the_mesh_is_refused_and_writes_nothing() {
    let lab = Lab::start(1, Program::Ringmesh, &[UNHURRIED]).await;
    let before = written(&lab).await;
    let cases: &[(&[(&str, &str)], &str)] = &[
        (&[("RINGMESH_NAME", "n1")], r#"another node named "n1" lives at"#),
        (
            &[("RINGMESH_CLUSTER_SECRET", "another-cluster-secret")],
            "the cluster secret is not the mesh's",
        ),
        (
            &[("RINGMESH_CLUSTER_ID", "another")],
            "cluster_id is not the mesh's: all nodes must have the same",
        ),
        (
            &[("RINGMESH_TOKENS", "256")],
            "this mesh runs with tokens = 512, this node with 256",
        ),
        (
            &[("RINGMESH_LOAD_BOUND", "none")],
            "this mesh runs with load_bound = 1.25, this node with none",
        ),
        (
            &[("RINGMESH_TTL", "6s")],
            "this mesh runs with ttl = 60000ms, this node with 6000ms",
        ),
        (
            &[("RINGMESH_TTL", "1s"), ("RINGMESH_RENEW_EVERY", "500ms")],
            "renew_every",
        ),
    ];
    for (env, text) in cases {
        let (code, said) = refusal(&lab, env).await;
        let refused = code.is_some_and(|code| code != 0) && said.contains(text);
        lab.check(refused, || {
            format!("with {env:?} it ended with {code:?} and said\n{said}")
        });
    }
    lab.execute("update ringmesh.mesh set oldest_binary = 9999").await;
    let (code, said) = refusal(&lab, &[]).await;
    let refused = code.is_some_and(|code| code != 0) && said.contains("upgrade this binary");
    lab.check(refused, || {
        format!("under a newer schema it ended with {code:?} and said\n{said}")
    });
    lab.execute("update ringmesh.mesh set oldest_binary = 1, slots = 8")
        .await;
    let (code, said) = refusal(&lab, &[]).await;
    let refused = code.is_some_and(|code| code != 0) && said.contains("slots = 8, this node with 4096");
    lab.check(refused, || {
        format!("in a mesh of other slots it ended with {code:?} and said\n{said}")
    });
    lab.execute("update ringmesh.mesh set slots = 4096").await;

    let after = written(&lab).await;
    lab.check(after == before, || {
        let new: Vec<_> = after.iter().filter(|row| !before.contains(row)).collect();
        format!("refused nodes wrote {new:?}")
    });
    let alive = lab
        .client
        .text(&format!("{}/health/ready", lab.mesh.nodes()[0].url()))
        .await;
    lab.check(alive == "ready\n", || {
        format!("the node that was there says {alive:?}")
    });
}
