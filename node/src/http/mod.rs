//! The HTTP API.
//!
//! One file per resource; [`error`] lists all codes. Requests are read within limits of size and time, and memory for bodies is
//! bounded over all connections. Database work runs in tasks of its own: a client that goes away ends no statement half-way.

mod batch;
mod body;
pub mod error;
mod fields;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod guard;
mod health;
mod internal;
mod keys;
mod life;
mod mesh;
mod nodes;
mod serve;
mod tasks;

#[cfg(test)]
pub(crate) mod tests;

use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use tokio::sync::{Semaphore, mpsc, watch};

pub use life::{Life, LifeHandle};
pub use serve::{Limits, serve};

use crate::directory::Directory;
use crate::hint::{HANDOFF_PATH, HINTS_PATH, Hints};
use crate::secret::Secret;
use crate::store::Store;
use crate::submit::Submits;
use error::{Code, Failure};

/// Bytes of request bodies in memory at once, over all connections.
const BODIES: usize = 256 << 20;

/// What the API stands on.
pub struct Api {
    /// This node's name.
    pub name: String,
    /// For reads and cancels.
    pub store: Store,
    /// For submits.
    pub submits: Submits,
    /// To and from other nodes; its waits answer `?wait`.
    pub hints: Hints,
    /// Who owns what.
    pub directory: watch::Receiver<Arc<Directory>>,
    /// What clients must show. Without one only requests to a loopback host are taken.
    pub token: Option<Secret>,
    /// The present life.
    pub life: Life,
    /// Asks the node to drain. A full channel means that it was asked already.
    pub drain: mpsc::Sender<()>,
    /// Whether the process's loops live.
    pub live: Box<dyn Fn() -> bool + Send + Sync>,
    /// The metrics in Prometheus' text form.
    pub metrics: Box<dyn Fn() -> String + Send + Sync>,
    /// How slow and how many requests may be.
    pub limits: Limits,
}

struct Shared {
    api: Api,
    bodies: Semaphore,
}

impl std::ops::Deref for Shared {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

type Context = Arc<Shared>;

/// All routes.
pub fn router(api: Api) -> Router {
    let context: Context = Arc::new(Shared {
        api,
        bodies: Semaphore::new(BODIES),
    });
    Router::new()
        .route("/v1/tasks", post(tasks::create))
        .route("/v1/tasks/batch", post(batch::create))
        .route("/v1/tasks/{id}", get(tasks::read).delete(tasks::cancel))
        .route("/v1/mesh", get(mesh::mesh))
        .route("/v1/slots", get(mesh::slots))
        .route("/v1/keys", get(keys::read_by_query))
        .route("/v1/keys/{*key}", get(keys::read))
        .route("/v1/nodes/{name}/drain", post(nodes::drain))
        .route("/health/live", get(health::live))
        .route("/health/ready", get(health::ready))
        .route("/metrics", get(health::metrics))
        .route(HINTS_PATH, post(internal::hints))
        .route(HANDOFF_PATH, post(internal::handoff))
        .route("/internal/v1/alive", get(internal::alive))
        .fallback(async || Failure::new(Code::NotFound, "there is no such route"))
        .method_not_allowed_fallback(async || {
            Failure::new(Code::MethodNotAllowed, "this route does not take this method")
        })
        .layer(axum::middleware::from_fn_with_state(
            Arc::clone(&context),
            guard::guard,
        ))
        .with_state(context)
}

/// Runs database work to its end, whether or not the client still waits for it.
async fn to_its_end<T: Send + 'static>(
    work: impl Future<Output = Result<T, Failure>> + Send + 'static,
) -> Result<T, Failure> {
    tokio::spawn(work)
        .await
        .unwrap_or_else(|_| Err(Failure::internal()))
}
