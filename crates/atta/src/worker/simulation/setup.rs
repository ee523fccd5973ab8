//! What a run begins with. All of it is data, so that a run that fails can be repeated with less.

use std::time::Duration;

use super::refusals::Refusal;

/// How long a worker may be without a heartbeat, and how often it polls.
pub(super) const THRESHOLD: Duration = Duration::from_secs(30);
pub(super) const POLL_INTERVAL: Duration = Duration::from_secs(2);

/// See `poll.sql`.
pub(super) const FEW_QUEUES: i32 = 100;

pub(super) const TASKS: [&str; 3] = ["a", "b", "c"];

#[derive(Clone, Debug, Default)]
pub(super) struct Setup {
    pub(super) seed: u64,
    pub(super) workers: usize,
    pub(super) slots: usize,
    pub(super) jobs: usize,
    /// How many jobs are added, and announced, together. Zero counts as one.
    pub(super) batch: usize,
    pub(super) queues: i32,
    /// How many of the tasks are slow, and so are claimed durably after a while.
    pub(super) slow: usize,
    /// Jobs that are claimed ahead.
    pub(super) local_queue: Option<usize>,
    /// No job is held.
    pub(super) is_durable: bool,
    /// Workers end when nothing is left that they could run. New ones start later.
    pub(super) until_empty: bool,
    /// Jobs are added during this time; zero: all are there at the start.
    pub(super) adds_for: Duration,
    /// The delay of most messages at the most. Zero: a millisecond.
    pub(super) usual_delay: Duration,
    /// Claimed jobs wait this long for statements that may bring more urgent ones. Zero: as by default.
    pub(super) patience: Duration,
    /// The longest delay of a message.
    pub(super) longest_delay: Duration,
    /// Jobs must start exactly in their order.
    pub(super) is_exact: bool,
    /// No job may start while a more urgent one has been there for this time.
    pub(super) order_bound: Option<Duration>,
    /// Shares of all runs of jobs.
    pub(super) failing: f64,
    pub(super) long: f64,
    /// The share of jobs with a flag that is forbidden during this time, and as many with one that is not.
    pub(super) flagged: f64,
    pub(super) forbidden_for: Duration,
    /// The share of statements whose connection is lost before or after they take effect.
    pub(super) lost: f64,
    /// The share of statements that take effect after their connection was lost.
    pub(super) late: f64,
    /// Shares of notifications.
    pub(super) unheard: f64,
    pub(super) late_notifications: f64,
    pub(super) duplicated: f64,
    pub(super) faults: Vec<Fault>,
    /// The database refuses to change some jobs for a while.
    pub(super) refusal: Option<Refusal>,
    /// Workers schedule crontab items during this time. Zero: they have none.
    pub(super) cron_for: Duration,
    /// The invariants that look at all rows, or at all runs, are not checked: large runs do without.
    pub(super) skips_scans: bool,
}

