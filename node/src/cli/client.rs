//! A small client of the HTTP API.
//!
//! An answer of 503 or 429 is tried again, after the pause that it names, when repeating can do no harm: cancels, waits, submits under
//! an idempotency key, and for a moment reads, whose caller wants to know soon that nobody answers. Everything else is left to
//! the caller, who may know better.

use std::time::Duration;

use reqwest::header::{CONTENT_TYPE, RETRY_AFTER};
use reqwest::{RequestBuilder, StatusCode};
use ringmesh::config;
use ringmesh::secret::Secret;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::failure::{Failure, code};

/// How long a node may take to accept a connection.
const CONNECT_WITHIN: Duration = Duration::from_secs(5);
/// How long an answer may take: longer than a node needs for the slowest one, and than the longest wait.
const ANSWER_WITHIN: Duration = Duration::from_secs(90);
/// The longest wait that is asked for in one request; a node takes up to 60 s.
const LONGEST_WAIT: Duration = Duration::from_secs(50);
/// For how long a node that cannot serve now is asked again.
const PATIENCE: Duration = Duration::from_secs(30);
/// As [`PATIENCE`], for a plain read.
const READ_PATIENCE: Duration = Duration::from_secs(3);
/// How long an answer to a plain read may take.
const READ_WITHIN: Duration = Duration::from_secs(10);
const FIRST_PAUSE: Duration = Duration::from_millis(200);
const LONGEST_PAUSE: Duration = Duration::from_secs(5);

/// Where the API is, and how its answers are shown.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct ClientArgs {
    /// A node's HTTP API; any node of the mesh will do
    #[arg(
        long,
        value_name = "URL",
        env = "RINGMESH_URL",
        default_value = "http://127.0.0.1:7101"
    )]
    pub(crate) url: String,
    /// The mesh's token; RINGMESH_TOKEN, or a file named by RINGMESH_TOKEN_FILE, keeps it out of the list of processes
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,
    /// Print JSON, one value a line
    #[arg(long)]
    pub(crate) json: bool,
}

impl ClientArgs {
    pub(crate) fn client(&self) -> Result<Client, Failure> {
        let base = self.url.trim_end_matches('/');
        let url = reqwest::Url::parse(base).map_err(|error| {
            Failure::usage(anyhow::Error::from(error).context(format!("{base:?} is no URL")))
                .help("give a node's address, as http://127.0.0.1:7101")
        })?;
        if !["http", "https"].contains(&url.scheme()) || !url.has_host() {
            return Err(Failure::usage(anyhow::anyhow!("{base:?} is no http URL"))
                .help("give a node's address, as http://127.0.0.1:7101"));
        }
        let mut http = ringmesh::tls::http_client()
            .connect_timeout(CONNECT_WITHIN)
            .redirect(reqwest::redirect::Policy::none())
            .user_agent(concat!("ringmesh/", env!("CARGO_PKG_VERSION")));
        // No proxy leads back to this host.
        if url.host_str().is_some_and(is_this_host) {
            http = http.no_proxy();
        }
        let http = http.build().map_err(Failure::failed)?;
        let token = match self.token.as_deref().filter(|token| !token.is_empty()) {
            Some(token) => Some(Secret::new(token)),
            None => config::token(std::env::vars_os()).map_err(Failure::usage)?,
        };
        Ok(Client {
            http,
            base: base.to_owned(),
            token,
            patience: PATIENCE,
        })
    }
}

fn is_this_host(host: &str) -> bool {
    let address = host.trim_matches(['[', ']']).parse::<std::net::IpAddr>();
    host == "localhost" || address.is_ok_and(|address| address.is_loopback())
}

/// A client of one node.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    base: String,
    token: Option<Secret>,
    patience: Duration,
}

/// Whether a request may be sent again when its outcome is not known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Repeat {
    /// Doing it twice is doing it once.
    Safe,
    /// Doing it twice may do it twice.
    Never,
}

/// A body to send.
#[derive(Debug, Clone)]
pub(crate) enum Body {
    /// JSON text.
    Json(String),
    /// A JSON text on each line.
    Lines(String),
    /// No body.
    Nothing,
}

