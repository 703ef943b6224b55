//! Hostile arguments of `ringmesh.enqueue`: refused by name, or kept as they are.

use sqlx::{AssertSqlSafe, Connection, PgConnection};

use super::testing_owner::Database;
use crate::hostile::tasks::{self, Row, Sql};
use crate::task::TaskId;

pub(crate) fn count() -> usize {
    let tasks = tasks::rows().iter().filter(|row| row.sql != Sql::Absent).count();
    tasks + EXPRESSIONS.len() + BY_HAND.len()
}

/// What only SQL can say: arguments, and what refuses them: an argument's name, or an SQLSTATE.
const EXPRESSIONS: &[(&str, &str)] = &[
    ("'k', convert_from('\\xff'::bytea, 'UTF8')", "22021"),
    ("'k', convert_from('\\xc0af'::bytea, 'UTF8')", "22021"),
    ("'k', convert_from('\\xeda080'::bytea, 'UTF8')", "22021"),
    ("'k', e'\\xff'", "22021"),
    ("'k', e'\\u0000'", "42601"),
    ("'k', U&'\\D800'", "42601"),
    ("'k', chr(0)", "54000"),
    ("'k', repeat('x', 10000000)", "key: "),
    ("'k', null", "key: "),
    ("null, 'a'", "kind: "),
    ("null, null", "key: "),
    ("repeat('x', 10000000), 'a'", "kind: "),
    ("'k', 'a', null", "payload: "),
    ("'k', 'a', to_jsonb(repeat('x', 10000000))", "payload: "),
    ("'k', 'a', to_jsonb('NaN'::float8)", ""),
    ("'k', 'a', to_jsonb('Infinity'::float8)", ""),
    ("'k', 'a', to_jsonb(10::numeric ^ 400)", "payload: "),
    ("'k', 'a', to_jsonb(-(10::numeric ^ 5000))", "payload: "),
    (
        "'k', 'a', to_jsonb(('179769313486231' || repeat('0', 294))::numeric)",
        "payload: ",
    ),
    (
        "'k', 'a', to_jsonb(('179769313486231' || repeat('0', 294))::numeric - 1)",
        "",
    ),
    ("'k', 'a', to_jsonb(array_fill(0, array[300000]))", ""),
    ("'k', 'a', '1', 'infinity'", "run_at: "),
    ("'k', 'a', '1', now() + interval '1000000 years'", "22008"),
    ("'k', 'a', '1', now() + interval '10000 years'", "run_at: "),
    ("'k', 'a', '1', null, 'NaN'::float8::integer", "22003"),
    ("'k', 'a', '1', null, 2147483647 + 1", "22003"),
    ("'k', 'a', '1', null, 0, 10, 9223372036854775807 + 1", "22003"),
    ("'k', 'a', nonsense => 1", "42883"),
    ("'k'", "42883"),
];

/// Rows for the table itself, which a role with the right to insert may write: what its checks refuse.
const BY_HAND: &[(&str, &str)] = &[
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', priority => 10",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', priority => -1",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', wait => 'soon'",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', run_at => 'infinity'",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', run_at => '-infinity'",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', run_at => '4000-01-01 BC'",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', max_attempts => 0",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', max_attempts => 1001",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', timeout_ms => 0",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => '1', timeout_ms => 86400001",
        "23514",
    ),
    (
        "slot => 1, key => 'k', kind => 'noop', payload => 'nonsense'",
        "22P02",
    ),
    ("slot => 1, key => null, kind => 'noop', payload => '1'", "23502"),
    (
        "slot => null, key => 'k', kind => 'noop', payload => '1'",
        "23502",
    ),
    ("slot => 1, key => 'k', kind => null, payload => '1'", "23502"),
    ("slot => 1, key => 'k', kind => 'noop', payload => null", "23502"),
    (
        "slot => 2147483648, key => 'k', kind => 'noop', payload => '1'",
        "22003",
    ),
];

/// The argument of a field, and its type.
fn parameter(row: &Row) -> (&'static str, &'static str) {
    match row.field {
        "key" => ("key", "text"),
        "kind" => ("kind", "text"),
        "payload" => ("payload", "jsonb"),
        "run_at" => ("run_at", "timestamptz"),
        "priority" => ("priority", "integer"),
        "max_attempts" => ("max_attempts", "integer"),
        "timeout_ms" => ("timeout_ms", "bigint"),
        other => panic!("SQL has no argument {other}"),
    }
}

