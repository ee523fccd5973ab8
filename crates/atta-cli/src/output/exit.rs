//! The exit codes.

/// The exit codes of all commands, besides 0 for success. The page docs/reference/exit-codes.md of the book is made from
/// the comments below: they are texts for users, in Markdown.
pub(crate) struct Exit;

impl Exit {
    /// The result is negative: no such job, nothing to remove, a crontab with mistakes, or jobs that were skipped. It is
    /// not an error.
    pub(crate) const NEGATIVE: u8 = 1;

    /// A worker was cut short: by a second signal, by a signal during `--once`, or by a signal before it had started, for
    /// example while it waited for a database. Running jobs were returned.
    pub(crate) const CUT_SHORT: u8 = 1;

    /// `--once --fail-on-error`: an attempt of a job failed during this run.
    pub(crate) const FAILED: u8 = 1;

    /// An error, or invalid usage: an unknown option, an invalid setting, a database that refused, a task that can't be
    /// loaded, or a missing confirmation.
    pub(crate) const ERROR: u8 = 2;

    /// SIGINT or SIGTERM ended a command that changes jobs. `atta add` cancelled its statement, and reported whether the
    /// job was added. A command that works in batches finished its current batch, and reported how many jobs it had
    /// changed and how to continue.
    pub(crate) const INTERRUPTED: u8 = 130;
}
