//! The ways into this module that fuzzers take.

use std::time::Duration;

use axum::Router;
use chrono::{DateTime, Utc};
use hyper_util::rt::TokioIo;
use hyper_util::service::TowerToHyperService;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::error::Failure;
use super::{Limits, batch, fields, serve};
use crate::task::Submit;

pub(crate) fn submit(text: &str, now: DateTime<Utc>) -> Result<Submit, Failure> {
    fields::submit(text, now)
}

pub(crate) fn batch(text: &str, lines: bool) -> Result<(Vec<Submit>, Vec<usize>), Failure> {
    batch::parse(text, if lines { batch::LINES } else { batch::ARRAY })
}

pub(crate) fn run_at(text: &str) -> Result<DateTime<Utc>, Failure> {
    fields::run_at(text)
}

pub(crate) fn delay(value: &str, now: DateTime<Utc>) -> Result<Option<DateTime<Utc>>, Failure> {
    fields::delay(value, now)
}

pub(crate) fn timeout(value: &str) -> Result<Duration, Failure> {
    fields::timeout(value)
}

/// All that a connection is answered on which these bytes come, and no more.
pub(crate) async fn connection(router: Router, bytes: &[u8]) -> Vec<u8> {
    let (near, far) = tokio::io::duplex(1 << 20);
    let limits = Limits::default();
    let mut http = serve::http(&limits);
    // The client says when there is no more, and still listens.
    http.half_close(true);
    let served = http.serve_connection(TokioIo::new(far), TowerToHyperService::new(router));
    let (mut reader, mut writer) = tokio::io::split(near);
    let mut answers = Vec::new();
    let client = async {
        let send = async {
            let _ = writer.write_all(bytes).await;
            let _ = writer.shutdown().await;
        };
        let read = async {
            let _ = reader.read_to_end(&mut answers).await;
        };
        tokio::join!(send, read);
    };
    let (_, ()) = tokio::join!(served, client);
    answers
}
