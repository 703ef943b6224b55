//! Node rows: registration, renewal, fencing; and the session whose end is a death notice.

use std::time::Duration;

use ringmesh_ring::Incarnation;
use sqlx::Executor;
use sqlx::Postgres;
use tokio::time::timeout;

use super::session::{Backend, Session};
use super::{Ask, Error, Me, Store};
use crate::failpoint::{self, droppable};

/// An unfenced node, by Postgres.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Peer {
    /// Its incarnation.
    pub incarnation: Incarnation,
    /// The random number of its start.
    pub boot: i64,
    /// Its name.
    pub name: String,
    /// Where its HTTP answers.
    pub http: String,
    /// Where its gossip answers.
    pub gossip: String,
    /// Its weight.
    pub weight: i32,
    /// How often it has renewed its lease.
    pub renewals: i64,
    /// How long its lease lasts still, by the database's clock; for people only.
    pub lease_ms: i64,
}

/// What a node says of itself when it registers.
#[derive(Debug, Clone)]
pub struct Registration {
    /// Unique among the unfenced.
    pub name: String,
    /// Where peers reach its HTTP.
    pub http: String,
    /// Where peers reach its gossip.
    pub gossip: String,
    /// Its weight.
    pub weight: i32,
}

/// Why a node is fenced; each kind has a rule of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FenceKind {
    /// A peer saw no renewal for a TTL, on its own clock.
    Expired,
    /// Its session ended and it did not answer.
    Noticed,
    /// A restart under the same name.
    Replaced,
    /// It left by itself.
    Left,
}

impl FenceKind {
    /// As Postgres and the logs write it.
    pub fn as_str(self) -> &'static str {
        match self {
            FenceKind::Expired => "expired",
            FenceKind::Noticed => "noticed",
            FenceKind::Replaced => "replaced",
            FenceKind::Left => "left",
        }
    }
}

/// What a renewal brought.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Renewal {
    /// The lease stands. `history` names the server's system and timeline: another one means a failover.
    Renewed {
        /// System identifier and timeline.
        history: String,
    },
    /// This incarnation is fenced, or unknown to this server.
    Fenced,
}

/// What an attempt to fence a node brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fencing {
    /// It is fenced now, by us.
    Fenced,
    /// It was fenced before, or it has renewed since we looked.
    Nothing,
}

/// What a wait for a peer's session brought.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// The peer's lock is held: its session stands.
    Held,
    /// The peer's lock is free.
    Free,
}

/// How long a fencer waits for the node's row before it ends the sessions that hold it.
const FENCE_PATIENCE: Duration = Duration::from_millis(200);

/// How long an attempt to fence a node may take; whoever wants it fenced tries again.
const FENCE_WITHIN: Duration = Duration::from_secs(10);

/// How a fence reads, whatever the database's default: its second statement has to see what the first one waited for.
pub(super) const FENCE_TERMS: &str =
    "set transaction isolation level read committed; set local statement_timeout = '5s'";

