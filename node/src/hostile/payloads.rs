//! Payloads: JSON at its limits and beyond.

use super::tasks::{Http, Row, Sql, row};
use crate::json::MAX_BYTES;

fn nested(depth: usize, heart: &str) -> String {
    format!("{}{heart}{}", "[".repeat(depth), "]".repeat(depth))
}

fn objects(depth: usize) -> String {
    format!("{}1{}", r#"{"a":"#.repeat(depth), "}".repeat(depth))
}

fn text(bytes: usize) -> String {
    format!("\"{}\"", "x".repeat(bytes - 2))
}

/// What Postgres keeps in another writing than it was given is marked by its doors' tests, not here.
pub(super) fn payloads() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut put = |http, sql, values: &[&str]| {
        rows.extend(values.iter().map(|value| row("payload", *value, http, sql)));
    };
    put(
        Http::Taken,
        Sql::Taken,
        &[
            "null",
            "true",
            "false",
            "0",
            "-0",
            "0.0",
            "1.10",
            "1E5",
            "1e-400",
            "-1e-5",
            "9007199254740993",
            "9223372036854775807",
            "9223372036854775808",
            "-9223372036854775809",
            "18446744073709551616",
            "0.1000000000000000055511151231257827",
            "1.79769313486230e308",
            "5e-324",
            "\"\"",
            "[]",
            "{}",
            " 1 ",
            "\t[\n1\r]",
            r#"{"":1}"#,
            r#"{"__proto__":{"a":1},"constructor":1}"#,
            r#"{"a":1,"A":2,"a ":3}"#,
            r#"{"caf\u00e9":1,"cafe\u0301":2}"#,
            r#""\ud83d\ude00""#,
            r#""\"\\\/\b\f\n\r\t\u0001""#,
            "\"\u{7f}\u{feff}\u{2028}\u{202e}\u{ffff}\"",
            r#""\\u0000""#,
            r#""'; drop table ringmesh.task; --""#,
            r#""$1 %s {} ${x} <!--""#,
        ],
    );
    put(
        Http::Refused,
        Sql::Unreadable,
        &[
            r#""\u0000""#,
            r#"{"\u0000":1}"#,
            r#"["a",["\u0000"]]"#,
            r#""\ud800""#,
            r#""\udc00""#,
            r#""\ud800\u0041""#,
            r#""\udc00\ud800""#,
            r#"{"\ud800":1}"#,
        ],
    );
    put(
        Http::NoJson,
        Sql::Unreadable,
        &[
            "",
            " ",
            "NaN",
            "Infinity",
            "-Infinity",
            "+1",
            "01",
            "-01",
            ".5",
            "1.",
            "1e",
            "1e+",
            "0x10",
            "1_000",
            "--1",
            "'a'",
            "nul",
            "nulll",
            "True",
            "undefined",
            "[1,]",
            "[,]",
            "{,}",
            r#"{"a":1,}"#,
            "{a:1}",
            "{'a':1}",
            r#"{"a" 1}"#,
            "[1 2]",
            "[1",
            "[1}",
            "1 2",
            "1//c",
            "1/*c*/",
            "/**/1",
            "#1",
            "\"",
            r#""\x""#,
            r#""\u12""#,
            r#""\u12g4""#,
            "\"\n\"",
            "\"\u{1}\"",
            "\u{feff}1",
            "\u{a0}1",
            "\u{b}1",
            "[]]",
            "1;",
        ],
    );
    // What each reader would take otherwise. A value of jsonb has only the last of them: what SQL submits has one meaning already.
    put(
        Http::Refused,
        Sql::Taken,
        &[
            r#"{"a":1,"a":2}"#,
            r#"{"a":1,"\u0061":2}"#,
            r#"[{"b":{"a":1,"c":0,"a":{}}}]"#,
            r#"{"":1,"":1}"#,
        ],
    );
    // The largest 64-bit float. Written out by Postgres, not every reader takes it.
    put(
        Http::Taken,
        Sql::Refused,
        &["1.7976931348623157e308", "-1.7976931348623157e308"],
    );
    let written_out = format!("17976931348623157{}", "0".repeat(292));
    put(Http::Refused, Sql::Refused, &[&written_out]);
    put(
        Http::Taken,
        Sql::Taken,
        &[&format!("179769313486230{}", "9".repeat(294))],
    );
    // Beyond a 64-bit float, at the very edge too.
    let digits = "9".repeat(400);
    let edge = format!("1{}", "0".repeat(400));
    put(
        Http::Refused,
        Sql::Refused,
        &[
            "1e400",
            "-1e400",
            "1e309",
            "1.7976931348623159e308",
            &digits,
            &edge,
            &format!("[{digits}]"),
            r#"{"a":[1,{"b":-1e400}]}"#,
        ],
    );
    put(
        Http::Refused,
        Sql::Unreadable,
        &["1e131072", "1e99999999999", "-1e99999999999"],
    );
    // Digits that are no number.
    put(
        Http::Taken,
        Sql::Taken,
        &[&format!("\"{digits}\""), &format!("{{\"{digits}\":0.{digits}}}")],
    );
    put(
        Http::Taken,
        Sql::Taken,
        &[
            &nested(127, ""),
            &nested(127, "1"),
            &objects(127),
            &format!("\"{}\"", "[".repeat(100_000)),
            &format!("[0{}]", ",0".repeat(99_999)),
            &text(MAX_BYTES - 1),
            &text(MAX_BYTES),
        ],
    );
    put(
        Http::Refused,
        Sql::Refused,
        &[
            &nested(128, ""),
            &nested(127, "{}"),
            &objects(128),
            &format!("[{}]", objects(127)),
        ],
    );
    put(
        Http::Refused,
        Sql::Unreadable,
        &[&nested(100_000, ""), &nested(400_000, ""), &objects(150_000)],
    );
    // Written by Postgres, each key has a space more, and the whole is above the limit.
    let many: Vec<String> = (0..100_000).map(|n| format!("\"{n}\":0")).collect();
    put(Http::Taken, Sql::Refused, &[&format!("{{{}}}", many.join(","))]);
    put(
        Http::TooLarge,
        Sql::Refused,
        &[
            &text(MAX_BYTES + 1),
            &text(16 << 20),
            &format!("[0{}]", ",0".repeat(999_999)),
        ],
    );
    put(Http::TooLarge, Sql::Unreadable, &[&nested(1_000_000, "")]);
    rows
}
