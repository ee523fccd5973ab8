//! What a worker does if the database refuses a statement: see `claim/durable.rs`, `claim/held.rs`, `claim/promote.rs` and
//! `release/pending.rs`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use super::super::claim::promote::{Split, Unsettled, split};
use super::super::claim::{Left, Times};
use super::super::planner::Event;
use super::super::queries::Promoted;
use super::model::{RefusedChange, Refusing, WorkerNumber};
use super::statement::Statement;
use super::world::World;
use crate::{Error, Job};

/// A job that was refused is tried again after a minute at the latest, and its outcome after half a minute.
const LONGEST_PAUSE: Duration = Duration::from_secs(75);

/// The database refuses changes during this time.
#[derive(Clone, Debug)]
pub(super) struct Refusal {
    pub(super) refusing: Refusing,
    pub(super) from: Duration,
    pub(super) until: Duration,
    /// A trigger refuses them, which is there from the start. Polls report it, and nothing is held while it is there.
    /// Otherwise a constraint does.
    pub(super) is_visible: bool,
}

/// The error of a trigger.
pub(super) fn refusal() -> Error {
    Error::lost_reply_for_tests().with_db_code("P0001")
}

/// Jobs whose connection was lost are claimed again. If that is refused, each half is tried apart, and so on.
pub(super) struct Promotion {
    lane: u64,
    pub(super) unsettled: Unsettled,
    /// The last of these is tried next.
    parts: Vec<Vec<Arc<Job>>>,
    promoted: Promoted,
    refusal: Option<Error>,
}

impl Promotion {
    pub(super) fn new(lane: u64, unsettled: Unsettled) -> Promotion {
        let parts = vec![unsettled.jobs()];
        Promotion {
            lane,
            unsettled,
            parts,
            promoted: Promoted { ours: Times::new(), blocked: HashSet::new() },
            refusal: None,
        }
    }

    /// After a statement was lost, all jobs are tried again.
    pub(super) fn again(self) -> Promotion {
        Promotion::new(self.lane, self.unsettled)
    }

    /// The jobs of the next statement.
    pub(super) fn part(&self) -> Vec<Arc<Job>> {
        self.parts.last().cloned().unwrap_or_default()
    }

    pub(super) fn on_promoted(&mut self, Promoted { ours, blocked }: Promoted) {
        self.parts.pop();
        self.promoted.ours.extend(ours);
        self.promoted.blocked.extend(blocked);
    }

    fn on_refused(&mut self) {
        let part = self.parts.pop().unwrap_or_default();
        match part.as_slice() {
            [] => {}
            [job] => {
                self.promoted.blocked.insert(job.id);
                self.refusal = Some(refusal());
            }
            _ => {
                let (first, second) = part.split_at(part.len() / 2);
                self.parts.extend([first.to_vec(), second.to_vec()]);
            }
        }
    }

    /// All parts were tried.
    fn end(self) -> Event {
        let Split { mut left, .. } = split(self.unsettled, self.promoted);
        if let Some(unsettled) = &mut left.unsettled {
            unsettled.refusal = self.refusal;
        }
        Event::Promoted { lane: self.lane, left }
    }
}

impl World {
    pub(super) fn begin_refusal(&mut self) {
        if let Some(refusal) = &self.setup.refusal {
            self.database.refusing = Some(refusal.refusing);
            self.note(|world| format!("the database refuses {:?}", world.database.refusing));
        }
    }

    pub(super) fn end_refusal(&mut self) {
        self.database.refusing = None;
        self.database.has_triggers = false;
        self.note(|_| "the database refuses nothing any more".to_owned());
    }

    /// Whether this job may wait now, because the database refuses to change it, or another job of its queue.
    pub(super) fn may_be_refused(&self, job: &Job) -> bool {
        let Some(refusal) = &self.setup.refusal else { return false };
        let is_now = refusal.from <= self.now() && self.now() < refusal.until + LONGEST_PAUSE;
        let concerns_queue = || {
            let mut others = self.database.rows().values().map(|row| &row.job);
            job.job_queue_id.is_some()
                && others.any(|it| it.job_queue_id == job.job_queue_id && refusal.refusing.concerns(it.id))
        };
        // A claim whose most urgent job is cancelled returns nothing, and does not report why. So other jobs wait, too.
        let is_cancelled = refusal.refusing.change == RefusedChange::CancelClaim;
        is_now && (is_cancelled || refusal.refusing.concerns(job.id) || concerns_queue())
    }

    /// The database has refused a statement, which had no effect.
    pub(super) fn on_refused(&mut self, number: WorkerNumber, statement: Statement) -> Result<(), String> {
        let instant = self.agenda.instant();
        let name = statement.name();
        self.note(|_| format!("worker {number}: its {name} is refused"));
        let Some(worker) = self.workers.get_mut(&number) else { return Ok(()) };
        match statement {
            Statement::Claim(wanted) => self.send(number, Statement::ClaimOneByOne(wanted)),
            Statement::Commit { lane, settlement } => {
                let picked = Ok(worker.picked.remove(&lane).unwrap_or_default());
                let mut unsettled = Unsettled::new(settlement, false);
                unsettled.refusal = Some(refusal());
                let left = Left { unsettled: Some(unsettled), ..Left::default() };
                return self.deliver(number, Event::BatchEnded { lane, picked, left });
            }
            Statement::Promote(mut promotion) => {
                promotion.on_refused();
                return self.go_on_promoting(number, *promotion);
            }
            Statement::Release { entries, is_apart, sent } => {
                worker.end_release(is_apart, sent);
                worker.pending.on_error(instant, entries, &refusal());
                self.release(number);
            }
            _ => return Err(format!("a {name} was refused, which no trigger can do")),
        }
        Ok(())
    }

    pub(super) fn go_on_promoting(
        &mut self,
        number: WorkerNumber,
        promotion: Promotion,
    ) -> Result<(), String> {
        if promotion.parts.is_empty() {
            return self.deliver(number, promotion.end());
        }
        self.send(number, Statement::Promote(Box::new(promotion)));
        Ok(())
    }
}
