//! The mesh at work, and what is waited for. Whatever it waits for has a bound; none of them says how fast the mesh is.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use ringmesh::sqlx::postgres::PgPoolOptions;
use ringmesh::sqlx::{self, AssertSqlSafe, PgPool};
use ringmesh::store::{self, Store};
use ringmesh_ring::{Key, Slot};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::plan::{Cell, NODES};
use crate::history::{Event, FAIL_POINT, History, Moment, Step, Submit, Terms, What};
use crate::lab::{self, Lab};
use crate::observe::{self, Follower, Observer};
use crate::run::runner::{MARGIN, READY, load, prepare, targets};
use crate::workload::{self, Errands};

/// Until a point that is armed has acted.
pub(super) const ACTS: Duration = Duration::from_secs(20);
/// Until what was told is heard, until somebody ends, until a task ends.
pub(super) const SOON: Duration = Duration::from_secs(40);
/// Until all work has ended after the last cell.
const DRAIN: Duration = Duration::from_secs(120);
/// So long, and two leases, the last cell explains what nodes see (see `check::windows`), and then they are to be seen for a while.
const STILL: Duration = Duration::from_secs(7);
/// Between two looks.
const LOOK: Duration = Duration::from_millis(10);
/// What nodes are told, so that they lose no time: cells wait for joins and for ticks.
const TICK: Duration = Duration::from_millis(200);

/// A lab with its load and its record.
pub(super) struct Stage {
    pub(super) lab: Lab,
    pub(super) errands: Errands,
    pub(super) db: PgPool,
    pub(super) store: Store,
    /// What happened when, a line each.
    pub(super) timeline: Vec<String>,
    observer: Observer,
    follower: Follower,
    /// What nodes noted of their fail points in this cell.
    noted: Vec<Event>,
    stop: CancellationToken,
    clients: JoinSet<Vec<Submit>>,
    moments: Vec<Moment>,
    began: Instant,
    /// Numbers what is told, and keys.
    serial: u64,
}

impl Stage {
    /// Starts lab, load and record.
    pub(super) async fn start(seed: u64, rate: f64, ttl: Duration) -> Result<Stage> {
        let workloads = workload::of_all_kinds();
        let own = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        let tick = format!("{}ms", TICK.as_millis());
        let options = lab::Options {
            nodes: NODES,
            ttl,
            seed,
            env: vec![own("RINGMESH_JOIN_WINDOW", &tick), own("RINGMESH_TICK", &tick)],
            // Each death and each join changes thousands of rows.
            postgres: vec![own("autovacuum_naptime", "2s")],
            ready_within: READY,
            ..lab::Options::default()
        };
        let lab = Lab::start_with(options, async |url| prepare(url, &workloads).await).await?;
        let url = lab.database_url();
        let db = PgPoolOptions::new()
            .max_connections(3)
            .acquire_timeout(SOON)
            .connect(&url)
            .await?;
        let store = Store::new(&store::Options {
            url: url.clone(),
            lease_url: None,
            pooler: store::Pooler::Auto,
            connections: 1,
            hot_connections: 1,
            ttl: lab.ttl(),
            application: "matrix".into(),
        })?;
        let nodes = lab.nodes().iter().map(|host| observe::Node {
            name: host.name().to_owned(),
            url: host.url(),
            token: Some(lab.token().to_owned()),
        });
        let events = lab.events_dir().to_owned();
        let observer = Observer::start(&url, nodes.collect(), events.clone()).await?;
        let quiet = observer.moment(Step::Quiet).await;
        let (targets, stop) = (targets(&lab)?, CancellationToken::new());
        let clients = load(workloads, &targets, seed, Some(rate), &stop);
        Ok(Stage {
            errands: Errands::new(&targets),
            lab,
            db,
            store,
            timeline: Vec::new(),
            observer,
            follower: Follower::new(events),
            noted: Vec::new(),
            stop,
            clients,
            moments: vec![quiet],
            began: Instant::now(),
            serial: 0,
        })
    }

    pub(super) fn say(&mut self, text: impl std::fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        self.timeline.push(format!("{at:8.3} s  {text}"));
    }

    // ---- Points -----------------------------------------------------------------------------------------------------

    /// A cell begins.
    pub(super) async fn begin(&mut self) -> Result<Moment> {
        self.listen()?;
        self.noted.clear();
        Ok(self.observer.moment(Step::Quiet).await)
    }

    fn listen(&mut self) -> Result<()> {
        let told = |event: &Event| matches!(event.what, What::FailPoint { .. } | What::Told { .. });
        self.noted.extend(self.follower.news()?.into_iter().filter(told));
        Ok(())
    }

