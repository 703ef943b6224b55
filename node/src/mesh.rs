//! A node inside a program of your own.
//!
//! ```no_run
//! use ringmesh::{Context, Failure, Mesh};
//!
//! async fn greet(_: Context, name: String) -> Result<String, Failure> {
//!     Ok(format!("good day, {name}"))
//! }
//!
//! #[tokio::main]
//! async fn main() -> Result<(), ringmesh::Error> {
//!     Mesh::builder().handler("greet", greet).run().await
//! }
//! ```

use std::future::Future;
use std::net::SocketAddr;
use std::time::Duration;

use ringmesh_ring::Key;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::builtin;
use crate::config::{self, Config};
use crate::context::Context;
use crate::handler::{Failure, Handlers};
use crate::node::{self, Started};
use crate::shutdown;
use crate::store;
use crate::submit::{self, Submitted};
use crate::task::{Submit, TaskId, View};
use crate::telemetry;

/// Why a node could not be started, or ended.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The configuration could not be read.
    #[error("could not read the configuration")]
    Config(#[from] config::Error),
    /// Logs or metrics could not be set up.
    #[error("could not set up telemetry")]
    Telemetry(#[from] telemetry::Error),
    /// The node did not start, or ended by an error.
    #[error(transparent)]
    Node(#[from] node::Error),
    /// The node's task panicked.
    #[error("the node panicked")]
    Panicked,
}

/// Collects what a node needs.
#[must_use = "a builder does nothing until it is started"]
pub struct Builder {
    config: Option<Config>,
    handlers: Handlers,
}

impl Builder {
    /// The whole configuration at once. Without it, file and environment are read, as `ringmesh node` does.
    pub fn config(mut self, config: Config) -> Self {
        self.config = Some(config);
        self
    }

    /// Runs tasks of a kind by a function from context and payload to a result.
    pub fn handler<P, R, E, F, Fut>(mut self, kind: &str, run: F) -> Self
    where
        P: DeserializeOwned + Send + 'static,
        R: Serialize,
        E: Into<Failure>,
        F: Fn(Context, P) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Result<R, E>> + Send + 'static,
    {
        self.handlers = self.handlers.add(kind, run);
        self
    }

    /// Handlers of several kinds at once.
    pub fn handlers(mut self, handlers: Handlers) -> Self {
        self.handlers = self.handlers.and(handlers);
        self
    }

    /// Starts the node in the background; returns when its HTTP answers.
    ///
    /// # Errors
    /// The node did not start; nothing is left running.
    pub async fn start(self) -> Result<Mesh, Error> {
        let config = match self.config {
            Some(config) => config,
            None => config::load(None, std::env::vars_os(), &[])?.check()?,
        };
        let handlers = if config.builtin_kinds {
            builtin::handlers(config.fault_kinds).and(self.handlers)
        } else {
            self.handlers
        };
        let metrics = Box::new(telemetry::install()?);
        let drain = CancellationToken::new();
        let (tell, started) = oneshot::channel();
        let mut task = tokio::spawn(node::run(config, handlers, metrics, drain.clone(), Some(tell)));
        tokio::select! {
            Ok(started) = started => Ok(Mesh { started, drain, task }),
            ended = &mut task => match ended {
                Ok(Err(error)) => Err(error.into()),
                Ok(Ok(())) | Err(_) => Err(Error::Panicked),
            },
        }
    }

    /// Runs the node until SIGTERM or Ctrl-C has drained it; a second signal ends the process at once.
    ///
    /// # Errors
    /// The node did not start, or ended by an error.
    pub async fn run(self) -> Result<(), Error> {
        let mesh = self.start().await?;
        let drain = mesh.drain.clone();
        tokio::spawn(shutdown::on_signals(drain));
        mesh.ended().await
    }
}

/// A running node.
pub struct Mesh {
    started: Started,
    drain: CancellationToken,
    task: JoinHandle<Result<(), node::Error>>,
}

impl Mesh {
    /// A node to be.
    pub fn builder() -> Builder {
        Builder {
            config: None,
            handlers: Handlers::new(),
        }
    }

    /// Where its HTTP answers.
    pub fn address(&self) -> SocketAddr {
        self.started.address
    }

    /// Submits a task with default options; returns after its commit.
    ///
    /// # Errors
    /// `Unknown` in it means: it may be accepted. Everything else: it is not.
    pub async fn submit<P: Serialize>(
        &self,
        kind: &str,
        key: Key,
        payload: &P,
    ) -> Result<Submitted, submit::Error> {
        let submit =
            Submit::new(kind, key, payload).map_err(|bad| submit::Error::Refused(bad.to_string()))?;
        self.submit_task(submit).await
    }

    /// Submits a task; returns after its commit.
    ///
    /// # Errors
    /// `Unknown` in it means: it may be accepted. Everything else: it is not.
    pub async fn submit_task(&self, submit: Submit) -> Result<Submitted, submit::Error> {
        self.started.submits.submit(submit).await
    }

    /// Waits until a task has ended; `None`: it has not, within `at_most`.
    pub async fn end_of(&self, id: TaskId, at_most: Duration) -> Option<View> {
        self.started.waits.end_of(id, at_most).await
    }

    /// Looks at a task.
    ///
    /// # Errors
    /// Postgres gave no answer.
    pub async fn get(&self, id: TaskId) -> Result<Option<View>, store::Error> {
        Ok(self.started.store.tasks(&[id]).await?.pop().flatten())
    }

    /// Hands all slots on and ends the node.
    ///
    /// # Errors
    /// The node had ended by an error.
    pub async fn drain(self) -> Result<(), Error> {
        self.drain.cancel();
        self.ended().await
    }

    /// Waits until the node ends.
    ///
    /// # Errors
    /// The node ended by an error.
    pub async fn ended(self) -> Result<(), Error> {
        match self.task.await {
            Ok(ended) => Ok(ended?),
            Err(_) => Err(Error::Panicked),
        }
    }
}
