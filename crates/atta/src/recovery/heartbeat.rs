//! The heartbeat: one small statement, on a connection that nothing else uses, from the start of a worker to its end.
//!
//! Nothing that can wait (a pool, a poll, a row lock, application code) runs on this connection. It does not belong to
//! a pool, and its statements have time limits on the server. Each attempt has a time limit here as well: one that is
//! not answered is abandoned and repeated on a new connection, without an end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{ClientWrapper, Pool};
use tokio_postgres::Row;
use tokio_postgres::types::{ToSql, Type};
use tokio_util::sync::CancellationToken;

use super::continuity;
use crate::db::ConnectionSettings;
use crate::db::pool::{self, SESSION, StatementLimits};
use crate::event::WorkerEvent;
use crate::worker::{Backoff, Shared};
use crate::{Error, Result};

/// How many heartbeats are sent within a threshold.
pub(crate) const PER_THRESHOLD: u32 = 6;

/// One attempt may take this fraction (1/3) of the threshold, so that several attempts fit into it.
const TRIES: u32 = 3;

/// How long an ending worker tries to deregister, per attempt.
const DEREGISTRATION: Duration = Duration::from_secs(5);

/// How the heartbeat's connection is opened.
#[derive(Clone)]
pub(crate) struct Source {
    /// A pool that is used only to open a connection. The heartbeat's connection does not belong to it.
    pub(crate) pool: Pool,
    /// Whether the session belongs to this worker alone, so that settings may be changed in it. Behind a pooler it may
    /// be shared.
    pub(crate) is_own_session: bool,
}

impl Source {
    /// These settings, with a time limit per server, so that a server that does not answer leaves time for the next.
    pub(crate) fn settings(settings: &ConnectionSettings, threshold: Duration) -> ConnectionSettings {
        let servers = u32::try_from(settings.servers().len()).unwrap_or(u32::MAX).max(1);
        settings.clone().with_connect_timeout(threshold / TRIES / servers)
    }
}

/// A worker's registration, and the heartbeats that keep it.
pub(crate) struct Heartbeats {
    shared: Arc<Shared>,
    client: Option<ClientWrapper>,
}

impl Heartbeats {
    pub(crate) fn new(shared: Arc<Shared>) -> Heartbeats {
        Heartbeats { shared, client: None }
    }

    /// Registers the worker. Cancel safe, but after a cancellation the worker may be registered.
    pub(crate) async fn register(&mut self) -> Result<()> {
        self.limited("registering the worker", true).await
    }

    /// Sends heartbeats until `ended` fires, whatever happens to the database.
    pub(crate) async fn run(mut self, ended: CancellationToken) -> Heartbeats {
        let interval = self.shared.recovery_threshold / PER_THRESHOLD;
        let mut backoff = Backoff::default();
        loop {
            let sent = tokio::select! {
                sent = self.limited("sending a heartbeat", false) => sent,
                () = ended.cancelled() => return self,
            };
            let pause = match sent {
                Ok(()) => {
                    backoff = Backoff::default();
                    interval
                }
                Err(error) => {
                    tracing::warn!(%error, "could not send a heartbeat; retrying");
                    backoff.next().min(interval)
                }
            };
            tokio::select! {
                () = tokio::time::sleep(pause) => {}
                () = ended.cancelled() => return self,
            }
        }
    }

    /// Deregisters a worker that has released all its jobs. Tries a few times, because otherwise the worker would be
    /// declared dead later.
    pub(crate) async fn deregister(&mut self) {
        for _ in 0..3 {
            match self.try_deregister().await {
                Ok(()) => return,
                Err(error) => tracing::warn!(%error, "could not deregister this worker"),
            }
        }
    }

    async fn try_deregister(&mut self) -> Result<()> {
        let (shared, doing) = (self.shared.clone(), "deregistering the worker");
        let deregistered = async {
            self.connect(doing).await?;
            self.query(doing, &shared.sql.deregister_worker, &[(&&*shared.worker_id, Type::TEXT)]).await
        };
        let limit = shared.recovery_threshold.min(DEREGISTRATION);
        let deregistered = tokio::time::timeout(limit, deregistered).await;
        let deregistered = deregistered.unwrap_or_else(|_| Err(no_answer(doing, limit)));
        if deregistered.is_err() {
            self.client = None;
        }
        deregistered.map(drop)
    }

