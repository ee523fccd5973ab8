//! The private PostgreSQL of `atta dev`, in the folder `.atta` of a project.
//!
//! Any number of `atta dev` may run in one project: the first starts the server, the others join, and the server stops
//! with the last. Each has a guard, which is another process of this same program at the other end of a pipe. When
//! `atta dev` ends, in whatever way, its guard notices, and the last guard stops the server. Locks on files show who
//! uses the server; the system releases them when a process ends. A guard shares the lock `users` for as long as it
//! lives, and the process that starts or stops the server holds the lock `start` meanwhile.

mod guard;
mod home;
mod server;

pub(crate) use guard::watch as be_guard;
pub(crate) use home::{Home, running_connection};
pub(crate) use server::{Server, keep_up, reset};
