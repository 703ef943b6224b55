//! A client that speaks just enough HTTP/1.1 to submit tasks, since what it costs is missing in what is measured.
//!
//! Requests are bytes made beforehand, in which only the digits of the key change. Of an answer it reads the status and
//! as many bytes of body as `Content-Length` says; any other form is an error.

use std::io::{Error, ErrorKind, Result, Write};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Digits of the number in a key.
const DIGITS: usize = 12;
/// No answer to a submit is larger.
const MAX_ANSWER: usize = 4 << 20;

/// A submit whose key can be changed in place.
#[derive(Debug, Clone)]
pub(super) struct Request {
    bytes: Vec<u8>,
    digits: usize,
}

impl Request {
    /// Submits one task of the kind `noop`, due at once or after an hour.
    pub(super) fn single(host: &str, later: bool) -> Self {
        let body = task(0, later);
        let bytes = post(host, "/v1/tasks", "application/json", &body);
        let mark = b"\"key\":\"k";
        let at = bytes.windows(mark.len()).position(|part| part == mark);
        Self {
            digits: at.map_or(0, |at| at + mark.len()),
            bytes,
        }
    }

    /// With the key of this number.
    pub(super) fn keyed(&mut self, number: u64) -> &[u8] {
        let digits = &mut self.bytes[self.digits..self.digits + DIGITS];
        let mut rest = number;
        for digit in digits.iter_mut().rev() {
            *digit = b'0' + u8::try_from(rest % 10).unwrap_or(0);
            rest /= 10;
        }
        &self.bytes
    }
}

/// A batch of tasks of the kind `noop`, one for each key number.
pub(super) fn batch(host: &str, keys: impl Iterator<Item = u64>, later: bool) -> Vec<u8> {
    let mut body = String::new();
    for key in keys {
        body.push_str(&task(key, later));
        body.push('\n');
    }
    post(host, "/v1/tasks/batch", "application/x-ndjson", &body)
}

/// A key as it stands in requests and backlogs.
pub(super) fn key(number: u64) -> String {
    format!("k{number:0DIGITS$}")
}

fn task(number: u64, later: bool) -> String {
    let delay = if later { r#","delay":"1h""# } else { "" };
    format!(
        r#"{{"kind":"noop","key":"{}","payload":null{delay}}}"#,
        key(number)
    )
}

fn post(host: &str, path: &str, form: &str, body: &str) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(body.len() + 256);
    // Writing to a vector does not fail.
    let _ = write!(
        bytes,
        "POST {path} HTTP/1.1\r\nhost: {host}\r\ncontent-type: {form}\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    bytes
}

/// A connection that is kept.
#[derive(Debug)]
pub(super) struct Connection {
    stream: TcpStream,
    answer: Vec<u8>,
}

/// What came back.
#[derive(Debug)]
pub(super) struct Answer<'a> {
    pub(super) status: u16,
    pub(super) body: &'a [u8],
}

impl Answer<'_> {
    /// The body as text, cut to what fits a line.
    pub(super) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body[..self.body.len().min(500)]).into_owned()
    }
}

impl Connection {
    pub(super) async fn open(address: &str) -> Result<Self> {
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        Ok(Self {
            stream,
            answer: Vec::with_capacity(1024),
        })
    }

    /// Sends a request and reads its answer. After an error the connection is of no use.
    pub(super) async fn exchange(&mut self, request: &[u8]) -> Result<Answer<'_>> {
        self.stream.write_all(request).await?;
        self.answer.clear();
        let (status, body) = loop {
            if self.stream.read_buf(&mut self.answer).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            if let Some((status, start, length)) = head(&self.answer)? {
                if self.answer.len() >= start + length {
                    break (status, start..start + length);
                }
                self.answer.reserve(start + length - self.answer.len());
            }
        };
        Ok(Answer {
            status,
            body: &self.answer[body],
        })
    }
}

/// Status, start and length of the body; `None`: the head is not complete yet.
fn head(answer: &[u8]) -> Result<Option<(u16, usize, usize)>> {
    let bad = |what: &str| Error::new(ErrorKind::InvalidData, what.to_owned());
    let Some(end) = answer.windows(4).position(|part| part == b"\r\n\r\n") else {
        return if answer.len() > MAX_ANSWER {
            Err(bad("an answer without an end of its head"))
        } else {
            Ok(None)
        };
    };
    let text =
        std::str::from_utf8(&answer[..end]).map_err(|_| bad("an answer with a head that is no text"))?;
    let mut lines = text.split("\r\n");
    let status = lines
        .next()
        .and_then(|line| line.split(' ').nth(1))
        .and_then(|status| status.parse().ok())
        .ok_or_else(|| bad("an answer without a status"))?;
    let length = lines
        .filter_map(|line| line.split_once(':'))
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .and_then(|(_, value)| value.trim().parse::<usize>().ok())
        .filter(|length| *length <= MAX_ANSWER)
        .ok_or_else(|| bad("an answer without a usable Content-Length"))?;
    Ok(Some((status, end + 4, length)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_takes_any_key_in_place() {
        let mut request = Request::single("127.0.0.1:1", false);
        let first = request.keyed(7).to_vec();
        let text = String::from_utf8(first).unwrap();
        assert!(text.ends_with(r#"{"kind":"noop","key":"k000000000007","payload":null}"#));
        let second = String::from_utf8(request.keyed(123_456_789_012).to_vec()).unwrap();
        assert_eq!(second, text.replace("000000000007", "123456789012"));
        assert_eq!(key(7), "k000000000007");
    }

    #[test]
    fn the_length_of_a_request_is_that_of_its_body() {
        let text = String::from_utf8(batch("h", 0..3, true)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.contains(&format!("content-length: {}", body.len())));
        assert_eq!(body.lines().count(), 3);
    }

    #[test]
    fn an_answer_is_read_only_when_its_head_is_complete() {
        assert!(head(b"HTTP/1.1 201 Created\r\nContent-").unwrap().is_none());
        let whole = b"HTTP/1.1 201 Created\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(head(whole).unwrap(), Some((201, whole.len() - 2, 2)));
        assert!(head(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n").is_err());
        assert!(head(b"nonsense\r\n\r\n").is_err());
    }
}
