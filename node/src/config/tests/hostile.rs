//! Configurations that must not start a node: each is refused with the option named.

use super::*;

pub(crate) fn count() -> usize {
    MISFITS.len() + VARIABLES.len() + FILES.len()
}

const MS: Duration = Duration::from_millis(1);

/// Values that do not fit: the option that is told, the change of a valid configuration, and a part of the text.
pub(super) const MISFITS: &[(&str, Change, &str)] = &[
    ("name", |c| c.name = String::new(), "1 to 64"),
    ("name", |c| c.name = "a b".to_owned(), "\"a b\""),
    (
        "name",
        |c| c.name = "a'; drop table ringmesh.node; --".to_owned(),
        "1 to 64",
    ),
    ("name", |c| c.name = "x".repeat(65), "1 to 64"),
    ("cluster_id", |c| c.cluster_id = "a/b".to_owned(), "1 to 64"),
    (
        "database_url",
        |c| c.database_url = "mysql://x".into(),
        "postgres://",
    ),
    ("ttl", |c| c.ttl = Duration::ZERO, "three times renew_every"),
    ("ttl", |c| c.ttl = 400 * MS, "three times renew_every"),
    ("ttl", |c| c.ttl = 1499 * MS, "three times renew_every"),
    ("renew_every", |c| c.renew_every = Duration::ZERO, "above zero"),
    ("margin", |c| c.margin = Duration::ZERO, "above zero"),
    ("margin", |c| c.margin = 4000 * MS, "below ttl"),
    ("margin", |c| c.margin = 2500 * MS, "below ttl"),
    ("tokens", |c| c.tokens = 0, "1 to 4096"),
    ("load_bound", |c| c.load_bound = Some(0.99), "from 1 on"),
    ("load_bound", |c| c.load_bound = Some(f64::NAN), "from 1 on"),
    ("load_bound", |c| c.load_bound = Some(f64::INFINITY), "from 1 on"),
    ("weight", |c| c.weight = 0, "1 to 256"),
    ("weight", |c| c.weight = 257, "1 to 256"),
    ("tick", |c| c.tick = Duration::ZERO, "10ms to 1m"),
    (
        "backoff_min",
        |c| c.backoff_min = c.backoff_max * 2,
        "at most backoff_max",
    ),
    ("retention", |c| c.retention = Duration::from_secs(60), "1day"),
    (
        "idempotency_window",
        |c| c.idempotency_window = c.retention + MS,
        "at most retention",
    ),
    ("concurrency", |c| c.concurrency = 0, "from 1"),
    ("room", |c| c.room = c.concurrency - 1, "at least concurrency"),
    ("connections", |c| c.connections = 0, "from 1"),
    ("hot_connections", |c| c.hot_connections = 0, "from 1"),
    ("max_connections", |c| c.max_connections = 0, "from 16"),
    (
        "advertise",
        |c| c.listen = "0.0.0.0:7101".parse().unwrap(),
        "cannot reach",
    ),
    (
        "advertise",
        |c| c.advertise = Some("0.0.0.0:7101".parse().unwrap()),
        "unspecified",
    ),
    (
        "gossip_advertise",
        |c| c.gossip = "[::]:7201".parse().unwrap(),
        "cannot reach",
    ),
    (
        "gossip",
        |c| c.seeds = vec!["10.0.0.1:7201".parse().unwrap()],
        "cannot be reached",
    ),
    (
        "cluster_secret",
        |c| c.listen = "10.0.0.1:7101".parse().unwrap(),
        "10.0.0.1:7101",
    ),
    (
        "cluster_secret",
        |c| c.gossip = "10.0.0.1:7201".parse().unwrap(),
        "10.0.0.1:7201",
    ),
    (
        "cluster_secret",
        |c| c.advertise = Some("node-1:7101".parse().unwrap()),
        "node-1:7101",
    ),
    (
        "cluster_secret",
        |c| c.cluster_secret = Some(Secret::new("short".to_owned())),
        "16 or more",
    ),
    (
        "token",
        |c| c.token = Some(Secret::new("0123456789 abcdef".to_owned())),
        "without spaces",
    ),
    (
        "token",
        |c| {
            c.listen = "10.0.0.1:7101".parse().unwrap();
            c.cluster_secret = Some(Secret::new(SECRET.to_owned()));
        },
        "must be set",
    ),
    (
        "cluster_secret",
        |c| c.gossip_advertise = Some("node-1:7201".parse().unwrap()),
        "node-1:7201",
    ),
];

