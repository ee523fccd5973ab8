//! Claiming: the only place that takes a lock on a job.
//!
//! Each way to claim is one file: [`held`] and [`durable`] are the two kinds of claims, [`one_by_one`] makes a durable
//! claim after the database has refused one, [`promote`] claims held jobs again whose connection was lost, [`locks`]
//! searches for claims with a lost reply and renews old locks, and [`unreadable`] handles jobs that the server can't
//! send. Their statements are in [`super::queries`].

pub(crate) mod durable;
pub(crate) mod held;
pub(crate) mod locks;
mod one_by_one;
pub(crate) mod promote;
mod unreadable;

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use tokio::sync::{mpsc, oneshot};

use super::Shared;
use super::planner::{DURABLE_LANES, Event, HOLDING_LANES, SLOW_LANES};
use super::run::Finished;
use crate::db::pool;
use crate::job::Order;
use crate::{Error, Job, Result};
use held::Settlement;
use promote::Unsettled;

/// The most statements that claim at a time.
pub(crate) const LANES: usize = DURABLE_LANES + HOLDING_LANES + SLOW_LANES;

/// The channel on which a claim reports events before it ends.
pub(crate) type LaneEvents = mpsc::Sender<(Event, Option<oneshot::Sender<Settlement>>)>;

/// When durable claims of jobs were made, by job id. The time distinguishes a claim from others of the same job.
pub(crate) type Times = HashMap<i64, DateTime<Utc>>;

/// The jobs that a worker knows that it has, and their queues.
#[derive(Clone, Debug, Default)]
pub(crate) struct KnownJobs {
    pub(crate) ids: Vec<i64>,
    pub(crate) queues: Vec<i32>,
}

/// Held jobs that are durable claims now.
#[derive(Default)]
pub(crate) struct Left {
    /// When they were claimed durably.
    pub(crate) locked_at: Times,
    /// Those of them that had not ended when the batch was committed.
    pub(crate) running: Vec<Arc<Job>>,
    /// Outcomes of some of them.
    pub(crate) finished: Vec<Finished>,
    /// A reply was lost: they may have been written already.
    pub(crate) is_unknown: bool,
    /// Jobs that could not be claimed durably yet.
    pub(crate) unsettled: Option<Unsettled>,
    /// The pick failed because of a job whose text the server can't send, and no such job could be failed.
    pub(crate) is_unreadable: bool,
}

/// What a durable claim asks for.
#[derive(Debug)]
pub(crate) struct Claimable {
    pub(crate) count: usize,
    /// The tasks whose queued jobs are claimed: all but those that are paused.
    pub(crate) tasks: Vec<String>,
    /// The tasks whose jobs are claimed durably even without a queue.
    pub(crate) unqueued: Vec<String>,
    /// Only jobs that are more urgent than this.
    pub(crate) before: Order,
    /// How many bytes of payloads the claim may read. One job is always claimed.
    pub(crate) bytes: usize,
    /// Jobs that are not claimed for now, because the database refused that.
    pub(crate) left_out: Vec<i64>,
    /// Whether each job is claimed by a statement of its own, since the database may refuse some of them.
    pub(crate) one_by_one: bool,
    /// Whether at most about a hundred queues have jobs.
    pub(crate) has_few_queues: bool,
    /// Reads all jobs with flags, also if most of them are forbidden.
    pub(crate) reads_all_flagged: bool,
    /// Whether to read the positions of jobs beyond the claimed ones, so that the next two claims can be sent together.
    pub(crate) looks_ahead: bool,
    /// The task and priority of all jobs without a queue, as far as is known.
    pub(crate) level: Option<Level>,
    /// How often the planner had discarded its positions when this claim was sent.
    pub(crate) epoch: u64,
    pub(crate) sent_at: Instant,
}

impl Claimable {
    /// A claim of ten jobs for tests.
    #[cfg(test)]
    pub(crate) fn for_tests(sent_at: Instant) -> Claimable {
        Claimable {
            count: 10,
            tasks: vec!["t".into()],
            unqueued: vec!["t".into()],
            before: super::planner::scan::EVERYTHING,
            bytes: 1 << 20,
            left_out: Vec::new(),
            one_by_one: false,
            has_few_queues: true,
            reads_all_flagged: true,
            looks_ahead: true,
            level: None,
            epoch: 0,
            sent_at,
        }
    }

    /// The priority of all jobs, if it is known.
    pub(super) fn priority(&self) -> Option<i16> {
        self.level.as_ref().map(|level| level.priority)
    }

    /// Whether this claims only jobs that an earlier claim has seen.
    pub(crate) fn is_of_seen(&self) -> bool {
        self.level.as_ref().is_some_and(|level| level.ahead.is_some())
    }
}

/// A run_at and an id: up to where jobs of one task and priority were claimed.
pub(crate) type Position = (DateTime<Utc>, i64);

/// The jobs of one task and priority, without queues and flags.
#[derive(Clone, Debug)]
pub(crate) struct Level {
    pub(crate) task_identifier: Arc<str>,
    pub(crate) priority: i16,
    /// Those up to here were claimed. None: a claim reads them from the start.
    pub(crate) position: Option<Position>,
    /// A later position, and the number of jobs between the two. One claim can take these jobs while another takes the
    /// jobs behind them.
    pub(crate) ahead: Option<(Position, usize)>,
}

impl Level {
    pub(crate) fn is_same(&self, other: &Level) -> bool {
        (&self.task_identifier, self.priority) == (&other.task_identifier, other.priority)
    }
}

/// The result of a durable claim.
#[derive(Debug)]
pub(crate) struct Claimed {
    /// In the order in which they are to run.
    pub(crate) jobs: Vec<Job>,
    /// Claimed, but there was no room for their payloads: they are returned.
    pub(crate) without_room: Vec<Job>,
    /// Claimed, but the server can't send their payloads: they fail permanently, with these errors.
    pub(crate) unreadable: Vec<(Job, Error)>,
    /// Not claimed: the database refused it, with these errors.
    pub(crate) refused: Vec<Refusal>,
    /// Not all jobs were tried, because refused ones took too long.
    pub(crate) is_cut_short: bool,
    pub(crate) asked_at: Instant,
    pub(crate) took: Duration,
    /// The level of these jobs, and where the next claim begins. None if they have several levels, or are fewer than
    /// were wanted.
    pub(crate) level: Option<Level>,
    /// Whether flags are forbidden: then some due jobs may not have been claimed.
    pub(crate) has_forbidden: bool,
}

/// A job that the database does not let this worker claim, for example because of a trigger of the application.
#[derive(Debug)]
pub(crate) struct Refusal {
    pub(crate) id: i64,
    pub(crate) task_identifier: Arc<str>,
    pub(crate) error: Error,
    /// How long the attempt took.
    pub(crate) took: Duration,
}

impl Claimed {
    /// How many jobs were claimed.
    pub(crate) fn count(&self) -> usize {
        self.jobs.len() + self.without_room.len() + self.unreadable.len()
    }
}

/// Opens the connections that a worker can't do without, all at once: those of held claims, and one each for durable
/// claims, for releases and for polls. So no job waits for them, and a worker that is allowed fewer connections claims
/// no job that it could not release.
pub(crate) async fn warm_up(shared: &Shared) -> Result<()> {
    let pools = [&shared.claim_pool, &shared.release_pool, &shared.poll_pool];
    let pools = std::iter::repeat_n(&shared.lane_pool, HOLDING_LANES).chain(pools);
    let open = pools.map(|pool| pool::get(pool, "connecting"));
    futures_util::future::try_join_all(open).await.map(drop)
}
