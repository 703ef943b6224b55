use clap::CommandFactory as _;

use super::*;

fn parse(line: &str) -> Result<Command, clap::Error> {
    Cli::try_parse_from(line.split_whitespace()).map(|cli| cli.command)
}

#[test]
fn the_commands_are_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_is_read() {
    for line in [
        "ringmesh dev --nodes 3",
        "ringmesh submit echo tenant-1 {} --priority 3 --delay 5s --max-attempts 2 --timeout 1m --wait 10s",
        "ringmesh submit --file - --resume import-1 --json",
        "ringmesh get 7-1 --wait 10s --url http://n1:7101",
        "ringmesh cancel 7-1 --token x",
        "ringmesh mesh --watch",
        "ringmesh slots --node n1",
        "ringmesh key tenant-1",
        "ringmesh drain n1 --wait",
        "ringmesh drain n1 --wait 5s",
        "ringmesh migrate --database-url postgres://localhost/app",
        "ringmesh config --ttl 5s --load-bound none --builtin-kinds false",
        "ringmesh health --url http://127.0.0.1:7101",
    ] {
        parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn wrong_use_is_refused() {
    for line in [
        "ringmesh",
        "ringmesh submit echo",
        "ringmesh submit echo k --priority 10",
        "ringmesh submit echo k --delay 5s --run-at 2030-01-01T00:00:00Z",
        "ringmesh submit --file x echo k",
        "ringmesh submit echo k --resume x",
        "ringmesh get 07-1",
        "ringmesh config --token hunter2",
        "ringmesh config --cluster-secret hunter2",
        "ringmesh config --tll 5s",
    ] {
        assert!(parse(line).is_err(), "{line}");
    }
}
