//! The folder of tasks: real programs, real hosts, a real worker.
//!
//! Most tests use the crate `atta-tasks` without the commands around it; the others run the binary.
#![allow(missing_docs)]
// Also in helper functions of the tests.
#![allow(clippy::unwrap_used)]

mod beside_node;
mod connections;
mod deploy;
mod executables;
mod given_up;
mod hosts;
mod javascript;
mod odd;
mod log;
mod misuse;
mod python;
mod rough;
mod speed;
mod support;
