//! The user that the server runs as when we are root.

use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, chown};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use crate::Error;

/// An unprivileged user.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerUser {
    uid: u32,
    gid: u32,
}

impl ServerUser {
    /// The user for the server, or none if we are not root and can run the server ourselves.
    pub(crate) fn needed() -> Result<Option<ServerUser>, Error> {
        let me = fs::metadata("/proc/self")
            .or_else(|_| fs::metadata(std::env::temp_dir()))
            .map_err(|error| Error::new("finding the current user".into(), error))?
            .uid();
        if me != 0 {
            return Ok(None);
        }
        let passwd = fs::read_to_string("/etc/passwd")
            .map_err(|error| Error::new("reading /etc/passwd".into(), error))?;
        ["postgres", "nobody"].iter().find_map(|name| ServerUser::named(&passwd, name)).map(Some).ok_or_else(
            || Error::text("PostgreSQL refuses to run as root, and there is no user postgres or nobody"),
        )
    }

    fn named(passwd: &str, name: &str) -> Option<ServerUser> {
        let mut fields =
            passwd.lines().map(|line| line.split(':')).find(|fields| fields.clone().next() == Some(name))?;
        let uid = fields.nth(2)?.parse().ok()?;
        let gid = fields.next()?.parse().ok()?;
        Some(ServerUser { uid, gid })
    }

    /// Makes this user the owner of the folder.
    pub(crate) fn give(&self, folder: &Path) -> io::Result<()> {
        chown(folder, Some(self.uid), Some(self.gid))
    }

    /// Runs the command as this user.
    pub(crate) fn become_in(&self, command: &mut Command) {
        command.uid(self.uid).gid(self.gid);
    }
}

/// Runs a command as the user of our servers: PostgreSQL and the programs that start it refuse to run as root.
pub fn run_unprivileged(command: &mut Command) -> Result<(), Error> {
    if let Some(user) = ServerUser::needed()? {
        user.become_in(command);
    }
    Ok(())
}

/// Makes the server's user the owner of a file or a folder.
pub fn give_to_server(path: &Path) -> Result<(), Error> {
    let Some(user) = ServerUser::needed()? else { return Ok(()) };
    user.give(path).map_err(|error| Error::new(format!("changing the owner of {}", path.display()), error))
}

/// Whether the server can reach a folder: if root starts it, it runs as another user, who may not enter every folder.
pub fn can_reach(folder: &Path) -> Result<bool, Error> {
    let Some(user) = ServerUser::needed()? else { return Ok(true) };
    let folder = fs::canonicalize(folder)
        .map_err(|error| Error::new(format!("reading the owner of {}", folder.display()), error))?;
    let may_enter = |place: &Path| {
        fs::metadata(place).is_ok_and(|place| {
            let mode = place.mode();
            match () {
                () if place.uid() == user.uid => mode & 0o100 != 0,
                () if place.gid() == user.gid => mode & 0o010 != 0,
                () => mode & 0o001 != 0,
            }
        })
    };
    Ok(folder.ancestors().all(may_enter))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_user_in_passwd() {
        let passwd = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65533:nobody:/:/usr/sbin/nologin\n";
        let user = ServerUser::named(passwd, "nobody").unwrap();
        assert_eq!((user.uid, user.gid), (65534, 65533));
        assert!(ServerUser::named(passwd, "postgres").is_none());
    }
}
