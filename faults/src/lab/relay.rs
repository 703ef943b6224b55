//! Stands between nodes, since the kernel's own delays are not to be had everywhere: it delays, loses, doubles, reorders and
//! corrupts datagrams, and delays streams.
//!
//! A host's kernel sends what it has for another host to the relay's port for that pair, and the relay sends it on from the
//! address at which it speaks for the sender:
//!
//! ```text
//! n1 ── to n2:7201 ──▶ kernel of n1 ──▶ voice of n2, port for n1 ── relay ── voice of n1 ──▶ n2:7201
//! ```
//!
//! So each host can still tell who sends, and its firewall too.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::rngs::StdRng;
use rand::{RngExt as _, SeedableRng as _};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{ReadHalf, WriteHalf};
use tokio::net::{TcpListener, TcpSocket, TcpStream, UdpSocket};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// The first port for pairs; the sender's number is added.
const PORTS: u16 = 21_000;
/// The longest datagram.
const DATAGRAM: usize = 65_536;
/// How many datagrams of each direction are kept to be sent again.
const RECORDED: usize = 500;
/// How much longer a datagram takes that others are to overtake.
const OVERTAKEN: Duration = Duration::from_millis(300);

/// What is done to what one node sends to another. The default: nothing.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Weather {
    /// Each datagram, and each piece of a stream, takes so long.
    pub delay: Duration,
    /// And at random up to so much longer.
    pub jitter: Duration,
    /// The probability that a datagram is lost.
    pub loss: f64,
    /// The probability that a datagram comes twice.
    pub twice: f64,
    /// The probability that others overtake a datagram.
    pub reorder: f64,
    /// The probability that a bit of a datagram is flipped.
    pub corrupt: f64,
    /// The probability that only the beginning of a datagram comes.
    pub truncate: f64,
    /// The probability that a datagram brings along one that was sent before.
    pub replay: f64,
}

/// One direction between two hosts.
#[derive(Debug, Clone)]
struct Pair {
    from: usize,
    to: usize,
    weather: watch::Receiver<Vec<Vec<Weather>>>,
    dice: Arc<Mutex<StdRng>>,
    /// Datagrams of this direction, to be sent again.
    recorded: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A host as the relay sees it.
#[derive(Debug, Clone, Copy)]
pub(super) struct End {
    /// Where it is.
    pub(super) data: Ipv4Addr,
    /// Where the relay speaks for it.
    pub(super) voice: Ipv4Addr,
}

/// The relay of a lab. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Relay {
    weather: watch::Sender<Vec<Vec<Weather>>>,
    _end: DropGuard,
}

impl Relay {
    /// Relays between all of these, for a port of TCP and one of UDP.
    pub(super) async fn start(ends: &[End], tcp: u16, udp: u16, seed: u64) -> Result<Relay> {
        let count = ends.len();
        let weather = watch::Sender::new(vec![vec![Weather::default(); count]; count]);
        let dice = Arc::new(Mutex::new(StdRng::seed_from_u64(seed)));
        let end = CancellationToken::new();
        for (from, sender) in ends.iter().enumerate() {
            for (to, receiver) in ends.iter().enumerate().filter(|(to, _)| *to != from) {
                let pair = Pair {
                    from,
                    to,
                    weather: weather.subscribe(),
                    dice: dice.clone(),
                    recorded: Arc::default(),
                };
                let at = SocketAddr::from((receiver.voice, port(from)));
                let there = |port: u16| SocketAddr::from((receiver.data, port));
                let near = UdpSocket::bind(at).await;
                let near = near.with_context(|| format!("relay at {at}"))?;
                let far = UdpSocket::bind((sender.voice, 0)).await?;
                far.connect(there(udp)).await?;
                let listener = TcpListener::bind(at).await;
                let listener = listener.with_context(|| format!("relay at {at}"))?;
                let relayed = end
                    .clone()
                    .run_until_cancelled_owned(datagrams(near, far, pair.clone()));
                tokio::spawn(relayed);
                let (voice, there, stop) = (sender.voice, there(tcp), end.clone());
                let relayed = end
                    .clone()
                    .run_until_cancelled_owned(streams(listener, voice, there, pair, stop));
                tokio::spawn(relayed);
            }
        }
        Ok(Relay {
            weather,
            _end: end.drop_guard(),
        })
    }

    /// What happens from now on to what a host sends to another.
    pub(super) fn set(&self, from: usize, to: usize, weather: Weather) {
        self.weather.send_modify(|all| all[from][to] = weather);
    }

    /// Passes everything again.
    pub(super) fn heal(&self) {
        self.weather.send_modify(|all| {
            for weather in all.iter_mut().flatten() {
                *weather = Weather::default();
            }
        });
    }
}

/// What makes a host's kernel send to the relay what it has for the others.
pub(super) fn redirections(ends: &[End], from: usize, tcp: u16, udp: u16) -> Vec<String> {
    let others = ends.iter().enumerate().filter(|(to, _)| *to != from);
    let lines = others.flat_map(|(_, other)| {
        [("tcp", tcp), ("udp", udp)].map(|(protocol, its)| {
            format!(
                "-A OUTPUT -p {protocol} -d {} --dport {its} -j DNAT --to-destination {}:{}",
                other.data,
                other.voice,
                port(from)
            )
        })
    });
    lines.collect()
}

