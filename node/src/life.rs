//! One life of a node: from the registration of an incarnation to its end.
//!
//! A process may live several lives. Each has its own incarnation, lease, gossip identity, slot table and lanes; when it is
//! fenced, all of that ends, and the next one starts from nothing.

use std::sync::Arc;
use std::time::Duration;

use ringmesh_ring::Incarnation;
use tokio::sync::{mpsc, watch};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use crate::config::Config;
use crate::directory::Directory;
use crate::dispatch::{self, Dispatch};
use crate::gossip::{self, Gossip};
use crate::handler::Handlers;
use crate::hint::Hints;
use crate::http;
use crate::lease::{self, Heartbeat};
use crate::notice;
use crate::ownership::{self, End, Standing};
use crate::store::{Answer, Error as StoreError, FenceKind, Fencing, Me, Registration, Store};
use crate::trust::Trust;

/// How often gossip speaks; its failure detector then notices a death in about two seconds. Postgres decides sooner.
const GOSSIP_EVERY: Duration = Duration::from_millis(200);

/// How long to rest before Postgres is asked again.
const REST: Duration = Duration::from_millis(250);

/// Why a life did not begin, or ended by an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The name is in use. Nothing was changed.
    #[error(
        "another node named {name:?} lives at {address} ({incarnation}): give this one another name, or stop that one"
    )]
    NameTaken {
        /// The name.
        name: String,
        /// Where the other one answers.
        address: String,
        /// Its incarnation.
        incarnation: Incarnation,
    },
    /// Postgres refused a statement that a life begins with.
    #[error("could not register the node")]
    Register(#[source] StoreError),
    /// Gossip did not start, or ended by itself.
    #[error("gossip failed")]
    Gossip(#[source] gossip::Error),
    /// The advertised gossip address has no address.
    #[error("could not resolve gossip_advertise")]
    Advertise(#[source] std::io::Error),
    /// The system gave no thread.
    #[error("could not start the lease thread")]
    Thread(#[source] std::io::Error),
    /// A loop of this life ended that must not end; the process should end too.
    #[error("the {0} loop ended")]
    LoopEnded(&'static str),
}

/// What all lives of a process share.
pub struct Process {
    /// What the node was told.
    pub config: Config,
    /// Access to Postgres.
    pub store: Store,
    /// What runs tasks.
    pub handlers: Arc<Handlers>,
    /// To and from the other nodes.
    pub hints: Hints,
    /// To ask whether a peer lives.
    pub http: reqwest::Client,
    /// The snapshot for everybody.
    pub directory: watch::Sender<Arc<Directory>>,
    /// Where HTTP finds the present life.
    pub life: http::Life,
    /// Asks the present life to hand everything on, and the process to end.
    pub drain: CancellationToken,
    /// The runtime's sign of life.
    pub heartbeat: Arc<Heartbeat>,
    /// Where peers reach this process's HTTP.
    pub address: String,
}

/// Lives one life and answers with its incarnation; `before` is this process's former one.
///
/// # Errors
/// Those after which the process should end.
pub async fn live(process: &Process, before: Option<Me>) -> Result<(Option<Me>, End), Error> {
    let config = &process.config;
    let boot = random();
    let join_delay = join_delay(process).await;
    let advertised = config
        .gossip_advertised(config.gossip)
        .await
        .map_err(Error::Advertise)?;
    let registration = Registration {
        name: config.name.clone(),
        http: process.address.clone(),
        gossip: advertised.to_string(),
        weight: i32::try_from(config.weight).unwrap_or(1),
    };
    let Some(me) = register(process, &registration, boot, before).await? else {
        return Ok((None, End::Drained));
    };
    tracing::info!(node = %me.incarnation, name = %config.name, "registered");

    let gossip = match Gossip::start(
        gossip::Config {
            cluster_id: config.cluster_id.clone(),
            secret: config.cluster_secret(),
            listen: config.gossip,
            advertise: advertised,
            seeds: config.seeds.iter().map(ToString::to_string).collect(),
            interval: GOSSIP_EVERY,
        },
        gossip::Me {
            name: config.name.clone(),
            incarnation: me.incarnation,
            weight: config.weight,
            http: process.address.clone(),
        },
    )
    .await
    {
        Ok(gossip) => Arc::new(gossip),
        Err(error) => {
            // It is registered and will never serve: without this its name would stay taken for a TTL.
            let left = process
                .store
                .fence(me.incarnation, None, FenceKind::Left, me.incarnation)
                .await;
            if let Err(error) = left {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not end the lease, it will run out"
                );
            }
            return Err(Error::Gossip(error));
        }
    };

    let stop = CancellationToken::new();
    let _stop_at_end = stop.clone().drop_guard();
    let trust = Arc::new(Trust::new());
    let (lease_events, lease) = mpsc::unbounded_channel();
    let thread = lease::spawn(lease::Parts {
        store: process.store.clone(),
        me,
        terms: config.terms(),
        trust: trust.clone(),
        heartbeat: process.heartbeat.clone(),
        events: lease_events,
        stop: stop.clone(),
    })
    .map_err(Error::Thread)?;

    let (quiet_tx, quiet) = mpsc::unbounded_channel();
    let (dispatch, mut dispatching) = Dispatch::start(dispatch::Parts {
        store: process.store.clone(),
        me,
        trust: trust.clone(),
        handlers: process.handlers.clone(),
        limits: limits(config),
        hints: process.hints.clone(),
        quiet: quiet_tx,
    });
    process.hints.attach(Arc::new(dispatch.clone()));
    let standing = Arc::new(Standing::default());
    process.life.begin(http::LifeHandle {
        me,
        digest: Box::new({
            let standing = standing.clone();
            move || standing.digest()
        }),
        serving: Box::new({
            let standing = standing.clone();
            move || standing.serving()
        }),
    });

    let owning = ownership::run(ownership::Parts {
        store: process.store.clone(),
        me,
        terms: config.terms(),
        settings: config.placement(),
        join_window: config.join_window,
        join_delay,
        tick: config.tick,
        drain_deadline: config.drain_deadline,
        trust: trust.clone(),
        gossip: gossip.clone(),
        dispatch: dispatch.clone(),
        quiet,
        lease,
        hints: process.hints.clone(),
        http: process.http.clone(),
        directory: process.directory.clone(),
        standing,
        drain: process.drain.clone(),
    });
    let end = tokio::select! {
        end = owning => Ok(end),
        _ = &mut dispatching => Err(Error::LoopEnded("dispatch")),
        error = gossip.stopped() => Err(Error::Gossip(error)),
    };

    // Nothing may be written by this life any more; renewing and gossip end last.
    process.life.end();
    process.hints.detach();
    dispatch.stop().await;
    if matches!(end, Ok(End::Drained)) {
        match process
            .store
            .fence(me.incarnation, None, FenceKind::Left, me.incarnation)
            .await
        {
            Ok(_) => process.hints.moved_all(),
            Err(error) => {
                tracing::warn!(
                    error = &error as &dyn std::error::Error,
                    "could not end the lease, it will run out"
                );
            }
        }
    }
    trust.end();
    stop.cancel();
    tokio::task::spawn_blocking(move || thread.join()).await.ok();
    if let Some(gossip) = Arc::into_inner(gossip) {
        gossip.leave().await;
    }
    end.map(|end| (Some(me), end))
}

/// Registers a new incarnation under the node's name. `None`: asked to end meanwhile.
///
/// If the predecessor answers, this start is refused. If it does not, it is fenced: at once when its session is gone, else
/// after a TTL without a renewal. So a name cannot hide a death.
async fn register(
    process: &Process,
    registration: &Registration,
    boot: i64,
    before: Option<Me>,
) -> Result<Option<Me>, Error> {
    let ttl = process.config.ttl;
    let mut seen: Option<(i64, Instant)> = None;
    loop {
        if process.drain.is_cancelled() {
            return Ok(None);
        }
        let attempt = async {
            let Some((predecessor, its_boot, address, renewals)) =
                process.store.unfenced_by_name(&registration.name).await?
            else {
                return process.store.register(boot, registration, ttl).await.map(Ok);
            };
            let mine = before.is_some_and(|me| me.incarnation == predecessor && me.boot == its_boot);
            if !mine && notice::answers(&process.http, &address, predecessor).await {
                return Ok(Err(Error::NameTaken {
                    name: registration.name.clone(),
                    address,
                    incarnation: predecessor,
                }));
            }
            let gone = process
                .store
                .lease_session()
                .await?
                .peer_lock(predecessor)
                .await?
                == Answer::Free;
            let (counter, since) = *seen.get_or_insert((renewals, Instant::now()));
            if counter != renewals {
                seen = Some((renewals, Instant::now()));
            } else if gone || mine || since.elapsed() >= ttl {
                let fenced = process
                    .store
                    .fence(predecessor, Some(renewals), FenceKind::Replaced, predecessor)
                    .await?;
                if fenced == Fencing::Fenced {
                    tracing::info!(node = %predecessor, "fenced this name's predecessor");
                    process.hints.moved_all();
                }
            }
            Ok(Ok(None))
        };
        match attempt.await {
            Ok(Ok(Some(incarnation))) => return Ok(Some(Me { incarnation, boot })),
            Ok(Ok(None)) => {}
            Ok(Err(error)) => return Err(error),
            Err(error @ StoreError::Refused(_)) => return Err(Error::Register(error)),
            Err(error) => {
                tracing::warn!(error = &error as &dyn std::error::Error, "cannot register yet");
            }
        }
        process.drain.run_until_cancelled(sleep(REST / 2)).await;
    }
}

fn limits(config: &Config) -> dispatch::Limits {
    dispatch::Limits {
        concurrency: config.concurrency as usize,
        tasks: config.room as usize,
        grace: config.run_grace,
        backoff: config.backoff_min,
        backoff_most: config.backoff_max,
        cached_keys: config.cache_keys as usize,
        idempotency_window: config.idempotency_window,
        inbox_window: config.inbox_window,
        tick: config.tick,
        ..dispatch::Limits::default()
    }
}

/// How long a name that came and went lately waits before it takes slots: each of its joins moves other nodes' keys.
async fn join_delay(process: &Process) -> Duration {
    const FREE_STARTS: i64 = 3;
    let starts = process
        .store
        .recent_starts(&process.config.name)
        .await
        .unwrap_or(0);
    let more = u32::try_from(starts - FREE_STARTS).unwrap_or(0);
    // Up to a day, the longest that may be configured.
    let doubled = Duration::from_secs(more.checked_sub(1).map_or(0, |doublings| 1 << doublings.min(17)));
    let delay = doubled.min(process.config.rejoin_delay);
    if delay.is_zero() {
        return delay;
    }
    tracing::warn!(
        starts,
        ?delay,
        "this name started often within ten minutes, it joins later"
    );
    delay
}

fn random() -> i64 {
    let mut bytes = [0; 8];
    // Without randomness a later start could not be told from this one; there is no safe way on.
    getrandom::fill(&mut bytes).expect("the system gives random numbers");
    i64::from_le_bytes(bytes)
}
