//! Bad input: whatever a caller or a row may hold, the answer is a clear error or the right result; never a panic, a hang
//! or a half-done write.
//!
//! Values come from strategies of odd ones (`support`). A few cases run each time; `ATTA_PROPTEST_CASES=500` asks for
//! more. What was found once stays as a test with a name.

mod adding;
mod odd_rows;
mod options;
mod payloads;
mod reading;
mod sql;
mod managing;
mod support;
