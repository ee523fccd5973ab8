//! Bytes as messages and output of a host.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| atta_fuzz::host_protocol(bytes));
