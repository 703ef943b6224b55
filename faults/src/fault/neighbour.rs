//! Others who use the same Postgres, and what they can do there.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use async_trait::async_trait;
use rand::RngExt as _;
use rand::rngs::StdRng;
use ringmesh::dev::process::{Signal, Tied};
use ringmesh::sqlx::postgres::{PgConnection, PgListener};
use ringmesh::sqlx::{AssertSqlSafe, Connection as _, raw_sql};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::DropGuard;

use super::{Begun, Fault, about, again, one_of};
use crate::lab::{Lab, Options};

pub(super) fn all() -> Vec<Box<dyn Fault>> {
    let settings = [
        // New transactions only read; those that are open go on.
        (
            "N22",
            "postgres-read-only",
            "alter system set default_transaction_read_only = on",
            "alter system reset default_transaction_read_only",
        ),
        (
            "N25",
            "no-autovacuum",
            "alter system set autovacuum = off",
            "alter system reset autovacuum",
        ),
    ];
    let locks = [
        ("lock-task", "lock table ringmesh.task in access exclusive mode"),
        ("lock-slot", "lock table ringmesh.slot in access exclusive mode"),
        ("lock-lease", "lock table ringmesh.lease in access exclusive mode"),
        (
            "lock-rows",
            "select 1 from ringmesh.node where fenced_at is null for update; \
             select 1 from ringmesh.lease for update; \
             select 1 from ringmesh.slot where slot % 16 = 0 order by slot for update",
        ),
    ];
    let settings = settings
        .into_iter()
        .map(|(id, name, set, reset)| -> Box<dyn Fault> { Box::new(Setting { id, name, set, reset }) });
    let locks = locks
        .into_iter()
        .map(|(name, sql)| -> Box<dyn Fault> { Box::new(Session::new("N26", name, sql)) });
    let pinned = "begin isolation level repeatable read; select txid_current(), count(*) from ringmesh.slot";
    let others: Vec<Box<dyn Fault>> = vec![
        Box::new(Session::new("N25", "held-xmin", pinned)),
        Box::<Dump>::default(),
        Box::<StaleSlot>::default(),
        Box::<NoConnections>::default(),
        Box::<DiskFull>::default(),
        Box::new(Refusals {
            name: "conflicts",
            function: "conflict",
            refuse: "if random() < 0.5 then raise exception 'forced' using errcode = '40001'; end if; \
                     raise exception 'forced' using errcode = '40P01';",
        }),
        Box::new(Refusals {
            name: "statement-timeout",
            function: "timeout",
            refuse: "perform pg_sleep(0.05); raise exception 'forced' using errcode = '57014';",
        }),
        Box::<Notifications>::default(),
    ];
    settings.chain(locks).chain(others).collect()
}

/// N22, N25: a setting of the server changes, and is read by sessions that are open.
///
/// Expected: of a server that takes no writes, as of one that is away. Without autovacuum: nothing.
struct Setting {
    id: &'static str,
    name: &'static str,
    set: &'static str,
    reset: &'static str,
}

#[async_trait]
impl Fault for Setting {
    fn id(&self) -> &'static str {
        self.id
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        lab.database().execute(self.set).await?;
        lab.database().execute("select pg_reload_conf()").await?;
        Ok(about(lab, &[], self.set).await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        // The session that heals is subject to what it heals: ALTER SYSTEM is allowed in a read-only transaction.
        lab.database().execute(self.reset).await?;
        lab.database().execute("select pg_reload_conf()").await
    }
}

/// N25, N26: somebody's transaction stays open, and holds locks or an old snapshot.
///
/// Expected: of locks on a table or on rows, at most ten seconds' standstill of what needs them, and nobody fenced for good. Of
/// an old snapshot: throughput stays, since no statement scans what has died.
struct Session {
    id: &'static str,
    name: &'static str,
    sql: &'static str,
    open: Option<PgConnection>,
    /// Locks are held no longer.
    until: Option<Instant>,
}

impl Session {
    fn new(id: &'static str, name: &'static str, sql: &'static str) -> Session {
        Session {
            id,
            name,
            sql,
            open: None,
            until: None,
        }
    }
}

