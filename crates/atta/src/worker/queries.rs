//! The worker's statements: one function per file in `sql/queries`, named like its file. The text of a statement and
//! the list of its parameters are in its function and nowhere else. The function also decodes the rows.
//!
//! A statement that is sent together with others has a function in two steps. The first step prepares it, and returns a
//! future. The future sends the statement as soon as it is polled, so several of them that are joined are sent in their
//! order, and are one round trip.
//!
//! [`Connection`] knows how the statements are sent.

mod claim;
mod fleet;
mod hold;
mod poll;
mod release;
mod rows;

use std::collections::HashMap;
use std::future::Future;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use futures_util::future::{join_all, join3};
use tokio_postgres::types::{ToSql, Type};
use tokio_postgres::{Row, Statement};

use super::Shared;
use crate::db::lease::Lease;
use crate::{Error, Result, Schema};

pub(super) use claim::{
    LockedJob, Promoted, claim_by_job, claim_by_queue, claim_level, fail_unreadable_jobs, find_claimable,
    mark_claimed, promote_untouched, read_payload, refresh_locks,
};
pub(super) use fleet::{Unanswered, find_unanswered, read_fleet};
pub(super) use hold::{
    FoundLevels, complete_held, end_scan_turn, fail_held, find_levels, pick_flagged_jobs, pick_jobs,
    pick_level, pick_level_in_turn, postpone_held, promote_held, take_scan_turn,
};
pub(super) use poll::{Polled, poll};
pub(super) use release::{
    Claims, Failures, Fates, complete_claim, complete_claimed, complete_claimed_queued,
    complete_many_claimed, fail_claimed, find_unknown, return_claimed,
};
pub(super) use rows::{ClaimedRows, MANY, PickedRows};

const BEGIN: &str = "begin isolation level read committed";

/// Makes deferred triggers of the application fire at the end of each statement. In the commit, the server has no time
/// limit for them.
pub(super) const FIRE_AT_ONCE: &str = "set constraints all immediate";

/// The texts of statements with the schema's name. Each is filled when it is first used.
#[derive(Debug)]
pub(crate) struct Texts {
    schema: Schema,
    /// By the address of the template.
    filled: Mutex<HashMap<usize, Arc<str>>>,
}

impl Texts {
    pub(crate) fn new(schema: Schema) -> Texts {
        Texts { schema, filled: Mutex::default() }
    }

    pub(crate) fn get(&self, template: &'static str) -> Arc<str> {
        let mut filled = self.filled.lock().unwrap_or_else(PoisonError::into_inner);
        let text = filled.entry(template.as_ptr().addr());
        text.or_insert_with(|| self.schema.fill(template).into()).clone()
    }
}

/// One of the worker's connections, for the functions of statements.
#[derive(Clone, Copy)]
pub(crate) struct Connection<'a> {
    pub(crate) shared: &'a Shared,
    pub(crate) client: &'a Lease,
}

impl<'a> Connection<'a> {
    /// Prepares a statement once per connection, where that is possible.
    pub(crate) async fn prepare(
        self,
        doing: &'static str,
        template: &'static str,
        types: &'static [Type],
    ) -> Result<Prepared<'a>> {
        let text = self.shared.texts.get(template);
        let statement = match self.shared.use_prepared {
            true => {
                let prepared = self.client.prepare_typed_cached(&text, types);
                let prepared = self.client.answered(doing, prepared).await?;
                Some(prepared.map_err(|error| Error::database(doing, error))?)
            }
            false => None,
        };
        Ok(Prepared { client: self.client, doing, text, types, statement })
    }

    /// Runs a prepared statement that is a transaction by itself. Always at read committed: a session that is not ours
    /// may have another default.
    pub(crate) async fn alone<T>(self, doing: &str, statement: impl Future<Output = Result<T>>) -> Result<T> {
        self.alone_after(BEGIN, doing, statement).await
    }

    /// The same with other settings for sessions that are not ours.
    pub(super) async fn alone_after<T>(
        self,
        begin: &str,
        doing: &str,
        statement: impl Future<Output = Result<T>>,
    ) -> Result<T> {
        let mut answers = if self.shared.has_triggers.load(Ordering::Relaxed) {
            self.within(&format!("{begin}; {FIRE_AT_ONCE}"), doing, [statement]).await?
        } else if self.shared.is_own_session {
            return statement.await;
        } else {
            self.within(begin, doing, [statement]).await?
        };
        answers.pop().ok_or_else(|| Error::internal(format!("{doing}: no statement was sent")))
    }

    /// Runs prepared statements in a transaction. All is sent before the first is answered.
    pub(crate) async fn within<T>(
        self,
        begin: &str,
        doing: &str,
        statements: impl IntoIterator<Item = impl Future<Output = Result<T>>>,
    ) -> Result<Vec<T>> {
        let (begun, answers, committed) = join3(
            self.client.execute_text(doing, begin),
            join_all(statements),
            self.client.execute_text(doing, "commit"),
        )
        .await;
        begun?;
        let answers = answers.into_iter().collect::<Result<_>>()?;
        committed?;
        Ok(answers)
    }
}

/// A statement that can be sent at once: it is prepared, or is sent with its text.
pub(crate) struct Prepared<'a> {
    client: &'a Lease,
    doing: &'static str,
    text: Arc<str>,
    types: &'static [Type],
    statement: Option<Statement>,
}

pub(crate) type Value<'a> = &'a (dyn ToSql + Sync);

impl Prepared<'_> {
    /// Sends the statement, and returns its rows.
    pub(crate) async fn query(&self, values: &[Value<'_>]) -> Result<Vec<Row>> {
        let rows = async {
            match &self.statement {
                Some(statement) => self.client.query(statement, values).await,
                None => self.client.query_typed(&self.text, &self.typed(values)).await,
            }
        };
        self.client.answered(self.doing, rows).await?.map_err(|error| self.failed(error))
    }

    /// Sends the statement, and returns how many rows it changed.
    async fn execute(&self, values: &[Value<'_>]) -> Result<u64> {
        let count = async {
            match &self.statement {
                Some(statement) => self.client.execute(statement, values).await,
                None => self.client.execute_typed(&self.text, &self.typed(values)).await,
            }
        };
        self.client.answered(self.doing, count).await?.map_err(|error| self.failed(error))
    }

    fn typed<'v>(&self, values: &[Value<'v>]) -> Vec<(Value<'v>, Type)> {
        debug_assert_eq!(values.len(), self.types.len(), "{}", self.text);
        values.iter().copied().zip(self.types.iter().cloned()).collect()
    }

    fn failed(&self, error: tokio_postgres::Error) -> Error {
        Error::database(self.doing, error)
    }
}

/// An error for rows that are not as the statement returns them.
fn unexpected(doing: &str) -> Error {
    Error::unavailable(format!("{doing}: unexpected response from the database"))
}
