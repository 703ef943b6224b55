//! One run: quiet, faults, heal, drain, checks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use rand::SeedableRng as _;
use rand::rngs::StdRng;
use ringmesh::sqlx::postgres::PgPoolOptions;
use ringmesh::sqlx::{PgPool, query_scalar};
use ringmesh::store::{self, Store};
use tokio::task::{JoinHandle, JoinSet};
use tokio::time::{Instant, sleep, sleep_until};
use tokio_util::sync::CancellationToken;

use super::ageing::{self, Look, Minute};
use super::calm;
use super::figures::Figures;
use super::report::Progress;
use super::scenario::Scenario;
use super::schedule::{self, schedule};
use crate::check::{self, Violation};
use crate::fault::{self, Fault};
use crate::history::{History, Moment, Step, Submit, Terms};
use crate::lab::{self, Lab};
use crate::observe::{self, Observer};
use crate::workload::{self, Targets, Workload};

/// Load without faults, before them.
const QUIET: Duration = Duration::from_secs(10);
/// How long nodes may take to be ready, on a machine that does other things as well.
pub(crate) const READY: Duration = Duration::from_secs(180);
/// How long all work may take to end.
const DRAIN: Duration = Duration::from_secs(300);
/// After the drain nothing changes any more: time enough for all nodes to see the same, and for some rounds in which it is judged
/// that they do, the first of them five seconds after the last node's ring has changed.
const STILL: Duration = Duration::from_secs(9);
/// Between two looks at what is waited for.
const LOOK: Duration = Duration::from_millis(200);
/// What the product's nodes subtract from a lease, and how often they look, if they are told nothing.
pub(crate) const MARGIN: Duration = Duration::from_millis(500);
const TICK: Duration = Duration::from_millis(500);

/// What is to be run.
#[derive(Debug, Clone)]
pub struct Job {
    /// Which.
    pub scenario: Scenario,
    /// Decides all that is random.
    pub seed: u64,
    /// The length of the fault phase.
    pub length: Duration,
    /// Tasks a second, over all workloads.
    pub rate: f64,
    /// Whether logs are kept also of a run that passes.
    pub keep: bool,
}

