//! The process that owns a cluster's folder, according to its file `postmaster.pid`.

use std::fs;
use std::io;
use std::path::Path;
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Postmaster {
    pid: u32,
    pub(crate) port: u16,
}

impl Postmaster {
    /// The postmaster that runs in this data folder.
    pub(crate) fn alive(data: &Path) -> Option<Postmaster> {
        let postmaster = Postmaster::parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)?;
        postmaster.is_on(data).then_some(postmaster)
    }

    /// Removes the pid file of a dead postmaster. PostgreSQL assumes that any process with that number is the
    /// postmaster: after a crash of the machine, or in a new container, another process may have the number.
    pub(crate) fn forget_dead(data: &Path) {
        let file = data.join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&file) else { return };
        if Postmaster::parse(&text).is_none_or(|postmaster| !postmaster.is_on(data)) {
            // If the file stays, PostgreSQL reports an error itself.
            let _ = fs::remove_file(file);
        }
    }

    /// Kills the postmaster and its children, and waits until they are gone, because the next server needs their shared
    /// memory to be free. The children are listed first, since they lose their parent when it ends; the postmaster is
    /// stopped meanwhile, so that it starts no more of them.
    pub(crate) fn kill(&self) -> io::Result<()> {
        let script = r#"
kill -STOP "$1"
children=$(ps -o pid= --ppid "$1")
kill -9 "$1" $children 2>/dev/null
for process in "$1" $children; do
  while kill -0 "$process" 2>/dev/null && ! ps -o stat= -p "$process" | grep -q Z; do sleep 0.02; done
done
"#;
        let pid = self.pid.to_string();
        let mut shell = Command::new("/bin/sh").args(["-c", script, "kill-postgres", &pid]).spawn()?;
        let start = Instant::now();
        while shell.try_wait()?.is_none() {
            if start.elapsed() > Duration::from_secs(30) {
                shell.kill()?;
                return Err(io::Error::other("its processes did not end"));
            }
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// The lines of the file: process, folder, start time, port, and more.
    fn parse(text: &str) -> Option<Postmaster> {
        let mut lines = text.lines();
        let pid = lines.next()?.trim().parse().ok()?;
        let port = lines.nth(2)?.trim().parse().ok()?;
        Some(Postmaster { pid, port })
    }

    fn is_on(&self, data: &Path) -> bool {
        let data = data.to_string_lossy();
        command_line(self.pid).is_some_and(|line| line.contains(&*data))
    }
}

/// The command line of a process, where the system provides it.
fn command_line(pid: u32) -> Option<String> {
    if Path::new("/proc/self/cmdline").exists() {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        return Some(String::from_utf8_lossy(&line).into_owned());
    }
    let said = Command::new("ps").args(["-o", "command=", "-p", &pid.to_string()]).output().ok()?;
    Some(String::from_utf8_lossy(&said.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_another_process_has_now_is_no_postmaster() {
        let data = std::env::temp_dir().join(format!("atta-postmaster-{}", std::process::id()));
        fs::create_dir_all(&data).unwrap();
        let text = format!("{}\n{}\n1700000000\n54321\n\n127.0.0.1\n", std::process::id(), data.display());
        assert_eq!(Postmaster::parse(&text).unwrap().port, 54321);
        fs::write(data.join("postmaster.pid"), text).unwrap();
        assert_eq!(Postmaster::alive(&data), None);
        Postmaster::forget_dead(&data);
        assert!(!data.join("postmaster.pid").exists());
        fs::remove_dir_all(data).unwrap();
    }
}
