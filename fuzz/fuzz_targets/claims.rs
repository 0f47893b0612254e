#![no_main]

#[path = "../targets.rs"]
#[allow(dead_code)] // each program uses one target
mod targets;

libfuzzer_sys::fuzz_target!(|data: &[u8]| targets::claims(data));
