//! Which faults occur when. Only the seed determines this, so that a failure can be repeated.

use std::time::Duration;

use fastrand::Rng;

/// The workers, by number.
pub(crate) const WORKERS: [&str; 4] = ["held", "held-full-disk", "durable-wrong-clock", "node"];
/// The worker whose clock is set by faults.
pub(crate) const WRONG_CLOCK: usize = 2;
/// The worker whose log can't be written.
pub(crate) const FULL_DISK: usize = 1;
/// The worker of Graphile Worker.
pub(crate) const NODE: usize = 3;

/// The recovery threshold.
pub(crate) const THRESHOLD: Duration = Duration::from_secs(4);

/// A fault.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Fault {
    /// Kills a worker with `kill -9`.
    Kill(usize),
    /// Sends SIGTERM to a worker.
    Terminate(usize),
    /// Sends SIGSTOP to a worker, and SIGCONT after this time.
    Freeze(usize, Duration),
    /// The same, and `kill -9` at this time after the SIGCONT.
    FreezeAndKill(usize, Duration, Duration),
    CutAll,
    CutOne(usize),
    /// Nobody can connect, for this time.
    Outage(Duration),
    /// All traffic is delayed by the first time, for the second.
    Delay(Duration, Duration),
    /// Limits the traffic to this number of bytes per second, for this time.
    Throttle(u64, Duration),
    /// Half-open connections, which are cut after this time.
    HalfOpen(Duration),
    /// `pg_terminate_backend` for this number of connections, chosen by the seed.
    EndBackends(usize, u64),
    /// An orderly restart of PostgreSQL.
    Restart,
    /// `kill -9` for all processes of PostgreSQL, and a restart.
    Crash,
    /// Sets the clock of one worker off by this number of seconds.
    SetClock(i64),
    /// Nobody can connect for longer than the recovery threshold: all workers are cut off together.
    LongOutage(Duration),
    /// PostgreSQL is stopped for longer than the recovery threshold.
    StopServer(Duration),
    /// A transaction of an application keeps the row of a running job locked, for this time.
    LockJob(Duration),
    /// The same with the row of a queue that has jobs.
    LockQueue(Duration),
    /// A transaction of an application adds a job with the key of an existing job, if possible a running one, stays
    /// open for this time, and is rolled back.
    HoldKey(Duration),
    /// A transaction adds jobs, stays open for this time, so that dead rows can't be removed, and then commits or rolls
    /// back.
    LongTransaction(Duration, bool),
}

impl Fault {
    /// The name of its kind, for the summary.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Fault::Kill(_) => "kill -9",
            Fault::Terminate(_) => "SIGTERM",
            Fault::Freeze(..) => "frozen",
            Fault::FreezeAndKill(..) => "frozen, then killed",
            Fault::CutAll => "cut all",
            Fault::CutOne(_) => "cut one",
            Fault::Outage(_) => "outage",
            Fault::Delay(..) => "delay",
            Fault::Throttle(..) => "throttle",
            Fault::HalfOpen(_) => "half-open",
            Fault::EndBackends(..) => "pg_terminate_backend",
            Fault::Restart => "restart",
            Fault::Crash => "crash",
            Fault::SetClock(_) => "clock",
            Fault::LongOutage(_) => "long outage",
            Fault::StopServer(_) => "server stopped",
            Fault::LockJob(_) => "locked job",
            Fault::LockQueue(_) => "locked queue",
            Fault::HoldKey(_) => "held key",
            Fault::LongTransaction(..) => "long transaction",
        }
    }

    /// Whether a job that is only held may become free by this fault before it is done.
    pub(crate) fn loses_connections(&self) -> bool {
        !self.only_locks() && !matches!(self, Fault::Terminate(_) | Fault::SetClock(_))
    }

    /// Whether the fault only keeps rows locked.
    fn only_locks(&self) -> bool {
        use Fault::{HoldKey, LockJob, LockQueue, LongTransaction};
        matches!(self, LockJob(_) | LockQueue(_) | HoldKey(_) | LongTransaction(..))
    }

    /// Whether others may rightly declare this worker dead while its process lives: the fault can keep it from sending
    /// heartbeats while others send theirs. If all workers are cut off together, none may be declared dead. A worker
    /// that lost a connection reconnects at once.
    pub(crate) fn may_silence(&self, worker: usize) -> bool {
        self.freezes(worker) || matches!(self, Fault::HalfOpen(_) | Fault::Delay(..) | Fault::Throttle(..))
    }

    /// Whether the fault freezes the process of this worker.
    pub(crate) fn freezes(&self, worker: usize) -> bool {
        matches!(self, Fault::Freeze(number, _) | Fault::FreezeAndKill(number, ..) if *number == worker)
    }
}

