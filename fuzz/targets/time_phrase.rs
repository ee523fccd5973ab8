//! Bytes as a time phrase, as `fill` has it.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::time_phrase(bytes));
