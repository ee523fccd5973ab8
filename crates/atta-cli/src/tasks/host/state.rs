//! What is known of the process that lives now, and of the runs that it has or will be sent. No input or output in here.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use atta::Job;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::wire;
use super::{Answer, Refusal};

/// The start of a task, to be waited for.
#[derive(Clone, Debug)]
pub(super) struct Begun {
    token: CancellationToken,
}

impl Begun {
    /// Cancel safe.
    pub(super) async fn wait(self) {
        self.token.cancelled().await;
    }
}

#[derive(Default)]
pub(super) struct State {
    next_run: u64,
    next_ping: u64,
    /// Messages that are to be sent, but for runs. They mean nothing to another process.
    pub(super) words: Vec<u8>,
    /// Runs that are to be sent.
    unsent: BTreeMap<u64, Vec<u8>>,
    /// Runs whose answers are waited for, sent or not.
    running: HashMap<u64, Running>,
    /// Runs that the process was sent, and that were given up since, without an answer.
    lost: HashSet<u64>,
    /// Pings without an answer.
    pings: HashSet<u64>,
    is_ready: bool,
    /// The process reports the start of runs that ask for it.
    reports_start: bool,
    /// Tasks that the process could not load, with why.
    broken: Vec<(String, String)>,
    condemned: Option<&'static str>,
}

struct Running {
    job: i64,
    task: Arc<str>,
    answer: oneshot::Sender<Answer>,
    /// The task has begun, as far as is known. A run without a limit is not asked, and may have begun when it is sent.
    begun: CancellationToken,
}

impl State {
    /// Numbers a run and puts it in line. None: the process is not ready.
    pub(super) fn begin(
        &mut self,
        job: &Job,
        is_limited: bool,
        answer: oneshot::Sender<Answer>,
    ) -> Option<(u64, Begun)> {
        if !self.is_ready {
            return None;
        }
        let number = self.next_run;
        self.next_run += 1;
        let begun = CancellationToken::new();
        let asks = is_limited && self.reports_start;
        self.unsent.insert(number, wire::run(number, job, asks));
        if !asks {
            begun.cancel();
        }
        let (task, token) = (job.task_identifier().into(), begun.clone());
        self.running.insert(number, Running { job: job.id(), task, answer, begun });
        Some((number, Begun { token }))
    }

    /// Nobody waits for this run any more. Returns whether the process has to be told.
    pub(super) fn give_up(&mut self, run: u64) -> bool {
        if self.running.remove(&run).is_none() || self.unsent.remove(&run).is_some() {
            return false;
        }
        self.lost.insert(run);
        wire::abort(&mut self.words, run);
        true
    }

    /// Runs that go on although they were given up.
    pub(super) fn lost(&self) -> usize {
        self.lost.len()
    }

    /// Everything that is to be sent, messages about the process itself first.
    pub(super) fn take_outgoing(&mut self, out: &mut Vec<u8>, most: usize) {
        out.append(&mut self.words);
        self.words.shrink_to(most);
        for (_, bytes) in std::mem::take(&mut self.unsent) {
            out.extend_from_slice(&bytes);
        }
    }

    pub(super) fn on_started(&mut self, run: u64) {
        if let Some(running) = self.running.get(&run) {
            running.begun.cancel();
        }
    }

    /// Returns whether somebody waited for it.
    pub(super) fn answer(&mut self, run: u64, answer: Answer) -> bool {
        self.lost.remove(&run);
        match self.running.remove(&run) {
            // Whoever waited may have gone.
            Some(running) => {
                let _ = running.answer.send(answer);
                true
            }
            None => false,
        }
    }

    /// Which job it runs, and of which task.
    pub(super) fn job_of(&self, run: u64) -> Option<(i64, Arc<str>)> {
        self.running.get(&run).map(|running| (running.job, running.task.clone()))
    }

    /// Asks for a sign of life. None: the process is not ready, or the run is not sent, so there is nothing to ask.
    pub(super) fn ping(&mut self, run: u64) -> Option<u64> {
        if !self.is_ready || self.unsent.contains_key(&run) {
            return None;
        }
        self.next_ping += 1;
        self.pings.insert(self.next_ping);
        wire::ping(&mut self.words, self.next_ping, run);
        Some(self.next_ping)
    }

    /// Whether this ping has no answer yet, and may still get one.
    pub(super) fn awaits(&self, ping: u64) -> bool {
        self.pings.contains(&ping)
    }

    /// Without a number it answers all.
    pub(super) fn on_pong(&mut self, ping: Option<u64>) {
        match ping {
            Some(ping) => drop(self.pings.remove(&ping)),
            None => self.pings.clear(),
        }
    }

    pub(super) fn on_unloaded(&mut self, task: String, error: String) {
        self.broken.push((task, error));
    }

    /// Returns the tasks that could not be loaded. None: it was ready already.
    pub(super) fn become_ready(&mut self, reports_start: bool) -> Option<Vec<(String, String)>> {
        if self.is_ready {
            return None;
        }
        (self.is_ready, self.reports_start) = (true, reports_start);
        Some(self.broken.clone())
    }

    pub(super) fn is_ready(&self) -> bool {
        self.is_ready
    }

    pub(super) fn condemn(&mut self, why: &'static str) {
        self.condemned = self.is_ready.then_some(why);
    }

    pub(super) fn take_condemned(&mut self) -> Option<&'static str> {
        self.condemned.take()
    }

    /// The process has ended. What it may have begun fails; everything else has not begun. Returns whether it was ready.
    pub(super) fn end_process(&mut self, why: &str) -> bool {
        for (number, running) in std::mem::take(&mut self.running) {
            let may_have_begun = !self.unsent.contains_key(&number) && running.begun.is_cancelled();
            let answer = match may_have_begun {
                true => Answer::Failed(Refusal::new(why)),
                false => Answer::NotBegun,
            };
            // Whoever waited may have gone.
            let _ = running.answer.send(answer);
        }
        let was_ready = self.is_ready;
        let (next_run, next_ping) = (self.next_run, self.next_ping);
        *self = State { next_run, next_ping, ..State::default() };
        was_ready
    }

    /// The host was closed: no run is answered any more.
    pub(super) fn close(&mut self, why: &str) {
        self.end_process(why);
    }
}
