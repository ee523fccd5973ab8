//! Bytes as a settings file, or as a duration in one.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::settings_file(bytes));
