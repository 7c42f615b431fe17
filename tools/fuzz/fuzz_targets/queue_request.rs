//! Requests of task queues: paths, queries, headers and bodies mean one thing each, within their limits.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("queue_request", data));
