//! Connections: a pool for everything that is short, and single ones for what must have its own.

use std::time::Duration;

use deadpool_postgres::{
    ClientWrapper, Hook, HookError, Manager, ManagerConfig, Object, Pool, PoolBuilder, RecyclingMethod,
    Runtime, Timeouts,
};
use tokio_postgres::{Config, NoTls};

use crate::{Error, Result};

/// How long a caller waits for a free connection of the pool before that counts as a failure.
const WAIT: Duration = Duration::from_secs(30);

/// What every statement of a worker wants: an index. PostgreSQL keeps the plans of prepared statements, and one that was
/// made while the table of jobs was empty reads all of it when it no longer is. What has no index, our own small tables,
/// is read all the same, at a cost that looks enormous: enough to have it compiled each time, if we let it. With no other
/// way to go, planning each time anew would be in vain, and it takes longer than most of these statements.
const INDEXES_ONLY: &str = "set enable_seqscan = off; set enable_bitmapscan = off; set jit = off; \
     set plan_cache_mode = force_generic_plan";

/// A pool of up to `size` connections. Opens none yet.
pub(crate) fn pool(config: &Config, size: usize) -> Result<Pool> {
    build(builder(config, size))
}

/// A pool for a worker's own statements, over connections that are nobody else's.
pub(crate) fn worker_pool(config: &Config, size: usize) -> Result<Pool> {
    let set_up = Hook::async_fn(|client: &mut ClientWrapper, _| {
        Box::pin(async move { client.batch_execute(INDEXES_ONLY).await.map_err(HookError::Backend) })
    });
    build(builder(config, size).post_create(set_up))
}

fn build(builder: PoolBuilder) -> Result<Pool> {
    builder.build().map_err(|error| Error::config(format!("invalid pool of connections: {error}")))
}

fn builder(config: &Config, size: usize) -> PoolBuilder {
    let manager = Manager::from_config(
        config.clone(),
        NoTls,
        ManagerConfig { recycling_method: RecyclingMethod::Fast },
    );
    let timeouts = Timeouts { wait: Some(WAIT), create: Some(WAIT), recycle: Some(WAIT) };
    Pool::builder(manager).max_size(size).timeouts(timeouts).runtime(Runtime::Tokio1)
}

/// A connection of the pool, for `doing`.
pub(crate) async fn get(pool: &Pool, doing: &str) -> Result<Object> {
    pool.get().await.map_err(|error| match error {
        deadpool_postgres::PoolError::Backend(error) => Error::database(doing, error),
        error => Error::unavailable(format!("{doing}: no connection to be had: {error}")),
    })
}

/// Reads a connection string.
pub(crate) fn parse(url: &str) -> Result<Config> {
    // The parser's message never repeats the text, which may hold a password.
    let mut config: Config = url.parse().map_err(|error: tokio_postgres::Error| {
        Error::config(format!("invalid connection string: {error}"))
            .with_hint("it looks like postgres://user:password@host:5432/database")
    })?;
    // A connection that hangs is a lost one: half a minute is what a worker may be silent for.
    if config.get_connect_timeout().is_none() {
        config.connect_timeout(Duration::from_secs(10));
    }
    if config.get_tcp_user_timeout().is_none() {
        config.tcp_user_timeout(Duration::from_secs(20));
    }
    config.keepalives_idle(Duration::from_secs(20));
    Ok(config)
}
