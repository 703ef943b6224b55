//! chitchat over sealed UDP.
//!
//! chitchat keeps its encoding to itself: the one public way from a message to bytes and back is to send it through its own
//! UDP socket. So each message takes a detour over a pair of loopback sockets, chitchat's and ours ([`Codec`]), and between the nodes
//! only sealed datagrams travel. The kernel shows each of the pair only what comes from the other.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::Context as _;
use async_trait::async_trait;
use chitchat::ChitchatEnvelope;
use chitchat::transport::{RecvOutcome, SendOutcome, Socket, Transport};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tracing::{debug, error, warn};

use super::seal::{Channel, MAX_DATAGRAM, Opened, Reason};
use crate::telemetry::{field, metric};

/// How long a message may take over the loopback; it is there at once, or it was not understood.
const CODEC_LIMIT: Duration = Duration::from_millis(200);

/// The pause after an error of the socket: long enough not to spin, short enough not to miss a beat.
const ERROR_PAUSE: Duration = Duration::from_millis(10);

/// That many errors in a row, without one datagram between them, and the socket is broken.
const FATAL_ERRORS: u32 = 50;

/// Counts of what was dropped, for the metrics and for whoever asks.
#[derive(Debug, Default)]
pub struct Dropped([AtomicU64; Reason::COUNT]);

impl Dropped {
    /// How many datagrams were dropped for this reason since the start.
    pub fn count(&self, reason: Reason) -> u64 {
        self.0[reason as usize].load(Ordering::Relaxed)
    }

    fn add(&self, reason: Reason) {
        self.0[reason as usize].fetch_add(1, Ordering::Relaxed);
        metrics::counter!(metric::DATAGRAMS_DROPPED, field::REASON => reason.label()).increment(1);
    }
}

/// A transport whose only socket is open already, so that its owner knows the address and sees a busy port as such.
pub(super) struct Opener(Mutex<Option<SealedSocket>>);

impl Opener {
    pub(super) fn new(socket: SealedSocket) -> Opener {
        Opener(Mutex::new(Some(socket)))
    }
}

#[async_trait]
impl Transport for Opener {
    async fn open(&self, _listen: SocketAddr) -> anyhow::Result<Box<dyn Socket>> {
        let mut socket = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let socket = socket.take().context("the socket was taken before")?;
        Ok(Box::new(socket))
    }
}

/// A UDP socket on which only sealed datagrams count.
pub(super) struct SealedSocket {
    udp: UdpSocket,
    channel: Channel,
    opened_at: Instant,
    codec: Codec,
    buffer: Box<[u8]>,
    /// The authentic datagram that the codec is at: `recv` is dropped half-way whenever chitchat has other things to do.
    decoding: Option<Decoding>,
    errors_in_a_row: u32,
    dropped: Arc<Dropped>,
}

#[derive(Clone, Copy)]
struct Decoding {
    from: SocketAddr,
    length: usize,
    until: Instant,
}

impl SealedSocket {
    /// Wraps a bound socket.
    ///
    /// # Errors
    ///
    /// If no pair of loopback sockets can be had.
    pub(super) async fn new(
        udp: UdpSocket,
        channel: Channel,
        dropped: Arc<Dropped>,
    ) -> anyhow::Result<SealedSocket> {
        Ok(SealedSocket {
            udp,
            channel,
            opened_at: Instant::now(),
            codec: Codec::open().await?,
            buffer: vec![0; MAX_DATAGRAM + 1].into(),
            decoding: None,
            errors_in_a_row: 0,
            dropped,
        })
    }

