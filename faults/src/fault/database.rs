//! Postgres in trouble.

use std::time::Duration;

use anyhow::Result;
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;
use ringmesh::sqlx::postgres::PgConnection;
use ringmesh::sqlx::{Connection as _, raw_sql};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::DropGuard;

use super::{Begun, Fault, about, again, one_of};
use crate::lab::{Lab, Old, Options, Replication};

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    vec![
        Box::new(Restart::of("postgres-kill", Way::Kill)),
        Box::new(Restart::of("postgres-stop", Way::Stop)),
        Box::new(Restart::of("postgres-slow-start", Way::SlowStart)),
        Box::<Pause>::default(),
        Box::new(Backends::of("terminate-backends", "pg_terminate_backend")),
        Box::new(Backends::of("cancel-backends", "pg_cancel_backend")),
        Box::new(Failover::of(
            "failover-synchronous",
            Replication::Synchronous,
            Old::Killed,
        )),
        Box::new(Failover::of(
            "failover-asynchronous",
            Replication::Asynchronous,
            Old::Killed,
        )),
        Box::new(Failover::of(
            "failover-old-reads",
            Replication::Synchronous,
            Old::ReadOnly,
        )),
    ]
}

/// How the server goes and comes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// SIGKILL, and a recovery from its log.
    Kill,
    /// In order: sessions are ended.
    Stop,
    /// SIGKILL, and back only after a while.
    SlowStart,
}

/// N20: the server of Postgres is killed or stopped, and comes back when healed.
///
/// Expected: meanwhile nothing is accepted (503), no healthy node is thrown out, nothing that was answered is lost; work
/// goes on within a second of its return.
struct Restart {
    name: &'static str,
    way: Way,
    back_at: Option<Instant>,
}

impl Restart {
    fn of(name: &'static str, way: Way) -> Restart {
        let back_at = None;
        Restart { name, way, back_at }
    }
}

#[async_trait]
impl Fault for Restart {
    fn id(&self) -> &'static str {
        "N20"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let away = match self.way {
            Way::Kill | Way::Stop => lab.ttl().mul_f64(rng.random_range(0.0..1.0)),
            Way::SlowStart => lab.ttl() * 10,
        };
        self.back_at = Some(Instant::now() + away);
        match self.way {
            Way::Kill | Way::SlowStart => lab.database_mut().primary().kill().await?,
            Way::Stop => lab.database_mut().primary().stop().await?,
        }
        Ok(about(lab, &[], format!("away for {:.1} s", away.as_secs_f64())).await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if let Some(back_at) = self.back_at.take() {
            sleep_until(back_at).await;
            lab.database_mut().primary().restart().await?;
        }
        Ok(())
    }
}

/// N20: all processes of Postgres stand still for half a lease to ten leases.
///
/// Expected: no node is fenced for it, since nobody's counter moves; runs that outlast the trust in the lease are cancelled
/// and repeated; nothing that was answered is lost.
#[derive(Default)]
struct Pause {
    until: Option<Instant>,
}

#[async_trait]
impl Fault for Pause {
    fn id(&self) -> &'static str {
        "N20"
    }

    fn name(&self) -> &'static str {
        "postgres-pause"
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let leases = one_of(rng, &[0.5, 1.0, 2.0, 10.0]);
        self.until = Some(Instant::now() + lab.ttl().mul_f64(leases));
        lab.database_mut().primary().pause().await?;
        Ok(Begun {
            detail: format!("for {leases} leases"),
            ..Begun::default()
        })
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if let Some(until) = self.until.take() {
            sleep_until(until).await;
        }
        Ok(lab.database_mut().primary().resume()?)
    }
}

/// N14: each second some sessions of nodes are ended, or what they do is cancelled.
///
/// Expected: a commit that was under way is read back; other work is done again; a node whose lease session ends opens
/// another one and keeps its slots.
struct Backends {
    name: &'static str,
    function: &'static str,
    ending: Option<DropGuard>,
}

impl Backends {
    fn of(name: &'static str, function: &'static str) -> Backends {
        Backends {
            name,
            function,
            ending: None,
        }
    }
}

#[async_trait]
impl Fault for Backends {
    fn id(&self) -> &'static str {
        "N14"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let part = one_of(rng, &[0.05, 0.2, 0.5]);
        let seed: f64 = rng.random_range(0.0..1.0);
        let sql = format!(
            "select setseed({seed}), count({}(pid)) from pg_stat_activity \
             where application_name like 'ringmesh %' and random() < {part}",
            self.function
        );
        let url = lab.database_url();
        self.ending = Some(again(Duration::from_secs(1), move || {
            let (url, sql) = (url.clone(), sql.clone());
            async move {
                // Postgres may be away by another fault.
                if let Ok(mut session) = PgConnection::connect(&url).await {
                    let _ = raw_sql(ringmesh::sqlx::AssertSqlSafe(sql))
                        .execute(&mut session)
                        .await;
                    let _ = session.close().await;
                }
            }
        }));
        Ok(about(lab, &[], format!("{part} of all sessions each second")).await)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        self.ending = None;
        Ok(())
    }
}

/// N21: the standby becomes the primary, and everybody is led there. Healing makes another standby.
///
/// Expected: all nodes begin new lives (the timeline has changed, numbers may be given out twice). With a synchronous
/// standby nothing that was answered is lost; with an asynchronous one answered tasks may be, and how many is a figure.
struct Failover {
    name: &'static str,
    replication: Replication,
    old: Old,
    begun: bool,
}

impl Failover {
    fn of(name: &'static str, replication: Replication, old: Old) -> Failover {
        Failover {
            name,
            replication,
            old,
            begun: false,
        }
    }
}

#[async_trait]
impl Fault for Failover {
    fn id(&self) -> &'static str {
        "N21"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    fn prepare(&self, options: &mut Options) {
        options.standby = Some(self.replication);
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        let all: Vec<usize> = (0..lab.nodes().len()).collect();
        let begun = about(lab, &all, "").await;
        self.begun = true;
        lab.database_mut().promote(self.old).await?;
        Ok(begun)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        if std::mem::take(&mut self.begun) {
            lab.database_mut().make_standby().await?;
        }
        Ok(())
    }
}
