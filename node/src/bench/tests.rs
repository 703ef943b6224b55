//! The parts that need no node processes, on a real Postgres.

use super::*;
use crate::dev::{Postgres, postgres};
use crate::store::bench::Server;

fn args(url: String, json: PathBuf) -> BenchArgs {
    BenchArgs {
        tasks: 3_000,
        keys: 300,
        connections: 1,
        seconds: 1,
        nodes: 2,
        kills: 1,
        only: vec![Measurement::Floor],
        json: Some(json),
        database_url: Some(url),
        data: std::env::temp_dir(),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_floor_drains_its_whole_backlog_and_leaves_no_database() {
    let mut own = Postgres::start(postgres::Options::for_tests()).await.unwrap();
    let json = std::env::temp_dir().join(format!("ringmesh-bench-{}.json", std::process::id()));
    run(args(own.url(), json.clone())).await.unwrap();

    let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    std::fs::remove_file(&json).unwrap();
    for name in ["submit_batch_per_s", "drain_per_s"] {
        assert!(figures["floor"][name].as_f64().unwrap() > 0.0, "{figures}");
    }
    assert!(figures["drain_1_per_s"].is_null(), "{figures}");
    let left = Server::new(&own.url()).unwrap().databases().await.unwrap();
    assert_eq!(left, Vec::<String>::new());
    own.stop().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn without_its_server_nothing_is_measured_and_no_file_is_written() {
    let json = std::env::temp_dir().join(format!("ringmesh-bench-none-{}.json", std::process::id()));
    let nobody = "postgres://nobody@127.0.0.1:1/nothing".to_owned();
    let failed = run(args(nobody, json.clone())).await.unwrap_err();
    assert!(matches!(failed, Error::Store { .. }), "{failed}");
    assert!(!json.exists());
}
