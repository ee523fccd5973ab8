//! Statements on their way: what a worker has sent, what it does in the database, and what comes back.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::super::backoff::Backoff;
use super::super::claim::held::{Settlement, Wanted};
use super::super::claim::{Claimable, KnownJobs, Level, Times};
use super::super::planner::scan::{Request, Seen};
use super::super::queries::{Claims, Promoted as Claimed};
use super::super::release::{Entry, Fate};
use super::super::run::{Failure, Finished, Outcome};
use super::cron::{CronAnswer, CronStatement};
use super::model::Polled;
use super::refusals::Promotion;
use crate::recovery::OwnHeartbeats;
use crate::{Error, Job};

/// What a worker has sent, with all that it needs to go on.
pub(super) enum Statement {
    Heartbeat,
    Poll,
    Recover,
    FreeOrphans,
    Claim(Claimable),
    ClaimOneByOne(Claimable),
    Pick(Wanted),
    Commit {
        lane: u64,
        settlement: Settlement,
    },
    Promote(Box<Promotion>),
    Search {
        known: KnownJobs,
    },
    /// Returns the claims that a search has found.
    ReturnUnknown(Claims),
    Renew {
        ids: Vec<i64>,
        backoff: Backoff,
    },
    Release {
        entries: Vec<Entry>,
        is_apart: bool,
        sent: Instant,
    },
    Cron(CronStatement),
}

/// What a statement does when it reaches the server. A copy, since the worker may go on before that.
pub(super) enum Effect {
    Heartbeat,
    Poll { continuous: Duration, for_jobs: bool },
    Recover(OwnHeartbeats),
    FreeOrphans,
    Claim(Claimable),
    ClaimOneByOne(Claimable),
    Pick { lane: u64, request: Request },
    Commit { lane: u64, finished: Vec<Finished>, running: Vec<i64> },
    Promote(Vec<Arc<Job>>),
    Search(KnownJobs),
    ReturnUnknown(Claims),
    Renew(Vec<i64>),
    Release(Vec<Entry>),
    Cron(CronStatement),
}

/// What comes back.
pub(super) enum Answer {
    Heartbeat {
        was_registered: bool,
        started_at: chrono::DateTime<chrono::Utc>,
        now: chrono::DateTime<chrono::Utc>,
    },
    Polled(Polled),
    Recovered(bool),
    Claimed(Vec<Job>, Option<Level>),
    /// The second are those that were refused.
    ClaimedOneByOne(Vec<Job>, Vec<Job>),
    Picked(Vec<Arc<Job>>, Seen),
    /// None: the transaction had ended before.
    Committed(Option<Times>),
    Promoted(Claimed),
    Found(Claims),
    Searched(usize, usize),
    Renewed(Times),
    Released(HashMap<i64, Fate>),
    Cron(CronAnswer),
    /// The database has refused the statement, which has no effect.
    Refused,
}

/// Why no answer comes back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trouble {
    /// There was no connection: the statement was not sent.
    Refused,
    /// The connection was lost: the statement may have taken effect.
    Closed,
}

impl Trouble {
    pub(super) fn error(self) -> Error {
        match self {
            Trouble::Refused => Error::unavailable("no connection"),
            Trouble::Closed => Error::lost_reply_for_tests(),
        }
    }

    /// The same with an error of the server, which counts as one of the connection.
    pub(super) fn transient_error(self) -> Error {
        match self {
            Trouble::Refused => Error::unavailable("no connection"),
            Trouble::Closed => Error::lost_reply_for_tests().with_db_code("08006"),
        }
    }
}

/// A statement that is not answered yet.
pub(super) struct Sent {
    pub(super) statement: Statement,
    pub(super) sent_at: Instant,
    pub(super) trouble: Option<Trouble>,
    pub(super) answer: Option<Answer>,
    /// It never reaches the server.
    pub(super) is_dropped: bool,
}

impl Statement {
    pub(super) fn name(&self) -> &'static str {
        match self {
            Statement::Heartbeat => "heartbeat",
            Statement::Poll => "poll",
            Statement::Recover => "recover",
            Statement::FreeOrphans => "free orphans",
            Statement::Claim(_) => "durable claim",
            Statement::ClaimOneByOne(_) => "claim one by one",
            Statement::Pick(_) => "pick",
            Statement::Commit { .. } => "commit",
            Statement::Promote(_) => "promote",
            Statement::Search { .. } => "search",
            Statement::ReturnUnknown(_) => "return of lost claims",
            Statement::Renew { .. } => "renew",
            Statement::Release { .. } => "release",
            Statement::Cron(_) => "cron",
        }
    }

    pub(super) fn effect(&self, now: Instant, own: OwnHeartbeats, for_jobs: bool) -> Effect {
        match self {
            Statement::Heartbeat => Effect::Heartbeat,
            Statement::Poll => Effect::Poll { continuous: own.continuous, for_jobs },
            Statement::Recover => Effect::Recover(own),
            Statement::FreeOrphans => Effect::FreeOrphans,
            Statement::Cron(statement) => Effect::Cron(statement.clone()),
            Statement::Claim(wanted) => Effect::Claim(copy_wanted(wanted)),
            Statement::ClaimOneByOne(wanted) => Effect::ClaimOneByOne(copy_wanted(wanted)),
            Statement::Pick(wanted) => Effect::Pick { lane: wanted.lane, request: wanted.request.clone() },
            Statement::Commit { lane, settlement } => Effect::Commit {
                lane: *lane,
                finished: settlement.finished.iter().map(copy_finished).collect(),
                running: settlement.promoted_ids(),
            },
            Statement::Promote(promotion) => Effect::Promote(promotion.part()),
            Statement::Search { known } => Effect::Search(known.clone()),
            Statement::ReturnUnknown(claims) => Effect::ReturnUnknown(claims.clone()),
            Statement::Renew { ids, .. } => Effect::Renew(ids.clone()),
            Statement::Release { entries, .. } => {
                let copy = |entry: &Entry| {
                    Entry::new(now, copy_finished(&entry.finished), entry.locked_at, entry.is_unknown)
                };
                Effect::Release(entries.iter().map(copy).collect())
            }
        }
    }
}

fn copy_wanted(wanted: &Claimable) -> Claimable {
    Claimable {
        left_out: wanted.left_out.clone(),
        one_by_one: wanted.one_by_one,
        has_few_queues: wanted.has_few_queues,
        count: wanted.count,
        tasks: wanted.tasks.clone(),
        unqueued: wanted.unqueued.clone(),
        before: wanted.before,
        bytes: wanted.bytes,
        reads_all_flagged: wanted.reads_all_flagged,
        looks_ahead: wanted.looks_ahead,
        level: wanted.level.clone(),
        epoch: wanted.epoch,
        sent_at: wanted.sent_at,
    }
}

fn copy_finished(finished: &Finished) -> Finished {
    let outcome = match &finished.outcome {
        Outcome::Completed => Outcome::Completed,
        Outcome::Failed(failure) => Outcome::Failed(Box::new(Failure {
            error: failure.error.clone(),
            retry: failure.retry,
            payload: failure.payload.clone(),
        })),
        Outcome::Interrupted => Outcome::Interrupted,
        Outcome::NotStarted => Outcome::NotStarted,
    };
    Finished { job: finished.job.clone(), outcome, duration: finished.duration, claim: finished.claim }
}
