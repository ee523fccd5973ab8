//! The private PostgreSQL of `atta dev`, in the folder `.atta` of a project.
//!
//! Any number of `atta dev` may run in one project: the first starts the server, the others join, and it stops with
//! the last. Each has a guard beside it, a process of this same program at the other end of a pipe: when `atta dev`
//! ends, in whatever way, its guard notices, and the last guard stops the server. Who is there is told by locks on
//! files, which the system takes back from the dead: a guard shares the lock `users` for as long as it lives, and
//! whoever starts or stops the server has the lock `start` meanwhile.

mod guard;
mod home;
mod server;

pub(crate) use guard::watch as be_guard;
pub(crate) use home::{Home, running_connection};
pub(crate) use server::{Server, keep_up, reset};
