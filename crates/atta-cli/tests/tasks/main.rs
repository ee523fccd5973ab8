//! The folder of tasks: real programs, real hosts, a real worker.
//!
//! The tests include the module of the binary, so that they can use it without the commands around it.
#![allow(missing_docs)]
// Also in helper functions of the tests.
#![allow(clippy::unwrap_used)]

#[allow(dead_code, reason = "the binary uses all of it")]
#[path = "../../src"]
mod binary {
    pub(crate) mod output;
    pub(crate) mod tasks;
}
pub(crate) use binary::{output, tasks};

mod beside_node;
mod connections;
mod deploy;
mod executables;
mod given_up;
mod hosts;
mod javascript;
mod odd;
mod log;
mod python;
mod rough;
mod speed;
mod support;
