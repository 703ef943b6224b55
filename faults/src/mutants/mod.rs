//! Tests the tests: breaks the product in one place at a time, and sees whether the test that guards that place fails; and tests
//! the fault suite: breaks it in the same way, and sees whether a run goes red.
//!
//! | file | is |
//! |---|---|
//! | [`table`] | the mutants: what each breaks, by which text, and which test must see it |
//! | [`runs`] | which of them a run of the suite must see, and by which checker |
//! | `copy` | the copy of the sources that is broken, and put right again |
//! | `cargo` | builds and runs one test or scenario, bounded in time |
//!
//! A mutant counts as killed only if its test was built, ran, and failed; by a run, if the checker that is named told a violation.
//! One that does not build, or whose test does not
//! end, is *broken*: it tells nothing about the tests. Before any mutant, all their tests must pass on the sources as they are.

mod cargo;
mod copy;
pub mod runs;
pub mod table;

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use comfy_table::{Table, presets};
use serde::Serialize;

use cargo::{Cargo, Ran};
use copy::Copy;
use runs::Run;
use table::MUTANTS;

/// What is asked for on the command line.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show all mutants and the tests that must see them
    #[arg(long, conflicts_with = "json")]
    list: bool,
    /// Only this mutant; may be given again
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// By runs of the fault suite in place of tests: those mutants for which a run is named
    #[arg(long)]
    by_runs: bool,
    /// Write what became of each to this file
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// One way to break the product.
#[derive(Debug)]
pub struct Mutant {
    /// Names it.
    pub name: &'static str,
    /// What goes wrong by it.
    pub breaks: &'static str,
    /// How it is made.
    pub changes: &'static [Change],
    /// Each of these must fail.
    pub tests: &'static [Test],
}

/// A text in a source file and what stands in its place; it occurs there once.
#[derive(Debug, Clone, Copy)]
pub struct Change {
    /// From the root of the workspace.
    pub file: &'static str,
    /// What stands there.
    pub from: &'static str,
    /// What the mutant puts there.
    pub to: &'static str,
}

/// A unit test.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Test {
    /// Where it is.
    pub package: Package,
    /// With its module path, as the test program lists it.
    pub name: &'static str,
}

/// A package with tests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Package {
    /// `ringmesh-ring`.
    Ring,
    /// `ringmesh`.
    Node,
}

impl Package {
    /// As cargo knows it.
    pub fn name(self) -> &'static str {
        match self {
            Package::Ring => "ringmesh-ring",
            Package::Node => "ringmesh",
        }
    }
}

/// What must see a mutant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Guard {
    Test(Test),
    Run(&'static Run),
}

impl fmt::Display for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Guard::Test(test) => f.write_str(test.name),
            Guard::Run(run) => write!(
                f,
                "{} in --run {} --seconds {}",
                run.checker, run.scenario, run.seconds
            ),
        }
    }
}

/// What became of a mutant.
#[derive(Debug, Serialize)]
#[serde(tag = "verdict", content = "detail", rename_all = "snake_case")]
enum Verdict {
    /// All that guards against it failed, the last one with these words.
    Killed(String),
    /// This passed.
    Survived(String),
    /// It says nothing, for this reason.
    Broken(String),
}

#[derive(Debug, Serialize)]
struct Report {
    mutant: &'static str,
    guards: Vec<String>,
    #[serde(flatten)]
    verdict: Verdict,
}

/// Does it; true: every mutant was killed.
///
/// # Errors
/// No such mutant; the tests do not pass on the sources as they are; no Postgres; or the copy could not be made.
pub async fn command(args: Args) -> Result<bool> {
    let mut chosen = choose(&args.only)?;
    if args.by_runs {
        chosen.retain(|mutant| Run::of(mutant).is_some());
    }
    let guards = |mutant: &'static Mutant| match Run::of(mutant) {
        Some(run) if args.by_runs => vec![Guard::Run(run)],
        _ => mutant.tests.iter().map(|test| Guard::Test(*test)).collect(),
    };
    let chosen: Vec<(&Mutant, Vec<Guard>)> = chosen
        .into_iter()
        .map(|mutant| (mutant, guards(mutant)))
        .collect();
    if args.list {
        println!("{}", list(&chosen));
        return Ok(true);
    }
    let copy = Copy::make()?;
    let cargo = Cargo::start(&copy).await?;
    sound(&cargo, &chosen).await?;
    let mut reports = Vec::new();
    for (mutant, guards) in &chosen {
        let verdict = judge(&copy, &cargo, mutant, guards).await?;
        say(mutant, guards, &verdict);
        reports.push(Report {
            mutant: mutant.name,
            guards: guards.iter().map(ToString::to_string).collect(),
            verdict,
        });
        if let Some(file) = &args.json {
            let json = serde_json::to_string_pretty(&reports)?;
            std::fs::write(file, json).with_context(|| format!("write {}", file.display()))?;
        }
    }
    let killed = reports
        .iter()
        .filter(|report| matches!(report.verdict, Verdict::Killed(_)))
        .count();
    println!("{killed}/{} killed", reports.len());
    Ok(killed == reports.len())
}

fn choose(only: &[String]) -> Result<Vec<&'static Mutant>> {
    if let Some(name) = only
        .iter()
        .find(|name| MUTANTS.iter().all(|mutant| mutant.name != **name))
    {
        bail!("there is no mutant {name}; see --list");
    }
    Ok(MUTANTS
        .iter()
        .filter(|mutant| only.is_empty() || only.iter().any(|name| name == mutant.name))
        .collect())
}

