//! Bytes as a connection string.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::connection_string(bytes));
