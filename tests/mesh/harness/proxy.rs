//! Stands between a node and Postgres, and can be cut: connections stay open, nothing passes.

use std::net::SocketAddr;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;

/// Passes on what comes, or holds it. What was held passes when it is healed: a late write must be refused by Postgres, not by
/// the network.
pub(crate) struct Proxy {
    pub(crate) port: u16,
    cut: watch::Sender<bool>,
}

impl Proxy {
    pub(crate) async fn start(to: u16) -> Proxy {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let cut = watch::Sender::new(false);
        let cuts = cut.subscribe();
        tokio::spawn(async move {
            while let Ok((near, _)) = listener.accept().await {
                let cuts = cuts.clone();
                tokio::spawn(async move {
                    let to = SocketAddr::from(([127, 0, 0, 1], to));
                    if let Ok(far) = TcpStream::connect(to).await {
                        let (near_in, near_out) = near.into_split();
                        let (far_in, far_out) = far.into_split();
                        tokio::join!(pass(near_in, far_out, cuts.clone()), pass(far_in, near_out, cuts));
                    }
                });
            }
        });
        Proxy { port, cut }
    }

    pub(crate) fn cut(&self) {
        self.cut.send_replace(true);
    }

    pub(crate) fn heal(&self) {
        self.cut.send_replace(false);
    }
}

async fn pass(
    mut from: tokio::net::tcp::OwnedReadHalf,
    mut to: tokio::net::tcp::OwnedWriteHalf,
    mut cut: watch::Receiver<bool>,
) {
    let mut bytes = vec![0; 16 * 1024];
    loop {
        let read = from.read(&mut bytes).await.unwrap_or(0);
        if cut.wait_for(|cut| !*cut).await.is_err() {
            return;
        }
        if read == 0 || to.write_all(&bytes[..read]).await.is_err() {
            return;
        }
    }
}
