//! Generates the wire types with protox, so that no `protoc` is needed.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let files = ["windfall/v1/bonus.proto", "windfall/v1/send.proto", "windfall/v1/grant.proto"];
    for file in files {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(files, ["."])?;
    prost_build::Config::new().compile_fds(descriptors)?;
    Ok(())
}
