//! Bodies that were good once, at a real node on a real Postgres.

use futures::StreamExt as _;

use super::hostile::Besieged;
use super::*;
use crate::fuzz::{TARGETS, mutate};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_body_is_written_as_a_whole_or_not_at_all() {
    let mut besieged = Besieged::new().await;
    // Each takes a thousand times longer than one that reaches no Postgres.
    let cases = (mutate::cases() / 10).max(200);
    let mut random = mutate::Random(7);
    let routes = [
        ("tasks", "/v1/tasks", "application/json"),
        ("batches", "/v1/tasks/batch", "application/x-ndjson"),
    ];
    for (target, path, form) in routes {
        let target = TARGETS.iter().find(|known| known.name == target).unwrap();
        let good = (target.seeds)();
        let bodies: Vec<Vec<u8>> = (0..cases).map(|_| random.mutant(&good)).collect();
        let node = &besieged.node;
        let answers = futures::stream::iter(bodies).map(|body| async move {
            let request = node.request(Method::POST, path).header("content-type", form);
            (answer(request.body(body.clone())).await, body)
        });
        let (mut new, mut replayed, mut refused) = (0, 0, 0);
        let mut answers = std::pin::pin!(answers.buffer_unordered(32));
        while let Some((answer, body)) = answers.next().await {
            match answer.status {
                201 if path == "/v1/tasks" => new += 1,
                201 => {
                    let again = answer.body["replayed"].as_i64().unwrap();
                    new += answer.body["ids"].as_array().unwrap().len() as i64 - again;
                    replayed += again;
                }
                200 => replayed += 1,
                400 | 413 | 422 => {
                    let codes = [
                        "bad_json",
                        "bad_utf8",
                        "invalid",
                        "too_large",
                        "idempotency_mismatch",
                    ];
                    assert!(
                        codes.contains(&answer.code()),
                        "{}: {}",
                        String::from_utf8_lossy(&body),
                        answer.body
                    );
                    refused += 1;
                }
                status => panic!("{status} for {}: {}", String::from_utf8_lossy(&body), answer.body),
            }
        }
        besieged.taken += new;
        println!("{path}: {cases} bodies: {refused} refused, {new} tasks new, {replayed} replayed");
        assert!(new > 0 && refused > 0);
        besieged.is_unharmed(path).await;
    }
}