    /// Makes one attempt, and abandons it when it takes too long. After an error, the next attempt uses a new
    /// connection.
    async fn limited(&mut self, doing: &str, is_first: bool) -> Result<()> {
        let limit = self.try_limit();
        let sent = async {
            let connected = tokio::time::timeout(limit, self.connect(doing)).await;
            connected.map_err(|_| no_answer(doing, limit))??;
            let sent = tokio::time::timeout(limit, self.send(doing, is_first)).await;
            sent.map_err(|_| no_answer(doing, limit))?
        };
        let sent = sent.await;
        if sent.is_err() {
            self.client = None;
        }
        sent
    }

    fn try_limit(&self) -> Duration {
        self.shared.recovery_threshold / TRIES
    }

    async fn connect(&mut self, doing: &str) -> Result<()> {
        if self.client.as_ref().is_some_and(|client| !client.is_closed()) {
            return Ok(());
        }
        let source = &self.shared.heartbeat_source;
        let client = pool::open(&source.pool, doing).await?;
        if source.is_own_session {
            let limits = StatementLimits { statement: Some(self.try_limit()), lock: self.try_limit() };
            let set_up = format!("{SESSION}; {}", limits.set_up());
            client.batch_execute(&set_up).await.map_err(|error| Error::database(doing, error))?;
        }
        self.client = Some(client);
        Ok(())
    }

    /// Sends a heartbeat. Registers the worker if it is not registered, or no longer.
    async fn send(&mut self, doing: &str, is_first: bool) -> Result<()> {
        let shared = self.shared.clone();
        let mut sent_at = Instant::now();
        let mut rows = match is_first {
            true => Vec::new(),
            false => self.query(doing, &shared.sql.heartbeat, &[(&&*shared.worker_id, Type::TEXT)]).await?,
        };
        let was_registered = is_first || !rows.is_empty();
        if rows.is_empty() {
            sent_at = Instant::now();
            rows = self.insert(doing).await?;
        }
        let row = rows
            .first()
            .ok_or_else(|| Error::unavailable(format!("{doing}: the database returned no row")))?;
        let heartbeat = continuity::Heartbeat {
            sent_at,
            answered_at: Instant::now(),
            server_started_at: row.get("server_started_at"),
            was_registered,
        };
        let is_resumed = shared.continuity.note(heartbeat);
        if is_resumed && !is_first {
            tracing::warn!(
                "this worker was declared dead because its heartbeats stopped; other workers may have recovered its jobs"
            );
            shared.events.send(|| WorkerEvent::Resumed);
        }
        Ok(())
    }

    async fn insert(&self, doing: &str) -> Result<Vec<Row>> {
        let shared = &self.shared;
        let slots = i32::try_from(shared.slots).unwrap_or(i32::MAX);
        let pid = i32::try_from(std::process::id()).unwrap_or_default();
        let parameters: [(&(dyn ToSql + Sync), Type); 7] = [
            (&&*shared.worker_id, Type::TEXT),
            (&host(), Type::TEXT),
            (&pid, Type::INT4),
            (&env!("CARGO_PKG_VERSION"), Type::TEXT),
            (&shared.task_identifiers, Type::TEXT_ARRAY),
            (&slots, Type::INT4),
            (&shared.recovery_threshold.as_secs_f64(), Type::FLOAT8),
        ];
        self.query(doing, &shared.sql.register_worker, &parameters).await
    }

    /// Uses unnamed statements only: behind a pooler, each statement may run on another server connection.
    async fn query(
        &self,
        doing: &str,
        sql: &str,
        parameters: &[(&(dyn ToSql + Sync), Type)],
    ) -> Result<Vec<Row>> {
        let Some(client) = &self.client else {
            return Err(Error::unavailable(format!("{doing}: not connected")));
        };
        let answered = client.query_typed(sql, parameters).await;
        answered.map_err(|error| self.shared.utils.explain(Error::database(doing, error)))
    }
}

fn no_answer(doing: &str, limit: Duration) -> Error {
    Error::unavailable(format!("{doing}: no response from the database within {limit:?}"))
}

/// The machine's name, for people who read the table.
fn host() -> String {
    whoami::hostname().unwrap_or_else(|_| "unknown".into())
}
