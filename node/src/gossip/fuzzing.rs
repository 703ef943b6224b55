//! What fuzzers do with datagrams and with the messages in them.

use std::collections::HashSet;
use std::net::SocketAddr;
use std::sync::{LazyLock, Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use super::seal::{Channel, Opened, forge};
use super::transport::Codec;

const KEY: [u8; 32] = [9; 32];
const RECEIVER: [u8; 16] = [2; 16];

fn address(port: u16) -> SocketAddr {
    ([127, 0, 0, 1], port).into()
}

/// A row of datagrams: for each a byte of flags, two of its length, and its bytes. Of the flags, 1 puts a good MAC behind it, 2 lets
/// a second pass before it, 4 half a minute, 8 takes another sender's address.
pub(crate) fn run(mut bytes: &[u8]) {
    let mut receiver = Channel::new(KEY, RECEIVER);
    let mut now = Duration::ZERO;
    let mut delivered = HashSet::new();
    while let Some((&[flags, high, low], rest)) = bytes.split_first_chunk() {
        let (piece, rest) = rest.split_at(rest.len().min(usize::from(u16::from_be_bytes([high, low]))));
        bytes = rest;
        now += Duration::from_secs(u64::from(flags & 2 != 0) + if flags & 4 != 0 { 31 } else { 0 });
        let from = address(if flags & 8 == 0 { 1 } else { 3 });
        let datagram = if flags & 1 == 0 {
            piece.to_vec()
        } else {
            forge(KEY, piece)
        };
        match receiver.open(now, from, &datagram) {
            Opened::Deliver(part) => {
                assert!(part.start <= part.end && part.end <= datagram.len());
                assert!(
                    flags & 1 != 0 || datagram == forge(KEY, &datagram[..datagram.len() - 16]),
                    "without a MAC"
                );
                // Its sender's session and counter.
                assert!(delivered.insert(datagram[2..26].to_vec()), "delivered twice");
            }
            Opened::Challenge(challenge) => assert!(challenge.len() <= datagram.len() + 8, "it amplifies"),
            Opened::Again { datagram: again, .. } => assert!(again.len() <= 65_507),
            Opened::Dropped(_) => {}
        }
        // Whatever came, it can speak.
        assert!(receiver.seal(now, from, b"answer".to_vec()).is_some());
    }
}

/// Conversations with the receiver, as they go when nobody disturbs them.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut seeds = Vec::new();
    for (sealed, seconds) in [(true, 0), (false, 0), (true, 31)] {
        let (mut a, mut b) = (Channel::new(KEY, [1; 16]), Channel::new(KEY, RECEIVER));
        let mut row = Vec::new();
        let mut put = |datagram: &[u8]| {
            let piece = if sealed {
                &datagram[..datagram.len() - 16]
            } else {
                datagram
            };
            let length = u16::try_from(piece.len()).expect("short").to_be_bytes();
            row.extend([u8::from(sealed) | if seconds > 0 { 4 } else { 0 }]);
            row.extend(length);
            row.extend(piece);
        };
        let now = Duration::from_secs(seconds);
        let first = a.seal(now, address(2), b"first".to_vec()).expect("short");
        put(&first);
        if let Opened::Challenge(challenge) = b.open(now, address(1), &first)
            && let Opened::Again { datagram, .. } = a.open(now, address(2), &challenge)
        {
            put(&datagram);
            b.open(now, address(1), &datagram);
        }
        let answer = b.seal(now, address(1), b"answer".to_vec()).expect("short");
        a.open(now, address(2), &answer);
        for _ in 0..3 {
            put(&a.seal(now, address(2), b"more".to_vec()).expect("short"));
        }
        seeds.push(row);
    }
    seeds
}

struct Decoder {
    runtime: Runtime,
    codec: Mutex<Codec>,
    /// What is always understood.
    last: Vec<u8>,
}

static DECODER: LazyLock<Decoder> = LazyLock::new(|| {
    let runtime = Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let mut codec = runtime.block_on(Codec::open()).expect("two sockets");
    let encoded = runtime.block_on(codec.encode(last())).expect("a message");
    Decoder {
        runtime,
        codec: Mutex::new(codec),
        last: encoded,
    }
});

/// A message that none of the others is, but by chance.
fn last() -> chitchat::ChitchatEnvelope {
    chitchat::ChitchatEnvelope {
        version: chitchat::ProtocolVersion::V1,
        message: chitchat::ChitchatMessage::Syn {
            cluster_id: "the last one".to_owned(),
            digest: Default::default(),
        },
    }
}

/// A message of a member: understood or not, the next one is.
pub(crate) fn run_message(bytes: &[u8]) {
    let decoder = &*DECODER;
    let mut codec = decoder.codec.lock().unwrap_or_else(PoisonError::into_inner);
    let bytes = &bytes[..bytes.len().min(60_000)];
    decoder.runtime.block_on(async {
        // The loopback keeps the order, and drops nothing of so little.
        codec.feed(bytes).await.expect("fed");
        codec.feed(&decoder.last).await.expect("fed");
        while codec.decoded().await.expect("the codec lives").message != last().message {}
    });
}

/// Messages as nodes of a small mesh send them.
pub(crate) fn message_seeds() -> Vec<Vec<u8>> {
    super::messages::recorded()
}
