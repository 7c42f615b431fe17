//! Our part of the protocol is the published one: names, numbers, types and labels, compared with the descriptors that
//! `protoc` has put into the Java classes of `org.apache.rocketmq:rocketmq-proto` (the jar holds no `.proto` files).
#![allow(clippy::unwrap_used)] // tests

#[path = "proto/class_file.rs"]
mod class_file;

use prost::Message as _;
use prost_types::{
    DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet,
    MethodDescriptorProto,
};
use std::collections::BTreeMap;

const PACKAGE: &str = "apache.rocketmq.v2";

/// Everything that the wire shows of a set of files, by full name.
#[derive(Default)]
struct Protocol(BTreeMap<String, String>);

impl Protocol {
    fn of(files: &[FileDescriptorProto]) -> Self {
        let mut all = Self::default();
        for file in files.iter().filter(|file| file.package() == PACKAGE) {
            file.message_type.iter().for_each(|message| all.message(PACKAGE, message));
            file.enum_type.iter().for_each(|one| all.enumeration(PACKAGE, one));
            for service in &file.service {
                let path = format!("{PACKAGE}.{}", service.name());
                service.method.iter().for_each(|method| all.method(&path, method));
            }
        }
        all
    }

    fn message(&mut self, path: &str, message: &DescriptorProto) {
        let path = format!("{path}.{}", message.name());
        self.0.insert(path.clone(), "message".into());
        for field in &message.field {
            self.0.insert(format!("{path}.{}", field.name()), describe(field, message));
        }
        message.nested_type.iter().for_each(|nested| self.message(&path, nested));
        message.enum_type.iter().for_each(|nested| self.enumeration(&path, nested));
    }

    fn enumeration(&mut self, path: &str, one: &EnumDescriptorProto) {
        let path = format!("{path}.{}", one.name());
        self.0.insert(path.clone(), "enum".into());
        for value in &one.value {
            self.0.insert(format!("{path}.{}", value.name()), format!("= {}", value.number()));
        }
    }

    fn method(&mut self, path: &str, method: &MethodDescriptorProto) {
        let stream = |streaming| if streaming { "stream " } else { "" };
        let text = format!(
            "{}{} returns {}{}",
            stream(method.client_streaming()),
            method.input_type(),
            stream(method.server_streaming()),
            method.output_type()
        );
        self.0.insert(format!("{path}.{}", method.name()), text);
    }
}

/// Number, type, label, and the choice that it is part of.
fn describe(field: &FieldDescriptorProto, message: &DescriptorProto) -> String {
    let choice = field.oneof_index.and_then(|index| message.oneof_decl.get(usize::try_from(index).ok()?));
    format!(
        "= {} {:?} {:?} {} {}in {}",
        field.number(),
        field.label(),
        field.r#type(),
        field.type_name(),
        if field.proto3_optional() { "optional " } else { "" },
        choice.map_or("none", |choice| choice.name())
    )
}

#[test]
#[ignore = "needs real servers: ./dev test runs it"]
fn ours_is_the_published_one() {
    let jars = windfall_servers::rocketmq_jars().unwrap();
    let jars = std::fs::read_dir(&jars).unwrap().map(|entry| entry.unwrap().path());
    let named = |path: &std::path::PathBuf| {
        path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("rocketmq-proto-"))
    };
    let jar = jars.filter(named).max().unwrap();
    println!("compared with {}", jar.display());
    let jar = std::fs::read(jar).unwrap();
    let files = ["MQDomain", "MQService"].map(|name| {
        let class = class_file::unzip(&jar, &format!("apache/rocketmq/v2/{name}.class")).unwrap();
        let texts = class_file::texts(&class).unwrap();
        // A descriptor begins with the name of its file, and that with a tag and a length.
        let begins = |text: &&Vec<u8>| text.get(2..).is_some_and(|text| text.starts_with(b"apache/"));
        FileDescriptorProto::decode(&**texts.iter().find(begins).unwrap()).unwrap()
    });
    let published = Protocol::of(&files).0;
    let ours = FileDescriptorSet::decode(windfall_rocketmq_wire::proto::DESCRIPTORS).unwrap();
    let ours = Protocol::of(&ours.file).0;
    let differing = ours.iter().filter(|(name, text)| published.get(*name) != Some(*text));
    let differing: Vec<_> = differing
        .map(|(name, text)| format!("{name}: ours {text}, published {:?}", published.get(name)))
        .collect();
    assert!(differing.is_empty(), "{differing:#?}");
    println!("{} names are as published, of {}", ours.len(), published.len());
    assert!(ours.len() > 100 && published.len() > ours.len());
}
