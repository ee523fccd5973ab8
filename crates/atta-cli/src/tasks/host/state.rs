//! The state of the current process, and of the runs that were sent to it or will be. Does no input or output.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

use atta::Job;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::super::wire;
use super::{Answer, Refusal};

/// The start of a task, to wait for.
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
    /// Messages to send, except for runs. They have no meaning for another process.
    pub(super) messages: Vec<u8>,
    /// Runs to send.
    unsent: BTreeMap<u64, Vec<u8>>,
    /// Runs whose results are awaited, sent or not.
    running: HashMap<u64, Running>,
    /// Runs that were sent to the process and given up since, without a result.
    lost: HashSet<u64>,
    /// Pings without an answer.
    pings: HashSet<u64>,
    is_ready: bool,
    /// The process reports the start of runs that request it.
    reports_start: bool,
    /// Tasks that the process could not load, and why.
    broken: Vec<(String, String)>,
    condemned: Option<&'static str>,
}

struct Running {
    run: JobRun,
    answer: oneshot::Sender<Answer>,
    /// The task has started, as far as is known. A run without a time limit does not report its start, so it counts as
    /// started when it is sent.
    begun: CancellationToken,
}

/// The job of a run, for the log.
#[derive(Clone, Debug)]
pub(super) struct JobRun {
    pub(super) job: i64,
    pub(super) task: Arc<str>,
    pub(super) attempt: i16,
}