impl Store {
    /// The unfenced nodes that are asked for, by incarnation.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn unfenced_nodes(&self, ask: &Ask) -> Result<Vec<Peer>, Error> {
        unfenced_nodes(&self.control, ask).await
    }

    /// The unfenced node of a name: incarnation, boot, HTTP address, renewals.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn unfenced_by_name(
        &self,
        name: &str,
    ) -> Result<Option<(Incarnation, i64, String, i64)>, Error> {
        let row = sqlx::query_file!("src/store/sql/unfenced_by_name.sql", name)
            .fetch_optional(&self.control)
            .await?;
        Ok(row.map(|row| (Incarnation(row.incarnation), row.boot, row.http, row.renewals)))
    }

    /// Registers a start of a node with a lease of `ttl`. `None`: an unfenced node has this name.
    ///
    /// # Errors
    /// `Unknown`: it may be registered; it then never renews, and is fenced.
    pub async fn register(
        &self,
        boot: i64,
        node: &Registration,
        ttl: Duration,
    ) -> Result<Option<Incarnation>, Error> {
        let row = sqlx::query_file!(
            "src/store/sql/register_node.sql",
            boot,
            node.name,
            node.http,
            node.gossip,
            node.weight,
            millis(ttl)
        )
        .fetch_optional(&self.control)
        .await?;
        Ok(row.map(|row| Incarnation(row.incarnation)))
    }

    /// Fences a node. With `seen`, only if it has not renewed since: a live node wins. The fence is committed alone, before
    /// anything is granted on its strength.
    ///
    /// Transactions of the node that hold its row are ended after a moment's patience.
    ///
    /// # Errors
    /// `Unknown`: it may be fenced; a read tells, and fencing again does no harm.
    pub async fn fence(
        &self,
        node: Incarnation,
        seen: Option<i64>,
        kind: FenceKind,
        by: Incarnation,
    ) -> Result<Fencing, Error> {
        timeout(FENCE_WITHIN, droppable(self.try_fence(node, seen, kind, by)))
            .await
            .unwrap_or_else(|_| Err(Error::late()))
    }

    async fn try_fence(
        &self,
        node: Incarnation,
        seen: Option<i64>,
        kind: FenceKind,
        by: Incarnation,
    ) -> Result<Fencing, Error> {
        if let Some(renewals) = seen {
            // Refuses new writers, so that a stream of them cannot hold off the lock below.
            sqlx::query_file!("src/store/sql/cut_short.sql", node.0, renewals)
                .execute(&self.control)
                .await?;
        }
        let mut session = self.session(FENCE_WITHIN, &[]).await?;
        session.begin_with(FENCE_TERMS).await?;
        failpoint::at(failpoint::FENCING).await?;
        let backend = sqlx::query_scalar::<_, i32>("select pg_backend_pid()")
            .fetch_one(&mut session)
            .await?;
        let work = fence_on(&mut session, node, seen, kind, by);
        tokio::pin!(work);
        loop {
            tokio::select! {
                result = &mut work => return result,
                () = tokio::time::sleep(FENCE_PATIENCE) => self.end_blockers(backend, node, seen).await?,
            }
        }
    }

    pub(super) async fn end_blockers(
        &self,
        backend: i32,
        node: Incarnation,
        seen: Option<i64>,
    ) -> Result<(), Error> {
        let found = sqlx::query_file!("src/store/sql/end_blockers.sql", backend, node.0, seen)
            .fetch_one(&self.control)
            .await?;
        if found.ended > 0 {
            tracing::info!(%node, sessions = found.ended, "ended the sessions that held up a fence");
        }
        if let Some(roles) = found.spared {
            tracing::warn!(
                %node,
                roles,
                "sessions hold up a fence that this node's role may not end: grant it pg_signal_backend and pg_read_all_stats"
            );
        }
        Ok(())
    }

    /// Opens the session that renews a node's lease and whose end tells its peers of its death.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn lease_session(&self) -> Result<LeaseSession, Error> {
        Ok(LeaseSession {
            session: self.session(self.ttl, &[]).await?,
        })
    }
}

pub(super) async fn fence_on(
    session: &mut Session,
    node: Incarnation,
    seen: Option<i64>,
    kind: FenceKind,
    by: Incarnation,
) -> Result<Fencing, Error> {
    let locked = sqlx::query_file!("src/store/sql/lock_node.sql", node.0, seen)
        .fetch_optional(&mut *session)
        .await?;
    if locked.is_none() {
        session.rollback().await?;
        return Ok(Fencing::Nothing);
    }
    failpoint::at(match kind {
        FenceKind::Left => failpoint::LEAVE,
        _ => failpoint::FENCE,
    })
    .await?;
    let fenced = sqlx::query_file!("src/store/sql/set_fenced.sql", node.0, kind.as_str(), by.0, seen)
        .execute(&mut *session)
        .await?;
    if fenced.rows_affected() == 0 {
        session.rollback().await?;
        return Ok(Fencing::Nothing);
    }
    session.commit().await.map_err(Error::Unknown)?;
    failpoint::at(failpoint::FENCED).await?;
    Ok(Fencing::Fenced)
}

async fn unfenced_nodes<'c>(
    postgres: impl Executor<'c, Database = Postgres>,
    ask: &Ask,
) -> Result<Vec<Peer>, Error> {
    match ask {
        Ask::All => {
            sqlx::query_file_as!(PeerRow, "src/store/sql/unfenced_nodes.sql")
                .fetch_all(postgres)
                .await
        }
        Ask::Beside { nodes, above } => {
            sqlx::query_file_as!(PeerRow, "src/store/sql/unfenced_beside.sql", nodes, above)
                .fetch_all(postgres)
                .await
        }
    }
    .map(|rows| rows.into_iter().map(Peer::from).collect())
    .map_err(Error::from)
}

struct PeerRow {
    incarnation: i64,
    boot: i64,
    name: String,
    http: String,
    gossip: String,
    weight: i32,
    renewals: i64,
    lease_ms: i64,
}

impl From<PeerRow> for Peer {
    fn from(row: PeerRow) -> Self {
        Peer {
            incarnation: Incarnation(row.incarnation),
            boot: row.boot,
            name: row.name,
            http: row.http,
            gossip: row.gossip,
            weight: row.weight,
            renewals: row.renewals,
            lease_ms: row.lease_ms,
        }
    }
}

