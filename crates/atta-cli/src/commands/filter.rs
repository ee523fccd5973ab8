//! Which jobs: the options that listing and managing jobs have in common.

use atta::{JobFilter, JobState};
use chrono::{DateTime, Utc};
use clap::{Args as ClapArgs, ValueEnum};

use crate::output::time::parse_past;

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
    #[arg(long, value_name = "AGE", value_parser = parse_past)]
    pub(crate) older_than: Option<DateTime<Utc>>,

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
        self.state.is_empty() && self.is_empty_but_for_states()
    }

    fn is_empty_but_for_states(&self) -> bool {
        let texts = [&self.task, &self.queue, &self.key, &self.worker, &self.error];
        texts.iter().all(|text| text.is_none()) && self.older_than.is_none()
    }

    /// The key, if it is the only condition.
    pub(crate) fn only_key(&self) -> Option<&str> {
        let key = self.key.as_deref()?;
        let rest = [&self.task, &self.queue, &self.worker, &self.error];
        let is_alone = rest.iter().all(|text| text.is_none()) && self.older_than.is_none();
        (is_alone && self.state.is_empty()).then_some(key)
    }

    /// The worker, if it is the only condition.
    pub(crate) fn only_worker(&self) -> Option<&str> {
        let worker = self.worker.as_deref()?;
        let rest = [&self.task, &self.queue, &self.key, &self.error];
        let is_alone = rest.iter().all(|text| text.is_none()) && self.older_than.is_none();
        (is_alone && self.state.is_empty()).then_some(worker)
    }

    pub(crate) fn to_job_filter(&self) -> JobFilter {
        let states: Vec<JobState> = self.state.iter().map(|choice| choice.state()).collect();
        JobFilter {
            states: (!states.is_empty()).then_some(states),
            task_identifier: self.task.clone(),
            queue_name: self.queue.clone(),
            key: self.key.clone(),
            error_contains: self.error.clone(),
            created_before: self.older_than,
            locked_by: self.worker.clone(),
            ..JobFilter::default()
        }
    }
}