/// Variables, as a start finds them beside a valid database: the option that is told, and the variables.
const VARIABLES: &[(&str, &[(&str, &str)])] = &[
    ("ttl", &[("RINGMESH_TTL", "0s")]),
    ("ttl", &[("RINGMESH_TTL", "-3s")]),
    ("ttl", &[("RINGMESH_TTL", "3")]),
    ("ttl", &[("RINGMESH_TTL", "NaN")]),
    ("ttl", &[("RINGMESH_TTL", "1e3s")]),
    ("ttl", &[("RINGMESH_TTL", "18446744073709551616s")]),
    ("ttl", &[("RINGMESH_TTL", "100years")]),
    ("ttl", &[("RINGMESH_TTL", "3s 3s 3x")]),
    ("ttl", &[("RINGMESH_TTL", " ")]),
    ("ttl", &[("RINGMESH_TTL", "3s; drop table ringmesh.node")]),
    (
        "ttl",
        &[("RINGMESH_TTL", "1s"), ("RINGMESH_RENEW_EVERY", "500ms")],
    ),
    ("ttl", &[("RINGMESH_TTL", "11m")]),
    ("renew_every", &[("RINGMESH_RENEW_EVERY", "0s")]),
    ("renew_every", &[("RINGMESH_RENEW_EVERY", "1ns")]),
    ("ttl", &[("RINGMESH_RENEW_EVERY", "1h")]),
    ("margin", &[("RINGMESH_MARGIN", "0s")]),
    ("margin", &[("RINGMESH_MARGIN", "4s")]),
    ("margin", &[("RINGMESH_MARGIN", "100years")]),
    ("tick", &[("RINGMESH_TICK", "0s")]),
    ("tick", &[("RINGMESH_TICK", "1day")]),
    ("join_window", &[("RINGMESH_JOIN_WINDOW", "2m")]),
    ("drain_deadline", &[("RINGMESH_DRAIN_DEADLINE", "2days")]),
    ("run_grace", &[("RINGMESH_RUN_GRACE", "61m")]),
    ("backoff_min", &[("RINGMESH_BACKOFF_MIN", "0s")]),
    ("backoff_min", &[("RINGMESH_BACKOFF_MIN", "10m")]),
    ("backoff_max", &[("RINGMESH_BACKOFF_MAX", "1year")]),
    ("retention", &[("RINGMESH_RETENTION", "1h")]),
    ("retention", &[("RINGMESH_RETENTION", "11years")]),
    ("idempotency_window", &[("RINGMESH_IDEMPOTENCY_WINDOW", "0s")]),
    ("idempotency_window", &[("RINGMESH_IDEMPOTENCY_WINDOW", "8days")]),
    ("inbox_window", &[("RINGMESH_INBOX_WINDOW", "59s")]),
    ("name", &[("RINGMESH_NAME", "a b")]),
    ("name", &[("RINGMESH_NAME", "a/b")]),
    ("name", &[("RINGMESH_NAME", "..%2f")]),
    ("name", &[("RINGMESH_NAME", "a\r\nx-evil: 1")]),
    ("name", &[("RINGMESH_NAME", "a\u{1b}[2J")]),
    ("name", &[("RINGMESH_NAME", "n\u{f6}de")]),
    ("name", &[("RINGMESH_NAME", "\u{202e}a")]),
    ("name", &[("RINGMESH_NAME", "'; drop table ringmesh.node; --")]),
    ("cluster_id", &[("RINGMESH_CLUSTER_ID", "a b")]),
    (
        "cluster_id",
        &[("RINGMESH_CLUSTER_ID", "'; drop table ringmesh.node; --")],
    ),
    (
        "database_url",
        &[("RINGMESH_DATABASE_URL", "mysql://localhost/app")],
    ),
    ("database_url", &[("RINGMESH_DATABASE_URL", "localhost")]),
    ("database_url", &[("RINGMESH_DATABASE_URL", "file:///etc/passwd")]),
    (
        "database_url",
        &[("RINGMESH_DATABASE_URL", " postgres://localhost/app")],
    ),
    ("lease_url", &[("RINGMESH_LEASE_URL", "redis://localhost")]),
    ("pooler", &[("RINGMESH_POOLER", "statement")]),
    ("listen", &[("RINGMESH_LISTEN", "localhost:7101")]),
    ("listen", &[("RINGMESH_LISTEN", "127.0.0.1")]),
    ("listen", &[("RINGMESH_LISTEN", "127.0.0.1:65536")]),
    ("listen", &[("RINGMESH_LISTEN", "127.0.0.1:-1")]),
    ("listen", &[("RINGMESH_LISTEN", "256.0.0.1:7101")]),
    ("cluster_secret", &[("RINGMESH_LISTEN", "0.0.0.0:7101")]),
    (
        "token",
        &[
            ("RINGMESH_LISTEN", "0.0.0.0:7101"),
            ("RINGMESH_CLUSTER_SECRET", SECRET),
        ],
    ),
    (
        "advertise",
        &[
            ("RINGMESH_LISTEN", "0.0.0.0:7101"),
            ("RINGMESH_CLUSTER_SECRET", SECRET),
            ("RINGMESH_TOKEN", SECRET),
        ],
    ),
    ("cluster_secret", &[("RINGMESH_LISTEN", "[::ffff:10.0.0.1]:7101")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "http://a:1")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "a:0")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "a b:1")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "user@a:1")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "a/../b:1")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "a\r\nx:1")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "[::1:7101")]),
    ("advertise", &[("RINGMESH_ADVERTISE", "0.0.0.0:7101")]),
    ("gossip", &[("RINGMESH_GOSSIP", "gossip")]),
    ("gossip", &[("RINGMESH_SEEDS", "10.0.0.1:7201")]),
    (
        "gossip_advertise",
        &[
            ("RINGMESH_GOSSIP_ADVERTISE", "[::]:7201"),
            ("RINGMESH_CLUSTER_SECRET", SECRET),
        ],
    ),
    ("seeds", &[("RINGMESH_SEEDS", "a:1,b")]),
    ("seeds", &[("RINGMESH_SEEDS", "a:1;b:2")]),
    ("seeds", &[("RINGMESH_SEEDS", "a:99999")]),
    ("cluster_secret", &[("RINGMESH_CLUSTER_SECRET", "short")]),
    (
        "cluster_secret",
        &[("RINGMESH_CLUSTER_SECRET", "0123456789 abcdef")],
    ),
    (
        "cluster_secret",
        &[("RINGMESH_CLUSTER_SECRET", "0123456789abcd\u{e9}f")],
    ),
    ("token", &[("RINGMESH_TOKEN", "0123456789abcde")]),
    ("token", &[("RINGMESH_TOKEN", "0123456789abcdef\r\nx-evil: 1")]),
    ("weight", &[("RINGMESH_WEIGHT", "0")]),
    ("weight", &[("RINGMESH_WEIGHT", "-1")]),
    ("weight", &[("RINGMESH_WEIGHT", "257")]),
    ("weight", &[("RINGMESH_WEIGHT", "4294967296")]),
    ("weight", &[("RINGMESH_WEIGHT", "1.5")]),
    ("tokens", &[("RINGMESH_TOKENS", "0")]),
    ("tokens", &[("RINGMESH_TOKENS", "4097")]),
    ("load_bound", &[("RINGMESH_LOAD_BOUND", "0.99")]),
    ("load_bound", &[("RINGMESH_LOAD_BOUND", "-1")]),
    ("load_bound", &[("RINGMESH_LOAD_BOUND", "NaN")]),
    ("load_bound", &[("RINGMESH_LOAD_BOUND", "inf")]),
    ("load_bound", &[("RINGMESH_LOAD_BOUND", "1e400")]),
    ("load_bound", &[("RINGMESH_LOAD_BOUND", "off")]),
    ("concurrency", &[("RINGMESH_CONCURRENCY", "0")]),
    ("concurrency", &[("RINGMESH_CONCURRENCY", "4294967295")]),
    ("room", &[("RINGMESH_ROOM", "255")]),
    ("room", &[("RINGMESH_ROOM", "300")]),
    ("room", &[("RINGMESH_ROOM", "4294967296")]),
    ("cache_keys", &[("RINGMESH_CACHE_KEYS", "0")]),
    ("connections", &[("RINGMESH_CONNECTIONS", "0")]),
    ("connections", &[("RINGMESH_CONNECTIONS", "10001")]),
    ("hot_connections", &[("RINGMESH_HOT_CONNECTIONS", "0")]),
    ("max_connections", &[("RINGMESH_MAX_CONNECTIONS", "15")]),
    ("builtin_kinds", &[("RINGMESH_BUILTIN_KINDS", "yes")]),
    ("fault_kinds", &[("RINGMESH_FAULT_KINDS", "1")]),
    ("log_format", &[("RINGMESH_LOG_FORMAT", "pretty")]),
    // What nobody knows, and what is said twice.
    ("RINGMESH_SLOTS", &[("RINGMESH_SLOTS", "8")]),
    ("RINGMESH_TLL", &[("RINGMESH_TLL", "5s")]),
    ("RINGMESH_TTL_FILE", &[("RINGMESH_TTL_FILE", "/etc/passwd")]),
    ("RINGMESH_", &[("RINGMESH_", "1")]),
    ("RINGMESH_ttl", &[("RINGMESH_ttl", "1s")]),
    ("RINGMESH_\u{202e}", &[("RINGMESH_\u{202e}", "1")]),
    (
        "RINGMESH_TOKEN",
        &[
            ("RINGMESH_TOKEN", SECRET),
            ("RINGMESH_TOKEN_FILE", "/etc/hostname"),
        ],
    ),
    ("RINGMESH_TOKEN_FILE", &[("RINGMESH_TOKEN_FILE", "/nowhere")]),
    ("RINGMESH_TOKEN_FILE", &[("RINGMESH_TOKEN_FILE", "/")]),
];