/// Why there is no answer, or not the one asked for.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// Nothing was sent.
    #[error("no node can be reached at {url}")]
    Unreachable { url: String, source: reqwest::Error },
    /// Sent, and no answer came: what happened is not known.
    #[error("{url} did not answer")]
    NoAnswer { url: String, source: reqwest::Error },
    /// 503 or 429: it cannot serve now.
    #[error("the node cannot serve now: {message}")]
    Unavailable { message: String, code: String },
    /// Any other status of an error.
    #[error("the node refused: {message} ({status})")]
    Refused {
        status: StatusCode,
        message: String,
        code: String,
        line: Option<usize>,
    },
    /// The answer is not that of a node.
    #[error("{url} answered, but not as a node does: {text}")]
    Strange { url: String, text: String },
}

impl Error {
    /// Whether what was asked for may have been done.
    pub(crate) fn is_unknown(&self) -> bool {
        match self {
            Error::NoAnswer { .. } | Error::Strange { .. } => true,
            // A proxy in between does not say what became of the request.
            Error::Unavailable { code, .. } => code.is_empty() || code == "outcome_unknown",
            Error::Unreachable { .. } | Error::Refused { .. } => false,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let name = match &error {
            Error::Unreachable { .. } => "unreachable",
            Error::NoAnswer { .. } => "no_answer",
            Error::Strange { .. } => "strange_answer",
            Error::Unavailable { code, .. } if code.is_empty() => "unavailable",
            Error::Unavailable { code, .. } | Error::Refused { code, .. } => code,
        }
        .to_owned();
        let (code, help) = match &error {
            Error::Unreachable { .. } => (
                code::UNAVAILABLE,
                "is a node running there? `ringmesh dev` starts some; --url names another",
            ),
            Error::NoAnswer { .. } | Error::Unavailable { .. } => (code::UNAVAILABLE, ""),
            Error::Refused {
                status: StatusCode::UNAUTHORIZED,
                ..
            } => (
                code::REFUSED,
                "set RINGMESH_TOKEN to the mesh's token, or RINGMESH_TOKEN_FILE to a file with it",
            ),
            Error::Refused { .. } => (code::REFUSED, ""),
            Error::Strange { .. } => (code::FAILED, ""),
        };
        let failure = Failure::new(code, error).named(name);
        if help.is_empty() {
            failure
        } else {
            failure.help(help)
        }
    }
}

/// The body of an answer with an error.
#[derive(Debug, serde::Deserialize)]
struct Objection {
    code: String,
    message: String,
    #[serde(default)]
    field: Option<String>,
    #[serde(default)]
    line: Option<usize>,
}

impl Client {
    /// A read.
    pub(crate) async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        let patience = self.patience.min(READ_PATIENCE);
        self.send_for(patience, Repeat::Safe, path, |client, url| {
            client.get(url).timeout(READ_WITHIN)
        })
        .await
    }

