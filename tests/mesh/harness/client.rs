//! Asks the HTTP API of the nodes.

use std::time::Duration;

use serde_json::Value;

/// Longer than a node takes to answer that it does not know.
const PATIENCE: Duration = Duration::from_secs(60);

/// An answer, whatever its status.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) retry_after: Option<String>,
    pub(crate) body: Value,
}

/// Clones share connections.
#[derive(Debug, Clone)]
pub(crate) struct Client {
    http: reqwest::Client,
    urls: Vec<String>,
}

impl Client {
    pub(crate) fn new(urls: impl Iterator<Item = String>) -> Client {
        let http = ringmesh::tls::http_client().no_proxy().timeout(PATIENCE);
        Client {
            http: http.build().unwrap(),
            urls: urls.collect(),
        }
    }

    /// Its node with this number, counted round and round.
    fn url(&self, node: usize, path: &str) -> String {
        format!("{}{path}", self.urls[node % self.urls.len()])
    }

    pub(crate) async fn post(&self, node: usize, path: &str, body: &Value) -> Result<Answer, reqwest::Error> {
        answer(self.http.post(self.url(node, path)).json(body)).await
    }

    pub(crate) async fn get(&self, node: usize, path: &str) -> Result<Answer, reqwest::Error> {
        answer(self.http.get(self.url(node, path))).await
    }

    pub(crate) async fn delete(&self, node: usize, path: &str) -> Result<Answer, reqwest::Error> {
        answer(self.http.delete(self.url(node, path))).await
    }

    /// The text at a whole URL; empty if there is none.
    pub(crate) async fn text(&self, url: &str) -> String {
        match self.http.get(url).send().await {
            Ok(answer) => answer.text().await.unwrap_or_default(),
            Err(_) => String::new(),
        }
    }
}

async fn answer(request: reqwest::RequestBuilder) -> Result<Answer, reqwest::Error> {
    let answer = request.send().await?;
    let retry_after = answer.headers().get("retry-after");
    Ok(Answer {
        status: answer.status().as_u16(),
        retry_after: retry_after.map(|value| value.to_str().unwrap().to_owned()),
        body: serde_json::from_slice(&answer.bytes().await?).unwrap_or_default(),
    })
}
