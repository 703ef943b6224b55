//! The upkeep of the inbox: ids that transactions applied, see `migrations/0004_effects.sql`.

use std::time::Duration;

use ringmesh_ring::{Epoch, Slot};

use super::slots::columns;
use super::{Error, Me, Store};

impl Store {
    /// Deletes ids that were applied longer ago than the window, in chunks. Answers with how many.
    ///
    /// # Errors
    /// `Unknown`: some may be gone; trying again does no harm.
    pub async fn forget_inbox(
        &self,
        me: Me,
        slots: &[(Slot, Epoch)],
        window: Duration,
    ) -> Result<u64, Error> {
        let (slots, epochs) = columns(slots);
        let done = sqlx::query_file!(
            "src/store/sql/forget_inbox.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs,
            i64::try_from(window.as_millis()).unwrap_or(i64::MAX)
        )
        .execute(&self.pool)
        .await?;
        Ok(done.rows_affected())
    }

    /// How many ids came again so far, in the whole mesh.
    ///
    /// # Errors
    /// Nothing was to change.
    pub async fn inbox_again(&self) -> Result<i64, Error> {
        Ok(sqlx::query_file_scalar!("src/store/sql/inbox_again.sql")
            .fetch_one(&self.pool)
            .await?)
    }
}
