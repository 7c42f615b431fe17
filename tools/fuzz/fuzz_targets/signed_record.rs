//! Signed records from a broker: nothing verifies but what was signed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("signed_record", data));
