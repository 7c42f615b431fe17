//! Places in lists and statements: read as they were written, and open for the user alone whom they name.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("list_cursor", data));
