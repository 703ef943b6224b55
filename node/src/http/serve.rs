//! Serves connections, and outlives silent, dribbling and too many clients.

use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// How slow and how many clients may be.
#[derive(Debug, Clone)]
pub struct Limits {
    /// Connections at once. Higher: more clients, more memory. Beyond it a connection gets 429 and is closed.
    pub connections: usize,
    /// How long a request's head may take, and how long a connection may stay idle. Lower: silent clients go sooner.
    pub head_within: Duration,
    /// How long a request's body may take.
    pub body_within: Duration,
    /// How long requests under way may take to end once the server shall stop.
    pub stop_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 4_096,
            head_within: Duration::from_secs(10),
            body_within: Duration::from_secs(30),
            stop_within: Duration::from_secs(10),
        }
    }
}

/// The largest head of a request that is always taken. One of twice the size never is: hyper looks after each read.
const HEAD_BYTES: usize = 48 << 10;

/// How long to wait after an accept that failed for want of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

const FULL: &[u8] = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\nconnection: close\r\n\
content-type: application/json\r\ncontent-length: 61\r\n\r\n{\"code\":\"busy\",\"message\":\"too many connections are open now\"}";

/// Serves until `shutdown`; then closes idle connections at once, lets requests under way end, and returns when all
/// connections are closed, at the latest after `limits.stop_within`.
pub async fn serve(listener: TcpListener, router: Router, limits: Limits, shutdown: CancellationToken) {
    let connections = Arc::new(Semaphore::new(limits.connections));
    let served = TaskTracker::new();
    loop {
        let stream = tokio::select! {
            biased;
            () = shutdown.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => stream,
                Err(error) if is_about_one_connection(&error) => continue,
                Err(error) => {
                    tracing::warn!(%error, "cannot accept connections");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                }
            },
        };
        match Arc::clone(&connections).try_acquire_owned() {
            Ok(permit) => {
                served.spawn(connection(
                    stream,
                    router.clone(),
                    limits.clone(),
                    shutdown.clone(),
                    permit,
                ));
            }
            Err(_) => {
                // A new socket's buffer is empty, so this either goes out whole or the client is gone.
                let _ = stream.try_write(FULL);
            }
        }
    }
    drop(listener);
    served.close();
    served.wait().await;
}

async fn connection(
    stream: TcpStream,
    router: Router,
    limits: Limits,
    shutdown: CancellationToken,
    _permit: OwnedSemaphorePermit,
) {
    let _ = stream.set_nodelay(true);
    let served = http(&limits).serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let mut served = pin!(served);
    let ended = tokio::select! {
        ended = served.as_mut() => ended,
        () = shutdown.cancelled() => {
            served.as_mut().graceful_shutdown();
            tokio::time::timeout(limits.stop_within, served).await.unwrap_or(Ok(()))
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a connection ended badly");
    }
}

/// HTTP/1 within these limits.
pub(super) fn http(limits: &Limits) -> http1::Builder {
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new())
        .header_read_timeout(limits.head_within)
        .max_buf_size(HEAD_BYTES);
    http
}

fn is_about_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    )
}
