//! The way to the database, on a server with TLS and on one without.

mod support;
mod logins;
mod sslmodes;
mod work;
mod names;
