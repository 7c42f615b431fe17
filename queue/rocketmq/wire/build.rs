//! Generates the stubs with protox, so that no `protoc` is needed, and keeps the descriptors for the test that
//! compares them with the published ones.

use std::path::Path;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let file = "apache/rocketmq/v2/messaging.proto";
    println!("cargo:rerun-if-changed=proto/{file}");
    let descriptors =
        protox::Compiler::new(["proto"])?.include_imports(true).open_file(file)?.file_descriptor_set();
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(
        Path::new(&out).join("descriptors.bin"),
        protox::prost::Message::encode_to_vec(&descriptors),
    )?;
    tonic_prost_build::configure().build_server(false).bytes(".").compile_fds(descriptors)?;
    Ok(())
}
