//! Real nodes on real sockets of the loopback, in a time of their own.
//!
//! It goes on only when every node waits for it, so that nobody is called dead because the machine is busy. What is sent over the
//! loopback has arrived when it is sent.

pub(crate) mod hostile;

use std::future::Future;

use tokio::time::Instant;

use super::*;

const INTERVAL: Duration = Duration::from_millis(200);

/// How long a test waits for what must happen.
const DEADLINE: Duration = Duration::from_secs(60);

const ANY: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// An address of the loopback that nobody else uses: a port of it that was left is still free when it is taken again.
fn own() -> SocketAddr {
    static NEXT: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(1);
    if !cfg!(target_os = "linux") {
        return ANY;
    }
    let number = NEXT
        .fetch_add(1, std::sync::atomic::Ordering::Relaxed)
        .clamp(1, 254);
    let [.., high, low] = std::process::id().to_be_bytes();
    ([127, 128 | high, low, number], 0).into()
}

fn config(seeds: &[SocketAddr]) -> Config {
    let address = own();
    Config {
        cluster_id: "mesh".to_owned(),
        secret: Secret::new("secret"),
        listen: address,
        advertise: address,
        seeds: seeds.iter().map(ToString::to_string).collect(),
        interval: INTERVAL,
    }
}

fn me(name: &str, incarnation: i64) -> Me {
    Me {
        name: name.to_owned(),
        incarnation: Incarnation(incarnation),
        weight: 3,
        http: format!("{name}:7070"),
    }
}

async fn node(name: &str, incarnation: i64, seeds: &[SocketAddr]) -> Gossip {
    Gossip::start(config(seeds), me(name, incarnation))
        .await
        .expect("starts")
}

/// Three nodes that see each other; the seed of all is the first.
async fn mesh() -> [Gossip; 3] {
    let a = node("a", 1, &[]).await;
    let b = node("b", 2, &[a.address()]).await;
    let c = node("c", 3, &[a.address()]).await;
    for gossip in [&a, &b, &c] {
        sees(gossip, &["a1", "b2", "c3"]).await;
    }
    [a, b, c]
}

fn ids(peers: &[Peer]) -> Vec<String> {
    peers
        .iter()
        .map(|peer| format!("{}{}", peer.name, peer.incarnation.0))
        .collect()
}

/// Waits until a node's peers fulfil a condition; gives the peers of that moment.
async fn when(gossip: &Gossip, holds: impl Fn(&[Peer]) -> bool) -> Vec<Peer> {
    let mut peers = gossip.peers();
    let seen = timeout(DEADLINE, peers.wait_for(|peers| holds(peers))).await;
    let seen = seen.map(|seen| seen.expect("gossip runs").to_vec());
    seen.unwrap_or_else(|_| panic!("in time; the peers are {:?}", gossip.peers().borrow()))
}

async fn sees(gossip: &Gossip, expected: &[&str]) -> Vec<Peer> {
    when(gossip, |peers| ids(peers) == expected).await
}

async fn eventually(mut holds: impl FnMut() -> bool) {
    let mut ticks = interval(Duration::from_millis(5));
    let polled = timeout(DEADLINE, async {
        while !holds() {
            ticks.tick().await;
        }
    });
    polled.await.expect("in time");
}

fn serves(name: &'static str) -> impl Fn(&[Peer]) -> bool {
    move |peers| peers.iter().any(|peer| peer.name == name && peer.serving)
}

#[tokio::test(start_paused = true)]
async fn three_nodes_find_each_other() {
    let [a, _, c] = mesh().await;
    let peers = sees(&a, &["a1", "b2", "c3"]).await;
    assert_eq!(
        peers[2],
        Peer {
            name: "c".to_owned(),
            incarnation: Incarnation(3),
            weight: 3,
            http: "c:7070".to_owned(),
            gossip: c.address(),
            serving: false,
            draining: false,
        }
    );
}

