//! The functions that anyone can call from SQL: what they store, return, announce and refuse.
//!
//! One file a subject; `support` has what they share. The races are in `race` (one interleaving each, forced) and in
//! `stress` (all of them, by chance).

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
