//! One cell: arm, provoke, see it act, make the mesh whole, and see that it is.

use std::os::unix::process::ExitStatusExt as _;

use anyhow::{Context as _, Result, ensure};
use ringmesh::failpoint as point;
use ringmesh::sqlx;
use std::time::Duration;

use super::plan::{Action, Cell, Way};
use super::report::Verdict;
use super::stage::{SOON, Stage};

/// How long the third node waits before it fences anybody, where it shall be slower.
const SLOWER: &str = "return(delay 700)";
/// Tasks that the node that is about to die runs, and how long each of them takes.
const AT_WORK: usize = 10;
const AT_WORK_MS: u64 = 800;
/// Days past it are dropped.
const RETENTION: Duration = Duration::from_secs(7 * 24 * 3600);

/// Runs it.
///
/// # Errors
/// The mesh could not be made whole again.
pub(super) async fn run(stage: &mut Stage, cell: &Cell) -> Result<Verdict> {
    let before = stage.incarnations().await?;
    let began = stage.begin().await?;
    let touched = touched(cell);
    let mut wrong = Vec::new();

    let mut owed = Owed::Nothing;
    let acted = match provoke(stage, cell, &mut owed).await {
        Ok(acted) => acted,
        Err(error) => {
            wrong.push(format!("{error:#}"));
            false
        }
    };
    if acted && let Err(error) = ended(stage, cell).await {
        wrong.push(format!("{error:#}"));
    }
    stage.disarm()?;
    for (node, log) in stage.down() {
        if !touched.contains(&node) {
            wrong.push(format!("n{} ended by itself:\n{log}", node + 1));
        }
        stage.spawn(node).await?;
    }
    if let Err(error) = stage.whole().await {
        wrong.push(format!("{error:#}"));
        stage.start_over().await?;
    }
    if acted && let Err(error) = paid(stage, owed).await {
        wrong.push(format!("{error:#}"));
    }
    if let Err(error) = stage.tasks_end().await {
        wrong.push(format!("{error:#}"));
    }
    let after = stage.incarnations().await?;
    for (name, incarnation) in &before {
        let node = stage.lab.nodes().iter().position(|host| host.name() == name);
        let spared = node.is_none_or(|node| !touched.contains(&node));
        if spared && after.get(name) != Some(incarnation) {
            let now = after.get(name);
            wrong.push(format!(
                "{name} began a new life: it was {incarnation}, and is {now:?}"
            ));
        }
    }
    let mut hit = touched;
    if !hit.contains(&cell.armed) {
        hit.push(cell.armed);
    }
    let hosts = hit.iter().map(|node| stage.lab.nodes()[*node].name().to_owned());
    stage.note(cell, began, hosts.collect(), &before).await?;

    Ok(match (acted, wrong.is_empty()) {
        (true, true) => Verdict::Acted,
        (false, true) => Verdict::NotReached,
        _ => Verdict::Failed(wrong),
    })
}

/// The nodes that end in this cell.
fn touched(cell: &Cell) -> Vec<usize> {
    let mut touched = Vec::new();
    if cell.ends_armed() || cell.way == Way::OldDay {
        touched.push(cell.armed);
    }
    match cell.way {
        Way::Death | Way::SlowerThird | Way::DeathAtWork | Way::Join => touched.push(cell.other),
        Way::Load
        | Way::LostClaim
        | Way::OldId
        | Way::Orphan
        | Way::Drain
        | Way::OldDay
        | Way::EmptyDatabase => {}
    }
    touched
}

/// What must have happened when the mesh is whole again.
enum Owed {
    Nothing,
    /// The hold of this key is lifted.
    Hold(String),
    /// This day is dropped.
    Day(String),
}

/// Arms the node and makes it pass its point. Answers whether it acted.
async fn provoke(stage: &mut Stage, cell: &Cell, owed: &mut Owed) -> Result<bool> {
    let (armed, other, lines) = (cell.armed, cell.other, cell.lines());
    match cell.way {
        Way::Load | Way::LostClaim => stage.arm(armed, &lines).await?,
        Way::OldId => {
            let key = stage.key_of(armed).await?;
            stage
                .errands
                .send(&key, 0)
                .await
                .context("an errand was refused")?;
            stage.tasks_end().await?;
            sqlx::query(
                "update ringmesh.idempotency set created_at = created_at - interval '2 days' where key = $1",
            )
            .bind(&key)
            .execute(&stage.db)
            .await?;
            stage.arm(armed, &lines).await?;
            let acted = stage.acted(cell).await?;
            if acted && cell.action != Action::Crash {
                // While it is armed, this node forgets each second; others only once a minute.
                let count = format!("select count(*) from ringmesh.idempotency where key = '{key}'");
                stage
                    .none("idempotency ids are past their window", &count)
                    .await?;
            }
            return Ok(acted);
        }
        Way::Orphan => {
            stage.arm(armed, &lines).await?;
            let key = stage.key_of(armed).await?;
            sqlx::query(
                "insert into ringmesh.held_key (slot, key, task, reason, held_until)
                 values (ringmesh.slot_of($1), $1, nextval('ringmesh.task_id'), 'retry', now() + interval '1 day')",
            )
            .bind(&key)
            .execute(&stage.db)
            .await?;
            // It ends only once the hold is lifted.
            stage
                .errands
                .send(&key, 0)
                .await
                .context("an errand was refused")?;
            *owed = Owed::Hold(key);
        }
        Way::Death => {
            stage.arm(armed, &lines).await?;
            stage.lab.nodes_mut()[other].kill().await?;
        }
        Way::SlowerThird => {
            stage
                .arm(cell.third(), &[format!("{}={SLOWER}", point::FENCING)])
                .await?;
            stage.arm(armed, &lines).await?;
            stage.lab.nodes_mut()[other].kill().await?;
        }
        Way::DeathAtWork => {
            stage.arm(armed, &lines).await?;
            put_to_work(stage, other).await?;
            stage.lab.nodes_mut()[other].kill().await?;
        }
        Way::Drain => {
            stage.arm(armed, &lines).await?;
            stage.lab.nodes_mut()[armed].terminate()?;
        }
        Way::Join => {
            stage.lab.nodes_mut()[other].kill().await?;
            let left = format!(
                "select count(*) from ringmesh.slot join ringmesh.node on incarnation = owner
                 where name = 'n{}' or fenced_at is not null",
                other + 1
            );
            stage.none("slots are left with the dead", &left).await?;
            stage.arm(armed, &lines).await?;
            stage.spawn(other).await?;
        }
        Way::OldDay => {
            *owed = Owed::Day(old_day(stage).await?);
            stage.lab.nodes_mut()[armed].kill().await?;
            stage.tell(armed, &lines)?;
            stage.spawn(armed).await?;
        }
        Way::EmptyDatabase => unreachable!("these cells are in `fresh`"),
    }
    stage.acted(cell).await
}

