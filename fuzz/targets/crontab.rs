//! Bytes as a crontab.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::crontab(bytes));
