//! Bytes as the payload of a notification.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::notice(bytes));
