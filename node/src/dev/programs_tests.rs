use super::*;
use crate::dev::postgres::{Durability, Options};

#[test]
fn major_version_is_read_from_what_postgres_prints() {
    assert_eq!(
        major("postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"),
        Some(15)
    );
    assert_eq!(major("postgres (PostgreSQL) 18beta1"), Some(18));
    assert_eq!(major("something else"), None);
}

#[test]
fn c_library_and_development_files_are_not_fetched() {
    let plan = "Inst libc6 [2.36-9] (2.36-10 Debian [amd64])\n\
                Inst libpq-dev [15.18] (15.20 Debian [amd64]) []\n\
                Inst libpq5 (15.20 Debian [amd64])\n\
                Inst libjson-perl (4.1 Debian [all])\n\
                Inst ssl-cert (1.1 Debian [all])\n\
                Inst postgresql-client-15 (15.20 Debian [amd64])\n\
                Inst postgresql-common (248 Debian [all])\n\
                Inst postgresql-15 (15.20 Debian [amd64])\n\
                Conf postgresql-15 (15.20 Debian [amd64])\n";
    let packages = debian::packages_of(plan, "postgresql-15");
    assert_eq!(packages, ["libpq5", "postgresql-client-15", "postgresql-15"]);
}

#[tokio::test]
async fn folder_without_the_programs_is_passed_over() {
    let mut search = Search {
        wanted: None,
        tried: Vec::new(),
        others: Vec::new(),
    };
    assert!(search.check("PATH", Path::new("/nonexistent")).await.is_none());
    let text = search.error(Path::new("x")).to_string();
    assert!(
        text.contains("apt install postgresql") && text.contains("/nonexistent holds no initdb"),
        "{text}"
    );
}

/// Needs a Debian-like machine that reaches its package mirror: `cargo test -p ringmesh --lib debian -- --ignored`.
#[tokio::test]
#[ignore = "downloads about 20 MB"]
async fn debian_packages_run_from_a_folder_without_being_installed() {
    let cache =
        private_folder(&std::env::temp_dir().join(format!("ringmesh-fetch-{}", std::process::id()))).unwrap();
    let bin = debian::fetch(&cache, None).await.unwrap();
    let programs = inspect(&bin).await.unwrap();
    assert!(programs.libraries.is_some());
    let dir = cache.join("server");
    // Durable, since the template of a build that goes again would stay behind.
    let options = Options {
        dir,
        durability: Durability::Real,
        ..Options::for_tests()
    };
    let mut server = crate::dev::Postgres::start_with(programs, options).await.unwrap();
    server.stop().await.unwrap();
    drop(server);
    std::fs::remove_dir_all(&cache).unwrap();
}
