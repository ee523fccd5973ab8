//! How a running worker reacts to changes of its schema. It stops after a migration that this version does not support,
//! restores our own objects if another tool dropped them, and waits if the schema does not exist. It never installs the
//! schema again: it was dropped on purpose, perhaps before a backup is restored.

use std::sync::atomic::Ordering;

use tokio_postgres::Client;

use super::Shared;
use crate::db::lease::Lease;
use crate::migrate::{self, Breaking, Standing};
use crate::{Error, Result};

/// Follows the state of the schema from poll to poll.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Why the worker waits for the schema, if it does.
    waits_for: Option<String>,
}

impl Watch {
    /// Whether the schema is gone, or too old.
    pub(super) fn is_waiting(&self) -> bool {
        self.waits_for.is_some()
    }

    /// Checks the schema if a poll failed because of it, or if `is_asked_for`. An error is a reason to stop.
    pub(super) async fn check(
        &mut self,
        shared: &Shared,
        failure: Option<&Error>,
        is_asked_for: bool,
    ) -> Result<()> {
        if failure.is_none() {
            self.end_wait(shared);
        }
        if !is_asked_for && !failure.is_some_and(is_about_schema) {
            return Ok(());
        }
        match examine(shared).await {
            Ok(Standing::TooNew(error)) => return Err(error),
            Ok(Standing::Absent) => {
                self.wait(shared, "it does not exist; to install it, run: atta migrate".into())
            }
            Ok(Standing::Behind(error)) => self.wait(shared, error.to_string()),
            Ok(Standing::Usable) if failure.is_some() => restore_own_objects(shared).await,
            Ok(Standing::Usable) => {}
            Err(error) => {
                tracing::warn!(%error, "could not check the schema; retrying");
                // The next poll tries again.
                shared.check_schema.fetch_or(is_asked_for, Ordering::Relaxed);
            }
        }
        Ok(())
    }

    /// Logs each reason once.
    fn wait(&mut self, shared: &Shared, reason: String) {
        if self.waits_for.as_ref() != Some(&reason) {
            let schema = shared.utils.schema().name();
            tracing::error!(
                schema,
                reason,
                "the schema was dropped or replaced; the worker waits until it can be used"
            );
            self.waits_for = Some(reason);
        }
    }

    fn end_wait(&mut self, shared: &Shared) {
        if self.waits_for.take().is_some() {
            tracing::warn!(schema = shared.utils.schema().name(), "the schema can be used again");
        }
    }
}

/// An object is missing, or is not what it should be.
fn is_about_schema(error: &Error) -> bool {
    error.db_code().is_some_and(|code| code == "3F000" || (code.starts_with("42") && code != "42501"))
}

async fn examine(shared: &Shared) -> Result<Standing> {
    let doing = "checking the schema";
    let lease = Lease::get(&shared.poll_pool, doing).await?;
    let client: &Client = &lease;
    lease.answered(doing, migrate::examine(client, shared.utils.schema())).await?
}

/// Another tool may have dropped our tables. Creates them again; if that fails, the worker continues without them.
async fn restore_own_objects(shared: &Shared) {
    match shared.utils.migrate_with(Breaking::Refused).await {
        Ok(plan) if plan.is_empty() => {}
        Ok(_) => tracing::info!("tables of atta were missing from the schema and were created again"),
        Err(error) => tracing::warn!(%error, "tables of atta are missing from the schema"),
    }
}