/// Files: what is told, and the text.
const FILES: &[(&str, &str)] = &[
    ("line 1", "ttl"),
    ("line 1", "ttl = "),
    ("line 1", "= \"5s\""),
    ("line 1", "ttl = 5s"),
    ("line 2", "ttl = \"5s\"\nttl = \"6s\""),
    ("line 1", "\0"),
    ("line 1", "\u{feff}\u{feff}ttl = \"5s\""),
    ("line 1", "{\"ttl\": \"5s\"}"),
    ("line 1", "ttl: 5s"),
    ("line 1", "ttl = \"\"\"5s"),
    ("line 1", "ttl = \"\\ud800\""),
    ("line 1", "room = 9223372036854775808"),
    ("ttl", "ttl = 5"),
    ("ttl", "ttl = 0"),
    ("ttl", "ttl = -1"),
    ("ttl", "ttl = true"),
    ("ttl", "ttl = [\"5s\"]"),
    ("ttl", "ttl = 2030-01-01T00:00:00Z"),
    ("ttl", "[ttl]\nseconds = 5"),
    ("ttl", "ttl.seconds = 5"),
    ("ttl", "ttl = \"\""),
    ("room", "room = -1"),
    ("room", "room = 1.5"),
    ("room", "room = 9223372036854775807"),
    ("room", "room = \"many\""),
    ("load_bound", "load_bound = nan"),
    ("load_bound", "load_bound = inf"),
    ("load_bound", "load_bound = -0.0"),
    ("seeds", "seeds = \"a:1\""),
    ("seeds", "seeds = [1]"),
    ("seeds", "seeds = [[\"a:1\"]]"),
    ("seeds", "seeds = [\"a:1\", \"\"]"),
    ("name", "name = 7"),
    ("name", "name = \"a\\u0000b\""),
    ("name", "name = \"\""),
    ("token", "token = 1234567890123456"),
    ("cluster_secret", "cluster_secret = []"),
    ("database_url", "database_url = {host = \"a\"}"),
    ("the key slots", "slots = 8"),
    ("the key load-bound", "load-bound = 2"),
    ("the key TTL", "TTL = \"5s\""),
    ("the key ringmesh", "[ringmesh]\nttl = \"5s\""),
    ("the key __proto__", "__proto__ = 1"),
    ("the key ", "\"\" = 1"),
];