/// Gives a node tasks, and waits until it has claimed them.
async fn put_to_work(stage: &mut Stage, node: usize) -> Result<()> {
    let mut tasks = Vec::new();
    for _ in 0..AT_WORK {
        let key = stage.key_of(node).await?;
        let task = stage.errands.send(&key, AT_WORK_MS).await;
        tasks.push(task.context("an errand was refused")?.number.to_string());
    }
    let claimed = format!(
        "select count(*) from ringmesh.task t join ringmesh.slot s on s.slot = t.slot and s.epoch = t.epoch
         where t.id in ({})",
        tasks.join(", ")
    );
    let enough = AT_WORK as i64 / 2;
    stage
        .counts("tasks are claimed", &claimed, |count| count >= enough)
        .await
}

/// Makes a day of finished tasks that is past its retention, each time another.
async fn old_day(stage: &Stage) -> Result<String> {
    let days: i64 = sqlx::query_scalar("select extract(epoch from clock_timestamp())::bigint % 3000")
        .fetch_one(&stage.db)
        .await?;
    let day = chrono::NaiveDate::from_ymd_opt(2015, 1, 1)
        .and_then(|first| first.checked_add_days(chrono::Days::new(days.unsigned_abs())))
        .context("a day")?;
    let (name, next) = (
        format!("finished_task_{}", day.format("%Y%m%d")),
        day + chrono::Days::new(1),
    );
    stage
        .lab
        .database()
        .execute(&format!(
            "create table ringmesh.{name} (like ringmesh.finished_task including defaults including constraints);
             alter table ringmesh.finished_task attach partition ringmesh.{name}
                 for values from ('{day} 00:00Z') to ('{next} 00:00Z')"
        ))
        .await?;
    Ok(name)
}

/// Waits until the armed node has ended, as it should by what its point did.
async fn ended(stage: &mut Stage, cell: &Cell) -> Result<()> {
    if !cell.ends_armed() {
        return Ok(());
    }
    let host = &mut stage.lab.nodes_mut()[cell.armed];
    let status = host.wait_end(SOON).await;
    let status = status.with_context(|| format!("{} did not end within {SOON:?}", host.name()))?;
    let expected = match cell.action {
        Action::Crash => status.signal() == Some(libc::SIGABRT),
        Action::Error | Action::Delay | Action::Drop => status.success(),
    };
    ensure!(
        expected,
        "{} ended with {status}:\n{}",
        host.name(),
        host.log_tail()
    );
    Ok(())
}

/// Waits until what was owed has happened.
async fn paid(stage: &Stage, owed: Owed) -> Result<()> {
    match owed {
        Owed::Nothing => Ok(()),
        Owed::Hold(key) => {
            let count = format!("select count(*) from ringmesh.held_key where key = '{key}'");
            stage.none("holds have no task", &count).await
        }
        Owed::Day(day) => {
            // What a call did not get done, the next one does; nodes make one an hour.
            stage.store.keep_days(RETENTION).await?;
            let count = format!("select count(*) from pg_class where relname = '{day}'");
            stage.none("days are past their retention", &count).await
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::plan::plan;
    use super::*;

    #[test]
    fn who_crashes_and_who_is_killed_is_touched_and_nobody_else() {
        for cell in plan(3).into_iter().filter(Cell::is_in_mesh) {
            let touched = touched(&cell);
            assert!(!touched.contains(&cell.third()), "{}", cell.name());
            assert!(
                cell.action != Action::Crash || touched.contains(&cell.armed),
                "{}",
                cell.name()
            );
            let spared = matches!(cell.way, Way::Load | Way::LostClaim | Way::OldId | Way::Orphan);
            assert_eq!(
                spared && cell.action != Action::Crash,
                touched.is_empty(),
                "{}",
                cell.name()
            );
        }
    }
}
