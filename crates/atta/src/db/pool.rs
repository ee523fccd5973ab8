//! Connections: a pool for short statements, and single connections for uses that need their own.

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

/// How long a caller waits for a free connection of the pool before that is an error.
const WAIT: Duration = Duration::from_secs(30);

/// Planner settings that make every statement of a worker use an index. PostgreSQL keeps the plans of prepared
/// statements: a plan that was made while the table of jobs was empty would later read the whole table. Our own small
/// tables have no index and are still read whole, at an estimated cost so high that PostgreSQL would compile the plan
/// with JIT each time, so JIT is off. Few rows are joined to many, so joins are nested loops: a merge join would read a
/// whole index. As no other plan remains, planning anew each time would gain nothing, and it takes longer than most of
/// these statements.
///
/// To PostgreSQL's planner, all orders of joins cost the same while the tables are almost empty, and the chosen one may
/// later read the whole table for each job of a batch: with such a plan, a claim of 2,500 jobs took 254 seconds with
/// 200,000 jobs in the table. So a worker's statements join no tables. They find rows by lists of ids, or by a subquery
/// per row (`tests/it/plans.rs` runs each of them with such a plan).
const INDEXES_ONLY: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set enable_mergejoin = off; \
     set enable_hashjoin = off; set jit = off; set plan_cache_mode = force_generic_plan";

/// The settings with which every session of our own begins, whatever the defaults of its role or database are.
///
/// Claims need read committed: at a higher level, two concurrent claims end in a serialization failure. `pg_catalog`
/// comes first in the search path, even if the configured path names it later, so that none of our operators can be
/// replaced by one with the same types. The rest of the path stays, for the users' triggers on the tables. This does
/// not protect from functions and operators that match better than those of `pg_catalog`. For that, each statement
/// names the schema itself, as it must behind a pooler anyway.
pub(crate) const SESSION: &str = "set default_transaction_isolation = 'read committed'; \
     select pg_catalog.set_config('search_path', pg_catalog.rtrim(pg_catalog.concat(\
     'pg_catalog, ', pg_catalog.current_setting('search_path')), ', '), false)";

/// The largest number of milliseconds that a setting of PostgreSQL can have.
const LONGEST: u128 = i32::MAX as u128;

/// The largest number of connections that PostgreSQL can be configured for. A pool allocates space for all of them at
/// once.
pub(crate) const MOST_CONNECTIONS: usize = 262_143;

/// A pool of up to `size` connections. Opens none yet.
pub(crate) fn pool(settings: &ConnectionSettings, size: usize) -> Result<Pool> {
    if !(1..=MOST_CONNECTIONS).contains(&size) {
        return Err(Error::config(format!("invalid pool size: {size} connections"))
            .with_hint(format!("use 1 to {MOST_CONNECTIONS} connections")));
    }
    build(builder(settings, size))
}

/// How long the server works on a statement, and waits for a lock within it, before it cancels the statement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StatementLimits {
    /// None: no limit.
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

/// A pool for a worker's own statements, on connections that nothing else uses.
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
    // The connection that was returned last has its statements prepared; preparing a claim takes longer than the claim.
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
    // Each server gets its full connect timeout, however many servers there are.
    let tries = u32::try_from(settings.servers().len() + 1).unwrap_or(u32::MAX);
    let create = settings.connect_timeout().map(|timeout| timeout.saturating_mul(tries).max(WAIT));
    let timeouts = Timeouts { wait: Some(WAIT), create, recycle: Some(WAIT) };
    let close_read_only = Hook::sync_fn(move |_: &mut ClientWrapper, metrics: &Metrics| {
        match read_only.is_over(metrics.created, Instant::now()) {
            true => Err(HookError::message("the session started read-only")),
            false => Ok(()),
        }
    });
    let builder = Pool::builder(manager).max_size(size).timeouts(timeouts).runtime(Runtime::Tokio1);
    builder.pre_recycle(close_read_only)
}

/// How a pool opens a connection.
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

/// Gets a connection of the pool. `doing` names the operation in errors.
pub(crate) async fn get(pool: &Pool, doing: &str) -> Result<Object> {
    pool.get().await.map_err(|error| match error {
        deadpool_postgres::PoolError::Backend(error) => not_opened(doing, error),
        error => Error::unavailable(format!("{doing}: no connection available: {error}")),
    })
}

/// Opens a new connection to the pool's database. `doing` names the operation in errors. The connection does not belong
/// to the pool: it is available even if all connections of the pool are in use, and the pool's hooks do not run for it.
pub(crate) async fn open(pool: &Pool, doing: &str) -> Result<ClientWrapper> {
    pool.manager().create().await.map_err(|error| not_opened(doing, error))
}

fn not_opened(doing: &str, error: tokio_postgres::Error) -> Error {
    match Failure::from_driver_error(error) {
        Ok(failure) => failure.into_error(Some(doing)),
        Err(error) => Error::database(doing, error),
    }
}
