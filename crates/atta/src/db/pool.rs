//! Connections: a pool for everything that is short, and single ones for what must have its own.

use std::sync::Arc;
use std::time::{Duration, Instant};

use deadpool::managed::Manager as _;
use deadpool_postgres::{
    ClientWrapper, Connect, Hook, HookError, Manager, ManagerConfig, Metrics, Object, Pool, PoolBuilder,
    QueueMode, RecyclingMethod, Runtime, Timeouts,
};
use futures_util::future::BoxFuture;
use tokio::task::JoinHandle;
use tokio_postgres::{Client, Config};

use super::connect;
use super::connect_failure::Failure;
use super::connection::ConnectionSettings;
use super::read_only::{self, ReadOnlySessions};
use crate::{Error, Result};

/// How long a caller waits for a free connection of the pool before that counts as a failure.
const WAIT: Duration = Duration::from_secs(30);

/// What every statement of a worker wants: an index. PostgreSQL keeps the plans of prepared statements, and one that was
/// made while the table of jobs was empty reads all of it when it no longer is. What has no index, our own small tables,
/// is read all the same, at a cost that looks enormous: enough to have it compiled each time, if we let it. Few rows are
/// joined to many, so row by row: a merge would read all of an index. With no other way to go, planning each time anew
/// would be in vain, and it takes longer than most of these statements.
const INDEXES_ONLY: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off; \
     set enable_hashjoin = off; set jit = off; set plan_cache_mode = force_generic_plan";

/// What every session of our own begins with, whatever its role or database has as defaults.
///
/// Claims need read committed: at a higher level two of them that meet end in a serialization failure. `pg_catalog` comes
/// first in the search path, also where the configured path names it later, so that an operator of ours can't be replaced by
/// one with the same types. The rest of the path stays, for the users' triggers on the tables. That is no protection from
/// functions and operators that match better than those of `pg_catalog`: against them each statement names the schema
/// itself, as it must behind a pooler anyway.
pub(crate) const SESSION: &str = "set default_transaction_isolation = 'read committed'; \
     select pg_catalog.set_config('search_path', pg_catalog.rtrim(pg_catalog.concat(\
     'pg_catalog, ', pg_catalog.current_setting('search_path')), ', '), false)";

/// As many milliseconds as a setting of PostgreSQL's can have.
const LONGEST: u128 = i32::MAX as u128;

/// As many connections as PostgreSQL itself can be set up for. A pool makes room for all of them at once.
pub(crate) const MOST_CONNECTIONS: usize = 262_143;

/// A pool of up to `size` connections. Opens none yet.
pub(crate) fn pool(settings: &ConnectionSettings, size: usize) -> Result<Pool> {
    if !(1..=MOST_CONNECTIONS).contains(&size) {
        return Err(Error::config(format!("invalid pool of {size} connections"))
            .with_hint(format!("it must have 1 to {MOST_CONNECTIONS}")));
    }
    build(builder(settings, size))
}

/// How long the server works on a statement, and waits for a lock within it, before it gives the statement up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatementLimits {
    /// None: it may take as long as it does.
    pub(crate) statement: Option<Duration>,
    pub(crate) lock: Duration,
}

impl StatementLimits {
    /// The statements that set these limits for a session.
    pub(crate) fn set_up(&self) -> String {
        let milliseconds = |time: Duration| time.as_millis().clamp(1, LONGEST);
        let (statement, lock) = (self.statement.map_or(0, milliseconds), milliseconds(self.lock));
        format!("set statement_timeout = {statement}; set lock_timeout = {lock}")
    }
}

/// A pool for a worker's own statements, over connections that nobody else uses.
pub(crate) fn worker_pool(
    settings: &ConnectionSettings,
    size: usize,
    limits: Option<StatementLimits>,
) -> Result<Pool> {
    let limits = limits.map(|limits| format!("; {}", limits.set_up()));
    let set_up: Arc<str> = format!("{SESSION}; {INDEXES_ONLY}{}", limits.unwrap_or_default()).into();
    let set_up = Hook::async_fn(move |client: &mut ClientWrapper, _| {
        let set_up = set_up.clone();
        Box::pin(async move { client.batch_execute(&set_up).await.map_err(HookError::Backend) })
    });
    // The one that came back last has prepared its statements already; to prepare a claim takes longer than the claim.
    build(builder(settings, size).post_create(set_up).queue_mode(QueueMode::Lifo))
}

fn build(builder: PoolBuilder) -> Result<Pool> {
    builder.build().map_err(|error| Error::config(format!("invalid pool of connections: {error}")))
}

fn builder(settings: &ConnectionSettings, size: usize) -> PoolBuilder {
    let read_only = Arc::new(ReadOnlySessions::default());
    let manager = Manager::from_connect(
        settings.config().clone(),
        Opener { settings: settings.clone(), read_only: read_only.clone() },
        ManagerConfig { recycling_method: RecyclingMethod::Fast },
    );
    // Each server has the time that it may take, however many there are.
    let tries = u32::try_from(settings.servers().len() + 1).unwrap_or(u32::MAX);
    let create = settings.connect_timeout().map(|timeout| timeout.saturating_mul(tries).max(WAIT));
    let timeouts = Timeouts { wait: Some(WAIT), create, recycle: Some(WAIT) };
    let close_read_only = Hook::sync_fn(move |_: &mut ClientWrapper, metrics: &Metrics| {
        match read_only.is_over(metrics.created, Instant::now()) {
            true => Err(HookError::message("the session began read-only")),
            false => Ok(()),
        }
    });
    let builder = Pool::builder(manager).max_size(size).timeouts(timeouts).runtime(Runtime::Tokio1);
    builder.pre_recycle(close_read_only)
}

/// How a pool gets a connection.
struct Opener {
    settings: ConnectionSettings,
    read_only: Arc<ReadOnlySessions>,
}

impl Connect for Opener {
    fn connect(&self, _: &Config) -> BoxFuture<'_, Result<(Client, JoinHandle<()>), tokio_postgres::Error>> {
        Box::pin(async {
            let (client, connection) = match connect::open(&self.settings).await {
                Ok(opened) => opened,
                Err(failure) => return Err(failure.into_driver_error().await),
            };
            let reported = read_only::reported(&connection);
            let driver = tokio::spawn(async {
                if let Err(error) = connection.await {
                    tracing::debug!(%error, "a connection was lost");
                }
            });
            let is_read_only = match reported {
                Some(is_read_only) => is_read_only,
                None => read_only::ask(&client).await,
            };
            if is_read_only {
                self.read_only.note(Instant::now());
            }
            Ok((client, driver))
        })
    }
}

/// A connection of the pool, for `doing`.
pub(crate) async fn get(pool: &Pool, doing: &str) -> Result<Object> {
    pool.get().await.map_err(|error| match error {
        deadpool_postgres::PoolError::Backend(error) => not_opened(doing, error),
        error => Error::unavailable(format!("{doing}: no connection to be had: {error}")),
    })
}

/// A new connection to where the pool's connections lead, for `doing`. It is no part of the pool: it is there although all
/// connections of the pool are in use, and the pool's hooks do not run for it.
pub(crate) async fn open(pool: &Pool, doing: &str) -> Result<ClientWrapper> {
    pool.manager().create().await.map_err(|error| not_opened(doing, error))
}

fn not_opened(doing: &str, error: tokio_postgres::Error) -> Error {
    match Failure::from_driver_error(error) {
        Ok(failure) => failure.into_error(Some(doing)),
        Err(error) => Error::database(doing, error),
    }
}