#[async_trait]
impl Fault for Session {
    fn id(&self) -> &'static str {
        self.id
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let mut session = lab.database().session().await?;
        // What fences a node may end whoever is in its way, this one too.
        let held = Duration::from_secs(rng.random_range(2..=10));
        let begin = if self.sql.starts_with("begin") {
            ""
        } else {
            "begin; "
        };
        let sql = format!("{begin}{}", self.sql);
        let done = tokio::time::timeout(held, raw_sql(AssertSqlSafe(sql)).execute(&mut session)).await;
        done.context("the locks were not granted")??;
        self.until = Some(Instant::now() + held);
        self.open = Some(session);
        Ok(about(lab, &[], format!("for {} s at least", held.as_secs())).await)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        if let Some(until) = self.until.take() {
            sleep_until(until).await;
        }
        if let Some(session) = self.open.take() {
            // It may have been ended meanwhile.
            let _ = session.close().await;
        }
        Ok(())
    }
}

/// N25: `pg_dump` of the database, again and again.
///
/// Expected: nothing but some load, and an old snapshot for as long as each takes.
#[derive(Default)]
struct Dump {
    running: Option<Tied>,
}

#[async_trait]
impl Fault for Dump {
    fn id(&self) -> &'static str {
        "N25"
    }

    fn name(&self) -> &'static str {
        "dump"
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        let url = lab.database_url();
        let program = program(lab, "pg_dump")?;
        let mut command = Command::new("sh");
        command.args([
            "-c",
            "while :; do \"$0\" --dbname=\"$1\" > /dev/null || sleep 1; done",
        ]);
        command.arg(program).arg(url);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.running = Some(Tied::spawn(command, Signal::Kill).await?);
        Ok(about(lab, &[], "").await)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        if let Some(shell) = self.running.take() {
            let dumps = shell.children();
            drop(shell);
            for dump in dumps {
                dump.signal(Signal::Kill)?;
            }
        }
        Ok(())
    }
}

/// A program of Postgres, beside the server's own.
fn program(lab: &mut Lab, name: &str) -> Result<PathBuf> {
    let pid = lab.database_mut().primary().pid();
    let pid = pid.context("Postgres does not run")?;
    Ok(std::fs::read_link(format!("/proc/{pid}/exe"))?.with_file_name(name))
}

/// N25: a replication slot that nobody reads, which keeps the log and the old rows of the catalogue.
///
/// Expected: disk is used; nothing else.
#[derive(Default)]
struct StaleSlot;

#[async_trait]
impl Fault for StaleSlot {
    fn id(&self) -> &'static str {
        "N25"
    }

    fn name(&self) -> &'static str {
        "stale-slot"
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        let make = "select pg_create_logical_replication_slot('stale', 'pgoutput')";
        lab.database().execute(make).await?;
        Ok(about(lab, &[], "").await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let drop =
            "select pg_drop_replication_slot(slot_name) from pg_replication_slots where slot_name = 'stale'";
        lab.database().execute(drop).await
    }
}

/// N22: others take all connections that are left, and some of the nodes' are ended, so that they miss them.
///
/// Expected: as when Postgres is away, for whoever has no connection; leases of nodes that kept their session go on.
#[derive(Default)]
struct NoConnections {
    taken: Vec<PgConnection>,
}

#[async_trait]
impl Fault for NoConnections {
    fn id(&self) -> &'static str {
        "N22"
    }

    fn name(&self) -> &'static str {
        "no-connections"
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        let begun = about(lab, &[], "").await;
        // An idle session each in the lab's own pool and the observer's stays open.
        while let Ok(session) = lab.database().session().await {
            self.taken.push(session);
        }
        let end = "select pg_terminate_backend(pid) from pg_stat_activity \
                   where application_name like 'ringmesh %' and pid % 3 = 0";
        if let Some(session) = self.taken.last_mut() {
            raw_sql(end).execute(session).await?;
        }
        // What has come free is taken again, as far as nodes were not quicker.
        while let Ok(session) = lab.database().session().await {
            self.taken.push(session);
        }
        Ok(begun)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        for session in self.taken.drain(..) {
            let _ = session.close().await;
        }
        Ok(())
    }
}

/// N23: the disk of Postgres, data and log on one, is full. Healing frees it, and starts the server if it gave up.
///
/// Expected: as when Postgres is away; what was answered is there afterwards.
#[derive(Default)]
struct DiskFull;

/// The size of the disk.
const DISK: u64 = 3 << 30;

