//! Generates the wire types with protox, so that no `protoc` is needed; with features, also the JSON that the same
//! messages have over HTTP, and the stubs of the services.

use std::path::Path;

const FILES: [&str; 6] = [
    "windfall/v1/bonus.proto",
    "windfall/v1/send.proto",
    "windfall/v1/grant.proto",
    "windfall/v1/token.proto",
    "windfall/v1/wallet.proto",
    "windfall/v1/downstream.proto",
];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::Compiler::new(["."])?
        .include_imports(true)
        .include_source_info(true)
        .open_files(FILES)?
        .file_descriptor_set();
    let bytes = protox::prost::Message::encode_to_vec(&descriptors);
    let out = std::env::var("OUT_DIR")?;
    std::fs::write(Path::new(&out).join("descriptors.bin"), &bytes)?;
    pbjson_build::Builder::new()
        .register_descriptors(&bytes)?
        .preserve_proto_field_names()
        .emit_fields()
        .build(&[".windfall.v1"])?;
    tonic_prost_build::configure()
        .server_mod_attribute(".", "#[cfg(feature = \"rpc\")]")
        .client_mod_attribute(".", "#[cfg(feature = \"rpc\")]")
        .compile_fds(descriptors)?;
    Ok(())
}