fn list(mutants: &[(&Mutant, Vec<Guard>)]) -> Table {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_header(["MUTANT", "BREAKS", "KILLED BY"]);
    for (mutant, guards) in mutants {
        let guards: Vec<String> = guards.iter().map(ToString::to_string).collect();
        table.add_row([mutant.name, mutant.breaks, &guards.join("\n")]);
    }
    table
}

/// What fails anyway would kill every mutant.
async fn sound(cargo: &Cargo, mutants: &[(&Mutant, Vec<Guard>)]) -> Result<()> {
    let guards: BTreeSet<Guard> = mutants
        .iter()
        .flat_map(|(_, guards)| guards.iter().copied())
        .collect();
    eprintln!("{} tests on the sources as they are", guards.len());
    for guard in guards {
        match cargo.ask(guard).await? {
            Ran::Passed => {}
            other => bail!("{guard} on the sources as they are: {other}"),
        }
    }
    Ok(())
}

async fn judge(copy: &Copy, cargo: &Cargo, mutant: &Mutant, guards: &[Guard]) -> Result<Verdict> {
    let _reverted = copy.change(mutant.changes)?;
    let fresh = mutant
        .changes
        .iter()
        .any(|change| change.file.starts_with("migrations/"));
    if fresh {
        cargo.migrate("mutant").await?;
    }
    let mut verdict = Verdict::Killed(String::new());
    for guard in guards {
        match cargo.ask(*guard).await? {
            Ran::Failed(words) => verdict = Verdict::Killed(words),
            Ran::Passed => {
                verdict = Verdict::Survived(guard.to_string());
                break;
            }
            other => {
                verdict = Verdict::Broken(other.to_string());
                break;
            }
        }
    }
    if fresh {
        cargo.migrate("sound").await?;
    }
    Ok(verdict)
}

fn say(mutant: &Mutant, guards: &[Guard], verdict: &Verdict) {
    let name = mutant.name;
    match verdict {
        Verdict::Killed(words) => {
            let guards: Vec<String> = guards.iter().map(ToString::to_string).collect();
            println!("killed    {name} by {}\n          {words}", guards.join(", "));
        }
        Verdict::Survived(guard) => println!("SURVIVED  {name}: {guard} passes although {}", mutant.breaks),
        Verdict::Broken(why) => println!("BROKEN    {name}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use super::runs::RUNS;
    use super::*;
    use crate::check;
    use crate::run::scenario;

    #[test]
    fn each_text_stands_once_in_its_file_and_is_changed() {
        for mutant in MUTANTS {
            assert!(
                !mutant.changes.is_empty() && !mutant.tests.is_empty(),
                "{}",
                mutant.name
            );
            for change in mutant.changes {
                let source = std::fs::read_to_string(copy::root().join(change.file)).unwrap();
                let count = source.matches(change.from).count();
                assert_eq!(count, 1, "{}: {:?} in {}", mutant.name, change.from, change.file);
                assert_ne!(change.from, change.to, "{}", mutant.name);
            }
        }
    }

    #[test]
    fn each_run_is_of_a_mutant_and_of_a_scenario() {
        for run in RUNS {
            assert!(
                MUTANTS.iter().any(|mutant| mutant.name == run.mutant),
                "{}",
                run.mutant
            );
            assert!(scenario::by_name(run.scenario).is_some(), "{}", run.scenario);
            assert!(
                check::all().iter().any(|checker| checker.id() == run.checker),
                "{}",
                run.checker
            );
        }
    }

    #[test]
    fn each_name_stands_once() {
        let names: BTreeSet<&str> = MUTANTS.iter().map(|mutant| mutant.name).collect();
        assert_eq!(names.len(), MUTANTS.len());
    }

    #[test]
    fn each_test_is_there() {
        for test in MUTANTS.iter().flat_map(|mutant| mutant.tests) {
            let (module, function) = test.name.rsplit_once("::").unwrap();
            let folder = match test.package {
                Package::Ring => "ring/src",
                Package::Node => "node/src",
            };
            let found = sources(&copy::root().join(folder)).into_iter().any(|file| {
                let stem = file.with_extension("").display().to_string();
                // `a::b::tests` stands in `a/b.rs`, `a/b_tests.rs`, `a/b/tests.rs` or a file below `a/b/tests`.
                let path = module.trim_end_matches("::tests").replace("::", "/");
                stem.contains(&format!("{folder}/{path}"))
                    && std::fs::read_to_string(&file)
                        .unwrap()
                        .contains(&format!("fn {function}("))
            });
            assert!(found, "{}", test.name);
        }
    }

    fn sources(folder: &std::path::Path) -> Vec<PathBuf> {
        std::fs::read_dir(folder)
            .unwrap()
            .flat_map(|entry| {
                let path = entry.unwrap().path();
                match path.is_dir() {
                    true => sources(&path),
                    false => vec![path],
                }
            })
            .filter(|path| path.extension().is_some_and(|extension| extension == "rs"))
            .collect()
    }

    #[test]
    fn a_mutant_that_is_not_there_is_refused() {
        assert!(choose(&["no-such".to_owned()]).is_err());
        assert_eq!(choose(&[]).unwrap().len(), MUTANTS.len());
        assert_eq!(choose(&[MUTANTS[3].name.to_owned()]).unwrap().len(), 1);
    }
}
