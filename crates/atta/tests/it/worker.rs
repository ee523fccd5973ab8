//! The worker, through its public API.

mod basics;
pub(crate) mod support;
