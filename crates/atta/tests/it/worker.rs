//! The worker, through its public API.

mod basics;
mod bulk;
mod batches;
mod defaults;
mod events;
mod flags;
mod fleet;
mod handlers;
mod lifecycle;
mod names;
mod isolation;
mod large;
mod local_queue;
mod options;
mod order;
mod paused;
mod retries;

mod seeds;
mod shutdown;
pub(crate) mod support;
mod utils;
mod overview;