    async fn on_datagram(&mut self, length: usize, from: SocketAddr) {
        let now = self.opened_at.elapsed();
        match self.channel.open(now, from, &self.buffer[..length]) {
            Opened::Deliver(payload) => {
                if let Err(error) = self.codec.feed(&self.buffer[payload]).await {
                    warn!(%error, "the loopback refused a gossip message");
                    self.dropped.add(Reason::Undecodable);
                    return;
                }
                self.decoding = Some(Decoding {
                    from,
                    length,
                    until: Instant::now() + CODEC_LIMIT,
                });
            }
            Opened::Challenge(challenge) => {
                self.dropped.add(Reason::Unproven);
                self.send_datagram(from, &challenge).await;
            }
            Opened::Again { to, datagram } => self.send_datagram(to, &datagram).await,
            Opened::Dropped(reason) => {
                debug!(%from, length, reason = reason.label(), "gossip datagram dropped");
                self.dropped.add(reason);
            }
        }
    }

    async fn send_datagram(&self, to: SocketAddr, datagram: &[u8]) {
        if let Err(error) = self.udp.send_to(datagram, to).await {
            debug!(%to, %error, "gossip datagram not sent");
            metrics::counter!(metric::GOSSIP_SEND_ERRORS).increment(1);
        }
    }

    /// Waits out an error of the socket; gives it back once it is one too many.
    async fn on_receive_error(&mut self, error: io::Error) -> anyhow::Result<()> {
        if !is_about_a_peer(&error) {
            self.errors_in_a_row += 1;
            warn!(%error, in_a_row = self.errors_in_a_row, "gossip socket error");
            if self.errors_in_a_row >= FATAL_ERRORS {
                return Err(error).context("the gossip socket is broken");
            }
        }
        sleep(ERROR_PAUSE).await;
        Ok(())
    }
}

/// Errors that an ICMP message about some earlier datagram leaves on the socket; they say nothing about the socket itself.
fn is_about_a_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::HostUnreachable
            | io::ErrorKind::NetworkUnreachable
            | io::ErrorKind::NetworkDown
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

#[async_trait]
impl Socket for SealedSocket {
    fn local_addr(&self) -> anyhow::Result<SocketAddr> {
        Ok(self.udp.local_addr()?)
    }

    /// Fails only if the codec is broken: a datagram that cannot be sent is a lost datagram.
    async fn send(&mut self, to: SocketAddr, envelope: ChitchatEnvelope) -> anyhow::Result<SendOutcome> {
        let payload = match self.codec.encode(envelope).await {
            Ok(payload) => payload,
            Err(error) => {
                error!(%to, error = format!("{error:#}"), "gossip message not encoded");
                self.dropped.add(Reason::TooLarge);
                return Ok(SendOutcome { num_bytes_sent: 0 });
            }
        };
        let length = payload.len();
        let Some(datagram) = self.channel.seal(self.opened_at.elapsed(), to, payload) else {
            error!(%to, length, "gossip message does not fit into a datagram");
            self.dropped.add(Reason::TooLarge);
            return Ok(SendOutcome { num_bytes_sent: 0 });
        };
        self.send_datagram(to, &datagram).await;
        Ok(SendOutcome {
            num_bytes_sent: datagram.len(),
        })
    }

    /// May be dropped at any await: a datagram is then lost at worst, as UDP may do.
    async fn recv(&mut self) -> anyhow::Result<RecvOutcome> {
        loop {
            if let Some(Decoding { from, length, until }) = self.decoding {
                let decoded = timeout_at(until, self.codec.decoded()).await;
                self.decoding = None;
                match decoded {
                    Ok(envelope) => {
                        return Ok(RecvOutcome {
                            from_addr: from,
                            envelope: envelope?,
                            num_bytes_received: length,
                        });
                    }
                    Err(_) => {
                        self.dropped.add(Reason::Undecodable);
                        self.codec.reconnect().await?;
                    }
                }
            }
            match self.udp.recv_from(&mut self.buffer).await {
                Ok((length, from)) => {
                    self.errors_in_a_row = 0;
                    self.on_datagram(length, from).await;
                }
                Err(error) => self.on_receive_error(error).await?,
            }
        }
    }
}