fn port(from: usize) -> u16 {
    PORTS + u16::try_from(from).unwrap_or(0)
}

impl Pair {
    fn now(&self) -> Weather {
        self.weather.borrow()[self.from][self.to]
    }

    fn back(&self) -> Pair {
        Pair {
            from: self.to,
            to: self.from,
            recorded: Arc::default(),
            ..self.clone()
        }
    }

    fn happens(&self, probability: f64) -> bool {
        probability > 0.0 && self.dice().random_bool(probability.min(1.0))
    }

    fn delay(&self, weather: Weather) -> Duration {
        weather.delay + weather.jitter.mul_f64(self.dice().random_range(0.0..=1.0))
    }

    /// Keeps a datagram for later, and gives one of those that were kept.
    fn record(&self, datagram: &[u8]) -> Vec<u8> {
        let mut recorded = self.recorded.lock().unwrap_or_else(PoisonError::into_inner);
        let at = self.dice().random_range(0..=recorded.len());
        if recorded.len() < RECORDED {
            recorded.push(datagram.to_vec());
        } else if let Some(old) = recorded.get_mut(at) {
            return std::mem::replace(old, datagram.to_vec());
        }
        recorded.get(at).unwrap_or(&datagram.to_vec()).clone()
    }

    fn dice(&self) -> std::sync::MutexGuard<'_, StdRng> {
        self.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sends a datagram on, as the weather is.
    fn send(&self, socket: &Arc<UdpSocket>, to: Option<SocketAddr>, datagram: &[u8]) {
        let weather = self.now();
        if self.happens(weather.loss) {
            return;
        }
        let mut datagram = datagram.to_vec();
        if weather.replay > 0.0 {
            let old = self.record(&datagram);
            if self.happens(weather.replay) {
                let _ = try_send(socket, to, &old);
            }
        }
        if self.happens(weather.truncate) && !datagram.is_empty() {
            let end = self.dice().random_range(0..datagram.len());
            datagram.truncate(end);
        }
        if self.happens(weather.corrupt) && !datagram.is_empty() {
            let at = self.dice().random_range(0..datagram.len());
            datagram[at] ^= 1 << self.dice().random_range(0..8);
        }
        let copies = if self.happens(weather.twice) { 2 } else { 1 };
        for _ in 0..copies {
            let mut delay = self.delay(weather);
            if self.happens(weather.reorder) {
                delay += OVERTAKEN;
            }
            if delay.is_zero() {
                let _ = try_send(socket, to, &datagram);
                continue;
            }
            let (socket, datagram) = (socket.clone(), datagram.clone());
            tokio::spawn(async move {
                tokio::time::sleep(delay).await;
                let _ = try_send(&socket, to, &datagram);
            });
        }
    }
}

/// A datagram that cannot be sent is lost.
fn try_send(socket: &UdpSocket, to: Option<SocketAddr>, datagram: &[u8]) -> std::io::Result<usize> {
    match to {
        Some(to) => socket.try_send_to(datagram, to),
        None => socket.try_send(datagram),
    }
}

async fn datagrams(near: UdpSocket, far: UdpSocket, pair: Pair) {
    let (near, far) = (Arc::new(near), Arc::new(far));
    let back = pair.back();
    let (mut there, mut here) = (vec![0; DATAGRAM], vec![0; DATAGRAM]);
    let mut sender = None;
    loop {
        tokio::select! {
            read = near.recv_from(&mut there) => if let Ok((length, from)) = read {
                sender = Some(from);
                pair.send(&far, None, &there[..length]);
            },
            // An error tells of an earlier datagram that nobody took.
            read = far.recv(&mut here) => if let (Ok(length), Some(sender)) = (read, sender) {
                back.send(&near, Some(sender), &here[..length]);
            },
        }
    }
}

async fn streams(listener: TcpListener, voice: Ipv4Addr, to: SocketAddr, pair: Pair, end: CancellationToken) {
    loop {
        let Ok((near, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(50)).await;
            continue;
        };
        let relayed = stream(near, voice, to, pair.clone());
        tokio::spawn(end.clone().run_until_cancelled_owned(relayed));
    }
}

async fn stream(mut near: TcpStream, voice: Ipv4Addr, to: SocketAddr, pair: Pair) {
    let connect = async {
        let socket = TcpSocket::new_v4()?;
        socket.bind((voice, 0).into())?;
        socket.connect(to).await
    };
    let Ok(mut far) = connect.await else { return };
    let _ = (near.set_nodelay(true), far.set_nodelay(true));
    let back = pair.back();
    let (near_in, near_out) = near.split();
    let (far_in, far_out) = far.split();
    tokio::join!(pass(near_in, far_out, pair), pass(far_in, near_out, back));
}

async fn pass(mut from: ReadHalf<'_>, mut to: WriteHalf<'_>, pair: Pair) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        let delay = pair.delay(pair.now());
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if read == 0 {
            let _ = to.shutdown().await;
            return;
        }
        if to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
