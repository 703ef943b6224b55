//! What HTTP knows of the present life of this process.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use crate::store::Me;

/// A life, as far as other nodes ask about it.
pub struct LifeHandle {
    /// Its identity.
    pub me: Me,
    /// The digest of its present placement.
    pub digest: Box<dyn Fn() -> String + Send + Sync>,
    /// Whether it takes slots.
    pub serving: Box<dyn Fn() -> bool + Send + Sync>,
}

impl fmt::Debug for LifeHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LifeHandle")
            .field("me", &self.me)
            .finish_non_exhaustive()
    }
}

/// The place of the present life; empty between two lives. Cloning shares it.
#[derive(Debug, Clone, Default)]
pub struct Life(Arc<RwLock<Option<Arc<LifeHandle>>>>);

impl Life {
    /// No life yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// A life begins.
    pub fn begin(&self, life: LifeHandle) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(life));
    }

    /// The present life is over.
    pub fn end(&self) {
        *self.0.write().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The present life.
    pub fn get(&self) -> Option<Arc<LifeHandle>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
