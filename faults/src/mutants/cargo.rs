//! Builds and runs one test of the copy, or one scenario of its fault suite, with a Postgres that knows the copy's schema: a changed statement is checked by it
//! when it is compiled.

use std::fmt;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context as _, Result};
use ringmesh::dev::{Postgres, postgres};
use ringmesh::sqlx::postgres::PgConnection;
use ringmesh::sqlx::{AssertSqlSafe, Connection as _, raw_sql};
use tokio::process::Command;

use super::copy::Copy;
use super::runs::Run;
use super::{Guard, Test};

/// From an empty target folder, on a busy machine.
const BUILD_WITHIN: Duration = Duration::from_secs(45 * 60);
/// Well above the patience of the tests themselves, so that what waits in vain fails by its own word.
const TEST_WITHIN: Duration = Duration::from_secs(300);
/// What a run takes beside its faults: its start, and the end of all work, for which it waits in vain if a mutant keeps it from ending.
const RUN_BESIDE: Duration = Duration::from_secs(600);

/// What became of a test.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Ran {
    Passed,
    /// It ran and failed, with these words.
    Failed(String),
    /// Neither, for this reason.
    Not(String),
}

impl fmt::Display for Ran {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ran::Passed => f.write_str("passed"),
            Ran::Failed(words) => write!(f, "failed: {words}"),
            Ran::Not(why) => f.write_str(why),
        }
    }
}

#[derive(Debug)]
pub(super) struct Cargo {
    sources: PathBuf,
    target: PathBuf,
    server: Postgres,
    /// What statements are checked against while they are compiled.
    schema: std::sync::Mutex<String>,
}

impl Cargo {
    pub(super) async fn start(copy: &Copy) -> Result<Self> {
        let cargo = Cargo {
            sources: copy.sources().to_owned(),
            target: copy.target().to_owned(),
            server: Postgres::start(postgres::Options::for_tests()).await?,
            schema: std::sync::Mutex::default(),
        };
        cargo.migrate("sound").await?;
        Ok(cargo)
    }

    /// Makes a database of that name with the migrations of the copy as they are now; statements are checked against it.
    pub(super) async fn migrate(&self, name: &str) -> Result<()> {
        let mut admin = PgConnection::connect(&self.server.url_of("postgres")).await?;
        for sql in [
            format!("drop database if exists {name} with (force)"),
            format!("create database {name}"),
        ] {
            raw_sql(AssertSqlSafe(sql)).execute(&mut admin).await?;
        }
        let url = self.server.url_of(name);
        let mut files: Vec<PathBuf> = std::fs::read_dir(self.sources.join("migrations"))?
            .map(|entry| Ok(entry?.path()))
            .collect::<std::io::Result<_>>()?;
        files.sort();
        let mut session = PgConnection::connect(&url).await?;
        raw_sql("create schema if not exists ringmesh")
            .execute(&mut session)
            .await?;
        for file in files {
            let sql = std::fs::read_to_string(&file)?;
            raw_sql(AssertSqlSafe(sql))
                .execute(&mut session)
                .await
                .with_context(|| format!("apply {}", file.display()))?;
        }
        *self
            .schema
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner) = url;
        Ok(())
    }

    /// Builds and runs it.
    pub(super) async fn ask(&self, guard: Guard) -> Result<Ran> {
        match guard {
            Guard::Test(test) => self.test(test).await,
            Guard::Run(run) => self.scenario(run).await,
        }
    }

    /// By its full name.
    async fn test(&self, test: Test) -> Result<Ran> {
        let name = test.package.name();
        if let Some(not) = self
            .build(&["test", "--locked", "--lib", "--no-run", "-p", name])
            .await?
        {
            return Ok(not);
        }
        let run = [
            "test", "--locked", "--lib", "-p", name, "--", "--exact", test.name,
        ];
        let Some(ran) = self.run("cargo", &run, TEST_WITHIN).await? else {
            return Ok(Ran::Not(format!(
                "{} did not end within {TEST_WITHIN:?}",
                test.name
            )));
        };
        Ok(outcome(&String::from_utf8_lossy(&ran.stdout), test.name))
    }

    async fn scenario(&self, run: &Run) -> Result<Ran> {
        let package = "ringmesh-faults";
        if let Some(not) = self.build(&["build", "--locked", "-p", package]).await? {
            return Ok(not);
        }
        let program = self.target.join("debug").join(package).display().to_string();
        let seconds = run.seconds.to_string();
        let arguments = [
            "--run",
            run.scenario,
            "--seconds",
            &seconds,
            "--seed",
            "1",
            "--rate",
            "30",
        ];
        let within = RUN_BESIDE + Duration::from_secs(run.seconds);
        let Some(ran) = self.run(&program, &arguments, within).await? else {
            return Ok(Ran::Not(format!(
                "{} did not end within {within:?}",
                run.scenario
            )));
        };
        Ok(verdict(
            ran.status.success(),
            &String::from_utf8_lossy(&ran.stderr),
            run.checker,
        ))
    }

    /// None: it is built.
    async fn build(&self, arguments: &[&str]) -> Result<Option<Ran>> {
        Ok(match self.run("cargo", arguments, BUILD_WITHIN).await? {
            None => Some(Ran::Not(format!("it was not built within {BUILD_WITHIN:?}"))),
            Some(built) if !built.status.success() => {
                let said = String::from_utf8_lossy(&built.stderr);
                let errors: Vec<&str> = said
                    .lines()
                    .filter(|line| line.starts_with("error"))
                    .take(3)
                    .collect();
                Some(Ran::Not(format!("it does not build: {}", errors.join("; "))))
            }
            Some(_) => None,
        })
    }

    /// None: it took too long, and was ended with all that it had started.
    async fn run(&self, program: &str, arguments: &[&str], within: Duration) -> Result<Option<Output>> {
        let schema = self
            .schema
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        let postgres = self.server.url_of("");
        let child = Command::new(program)
            .args(arguments)
            .current_dir(&self.sources)
            .env("CARGO_TARGET_DIR", &self.target)
            .env("DATABASE_URL", schema)
            .env("SQLX_OFFLINE", "false")
            .env("RINGMESH_TEST_POSTGRES", postgres.trim_end_matches('/'))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("run {program}"))?;
        let group = child.id();
        match tokio::time::timeout(within, child.wait_with_output()).await {
            Ok(output) => Ok(Some(output?)),
            Err(_) => {
                if let Some(group) = group {
                    end_group(group).await?;
                }
                Ok(None)
            }
        }
    }
}

