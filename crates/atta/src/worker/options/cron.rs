//! The options for recurring jobs.

use std::path::Path;

use super::WorkerOptions;
use crate::cron::{Cron, CronItems};
use crate::{Error, Result};

impl WorkerOptions {
    /// Adds recurring jobs: typed items, or the text of a crontab. A text may contain mistakes, so this returns a
    /// `Result` for it.
    pub fn with_cron<C: IntoCron>(self, cron: C) -> C::Output {
        cron.add_to(self)
    }

    /// Adds recurring jobs, as [`WorkerOptions::with_cron`] does with a `Vec`.
    pub fn with_crons(self, items: impl IntoIterator<Item = Cron>) -> WorkerOptions {
        self.with_cron(items.into_iter().collect::<Vec<_>>())
    }

    /// Adds the recurring jobs of a crontab file, which must exist. The file is read once, in this call.
    pub fn crontab_file(self, path: impl AsRef<Path>) -> Result<WorkerOptions> {
        let path = path.as_ref();
        let text = std::fs::read_to_string(path)
            .map_err(|error| Error::config(format!("can't read the crontab {}: {error}", path.display())))?;
        let items = crate::cron::parse_crontab(&text)
            .map_err(|errors| Error::config(format!("invalid crontab {}\n{errors}", path.display())))?;
        Ok(self.with_crons(items))
    }
}

/// The types that [`WorkerOptions::with_cron`] accepts: typed items, for which it returns the options, and text, for
/// which it returns a `Result`.
pub trait IntoCron {
    /// `WorkerOptions`, or a `Result` with them.
    type Output;

    /// Adds the items to the options.
    fn add_to(self, options: WorkerOptions) -> Self::Output;
}

impl IntoCron for Cron {
    type Output = WorkerOptions;

    fn add_to(self, mut options: WorkerOptions) -> WorkerOptions {
        options.cron.push(self);
        options
    }
}

impl IntoCron for Vec<Cron> {
    type Output = WorkerOptions;

    fn add_to(self, mut options: WorkerOptions) -> WorkerOptions {
        options.cron.extend(self);
        options
    }
}

/// A list that the application may change while the worker runs.
impl IntoCron for CronItems {
    type Output = WorkerOptions;

    fn add_to(self, mut options: WorkerOptions) -> WorkerOptions {
        options.plan.cron = self;
        options.plan.cron_may_grow = true;
        options
    }
}

impl IntoCron for &str {
    type Output = Result<WorkerOptions>;

    fn add_to(self, mut options: WorkerOptions) -> Result<WorkerOptions> {
        options.cron.extend(crate::cron::parse_crontab(self)?);
        Ok(options)
    }
}
