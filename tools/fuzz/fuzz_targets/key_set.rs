//! Key sets of whoever vouches for end users: only strong public keys count, each for its own kind of signature.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("key_set", data));
