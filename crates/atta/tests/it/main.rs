//! What users see, through the public API, on a real PostgreSQL.
#![allow(missing_docs, clippy::unwrap_used)]

mod connect;
mod cron;
mod errors;
mod faults;
mod held;
mod hostile;
mod input;
mod migrate;
mod plans;
mod roles;
mod sql_api;
mod worker;
