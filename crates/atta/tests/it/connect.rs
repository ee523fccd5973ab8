//! Connecting to a server with TLS and to one without.

mod support;
mod logins;
mod sslmodes;
mod work;
mod names;