/// A fault and its time.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Planned {
    /// The time since the start.
    pub(crate) at: Duration,
    pub(crate) fault: Fault,
    /// Whether earlier deaths are removed first, so that workers continue to hold jobs. Otherwise all claims would soon
    /// be durable.
    pub(crate) forgives: bool,
}

/// The faults of a run of this length, in the order of their times.
pub(crate) fn plan(seed: u64, length: Duration) -> Vec<Planned> {
    let mut rng = Rng::with_seed(seed);
    let mut planned = Vec::new();
    let mut at = Duration::from_secs(3);
    while at < length {
        let fault = fault(&mut rng);
        planned.push(Planned { at, fault, forgives: rng.u32(0..4) > 0 });
        at += Duration::from_millis(rng.u64(300..3000));
    }
    planned
}

fn fault(rng: &mut Rng) -> Fault {
    let ms = |rng: &mut Rng, range: std::ops::Range<u64>| Duration::from_millis(rng.u64(range));
    let threshold = THRESHOLD.as_millis().try_into().unwrap_or(u64::MAX);
    let longer = threshold + 500..2 * threshold;
    let outage = threshold * 6 / 5..2 * threshold;
    let worker = rng.usize(0..WORKERS.len());
    let ours = rng.usize(0..NODE);
    // There is about one outage per minute that is longer than the threshold.
    match rng.u32(0..77) {
        64 => Fault::LongOutage(ms(rng, outage)),
        65 => Fault::StopServer(ms(rng, outage)),
        66..=69 => Fault::LockJob(ms(rng, 500..7000)),
        70..=72 => Fault::LockQueue(ms(rng, 500..7000)),
        73.. => Fault::HoldKey(ms(rng, 500..7000)),
        number => match number / 2 {
            0..=4 => Fault::Kill(worker),
            5..=7 => Fault::Terminate(worker),
            8..=9 => Fault::Freeze(worker, ms(rng, longer)),
            10 => Fault::FreezeAndKill(ours, ms(rng, longer), ms(rng, 0..600)),
            11..=12 => Fault::CutAll,
            13..=15 => Fault::CutOne(rng.usize(..)),
            16 => Fault::Outage(ms(rng, 200..6000)),
            17..=18 => Fault::Delay(ms(rng, 5..400), ms(rng, 1000..6000)),
            19 => Fault::Throttle(rng.u64(2_000..50_000), ms(rng, 1000..6000)),
            20..=21 => Fault::HalfOpen(ms(rng, 500..9000)),
            22..=24 => Fault::EndBackends(rng.usize(1..8), rng.u64(..)),
            25 => Fault::Restart,
            26 => Fault::Crash,
            27..=29 => Fault::SetClock(rng.i64(-100_000..100_000)),
            _ => Fault::LongTransaction(ms(rng, 2000..15_000), rng.bool()),
        },
    }
}

/// The processes add their own randomness, which no seed can repeat.
pub(crate) fn the_same_seed_plans_the_same_faults() {
    let (short, long) = (Duration::from_secs(300), Duration::from_secs(3600));
    let (faults, more) = (plan(7, short), plan(7, long));
    assert_eq!(faults, plan(7, short));
    assert_eq!(faults[..], more[..faults.len()], "a longer run begins in the same way");
    assert_ne!(faults, plan(8, short));
    let kinds: std::collections::HashSet<&str> = more.iter().map(|planned| planned.fault.name()).collect();
    assert_eq!(kinds.len(), 20, "an hour has all kinds: {kinds:?}");
}