    /// A read that is not repeated.
    pub(crate) async fn get_once<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send(Repeat::Never, path, |client, url| {
            client.get(url).timeout(READ_PATIENCE)
        })
        .await
    }

    /// A read that the node answers when something has happened.
    pub(crate) async fn wait<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send(Repeat::Safe, path, |client, url| client.get(url)).await
    }

    /// A write.
    pub(crate) async fn post<T: DeserializeOwned>(
        &self,
        repeat: Repeat,
        path: &str,
        body: Body,
    ) -> Result<T, Error> {
        let (form, text) = match body {
            Body::Json(text) => ("application/json", text),
            Body::Lines(text) => ("application/x-ndjson", text),
            Body::Nothing => return self.send(repeat, path, |client, url| client.post(url)).await,
        };
        // Repetitions share the text.
        let text = bytes::Bytes::from(text);
        let request = |client: &reqwest::Client, url: &str| {
            client.post(url).header(CONTENT_TYPE, form).body(text.clone())
        };
        self.send(repeat, path, request).await
    }

    /// A removal.
    pub(crate) async fn delete<T: DeserializeOwned>(&self, path: &str) -> Result<T, Error> {
        self.send(Repeat::Safe, path, |client, url| client.delete(url))
            .await
    }

    /// Reads a status and a body, once, within a time.
    pub(crate) async fn probe(&self, path: &str, within: Duration) -> Result<(StatusCode, String), Error> {
        let url = format!("{}{path}", self.base);
        let no_answer = |source: reqwest::Error| self.silence(source);
        let answer = self
            .http
            .get(&url)
            .timeout(within)
            .send()
            .await
            .map_err(no_answer)?;
        let status = answer.status();
        Ok((status, answer.text().await.map_err(no_answer)?))
    }

    async fn send<T: DeserializeOwned>(
        &self,
        repeat: Repeat,
        path: &str,
        request: impl Fn(&reqwest::Client, &str) -> RequestBuilder,
    ) -> Result<T, Error> {
        self.send_for(self.patience, repeat, path, request).await
    }

    async fn send_for<T: DeserializeOwned>(
        &self,
        patience: Duration,
        repeat: Repeat,
        path: &str,
        request: impl Fn(&reqwest::Client, &str) -> RequestBuilder,
    ) -> Result<T, Error> {
        let url = format!("{}{path}", self.base);
        let until = Instant::now() + patience;
        let mut pause = FIRST_PAUSE;
        loop {
            let (error, after) = match self.send_once(request(&self.http, &url)).await {
                Ok(body) => return self.read(&body),
                Err(failed) => failed,
            };
            let may_pass = matches!(error, Error::NoAnswer { .. } | Error::Unavailable { .. });
            let wait = after.unwrap_or(pause).clamp(FIRST_PAUSE, LONGEST_PAUSE);
            if !may_pass || repeat == Repeat::Never || Instant::now() + wait > until {
                return Err(error);
            }
            tokio::time::sleep(wait).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
        }
    }

    /// The body of a success; else the error, and the pause that the answer asks for.
    async fn send_once(&self, request: RequestBuilder) -> Result<bytes::Bytes, (Error, Option<Duration>)> {
        let mut request = request.timeout(ANSWER_WITHIN);
        if let Some(token) = &self.token {
            request = request.bearer_auth(token.expose());
        }
        let silent = |source: reqwest::Error| (self.silence(source), None);
        let answer = request.send().await.map_err(silent)?;
        let status = answer.status();
        let after = answer.headers().get(RETRY_AFTER);
        let after = after
            .and_then(|value| value.to_str().ok()?.parse().ok())
            .map(Duration::from_secs);
        let body = answer.bytes().await.map_err(silent)?;
        if status.is_success() {
            Ok(body)
        } else {
            Err((self.objection(status, &body), after))
        }
    }

    /// Reads an answer's body.
    pub(crate) fn read<T: DeserializeOwned>(&self, body: &[u8]) -> Result<T, Error> {
        serde_json::from_slice(body).map_err(|error| self.strange(&error.to_string()))
    }

    fn silence(&self, source: reqwest::Error) -> Error {
        let url = self.base.clone();
        match source.is_connect() {
            true => Error::Unreachable {
                url,
                source: source.without_url(),
            },
            false => Error::NoAnswer {
                url,
                source: source.without_url(),
            },
        }
    }

    fn objection(&self, status: StatusCode, body: &[u8]) -> Error {
        let unavailable = matches!(
            status,
            StatusCode::SERVICE_UNAVAILABLE | StatusCode::TOO_MANY_REQUESTS
        );
        let Ok(Objection {
            code,
            message,
            field,
            line,
        }) = serde_json::from_slice(body)
        else {
            // Something in between, such as a proxy.
            return match unavailable {
                true => Error::Unavailable {
                    message: status.to_string(),
                    code: String::new(),
                },
                false => self.strange(&status.to_string()),
            };
        };
        let message = match field {
            Some(field) => format!("{field}: {message}"),
            None => message,
        };
        match unavailable {
            true => Error::Unavailable { message, code },
            false => Error::Refused {
                status,
                message,
                code,
                line,
            },
        }
    }

    /// The answer is not that of a node.
    pub(crate) fn strange(&self, text: &str) -> Error {
        Error::Strange {
            url: self.base.clone(),
            text: text.to_owned(),
        }
    }
}

/// A part of a path, percent-encoded.
pub(crate) fn part(text: &str) -> String {
    text.bytes()
        .map(|byte| match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'~' => char::from(byte).to_string(),
            // Dots too: a part that is `..` would be taken for a step up.
            byte => format!("%{byte:02X}"),
        })
        .collect()
}

/// `?wait=…` for what is left until a deadline, in parts that a node takes; `None`: nothing is left.
pub(crate) fn wait_until(deadline: Instant) -> Option<String> {
    let left = deadline
        .saturating_duration_since(Instant::now())
        .min(LONGEST_WAIT);
    (!left.is_zero()).then(|| format!("?wait={}ms", left.as_millis().max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_path_stays_one_part() {
        assert_eq!(part("a/b ..é"), "a%2Fb%20%2E%2E%C3%A9");
        assert_eq!(part("tenant-1_~"), "tenant-1_~");
    }
}
