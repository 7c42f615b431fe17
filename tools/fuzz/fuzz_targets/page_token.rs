//! Page tokens: they open the list that they were made for, and no other.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("page_token", data));
