//! The world of a run: workers, the database, the producers, and what takes place next.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::time::Duration;

use super::super::planner::Event;
use super::agenda::Agenda;
use super::cron::Ticks;
use super::model::{Cause, Change, Database, WorkerNumber};
use super::setup::Setup;
use super::statement::{Effect, Sent, Statement};
use super::statistics::Statistics;
use super::worker::Worker;
use crate::job::Order;

pub(super) const MS: Duration = Duration::from_millis(1);

/// A run that takes longer than this in virtual time does not end.
const LONGEST: Duration = Duration::from_secs(1200);

/// The flag that some jobs have, and that is forbidden at first.
pub(super) const FORBIDDEN: &str = "forbidden";

/// How often the invariants are checked that look at all rows.
const CHECKS: Duration = Duration::from_millis(500);

/// Something that takes place at a given time.
pub(super) enum Happening {
    Add,
    StartWorker,
    Check,
    Fault(usize),
    ServerIsBack,
    RowIsUnused(i64),
    BeginRefusal,
    EndRefusal,
    /// No flag is forbidden any more.
    AllowFlags,
    /// A statement reaches the server, unless that was started anew meanwhile.
    Arrive {
        worker: WorkerNumber,
        number: u64,
        server: u64,
        effect: Effect,
    },
    /// The server ends a transaction: it was idle for long, or its connection is gone.
    EndTransaction(WorkerNumber, u64),
    Deregister(WorkerNumber),
    /// In the process of a worker.
    Of(WorkerNumber, Step),
}

/// Something that takes place in the process of a worker. It does not while the process is stopped.
pub(super) enum Step {
    /// An entry of the planner's timer, by its number.
    Timer(u64),
    ReleaseTimer(u64),
    SendHeartbeat,
    PollRested,
    PollDue(u64),
    FreeOrphans,
    CronTimer,
    Deliver(Event),
    /// The reply to a statement, or the error.
    Reply(u64),
    Send(Statement),
    /// The job of a run has ended.
    End(u64),
}

/// A source of random numbers for each purpose, so that a smaller setup changes as little as possible.
pub(super) struct Streams {
    pub(super) adds: fastrand::Rng,
    pub(super) network: fastrand::Rng,
    pub(super) losses: fastrand::Rng,
    pub(super) work: fastrand::Rng,
    pub(super) cron: fastrand::Rng,
}

pub(super) struct World {
    pub(super) setup: Setup,
    pub(super) random: Streams,
    pub(super) agenda: Agenda<Happening>,
    pub(super) database: Database,
    pub(super) workers: BTreeMap<WorkerNumber, Worker>,
    pub(super) statements: BTreeMap<(WorkerNumber, u64), Sent>,
    pub(super) last_number: u64,
    pub(super) last_worker: WorkerNumber,
    /// How often the server was started.
    pub(super) server: u64,
    pub(super) down_until: Duration,
    pub(super) stepped_at: Option<Duration>,
    /// Until then no worker can reach the server, also none that starts.
    pub(super) all_cut_until: Duration,
    pub(super) disturbed_at: Duration,
    pub(super) added: usize,
    pub(super) started: Vec<Order>,
    /// Jobs that have run to their end, at least once.
    pub(super) ended: HashSet<i64>,
    pub(super) deleted: HashSet<i64>,
    /// The job of a worker and a queue that an operator has taken last.
    pub(super) taken: HashMap<(WorkerNumber, i32), i64>,
    /// When a worker's last run of a job has ended.
    pub(super) ended_at: HashMap<(WorkerNumber, i64), Duration>,
    /// Claims that were lost and are not running.
    pub(super) lost: HashMap<(WorkerNumber, i64), Cause>,
    pub(super) declared: HashMap<WorkerNumber, Duration>,
    /// The flags whose jobs no worker may run now.
    pub(super) forbidden: Vec<String>,
    pub(super) ticks: Ticks,
    pub(super) statistics: Statistics,
    trace: Option<Vec<String>>,
}

/// How a run has ended.
pub(super) struct Ended {
    pub(super) result: Result<(), String>,
    pub(super) statistics: Statistics,
    pub(super) trace: Vec<String>,
}

impl World {
    pub(super) fn new(setup: &Setup, traces: bool) -> World {
        fastrand::seed(setup.seed);
        let stream =
            |salt: u64| fastrand::Rng::with_seed(setup.seed.wrapping_mul(0x9e37_79b9).wrapping_add(salt));
        let mut world = World {
            random: Streams {
                adds: stream(1),
                network: stream(2),
                losses: stream(3),
                work: stream(4),
                cron: stream(5),
            },
            agenda: Agenda::new(),
            database: Database::new(),
            workers: BTreeMap::new(),
            statements: BTreeMap::new(),
            last_number: 0,
            last_worker: 0,
            server: 0,
            down_until: Duration::ZERO,
            stepped_at: None,
            all_cut_until: Duration::ZERO,
            disturbed_at: Duration::ZERO,
            added: 0,
            started: Vec::new(),
            ended: HashSet::new(),
            deleted: HashSet::new(),
            taken: HashMap::new(),
            ended_at: HashMap::new(),
            lost: HashMap::new(),
            declared: HashMap::new(),
            forbidden: if setup.flagged > 0.0 { vec![FORBIDDEN.to_owned()] } else { Vec::new() },
            ticks: Ticks::default(),
            statistics: Statistics::default(),
            trace: traces.then(Vec::new),
            setup: setup.clone(),
        };
        for _ in 0..setup.jobs.div_ceil(setup.batch.max(1)) {
            let at = setup.adds_for.mul_f64(world.random.adds.f64());
            match setup.adds_for.is_zero() {
                true => world.add(),
                false => world.agenda.add(at, Happening::Add),
            }
        }
        for (index, fault) in setup.faults.iter().enumerate() {
            world.agenda.add(fault.at, Happening::Fault(index));
        }
        for _ in 0..setup.workers {
            world.agenda.add(Duration::ZERO, Happening::StartWorker);
        }
        world.agenda.add(CHECKS, Happening::Check);
        world.agenda.add(setup.forbidden_for, Happening::AllowFlags);
        if let Some(refusal) = &setup.refusal {
            world.database.has_triggers = refusal.is_visible;
            world.agenda.add(refusal.from, Happening::BeginRefusal);
            world.agenda.add(refusal.until, Happening::EndRefusal);
        }
        world
    }

