use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::*;
use crate::dev::process::effective_uid;
use crate::dev::programs::output;

/// After so long without what it waits for, a test has failed.
const LIMIT: Duration = Duration::from_secs(60);

async fn psql(server: &Postgres, sql: &str) -> Result<String, String> {
    let mut psql = tokio::process::Command::new(server.programs.path("psql"));
    psql.args(["-qXAt", "-v", "ON_ERROR_STOP=1", "-c", sql, &server.url()])
        .envs(server.programs.environment());
    output(psql, LIMIT).await.map(|text| text.trim().to_owned())
}

/// All processes whose first ancestor is the server.
fn family(server: &Postgres) -> Vec<Process> {
    let process = server.process.as_ref().unwrap();
    let mut family = process.children();
    family.extend(process::process(process.pid()));
    family
}

#[tokio::test]
async fn started_server_answers_and_asks_for_a_password() {
    let server = Postgres::start(Options::for_tests()).await.unwrap();
    // Protocol 3.0, user and database; the answer is R (authentication) with 3 (a password, as
    // servers for tests take it: hashing it is slow in debug builds).
    let mut body = 196_608_i32.to_be_bytes().to_vec();
    body.extend_from_slice(b"user\0ringmesh\0database\0ringmesh\0\0");
    let mut packet = i32::try_from(body.len() + 4).unwrap().to_be_bytes().to_vec();
    packet.extend(body);
    let mut connection = std::net::TcpStream::connect(("127.0.0.1", server.port())).unwrap();
    connection.set_read_timeout(Some(LIMIT)).unwrap();
    connection.write_all(&packet).unwrap();
    let mut answer = [0; 9];
    connection.read_exact(&mut answer).unwrap();
    assert_eq!((answer[0], &answer[5..9]), (b'R', &3_i32.to_be_bytes()[..]));

    let facts = "select current_setting('server_encoding'), current_setting('timezone'), \
                 current_setting('max_connections'), current_database(), current_user";
    assert_eq!(
        psql(&server, facts).await.unwrap(),
        "UTF8|UTC|200|ringmesh|ringmesh"
    );
}

#[tokio::test]
async fn restart_keeps_the_data_and_the_url() {
    let mut server = Postgres::start(Options::for_tests()).await.unwrap();
    let (url, pid) = (server.url(), server.pid());
    psql(&server, "create table t as select 7 as x").await.unwrap();
    server.restart().await.unwrap();
    assert_eq!(psql(&server, "select x from t").await.unwrap(), "7");
    assert_eq!(server.url(), url);
    assert_ne!(server.pid(), pid);
}

#[tokio::test]
async fn commits_survive_a_killed_server() {
    let mut server = Postgres::start(Options::for_tests()).await.unwrap();
    psql(&server, "create table t as select 7 as x").await.unwrap();
    let family = family(&server);
    server.kill().await.unwrap();
    assert!(
        family.len() > 3 && family.iter().all(|process| !process.runs()),
        "{family:?}"
    );
    assert_eq!(server.pid(), None);
    server.restart().await.unwrap();
    assert_eq!(psql(&server, "select x from t").await.unwrap(), "7");
}

#[tokio::test]
async fn stop_leaves_no_process_and_drop_no_folder() {
    let mut server = Postgres::start(Options::for_tests()).await.unwrap();
    let (family, dir) = (family(&server), server.dir().to_owned());
    server.stop().await.unwrap();
    assert!(
        family.len() > 3 && family.iter().all(|process| !process.runs()),
        "{family:?}"
    );
    assert!(dir.join("data").exists());
    drop(server);
    assert!(!dir.exists());
}

#[tokio::test]
async fn drop_leaves_no_process_even_of_a_paused_server() {
    let mut server = Postgres::start(Options::for_tests()).await.unwrap();
    server.pause().await.unwrap();
    let family = family(&server);
    drop(server);
    assert!(
        family.len() > 3 && family.iter().all(|process| !process.runs()),
        "{family:?}"
    );
}

#[tokio::test]
async fn paused_server_answers_nobody_until_it_is_resumed() {
    let mut server = Postgres::start(Options::for_tests()).await.unwrap();
    server.pause().await.unwrap();
    assert!(family(&server).iter().all(Process::stands_still));
    let mut asked = Box::pin(psql(&server, "select 1"));
    assert!(
        tokio::time::timeout(Duration::from_millis(300), &mut asked)
            .await
            .is_err()
    );
    drop(asked);
    server.resume().unwrap();
    assert_eq!(psql(&server, "select 1").await.unwrap(), "1");
}

#[tokio::test]
async fn kept_folder_serves_the_next_start_on_the_same_url() {
    let options = Options {
        keep: true,
        ..Options::for_tests()
    };
    let mut first = Postgres::start(options.clone()).await.unwrap();
    let url = first.url();
    psql(&first, "create table t as select 7 as x").await.unwrap();
    // A crash leaves the pid file behind; here it even names a live process that is no server.
    first.kill().await.unwrap();
    let pid_file = first.home.data().join("postmaster.pid");
    let text = std::fs::read_to_string(&pid_file).unwrap();
    let (_, rest) = text.split_once('\n').unwrap();
    std::fs::write(&pid_file, format!("{}\n{rest}", std::process::id())).unwrap();
    drop(first);

    let second = Postgres::start(Options {
        keep: false,
        ..options
    })
    .await
    .unwrap();
    assert_eq!(second.url(), url);
    assert_eq!(psql(&second, "select x from t").await.unwrap(), "7");
}

