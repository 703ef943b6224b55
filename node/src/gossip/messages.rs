//! Messages of a small mesh, as its nodes encode them: where fuzzers begin.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use chitchat::transport::UdpTransport;
use chitchat::{ChitchatHandle, ChitchatId, spawn_chitchat};
use ringmesh_ring::Incarnation;
use tokio::net::UdpSocket;
use tokio::time::timeout_at;

use super::{Config, Me, chitchat_config, first_words, generation};
use crate::secret::Secret;

const INTERVAL: Duration = Duration::from_millis(10);

/// Listens, for a moment, between two nodes that find each other and change their minds.
pub(super) fn recorded() -> Vec<Vec<u8>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        let tap = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
        let between = tap.local_addr().expect("bound");
        let far = free().await;
        let far_node = node("b", 2, far, &[]).await;
        let near = free().await;
        let near_node = node("a", 1, near, &[between]).await;
        let mut recorded = BTreeSet::new();
        let mut buffer = vec![0; 65_536];
        let mut client = near;
        let until = tokio::time::Instant::now() + INTERVAL * 60;
        while let Ok(Ok((length, from))) = timeout_at(until, tap.recv_from(&mut buffer)).await {
            recorded.insert(buffer[..length].to_vec());
            let to = if from == far {
                client
            } else {
                client = from;
                far
            };
            let _ = tap.send_to(&buffer[..length], to).await;
            let told = recorded.len().to_string();
            far_node
                .with_chitchat(|chitchat| chitchat.self_node_state().set("told", &told))
                .await;
        }
        drop((near_node, far_node));
        recorded.into_iter().collect()
    })
}

async fn free() -> SocketAddr {
    let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
    socket.local_addr().expect("bound")
}

async fn node(name: &str, number: i64, address: SocketAddr, seeds: &[SocketAddr]) -> ChitchatHandle {
    let config = Config {
        cluster_id: "mesh".to_owned(),
        secret: Secret::new("secret"),
        listen: address,
        advertise: address,
        seeds: Vec::new(),
        interval: INTERVAL,
    };
    let me = Me {
        name: name.to_owned(),
        incarnation: Incarnation(number),
        weight: 1,
        http: format!("{name}:7101"),
    };
    let id = ChitchatId::new(
        name,
        generation(me.incarnation, 7).expect("an incarnation"),
        address,
    );
    let mut told = chitchat_config(&config, id);
    told.seed_nodes = seeds.iter().map(ToString::to_string).collect();
    spawn_chitchat(told, first_words(&me), &UdpTransport)
        .await
        .expect("starts")
}
