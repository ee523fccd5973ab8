//! One module per command.

pub(crate) mod run;
pub(crate) mod dev;
pub(crate) mod init;
pub(crate) mod config;
pub(crate) mod migrate;
pub(crate) mod bench;

// Commands that read or manage jobs: first what they share, then in the order of the help page.
mod filter;
mod interrupt;
mod open;
pub(crate) mod add;
pub(crate) mod jobs;
pub(crate) mod show;
pub(crate) mod manage;
pub(crate) mod queues;
pub(crate) mod tasks;
pub(crate) mod workers;
pub(crate) mod stats;
pub(crate) mod cleanup;
pub(crate) mod cron;
pub(crate) mod completions;
pub(crate) mod man;
