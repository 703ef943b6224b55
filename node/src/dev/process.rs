//! Children that end with this process, and signals to processes that this one started.
//!
//! On Linux a child asks the kernel for a signal at its parent's death (`PR_SET_PDEATHSIG`). The trap: "parent" is the
//! *thread* that spawned it, and a test's or a runtime's threads come and go. So all tied children are spawned by one
//! thread that lives as long as the process. A pipe that the child watches would be portable, but Postgres has no such
//! thing, and a child stopped by SIGSTOP would not notice.
//!
//! `std::process::Child` rather than Tokio's: the latter is bound to the runtime that spawned it, and a server that
//! several tests share outlives the runtime of the test that started it.

// kill, geteuid and pre_exec have no safe counterpart in std.
#![allow(unsafe_code)]

use std::io;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::{OnceLock, mpsc};
use std::time::{Duration, Instant};

/// How often the state of a process is looked at while something waits for it.
const LOOK: Duration = Duration::from_millis(5);

/// The signals used here.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// Ends it at once.
    Kill,
    /// Asks it to end.
    Terminate,
    /// As Ctrl-C does.
    Interrupt,
    /// To Postgres: an immediate shutdown.
    Quit,
    /// Stops it in its tracks.
    Stop,
    /// Lets it go on.
    Continue,
}

impl Signal {
    fn number(self) -> libc::c_int {
        match self {
            Self::Kill => libc::SIGKILL,
            Self::Terminate => libc::SIGTERM,
            Self::Interrupt => libc::SIGINT,
            Self::Quit => libc::SIGQUIT,
            Self::Stop => libc::SIGSTOP,
            Self::Continue => libc::SIGCONT,
        }
    }
}

/// The user that this process acts as.
pub(super) fn effective_uid() -> u32 {
    // SAFETY: it has no arguments and cannot fail.
    unsafe { libc::geteuid() }
}

