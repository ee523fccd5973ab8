//! One module a command.

pub(crate) mod migrate;
pub(crate) mod bench;