#[tokio::test(start_paused = true)]
async fn flags_spread() {
    let [a, b, c] = mesh().await;
    b.set_serving(true).await;
    for gossip in [&a, &b, &c] {
        when(gossip, serves("b")).await;
    }
    b.set_draining(true).await;
    b.set_serving(false).await;
    for gossip in [&a, &b, &c] {
        when(gossip, |peers| peers[1].draining && !peers[1].serving).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_killed_node_disappears_after_seven_to_twelve_intervals() {
    let [a, b, c] = mesh().await;
    let died = Instant::now();
    drop(c);
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
    let noticed = died.elapsed();
    // The last beat was up to an interval before the death, hence the lower bound.
    assert!(noticed > INTERVAL.mul_f64(5.0), "no flapping: {noticed:?}");
    assert!(noticed < INTERVAL * 12, "{noticed:?}");
}

#[tokio::test(start_paused = true)]
async fn a_node_that_says_so_is_gone_while_it_still_speaks() {
    let [a, b, c] = mesh().await;
    c.tell(key::LEFT, true).await;
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
    sees(&c, &["a1", "b2"]).await;
    let is_live = a
        .handle
        .with_chitchat(|chitchat| chitchat.live_nodes().any(|id| id.node_id.as_ref() == "c"))
        .await;
    assert!(is_live);
}

#[tokio::test(start_paused = true)]
async fn leaving_frees_the_port_and_is_no_end_by_itself() {
    let [a, b, c] = mesh().await;
    let address = c.address();
    let stopped = c.stopped();
    c.leave().await;
    std::net::UdpSocket::bind(address).expect("the port is free");
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
    assert!(timeout(INTERVAL, stopped).await.is_err());
}

#[tokio::test(start_paused = true)]
async fn a_higher_incarnation_replaces_the_lower_at_once() {
    let [a, b, old] = mesh().await;
    let new = node("c", 4, &[a.address()]).await;
    for gossip in [&a, &b, &new, &old] {
        sees(gossip, &["a1", "b2", "c4"]).await;
    }
    new.set_serving(true).await;
    let peers = when(&a, serves("c")).await;
    assert_eq!(peers[2].gossip, new.address());
}

#[tokio::test(start_paused = true)]
async fn a_name_that_starts_again_and_again_is_there_once_and_newcomers_still_learn_of_all() {
    let rounds = std::env::var("MESH_TEST_ROUNDS").map_or(1, |text| text.parse().expect("a number"));
    let a = node("a", 1, &[]).await;
    let _b = node("b", 2, &[a.address()]).await;
    let mut last = 2;
    for _ in 0..rounds * 15 {
        last += 1;
        // It is killed: nothing is said, and all its former lives are remembered as dead.
        let _c = node("c", last, &[a.address()]).await;
        sees(&a, &["a1", "b2", &format!("c{last}")]).await;
    }
    let d = node("d", last + 1, &[a.address()]).await;
    for gossip in [&a, &d] {
        when(gossip, |peers| {
            let names: Vec<&str> = peers.iter().map(|peer| peer.name.as_str()).collect();
            names == ["a", "b", "d"]
        })
        .await;
    }
}

/// Each newcomer learns of the dead from the others, and could pass on for ever what they are about to forget.
#[tokio::test(start_paused = true)]
async fn dead_lives_are_forgotten_though_nodes_keep_starting() {
    let a = node("a", 1, &[]).await;
    let mut b = node("b", 2, &[a.address()]).await;
    let mut c = node("c", 3, &[a.address()]).await;
    let mut last = 3;
    for _ in 0..10 {
        for restarted in [&mut b, &mut c] {
            last += 1;
            let name = if last % 2 == 0 { "b" } else { "c" };
            *restarted = node(name, last, &[a.address()]).await;
            sees(
                &a,
                &["a1", &format!("b{}", last & !1), &format!("c{}", (last - 1) | 1)],
            )
            .await;
            sleep(INTERVAL * (DEAD_NODE_GRACE_INTERVALS / 2 + 25)).await;
        }
    }
    for gossip in [&a, &b, &c] {
        let states = gossip
            .handle
            .with_chitchat(|chitchat| chitchat.node_states().len())
            .await;
        // The living, and who died in the last two rounds.
        assert!(states <= 3 + 2, "{states} lives of {last} are remembered");
    }
}

/// It was taken for dead, and forgotten.
#[tokio::test(start_paused = true)]
async fn a_node_that_was_cut_off_for_longer_than_it_is_remembered_comes_back() {
    let mut near = config(&[]);
    let free = std::net::UdpSocket::bind(near.listen).expect("binds");
    near.listen = free.local_addr().expect("bound");
    drop(free);
    let direct = near.listen;
    // Each knows of the other only what lies on the way.
    let (tapped, _, forward) = tap(direct).await;
    let forward = tokio::spawn(forward);
    near.advertise = tapped;
    let a = Gossip::start(near, me("a", 1)).await.expect("starts");
    let mut far = config(&[tapped]);
    far.advertise = "127.0.0.1:9".parse().expect("an address");
    let b = Gossip::start(far, me("b", 2)).await.expect("starts");
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
    forward.abort();
    sees(&a, &["a1"]).await;
    sees(&b, &["b2"]).await;
    sleep(INTERVAL * DEAD_NODE_GRACE_INTERVALS * 2).await;
    for gossip in [&a, &b] {
        let states = gossip
            .handle
            .with_chitchat(|chitchat| chitchat.node_states().len())
            .await;
        assert_eq!(states, 1, "the other is forgotten");
    }
    b.suggest(vec![direct]);
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_zombie_of_a_name_that_left_is_not_seen_again() {
    let [a, _b, _zombie] = mesh().await;
    let new = node("c", 4, &[a.address()]).await;
    sees(&a, &["a1", "b2", "c4"]).await;
    new.tell(key::LEFT, true).await;
    sees(&a, &["a1", "b2"]).await;
}

#[tokio::test(start_paused = true)]
async fn a_restart_on_the_same_port_does_not_stop_the_others() {
    let [a, b, c] = mesh().await;
    let address = c.address();
    // Its port answers with ICMP until it is bound again.
    c.leave().await;
    sees(&a, &["a1", "b2"]).await;
    b.set_serving(true).await;
    when(&a, serves("b")).await;
    let mut again = config(&[a.address()]);
    (again.listen, again.advertise) = (address, address);
    let again = Gossip::start(again, me("c", 4)).await.expect("starts");
    for gossip in [&a, &b, &again] {
        sees(gossip, &["a1", "b2", "c4"]).await;
    }
}

#[tokio::test(start_paused = true)]
async fn the_same_incarnation_given_twice_is_seen_as_a_new_start() {
    let a = node("a", 1, &[]).await;
    let b = node("b", 2, &[a.address()]).await;
    b.set_serving(true).await;
    when(&a, serves("b")).await;
    let address = b.address();
    b.leave().await;
    sees(&a, &["a1"]).await;
    let mut again = config(&[a.address()]);
    (again.listen, again.advertise) = (address, address);
    let again = Gossip::start(again, me("b", 2)).await.expect("starts");
    sees(&again, &["a1", "b2"]).await;
    // Seen by `a` once its mark is higher than the other's, or the other is forgotten as dead.
    sees(&a, &["a1", "b2"]).await;
}

#[tokio::test(start_paused = true)]
async fn suggested_addresses_lead_to_a_mesh_without_seeds() {
    let a = node("a", 1, &[]).await;
    let b = node("b", 2, &[]).await;
    a.suggest(vec![a.address(), b.address()]);
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
}

#[tokio::test(start_paused = true)]
async fn seeds_may_be_names_and_some_may_not_resolve() {
    let mut named = config(&[]);
    (named.listen, named.advertise) = (ANY, ANY);
    let a = Gossip::start(named, me("a", 1)).await.expect("starts");
    let mut config = config(&[]);
    config.seeds = vec![
        "not an address".to_owned(),
        format!("localhost:{}", a.address().port()),
    ];
    let b = Gossip::start(config, me("b", 2)).await.expect("starts");
    sees(&b, &["a1", "b2"]).await;
}

#[tokio::test(start_paused = true)]
async fn another_secret_or_cluster_is_never_admitted_and_counted() {
    let a = node("a", 1, &[]).await;
    let mut other_secret = config(&[a.address()]);
    other_secret.secret = Secret::new("other");
    let mut other_cluster = config(&[a.address()]);
    other_cluster.cluster_id = "other".to_owned();
    for (name, config) in [("s", other_secret), ("o", other_cluster)] {
        let forged = a.dropped().count(Reason::Forged);
        let stranger = Gossip::start(config, me(name, 2)).await.expect("starts");
        eventually(|| a.dropped().count(Reason::Forged) >= forged + 10).await;
        assert_eq!(stranger.dropped().count(Reason::Forged), 0, "not answered");
        assert_eq!(ids(&stranger.peers().borrow()).len(), 1);
    }
    assert_eq!(ids(&a.peers().borrow()), ["a1"]);
}

/// Forwards between whoever writes to it and `to`, both ways; records what goes to `to`.
async fn tap(
    to: SocketAddr,
) -> (
    SocketAddr,
    Arc<std::sync::Mutex<Vec<Vec<u8>>>>,
    impl Future<Output = ()>,
) {
    let socket = UdpSocket::bind(ANY).await.expect("binds");
    let address = socket.local_addr().expect("bound");
    let recorded = Arc::new(std::sync::Mutex::new(Vec::new()));
    let record = Arc::clone(&recorded);
    let forward = async move {
        let mut buffer = vec![0; 65_536];
        let mut client = None;
        loop {
            let (length, from) = socket.recv_from(&mut buffer).await.expect("receives");
            let datagram = &buffer[..length];
            let far = if from == to {
                client
            } else {
                client = Some(from);
                record.lock().expect("not poisoned").push(datagram.to_vec());
                Some(to)
            };
            if let Some(far) = far {
                socket.send_to(datagram, far).await.expect("sends");
            }
        }
    };
    (address, recorded, forward)
}

#[tokio::test(start_paused = true)]
async fn recorded_datagrams_are_dropped_by_the_node_and_by_its_successor() {
    let a = node("a", 1, &[]).await;
    let (tapped, recorded, forward) = tap(a.address()).await;
    let forward = tokio::spawn(forward);
    let b = node("b", 2, &[tapped]).await;
    sees(&a, &["a1", "b2"]).await;
    eventually(|| recorded.lock().expect("not poisoned").len() >= 5).await;
    forward.abort();
    drop(b);
    sees(&a, &["a1"]).await;

    let recorded = recorded.lock().expect("not poisoned").clone();
    let attacker = UdpSocket::bind(ANY).await.expect("binds");
    let refused = |gossip: &Gossip| {
        let dropped = gossip.dropped();
        dropped.count(Reason::Replayed) + dropped.count(Reason::Unproven)
    };
    let address = a.address();
    let before = refused(&a);
    for datagram in &recorded {
        attacker.send_to(datagram, address).await.expect("sends");
    }
    eventually(|| refused(&a) == before + recorded.len() as u64).await;
    assert!(a.dropped().count(Reason::Replayed) > 0);

    a.leave().await;
    let mut successor = config(&[]);
    (successor.listen, successor.advertise) = (address, address);
    let successor = Gossip::start(successor, me("a", 3)).await.expect("starts");
    for datagram in &recorded {
        attacker.send_to(datagram, address).await.expect("sends");
    }
    eventually(|| refused(&successor) >= recorded.len() as u64).await;
    let states = successor
        .handle
        .with_chitchat(|chitchat| chitchat.node_states().len())
        .await;
    assert_eq!(states, 1, "it has not heard of b");
}

#[tokio::test(start_paused = true)]
async fn a_flood_of_garbage_keeps_nobody_out() {
    let a = node("a", 1, &[]).await;
    let address = a.address();
    let flood = tokio::spawn(async move {
        let attacker = UdpSocket::bind(ANY).await.expect("binds");
        let mut garbage = vec![0; 65_507];
        for round in 0usize.. {
            getrandom::fill(&mut garbage[..512]).expect("random");
            let length = [0, 1, 15, 16, 17, 74, 75, 512, 1400, 65_507][round % 10];
            attacker
                .send_to(&garbage[..length], address)
                .await
                .expect("sends");
            if round % 50 == 0 {
                sleep(Duration::from_millis(1)).await;
            }
        }
    });
    let b = node("b", 2, &[address]).await;
    sees(&b, &["a1", "b2"]).await;
    sees(&a, &["a1", "b2"]).await;
    let dropped = a.dropped();
    eventually(|| dropped.count(Reason::Malformed) > 100 && dropped.count(Reason::Forged) > 100).await;
    flood.abort();
    assert_eq!(dropped.count(Reason::Undecodable), 0);
}

/// Whoever knows the secret may still speak another encoding.
#[tokio::test(start_paused = true)]
async fn an_authentic_message_that_is_not_understood_is_counted_and_survived() {
    let a = node("a", 1, &[]).await;
    let mut channel = Channel::new(key_of(&config(&[])), [7; 16]);
    let peer = UdpSocket::bind(ANY).await.expect("binds");
    peer.connect(a.address()).await.expect("connects");
    let nonsense = channel
        .seal(Duration::ZERO, a.address(), b"nonsense".to_vec())
        .expect("short");
    peer.send(&nonsense).await.expect("sends");
    let mut buffer = [0; 200];
    let length = timeout(DEADLINE, peer.recv(&mut buffer))
        .await
        .expect("challenged")
        .expect("received");
    let seal::Opened::Again { datagram, .. } = channel.open(Duration::ZERO, a.address(), &buffer[..length])
    else {
        panic!("not a challenge");
    };
    peer.send(&datagram).await.expect("sends");
    let dropped = a.dropped();
    eventually(|| dropped.count(Reason::Undecodable) == 1).await;

    let b = node("b", 2, &[a.address()]).await;
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
}

#[tokio::test(start_paused = true)]
async fn the_end_of_the_loop_is_told() {
    let a = node("a", 1, &[]).await;
    let stopped = a.stopped();
    a.handle.abort();
    let error = timeout(DEADLINE, stopped).await.expect("told");
    assert!(matches!(error, Error::Ended(_)), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_busy_port_and_a_wrong_configuration_are_refused() {
    let a = node("a", 1, &[]).await;
    let mut busy = config(&[]);
    busy.listen = a.address();
    let refused = |config, me| async { Gossip::start(config, me).await.err() };
    let error = refused(busy, me("b", 2)).await.expect("refused");
    assert!(matches!(error, Error::PortInUse(port) if port == a.address()));

    let mut unreachable = config(&[]);
    unreachable.advertise = "0.0.0.0:0".parse().expect("an address");
    let error = refused(unreachable, me("b", 2)).await.expect("refused");
    assert!(matches!(error, Error::Advertise(_)));

    let error = refused(config(&[]), me("b", -1)).await.expect("refused");
    assert!(matches!(error, Error::Incarnation(Incarnation(-1))));
}
