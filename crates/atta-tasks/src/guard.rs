//! Process groups: every child is the leader of one, so that it can be ended together with all processes that it has
//! started.
//!
//! The guard is another process of this program, which waits at the other end of a pipe and knows the groups. The pipe
//! closes when we end, in whatever way, including `kill -9`. Then the guard ends the groups that still run. It has a
//! process group of its own, so that Ctrl-C reaches us and not the guard.
//!
//! A program acts as the guard only if its `main` calls [`run_guard_if_requested`]. So no guard is started before that
//! call was made: a program without it would start a second time and do its own work. A shell as the guard would need
//! no call, but images of containers often have none, and it would be a second implementation.

use std::collections::HashSet;
use std::io::{self, BufRead};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use atta_cluster::Guard as GuardProcess;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// How often to check whether a group has ended.
const CHECK_INTERVAL: Duration = Duration::from_millis(10);

/// The argument that starts this program as a guard; the next one is the time between SIGTERM and SIGKILL, in seconds.
const WORD: &str = "atta-task-guard";

/// Whether this program acts as a guard if it is started as one.
static CAN_BE_GUARD: AtomicBool = AtomicBool::new(false);

/// Makes the guard possible: call this at the start of `main`, before anything else.
///
/// The guard is a second process of this program. It waits until the first has ended, in whatever way, then ends the
/// processes of tasks that still run, and exits. It is started with the first task process. In the guard, this function
/// does that work and does not return; otherwise it returns at once. The crate's documentation describes what happens
/// [without this call](crate#when-the-application-is-killed).
///
/// The program must be able to start again from its own path with other arguments.
pub fn run_guard_if_requested() {
    if serve() {
        std::process::exit(0);
    }
    CAN_BE_GUARD.store(true, Ordering::Relaxed);
}

/// Whether a guard can be started.
pub(super) fn is_possible() -> bool {
    CAN_BE_GUARD.load(Ordering::Relaxed)
}

/// Knows the groups of this process.
#[derive(Debug)]
pub(super) struct Guard {
    kill_after: Duration,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    groups: HashSet<Pid>,
    /// Started with the first group. Without it, the groups are ended only if we end in an orderly way.
    process: Option<GuardProcess>,
    is_missing: bool,
}

impl Guard {
    pub(super) fn new(kill_after: Duration) -> Guard {
        Guard { kill_after, state: Mutex::default() }
    }

    /// Registers the group of this leader.
    pub(super) fn watch(self: &Arc<Guard>, leader: Option<u32>) -> Option<Group> {
        let id = i32::try_from(leader?).ok().and_then(Pid::from_raw)?;
        let mut state = self.lock();
        state.groups.insert(id);
        if state.process.is_none() && !state.is_missing {
            state.start(self.kill_after);
        }
        state.send("add", id);
        Some(Group { id, guard: self.clone() })
    }

    /// Kills all groups that still run.
    pub(super) fn end_all(&self) {
        let mut state = self.lock();
        for id in std::mem::take(&mut state.groups) {
            // The group may have ended by itself.
            let _ = kill_process_group(id, Signal::KILL);
            state.send("end", id);
        }
        if let Some(mut process) = state.process.take() {
            // It has nothing left to do and ends at once.
            let _ = process.finish();
        }
    }

    fn forget(&self, id: Pid) {
        let mut state = self.lock();
        if state.groups.remove(&id) {
            state.send("end", id);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn start(&mut self, kill_after: Duration) {
        if !is_possible() {
            self.is_missing = true;
            return;
        }
        let started = std::env::current_exe().and_then(|program| {
            let mut command = Command::new(program);
            command.args([WORD, &kill_after.as_secs().max(1).to_string()]);
            GuardProcess::start(command.current_dir("/").stdout(Stdio::null()).stderr(Stdio::null()))
        });
        match started {
            Ok(process) => self.process = Some(process),
            Err(error) => {
                self.is_missing = true;
                tracing::warn!(%error, "the guard for the processes of tasks is not running: if this process is killed, executables keep running");
            }
        }
    }

    fn send(&mut self, word: &str, id: Pid) {
        if let Some(process) = &mut self.process {
            // If somebody has killed the guard, the write fails; we still end the groups ourselves.
            let _ = process.send(&format!("{word} {}", id.as_raw_nonzero()));
        }
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.end_all();
    }
}

/// Acts as the guard, if this process was started as one. Returns whether it was.
fn serve() -> bool {
    let mut words = std::env::args().skip(1);
    let (Some(WORD), Some(seconds)) = (words.next().as_deref(), words.next()) else { return false };
    let kill_after = Duration::from_secs(seconds.parse().unwrap_or(1));
    let mut groups = HashSet::new();
    for line in io::stdin().lock().lines().map_while(Result::ok) {
        let Some((word, id)) = line.split_once(' ') else { continue };
        let Some(id) = id.parse().ok().and_then(Pid::from_raw) else { continue };
        match word {
            "add" => groups.insert(id),
            _ => groups.remove(&id),
        };
    }
    end_groups(groups, kill_after);
    true
}

fn end_groups(mut groups: HashSet<Pid>, kill_after: Duration) {
    // An error means that the group has already ended.
    let signal_all = |groups: &HashSet<Pid>, signal| {
        groups.iter().for_each(|id| kill_process_group(*id, signal).unwrap_or_default());
    };
    signal_all(&groups, Signal::TERM);
    let start = Instant::now();
    while !groups.is_empty() && start.elapsed() < kill_after {
        std::thread::sleep(CHECK_INTERVAL);
        groups.retain(|id| test_kill_process_group(*id).is_ok());
    }
    signal_all(&groups, Signal::KILL);
}

/// A child and all processes that it has started. They are killed when this value is dropped, unless they have ended.
#[derive(Debug)]
pub(super) struct Group {
    id: Pid,
    guard: Arc<Guard>,
}

impl Group {
    pub(super) fn signal(&self, signal: Signal) {
        // An error means that the group has already ended.
        let _ = kill_process_group(self.id, signal);
    }

    /// Ends the processes that the leader left running: SIGTERM, and after a while SIGKILL. Returns whether there were
    /// any.
    pub(super) async fn end(self, kill_after: Duration) -> bool {
        if !self.is_alive() {
            return false;
        }
        self.signal(Signal::TERM);
        let start = Instant::now();
        while self.is_alive() && start.elapsed() < kill_after {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        true
        // Dropping `self` kills the rest.
    }

    fn is_alive(&self) -> bool {
        test_kill_process_group(self.id).is_ok()
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.guard.forget(self.id);
    }
}
