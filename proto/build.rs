//! Generates the wire types with protox, so that no `protoc` is needed; with features, also the JSON that the same
//! messages have over HTTP, the stubs of the services, and the lists of their methods.

use prost_types::{FileDescriptorSet, MethodDescriptorProto, ServiceDescriptorProto};
use std::fmt::Write;
use std::path::Path;

const FILES: [&str; 11] = [
    "windfall/v1/bonus.proto",
    "windfall/v1/send.proto",
    "windfall/v1/grant.proto",
    "windfall/v1/token.proto",
    "windfall/v1/wallet.proto",
    "windfall/v1/downstream.proto",
    "windfall/v1/schedule.proto",
    "windfall/v1/jobs.proto",
    "windfall/v1/audit.proto",
    "windfall/v1/acts.proto",
    "windfall/v1/payouts.proto",
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
    std::fs::write(Path::new(&out).join("methods.rs"), methods(&descriptors)?)?;
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

/// `methods.rs`: an enum of each service's methods, and a function that hands every one of them to a `Mount`.
fn methods(descriptors: &FileDescriptorSet) -> Result<String, std::fmt::Error> {
    let mut text = String::new();
    for service in descriptors.file.iter().flat_map(|file| &file.service) {
        write_service(&mut text, service)?;
    }
    Ok(text)
}

fn write_service(text: &mut String, service: &ServiceDescriptorProto) -> std::fmt::Result {
    let name = service.name();
    let module = snake_case(name);
    writeln!(text, "/// The methods of `windfall.v1.{name}`.")?;
    writeln!(text, "#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]\npub enum {name}Method {{")?;
    for method in &service.method {
        writeln!(text, "    /// `{0}`.\n    {0},", method.name())?;
    }
    writeln!(text, "}}\n\nimpl Method for {name}Method {{\n    const SERVICE: &'static str = {name:?};\n")?;
    writeln!(text, "    fn name(self) -> &'static str {{\n        match self {{")?;
    for method in &service.method {
        writeln!(text, "            Self::{0} => {0:?},", method.name())?;
    }
    writeln!(text, "        }}\n    }}\n}}\n\n/// Hands over every method of `windfall.v1.{name}`.")?;
    writeln!(text, "pub fn {module}<S>(mount: &mut impl Mount<S, {name}Method>)")?;
    writeln!(text, "where\n    S: crate::v1::{module}_server::{name},\n{{")?;
    for method in &service.method {
        write_method(text, name, method)?;
    }
    writeln!(text, "}}\n")
}

fn write_method(text: &mut String, service: &str, method: &MethodDescriptorProto) -> std::fmt::Result {
    let message = |path: &str| path.trim_start_matches(".windfall.v1.").to_owned();
    let (name, call) = (method.name(), snake_case(method.name()));
    let (request, reply) = (message(method.input_type()), message(method.output_type()));
    writeln!(text, "    mount.method::<crate::v1::{request}, crate::v1::{reply}>(")?;
    writeln!(text, "        {service}Method::{name},")?;
    writeln!(
        text,
        "        |service, request| Box::pin(async move {{ service.{call}(request).await }}),\n    );"
    )
}

fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.extend(letter.to_lowercase());
    }
    snake
}