/// chitchat's encoding, through its own socket.
pub(super) struct Codec {
    chitchat: chitchat::transport::UdpSocket,
    /// Connected to chitchat's socket.
    ours: UdpSocket,
    buffer: Box<[u8]>,
}

impl Codec {
    pub(super) async fn open() -> anyhow::Result<Codec> {
        let v4 = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
        let v6 = SocketAddr::from((Ipv6Addr::LOCALHOST, 0));
        let chitchat = match chitchat::transport::UdpSocket::open(v4).await {
            Ok(socket) => socket,
            Err(_) => chitchat::transport::UdpSocket::open(v6).await?,
        };
        let ours = connected_to(chitchat.local_addr()?).await?;
        Ok(Codec {
            chitchat,
            ours,
            buffer: vec![0; MAX_DATAGRAM + 1].into(),
        })
    }

    pub(super) async fn encode(&mut self, envelope: ChitchatEnvelope) -> anyhow::Result<Vec<u8>> {
        let ours = self.ours.local_addr()?;
        self.chitchat.send(ours, envelope).await?;
        match timeout(CODEC_LIMIT, self.ours.recv(&mut self.buffer)).await {
            Ok(length) => Ok(self.buffer[..length?].to_vec()),
            Err(elapsed) => {
                self.reconnect().await?;
                Err(elapsed).context("the loopback lost a message")
            }
        }
    }

    pub(super) async fn feed(&self, payload: &[u8]) -> io::Result<()> {
        self.ours.send(payload).await?;
        Ok(())
    }

    /// The message that was fed; waits for ever if it was not understood.
    pub(super) async fn decoded(&mut self) -> anyhow::Result<ChitchatEnvelope> {
        let ours = self.ours.local_addr()?;
        loop {
            let outcome = self.chitchat.recv().await?;
            // Any process of this host can send to the loopback.
            if outcome.from_addr == ours {
                return Ok(outcome.envelope);
            }
        }
    }

    /// Changes our end's address, so that a message that comes late is not taken for the next one.
    async fn reconnect(&mut self) -> anyhow::Result<()> {
        self.ours = connected_to(self.chitchat.local_addr()?).await?;
        Ok(())
    }
}

async fn connected_to(far: SocketAddr) -> anyhow::Result<UdpSocket> {
    let socket = UdpSocket::bind(SocketAddr::new(far.ip(), 0)).await?;
    socket.connect(far).await?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn socket() -> SealedSocket {
        let udp = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
        let channel = Channel::new([9; 32], [1; 16]);
        SealedSocket::new(udp, channel, Arc::default())
            .await
            .expect("opens")
    }

    #[tokio::test]
    async fn errors_about_peers_never_end_the_socket() {
        let mut socket = socket().await;
        for _ in 0..=FATAL_ERRORS {
            let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
            socket.on_receive_error(refused).await.expect("goes on");
        }
    }

    #[tokio::test]
    async fn an_error_that_stays_ends_the_socket() {
        let mut socket = socket().await;
        let broken = || io::Error::other("broken");
        for _ in 1..FATAL_ERRORS {
            socket.on_receive_error(broken()).await.expect("goes on");
        }
        socket.on_receive_error(broken()).await.expect_err("ends");
    }

    #[tokio::test]
    async fn what_others_send_over_the_loopback_is_not_heard() {
        let mut codec = Codec::open().await.expect("opens");
        let message = || ChitchatEnvelope {
            version: chitchat::ProtocolVersion::V1,
            message: chitchat::ChitchatMessage::BadCluster,
        };
        let payload = codec.encode(message()).await.expect("encodes");
        let intruder = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.expect("binds");
        let inner = codec.chitchat.local_addr().expect("bound");
        intruder.send_to(&payload, inner).await.expect("sends");
        let heard = timeout(Duration::from_millis(50), codec.decoded()).await;
        assert!(heard.is_err());
        codec.feed(&payload).await.expect("feeds");
        assert_eq!(codec.decoded().await.expect("decodes"), message());
    }
}
