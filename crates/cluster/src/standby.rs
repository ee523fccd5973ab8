//! A second server that replicates the first, and can be promoted when the first is gone.

use std::fs;

use crate::{Cluster, Error, THROW_AWAY, temporary_folder};

impl Cluster {
    /// Starts a temporary cluster that streams from this one, which must accept replication as a new cluster does. Its
    /// application name on the primary is `standby`.
    pub fn standby(&self, settings: &[&str]) -> Result<Cluster, Error> {
        let folder = temporary_folder();
        let mut standby = Cluster::unmade(&self.binaries, &folder, None)?;
        let context = || format!("creating the folder {}", folder.display());
        fs::create_dir_all(&folder).map_err(|error| Error::new(context(), error))?;
        if let Some(user) = &standby.user {
            user.give(&folder).map_err(|error| Error::new(context(), error))?;
        }
        standby.start_guard()?;
        let mut backup = standby.command("pg_basebackup");
        backup.args(["--host=127.0.0.1", "--username=postgres", "--checkpoint=fast", "--wal-method=stream"]);
        backup.args(["--write-recovery-conf", "--no-sync", "--port", &self.port.to_string(), "-D"]);
        standby.run(backup.arg(standby.data()), "copying the primary")?;
        standby.launch(&[THROW_AWAY, &["cluster_name=standby"], settings].concat(), None)?;
        Ok(standby)
    }

    /// Promotes a standby, and waits until it is a primary.
    pub fn promote(&self) -> Result<(), Error> {
        self.run(self.pg_ctl().args(["promote", "-w"]), "promoting the standby")
    }
}
