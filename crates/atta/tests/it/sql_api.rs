//! The SQL API: what its functions store, return, announce and reject.
//!
//! There is one file per subject; `support` has what they share. The races are in `race` (one forced interleaving each)
//! and in `stress` (all of them, at random).

mod add;
mod admin;
mod isolation;
mod keys;
mod limits;
mod payload;
mod race;
mod seeds;
mod stress;
pub(crate) mod support;
