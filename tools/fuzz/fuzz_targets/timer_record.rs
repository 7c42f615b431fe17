//! Records of the scheduler and of the far tier: written again as they were read.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("timer_record", data));
