//! A folder of tasks in any language, for a worker of [`atta`].
//!
//! Each file of the folder is a task, and its path without the extension is the task identifier. A `.js`, `.ts` or `.py`
//! file has a function, which a *host* runs: a process of its language that loads all its tasks once and runs many jobs
//! at a time. Any other executable file is a program, started once per job. The command `atta` runs tasks by this crate
//! too; here they run beside tasks in Rust, in one worker.
//!
//! # Quickstart
//!
//! ```no_run
//! use atta::{Task, TaskResult, WorkerContext, WorkerOptions};
//! use atta_tasks::WorkerOptionsExt;
//!
//! #[derive(serde::Serialize, serde::Deserialize)]
//! struct SendEmail {
//!     to: String,
//! }
//!
//! impl Task for SendEmail {
//!     const IDENTIFIER: &'static str = "send_email";
//!
//!     async fn run(self, _ctx: WorkerContext) -> TaskResult {
//!         println!("an email to {}", self.to);
//!         Ok(())
//!     }
//! }
//!
//! #[tokio::main]
//! async fn main() -> atta::Result<()> {
//!     // First, because this process may be the guard of another: see below.
//!     atta_tasks::run_guard_if_requested();
//!
//!     let worker = WorkerOptions::default()
//!         .database_url("postgres://localhost/app")
//!         .listen_os_shutdown_signals(true)
//!         .define_job::<SendEmail>()
//!         .crontab_file("crontab")?
//!         // The last option: it is followed by options of the folder.
//!         .task_directory("tasks")
//!         .time_limit(std::time::Duration::from_secs(60))
//!         .init()
//!         .await?;
//!     worker.run().await
//! }
//! ```
//!
//! A task that can't be loaded is an error of [`TaskDirectory::init`], and so is a language that is not installed. The
//! log of tasks is written by the crate `tracing`.
//!
//! # Environment variables
//!
//! `ATTA_NODE` and `ATTA_PYTHON` are the paths of the programs `node` and `python3`, if those on the `PATH` must not be
//! used. `ATTA_HOST_RB=ruby host.rb` makes files that end in `.rb` tasks, which are run by a host of yours.
//!
//! # When the application is killed
//!
//! When the worker ends, or its future or the [`TaskWorker`] is dropped, all processes of tasks are ended, with the
//! processes that they have started. If the application is killed in a way to which it can't react (SIGKILL, the
//! system's lack of memory, an abort), the *guard* does that: a second, small process of the same program, which waits
//! for the end of the first. It exists only if `main` calls [`run_guard_if_requested`]. Without this call:
//!
//! - A host ends by itself as soon as the application is gone, unless a task blocks it: an endless loop in JavaScript,
//!   for example.
//! - An executable, and whatever processes a task has started, run on to their end. Their output is lost. Other workers
//!   recover the jobs after the threshold (30 s by default) and start the executables again, so that one job may run
//!   twice at the same time.

#![warn(clippy::print_stdout, clippy::print_stderr)]

// In reading order: the interface, then the folder, then the two ways to run a task.
mod directory;
mod worker;
mod settings;
mod folder;
mod discover;
mod runtime;
mod executable;
mod host;
mod wire;
mod json;
mod lines;
mod guard;

pub use directory::{TaskDirectory, WorkerOptionsExt};
pub use folder::TasksFolder;
pub use guard::run_guard_if_requested;
pub use settings::TasksSettings;
pub use worker::TaskWorker;

/// Compiles the code in the README of this crate as a documentation test.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
