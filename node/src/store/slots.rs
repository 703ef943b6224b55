//! Slot rows: reads, grants, transfers; and what all nodes must agree on.

use ringmesh_ring::{Epoch, Incarnation, Row, Slot};

use super::{Error, Me, Store};

/// What every node of a mesh must agree on before it may compute a placement.
#[derive(Debug, Clone, PartialEq)]
pub struct MeshSettings {
    /// How many slots there are.
    pub slots: i32,
    /// Ring points per unit of weight.
    pub tokens: i32,
    /// `None`: the strict ring.
    pub load_bound: Option<f64>,
    /// How ring points are hashed.
    pub ring_version: i32,
    /// The lease's length.
    pub ttl_ms: i64,
    /// Tells a wrong cluster secret.
    pub secret_check: String,
    /// Tells a wrong cluster id. `None`: only older binaries were here.
    pub cluster_check: Option<String>,
}

impl Store {
    /// The mesh's settings; the first caller's become them.
    ///
    /// # Errors
    /// `Unknown` if the write's answer was lost: call again.
    pub async fn found_mesh(&self, mine: &MeshSettings) -> Result<MeshSettings, Error> {
        sqlx::query_file!(
            "src/store/sql/found_mesh.sql",
            mine.slots,
            mine.tokens,
            mine.load_bound,
            mine.ring_version,
            mine.ttl_ms,
            mine.secret_check,
            mine.cluster_check
        )
        .execute(&self.control)
        .await?;
        let row = sqlx::query_file!("src/store/sql/mesh_settings.sql")
            .fetch_one(&self.control)
            .await?;
        Ok(MeshSettings {
            slots: row.slots,
            tokens: row.tokens,
            load_bound: row.load_bound,
            ring_version: row.ring_version,
            ttl_ms: row.ttl_ms,
            secret_check: row.secret_check,
            cluster_check: row.cluster_check,
        })
    }

    /// The rows of all slots, by slot.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn read_slots(&self) -> Result<Vec<Row>, Error> {
        let arrays = sqlx::query_file!("src/store/sql/read_slots.sql")
            .fetch_one(&self.control)
            .await?;
        Ok(Slot::all()
            .zip(arrays.owners.into_iter().zip(arrays.epochs))
            .map(|(slot, (owner, epoch))| Row {
                slot,
                owner: (owner != 0).then_some(Incarnation(owner)),
                epoch: Epoch(epoch),
            })
            .collect())
    }

    /// Takes slots without an owner, or with a fenced one, each only if it still has the epoch given. Answers with those
    /// that were granted and their new epochs.
    ///
    /// # Errors
    /// `Unknown`: some may have been granted; the next read tells.
    pub async fn grant(&self, me: Me, wanted: &[(Slot, Epoch)]) -> Result<Vec<(Slot, Epoch)>, Error> {
        let (slots, epochs) = columns(wanted);
        let rows = sqlx::query_file!(
            "src/store/sql/grant.sql",
            me.incarnation.0,
            me.boot,
            &slots,
            &epochs
        )
        .fetch_all(&self.control)
        .await?;
        Ok(rows
            .into_iter()
            .filter_map(|row| Some((slot(row.slot)?, Epoch(row.epoch))))
            .collect())
    }

    /// Hands slots on. Answers with those that were transferred; the others were fenced, or the next owner is.
    ///
    /// # Errors
    /// `Unknown`: some may have been transferred; the next read tells.
    pub async fn transfer(
        &self,
        me: Me,
        to: Incarnation,
        held: &[(Slot, Epoch)],
    ) -> Result<Vec<Slot>, Error> {
        let (slots, epochs) = columns(held);
        let rows = sqlx::query_file!(
            "src/store/sql/transfer.sql",
            me.incarnation.0,
            me.boot,
            to.0,
            &slots,
            &epochs
        )
        .fetch_all(&self.control)
        .await?;
        Ok(rows.into_iter().filter_map(|row| slot(row.slot)).collect())
    }
}

/// Slots and epochs as the arrays of a statement, ascending by slot.
pub(crate) fn columns(slots: &[(Slot, Epoch)]) -> (Vec<i32>, Vec<i64>) {
    let mut sorted = slots.to_vec();
    sorted.sort_unstable();
    sorted
        .into_iter()
        .map(|(slot, epoch)| (i32::from(slot.get()), epoch.0))
        .unzip()
}

/// A slot number from a row; the table's check keeps it in range.
pub(crate) fn slot(number: i32) -> Option<Slot> {
    u16::try_from(number).ok().and_then(Slot::new)
}
