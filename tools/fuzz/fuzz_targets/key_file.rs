//! Key files of both kinds, damaged in any way.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("key_file", data));
