//! What a downstream system answers: an order is paid only if the answer says so of this very order.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("connector_answer", data));
