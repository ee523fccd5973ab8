//! The messages between worker and host: one JSON object per line, as docs/guides/hosts.md describes them.
//!
//! [`WorkerMessage`] goes from the worker to the host, and is only encoded here. [`HostMessage`] goes from the host to
//! the worker, and is only decoded here. `new_job.rs` has the jobs that a host asks the worker to add.

mod host_message;
mod new_job;
mod worker_message;

pub(super) use host_message::{Failure, HostMessage, LogEntry, LogLevel, Pong, Unreadable};
pub(super) use new_job::{NewJob, jobs_to_add};
pub(super) use worker_message::{AddError, Hello, HostedTask, WorkerMessage};
