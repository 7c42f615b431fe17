//! Bodies of the edge's calls: one whole message in gRPC's frame, and no more in memory than was counted.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| windfall_fuzz_checks::run("grpc_body", data));
