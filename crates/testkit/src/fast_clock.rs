//! Time that passes faster, for whole processes that do not know about it: libfaketime, loaded before the C library.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Instant;

use atta_cluster::Binaries;

/// Where distributions put the library.
const FOLDERS: [&str; 4] =
    ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib64", "/usr/lib"];

/// A clock that shows a given time when it is created, and then runs a number of times as fast as the real one. The
/// timers and waits of the processes that get it are as fast.
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

    /// The time that it shows, in seconds since 1970.
    pub fn now(&self) -> u64 {
        self.start + (self.made.elapsed() * self.speed).as_secs()
    }

    /// Makes the process that is about to start use this clock.
    pub fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", library())
            .env("FAKETIME_FMT", "%s")
            .env("FAKETIME", format!("@{} x{}", self.now(), self.speed))
            .env("TZ", "UTC");
    }
}

/// The time of day of processes that get it, which can be moved forward and back while they run. Their timers are not
/// affected, as with a real clock that somebody sets.
#[derive(Debug)]
pub struct SetClock {
    file: PathBuf,
}

impl SetClock {
    /// A clock that shows the right time. Its offset is written to this file, which other users may have to read.
    pub fn new(file: PathBuf) -> SetClock {
        let clock = SetClock { file };
        clock.set(0);
        clock
    }

    /// Sets it this many seconds ahead of the real time, or behind it if negative, for all processes that have it.
    pub fn set(&self, seconds: i64) {
        // A reader must never see a half-written file.
        let next = self.file.with_extension("next");
        std::fs::write(&next, format!("{seconds:+}")).expect("the clock's file is written");
        std::fs::rename(&next, &self.file).expect("the clock's file is put in place");
    }

    /// Makes the process that is about to start use this clock.
    pub fn give_to(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", library())
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_CACHE_DURATION", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1");
    }
}

impl SetClock {
    /// PostgreSQL binaries whose server uses this clock: links to the given ones, and a `pg_ctl` that sets the clock.
    pub fn server_binaries(&self, binaries: &Binaries) -> Binaries {
        let folder = self.file.with_extension("bin");
        std::fs::create_dir_all(&folder).expect("a folder for programs");
        let programs = std::fs::read_dir(binaries.folder()).expect("the folder of PostgreSQL's programs");
        for program in programs.flatten().filter(|program| program.file_name() != "pg_ctl") {
            std::os::unix::fs::symlink(program.path(), folder.join(program.file_name())).expect("a link");
        }
        let script = format!(
            "#!/bin/sh\nLD_PRELOAD={} FAKETIME_TIMESTAMP_FILE={} FAKETIME_NO_CACHE=1 FAKETIME_DONT_FAKE_MONOTONIC=1 \\\n\
             exec {} \"$@\"\n",
            library().with_file_name("libfaketimeMT.so.1").display(),
            self.file.display(),
            binaries.folder().join("pg_ctl").display()
        );
        let pg_ctl = folder.join("pg_ctl");
        std::fs::write(&pg_ctl, script).expect("pg_ctl is written");
        std::fs::set_permissions(&pg_ctl, Permissions::from_mode(0o755)).expect("pg_ctl can be executed");
        Binaries::at(folder).expect("the programs are complete")
    }
}

impl Drop for SetClock {
    fn drop(&mut self) {
        // A few bytes in a folder for temporary files.
        let _ = std::fs::remove_file(&self.file);
        let _ = std::fs::remove_dir_all(self.file.with_extension("bin"));
    }
}

fn library() -> PathBuf {
    FOLDERS
        .iter()
        .map(|folder| Path::new(folder).join("faketime/libfaketime.so.1"))
        .find(|library| library.exists())
        .expect("libfaketime is installed (cargo xtask test does it)")
}
