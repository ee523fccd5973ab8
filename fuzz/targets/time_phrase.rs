//! Bytes as a time phrase, such as the value of `fill`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::time_phrase(bytes));
