//! The worker processes: starts them, ends them in every way, and starts them again.

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use testkit::{Process, SetClock, Signal};
use tokio::sync::Mutex as AsyncMutex;

use crate::ledger::{Ledger, with_name};
use crate::schedule::{FULL_DISK, NODE, WORKERS, WRONG_CLOCK};
use crate::worker::{self, CRONTAB, Setup};

/// Longer than the grace period.
const PATIENCE: Duration = Duration::from_secs(50);

pub(crate) struct Fleet {
    members: Vec<AsyncMutex<Member>>,
    pub(crate) clock: SetClock,
    /// The folder for the logs of the workers.
    folder: PathBuf,
    url: String,
    ledger_url: String,
    ledger: Ledger,
    history: Mutex<History>,
}

struct Member {
    number: usize,
    process: Option<Process>,
    starts: u32,
    /// SIGTERM was sent. The code that waited for the end may have been cancelled, if a violation has ended the
    /// schedule.
    is_asked_to_end: bool,
}

/// The history of the processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// When an instance was started.
    pub(crate) starts: HashMap<String, DateTime<Utc>>,
    /// A time at which the instance had certainly ended.
    pub(crate) ends: HashMap<String, DateTime<Utc>>,
    /// When the test unlocked jobs of Node's worker, as an operator has to.
    pub(crate) unlocks: Vec<DateTime<Utc>>,
    /// What workers of atta did that they never should.
    pub(crate) violations: Vec<String>,
    /// How often Node's worker ended by itself.
    pub(crate) node_ends: u32,
}

impl Fleet {
    pub(crate) fn new(folder: &Path, url: &str, ledger_url: &str) -> Fleet {
        let member =
            |number| AsyncMutex::new(Member { number, process: None, starts: 0, is_asked_to_end: false });
        Fleet {
            members: (0..WORKERS.len()).map(member).collect(),
            clock: SetClock::new(folder.join("clock")),
            folder: folder.into(),
            url: url.into(),
            ledger_url: ledger_url.into(),
            ledger: Ledger::connect(ledger_url),
            history: Mutex::default(),
        }
    }