/// What a start says to a configuration, if it refuses.
fn refusal(file: Option<&std::path::Path>, variables: &[(&str, &str)]) -> Option<String> {
    let mut all = vec![("RINGMESH_DATABASE_URL", "postgres://me:hunter2@localhost/app")];
    all.retain(|(name, _)| variables.iter().all(|(other, _)| other != name));
    all.extend(variables);
    let checked = load(file, env(&all), &[]).and_then(Loaded::check);
    checked.err().map(|error| error.to_string())
}

#[test]
fn a_start_with_hostile_variables_is_refused_and_names_the_option() {
    assert_eq!(refusal(None, &[]), None);
    // Nobody but this host is listened to unless that is asked for.
    let default = Config::default();
    assert!(default.listen.ip().is_loopback() && default.gossip.ip().is_loopback());
    // The node itself may be among the seeds, so that all can share one list.
    assert_eq!(refusal(None, &[("RINGMESH_SEEDS", "127.0.0.1:7201")]), None);
    for (option, variables) in VARIABLES {
        let text = refusal(None, variables).unwrap_or_else(|| panic!("{variables:?} is taken"));
        let named = text.lines().any(|line| line.starts_with(&format!("{option}: ")))
            || (option.starts_with("RINGMESH_") && text.contains(option));
        assert!(named, "{variables:?}: {text}");
        assert!(!text.contains("hunter2") && !text.contains(SECRET), "{text}");
    }
}

#[test]
fn a_start_with_a_hostile_file_is_refused_and_names_the_line_or_the_option() {
    for (number, (told, text)) in FILES.iter().enumerate() {
        let file = TempFile::new(&format!("hostile-{number}.toml"), text);
        let said = refusal(Some(&file.0), &[]).unwrap_or_else(|| panic!("{text:?} is taken"));
        let named = said.starts_with(&format!("{told}: ")) || said.contains(told);
        assert!(named, "{text:?}: {said}");
    }
    let file = TempFile::new("hostile.toml", "");
    std::fs::write(&file.0, b"name = \"\xff\"").unwrap();
    assert!(refusal(Some(&file.0), &[]).is_some_and(|text| text.contains("cannot be read")));
    std::fs::write(&file.0, "a = ".to_owned() + &"[".repeat(1 << 20)).unwrap();
    assert!(refusal(Some(&file.0), &[]).is_some_and(|text| text.contains("line 1")));
}