    /// Writes what a node's points shall do, for now or for its start; answers with the text, which is another each time.
    pub(super) fn tell(&mut self, node: usize, lines: &[String]) -> Result<String> {
        self.serial += 1;
        let text = format!("# {}\n{}\n", self.serial, lines.join("\n"));
        self.lab.nodes()[node].arm(&text)?;
        Ok(text)
    }

    /// Tells a node's points what to do, and waits until they follow.
    pub(super) async fn arm(&mut self, node: usize, lines: &[String]) -> Result<()> {
        let text = self.tell(node, lines)?;
        let name = self.lab.nodes()[node].name().to_owned();
        let heard = What::Told {
            points: text.as_str().into(),
        };
        let deadline = Instant::now() + SOON;
        loop {
            self.listen()?;
            let mut noted = self.noted.iter();
            if noted.any(|event| *event.node == *name && event.what == heard) {
                return Ok(());
            }
            ensure!(
                Instant::now() < deadline,
                "{name} does not hear what its points are told"
            );
            sleep(LOOK).await;
        }
    }

    /// Switches all points off.
    pub(super) fn disarm(&self) -> Result<()> {
        self.lab.nodes().iter().try_for_each(|host| host.arm(""))
    }

    /// Waits until the cell's point has acted on the armed node.
    pub(super) async fn acted(&mut self, cell: &Cell) -> Result<bool> {
        let name = self.lab.nodes()[cell.armed].name().to_owned();
        let acts = What::FailPoint {
            name: cell.point.into(),
            action: cell.action.told().into(),
        };
        let deadline = Instant::now() + ACTS;
        loop {
            self.listen()?;
            let mut noted = self.noted.iter();
            if noted.any(|event| *event.node == *name && event.what == acts) {
                return Ok(true);
            }
            if Instant::now() >= deadline {
                return Ok(false);
            }
            sleep(LOOK).await;
        }
    }

    // ---- Nodes ------------------------------------------------------------------------------------------------------

    /// The unfenced incarnations, by name.
    pub(super) async fn incarnations(&self) -> Result<BTreeMap<String, i64>> {
        let rows: Vec<(String, i64)> =
            sqlx::query_as("select name, incarnation from ringmesh.node where fenced_at is null")
                .fetch_all(&self.db)
                .await?;
        Ok(rows.into_iter().collect())
    }

    /// The nodes that have ended, and their logs' last lines.
    pub(super) fn down(&mut self) -> Vec<(usize, String)> {
        let hosts = self.lab.nodes_mut().iter_mut().enumerate();
        hosts
            .filter_map(|(node, host)| {
                let runs = host.pid().is_some() && host.ended().is_none();
                (!runs).then(|| (node, host.log_tail()))
            })
            .collect()
    }

    /// Starts a node, and does not wait until it is ready.
    pub(super) async fn spawn(&mut self, node: usize) -> Result<()> {
        // A name that starts so often would join later and later, which is not what is tried here.
        sqlx::query("update ringmesh.node set started_at = started_at - interval '1 hour' where name = $1")
            .bind(self.lab.nodes()[node].name())
            .execute(&self.db)
            .await?;
        self.lab.nodes_mut()[node].spawn().await
    }

    /// Waits until all nodes are ready and every slot has a living owner.
    pub(super) async fn whole(&mut self) -> Result<()> {
        let hosts = self.lab.nodes_mut().iter_mut();
        try_join_all(hosts.map(|host| host.wait_ready(READY))).await?;
        let unowned = "select count(*) from ringmesh.slot s where not exists
            (select from ringmesh.node n where n.incarnation = s.owner and n.fenced_at is null)";
        self.none("slots have no living owner", unowned).await
    }

    /// Ends all nodes and starts them again, whatever they are at.
    pub(super) async fn start_over(&mut self) -> Result<()> {
        for node in 0..self.lab.nodes().len() {
            self.lab.nodes_mut()[node].kill().await?;
            self.spawn(node).await?;
        }
        self.whole()
            .await
            .context("the mesh could not be made whole again")
    }

    // ---- Tasks ------------------------------------------------------------------------------------------------------

    /// A key that had no task yet, in a slot of this node.
    pub(super) async fn key_of(&mut self, node: usize) -> Result<String> {
        let name = self.lab.nodes()[node].name();
        let owned: Vec<i32> = sqlx::query_scalar(
            "select slot from ringmesh.slot join ringmesh.node on incarnation = owner where name = $1 and fenced_at is null",
        )
        .bind(name)
        .fetch_all(&self.db)
        .await?;
        let owned: BTreeSet<i32> = owned.into_iter().collect();
        ensure!(!owned.is_empty(), "{name} owns nothing");
        loop {
            self.serial += 1;
            let key = format!("errand{}", self.serial);
            if owned.contains(&i32::from(Slot::of(&Key::new(key.clone())?))) {
                return Ok(key);
            }
        }
    }

