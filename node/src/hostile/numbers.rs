//! Times, numbers and durations at their limits and beyond; and fields that do not exist.

use super::tasks::{Http, Row, Sql, quoted, row};

pub(super) fn times() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut put = |http, sql, values: &[&str]| {
        rows.extend(values.iter().map(|value| row("run_at", quoted(value), http, sql)));
    };
    put(
        Http::Taken,
        Sql::Taken,
        &[
            "1970-01-01T00:00:00Z",
            "9999-12-31T23:59:59Z",
            "2030-01-01T00:00:00.000000001Z",
            "2030-01-01T00:00:00.999999999Z",
            "2030-01-01T02:00:00+14:00",
            "2030-01-01T02:00:00-12:00",
            "2016-12-31T23:59:60Z",
            "2028-02-29T00:00:00Z",
        ],
    );
    // Postgres knows no offset above 15:59:59.
    put(
        Http::Taken,
        Sql::Unreadable,
        &["2030-01-01T02:00:00-23:59", "2030-01-01T02:00:00+23:59"],
    );
    // Before 1970, without an offset, or in words: SQL's own notations.
    put(
        Http::Refused,
        Sql::Taken,
        &[
            "1969-12-31T23:59:59Z",
            "0001-01-01T00:00:00Z",
            "2030-01-01T00:00:00",
            "2030-03-31 02:30:00 Europe/Berlin",
            "2030-10-27 02:30:00 Europe/Berlin",
            "now",
            "epoch",
            "20300101",
        ],
    );
    put(
        Http::Refused,
        Sql::Refused,
        &[
            "10000-01-01T00:00:00Z",
            "294276-12-31T23:59:59Z",
            "9999-12-31T23:59:59.9999999Z",
            "9999-12-31T23:59:59-14:00",
            "infinity",
            "-infinity",
            "4000-01-01 BC",
        ],
    );
    put(
        Http::Refused,
        Sql::Unreadable,
        &[
            "",
            " ",
            "0000-01-01T00:00:00Z",
            "-2030-01-01T00:00:00Z",
            "294277-01-01T00:00:00Z",
            "2030-02-30T00:00:00Z",
            "2030-13-01T00:00:00Z",
            "2030-01-01T25:00:00Z",
            "2030-01-01T00:60:00Z",
            "2030-01-01T00:00:00+24:00",
            "2030-01-01T00:00:00Z; drop table ringmesh.task",
            "1893456000",
            "1e400",
            "NaN",
            "2030-01-01T00:00:00Z\0",
        ],
    );
    for value in ["1893456000", "true", "[]", r#"{"$date":0}"#] {
        rows.push(row("run_at", value, Http::Refused, Sql::Absent));
    }
    rows.push(row("run_at", "null", Http::Taken, Sql::Taken));
    rows
}

pub(super) fn numbers() -> Vec<Row> {
    let mut rows = Vec::new();
    let mut put = |field, http, sql, values: &[&str]| {
        rows.extend(values.iter().map(|value| row(field, *value, http, sql)));
    };
    put("priority", Http::Taken, Sql::Taken, &["0", "9"]);
    put("priority", Http::Taken, Sql::Refused, &["null"]);
    put(
        "priority",
        Http::Refused,
        Sql::Refused,
        &[
            "-1",
            "10",
            "127",
            "128",
            "255",
            "256",
            "32767",
            "32768",
            "-32769",
            "2147483647",
        ],
    );
    put(
        "priority",
        Http::Refused,
        Sql::Unreadable,
        &[
            "2147483648",
            "9223372036854775808",
            "-9223372036854775809",
            "1.0",
            "1e0",
            "1e400",
            r#""x""#,
            r#""""#,
            "true",
            "[1]",
        ],
    );
    put("priority", Http::Refused, Sql::Absent, &[r#""1""#]);
    put("max_attempts", Http::Taken, Sql::Taken, &["1", "1000"]);
    put("max_attempts", Http::Taken, Sql::Refused, &["null"]);
    put(
        "max_attempts",
        Http::Refused,
        Sql::Refused,
        &["0", "-1", "1001", "32768", "2147483647", "-2147483648"],
    );
    put(
        "max_attempts",
        Http::Refused,
        Sql::Unreadable,
        &[
            "2147483648",
            "4294967296",
            "9223372036854775808",
            "10.0",
            "1e3",
            r#""ten""#,
            "[]",
            "{}",
        ],
    );
    put("max_attempts", Http::Refused, Sql::Absent, &[r#""1""#]);
    put("timeout_ms", Http::Absent, Sql::Taken, &["1", "86400000"]);
    put(
        "timeout_ms",
        Http::Absent,
        Sql::Refused,
        &[
            "null",
            "0",
            "-1",
            "86400001",
            "2147483648",
            "9223372036854775807",
            "-9223372036854775808",
        ],
    );
    put(
        "timeout_ms",
        Http::Absent,
        Sql::Unreadable,
        &["9223372036854775808", "1.5", r#""1s""#, "1e3"],
    );
    put(
        "timeout",
        Http::Taken,
        Sql::Absent,
        &[
            "null",
            "0.001",
            "86400",
            r#""1ms""#,
            r#""24h""#,
            r#""1h30m""#,
            "0.0011",
            r#""90""#,
        ],
    );
    put(
        "timeout",
        Http::Refused,
        Sql::Absent,
        &[
            "0",
            "-0",
            "0.0005",
            "86400.001",
            "86401",
            "-1",
            "1e308",
            "1e400",
            "2147483648",
            "9223372036854775808",
            r#""-1s""#,
            r#""NaN""#,
            r#""inf""#,
            r#""1year""#,
            r#""""#,
            r#"" ""#,
            r#""1s\u0000""#,
            r#""99999999999999999999y""#,
            r#""1h 1h 1h 1x""#,
            "true",
            "[]",
            "{}",
            r#""\ud800""#,
        ],
    );
    put(
        "delay",
        Http::Taken,
        Sql::Absent,
        &[
            "null",
            "0",
            "-0",
            "0.0000001",
            "315576000",
            r#""9years""#,
            "1e-400",
        ],
    );
    put(
        "delay",
        Http::Refused,
        Sql::Absent,
        &[
            "-1",
            "-0.001",
            "315576001",
            "9223372036854775808",
            "1e308",
            "1e400",
            r#""-1s""#,
            r#""11years""#,
            r#""inf""#,
            r#""-inf""#,
            r#""NaN""#,
            r#""9223372036854775807s""#,
            r#""18446744073709551616s""#,
            r#""99999999999999999999y""#,
            r#""1 parsec""#,
            "[]",
            "false",
        ],
    );
    let long = quoted(&"1s ".repeat(100_000));
    put("delay", Http::Refused, Sql::Absent, &[&long]);
    put("timeout", Http::Refused, Sql::Absent, &[&long]);
    put("surprise", Http::Refused, Sql::Absent, &["1"]);
    put("Kind", Http::Refused, Sql::Absent, &["1"]);
    put("slot", Http::Refused, Sql::Absent, &["1"]);
    put("__proto__", Http::Refused, Sql::Absent, &["1"]);
    rows
}
