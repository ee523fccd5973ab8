//! The worker, through its public API.

mod basics;
mod support;
