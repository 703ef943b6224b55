//! Values of a task's fields, each with what becomes of it over HTTP and in SQL.

use serde_json::Value;

use super::numbers::{numbers, times};
use super::payloads::payloads;

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

pub(super) fn row(field: &'static str, value: impl Into<String>, http: Http, sql: Sql) -> Row {
    Row {
        field,
        value: value.into(),
        http,
        sql,
    }
}

pub(super) fn quoted(text: &str) -> String {
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
