//! Datagrams of strangers, and of members that speak nonsense: each is dropped for its own reason, and keeps nobody out.

use super::seal::{MAX_DATAGRAM, forge};
use super::*;

/// A datagram, and why it is dropped.
struct Row {
    what: String,
    datagram: Vec<u8>,
    reason: Reason,
}

pub(crate) fn count() -> usize {
    table().len()
}

/// No randomness, but no pattern either.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64 ^ length as u64;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_be_bytes()[0]
    };
    std::iter::repeat_with(&mut next).take(length).collect()
}

fn good(secret: &str, cluster: &str) -> Vec<u8> {
    let mut config = config(&[]);
    config.secret = Secret::new(secret);
    config.cluster_id = cluster.to_owned();
    let mut channel = Channel::new(key_of(&config), [7; 16]);
    channel.seal(Duration::ZERO, ANY, noise(64)).expect("short")
}

fn table() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut put = |what: String, datagram: Vec<u8>, reason| {
        rows.push(Row {
            what,
            datagram,
            reason,
        });
    };
    let by_length = |length: usize| {
        if length < 16 {
            Reason::Malformed
        } else {
            Reason::Forged
        }
    };
    for length in [
        0,
        1,
        2,
        15,
        16,
        17,
        57,
        58,
        59,
        73,
        74,
        75,
        81,
        82,
        83,
        512,
        576,
        1_400,
        1_500,
        9_000,
        65_000,
        MAX_DATAGRAM,
    ] {
        put(format!("{length} zeros"), vec![0; length], by_length(length));
        put(format!("{length} ones"), vec![0xff; length], by_length(length));
        put(
            format!("{length} bytes of noise"),
            noise(length),
            by_length(length),
        );
    }
    let datagram = good("secret", "mesh");
    put(
        "a good one, not asked for".to_owned(),
        datagram.clone(),
        Reason::Unproven,
    );
    for length in 0..datagram.len() {
        put(
            format!("cut to {length} bytes"),
            datagram[..length].to_vec(),
            by_length(length),
        );
        put(
            format!("without its first {}", length + 1),
            datagram[length + 1..].to_vec(),
            by_length(datagram.len() - length - 1),
        );
    }
    for bit in 0..datagram.len() * 8 {
        let mut flipped = datagram.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        put(format!("with bit {bit} flipped"), flipped, Reason::Forged);
    }
    for more in [1, 16, 1_000, MAX_DATAGRAM - datagram.len()] {
        put(
            format!("with {more} more bytes"),
            [datagram.clone(), vec![0; more]].concat(),
            Reason::Forged,
        );
    }
    put("twice in one".to_owned(), datagram.repeat(2), Reason::Forged);
    for (secret, cluster) in [
        ("other", "mesh"),
        ("", "mesh"),
        ("secret", "other"),
        ("secret", "Mesh"),
        ("secret", "mesh "),
        ("secret", ""),
    ] {
        put(
            format!("of secret {secret:?} and cluster {cluster:?}"),
            good(secret, cluster),
            Reason::Forged,
        );
    }
    // By whoever knows the secret.
    let key = key_of(&config(&[]));
    let known = &datagram[..datagram.len() - 16];
    for format in [0, 2, 3, 127, 128, 255] {
        let mut forged = known.to_vec();
        forged[0] = format;
        put(
            format!("of format {format}"),
            forge(key, &forged),
            Reason::Malformed,
        );
    }
    for kind in 2..=255 {
        let mut forged = known.to_vec();
        forged[1] = kind;
        put(format!("of kind {kind}"), forge(key, &forged), Reason::Malformed);
    }
    for length in 0..58 {
        put(
            format!("sealed, {length} bytes"),
            forge(key, &known[..length]),
            Reason::Malformed,
        );
    }
    for length in [0, 1, 7, 9, 16, 64] {
        let mut challenge = known[..58].to_vec();
        challenge[1] = 1;
        challenge.extend(noise(length));
        put(
            format!("a challenge of {length} bytes"),
            forge(key, &challenge),
            Reason::Malformed,
        );
    }
    for session in [0, 7, 255] {
        let mut challenge = known[..58].to_vec();
        challenge[1] = 1;
        challenge[26..42].fill(session);
        challenge.extend([0; 8]);
        put(
            format!("a challenge to session {session}"),
            forge(key, &challenge),
            Reason::Replayed,
        );
    }
    for (what, at) in [("counter", 18), ("proof", 42), ("offer", 50)] {
        for byte in [0, 0x7f, 0xff] {
            let mut forged = known.to_vec();
            forged[at..at + 8].fill(byte);
            put(
                format!("with a {what} of {byte:#x}"),
                forge(key, &forged),
                Reason::Unproven,
            );
        }
    }
    rows
}

#[tokio::test(start_paused = true)]
async fn every_hostile_datagram_is_dropped_for_its_reason_and_keeps_nobody_out() {
    let a = node("a", 1, &[]).await;
    let dropped = a.dropped();
    let reasons = [
        Reason::Malformed,
        Reason::Forged,
        Reason::Own,
        Reason::Replayed,
        Reason::Unproven,
        Reason::Undecodable,
        Reason::TooLarge,
    ];
    let counts = || reasons.map(|reason| dropped.count(reason));
    let attacker = UdpSocket::bind(ANY).await.expect("binds");
    for row in table() {
        let mut expected = counts();
        expected[row.reason as usize] += 1;
        attacker.send_to(&row.datagram, a.address()).await.expect("sends");
        eventually(|| {
            counts() != {
                let mut before = expected;
                before[row.reason as usize] -= 1;
                before
            }
        })
        .await;
        assert_eq!(counts(), expected, "{}", row.what);
    }
    let states = a
        .handle
        .with_chitchat(|chitchat| chitchat.node_states().len())
        .await;
    assert_eq!(states, 1, "nobody was learned of");
    let b = node("b", 2, &[a.address()]).await;
    sees(&a, &["a1", "b2"]).await;
    sees(&b, &["a1", "b2"]).await;
}
