//! The heartbeat: one small statement, on a connection that nothing else uses, from the start of a worker to its end.
//!
//! Nothing that can wait (a pool, a poll, a row lock, application code) runs on this connection. It does not belong to
//! a pool, and its statements have time limits on the server. Each attempt has a time limit here as well: one that is
//! not answered is abandoned and repeated on a new connection, without an end.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool_postgres::{ClientWrapper, Pool};
use tokio_util::sync::CancellationToken;

use super::continuity;
use super::queries::{self, ServerTimes};
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
            self.answered(doing, queries::deregister_worker(self.connected(doing)?, &shared).await)
        };
        let limit = shared.recovery_threshold.min(DEREGISTRATION);
        let deregistered = tokio::time::timeout(limit, deregistered).await;
        let deregistered = deregistered.unwrap_or_else(|_| Err(no_answer(doing, limit)));
        if deregistered.is_err() {
            self.client = None;
        }
        deregistered
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
        let client = self.connected(doing)?;
        let mut times = match is_first {
            true => None,
            false => self.answered(doing, queries::heartbeat(client, &shared).await)?,
        };
        let was_registered = is_first || times.is_some();
        let mut was_declared_dead = false;
        if times.is_none() {
            sent_at = Instant::now();
            let registered = queries::register_worker(client, &shared, &host()).await;
            if let Some(registered) = self.answered(doing, registered)? {
                was_declared_dead = registered.was_declared_dead;
                times = Some(registered.times);
            }
        }
        let times =
            times.ok_or_else(|| Error::unavailable(format!("{doing}: the database returned no row")))?;
        let ServerTimes { server_started_at, server_now } = times;
        let answered_at = Instant::now();
        let heartbeat =
            continuity::Heartbeat { sent_at, answered_at, server_started_at, server_now, was_registered };
        let was_overdue = shared.continuity.is_overdue(answered_at);
        let may_have_lost_jobs = shared.continuity.note(heartbeat);
        if may_have_lost_jobs && !is_first {
            report_gap(&shared, was_registered, was_declared_dead);
            if was_overdue || was_declared_dead {
                shared.events.send(|| WorkerEvent::Resumed);
            }
        }
        Ok(())
    }

    fn connected(&self, doing: &str) -> Result<&ClientWrapper> {
        self.client.as_ref().ok_or_else(|| Error::unavailable(format!("{doing}: not connected")))
    }

    fn answered<T>(&self, doing: &str, answer: Result<T, tokio_postgres::Error>) -> Result<T> {
        answer.map_err(|error| self.shared.utils.explain(Error::database(doing, error)))
    }
}

/// Logs why other workers may have the jobs of this one, or why its claims are gone.
fn report_gap(shared: &Shared, was_registered: bool, was_declared_dead: bool) {
    let message = match (was_registered, was_declared_dead) {
        (true, _) => {
            "no heartbeat of this worker succeeded for longer than the threshold; other workers may have recovered its jobs"
        }
        (false, true) => {
            "this worker was declared dead because its heartbeats stopped; other workers recover its jobs"
        }
        (false, false) => {
            "the registration of this worker was missing, for example because the schema was created anew; the worker has registered again"
        }
    };
    tracing::warn!(worker = &*shared.worker_id, "{message}");
}

fn no_answer(doing: &str, limit: Duration) -> Error {
    Error::unavailable(format!("{doing}: no response from the database within {limit:?}"))
}

/// The machine's name, for people who read the table.
fn host() -> String {
    whoami::hostname().unwrap_or_else(|_| "unknown".into())
}
