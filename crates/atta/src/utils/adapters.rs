//! Adding jobs within the transactions of other libraries, each behind a feature of the library's name.
//!
//! The future of an add can be dropped at any time. Therefore no adapter begins a transaction on a connection that the
//! caller goes on to use: if the future were dropped during the `begin`, the caller's next statements would run in a
//! transaction that nobody commits.

#[cfg(feature = "diesel-async")]
mod diesel_async;
#[cfg(feature = "sqlx")]
mod literal;
#[cfg(feature = "sea-orm")]
mod sea_orm;
#[cfg(feature = "sqlx")]
mod sqlx;
