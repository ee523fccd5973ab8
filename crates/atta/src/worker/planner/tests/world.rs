//! A planner without a database: a test answers its commands, and sees what it asks for.

use chrono::DateTime;

use super::super::super::claim::Left;
use super::super::super::claim::held::{Settlement, Wanted};
use super::super::super::claim::{Claimable, Claimed};
use super::super::super::release::Report;
use super::super::super::run::{Claim, Finished, Outcome};
use super::super::scan::{Kind, LevelKey, Request, Seen};
use super::super::*;
use crate::{Job, Result};

pub(super) const MS: Duration = Duration::from_millis(1);

/// A planner of one task, and what its commands were.
pub(super) struct World {
    pub(super) planner: Planner,
    pub(super) list: Arc<RunList>,
    pub(super) now: Instant,
    pub(super) claims: Vec<Claimable>,
    pub(super) picks: Vec<Wanted>,
    pub(super) commits: Vec<(u64, Settlement)>,
    /// The ids of jobs that are released, and their outcomes.
    pub(super) released: Vec<(i64, Outcome)>,
    pub(super) searches: Vec<Vec<i64>>,
    pub(super) polls: usize,
    pub(super) has_left: bool,
}

impl World {
    pub(super) fn new(slots: usize, change: impl FnOnce(&mut Rules)) -> World {
        let mut rules = Rules::for_tests(slots);
        change(&mut rules);
        let (now, list) = (Instant::now(), Arc::new(RunList::new(slots)));
        let mut planner = Planner::new(now, rules, list.clone(), vec!["t".into()]);
        planner.observe(Surroundings {
            may_hold: true,
            hooks_are_full: false,
            has_few_queues: true,
            ..Surroundings::UNKNOWN
        });
        let mut world = World {
            planner,
            list,
            now,
            claims: Vec::new(),
            picks: Vec::new(),
            commits: Vec::new(),
            released: Vec::new(),
            searches: Vec::new(),
            polls: 0,
            has_left: false,
        };
        world.plan();
        world
    }

    pub(super) fn durable(slots: usize) -> World {
        World::new(slots, |rules| rules.claims = Claims::Durable)
    }

    pub(super) fn handle(&mut self, event: Event) {
        self.planner.handle(event, self.now);
        self.plan();
    }

    pub(super) fn plan(&mut self) {
        self.planner.plan(self.now);
        for command in self.planner.take_commands() {
            match command {
                Command::ClaimDurably(wanted) => self.claims.push(wanted),
                Command::Hold(wanted) => self.picks.push(wanted),
                Command::CommitBatch { lane, settlement } => self.commits.push((lane, settlement)),
                Command::Release(entries) => {
                    let released = entries.into_iter().map(|it| (it.finished.job.id, it.finished.outcome));
                    self.released.extend(released);
                }
                Command::Search { known } => self.searches.push(known.ids),
                Command::Poll => self.polls += 1,
                Command::Leave => self.has_left = true,
                _ => {}
            }
        }
    }

    /// Lets time pass, with all timers.
    pub(super) fn advance(&mut self, duration: Duration) {
        let end = self.now + duration;
        for _ in 0..10_000 {
            let timer = self.planner.next_timer(self.now);
            if timer > end {
                break;
            }
            self.now = timer.max(self.now + Duration::from_micros(1));
            self.handle(Event::Timer);
        }
        self.now = end;
        self.handle(Event::Timer);
    }

    /// Answers the next durable claim.
    pub(super) fn answer(&mut self, jobs: &[i64]) {
        let wanted = self.claims.remove(0);
        let claimed = Claimed {
            refused: Vec::new(),
            is_cut_short: false,
            jobs: jobs.iter().map(|id| Job { locked_at: Some(DateTime::UNIX_EPOCH), ..job(*id) }).collect(),
            without_room: Vec::new(),
            unreadable: Vec::new(),
            asked_at: self.now,
            took: MS,
            level: None,
            has_forbidden: false,
        };
        self.handle(Event::Claimed { wanted: Box::new(wanted), claimed: Ok(claimed) });
    }

    pub(super) fn fail_claim(&mut self, error: Error) {
        let wanted = self.claims.remove(0);
        self.handle(Event::Claimed { wanted: Box::new(wanted), claimed: Err(error) });
    }

    /// Answers the next pick with these jobs, all of priority 0.
    pub(super) fn pick(&mut self, jobs: &[i64]) -> u64 {
        let Wanted { lane, request, .. } = self.picks.remove(0);
        let seen = seen(&request, jobs);
        self.handle(Event::Seen { lane, request, seen });
        match jobs.is_empty() {
            true => self.end_batch(lane, Ok(0)),
            false => {
                let jobs = jobs.iter().map(|id| Arc::new(job(*id))).collect();
                self.handle(Event::Picked { lane, jobs, without_room: Vec::new() });
            }
        }
        lane
    }

    pub(super) fn end_batch(&mut self, lane: u64, picked: Result<usize>) {
        self.handle(Event::BatchEnded { lane, picked, left: Left::default() });
    }

    /// Runs what may start, up to as many jobs as there are slots. Returns the ids.
    pub(super) fn start(&mut self) -> Vec<(Arc<Job>, Claim)> {
        std::iter::from_fn(|| self.list.next()).map(|next| (next.job, next.claim)).collect()
    }

    /// Runs the first job that may start.
    pub(super) fn start_one(&mut self) -> Vec<(Arc<Job>, Claim)> {
        self.list.next().map(|next| (next.job, next.claim)).into_iter().collect()
    }

    pub(super) fn finish(&mut self, runs: Vec<(Arc<Job>, Claim)>) {
        let finished = runs.into_iter().map(|(job, claim)| Finished {
            job,
            outcome: Outcome::Completed,
            duration: MS,
            claim,
        });
        self.handle(Event::Finished(finished.collect()));
    }

    /// All releases are written.
    pub(super) fn write(&mut self) {
        let ids = std::mem::take(&mut self.released).into_iter().map(|(id, _)| id).collect();
        self.handle(Event::Released(Report { ids, ..Report::default() }));
    }
}

pub(super) fn job(id: i64) -> Job {
    Job::for_tests((0, DateTime::UNIX_EPOCH, id), "t")
}

fn seen(request: &Request, jobs: &[i64]) -> Seen {
    let order = |id: &i64| (0, DateTime::UNIX_EPOCH, *id);
    let of_level = |level: &super::scan::LevelRequest| match level.key.priority {
        0 => (jobs.len(), jobs.last().map(order)),
        _ => (0, None),
    };
    let level = LevelKey { kind: Kind::Plain, priority: 0, task_identifier: "t".into() };
    let found = if request.gaps.is_empty() || request.levels.iter().any(|it| it.key == level) {
        Vec::new()
    } else {
        vec![level]
    };
    Seen {
        levels: request.levels.iter().map(of_level).collect(),
        first: jobs.first().map(order),
        found,
        now: None,
        took: MS,
    }
}

pub(super) fn ids(runs: &[(Arc<Job>, Claim)]) -> Vec<i64> {
    runs.iter().map(|(job, _)| job.id).collect()
}
