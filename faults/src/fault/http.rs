//! Clients of a node's HTTP that behave badly.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::sleep;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::{Begun, Fault, about};
use crate::lab::Lab;

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    let all = [
        ("http-silent", Manner::Silent),
        ("http-slow-header", Manner::SlowHeader),
        ("http-slow-body", Manner::SlowBody),
        ("http-slow-reader", Manner::SlowReader),
        ("http-many", Manner::Many),
        ("http-oversize", Manner::Oversize),
        ("http-desync", Manner::Desync),
        ("http-abort", Manner::Abort),
    ];
    all.into_iter()
        .map(|(name, manner)| -> Box<dyn Fault> {
            Box::new(Rude {
                name,
                manner,
                clients: None,
            })
        })
        .collect()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Manner {
    /// Connects and says nothing.
    Silent,
    /// Sends its header a byte at a time.
    SlowHeader,
    /// Sends its body a byte at a time.
    SlowBody,
    /// Asks for much and reads nothing.
    SlowReader,
    /// Connects again and again, thousands of times.
    Many,
    /// Says that it will send much more than is taken, and sends it.
    Oversize,
    /// Sends two lengths, or a request in the body of another.
    Desync,
    /// Breaks off in the midst of its request, or before the answer.
    Abort,
}

/// N28: clients that behave badly towards one node.
///
/// Expected: others are served meanwhile, the node's lease and its slots go on, and its memory stays bounded.
struct Rude {
    name: &'static str,
    manner: Manner,
    clients: Option<DropGuard>,
}

#[async_trait]
impl Fault for Rude {
    fn id(&self) -> &'static str {
        "N28"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let node = rng.random_range(0..lab.nodes().len());
        let clients = match self.manner {
            Manner::Silent | Manner::Many => 500,
            Manner::SlowHeader | Manner::SlowBody | Manner::SlowReader => 200,
            Manner::Oversize | Manner::Desync | Manner::Abort => 16,
        };
        let begun = about(lab, &[node], format!("{clients} clients")).await;
        let address: SocketAddr = lab.nodes()[node].http();
        let token = lab.token().to_owned();
        let end = CancellationToken::new();
        for number in 0..clients {
            let client = client(self.manner, address, token.clone(), number);
            tokio::spawn(end.clone().run_until_cancelled_owned(client));
        }
        self.clients = Some(end.drop_guard());
        Ok(begun)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        self.clients = None;
        Ok(())
    }
}

/// Behaves badly again and again.
async fn client(manner: Manner, address: SocketAddr, token: String, number: u32) {
    loop {
        // A refusal is an answer too.
        if let Ok(stream) = TcpStream::connect(address).await {
            let _ = once(manner, stream, &token, number).await;
        }
        let pause = match manner {
            Manner::Many | Manner::Abort => 5,
            _ => 100,
        };
        sleep(Duration::from_millis(pause)).await;
    }
}

async fn once(manner: Manner, mut stream: TcpStream, token: &str, number: u32) -> std::io::Result<()> {
    let head = format!("POST /v1/tasks HTTP/1.1\r\nhost: n\r\nauthorization: Bearer {token}\r\n");
    let body = format!("{{\"kind\": \"rude\", \"key\": \"rude-{number}\"");
    match manner {
        Manner::Silent => {
            // Until the node has enough of it.
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await?;
        }
        Manner::SlowHeader => drip(&mut stream, head.as_bytes()).await?,
        Manner::SlowBody => {
            let head = format!("{head}content-type: application/json\r\ncontent-length: 1000\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            drip(&mut stream, body.as_bytes()).await?;
        }
        Manner::SlowReader => {
            let get = format!("GET /v1/slots HTTP/1.1\r\nhost: n\r\nauthorization: Bearer {token}\r\n\r\n");
            // Until nothing more fits.
            while tokio::time::timeout(Duration::from_secs(1), stream.write_all(get.as_bytes()))
                .await
                .is_ok_and(|sent| sent.is_ok())
            {}
            sleep(Duration::from_secs(30)).await;
        }
        Manner::Many => {}
        Manner::Oversize => {
            let head = format!("{head}content-type: application/json\r\ncontent-length: 268435456\r\n\r\n");
            stream.write_all(head.as_bytes()).await?;
            let block = vec![b' '; 1 << 16];
            for _ in 0..4096 {
                stream.write_all(&block).await?;
            }
        }
        Manner::Desync => {
            let inner = "GET /health/live HTTP/1.1\r\nhost: n\r\n\r\n";
            let lengths = match number % 3 {
                0 => "content-length: 5\r\ncontent-length: 50\r\n",
                1 => "content-length: 5\r\ntransfer-encoding: chunked\r\n",
                _ => "transfer-encoding: chunked, identity\r\n",
            };
            let text = format!("{head}{lengths}\r\n0\r\n\r\n{inner}{inner}");
            stream.write_all(text.as_bytes()).await?;
            stream.read_exact(&mut [0]).await?;
        }
        Manner::Abort => {
            stream.set_zero_linger()?;
            let length = if number.is_multiple_of(2) {
                1000
            } else {
                body.len()
            };
            let text =
                format!("{head}content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}");
            stream.write_all(text.as_bytes()).await?;
            sleep(Duration::from_millis(u64::from(number % 10))).await;
        }
    }
    Ok(())
}

/// A byte at a time.
async fn drip(stream: &mut TcpStream, bytes: &[u8]) -> std::io::Result<()> {
    for byte in bytes {
        stream.write_all(&[*byte]).await?;
        sleep(Duration::from_millis(500)).await;
    }
    Ok(())
}
