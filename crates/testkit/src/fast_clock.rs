//! Time that passes faster, for whole processes that know nothing of it: libfaketime, loaded before the C library.

use std::path::Path;
use std::process::Command;
use std::time::Instant;

/// Where distributions put the library.
const FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// A clock that shows a given time when it is made, and then runs so many times as fast as ours. Timers of the
/// processes that get it, and what they wait for, are as fast.
#[derive(Clone, Copy, Debug)]
pub struct FastClock {
    made: Instant,
    /// Seconds since 1970.
    start: u64,
    speed: u32,
}

impl FastClock {
    /// `start` in seconds since 1970.
    pub fn new(start: u64, speed: u32) -> FastClock {
        FastClock { made: Instant::now(), start, speed }
    }

    /// What it shows, in seconds since 1970.
    pub fn now(&self) -> u64 {
        self.start + (self.made.elapsed() * self.speed).as_secs()
    }

    /// Has the process that is about to start go by this clock.
    pub fn give_to(&self, command: &mut Command) {
        let library = FOLDERS
            .iter()
            .map(|folder| Path::new(folder).join("faketime/libfaketime.so.1"))
            .find(|library| library.exists())
            .expect("libfaketime is installed (cargo xtask test does it)");
        command
            .env("LD_PRELOAD", library)
            .env("FAKETIME_FMT", "%s")
            .env("FAKETIME", format!("@{} x{}", self.now(), self.speed))
            .env("TZ", "UTC");
    }
}
