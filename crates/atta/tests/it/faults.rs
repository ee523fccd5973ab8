//! What a worker must survive: its own crash, the crash of others, lost connections, server restarts, a pooler, and the
//! other ways in which job queues on PostgreSQL are known to fail.

mod liveness;
mod heartbeats;
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
mod refused;
mod restarts;
mod schemas;
mod strangers;
pub(crate) mod support;
mod terminated;
mod waking;
mod resumed;
