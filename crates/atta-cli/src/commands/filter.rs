//! Which jobs: the options that listing and managing jobs have in common.

use atta::{JobFilter, JobState, WorkerUtils};
use chrono::{DateTime, Utc};
use clap::{Args as ClapArgs, ValueEnum};

use crate::output::Failure;
use crate::output::time::{When, parse_ago, parse_span_ago};

#[derive(Debug, Default, ClapArgs)]
#[command(next_help_heading = "Which jobs")]
pub(crate) struct Filter {
    /// Only jobs in this state; separate several by commas
    #[arg(long, value_enum, value_delimiter = ',', value_name = "STATE", hide_possible_values = false)]
    pub(crate) state: Vec<StateChoice>,

    /// Only jobs of this task
    #[arg(long, value_name = "TASK")]
    pub(crate) task: Option<String>,

    /// Only jobs in this queue
    #[arg(long, value_name = "NAME")]
    pub(crate) queue: Option<String>,

    /// Only the job with this job key
    #[arg(long, value_name = "KEY", visible_alias = "job-key")]
    pub(crate) key: Option<String>,

    /// Only jobs that this worker has locked
    #[arg(long, value_name = "ID")]
    pub(crate) worker: Option<String>,

    /// Only jobs that are older than this (30s, 5m, 2h, 1d, 1w), or were added before this time (RFC 3339)
    #[arg(long, value_name = "AGE", value_parser = parse_ago)]
    pub(crate) older_than: Option<When>,

    /// Only jobs whose last attempt failed within this time (30s, 5m, 2h, 1d, 1w), or since this time (RFC 3339)
    ///
    /// The time is the job's updated_at, which workers of atta set when a job fails. Rescheduling a job and adding it again by
    /// its key set it as well. Workers of graphile-worker do not set it when a job fails.
    #[arg(long, value_name = "TIME", value_parser = parse_ago)]
    pub(crate) failed_since: Option<When>,

    /// Only jobs that a worker has had for longer than this: 30s, 5m, 2h, 1d, 1w
    #[arg(long, value_name = "DURATION", value_parser = parse_span_ago)]
    pub(crate) running_for: Option<When>,

    /// Only jobs whose last error contains this text
    #[arg(long, value_name = "TEXT")]
    pub(crate) error: Option<String>,
}

/// See `atta::JobState`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StateChoice {
    /// Due: the next free worker takes it
    Ready,
    /// Due, but another job of its queue is running
    Waiting,
    /// Not due yet
    Scheduled,
    /// Failed, and not yet due again
    Retrying,
    /// A worker has it
    #[value(alias = "locked")]
    Running,
    /// No attempt is left
    #[value(alias = "permanently-failed", alias = "permafailed")]
    Failed,
}

impl StateChoice {
    fn state(self) -> JobState {
        match self {
            StateChoice::Ready => JobState::Ready,
            StateChoice::Waiting => JobState::Waiting,
            StateChoice::Scheduled => JobState::Scheduled,
            StateChoice::Retrying => JobState::Retrying,
            StateChoice::Running => JobState::Running,
            StateChoice::Failed => JobState::Failed,
        }
    }
}

impl Filter {
    /// Whether it matches all jobs.
    pub(crate) fn is_empty(&self) -> bool {
        self.conditions() == 0
    }

    /// The key, if it is the only condition.
    pub(crate) fn only_key(&self) -> Option<&str> {
        self.key.as_deref().filter(|_| self.conditions() == 1)
    }

    /// The worker, if it is the only condition.
    pub(crate) fn only_worker(&self) -> Option<&str> {
        self.worker.as_deref().filter(|_| self.conditions() == 1)
    }

    fn conditions(&self) -> usize {
        let texts = [&self.task, &self.queue, &self.key, &self.worker, &self.error];
        let texts = texts.iter().filter(|text| text.is_some()).count();
        let times = [self.older_than.is_some(), self.failed_since.is_some(), self.running_for.is_some()];
        texts + times.iter().filter(|is_set| **is_set).count() + usize::from(!self.state.is_empty())
    }

    /// The filter for the library. Durations count from the present by the database's clock, which sets the times of jobs.
    pub(crate) async fn to_job_filter(&self, utils: &WorkerUtils) -> Result<JobFilter, Failure> {
        let states: Vec<JobState> = self.state.iter().map(|choice| choice.state()).collect();
        Ok(JobFilter {
            states: (!states.is_empty()).then_some(states),
            task_identifier: self.task.clone(),
            queue_name: self.queue.clone(),
            key: self.key.clone(),
            error_contains: self.error.clone(),
            created_before: on(self.older_than, utils).await?,
            failed_since: on(self.failed_since, utils).await?,
            locked_before: on(self.running_for, utils).await?,
            locked_by: self.worker.clone(),
            ..JobFilter::default()
        })
    }
}

async fn on(when: Option<When>, utils: &WorkerUtils) -> Result<Option<DateTime<Utc>>, Failure> {
    match when {
        Some(when) => when.on(utils).await.map(Some),
        None => Ok(None),
    }
}
