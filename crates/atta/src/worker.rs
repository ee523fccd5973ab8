//! The worker: one task that owns the state, and selects over a closed set of events.
//!
//! The way of a job reads through this folder: [`wake`] hears that there may be jobs, [`claim`] takes them,
//! [`slots`] and [`run`] run them, [`release`] writes what became of them, [`shutdown`] brings it all to an end.
//! What happens when a worker can't do the last is in `recovery.rs`.
//!
//! The loop here decides, and lanes act. A lane is one errand to the database, of which two are on their way at a
//! time: it releases what has finished and claims for the slots that are free. `more` says that there may be due
//! jobs: hints set it, a claim that came back short of what it asked for leaves it unset, unless a hint came in
//! while it was away. So no wake-up is lost between "found nothing" and "go to sleep".

mod options;
mod wake;
mod claim;
mod slots;
mod run;
mod release;
mod shutdown;
mod flags;
mod shared;
mod backoff;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, mpsc};
use tokio::task::JoinSet;

pub use flags::ForbiddenFlags;
pub use options::{IntoCron, LocalQueueConfig, RefetchDelay, WorkerOptions};
pub(crate) use shared::Shared;
pub use shutdown::WorkerHandle;

use crate::db::pool;
use crate::event::{WorkerEvent, WorkerEvents};
use crate::{Error, Job, Result, WorkerUtils, recovery};
use backoff::Backoff;
use claim::claim_jobs;
use options::Plan;
use release::release;
use run::{Finished, Outcome};
use shutdown::Shutdown;
use slots::RunList;
use wake::Wake;

/// Errands to the database at a time: while one is away, the other can bring in what has finished since.
const LANES: usize = 2;

/// Outcomes that wait for the loop; a slot with one more waits until it has caught up.
const FINISHED_AHEAD: usize = 1024;

/// Hints that wait for the loop: more would not say more.
const WAKES_AHEAD: usize = 16;

/// In one-shot mode there is nobody to wait for a database that has gone.
const ONCE_TRIES: u32 = 8;

/// How often the locks of running jobs are renewed: Graphile takes those of four hours for dead.
const REFRESH: Duration = Duration::from_secs(3600);

/// A worker, ready to run.
#[derive(Debug)]
pub struct Worker {
    plan: Plan,
    shared: Arc<Shared>,
}

impl Worker {
    fn new(plan: Plan, shared: Shared) -> Worker {
        Worker { plan, shared: Arc::new(shared) }
    }

    /// Runs jobs until a shutdown is asked for, and then ends in good order.
    ///
    /// Errors of the database do not end it. Not cancel safe: ask for a shutdown by the [`WorkerHandle`] instead of
    /// dropping the future, or the jobs that it has stay locked until another worker finds it dead.
    pub async fn run(&self) -> Result<()> {
        self.run_mode(Mode::UntilShutdown).await
    }

    /// Runs the jobs that are due, and those that become due by it, until there are none left. No cron, no LISTEN.
    pub async fn run_once(&self) -> Result<()> {
        self.run_mode(Mode::UntilEmpty).await
    }

    /// Adds jobs and looks after them, on the worker's pool.
    pub fn create_utils(&self) -> WorkerUtils {
        self.shared.utils.clone()
    }

    /// Ends the worker from elsewhere.
    pub fn handle(&self) -> WorkerHandle {
        WorkerHandle::new(self.shared.clone())
    }

    /// What happens in the worker from now on.
    pub fn events(&self) -> WorkerEvents {
        self.shared.events.subscribe()
    }

    /// The name under which it locks jobs.
    pub fn id(&self) -> &str {
        &self.shared.worker_id
    }

