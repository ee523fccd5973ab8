//! What the worker must survive: its own death, that of others, lost connections, a server that restarts, a pooler,
//! and everything else in which queues on PostgreSQL are known to go wrong.

mod liveness;
mod beating;
mod blocking;
mod blocked;
mod connections;
mod endings;
mod failover;
mod hung;
mod idle;
mod killed;
mod outages;
mod patroni;
mod pooler;
mod queues;
mod recovery;
mod restarts;
mod schemas;
mod strangers;
pub(crate) mod support;
mod terminated;
mod waking;
mod zombie;