async fn end_group(group: u32) -> Result<()> {
    Command::new("kill")
        .args(["-KILL", "--", &format!("-{group}")])
        .status()
        .await
        .context("run kill")?;
    Ok(())
}

/// Reads what the test program says of the one test that it ran.
fn outcome(said: &str, test: &str) -> Ran {
    let line = said
        .lines()
        .rfind(|line| line.starts_with("test ") && line.contains(test));
    match line.and_then(|line| line.rsplit_once("... ")) {
        Some((_, "ok")) => Ran::Passed,
        Some((_, "FAILED")) => Ran::Failed(words(said)),
        _ => Ran::Not(format!("{test} did not run to its end")),
    }
}

/// Reads what a run of the suite says: the first violation that its checker tells.
fn verdict(passed: bool, said: &str, checker: &str) -> Ran {
    let mut told = said.lines().map(str::trim);
    let red = told.find(|line| {
        line.strip_prefix(checker)
            .is_some_and(|rest| rest.starts_with(": "))
    });
    match red {
        _ if passed => Ran::Passed,
        Some(line) => Ran::Failed(line.to_owned()),
        None => {
            let last = said.lines().rev().find(|line| !line.trim().is_empty());
            Ran::Not(format!(
                "{checker} tells nothing, though the run failed: {}",
                last.unwrap_or_default()
            ))
        }
    }
}

/// The first panic: where, and the first line of what it said. That a kill has the right reason is for people to see.
fn words(said: &str) -> String {
    let mut lines = said.lines().skip_while(|line| !line.contains("panicked at "));
    let place = lines
        .next()
        .and_then(|line| line.split_once("panicked at "))
        .map_or("", |(_, place)| place);
    format!("{place} {}", lines.next().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_run_that_is_red_by_its_checker_counts() {
        let said = "FAILED: pause with seed 1\n  1.0 s pause n2\nI3: a write under an old epoch\n    row\n";
        assert_eq!(verdict(true, said, "I3"), Ran::Passed);
        assert_eq!(
            verdict(false, said, "I3"),
            Ran::Failed("I3: a write under an old epoch".to_owned())
        );
        for other in ["I", "I4", "I13"] {
            assert!(matches!(verdict(false, said, other), Ran::Not(_)), "{other}");
        }
    }

    #[test]
    fn only_a_test_that_ran_counts() {
        let said = |word: &str| format!("\nrunning 1 test\ntest a::b ... {word}\n\ntest result: x\n");
        assert_eq!(outcome(&said("ok"), "a::b"), Ran::Passed);
        let failed = format!(
            "{}---- a::b stdout ----\n\nthread 'a::b' panicked at a.rs:1:2:\nno\nmore\n",
            said("FAILED")
        );
        assert_eq!(outcome(&failed, "a::b"), Ran::Failed("a.rs:1:2: no".to_owned()));
        for silent in [
            said("ignored"),
            "running 0 tests\n\ntest result: ok. 0 passed".to_owned(),
        ] {
            assert!(matches!(outcome(&silent, "a::b"), Ran::Not(_)), "{silent}");
        }
    }
}