    async fn run_mode(&self, mode: Mode) -> Result<()> {
        let shared = &self.shared;
        recovery::register(shared).await?;
        tracing::info!(worker = &*shared.worker_id, tasks = ?shared.task_identifiers, "worker started");
        shared.events.send(|| WorkerEvent::Started { worker_id: shared.worker_id.clone() });

        let (wake_sender, wakes) = mpsc::channel(WAKES_AHEAD);
        let look = Arc::new(Notify::new());
        let mut company = JoinSet::new();
        // Beats until the last job is released, so it is not one of those that the shutdown stops.
        let pulse = tokio::spawn(wake::pulse(shared.clone(), wake_sender.clone(), look.clone()));
        if mode == Mode::UntilShutdown {
            if let Some(config) = &self.plan.listen {
                company.spawn(wake::listen(
                    shared.clone(),
                    config.clone(),
                    wake_sender.clone(),
                    look.clone(),
                ));
            }
            if self.plan.listen_os_shutdown_signals {
                company.spawn(shutdown::watch_signals(shared.clone()));
            }
            self.plan.start_cron(shared, &mut company);
        }
        let ended = Loop::new(self, mode, wakes, look).run().await;

        if mode == Mode::UntilShutdown {
            shared.stop.cancel();
            shared.ended.cancel();
        }
        while company.join_next().await.is_some() {}
        pulse.abort();
        // Aborted or panicked, it has gone.
        let _ = pulse.await;
        shutdown::finish_hooks(shared).await;
        if let Err(error) = recovery::deregister(shared).await {
            tracing::warn!(%error, "could not deregister this worker; others will find it gone");
        }
        tracing::info!(worker = &*shared.worker_id, "worker stopped");
        shared.events.send(|| WorkerEvent::Stopped);
        ended
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    UntilShutdown,
    UntilEmpty,
}

/// What a lane came back with.
struct Errand {
    asked: usize,
    claimed: Option<Result<Vec<Job>>>,
    /// Nothing is marked as ours any more that we do not know of.
    is_settled: bool,
}

/// The state of a running worker.
struct Loop {
    shared: Arc<Shared>,
    mode: Mode,
    plan: Plan,
    wakes: mpsc::Receiver<Wake>,
    look: Arc<Notify>,
    list: Arc<RunList>,
    finished: mpsc::Receiver<Finished>,
    slots: JoinSet<()>,
    lanes: JoinSet<Errand>,
    /// Claimed and not yet back from a slot.
    running: HashMap<i64, Arc<Job>>,
    /// Asked for by lanes that are away.
    reserved: usize,
    /// Back from a slot and not yet on a lane.
    to_release: Vec<Finished>,
    release_at: Option<Instant>,
    more: bool,
    /// A claim went wrong in a way that leaves open whether it took jobs: they must be given back before the next.
    in_doubt: bool,
    /// A claim came back short, so only a look can tell when the next job is due.
    due_unknown: bool,
    next_due: Option<Instant>,
    /// Claims that found nothing although a job was due: others hold it.
    in_vain: Backoff,
    /// No claim before this time.
    not_before: Option<Instant>,
    claim_errors: Backoff,
    refresh_at: Instant,
    shutdown: Shutdown,
    error: Option<Error>,
}

impl Loop {
    fn new(worker: &Worker, mode: Mode, wakes: mpsc::Receiver<Wake>, look: Arc<Notify>) -> Loop {
        let shared = worker.shared.clone();
        let list = Arc::new(RunList::default());
        let (finished_sender, finished) = mpsc::channel(FINISHED_AHEAD);
        let slots = slots::start(&shared, shared.slots, &list, &finished_sender);
        Loop {
            shutdown: Shutdown::new(&worker.plan),
            plan: worker.plan.clone(),
            shared,
            mode,
            wakes,
            look,
            list,
            finished,
            slots,
            lanes: JoinSet::new(),
            running: HashMap::new(),
            reserved: 0,
            to_release: Vec::new(),
            release_at: None,
            more: true,
            in_doubt: false,
            due_unknown: false,
            next_due: None,
            in_vain: Backoff::default(),
            not_before: None,
            claim_errors: Backoff::default(),
            refresh_at: Instant::now() + REFRESH,
            error: None,
        }
    }

