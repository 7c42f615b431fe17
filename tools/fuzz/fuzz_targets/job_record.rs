//! Records of a task queue's store, and names and numbers that callers send.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("job_record", data));
