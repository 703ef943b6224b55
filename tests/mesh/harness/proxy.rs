//! Stands between a node and Postgres, and can be cut: connections stay open, nothing passes.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes on what comes, or holds it. What was held passes when it is healed: a late write must be refused by Postgres, not by
/// the network.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    cut: watch::Sender<bool>,
    late: Arc<AtomicUsize>,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = watch::Sender::new(false);
        let cuts = cut.subscribe();
        let late = Arc::new(AtomicUsize::new(0));
        let count = late.clone();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let (cuts, count) = (cuts.clone(), count.clone());
                tokio::spawn(async move {
                    let to = SocketAddr::from(([127, 0, 0, 1], to));
                    if let Ok(far) = TcpStream::connect(to).await {
                        let (near_in, near_out) = near.into_split();
                        let (far_in, far_out) = far.into_split();
                        tokio::join!(
                            pass(near_in, far_out, cuts.clone(), Some(count)),
                            pass(far_in, near_out, cuts, None)
                        );
                    }
                });
            }
        });
        Proxy { port, cut, late }
    }

    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(crate) fn heal(&self) {
        self.cut.send_replace(false);
    }

    /// How many messages of the node reached Postgres only after a cut.
    pub(crate) fn late(&self) -> usize {
        self.late.load(Ordering::Relaxed)
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<bool>,
    late: Option<Arc<AtomicUsize>>,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        let held = *cut.borrow();
        if cut.wait_for(|cut| !*cut).await.is_err() {
            return;
        }
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
        if let (true, Some(late)) = (held, &late) {
            late.fetch_add(1, Ordering::Relaxed);
        }
    }
}
