//! The guard of a temporary cluster: a shell that waits at the other end of a pipe.
//!
//! The pipe closes when this process ends for any reason: a return, a panic, Ctrl-C, `kill -9`. Then the guard stops
//! the server and removes the folder. It has its own process group, so that Ctrl-C does not reach it.

use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use crate::Error;
use crate::user::ServerUser;

#[derive(Debug)]
pub(crate) struct Guard {
    process: Child,
    pipe: ChildStdin,
}

const SCRIPT: &str = r#"
read -r _
"$1" -D "$2/data" stop -m immediate -w -t 30 >/dev/null 2>&1
rm -rf -- "$2"
"#;

impl Guard {
    pub(crate) fn over(pg_ctl: &Command, folder: &Path, user: Option<&ServerUser>) -> Result<Guard, Error> {
        let mut command = Command::new("/bin/sh");
        command
            .args(["-c", SCRIPT, "atta-cluster-guard"])
            .arg(pg_ctl.get_program())
            .arg(folder)
            .current_dir("/")
            .process_group(0)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        // As the server's user, the guard may signal the server and empty the folder. In a sticky /tmp, only the owner
        // may remove the folder itself, and this user owns it.
        if let Some(user) = user {
            user.become_in(&mut command);
        }
        let failed = |error| Error::new("starting the guard of a temporary cluster".into(), error);
        let mut process = command.spawn().map_err(failed)?;
        let Some(pipe) = process.stdin.take() else {
            return Err(Error::text("the guard of a temporary cluster has no standard input"));
        };
        Ok(Guard { process, pipe })
    }

    /// Closes the pipe, so that the guard does its work now, and waits for it.
    pub(crate) fn finish(mut self) -> Result<(), Error> {
        drop(self.pipe);
        self.process
            .wait()
            .map_err(|error| Error::new("waiting for the guard of a cluster".into(), error))?;
        Ok(())
    }
}