#[tokio::test]
async fn server_that_another_process_started_is_waited_for_and_never_ended() {
    let server = Postgres::start(Options::for_tests()).await.unwrap();
    let family = family(&server);
    let mut stopped = std::mem::ManuallyDrop::new(server);
    // As a process that was killed leaves it: the server runs, nobody holds the folder.
    stopped.home.lock.unlock().unwrap();
    let dir = stopped.dir().to_owned();
    let next = Postgres::start(Options {
        dir,
        ..Options::for_tests()
    });
    let (next, ended) = tokio::join!(next, async {
        let early = wait_until(Duration::from_millis(300), || !family[0].runs()).await;
        stopped
            .process
            .as_mut()
            .unwrap()
            .signal(Signal::Interrupt)
            .unwrap();
        stopped.process.as_mut().unwrap().wait(FAST_STOP).await;
        early
    });
    assert!(!ended);
    assert_eq!(psql(&next.unwrap(), "select 1").await.unwrap(), "1");
}

#[tokio::test]
async fn folders_of_ended_test_processes_are_swept() {
    let mut ended = std::process::Command::new("true").spawn().unwrap();
    ended.wait().unwrap();
    let left = std::env::temp_dir().join(format!("{TEST_FOLDER}{}-0", ended.id()));
    std::fs::create_dir_all(left.join("data")).unwrap();
    let server = Postgres::start(Options::for_tests()).await.unwrap();
    assert!(!left.exists() && server.dir().exists());
}

#[tokio::test]
async fn folder_in_use_is_refused_and_its_server_left_alone() {
    let server = Postgres::start(Options::for_tests()).await.unwrap();
    let options = Options {
        dir: server.dir().to_owned(),
        ..Options::for_tests()
    };
    let error = Postgres::start(options).await.unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with(&format!("is in use by process {}", std::process::id())),
        "{error}"
    );
    assert_eq!(psql(&server, "select 1").await.unwrap(), "1");
}

#[tokio::test]
async fn folder_with_other_files_is_refused() {
    let options = Options::for_tests();
    std::fs::create_dir(&options.dir).unwrap();
    std::fs::write(options.dir.join("letter.txt"), "dear").unwrap();
    let error = Postgres::start(options.clone()).await.unwrap_err();
    assert!(matches!(error, Error::NotOurs { .. }), "{error}");
    assert!(options.dir.join("letter.txt").exists());
    std::fs::remove_dir_all(options.dir).unwrap();
}

#[tokio::test]
async fn taken_port_is_refused_by_name() {
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = taken.local_addr().unwrap().port();
    let options = Options {
        port: Some(port),
        ..Options::for_tests()
    };
    let error = Postgres::start(options.clone()).await.unwrap_err();
    assert!(
        error
            .to_string()
            .starts_with(&format!("port {port} on 127.0.0.1 (Postgres) is in use")),
        "{error}"
    );
}

#[tokio::test]
async fn given_settings_win() {
    let settings = vec![("max_connections".to_owned(), "17".to_owned())];
    let server = Postgres::start(Options {
        settings,
        ..Options::for_tests()
    })
    .await
    .unwrap();
    assert_eq!(psql(&server, "show max_connections").await.unwrap(), "17");
    assert_eq!(psql(&server, "show fsync").await.unwrap(), "off");
}

#[tokio::test]
async fn durable_server_syncs() {
    let server = Postgres::start(Options {
        durability: Durability::Real,
        ..Options::for_tests()
    })
    .await
    .unwrap();
    assert_eq!(
        psql(
            &server,
            "select current_setting('fsync') || current_setting('full_page_writes')"
        )
        .await
        .unwrap(),
        "onon"
    );
}

#[tokio::test]
async fn root_runs_the_server_as_another_user_who_can_reach_it() {
    if effective_uid() != 0 {
        return;
    }
    let closed = std::env::temp_dir().join(format!("ringmesh-closed-{}", std::process::id()));
    std::fs::create_dir(&closed).unwrap();
    std::fs::set_permissions(&closed, PermissionsExt::from_mode(0o700)).unwrap();
    let options = Options {
        dir: closed.join("postgres"),
        ..Options::for_tests()
    };
    let server = Postgres::start(options).await.unwrap();
    let dir = server.dir().to_owned();
    assert!(dir.starts_with("/var/tmp"), "{}", dir.display());
    assert_ne!(std::fs::metadata(server.home.data()).unwrap().uid(), 0);
    let status = std::fs::read_to_string(format!("/proc/{}/status", server.pid().unwrap())).unwrap();
    assert!(
        !status.lines().any(|line| line.starts_with("Uid:\t0")),
        "{status}"
    );
    assert_eq!(psql(&server, "select 1").await.unwrap(), "1");
    drop(server);
    assert!(!dir.exists());
    std::fs::remove_dir(&closed).unwrap();
}
