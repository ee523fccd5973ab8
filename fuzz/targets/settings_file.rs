//! Bytes as a settings file, or as a length of time.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::settings_file(bytes));