    pub(super) fn run(mut self) -> Ended {
        let result = self.run_to_end();
        self.statistics.duration = self.now();
        Ended { result, statistics: self.statistics, trace: self.trace.unwrap_or_default() }
    }

    fn run_to_end(&mut self) -> Result<(), String> {
        loop {
            let is_done = self.added == self.setup.jobs && self.database.is_empty();
            let is_done = is_done && self.now() >= self.setup.cron_for;
            if is_done && self.database.queues.is_empty() {
                return self.check_end();
            }
            let Some(happening) = self.agenda.next() else { return Err("nothing happens any more".into()) };
            self.happen(happening)?;
            self.note_changes();
            if self.now() > LONGEST {
                return Err(format!("it does not end: {}", self.describe_rows()));
            }
        }
    }

    fn happen(&mut self, happening: Happening) -> Result<(), String> {
        match happening {
            Happening::Of(worker, step) => self.step(worker, step)?,
            Happening::Arrive { worker, number, server, effect } => {
                if server == self.server {
                    self.arrive(worker, number, effect)?;
                }
            }
            Happening::EndTransaction(worker, lane) => {
                self.database.end_transaction(self.now(), (worker, lane), Some(Cause::Connection));
            }
            Happening::Add => self.add(),
            Happening::StartWorker => self.start_worker(),
            Happening::Check => {
                self.agenda.add(self.now() + CHECKS, Happening::Check);
                if !self.setup.skips_scans {
                    self.check_rows()?;
                    self.check_ticks()?;
                }
            }
            Happening::Fault(index) => self.begin_fault(index),
            Happening::ServerIsBack => self.end_outage(),
            Happening::RowIsUnused(id) => {
                let now = self.now();
                self.database.update(now, id, |row| (row.is_used, row.unused_since) = (false, now));
            }
            Happening::BeginRefusal => self.begin_refusal(),
            Happening::EndRefusal => self.end_refusal(),
            Happening::AllowFlags => {
                let flags = std::mem::take(&mut self.forbidden);
                self.database.free_flagged(self.agenda.now(), &flags);
            }
            Happening::Deregister(worker) => {
                if self.is_up() {
                    self.database.deregister(worker);
                }
            }
        }
        Ok(())
    }

    pub(super) fn now(&self) -> Duration {
        self.agenda.now()
    }

    pub(super) fn is_up(&self) -> bool {
        self.now() >= self.down_until
    }

    pub(super) fn plan(&mut self, at: Duration, worker: WorkerNumber, step: Step) {
        self.agenda.add(at, Happening::Of(worker, step));
    }

    /// A moment after now: mostly about a millisecond, sometimes long.
    pub(super) fn soon(&mut self) -> Duration {
        let random = &mut self.random.network;
        let longest = match random.u8(..) {
            0..=3 => self.setup.longest_delay,
            4..=20 => self.setup.longest_delay / 15,
            _ => self.setup.usual_delay,
        };
        let delay = longest.max(MS).mul_f64(random.f64());
        self.now() + MS / 10 + delay
    }

    pub(super) fn note(&mut self, text: impl FnOnce(&World) -> String) {
        if self.trace.is_none() {
            return;
        }
        let line = format!("{:>12.3} ms  {}", self.now().as_secs_f64() * 1000.0, text(self));
        self.trace.get_or_insert_default().push(line);
    }

    pub(super) fn can_reach(&self, worker: WorkerNumber) -> bool {
        let is_cut = self.workers.get(&worker).is_some_and(|it| self.now() < it.cut_until);
        self.is_up() && !is_cut
    }

    fn start_worker(&mut self) {
        self.last_worker += 1;
        let number = self.last_worker;
        let mut worker = Worker::new(&self.setup, self.now(), self.agenda.instant());
        worker.cut_until = self.all_cut_until;
        self.workers.insert(number, worker);
        self.disturb(number, self.all_cut_until, false);
        self.note(|_| format!("worker {number} starts"));
        // It registers before it claims. The first poll does not search for jobs.
        self.send(number, Statement::Heartbeat);
    }

    /// Follows who has which job.
    fn note_changes(&mut self) {
        for (worker, id, change) in self.database.take_changes() {
            let runs = self.workers.get_mut(&worker).into_iter().flat_map(|it| it.runs.values_mut());
            let runs = runs.filter(|run| run.job.id == id);
            match change {
                Change::Claimed => drop(self.lost.remove(&(worker, id))),
                Change::Promoted => {
                    // A run whose job an operator has unlocked is not the one that is promoted.
                    let own = runs.filter(|run| run.lost != Some(Cause::Operator));
                    own.for_each(|run| run.lost = None);
                    self.lost.remove(&(worker, id));
                }
                Change::Lost(cause) => {
                    // What an operator has taken does not come back with a later claim.
                    let own = runs.filter(|run| run.lost != Some(Cause::Operator));
                    own.for_each(|run| run.lost = Some(cause));
                    self.lost.insert((worker, id), cause);
                }
            }
        }
    }
}
