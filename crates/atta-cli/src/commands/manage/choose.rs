//! Turns the user's options into ids of jobs.

use std::collections::{HashMap, HashSet};

use atta::{Job, JobFilter, JobState, WorkerStatus, WorkerUtils};
use serde::Serialize;

use super::{Action, Selection};
use crate::output::Failure;

/// The number of jobs that one statement changes: low enough that large payloads, which are returned, fit into memory.
pub(super) const BATCH: usize = 200;

/// How many ids are read at a time.
const PAGE: u32 = 10_000;

/// The jobs that will be changed, and the named jobs that are skipped.
pub(super) struct Chosen {
    pub(super) ids: Vec<i64>,
    pub(super) skipped: Vec<(i64, Reason)>,
    /// The filter by which they were found; none if they were named by id.
    pub(super) filter: Option<JobFilter>,
}

/// Why a job was skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Reason {
    /// There is no such job.
    Unknown,
    /// It is running.
    Running,
    /// There is nothing to unlock.
    NotLocked,
    /// The worker that has it is alive.
    WorkerIsAlive,
    /// Before it could be changed, a worker claimed it, it ended, or it no longer matched the filter.
    Changed,
}

pub(super) async fn choose(
    utils: &WorkerUtils,
    action: &Action,
    selection: &Selection,
) -> Result<Chosen, Failure> {
    let mut chosen = if selection.ids.is_empty() {
        let filter = selection.filter.to_job_filter(utils).await?;
        let filter = JobFilter { after_id: selection.after, ..narrowed(action, filter) };
        let ids = all_ids(utils, &filter, selection.limit).await?;
        Chosen { ids, skipped: Vec::new(), filter: Some(filter) }
    } else {
        by_ids(utils, action, &selection.ids).await?
    };
    if matches!(action, Action::Unlock { force: false }) {
        skip_jobs_of_living_workers(utils, &mut chosen).await?;
    }
    Ok(chosen)
}

/// The jobs of the batch that still match the filter.
pub(super) async fn still_matching(
    utils: &WorkerUtils,
    filter: &JobFilter,
    batch: &[i64],
) -> Result<Vec<i64>, Failure> {
    let filter = JobFilter { ids: Some(batch.to_vec()), limit: PAGE, ..filter.clone() };
    Ok(utils.list_job_ids(&filter).await?)
}

/// Limits the filter to states in which the action is possible.
fn narrowed(action: &Action, filter: JobFilter) -> JobFilter {
    use JobState::{Failed, Ready, Retrying, Running, Scheduled, Waiting};
    let (possible, usual) = match action {
        Action::Unlock { .. } => (vec![Running], vec![Running]),
        Action::Retry => (vec![Ready, Waiting, Scheduled, Retrying, Failed], vec![Retrying, Failed]),
        _ => {
            let idle = vec![Ready, Waiting, Scheduled, Retrying, Failed];
            (idle.clone(), idle)
        }
    };
    let states = match filter.states {
        None => usual,
        Some(states) => states.into_iter().filter(|state| possible.contains(state)).collect(),
    };
    JobFilter { states: Some(states), ..filter }
}

pub(super) async fn all_ids(
    utils: &WorkerUtils,
    filter: &JobFilter,
    limit: Option<usize>,
) -> Result<Vec<i64>, Failure> {
    let limit = limit.unwrap_or(usize::MAX);
    let mut ids: Vec<i64> = Vec::new();
    loop {
        let page =
            JobFilter { after_id: ids.last().copied().or(filter.after_id), limit: PAGE, ..filter.clone() };
        let found = utils.list_job_ids(&page).await?;
        let is_last = found.len() < PAGE as usize;
        ids.extend(found);
        if is_last || ids.len() >= limit {
            ids.truncate(limit);
            return Ok(ids);
        }
    }
}

async fn by_ids(utils: &WorkerUtils, action: &Action, ids: &[i64]) -> Result<Chosen, Failure> {
    let mut states: HashMap<i64, JobState> = HashMap::new();
    for batch in ids.chunks(BATCH) {
        let listed = list(utils, batch).await?;
        states.extend(listed.iter().map(|(job, state)| (job.id(), *state)));
    }
    let mut chosen = Chosen { ids: Vec::new(), skipped: Vec::new(), filter: None };
    let mut seen = HashSet::new();
    for id in ids.iter().copied().filter(|id| seen.insert(*id)) {
        let is_unlock = matches!(action, Action::Unlock { .. });
        match states.get(&id) {
            None => chosen.skipped.push((id, Reason::Unknown)),
            Some(JobState::Running) if !is_unlock => chosen.skipped.push((id, Reason::Running)),
            Some(state) if is_unlock && *state != JobState::Running => {
                chosen.skipped.push((id, Reason::NotLocked))
            }
            Some(_) => chosen.ids.push(id),
        }
    }
    Ok(chosen)
}

/// Skips jobs that a living atta worker has claimed.
async fn skip_jobs_of_living_workers(utils: &WorkerUtils, chosen: &mut Chosen) -> Result<(), Failure> {
    let workers = utils.list_workers().await?;
    let living: HashSet<&str> = workers
        .iter()
        .filter(|worker| worker.status() == WorkerStatus::Alive)
        .map(|worker| worker.id.as_str())
        .collect();
    let mut left = HashSet::new();
    for batch in chosen.ids.chunks(BATCH) {
        let listed = list(utils, batch).await?;
        let of_living =
            listed.iter().filter(|(job, _)| job.locked_by().is_some_and(|worker| living.contains(worker)));
        left.extend(of_living.map(|(job, _)| job.id()));
    }
    chosen.ids.retain(|id| !left.contains(id));
    chosen.skipped.extend(left.into_iter().map(|id| (id, Reason::WorkerIsAlive)));
    Ok(())
}

async fn list(utils: &WorkerUtils, ids: &[i64]) -> Result<Vec<(Job, JobState)>, Failure> {
    let filter = JobFilter { ids: Some(ids.to_vec()), limit: PAGE, ..JobFilter::default() };
    Ok(utils.list_jobs_with_states(&filter).await?)
}
