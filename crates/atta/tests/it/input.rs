//! Unusual input: whatever a caller passes or a row contains, the result is a clear error or correct; never a panic, a
//! hang or a partial write.
//!
//! Values come from strategies with unusual ones (`support`). A few cases run each time; `ATTA_PROPTEST_CASES=500` runs
//! more. Each failure that was found became a test with a name.

mod adding;
mod odd_rows;
mod options;
mod payloads;
mod reading;
mod sql;
mod managing;
mod support;
mod unreadable;