/// A session of its own, outside every pool: neither a full pool nor a busy runtime starves it. An answer that takes a TTL is
/// of no use, so none is waited for longer.
#[derive(Debug)]
pub struct LeaseSession {
    session: Session,
}

impl LeaseSession {
    /// Renews the lease, also an expired one that nobody fenced.
    ///
    /// # Errors
    /// `Unknown`: it may be renewed. The session should be opened anew.
    pub async fn renew(&mut self, me: Me, ttl: Duration) -> Result<Renewal, Error> {
        let row = sqlx::query_file!("src/store/sql/renew.sql", me.incarnation.0, me.boot, millis(ttl))
            .fetch_optional(&mut self.session)
            .await?;
        Ok(row.map_or(Renewal::Fenced, |row| Renewal::Renewed { history: row.history }))
    }

    /// The unfenced nodes that are asked for, by incarnation.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn unfenced_nodes(&mut self, ask: &Ask) -> Result<Vec<Peer>, Error> {
        unfenced_nodes(&mut self.session, ask).await
    }

    /// What this session is on the server; `None`: another thing each time.
    ///
    /// # Errors
    /// Nothing is written.
    pub(crate) async fn backend(&mut self) -> Result<Option<Backend>, Error> {
        if self.session.is_per_transaction() {
            return Ok(None);
        }
        let row = sqlx::query_file!("src/store/sql/own_backend.sql")
            .fetch_one(&mut self.session)
            .await?;
        Ok(Some(Backend {
            pid: row.pid,
            started: row.started,
            transaction: None,
        }))
    }

    /// Ends a former session of this node, if the server does not know yet that it is over.
    ///
    /// # Errors
    /// It may have ended.
    pub(crate) async fn end(&mut self, former: Backend) -> Result<(), Error> {
        Ok(former.end(&mut self.session).await?)
    }

    /// Takes the node's own lock for as long as the session lives. Its peers wait for it; that it becomes free tells them
    /// that the session ended.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn hold_own_lock(&mut self, me: Incarnation) -> Result<Answer, Error> {
        if self.session.is_per_transaction() {
            // It would stay with a server that serves others next. Peers see the lease run out instead.
            return Ok(Answer::Held);
        }
        // Another session of this node may still be ending: its successor waits for the lock instead of failing.
        let held = sqlx::query_scalar::<_, bool>("select pg_try_advisory_lock($1, $2)")
            .bind(LOCK_CLASS)
            .bind(lock_number(me))
            .fetch_one(&mut self.session)
            .await?;
        Ok(if held { Answer::Held } else { Answer::Free })
    }

    /// Whether a peer's lock is held by some session right now.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn peer_lock(&mut self, peer: Incarnation) -> Result<Answer, Error> {
        if self.session.is_per_transaction() {
            // It would have none, so that it has none says nothing.
            return Ok(Answer::Held);
        }
        let free = sqlx::query_scalar::<_, bool>("select pg_try_advisory_lock_shared($1, $2)")
            .bind(LOCK_CLASS)
            .bind(lock_number(peer))
            .fetch_one(&mut self.session)
            .await?;
        if free {
            self.release(peer).await?;
        }
        Ok(if free { Answer::Free } else { Answer::Held })
    }

    /// Waits, for at most a second, until a peer's lock is free.
    ///
    /// # Errors
    /// Nothing is written.
    pub async fn wait_for_peer(&mut self, peer: Incarnation) -> Result<Answer, Error> {
        let ended = sqlx::query_scalar::<_, bool>("select ringmesh.session_ended($1, $2)")
            .bind(LOCK_CLASS)
            .bind(lock_number(peer))
            .fetch_one(&mut self.session)
            .await?;
        Ok(if ended { Answer::Free } else { Answer::Held })
    }

    async fn release(&mut self, peer: Incarnation) -> Result<(), Error> {
        sqlx::query("select pg_advisory_unlock_shared($1, $2)")
            .bind(LOCK_CLASS)
            .bind(lock_number(peer))
            .execute(&mut self.session)
            .await?;
        Ok(())
    }
}

/// The class of our advisory locks ("RING"). They are per database, and a database holds one mesh.
const LOCK_CLASS: i32 = 0x5249_4E47;

/// The second half of an advisory lock is 32 bits wide; two incarnations that meet here are 4 billion starts apart.
#[expect(clippy::cast_possible_truncation)]
fn lock_number(node: Incarnation) -> i32 {
    node.0 as i32
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