    async fn run(mut self) -> Result<()> {
        let mut batch = Vec::new();
        loop {
            self.send_lanes();
            if self.is_done() {
                break;
            }
            let timer = self.next_timer();
            tokio::select! {
                Some(errand) = self.lanes.join_next() => self.on_errand(errand),
                count = self.finished.recv_many(&mut batch, FINISHED_AHEAD) => {
                    debug_assert!(count > 0, "the slots hold senders");
                    self.on_finished(&mut batch);
                }
                Some(wake) = self.wakes.recv() => self.on_wake(wake),
                () = tokio::time::sleep_until(timer.into()) => self.on_timer(),
                () = self.shared.stop.cancelled(), if !self.shutdown.has_begun() => self.begin_shutdown(),
                () = self.shared.abort.cancelled(), if !self.shutdown.is_aborting() => self.begin_abort(),
            }
        }
        self.slots.abort_all();
        self.error.map_or(Ok(()), Err)
    }

    /// Sends out what there is to do, as far as lanes are free.
    fn send_lanes(&mut self) {
        if self.in_doubt {
            // Only when no lane is away is everything known that this worker has.
            if self.lanes.is_empty() && !self.is_pausing() {
                let known = self.running.keys().copied();
                let known = known.chain(self.to_release.iter().map(|one| one.job.id)).collect();
                self.lanes.spawn(settle(self.shared.clone(), known));
            }
            return;
        }
        while self.lanes.len() < LANES {
            let due = self.release_at.is_some_and(|time| time <= Instant::now()) || self.shutdown.has_begun();
            let release = if due { std::mem::take(&mut self.to_release) } else { Vec::new() };
            if !release.is_empty() {
                self.release_at = None;
            }
            let asked = self.room();
            if release.is_empty() && asked == 0 {
                break;
            }
            if asked > 0 {
                self.more = false;
                self.reserved += asked;
                self.shared.events.send(|| WorkerEvent::ClaimStarted);
            }
            let shared = self.shared.clone();
            self.lanes.spawn(errand(shared, release, asked));
        }
        if self.due_unknown && !self.more && self.lanes.is_empty() {
            self.due_unknown = false;
            self.look.notify_one();
        }
    }

    /// How many jobs may be claimed now.
    fn room(&self) -> usize {
        let may = self.more && !self.shutdown.has_begun() && self.error.is_none();
        if !may || self.is_pausing() {
            return 0;
        }
        (self.shared.slots + self.plan.local_queue_size()).saturating_sub(self.running.len() + self.reserved)
    }

    fn is_pausing(&self) -> bool {
        self.not_before.is_some_and(|time| time > Instant::now())
    }

    fn on_errand(&mut self, errand: Result<Errand, tokio::task::JoinError>) {
        let Errand { asked, claimed, is_settled } = match errand {
            Ok(errand) => errand,
            // Nothing in a lane panics; if it does, its claims are found by the recovery once this worker is gone.
            Err(error) => {
                self.error = Some(Error::config(format!("a lane of the worker panicked: {error}")));
                self.shared.stop.cancel();
                return;
            }
        };
        self.reserved -= asked;
        self.in_doubt &= !is_settled;
        match claimed {
            None => {}
            Some(Ok(jobs)) => self.on_claimed(asked, jobs),
            Some(Err(error)) => self.on_claim_error(error),
        }
    }

    fn on_claimed(&mut self, asked: usize, jobs: Vec<Job>) {
        self.claim_errors = Backoff::default();
        let count = jobs.len();
        if count == asked {
            self.more = true;
        } else {
            self.due_unknown = true;
            self.not_before = self.plan.pause_after_short_claim(count);
        }
        if count == 0 {
            self.shared.events.send(|| WorkerEvent::ClaimEmpty);
            return;
        }
        self.in_vain = Backoff::default();
        let jobs: Vec<Arc<Job>> = jobs.into_iter().map(Arc::new).collect();
        self.running.extend(jobs.iter().map(|job| (job.id, job.clone())));
        self.list.push(jobs);
        if self.shutdown.has_begun() {
            self.give_back_unstarted();
        }
    }

