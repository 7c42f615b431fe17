//! Tokens about end users: nothing names a user but what an issuer's key has signed.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("user_token", data));