    /// Waits until every task that is there now has ended, those aside that wait for a time.
    pub(super) async fn tasks_end(&self) -> Result<()> {
        let last: i64 = sqlx::query_scalar("select last_value from ringmesh.task_id")
            .fetch_one(&self.db)
            .await?;
        let open = format!(
            "from ringmesh.task
             where id <= {last} and (wait is distinct from 'scheduled' or run_at < clock_timestamp() - interval '1 second')"
        );
        let Err(error) = self
            .none("tasks are open", &format!("select count(*) {open}"))
            .await
        else {
            return Ok(());
        };
        let rows = format!("select to_jsonb(open)::text from (select * {open} limit 10) open");
        let rows: Vec<String> = sqlx::query_scalar(AssertSqlSafe(rows))
            .fetch_all(&self.db)
            .await?;
        Err(error.context(rows.join("\n")))
    }

    /// Waits until a statement counts none.
    pub(super) async fn none(&self, what: &str, count: &str) -> Result<()> {
        self.counts(what, count, |count| count == 0).await
    }

    /// Waits until a statement counts as it should.
    pub(super) async fn counts(&self, what: &str, sql: &str, wanted: impl Fn(i64) -> bool) -> Result<()> {
        let deadline = Instant::now() + SOON;
        loop {
            let count: i64 = sqlx::query_scalar(AssertSqlSafe(sql.to_owned()))
                .fetch_one(&self.db)
                .await?;
            if wanted(count) {
                return Ok(());
            }
            if Instant::now() >= deadline {
                bail!("after {SOON:?}, {count} {what}");
            }
            sleep(LOOK).await;
        }
    }

    // ---- The record -------------------------------------------------------------------------------------------------

    /// Notes what a cell did, and to whom: these hosts, in their lives from those on that they had before.
    pub(super) async fn note(
        &mut self,
        cell: &Cell,
        mut began: Moment,
        hosts: Vec<String>,
        before: &BTreeMap<String, i64>,
    ) -> Result<()> {
        let mut incarnations = Vec::new();
        for host in &hosts {
            let first = before.get(host).copied().unwrap_or(i64::MAX);
            incarnations.push(first);
            let ended: Vec<i64> = sqlx::query_scalar(
                "select incarnation from ringmesh.node where name = $1 and incarnation > $2 and fenced_at is not null",
            )
            .bind(host)
            .bind(first)
            .fetch_all(&self.db)
            .await?;
            incarnations.extend(ended);
        }
        let id = FAIL_POINT.to_owned();
        began.step = Step::Fault {
            id: id.clone(),
            name: cell.name(),
            hosts,
            incarnations,
        };
        self.moments.push(began);
        let healed = self.observer.moment(Step::Heal { id }).await;
        self.moments.push(healed);
        Ok(())
    }

    /// Stops the load, waits until all work has ended and all has been still for a while, and ends the record.
    pub(super) async fn end(mut self) -> Result<(History, Lab, Vec<String>)> {
        self.moments.push(self.observer.moment(Step::Drain).await);
        self.say("clients stop");
        self.stop.cancel();
        let mut submits = Vec::new();
        while let Some(ended) = self.clients.join_next().await {
            submits.extend(ended.context("a client panicked")?);
        }
        let healed = Instant::now();
        let deadline = Instant::now() + DRAIN;
        while Instant::now() < deadline && self.tasks_end().await.is_err() {}
        // Those that wait for a time still: their times are near.
        let rest = self
            .none("tasks are open", "select count(*) from ringmesh.task")
            .await;
        match rest {
            Ok(()) => self.say("all work has ended"),
            Err(error) => self.say(format_args!("{error:#}")),
        }
        sleep_until(healed + 2 * self.lab.ttl() + STILL).await;
        self.moments.push(self.observer.moment(Step::End).await);
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let terms = Terms {
            ttl: ns(self.lab.ttl()),
            margin: ns(MARGIN),
            tick: ns(TICK),
        };
        submits.extend(self.errands.submits());
        submits.sort_by_key(|submit| submit.sent);
        self.db.close().await;
        let mut history = self.observer.end(submits, self.moments, terms).await?;
        // Fail points lose the replies, so only nodes know of them.
        history.end.unknown_outcomes = workload::unknown_outcomes(&history.submits);
        history.end.unknown_commits = history.end.unknown_outcomes;
        Ok((history, self.lab, self.timeline))
    }
}
