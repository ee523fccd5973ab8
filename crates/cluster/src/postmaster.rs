//! The process that owns a cluster's folder, as its file `postmaster.pid` tells it.

use std::fs;
use std::path::Path;
use std::process::Command;

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Postmaster {
    pid: u32,
    pub(crate) port: u16,
}

impl Postmaster {
    /// The one that runs on this folder of data.
    pub(crate) fn alive(data: &Path) -> Option<Postmaster> {
        let postmaster = Postmaster::parse(&fs::read_to_string(data.join("postmaster.pid")).ok()?)?;
        postmaster.is_on(data).then_some(postmaster)
    }

    /// Removes the file of one that has died. PostgreSQL takes any process of that number for it: after a crash of the
    /// machine, or in a new container, another process soon has the number.
    pub(crate) fn forget_dead(data: &Path) {
        let file = data.join("postmaster.pid");
        let Ok(text) = fs::read_to_string(&file) else { return };
        if Postmaster::parse(&text).is_none_or(|postmaster| !postmaster.is_on(data)) {
            // If it stays, PostgreSQL says so itself.
            let _ = fs::remove_file(file);
        }
    }

    /// Lines: process, folder, time of start, port, and more.
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

/// The words with which a process was started, where it lives.
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
