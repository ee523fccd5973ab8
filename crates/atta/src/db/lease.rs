//! A connection of a pool that goes back to the pool only if everything that was sent over it has been answered.
//!
//! A server process that is stopped, or a proxy that hangs, keeps a connection open and never answers. TCP does not
//! notice, since the other machine still acknowledges what is sent. So we wait for each answer only for a while, and
//! then close the connection. The next statement opens another.

use std::ops::{Deref, DerefMut};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_postgres::{Object, Pool};

use super::pool;
use crate::{Error, Result};

/// How long to wait for an answer before the connection is closed. Whether the statement took effect is then unknown.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// How long the server works on a statement before it cancels that, where the session is ours. This is shorter than
/// [`LIMIT`], so that a server that works is never taken for one that hangs.
pub(crate) const SERVER_LIMIT: Duration = Duration::from_secs(50);

/// An answer that takes this long is reported.
const SLOW: Duration = Duration::from_secs(10);

pub(crate) struct Lease {
    /// None only while the lease is dropped.
    client: Option<Object>,
    /// How many statements are under way, or were given up.
    unanswered: AtomicUsize,
}

impl Lease {
    /// Gets a connection of the pool. `doing` names the operation in errors.
    pub(crate) async fn get(pool: &Pool, doing: &str) -> Result<Lease> {
        Ok(Lease::new(pool::get(pool, doing).await?))
    }

    pub(crate) fn new(client: Object) -> Lease {
        Lease { client: Some(client), unanswered: AtomicUsize::new(0) }
    }

    /// Waits until what `work` sends over this connection is answered. If that takes too long, or if the future is
    /// dropped, the connection is closed at the end of the lease.
    pub(crate) async fn answered<T>(&self, doing: &str, work: impl Future<Output = T>) -> Result<T> {
        let others = self.unanswered.fetch_add(1, Ordering::Relaxed);
        tokio::pin!(work);
        let answer = match tokio::time::timeout(SLOW, &mut work).await {
            Ok(answer) => answer,
            Err(_) => {
                let seconds = SLOW.as_secs();
                // Of statements that were sent together, the first says so.
                if others == 0 {
                    tracing::warn!(doing, "the database has not answered for {seconds} seconds; waiting");
                }
                let answer = tokio::time::timeout(LIMIT - SLOW, work).await;
                answer.map_err(|_| Error::unanswered(doing, LIMIT))?
            }
        };
        self.unanswered.fetch_sub(1, Ordering::Relaxed);
        Ok(answer)
    }

    /// Runs a text without parameters, such as `commit`.
    pub(crate) async fn execute_text(&self, doing: &str, sql: &str) -> Result<()> {
        let answer = self.answered(doing, self.batch_execute(sql)).await?;
        answer.map_err(|error| Error::database(doing, error))
    }

    /// Closes the connection, because its transaction is in an unknown state.
    pub(crate) fn discard(self) {
        self.unanswered.fetch_add(1, Ordering::Relaxed);
    }
}

impl Deref for Lease {
    type Target = Object;

    fn deref(&self) -> &Object {
        self.client.as_ref().expect("a lease has its connection until it is dropped")
    }
}

impl DerefMut for Lease {
    fn deref_mut(&mut self) -> &mut Object {
        self.client.as_mut().expect("a lease has its connection until it is dropped")
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if *self.unanswered.get_mut() > 0 {
            // Taken out of the pool, it is closed.
            self.client.take().map(Object::take);
        }
    }
}