    pub(crate) fn history(&self) -> History {
        self.history.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(crate) async fn start_all(&self) {
        for member in &self.members {
            self.start(&mut *member.lock().await);
        }
    }

    /// Sends `kill -9`, and starts another process.
    pub(crate) async fn kill(&self, number: usize) {
        let mut member = self.members[number].lock().await;
        self.kill_member(&mut member).await;
        self.start(&mut member);
    }

    /// Sends SIGTERM, and starts another process.
    pub(crate) async fn terminate(&self, number: usize) {
        let mut member = self.members[number].lock().await;
        self.terminate_member(&mut member).await;
        self.start(&mut member);
    }

    /// Sends SIGSTOP, and SIGCONT after `length`; then `kill -9` if `then_kill` is given.
    pub(crate) async fn freeze(&self, number: usize, length: Duration, then_kill: Option<Duration>) {
        let mut member = self.members[number].lock().await;
        self.signal(&mut member, Signal::Stop);
        tokio::time::sleep(length).await;
        self.signal(&mut member, Signal::Continue);
        let Some(pause) = then_kill else { return };
        tokio::time::sleep(pause).await;
        self.kill_member(&mut member).await;
        self.start(&mut member);
    }

    /// Sends SIGTERM to all, and starts no others.
    pub(crate) async fn end(&self) {
        for member in &self.members {
            self.terminate_member(&mut *member.lock().await).await;
        }
    }

    /// Starts workers again that ended by themselves, which no worker of atta should do.
    pub(crate) async fn watch(&self) {
        loop {
            tokio::time::sleep(Duration::from_millis(500)).await;
            for member in &self.members {
                // If the member is locked, another fault is acting on it.
                let Ok(mut member) = member.try_lock() else { continue };
                if member.process.as_mut().is_some_and(Process::has_ended) {
                    self.note_end(&mut member).await;
                    self.start(&mut member);
                }
            }
        }
    }

    fn signal(&self, member: &mut Member, signal: Signal) {
        if let Some(process) = &mut member.process
            && !process.has_ended()
        {
            process.signal(signal);
        }
    }

    async fn kill_member(&self, member: &mut Member) {
        if let Some(process) = &mut member.process {
            process.kill();
        }
        self.gone(member).await;
    }

    async fn terminate_member(&self, member: &mut Member) {
        let name = member.instance();
        let Some(process) = &mut member.process else { return };
        if process.has_ended() {
            return self.note_end(member).await;
        }
        process.signal(Signal::Terminate);
        member.is_asked_to_end = true;
        // The process may still be frozen, if a violation has ended the schedule.
        process.signal(Signal::Continue);
        let start = Instant::now();
        while !process.has_ended() {
            if start.elapsed() > PATIENCE {
                if member.number != NODE {
                    self.note(|history| {
                        history.violations.push(format!("{name} did not end within {PATIENCE:?} of SIGTERM"));
                    });
                }
                process.kill();
                break;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        self.gone(member).await;
    }

    async fn note_end(&self, member: &mut Member) {
        let name = member.instance();
        let is_node = member.number == NODE;
        self.note(|history| match is_node {
            true => history.node_ends += 1,
            false if member.is_asked_to_end => {}
            false => history
                .violations
                .push(format!("{name} ended by itself; its log is in {}", self.folder.display())),
        });
        self.gone(member).await;
    }

    /// Records that the process has ended.
    async fn gone(&self, member: &mut Member) {
        member.process = None;
        let name = member.instance();
        self.note(|history| {
            history.ends.insert(name, Utc::now());
        });
        if member.number == NODE {
            self.unlock_node().await;
        }
    }

    /// Unlocks the jobs of Node's worker: no worker can know that it is dead.
    pub(crate) async fn unlock_node(&self) {
        let sql = "select graphile_worker.force_unlock_workers(array_agg(owner.locked_by))
                   from (
                     select locked_by from graphile_worker._private_jobs
                     union
                     select locked_by from graphile_worker._private_job_queues
                   ) as owner
                   where owner.locked_by not like 'atta-%'
                   having count(*) > 0";
        // Taken before the statement, so that later claims of these jobs have a later time.
        let at = Utc::now();
        if !self.ledger.rows(sql, &[]).await.is_empty() {
            self.note(|history| history.unlocks.push(at));
        }
    }

    fn note(&self, change: impl FnOnce(&mut History)) {
        change(&mut self.history.lock().unwrap_or_else(PoisonError::into_inner));
    }

    fn start(&self, member: &mut Member) {
        member.starts += 1;
        member.is_asked_to_end = false;
        let instance = member.instance();
        self.note(|history| {
            history.starts.insert(instance, Utc::now());
        });
        let mut command = if member.number == NODE { self.node(member) } else { self.ours(member) };
        let log = if member.number == FULL_DISK {
            File::options().write(true).open("/dev/full")
        } else {
            File::options().append(true).create(true).open(self.folder.join(WORKERS[member.number]))
        };
        command.stderr(log.expect("a log"));
        member.process = Some(Process::start(&mut command));
    }

    fn ours(&self, member: &Member) -> Command {
        let setup = Setup {
            instance: member.instance(),
            url: with_name(&self.url, &member.instance()),
            ledger_url: self.ledger_url.clone(),
            is_durable: member.number == WRONG_CLOCK,
            has_cron: member.number != WRONG_CLOCK,
        };
        let mut command = Command::new(std::env::current_exe().expect("this process knows its binary"));
        command.env(worker::SETUP, serde_json::to_string(&setup).expect("a setup is JSON"));
        if member.number == WRONG_CLOCK {
            self.clock.give_to(&mut command);
        }
        command
    }

    fn node(&self, member: &Member) -> Command {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/compat/node");
        let mut command = Command::new(folder.join("node_modules/node/bin/node"));
        let (instance, url) = (member.instance(), with_name(&self.url, &member.instance()));
        command.args(["chaos.js", &instance, &url, &self.ledger_url, CRONTAB]);
        command.current_dir(folder);
        command
    }
}

impl Member {
    fn instance(&self) -> String {
        format!("{}.{}", WORKERS[self.number], self.starts)
    }
}