fn send(pid: u32, signal: Signal) -> io::Result<()> {
    // 0 and negative numbers would mean groups of processes, 1 is init.
    let pid = i32::try_from(pid)
        .ok()
        .filter(|pid| *pid > 1)
        .ok_or(io::ErrorKind::InvalidInput)?;
    // SAFETY: plain system call without pointers.
    match unsafe { libc::kill(pid, signal.number()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether any process has this id, whoever owns it.
pub(super) fn exists(pid: u32) -> bool {
    let Ok(pid) = i32::try_from(pid) else { return false };
    // SAFETY: signal 0 only checks.
    pid > 0
        && (unsafe { libc::kill(pid, 0) } == 0
            || io::Error::last_os_error().raw_os_error() == Some(libc::EPERM))
}

/// A child in a process group of its own (a Ctrl-C in the terminal does not reach it), killed when this value drops.
#[derive(Debug)]
pub struct Tied {
    child: Child,
    ended: Option<ExitStatus>,
}

impl Tied {
    /// Spawns `command`. When this process dies in whatever way, the child gets `at_our_death` (Linux only).
    ///
    /// # Errors
    ///
    /// It could not be spawned; nothing runs.
    pub async fn spawn(mut command: Command, at_our_death: Signal) -> io::Result<Self> {
        command.process_group(0);
        die_with_parent(&mut command, at_our_death);
        let (reply, answer) = tokio::sync::oneshot::channel();
        let order = Box::new(move || {
            // An answer that nobody takes drops the `Tied`, which kills the child.
            let _ = reply.send(command.spawn().map(|child| Tied { child, ended: None }));
        });
        spawner()?
            .send(order)
            .map_err(|_| io::Error::other("the spawning thread has ended"))?;
        answer
            .await
            .map_err(|_| io::Error::other("the spawning thread has ended"))?
    }

    /// Its process id; it cannot be given to another process while this value lives.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// The exit status, once it has ended.
    pub fn try_wait(&mut self) -> Option<ExitStatus> {
        if self.ended.is_none() {
            self.ended = self.child.try_wait().ok().flatten();
        }
        self.ended
    }

    /// Sends a signal, unless it has ended already.
    ///
    /// # Errors
    ///
    /// The system refused it.
    pub fn signal(&mut self, signal: Signal) -> io::Result<()> {
        match self.try_wait() {
            // Until it is waited for, the pid cannot be given to another process.
            None => send(self.pid(), signal),
            Some(_) => Ok(()),
        }
    }

    /// Waits for its end. None: still there after `within`.
    pub async fn wait(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            match self.try_wait() {
                None if Instant::now() < deadline => tokio::time::sleep(LOOK).await,
                status => return status,
            }
        }
    }

    /// As [`Self::wait`], for `Drop`, which cannot await.
    pub fn wait_blocking(&mut self, within: Duration) -> Option<ExitStatus> {
        let deadline = Instant::now() + within;
        loop {
            match self.try_wait() {
                None if Instant::now() < deadline => std::thread::sleep(LOOK),
                status => return status,
            }
        }
    }

    /// Its children now.
    pub fn children(&self) -> Vec<Process> {
        all_processes()
            .into_iter()
            .filter(|process| process.parent == self.pid())
            .collect()
    }
}

impl Drop for Tied {
    fn drop(&mut self) {
        if self.try_wait().is_none() {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

type Order = Box<dyn FnOnce() + Send>;

/// The thread that spawns all tied children; see the top of this file.
fn spawner() -> io::Result<&'static mpsc::Sender<Order>> {
    static SPAWNER: OnceLock<Option<mpsc::Sender<Order>>> = OnceLock::new();
    let spawner = SPAWNER.get_or_init(|| {
        let (orders, inbox) = mpsc::channel::<Order>();
        let thread = std::thread::Builder::new().name("spawner".into());
        thread
            .spawn(move || inbox.into_iter().for_each(|order| order()))
            .ok()
            .map(|_| orders)
    });
    spawner
        .as_ref()
        .ok_or_else(|| io::Error::other("cannot start the spawning thread"))
}

#[cfg(target_os = "linux")]
fn die_with_parent(command: &mut Command, signal: Signal) {
    let parent = std::process::id();
    let number = signal.number();
    // SAFETY: the closure makes only async-signal-safe system calls and allocates nothing. std runs it after the change
    // of user, which would clear the setting.
    unsafe {
        command.pre_exec(move || {
            if libc::prctl(libc::PR_SET_PDEATHSIG, number) != 0 {
                return Err(io::Error::last_os_error());
            }
            // The parent may have died before the setting stood.
            if u32::try_from(libc::getppid()) != Ok(parent) {
                return Err(io::Error::from_raw_os_error(libc::ESRCH));
            }
            Ok(())
        });
    }
}

#[cfg(not(target_os = "linux"))]
fn die_with_parent(_: &mut Command, _: Signal) {}

/// A process seen in the system's table. Its start time tells it from a later one with the same pid.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    pid: u32,
    parent: u32,
    started: String,
    state: char,
}

impl Process {
    fn now(&self) -> Option<Process> {
        let now = if cfg!(target_os = "linux") {
            from_proc(self.pid)
        } else {
            all_processes()
                .into_iter()
                .find(|process| process.pid == self.pid)
        };
        now.filter(|now| now.started == self.started)
    }

    /// Whether it still runs (a zombie does not).
    pub fn runs(&self) -> bool {
        self.now().is_some_and(|now| !matches!(now.state, 'Z' | 'X'))
    }

    /// Whether it is stopped by a signal, or has ended.
    pub fn stands_still(&self) -> bool {
        self.now()
            .is_none_or(|now| matches!(now.state, 'T' | 't' | 'Z' | 'X'))
    }

    /// Sends a signal, unless it has ended already.
    ///
    /// # Errors
    ///
    /// The system refused it.
    pub fn signal(&self, signal: Signal) -> io::Result<()> {
        if !self.runs() {
            return Ok(());
        }
        match send(self.pid, signal) {
            Err(error) if error.raw_os_error() == Some(libc::ESRCH) => Ok(()),
            other => other,
        }
    }
}

/// Waits until `is_so` holds. False: not within that time.
pub async fn wait_until(within: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + within;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        tokio::time::sleep(LOOK).await;
    }
    true
}

/// Looks one process up. None: there is none, or the system does not tell.
pub fn process(pid: u32) -> Option<Process> {
    if cfg!(target_os = "linux") {
        from_proc(pid)
    } else {
        all_processes().into_iter().find(|process| process.pid == pid)
    }
}

fn all_processes() -> Vec<Process> {
    if cfg!(target_os = "linux") {
        let Ok(entries) = std::fs::read_dir("/proc") else {
            return Vec::new();
        };
        entries
            .flatten()
            .filter_map(|entry| from_proc(entry.file_name().to_str()?.parse().ok()?))
            .collect()
    } else {
        let table = Command::new("ps")
            .args(["-axo", "pid=,ppid=,state=,lstart="])
            .output();
        let Ok(table) = table else { return Vec::new() };
        String::from_utf8_lossy(&table.stdout)
            .lines()
            .filter_map(from_ps_line)
            .collect()
    }
}

/// `/proc/PID/stat`: `pid (name) state ppid …`, where the name may hold blanks and brackets; the 22nd is the start time.
fn from_proc(pid: u32) -> Option<Process> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    Some(Process {
        pid,
        state: fields.first()?.chars().next()?,
        parent: fields.get(1)?.parse().ok()?,
        started: (*fields.get(19)?).to_owned(),
    })
}

fn from_ps_line(line: &str) -> Option<Process> {
    let mut fields = line.split_ascii_whitespace();
    Some(Process {
        pid: fields.next()?.parse().ok()?,
        parent: fields.next()?.parse().ok()?,
        state: fields.next()?.chars().next()?,
        started: fields.collect::<Vec<_>>().join(" "),
    })
}