#[derive(Clone, Debug)]
pub(super) struct Fault {
    pub(super) at: Duration,
    pub(super) kind: FaultKind,
    /// Chooses the worker, or the job.
    pub(super) which: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum FaultKind {
    /// The process ends. Another worker starts instead.
    Kill,
    /// The process stops, and goes on after this time.
    Pause(Duration),
    /// The worker can't reach the server.
    Cut(Duration),
    /// No worker can reach the server.
    CutAll(Duration),
    /// The server stops, and starts again.
    Outage(Duration),
    /// All connections of one worker are closed.
    CloseConnections,
    /// The server's clock is set forward or back, by seconds.
    StepClock(i64),
    /// A transaction of the application keeps a job's row locked.
    LockRow(Duration),
    /// An operator deletes a job that runs.
    DeleteJob,
    /// An operator resets the attempts of a job that runs.
    ResetAttempts,
    /// An operator unlocks a job that runs, but not its queue.
    UnlockJob,
    /// Somebody adds a job again by its key.
    ReplaceJob,
    /// An orderly shutdown. Another worker starts instead.
    Shutdown,
}

impl FaultKind {
    pub(super) fn any(random: &mut fastrand::Rng) -> FaultKind {
        let brief = Duration::from_millis(random.u64(1..3000));
        let long = Duration::from_millis(random.u64(5_000..75_000));
        let duration = if random.bool() { brief } else { long };
        match random.u8(0..20) {
            0 | 1 => FaultKind::Kill,
            2 | 3 => FaultKind::Pause(duration),
            4 | 5 => FaultKind::Cut(duration),
            6 => FaultKind::CutAll(duration),
            7 | 8 => FaultKind::Outage(duration),
            9 => FaultKind::CloseConnections,
            // Steps between two seconds and a quarter of a threshold would make a worker without recent heartbeats look stale too early,
            // and nobody would notice the step.
            10 => FaultKind::StepClock(random.i64(-2..=2)),
            11 => FaultKind::StepClock(random.i64(8..90) * if random.bool() { 1 } else { -1 }),
            12 | 13 => FaultKind::LockRow(duration),
            14 => FaultKind::DeleteJob,
            15 => FaultKind::ResetAttempts,
            16 => FaultKind::UnlockJob,
            17 => FaultKind::ReplaceJob,
            _ => FaultKind::Shutdown,
        }
    }
}

impl Setup {
    /// Whether nothing goes wrong but tasks that fail.
    pub(super) fn has_no_faults(&self) -> bool {
        let shares = [self.lost, self.late, self.unheard, self.late_notifications, self.duplicated];
        self.faults.is_empty() && self.refusal.is_none() && shares.iter().all(|share| *share == 0.0)
    }

    /// Setups with less, the greatest steps first. A run that fails is repeated with each of them.
    pub(super) fn smaller(&self) -> Vec<Setup> {
        let mut smaller = Vec::new();
        let mut try_with = |change: &dyn Fn(&mut Setup)| {
            let mut setup = self.clone();
            change(&mut setup);
            smaller.push(setup);
        };
        if !self.faults.is_empty() {
            try_with(&|setup| setup.faults.clear());
        }
        for index in 0..self.faults.len() {
            try_with(&|setup| {
                setup.faults.remove(index);
            });
        }
        for jobs in [self.jobs / 4, self.jobs / 2, self.jobs.saturating_sub(1)] {
            if 0 < jobs && jobs < self.jobs {
                try_with(&|setup| setup.jobs = jobs);
            }
        }
        if self.workers > 1 {
            try_with(&|setup| setup.workers -= 1);
        }
        if self.slots > 1 && !self.is_exact {
            try_with(&|setup| setup.slots -= 1);
        }
        let shares: [fn(&mut Setup) -> &mut f64; 8] = [
            |setup| &mut setup.flagged,
            |setup| &mut setup.lost,
            |setup| &mut setup.late,
            |setup| &mut setup.failing,
            |setup| &mut setup.long,
            |setup| &mut setup.unheard,
            |setup| &mut setup.late_notifications,
            |setup| &mut setup.duplicated,
        ];
        for share in shares {
            if *share(&mut self.clone()) > 0.0 {
                try_with(&|setup| *share(setup) = 0.0);
            }
        }
        if self.queues > 0 {
            try_with(&|setup| setup.queues -= 1);
        }
        if self.slow > 0 {
            try_with(&|setup| setup.slow -= 1);
        }
        if self.refusal.is_some() {
            try_with(&|setup| setup.refusal = None);
        }
        if self.local_queue.is_some() {
            try_with(&|setup| setup.local_queue = None);
        }
        if self.is_durable {
            try_with(&|setup| setup.is_durable = false);
        }
        if self.adds_for > Duration::from_millis(100) {
            try_with(&|setup| setup.adds_for /= 2);
        }
        smaller
    }
}