    fn on_claim_error(&mut self, error: Error) {
        tracing::warn!(%error, "could not claim jobs, trying again");
        self.shared.events.send(|| WorkerEvent::ClaimFailed { error: error.to_string().into() });
        self.not_before = Some(Instant::now() + self.claim_errors.next());
        self.more = true;
        // A refusal took nothing; an end of the connection may have come after the commit.
        self.in_doubt |= error.db_code().is_none_or(|code| code.starts_with("08") || code.starts_with("57P"));
        if self.mode == Mode::UntilEmpty && self.claim_errors.tries() >= ONCE_TRIES {
            self.error = Some(error);
        }
    }

    fn on_finished(&mut self, batch: &mut Vec<Finished>) {
        for finished in batch.drain(..) {
            // One that was given back in the meantime, because it would not end, is no longer ours to release.
            if self.running.remove(&finished.job.id).is_some() {
                self.queue_release(finished);
            }
        }
    }

    fn queue_release(&mut self, finished: Finished) {
        // Its queue is free for the next job, and a failed job becomes due again.
        self.more |= finished.job.job_queue_id.is_some();
        self.due_unknown |= matches!(finished.outcome, Outcome::Failed(_) | Outcome::Interrupted);
        let delay = self.plan.release_delay(&finished.outcome);
        let time = Instant::now() + delay;
        self.release_at = Some(self.release_at.map_or(time, |earlier| earlier.min(time)));
        self.to_release.push(finished);
    }

    fn on_wake(&mut self, wake: Wake) {
        match wake {
            Wake::Hint => {
                self.more = true;
                self.plan.cut_pause_short(&mut self.not_before);
            }
            Wake::Due(None) => self.next_due = None,
            Wake::Due(Some(due)) if due <= Instant::now() => {
                // Due, and yet not claimed: the first time at once, then less and less often.
                let pause = if self.in_vain.tries() == 0 { Duration::ZERO } else { self.in_vain.next() };
                self.in_vain.next();
                self.next_due = Some(Instant::now() + pause.min(self.shared.poll_interval));
            }
            Wake::Due(Some(due)) => self.next_due = Some(due),
            Wake::Stop(reason) => {
                self.error.get_or_insert_with(|| {
                    Error::config(reason).with_hint("install a newer version of atta")
                });
                self.shared.stop.cancel();
            }
        }
    }

    fn next_timer(&self) -> Instant {
        let now = Instant::now();
        let times = [
            self.next_due,
            self.release_at,
            // Only as long as it holds something up.
            self.not_before.filter(|time| self.more && *time > now),
            self.plan.oldest_wait(now),
            self.shutdown.next_step(),
            Some(self.refresh_at),
        ];
        times.into_iter().flatten().min().unwrap_or(now + REFRESH)
    }

    fn on_timer(&mut self) {
        let now = Instant::now();
        if self.next_due.is_some_and(|due| due <= now) {
            self.next_due = None;
            self.more = true;
        }
        if let Some(before) = self.plan.local_queue_ttl().and_then(|ttl| now.checked_sub(ttl)) {
            let old = self.list.take_older_than(before);
            self.give_back(old, || Outcome::NotStarted);
        }
        if self.refresh_at <= now {
            self.refresh_at = now + REFRESH;
            let ids: Vec<i64> = self.running.keys().copied().collect();
            self.lanes.spawn(refresh(self.shared.clone(), ids));
        }
        if self.shutdown.has_begun() {
            self.step_shutdown(now);
        }
    }