/// What came of a run.
#[derive(Debug)]
pub struct Outcome {
    /// What was run.
    pub job: Job,
    /// What was counted.
    pub figures: Figures,
    /// What was not as promised, and who says so.
    pub violations: Vec<(&'static str, Violation)>,
    /// The same, of kinds that the scenario allows.
    pub tolerated: Vec<(&'static str, Violation)>,
    /// Why it proves nothing; empty: it does.
    pub invalid: Vec<String>,
    /// What happened when, a line each.
    pub timeline: Vec<String>,
    /// What each minute cost, up to the drain.
    pub minutes: Vec<Minute>,
    /// Where logs are kept.
    pub logs: Option<PathBuf>,
}

impl Outcome {
    /// Whether it proves what it was to prove.
    pub fn passed(&self) -> bool {
        self.violations.is_empty() && self.invalid.is_empty()
    }
}

/// Runs it. The lab is gone afterwards; of a run that did not pass its logs stay.
///
/// # Errors
/// The lab did not start, or the record of changes broke: nothing is known then.
pub async fn run(job: Job, progress: &Progress) -> Result<Outcome> {
    progress.phase(&job, "starts the lab", None);
    let scenario = &job.scenario;
    let mut faults = scenario
        .faults
        .iter()
        .map(|name| fault::by_name(name).with_context(|| format!("no fault is called {name}")))
        .collect::<Result<Vec<_>>>()?;
    let workloads = scenario
        .workloads
        .iter()
        .map(|name| workload::by_name(name).with_context(|| format!("no workload is called {name}")))
        .collect::<Result<Vec<_>>>()?;
    scenario.can()?;
    let mut options = lab::Options {
        seed: job.seed,
        ready_within: READY,
        ..lab::Options::default()
    };
    (scenario.options)(&mut options);
    for fault in &faults {
        fault.prepare(&mut options);
    }
    let mut lab = Lab::start_with(options, async |url| prepare(url, &workloads).await).await?;
    let keep = job.keep;
    let started = Started::start(job, &mut lab, workloads).await;
    let ended = match started {
        Ok(started) => started.go_on(&mut lab, &mut faults, progress).await,
        Err(error) => Err(error),
    };
    match ended {
        Ok(mut outcome) => {
            if keep || !outcome.passed() {
                lab.keep();
                outcome.logs = Some(lab.dir().to_owned());
            }
            Ok(outcome)
        }
        Err(error) => {
            lab.keep();
            Err(error.context(format!("the logs are in {}", lab.dir().display())))
        }
    }
}

/// Makes all that must be there before nodes start and the record begins.
pub(crate) async fn prepare(url: &str, workloads: &[Box<dyn Workload>]) -> Result<()> {
    let store = Store::new(&store::Options {
        url: url.to_owned(),
        lease_url: None,
        pooler: store::Pooler::Auto,
        connections: 1,
        hot_connections: 1,
        ttl: Duration::from_secs(3),
        application: "faults".into(),
    })?;
    store.migrate().await?;
    workload::schema::create(url).await?;
    for workload in workloads {
        workload.prepare(url).await?;
    }
    Ok(())
}

/// Whom clients of this lab ask.
pub(crate) fn targets(lab: &Lab) -> Result<Targets> {
    Ok(Targets {
        urls: lab.nodes().iter().map(lab::Host::url).collect(),
        token: Some(lab.token().to_owned()),
        database: lab.database_url(),
        http: ringmesh::tls::http_client().no_proxy().build()?,
        ttl: lab.ttl(),
    })
}

/// Lets clients of these workloads begin; they share the rate, in tasks of W1.
pub(crate) fn load(
    workloads: Vec<Box<dyn Workload>>,
    targets: &Targets,
    seed: u64,
    rate: Option<f64>,
    stop: &CancellationToken,
) -> JoinSet<Vec<Submit>> {
    let share = rate.map(|rate| rate / workloads.len() as f64);
    let mut clients = JoinSet::new();
    for (number, workload) in workloads.into_iter().enumerate() {
        let (targets, stop) = (targets.clone(), stop.clone());
        let share = share.map(|share| share / workload.cost());
        let seed = seed.wrapping_mul(31).wrapping_add(number as u64);
        clients.spawn(async move { workload.run(targets, seed, share, stop).await });
    }
    clients
}

/// A lab at work.
struct Started {
    job: Job,
    observer: Observer,
    db: PgPool,
    stop: CancellationToken,
    clients: JoinSet<Vec<Submit>>,
    looks: JoinHandle<Vec<Look>>,
    began: Instant,
    moments: Vec<Moment>,
    timeline: Vec<String>,
    /// What the run itself saw that should not be.
    seen: Vec<(&'static str, Violation)>,
    invalid: Vec<String>,
}

impl Started {
    async fn start(job: Job, lab: &mut Lab, workloads: Vec<Box<dyn Workload>>) -> Result<Started> {
        let url = lab.database_url();
        let db = PgPoolOptions::new()
            .max_connections(2)
            .acquire_timeout(Duration::from_secs(5))
            .connect(&url)
            .await?;
        let token = lab.token().to_owned();
        let nodes = lab.nodes().iter();
        let nodes = nodes.map(|host| observe::Node {
            name: host.name().to_owned(),
            url: host.url(),
            token: Some(token.clone()),
        });
        let observer = Observer::start(&url, nodes.collect(), lab.events_dir().to_owned()).await?;
        let stop = CancellationToken::new();
        let targets = targets(lab)?;
        let clients = load(workloads, &targets, job.seed, Some(job.rate), &stop);
        let events = lab.events_dir().to_owned();
        let looks = tokio::spawn(ageing::watch(db.clone(), targets, events, stop.clone()));
        Ok(Started {
            job,
            observer,
            db,
            stop,
            clients,
            looks,
            began: Instant::now(),
            moments: Vec::new(),
            timeline: Vec::new(),
            seen: Vec::new(),
            invalid: Vec::new(),
        })
    }

    async fn go_on(
        mut self,
        lab: &mut Lab,
        faults: &mut [Box<dyn Fault>],
        progress: &Progress,
    ) -> Result<Outcome> {
        progress.phase(&self.job, "quiet", Some(QUIET));
        self.moment(Step::Quiet).await;
        self.watch(lab, Instant::now() + QUIET, false).await;

        progress.phase(&self.job, "faults", Some(self.job.length));
        self.break_things(lab, faults).await;
        progress.phase(&self.job, "heal", None);
        self.heal(lab, faults).await;

        progress.phase(&self.job, "drain", Some(DRAIN));
        self.moment(Step::Drain).await;
        self.say("clients stop");
        self.stop.cancel();
        let mut submits = Vec::new();
        while let Some(ended) = self.clients.join_next().await {
            submits.extend(ended.context("a client panicked")?);
        }
        submits.sort_by_key(|submit| submit.sent);
        self.drain(lab).await;
        self.watch(lab, Instant::now() + STILL, true).await;
        self.moment(Step::End).await;
        self.say("the end");

        progress.phase(&self.job, "checks", None);
        let lost_commits = lab.proxied().lost_commits;
        let ns = |time: Duration| i64::try_from(time.as_nanos()).unwrap_or(i64::MAX);
        let terms = Terms {
            ttl: ns(lab.ttl()),
            margin: ns(MARGIN),
            tick: ns(TICK),
        };
        let mut history = self.observer.end(submits, self.moments, terms).await?;
        // One lost reply is both a commit that a proxy kept back and, if it was a submit's, an answer that says so.
        history.end.unknown_commits = lost_commits;
        history.end.unknown_outcomes = workload::unknown_outcomes(&history.submits);
        let looks = self.looks.await.context("the minutes were not measured")?;
        let minutes = ageing::minutes(&looks, &history);
        let history = Arc::new(history);
        let checked = history.clone();
        let (mut violations, mut figures) =
            tokio::task::spawn_blocking(move || checked_all(&checked)).await?;
        let mut invalid = self.invalid;
        invalid.extend(calm::disturbances(&history));
        let scenario = &self.job.scenario;
        invalid.extend(check::lacks(&history, scenario.needs));
        if scenario.needs_mismatches && figures.mismatches == 0 {
            invalid.push("no idempotency key was refused for another body".to_owned());
        }
        let mut tolerated = Vec::new();
        if scenario.may_lose {
            (tolerated, violations) = violations.into_iter().partition(|(checker, _)| *checker == "I1");
            figures = figures.losses_declared();
        }
        violations.extend(self.seen);
        let other = |kind| move |text| (kind, Violation::new(kind, text));
        if scenario.still {
            violations.extend(calm::moves(&history).into_iter().map(other("still")));
        }
        if scenario.steady {
            violations.extend(ageing::worse(&minutes).into_iter().map(other("steady")));
        }
        let figures = Figures {
            invalid_runs: u64::from(!invalid.is_empty()),
            ..figures
        };
        let outcome = Outcome {
            job: self.job,
            figures,
            violations,
            tolerated,
            invalid,
            timeline: self.timeline,
            minutes,
            logs: None,
        };
        if !outcome.passed() {
            keep_history(&history, lab);
        }
        Ok(outcome)
    }

    fn say(&mut self, text: impl std::fmt::Display) {
        let at = self.began.elapsed().as_secs_f64();
        self.timeline.push(format!("{at:8.3} s  {text}"));
    }

    async fn moment(&mut self, step: Step) {
        let moment = self.observer.moment(step).await;
        self.moments.push(moment);
    }

    /// Executes the schedule.
    async fn break_things(&mut self, lab: &mut Lab, faults: &mut [Box<dyn Fault>]) {
        let Job {
            scenario,
            seed,
            length,
            ..
        } = self.job.clone();
        let began = Instant::now();
        let steps = schedule(scenario.rhythm, faults.len(), seed, length);
        let mut acting = vec![false; faults.len()];
        let mut pace = schedule::Pace::new(faults.len());
        for (at, step) in steps {
            let undisturbed = acting.iter().all(|acts| !acts);
            let due = began + pace.due(at, step, began.elapsed());
            let over = began.elapsed() >= length;
            match step {
                schedule::Step::Begin(..) if over => {}
                schedule::Step::Begin(number, seed) => {
                    self.watch(lab, due, undisturbed).await;
                    acting[number] = true;
                    self.begin(lab, faults[number].as_mut(), seed).await;
                }
                schedule::Step::Heal(number) if acting[number] => {
                    self.watch(lab, due, undisturbed).await;
                    acting[number] = false;
                    lab.set_others_act(acting.contains(&true));
                    self.end(lab, faults[number].as_mut()).await;
                }
                schedule::Step::Heal(_) => {}
            }
        }
        self.watch(lab, began + length, true).await;
    }

    async fn begin(&mut self, lab: &mut Lab, fault: &mut dyn Fault, seed: u64) {
        let mut rng = StdRng::seed_from_u64(seed);
        // Noted with the time before it, so that nothing that it does is older.
        let (id, name) = (fault.id().to_owned(), fault.name().to_owned());
        let mut moment = self.observer.moment(Step::Quiet).await;
        match fault.begin(lab, &mut rng).await {
            Ok(begun) => {
                self.say(format_args!(
                    "{id} {name} begins {} {:?} {}",
                    begun.hosts.join(" "),
                    begun.incarnations,
                    begun.detail
                ));
                moment.step = Step::Fault {
                    id: id.clone(),
                    name,
                    hosts: begun.hosts,
                    incarnations: begun.incarnations,
                };
                self.moments.push(moment);
                self.moment(Step::Begun { id }).await;
            }
            Err(error) => self.void(format!("{id} {name} could not begin: {error:#}")),
        }
    }

    async fn end(&mut self, lab: &mut Lab, fault: &mut dyn Fault) {
        let (id, name) = (fault.id().to_owned(), fault.name().to_owned());
        match fault.heal(lab).await {
            Ok(()) => self.say(format_args!("{id} {name} is healed")),
            Err(error) => {
                let text = format!("after {id} {name} the mesh was not whole again: {error:#}");
                self.say(&text);
                self.seen.push(("heal", Violation::new("not whole", text)));
            }
        }
        self.moment(Step::Heal { id }).await;
    }

    fn void(&mut self, text: String) {
        self.say(&text);
        self.invalid.push(text);
    }

    /// Everything works again, whatever went wrong on the way.
    async fn heal(&mut self, lab: &mut Lab, faults: &mut [Box<dyn Fault>]) {
        // All are healed, then all must get ready.
        lab.set_others_act(faults.len() > 1);
        for fault in faults {
            if let Err(error) = fault.heal(lab).await {
                self.void(format!("{} could not be healed: {error:#}", fault.name()));
            }
        }
        if let Err(error) = lab.heal_all().await {
            self.void(format!("not all links could be healed: {error:#}"));
        }
        for number in 0..lab.nodes().len() {
            let host = &mut lab.nodes_mut()[number];
            let runs = host.pid().is_some() && host.ended().is_none();
            if !runs {
                let name = host.name().to_owned();
                let started = host.start_again().await;
                self.say(format_args!("{name} is started again"));
                if let Err(error) = started {
                    self.void(format!("{name} did not start again: {error:#}"));
                }
            }
        }
        // Some faults leave nodes that live, and may still wait before they take slots.
        for host in lab.nodes_mut() {
            if let Err(error) = host.wait_ready(READY).await {
                let text = format!("after all faults {} did not get ready: {error:#}", host.name());
                self.seen.push(("heal", Violation::new("not whole", text)));
            }
        }
    }

    /// Waits, and looks after the nodes meanwhile. `undisturbed`: none of them may end now.
    async fn watch(&mut self, lab: &mut Lab, until: Instant, undisturbed: bool) {
        loop {
            self.look_after_nodes(lab, undisturbed).await;
            let next = Instant::now() + LOOK;
            sleep_until(next.min(until)).await;
            if next >= until {
                return;
            }
        }
    }

    async fn look_after_nodes(&mut self, lab: &mut Lab, undisturbed: bool) {
        for number in 0..lab.nodes().len() {
            let host = &mut lab.nodes_mut()[number];
            let Some(status) = host.ended() else {
                continue;
            };
            let name = host.name().to_owned();
            if self.job.scenario.nodes_end {
                let started = host.spawn().await;
                self.say(format_args!("{name} ended ({status}) and is started again"));
                if let Err(error) = started {
                    self.void(format!("{name} could not be started again: {error:#}"));
                }
            } else if undisturbed {
                let (text, rows) = (format!("{name} ended by itself: {status}"), vec![host.log_tail()]);
                let started = host.spawn().await;
                self.say(&text);
                let kind = "ended";
                self.seen.push(("node", Violation { kind, text, rows }));
                if let Err(error) = started {
                    self.void(format!("{name} could not be started again: {error:#}"));
                }
            }
        }
    }

    /// Waits until no task is open but those of a far future. What is open then is for the checks.
    async fn drain(&mut self, lab: &mut Lab) {
        let deadline = Instant::now() + DRAIN;
        loop {
            self.look_after_nodes(lab, true).await;
            let open: Result<i64, _> = query_scalar(
                "select count(*) from (select from ringmesh.task
                 where wait is distinct from 'scheduled' or run_at < now() + interval '1 hour' limit 1000) open",
            )
            .fetch_one(&self.db)
            .await;
            match open {
                Ok(0) => return self.say("all work has ended"),
                _ if Instant::now() >= deadline => {
                    let left = open.map_or_else(
                        |error| error.to_string(),
                        |open| format!("{open} or more tasks are open"),
                    );
                    return self.say(format_args!("not drained within {DRAIN:?}: {left}"));
                }
                _ => sleep(LOOK).await,
            }
        }
    }
}

/// All checks over, and what was counted.
pub(crate) fn checked_all(history: &History) -> (Vec<(&'static str, Violation)>, Figures) {
    let mut violations = Vec::new();
    for checker in check::all() {
        let found = checker.check(history);
        violations.extend(found.into_iter().map(|violation| (checker.id(), violation)));
    }
    let figures = Figures::of(history, &violations);
    (violations, figures)
}

/// Beside the logs, for whoever looks into a failure. Not of huge runs.
pub(crate) fn keep_history(history: &History, lab: &Lab) {
    const AT_MOST: usize = 1_000_000;
    if history.changes.len() + history.events.len() > AT_MOST {
        return;
    }
    let file = std::fs::File::create(lab.dir().join("history.json"));
    if let Ok(file) = file {
        let _ = serde_json::to_writer(std::io::BufWriter::new(file), history);
    }
}