/// The call with one value, which is its only parameter.
pub(crate) fn call(row: &Row) -> String {
    let (name, of_type) = parameter(row);
    let mut arguments = vec![format!("{name} => $1::text::{of_type}")];
    for (other, value) in [("kind", "'k'"), ("key", "'a'")] {
        if other != name {
            arguments.push(format!("{other} => {value}"));
        }
    }
    format!("select ringmesh.enqueue({})", arguments.join(", "))
}

async fn written(session: &mut PgConnection) -> i64 {
    let sql = "select (select count(*) from ringmesh.task) + (select count(*) from ringmesh.held_key)";
    sqlx::query_scalar(sql).fetch_one(session).await.unwrap()
}

/// The SQLSTATE and the message of a refusal.
fn refusal(error: &sqlx::Error) -> (String, String) {
    let error = error
        .as_database_error()
        .unwrap_or_else(|| panic!("no refusal: {error}"));
    (
        error.code().unwrap_or_default().into_owned(),
        error.message().to_owned(),
    )
}

#[tokio::test]
async fn every_value_of_every_argument_is_taken_or_refused_by_name() {
    let db = Database::new().await;
    let mut session = PgConnection::connect(&db.url).await.unwrap();
    let (mut taken, mut wrong) = (0, Vec::new());
    for row in tasks::rows() {
        if row.sql == Sql::Absent {
            continue;
        }
        let call = call(&row);
        let done: Result<String, _> = sqlx::query_scalar(AssertSqlSafe(call))
            .bind(row.argument())
            .fetch_one(&mut session)
            .await;
        let got = match &done {
            Ok(_) => Sql::Taken,
            Err(error) => match refusal(error) {
                (code, message) if code == "22023" && message.starts_with(&format!("{}: ", row.field)) => {
                    Sql::Refused
                }
                (code, _) if code != "22023" && (code.starts_with("22") || code.starts_with("54")) => {
                    Sql::Unreadable
                }
                other => panic!("{} {:.80}: {other:?}", row.field, row.value),
            },
        };
        if got != row.sql {
            wrong.push(format!(
                "{} {:.80} is {got:?} in place of {:?}: {done:.200?}",
                row.field, row.value, row.sql
            ));
        }
        if let Ok(id) = done {
            taken += 1;
            let id: TaskId = id.parse().unwrap();
            let kept = match row.field {
                "payload" => "payload::text = $2::jsonb::text",
                "key" => "key = $2 and slot = ringmesh.slot_of($2)",
                "kind" => "kind = $2",
                _ => "($2 <> '') is not false",
            };
            let kept = format!("select count(*) from ringmesh.task where id = $1 and {kept}");
            let kept: i64 = sqlx::query_scalar(AssertSqlSafe(kept))
                .bind(id.number)
                .bind(row.argument())
                .fetch_one(&mut session)
                .await
                .unwrap();
            assert_eq!(
                kept, 1,
                "{} {:.80} is not kept as it was given",
                row.field, row.value
            );
        }
        assert_eq!(
            written(&mut session).await,
            taken,
            "after {} {:.80}",
            row.field,
            row.value
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[tokio::test]
async fn what_only_sql_can_say_is_taken_or_refused() {
    let db = Database::new().await;
    let mut session = PgConnection::connect(&db.url).await.unwrap();
    let mut taken = 0;
    for (arguments, refused) in EXPRESSIONS {
        let done = sqlx::raw_sql(AssertSqlSafe(format!("select ringmesh.enqueue({arguments})")))
            .execute(&mut session)
            .await;
        match done {
            Ok(_) => {
                assert_eq!(*refused, "", "{arguments} was taken");
                taken += 1;
            }
            Err(error) => {
                let (code, message) = refusal(&error);
                let by_name = code == "22023" && !refused.is_empty() && message.starts_with(refused);
                assert!(by_name || code == *refused, "{arguments}: {code} {message}");
            }
        }
        assert_eq!(written(&mut session).await, taken, "after {arguments}");
    }
    for (row, refused) in BY_HAND {
        let (columns, values): (Vec<&str>, Vec<&str>) =
            row.split(", ").filter_map(|pair| pair.split_once(" => ")).unzip();
        let sql = format!(
            "insert into ringmesh.task ({}) values ({})",
            columns.join(", "),
            values.join(", ")
        );
        let error = sqlx::raw_sql(AssertSqlSafe(sql))
            .execute(&mut session)
            .await
            .unwrap_err();
        assert_eq!(refusal(&error).0, *refused, "{row}");
        assert_eq!(written(&mut session).await, taken, "after {row}");
    }
}