    fn is_done(&self) -> bool {
        let is_settled = !self.in_doubt || self.error.is_some() || self.shared.leave.is_cancelled();
        let idle =
            self.running.is_empty() && self.to_release.is_empty() && self.lanes.is_empty() && is_settled;
        idle && match self.mode {
            Mode::UntilShutdown => self.shutdown.has_begun(),
            Mode::UntilEmpty => self.shutdown.has_begun() || !self.more || self.error.is_some(),
        }
    }

    fn begin_shutdown(&mut self) {
        self.shutdown.begin();
        self.give_back_unstarted();
    }

    fn begin_abort(&mut self) {
        self.shutdown.abort_now();
        self.give_back_unstarted();
    }

    fn give_back_unstarted(&mut self) {
        let unstarted = self.list.take_all();
        self.give_back(unstarted, || Outcome::NotStarted);
    }

    fn give_back(&mut self, jobs: Vec<Arc<Job>>, outcome: impl Fn() -> Outcome) {
        for job in jobs {
            if self.running.remove(&job.id).is_some() {
                self.queue_release(Finished { job, outcome: outcome(), duration: Duration::ZERO });
            }
        }
    }

    fn step_shutdown(&mut self, now: Instant) {
        match self.shutdown.step(now) {
            shutdown::Step::Wait => {}
            shutdown::Step::Tell => self.shared.cancel.cancel(),
            shutdown::Step::Abort => {
                self.shared.cancel.cancel();
                self.shared.abort.cancel();
            }
            shutdown::Step::Abandon => {
                // They do not even yield. What they hold is given back, and what they do later changes nothing.
                let jobs: Vec<Arc<Job>> = self.running.values().cloned().collect();
                tracing::error!(
                    jobs = jobs.len(),
                    "tasks did not end when told to; their jobs are given back"
                );
                self.give_back(jobs, || Outcome::Interrupted);
            }
            shutdown::Step::Leave => {
                tracing::error!("the database did not answer; locks are left for other workers to recover");
                self.shared.leave.cancel();
            }
        }
    }
}

/// One errand: releases, and claims. A queue is free for the claim only when its job is released, so then the one
/// waits for the other.
async fn errand(shared: Arc<Shared>, finished: Vec<Finished>, asked: usize) -> Errand {
    let claim = async {
        if asked == 0 {
            return None;
        }
        Some(match pool::get(shared.utils.pool(), "claiming jobs").await {
            Ok(client) => claim_jobs(&shared, &client, asked).await,
            Err(error) => Err(error),
        })
    };
    let frees_a_queue = finished.iter().any(|one| one.job.job_queue_id.is_some());
    let claimed = if frees_a_queue {
        release(&shared, finished).await;
        claim.await
    } else {
        tokio::join!(release(&shared, finished), claim).1
    };
    Errand { asked, claimed, is_settled: false }
}

/// Clears up what a claim in doubt may have taken.
async fn settle(shared: Arc<Shared>, known: Vec<i64>) -> Errand {
    match release::return_unknown(&shared, &known).await {
        Ok(()) => Errand { asked: 0, claimed: None, is_settled: true },
        Err(error) => Errand { asked: 0, claimed: Some(Err(error)), is_settled: false },
    }
}

/// Renews the locks of running jobs.
async fn refresh(shared: Arc<Shared>, ids: Vec<i64>) -> Errand {
    use tokio_postgres::types::Type;
    let refreshed = async {
        let client = pool::get(shared.utils.pool(), "renewing locks").await?;
        let parameters: [(&(dyn tokio_postgres::types::ToSql + Sync), Type); 2] =
            [(&&*shared.worker_id, Type::TEXT), (&ids, Type::INT8_ARRAY)];
        let renewed = shared.query(&client, &shared.sql.refresh_locks, &parameters).await;
        renewed.map_err(|error| Error::database("renewing locks", error))
    };
    if let Err(error) = refreshed.await {
        tracing::warn!(%error, "could not renew the locks of running jobs, trying again in an hour");
    }
    Errand { asked: 0, claimed: None, is_settled: false }
}
