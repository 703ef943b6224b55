//! Values of a task's fields, each with what becomes of it over HTTP and in SQL.

use serde_json::Value;

use crate::json::MAX_BYTES;

/// What a submit over HTTP is answered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Http {
    /// 201.
    Taken,
    /// 422 `invalid`, which names the field.
    Refused,
    /// 400: with it the body is no JSON.
    NoJson,
    /// 413.
    TooLarge,
    /// HTTP has no such field.
    Absent,
}

/// What `ringmesh.enqueue` answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sql {
    /// The task's id.
    Taken,
    /// SQLSTATE 22023, with a message that begins with the argument's name.
    Refused,
    /// Another SQLSTATE of class 22 or 54: Postgres cannot read it as a value of the argument's type.
    Unreadable,
    /// SQL has no such argument, or cannot say this.
    Absent,
}

/// One value of one field.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) field: &'static str,
    /// As JSON text.
    pub(crate) value: String,
    pub(crate) http: Http,
    pub(crate) sql: Sql,
}

impl Row {
    /// A task as HTTP takes it, with this value.
    pub(crate) fn body(&self) -> String {
        let mut fields = String::new();
        for (field, value) in [("kind", r#""k""#), ("key", r#""a""#), ("payload", "null")] {
            if field != self.field {
                fields.push_str(&format!(r#""{field}":{value},"#));
            }
        }
        format!(r#"{{{fields}"{}":{}}}"#, self.field, self.value)
    }

    /// The value as a text for SQL, `None` for null.
    pub(crate) fn argument(&self) -> Option<String> {
        if self.field == "payload" {
            return Some(self.value.clone());
        }
        match serde_json::from_str(&self.value) {
            Ok(Value::String(text)) => Some(text),
            Ok(Value::Null) => None,
            _ => Some(self.value.clone()),
        }
    }
}

/// All of them.
pub(crate) fn rows() -> Vec<Row> {
    let fields = [
        keys(),
        kinds(),
        payloads(),
        times(),
        numbers(),
        idempotency_keys(),
    ];
    fields.into_iter().flatten().collect()
}

fn row(field: &'static str, value: impl Into<String>, http: Http, sql: Sql) -> Row {
    Row {
        field,
        value: value.into(),
        http,
        sql,
    }
}

fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}

/// Texts that are keys like any other, however they look.
pub(crate) fn good_keys() -> Vec<String> {
    let mut keys: Vec<String> = [
        "a",
        "A",
        "x y",
        " ",
        " a",
        "a ",
        "\t",
        "\n",
        "\r\nx-evil: 1",
        "\u{1}",
        "\u{7f}",
        "\u{85}",
        ".",
        "..",
        "../",
        "a/../b",
        "/",
        "//",
        "a/b",
        "a\\b",
        "%",
        "%%",
        "%2",
        "%zz",
        "%00",
        "%2e%2e",
        "%2F",
        "+",
        "a?b#c",
        "a;b",
        "a&b=c",
        "\\x41",
        "\\000",
        "\\",
        "'",
        "\"",
        "`",
        "$1",
        "$$",
        "{{7*7}}",
        "${jndi:ldap://x}",
        "%n%s%x",
        "<script>alert(1)</script>",
        "=1+1",
        "--help",
        "-1",
        "null",
        "true",
        "0",
        "NaN",
        "CON",
        "'; drop table ringmesh.task; --",
        "\\'; drop table ringmesh.task; --",
        "$$; drop table ringmesh.task; $$",
        "E'\\x41'",
        "U&'\\0041'",
        "ringmesh.task",
        "pg_catalog.pg_class",
        "caf\u{e9}",
        "cafe\u{301}",
        "\u{fb01}",
        "fi",
        "\u{130}",
        "i\u{307}",
        "\u{df}",
        "ss",
        "\u{1c5}",
        "\u{202e}\u{200b}",
        "\u{200d}",
        "\u{feff}",
        "\u{2028}",
        "\u{ffff}",
        "\u{10ffff}",
        "😀",
        "👨\u{200d}👩\u{200d}👧",
        "\u{5d0}\u{202d}a",
        "x-ringmesh-mac",
    ]
    .map(str::to_owned)
    .into();
    keys.extend([255, 256, 1_023, 1_024].map(|bytes| "x".repeat(bytes)));
    keys.push("é".repeat(512));
    keys.push("/../".repeat(256));
    keys
}

fn keys() -> Vec<Row> {
    let good = good_keys();
    let mut rows: Vec<Row> = good
        .iter()
        .map(|key| row("key", quoted(key), Http::Taken, Sql::Taken))
        .collect();
    for bytes in [0, 1_025, 2_704, 2_705, 8 << 10, 1 << 20] {
        rows.push(row(
            "key",
            quoted(&"x".repeat(bytes)),
            Http::Refused,
            Sql::Refused,
        ));
    }
    rows.push(row("key", quoted(&"é".repeat(513)), Http::Refused, Sql::Refused));
    for nul in ["\0", "a\0b", "\0a", "a\0"] {
        rows.push(row("key", quoted(nul), Http::Refused, Sql::Unreadable));
    }
    // Halves of pairs, and what is no text.
    for value in [
        r#""\ud800""#,
        r#""\udc00""#,
        r#""\ud800a""#,
        r#""\udc00\ud800""#,
        r#""\ud800\ud800""#,
        "7",
        "true",
        "[]",
        "{}",
        r#"["a"]"#,
    ] {
        rows.push(row("key", value, Http::Refused, Sql::Absent));
    }
    rows.push(row("key", "null", Http::Refused, Sql::Refused));
    // An escape that is none.
    for value in [r#""\x41""#, r#""\u12""#, "'a'", "a"] {
        rows.push(row("key", value, Http::NoJson, Sql::Absent));
    }
    rows
}

fn kinds() -> Vec<Row> {
    let good = [
        "k", "A-z_.:/9", "..", "../..", "//", "-", "--help", "a::b", "null",
    ]
    .map(str::to_owned);
    let mut rows: Vec<Row> = good
        .iter()
        .chain([&"x".repeat(128)])
        .map(|kind| row("kind", quoted(kind), Http::Taken, Sql::Taken))
        .collect();
    let long = ["x".repeat(129), "x".repeat(2_705), "x".repeat(1 << 20)];
    let bad = [
        "",
        " ",
        "a b",
        " a",
        "a\n",
        "\na",
        "a\r\nb",
        "\t",
        "a\u{7f}",
        "a\u{1b}[2J",
        "é",
        "日本",
        "\u{202e}a",
        "a\u{301}",
        "\u{feff}a",
        "a;b",
        "a'b",
        "a\"b",
        "$1",
        "a%b",
        "a\\b",
        "a,b",
        "a*",
        "a(b)",
        "a=b",
        "'; drop table ringmesh.task; --",
        "k$",
        "^k",
        "😀",
    ];
    for kind in bad.into_iter().chain(long.iter().map(String::as_str)) {
        rows.push(row("kind", quoted(kind), Http::Refused, Sql::Refused));
    }
    rows.push(row("kind", quoted("a\0"), Http::Refused, Sql::Unreadable));
    rows.push(row("kind", "null", Http::Refused, Sql::Refused));
    for value in ["1", "[]", r#""\ud800""#] {
        rows.push(row("kind", value, Http::Refused, Sql::Absent));
    }
    rows
}

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
pub(crate) fn payloads() -> Vec<Row> {
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

fn times() -> Vec<Row> {
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

fn numbers() -> Vec<Row> {
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

fn idempotency_keys() -> Vec<Row> {
    let mut rows = Vec::new();
    for good in [
        "x",
        " ",
        "é",
        "ID",
        "id",
        "../",
        "'; drop table ringmesh.idempotency; --",
        "a\r\nb",
        "\u{202e}",
        "null",
    ] {
        rows.push(row("idempotency_key", quoted(good), Http::Taken, Sql::Absent));
    }
    rows.push(row(
        "idempotency_key",
        quoted(&"x".repeat(255)),
        Http::Taken,
        Sql::Absent,
    ));
    rows.push(row("idempotency_key", "null", Http::Taken, Sql::Absent));
    for bytes in [0, 256, 2_705, 1 << 20] {
        rows.push(row(
            "idempotency_key",
            quoted(&"x".repeat(bytes)),
            Http::Refused,
            Sql::Absent,
        ));
    }
    for value in ["7", "true", "[]", "{}", r#""a\u0000""#, r#""\ud800""#] {
        rows.push(row("idempotency_key", value, Http::Refused, Sql::Absent));
    }
    rows
}