#[async_trait]
impl Fault for DiskFull {
    fn id(&self) -> &'static str {
        "N23"
    }

    fn name(&self) -> &'static str {
        "disk-full"
    }

    fn prepare(&self, options: &mut Options) {
        options.disk = Some(DISK);
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        lab.database().fill_disk()?;
        Ok(about(lab, &[], "").await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        lab.database().free_disk()?;
        if lab.database_mut().primary().ended().is_some() {
            lab.database_mut().primary().restart().await?;
        }
        Ok(())
    }
}

/// N26: some statements that change tasks, slots, nodes or leases are refused: as serialisation failures or deadlocks, or because they
/// took longer than they may. For the latter they stand still for 50 ms with the locks they have: sessions of nodes set a
/// `statement_timeout` of their own, so that none of the server binds them.
///
/// Expected: they are tried again, and none is taken for done.
struct Refusals {
    name: &'static str,
    /// The name of a trigger and its function.
    function: &'static str,
    /// What it does to a statement.
    refuse: &'static str,
}

/// In the order in which nodes lock them.
const TABLES: [&str; 4] = ["node", "lease", "slot", "task"];

#[async_trait]
impl Fault for Refusals {
    fn id(&self) -> &'static str {
        "N26"
    }

    fn name(&self) -> &'static str {
        self.name
    }

    async fn begin(&mut self, lab: &mut Lab, rng: &mut StdRng) -> Result<Begun> {
        let part = one_of(rng, &[0.001, 0.01, 0.1]);
        let Refusals { function, refuse, .. } = self;
        let make = format!(
            "create schema if not exists lab; \
             create or replace function lab.{function}() returns trigger language plpgsql as $$ begin \
             if random() < {part} then {refuse} end if; return null; end $$;"
        );
        lab.database().execute(&make).await?;
        for table in TABLES {
            let trigger = format!(
                "create trigger {function} after insert or update or delete on ringmesh.{table} \
                 for each statement execute function lab.{function}()"
            );
            lab.database().execute(&trigger).await?;
        }
        Ok(about(lab, &[], format!("of {part} of all statements")).await)
    }

    async fn heal(&mut self, lab: &mut Lab) -> Result<()> {
        let function = self.function;
        for table in TABLES {
            let drop = format!("drop trigger if exists {function} on ringmesh.{table}");
            lab.database().execute(&drop).await?;
        }
        let drop = format!("drop function if exists lab.{function}()");
        lab.database().execute(&drop).await
    }
}

/// N27: a flood of notifications, and a listener that never hears them, since its transaction stays open.
///
/// Expected: nothing; nodes tell each other their news over HTTP. Commits of those who notify wait for each other.
#[derive(Default)]
struct Notifications {
    deaf: Option<PgConnection>,
    listener: Option<PgListener>,
    flood: Option<DropGuard>,
}

#[async_trait]
impl Fault for Notifications {
    fn id(&self) -> &'static str {
        "N27"
    }

    fn name(&self) -> &'static str {
        "notifications"
    }

    async fn begin(&mut self, lab: &mut Lab, _: &mut StdRng) -> Result<Begun> {
        let mut deaf = lab.database().session().await?;
        raw_sql("listen flood; begin; select 1")
            .execute(&mut deaf)
            .await?;
        self.deaf = Some(deaf);
        // One that stops reading: what it is sent fills its socket.
        let mut listener = PgListener::connect(&lab.database_url()).await?;
        listener.listen("flood").await?;
        self.listener = Some(listener);
        let url = lab.database_url();
        self.flood = Some(again(Duration::from_millis(50), move || {
            let url = url.clone();
            async move {
                let notify =
                    "select pg_notify('flood', repeat('x', 7000) || n) from generate_series(1, 200) n";
                // Postgres may be away by another fault.
                if let Ok(mut session) = PgConnection::connect(&url).await {
                    let _ = raw_sql(notify).execute(&mut session).await;
                    let _ = session.close().await;
                }
            }
        }));
        Ok(about(lab, &[], "").await)
    }

    async fn heal(&mut self, _: &mut Lab) -> Result<()> {
        self.flood = None;
        self.listener = None;
        if let Some(deaf) = self.deaf.take() {
            let _ = deaf.close().await;
        }
        Ok(())
    }
}
