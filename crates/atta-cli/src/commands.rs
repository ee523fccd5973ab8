//! One module a command.

pub(crate) mod run;
pub(crate) mod dev;
pub(crate) mod init;
pub(crate) mod config;
pub(crate) mod migrate;
pub(crate) mod bench;
