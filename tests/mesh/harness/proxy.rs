//! Stands between a node and Postgres, and can be cut, be slow, or fall silent.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes on what comes, or does to it what it was told.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    orders: watch::Sender<Orders>,
    counts: Arc<Counts>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Orders {
    /// Everything is held, and passes when it is healed: a late write must be refused by Postgres, not by the network.
    cut: bool,
    /// Connections older than this many silences are silent for ever: what comes on them vanishes, and they stay open.
    silences: u64,
    /// Each message waits for so long.
    delay: Duration,
}

#[derive(Debug, Default)]
struct Counts {
    late: AtomicUsize,
    swallowed: AtomicUsize,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let orders = watch::Sender::new(Orders::default());
        let told = orders.subscribe();
        let counts = Arc::new(Counts::default());
        let counted = counts.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (orders, counts) = (told.clone(), counted.clone());
                tokio::spawn(async move {
                    let born = orders.borrow().silences;
                    let to = SocketAddr::from(([127, 0, 0, 1], to));
                    if let Ok(far) = TcpStream::connect(to).await {
                        let (near_in, near_out) = near.into_split();
                        let (far_in, far_out) = far.into_split();
                        let link = Link { born, orders, counts };
                        tokio::join!(
                            link.clone().pass(near_in, far_out, true),
                            link.pass(far_in, near_out, false)
                        );
                    }
                });
            }
        });
        Proxy { port, orders, counts }
    }

    pub(crate) fn cut(&self) {
        self.orders.send_modify(|orders| orders.cut = true);
    }

    pub(crate) fn heal(&self) {
        self.orders.send_modify(|orders| orders.cut = false);
    }

    /// All connections that there are fall silent for ever; new ones pass.
    pub(crate) fn silence(&self) {
        self.orders.send_modify(|orders| orders.silences += 1);
    }

    /// Each message in each direction takes so long.
    pub(crate) fn delay(&self, delay: Duration) {
        self.orders.send_modify(|orders| orders.delay = delay);
    }

    /// How many messages of the node reached Postgres only after a cut.
    pub(crate) fn late(&self) -> usize {
        self.counts.late.load(Ordering::Relaxed)
    }

    /// How many messages of the node vanished.
    pub(crate) fn swallowed(&self) -> usize {
        self.counts.swallowed.load(Ordering::Relaxed)
    }
}

#[derive(Clone)]
struct Link {
    born: u64,
    orders: watch::Receiver<Orders>,
    counts: Arc<Counts>,
}

impl Link {
    async fn pass(
        mut self,
        mut from: tokio::net::tcp::OwnedReadHalf,
        mut to: tokio::net::tcp::OwnedWriteHalf,
        of_node: bool,
    ) {
        let mut bytes = vec![0; 16 * 1024];
        loop {
            let read = from.read(&mut bytes).await.unwrap_or(0);
            let Orders { cut: held, delay, .. } = *self.orders.borrow();
            let born = self.born;
            let passes = |orders: &Orders| !orders.cut || orders.silences > born;
            let Ok(orders) = self.orders.wait_for(passes).await.map(|orders| *orders) else {
                return;
            };
            if orders.silences > born {
                return self.swallow(from, to, read, of_node).await;
            }
            tokio::time::sleep(delay).await;
            if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
                return;
            }
            if held && of_node {
                self.counts.late.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Takes what comes and tells nobody, not even of the end, until the proxy itself ends.
    async fn swallow(
        mut self,
        mut from: tokio::net::tcp::OwnedReadHalf,
        _to: tokio::net::tcp::OwnedWriteHalf,
        mut read: usize,
        of_node: bool,
    ) {
        let mut bytes = vec![0; 16 * 1024];
        while read > 0 {
            if of_node {
                self.counts.swallowed.fetch_add(1, Ordering::Relaxed);
            }
            read = from.read(&mut bytes).await.unwrap_or(0);
        }
        while self.orders.changed().await.is_ok() {}
    }
}
