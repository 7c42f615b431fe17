//! The header of a connector's signature, and the parts that it covers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("connector_signature", data));
