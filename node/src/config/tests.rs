pub(crate) mod hostile;

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use super::*;

const SECRET: &str = "0123456789abcdef";

fn env(pairs: &[(&str, &str)]) -> Vec<(OsString, OsString)> {
    pairs
        .iter()
        .map(|(name, value)| ((*name).into(), (*value).into()))
        .collect()
}

/// A file that is removed at the end of its test.
struct TempFile(PathBuf);

impl TempFile {
    fn new(name: &str, text: &str) -> Self {
        let path = std::env::temp_dir().join(format!("ringmesh-{}-{name}", std::process::id()));
        std::fs::write(&path, text).unwrap();
        TempFile(path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn valid() -> Config {
    Config {
        database_url: "postgres://localhost/app".into(),
        ..Config::default()
    }
}

#[test]
fn the_default_needs_only_a_database() {
    assert_eq!(Config::default().validate().unwrap_err().option, "database_url");
    valid().validate().unwrap();
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let file = TempFile::new(
        "precedence.toml",
        "ttl = \"5s\"\nmargin = \"700ms\"\nroom = 9000\nload_bound = 2\nseeds = [\"a:1\", \"b:2\"]\nbuiltin_kinds = false",
    );
    let environment = env(&[
        ("RINGMESH_TTL", "6s"),
        ("RINGMESH_ROOM", "9001"),
        ("RINGMESH_TOKEN", ""),
        ("PATH", "x"),
    ]);
    let loaded = load(Some(&file.0), environment, &[("ttl", "7s")]).unwrap();
    let config = loaded.unchecked();
    assert_eq!(
        (config.ttl, loaded.source("ttl")),
        (Duration::from_secs(7), &Source::Flag("--ttl".to_owned()))
    );
    assert_eq!(
        (config.room, loaded.source("room")),
        (9001, &Source::Environment("RINGMESH_ROOM".to_owned()))
    );
    assert_eq!(
        (config.margin, loaded.source("margin")),
        (Duration::from_millis(700), &Source::File(file.0.clone()))
    );
    assert_eq!(
        (config.tick, loaded.source("tick")),
        (Duration::from_millis(500), &Source::Default)
    );
    assert_eq!(config.load_bound, Some(2.0));
    assert_eq!(config.seeds.show().unwrap(), "a:1,b:2");
    assert!(!config.builtin_kinds && config.token.is_none());
}

#[test]
fn what_nobody_knows_is_refused_with_the_nearest_name() {
    let text = |environment: &[(&str, &str)]| load(None, env(environment), &[]).unwrap_err().to_string();
    assert_eq!(
        text(&[("RINGMESH_TLL", "5s")]),
        "the environment variable RINGMESH_TLL is unknown; the nearest is RINGMESH_TTL"
    );
    // Only what is a secret may be in a file of its own.
    assert!(text(&[("RINGMESH_TTL_FILE", "/x")]).contains("RINGMESH_TTL_FILE is unknown"));
    let names = |environment: &[(&str, &str)]| check_names(env(environment));
    assert_eq!(
        names(&[("RINGMESH_TOKN", "x")]).unwrap_err().to_string(),
        "the environment variable RINGMESH_TOKN is unknown; the nearest is RINGMESH_TOKEN"
    );
    let known = [
        ("RINGMESH_TTL", "nonsense"),
        ("RINGMESH_TOKEN_FILE", "/x"),
        ("RINGMESH_URL", "u"),
    ];
    names(&known).unwrap();
    let file = TempFile::new("unknown.toml", "load-bound = 2");
    let error = load(Some(&file.0), [], &[]).unwrap_err().to_string();
    assert!(
        error.ends_with("is unknown; the nearest is load_bound"),
        "{error}"
    );
    for known in ENVIRONMENT {
        load(None, env(&[(known.0, "x")]), &[]).unwrap();
    }
}

#[test]
fn a_kubernetes_service_called_ringmesh_changes_nothing() {
    let environment = env(&[
        ("RINGMESH_SERVICE_HOST", "10.0.0.1"),
        ("RINGMESH_SERVICE_PORT_HTTP", "7101"),
        ("RINGMESH_PORT", "tcp://10.0.0.1:7101"),
        ("RINGMESH_PORT_7101_TCP_ADDR", "10.0.0.1"),
    ]);
    load(None, environment, &[]).unwrap();
}

#[test]
fn a_secret_may_stand_in_a_file_of_its_own_but_not_twice() {
    let file = TempFile::new("token", "0123456789abcdef\n");
    let path = file.0.to_str().unwrap();
    let loaded = load(None, env(&[("RINGMESH_TOKEN_FILE", path)]), &[]).unwrap();
    assert_eq!(loaded.unchecked().token.as_ref().unwrap().expose(), SECRET);
    let for_clients = token(env(&[
        ("RINGMESH_TOKEN_FILE", path),
        ("RINGMESH_TTL", "nonsense"),
    ]));
    assert_eq!(for_clients.unwrap().unwrap().expose(), SECRET);
    let both = load(
        None,
        env(&[("RINGMESH_TOKEN_FILE", path), ("RINGMESH_TOKEN", SECRET)]),
        &[],
    );
    assert!(matches!(both, Err(Error::Both(_))));
}

#[test]
fn no_error_and_no_debug_text_shows_a_secret() {
    let file = TempFile::new("secret.toml", "cluster_id = \"x\"\ntoken = \"hunter2hunter2");
    let error = load(Some(&file.0), [], &[]).unwrap_err();
    assert!(
        error.to_string().contains("line 2") && !format!("{error:?} {error}").contains("hunter2"),
        "{error}"
    );
    let mut config = valid();
    config.token = Some(Secret::new("hunter2".to_owned()));
    config.database_url = "postgres://me:hunter2@db:5432/app?password=hunter2".into();
    assert!(!format!("{config:?}{}", config.validate().unwrap_err()).contains("hunter2"));
    assert_eq!(
        config.database_url.to_string(),
        "postgres://me:***@db:5432/app?***"
    );
}

#[test]
fn a_value_of_another_type_says_what_is_expected() {
    let text = |name: &str, value: &str| load(None, env(&[(name, value)]), &[]).unwrap_err().to_string();
    assert_eq!(
        text("RINGMESH_TTL", "3"),
        "ttl: expected a duration such as 500ms, 3s or 7days, not \"3\" (from RINGMESH_TTL)"
    );
    for (name, value) in [
        ("RINGMESH_WEIGHT", "-1"),
        ("RINGMESH_ROOM", "4294967296"),
        ("RINGMESH_LISTEN", "localhost:7101"),
        ("RINGMESH_SEEDS", "a:1,b"),
        ("RINGMESH_ADVERTISE", "http://a:1"),
        ("RINGMESH_ADVERTISE", "a:0"),
        ("RINGMESH_LOAD_BOUND", "off"),
        ("RINGMESH_LOG_FORMAT", "pretty"),
    ] {
        assert!(text(name, value).contains("expected"), "{name}");
    }
}

type Change = fn(&mut Config);

#[test]
fn values_that_do_not_fit_are_refused() {
    for (option, change, part) in hostile::MISFITS {
        let mut config = valid();
        change(&mut config);
        let problems = config.problems();
        let told = |problem: &Problem| problem.option == *option && problem.text.contains(part);
        assert!(problems.iter().any(told), "{option}, {part}: {problems:?}");
        assert!(config.validate().is_err());
    }
}

#[test]
fn values_at_their_limits_are_taken() {
    let table: &[Change] = &[
        |c| c.ttl = 3 * c.renew_every,
        |c| c.load_bound = Some(1.0),
        |c| c.load_bound = None,
        |c| c.listen = "127.0.0.1:0".parse().unwrap(),
        |c| c.seeds = vec!["127.0.0.1:7201".parse().unwrap(), "node-2:7201".parse().unwrap()],
        |c| c.advertise = Some("localhost:7101".parse().unwrap()),
        |c| c.name = "A-z_0.9".to_owned(),
        |c| {
            c.listen = "0.0.0.0:7101".parse().unwrap();
            c.advertise = Some("[2001:db8::1]:7101".parse().unwrap());
            c.cluster_secret = Some(Secret::new(SECRET.to_owned()));
            c.token = Some(Secret::new(SECRET.to_owned()));
        },
    ];
    for (number, change) in table.iter().enumerate() {
        let mut config = valid();
        change(&mut config);
        config
            .validate()
            .unwrap_or_else(|problem| panic!("{number}: {problem}"));
    }
}

#[test]
fn a_broken_rule_names_where_its_value_comes_from() {
    let flags = [("database_url", "postgres://x"), ("ttl", "1s")];
    let error = load(None, [], &flags).unwrap().check().unwrap_err();
    assert_eq!(
        error.to_string(),
        "ttl: must be at least three times renew_every: 1s against 500ms (from --ttl)"
    );
}

#[test]
fn all_broken_rules_are_told_at_once_and_the_token_before_the_addresses() {
    let flags = [
        ("database_url", "postgres://x"),
        ("listen", "0.0.0.0:7101"),
        ("connections", "0"),
    ];
    let error = load(None, [], &flags).unwrap().check().unwrap_err().to_string();
    let options: Vec<&str> = error.lines().filter_map(|line| line.split(':').next()).collect();
    assert_eq!(options, ["cluster_secret", "token", "advertise", "connections"]);
}

#[test]
fn the_page_about_options_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/configuration.md");
    let page = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        page == markdown(),
        "docs/configuration.md is old; write it with: cargo run -- config --markdown > docs/configuration.md"
    );
}

#[test]
fn every_option_round_trips_through_its_text() {
    let config = Config::default();
    for option in OPTIONS.iter().filter(|option| !option.secret) {
        let Some(text) = option.show(&config) else {
            continue;
        };
        let loaded = load(None, env(&[(&option.variable(), &text)]), &[]).unwrap();
        assert_eq!(option.show(loaded.unchecked()), Some(text), "{}", option.name);
    }
}