impl State {
    /// Numbers a run and queues it for sending. None: the process is not ready.
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
        let token = begun.clone();
        let run = JobRun { job: job.id(), task: job.task_identifier().into(), attempt: job.attempts() };
        self.running.insert(number, Running { run, answer, begun });
        Some((number, Begun { token }))
    }

    /// Nobody waits for this run any more. Returns whether the process must be told.
    pub(super) fn give_up(&mut self, run: u64) -> bool {
        if self.running.remove(&run).is_none() || self.unsent.remove(&run).is_some() {
            return false;
        }
        self.lost.insert(run);
        wire::abort(&mut self.messages, run);
        true
    }

    /// The number of runs that continue although they were given up.
    pub(super) fn lost(&self) -> usize {
        self.lost.len()
    }

    /// Takes everything that is to be sent, messages about the process itself first.
    pub(super) fn take_outgoing(&mut self, out: &mut Vec<u8>, most: usize) {
        out.append(&mut self.messages);
        self.messages.shrink_to(most);
        for (_, bytes) in std::mem::take(&mut self.unsent) {
            out.extend_from_slice(&bytes);
        }
    }

    pub(super) fn on_started(&mut self, run: u64) {
        if let Some(running) = self.running.get(&run) {
            running.begun.cancel();
        }
    }

    /// Returns whether somebody waited for the run.
    pub(super) fn answer(&mut self, run: u64, answer: Answer) -> bool {
        self.lost.remove(&run);
        match self.running.remove(&run) {
            // The receiver may have gone.
            Some(running) => {
                let _ = running.answer.send(answer);
                true
            }
            None => false,
        }
    }

    /// The job that a run executes.
    pub(super) fn job_of(&self, run: u64) -> Option<JobRun> {
        self.running.get(&run).map(|running| running.run.clone())
    }

    /// Requests a sign of life. None: the process is not ready, or the run is not sent, so there is nothing to check.
    pub(super) fn ping(&mut self, run: u64) -> Option<u64> {
        if !self.is_ready || self.unsent.contains_key(&run) {
            return None;
        }
        self.next_ping += 1;
        self.pings.insert(self.next_ping);
        wire::ping(&mut self.messages, self.next_ping, run);
        Some(self.next_ping)
    }

    /// Whether this ping has no answer yet, and may still get one.
    pub(super) fn awaits(&self, ping: u64) -> bool {
        self.pings.contains(&ping)
    }

    /// A pong without a number answers all pings.
    pub(super) fn on_pong(&mut self, ping: Option<u64>) {
        match ping {
            Some(ping) => drop(self.pings.remove(&ping)),
            None => self.pings.clear(),
        }
    }

    pub(super) fn on_unloaded(&mut self, task: String, error: String) {
        self.broken.push((task, error));
    }

    /// Returns the tasks that could not be loaded. None: the process was ready already.
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

    /// The process has ended, or the host was closed. Runs that may have started fail; all others are reported as not
    /// started.
    pub(super) fn end_process(&mut self, why: &str) {
        for (number, running) in std::mem::take(&mut self.running) {
            let may_have_begun = !self.unsent.contains_key(&number) && running.begun.is_cancelled();
            let answer = match may_have_begun {
                true => Answer::Failed(Refusal::new(why)),
                false => Answer::NotBegun,
            };
            // The receiver may have gone.
            let _ = running.answer.send(answer);
        }
        let (next_run, next_ping) = (self.next_run, self.next_ping);
        *self = State { next_run, next_ping, ..State::default() };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let now = "2026-01-01T00:00:00Z";
        serde_json::from_value(serde_json::json!({
            "id": 1, "task_id": 1, "task_identifier": "t", "job_queue_id": null, "queue_name": null, "payload": {}, "priority": 0,
            "run_at": now, "attempts": 1, "max_attempts": 25, "last_error": null, "created_at": now,
            "updated_at": now, "key": null, "locked_at": null, "locked_by": null, "revision": 0, "flags": null,
        }))
        .expect("a job")
    }

    fn ready() -> State {
        let mut state = State::default();
        assert!(state.become_ready(true).is_some_and(|broken| broken.is_empty()));
        state
    }

    fn begin(state: &mut State, is_limited: bool) -> (u64, oneshot::Receiver<Answer>) {
        let (answer, receiver) = oneshot::channel();
        let (number, _) = state.begin(&job(), is_limited, answer).expect("it is ready");
        (number, receiver)
    }

    fn send(state: &mut State) -> String {
        let mut out = Vec::new();
        state.take_outgoing(&mut out, 0);
        String::from_utf8(out).expect("UTF-8")
    }

    #[test]
    fn a_process_that_is_not_ready_gets_no_run() {
        let (mut state, (answer, _)) = (State::default(), oneshot::channel());
        assert!(state.begin(&job(), false, answer).is_none());
        assert!(state.ping(0).is_none());
        state.condemn("nobody");
        assert_eq!(state.take_condemned(), None);
    }

    #[test]
    fn a_run_that_is_given_up_before_it_is_sent_is_never_sent() {
        let mut state = ready();
        let (number, _receiver) = begin(&mut state, false);
        assert!(!state.give_up(number) && state.lost() == 0);
        assert_eq!(send(&mut state), "");
    }

    #[test]
    fn a_run_that_is_given_up_after_it_is_sent_is_aborted_and_lost_until_it_answers() {
        let mut state = ready();
        let (number, _receiver) = begin(&mut state, false);
        assert!(send(&mut state).starts_with("{\"run\":0,"));
        assert!(state.give_up(number) && state.lost() == 1);
        assert_eq!(send(&mut state), "{\"abort\":[0]}\n");
        assert!(!state.answer(number, Answer::Done) && state.lost() == 0);
    }

    /// When a process ends, runs that may have started fail; all others have not started.
    #[test]
    fn only_runs_that_may_have_started_fail_with_their_process() {
        let fails = |is_limited: bool, is_sent: bool, is_started: bool| {
            let mut state = ready();
            let (number, mut receiver) = begin(&mut state, is_limited);
            if is_sent {
                assert_eq!(send(&mut state).contains("report_start"), is_limited);
            }
            if is_started {
                state.on_started(number);
            }
            state.end_process("it died");
            matches!(receiver.try_recv(), Ok(Answer::Failed(_)))
        };
        for (is_limited, is_sent, is_started, expected) in [
            (false, false, false, false),
            (false, true, false, true),
            (true, false, false, false),
            (true, true, false, false),
            (true, true, true, true),
        ] {
            let case = format!("limited {is_limited}, sent {is_sent}, started {is_started}");
            assert_eq!(fails(is_limited, is_sent, is_started), expected, "{case}");
        }
    }

    #[test]
    fn numbers_are_never_used_twice_and_an_old_ping_is_answered_by_the_end() {
        let mut state = ready();
        let (first, _receiver) = begin(&mut state, false);
        send(&mut state);
        let ping = state.ping(first).expect("it is sent");
        assert!(state.awaits(ping));
        state.end_process("it died");
        assert!(!state.awaits(ping) && state.become_ready(false).is_some());
        assert!(begin(&mut state, true).0 > first);
        send(&mut state);
        let (one, other) = (state.ping(1).expect("it is sent"), state.ping(1).expect("it is sent"));
        state.on_pong(Some(other));
        assert!(state.awaits(one) && !state.awaits(other));
        state.on_pong(None);
        assert!(!state.awaits(one));
    }
}
