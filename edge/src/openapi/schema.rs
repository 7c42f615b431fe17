//! Protobuf messages as JSON Schema: exactly what our JSON reads and writes.

use super::OpenApiError;
use crate::router::PACKAGE;
use prost_types::field_descriptor_proto::{Label, Type};
use prost_types::{DescriptorProto, EnumDescriptorProto, FieldDescriptorProto, FileDescriptorSet};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, HashMap};

/// Numbers of fields in descriptor.proto, as the paths of comments have them.
const MESSAGES: i32 = 4;
const ENUMS: i32 = 5;
const SERVICES: i32 = 6;
const MEMBERS: i32 = 2;

/// One method of a service.
pub(super) struct Method {
    /// Full names.
    pub(super) input: String,
    pub(super) output: String,
    pub(super) comment: String,
}

struct Documented<'a, T> {
    item: &'a T,
    comment: String,
    /// The comments of its fields or values, in order.
    members: Vec<String>,
}

/// The messages and enums of our package, and the schemas that were asked for.
pub(super) struct Schemas<'a> {
    messages: HashMap<String, Documented<'a, DescriptorProto>>,
    enums: HashMap<String, Documented<'a, EnumDescriptorProto>>,
    methods: HashMap<(String, String), (String, String, String)>,
    services: HashMap<String, String>,
    made: BTreeMap<String, Value>,
}

impl<'a> Schemas<'a> {
    pub(super) fn new(files: &'a FileDescriptorSet) -> Self {
        let mut all = Self {
            messages: HashMap::new(),
            enums: HashMap::new(),
            methods: HashMap::new(),
            services: HashMap::new(),
            made: BTreeMap::new(),
        };
        for file in files.file.iter().filter(|file| file.package() == PACKAGE) {
            let comments: HashMap<&[i32], &str> = file
                .source_code_info
                .iter()
                .flat_map(|info| &info.location)
                .map(|location| (location.path.as_slice(), location.leading_comments()))
                .collect();
            let comment = |path: &[i32]| comments.get(path).map_or(String::new(), |text| flow(text));
            for (at, message) in (0..).zip(&file.message_type) {
                let members =
                    (0..).zip(&message.field).map(|(field, _)| comment(&[MESSAGES, at, MEMBERS, field]));
                let members = members.collect();
                let documented = Documented { item: message, comment: comment(&[MESSAGES, at]), members };
                all.messages.insert(full_name(message.name()), documented);
            }
            for (at, item) in (0..).zip(&file.enum_type) {
                let members =
                    (0..).zip(&item.value).map(|(value, _)| comment(&[ENUMS, at, MEMBERS, value])).collect();
                let documented = Documented { item, comment: comment(&[ENUMS, at]), members };
                all.enums.insert(full_name(item.name()), documented);
            }
            for (at, service) in (0..).zip(&file.service) {
                all.services.insert(service.name().to_owned(), comment(&[SERVICES, at]));
                for (of, method) in (0..).zip(&service.method) {
                    let key = (service.name().to_owned(), method.name().to_owned());
                    let comment = comment(&[SERVICES, at, MEMBERS, of]);
                    let value = (method.input_type().to_owned(), method.output_type().to_owned(), comment);
                    all.methods.insert(key, value);
                }
            }
        }
        all
    }

    pub(super) fn method(&self, service: &str, method: &str) -> Result<Method, OpenApiError> {
        let key = (service.to_owned(), method.to_owned());
        let (input, output, comment) = self
            .methods
            .get(&key)
            .ok_or_else(|| OpenApiError::Missing(format!("{service}.{method}")))?
            .clone();
        Ok(Method { input, output, comment })
    }

    pub(super) fn service_comment(&self, service: &str) -> &str {
        self.services.get(service).map_or("", String::as_str)
    }

    /// A reference to a message's or enum's schema, which is made if need be.
    pub(super) fn reference(&mut self, full_name: &str) -> Result<Value, OpenApiError> {
        let name = short_name(full_name).to_owned();
        if !self.made.contains_key(&name) {
            // Before its fields, so that a message that contains itself ends.
            self.made.insert(name.clone(), Value::Null);
            let schema = self.schema(full_name)?;
            self.made.insert(name.clone(), schema);
        }
        Ok(json!({ "$ref": format!("#/components/schemas/{name}") }))
    }

    pub(super) fn into_components(self) -> Map<String, Value> {
        self.made.into_iter().collect()
    }

    fn schema(&mut self, full_name: &str) -> Result<Value, OpenApiError> {
        if let Some(documented) = self.enums.get(full_name) {
            return Ok(enum_schema(documented));
        }
        let documented =
            self.messages.get(full_name).ok_or_else(|| OpenApiError::Missing(full_name.to_owned()))?;
        let (message, comment) = (documented.item, documented.comment.clone());
        let members = documented.members.clone();
        let mut properties = Map::new();
        for (field, comment) in message.field.iter().zip(members) {
            let mut schema = self.field(message, field)?;
            if !comment.is_empty() {
                schema["description"] = comment.into();
            }
            properties.insert(field.name().to_owned(), schema);
        }
        let mut schema = json!({ "type": "object", "additionalProperties": false, "properties": properties });
        if !comment.is_empty() {
            schema["description"] = comment.into();
        }
        Ok(schema)
    }

    fn field(&mut self, of: &DescriptorProto, field: &FieldDescriptorProto) -> Result<Value, OpenApiError> {
        if let Some(entry) = map_entry(of, field) {
            let value = entry.field.get(1).ok_or_else(|| OpenApiError::Missing(entry.name().to_owned()))?;
            let value = self.single(value)?;
            return Ok(json!({ "type": "object", "additionalProperties": value }));
        }
        let is_message = field.r#type() == Type::Message;
        let single = self.single(field)?;
        Ok(match field.label() {
            Label::Repeated => json!({ "type": "array", "items": single }),
            // A message that is not there may be said to be null.
            _ if is_message => json!({ "anyOf": [single, { "type": "null" }] }),
            _ => single,
        })
    }

    fn single(&mut self, field: &FieldDescriptorProto) -> Result<Value, OpenApiError> {
        Ok(match field.r#type() {
            Type::Message | Type::Enum => self.reference(field.type_name())?,
            Type::Int64 | Type::Sint64 | Type::Sfixed64 => integer(i64::MIN.into(), i64::MAX.into(), "int64"),
            Type::Uint64 | Type::Fixed64 => integer(0, u64::MAX.into(), "uint64"),
            Type::Int32 | Type::Sint32 | Type::Sfixed32 => integer(i32::MIN.into(), i32::MAX.into(), "int32"),
            Type::Uint32 | Type::Fixed32 => integer(0, u32::MAX.into(), "uint32"),
            Type::Bool => json!({ "type": "boolean" }),
            Type::Bytes => json!({ "type": "string", "contentEncoding": "base64", "pattern": BASE64 }),
            Type::String => json!({ "type": "string" }),
            Type::Double | Type::Float | Type::Group => {
                return Err(OpenApiError::Missing(field.name().to_owned()));
            }
        })
    }
}

/// A pattern of base64 in the standard alphabet, padded, without stray bits at the end.
const BASE64: &str = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/][AQgw]==|[A-Za-z0-9+/]{2}[AEIMQUYcgkosw048]=)?$";

/// A number, or the same as a string: both are read.
fn integer(least: i128, most: i128, format: &str) -> Value {
    let sign = if least < 0 { "-?" } else { "" };
    // Those with fewer digits than the widest fit; the widest are spelled out.
    let pattern = format!("^(0|{sign}({}))$", up_to(&most.to_string()));
    let bound = |value: i128| match (i64::try_from(value), u64::try_from(value)) {
        (Ok(value), _) => json!(value),
        (_, Ok(value)) => json!(value),
        _ => Value::Null,
    };
    json!({
        "anyOf": [
            { "type": "integer", "format": format, "minimum": bound(least), "maximum": bound(most) },
            { "type": "string", "pattern": pattern },
        ],
    })
}

/// A pattern of the decimals from 1 to this one, without leading zeros.
fn up_to(most: &str) -> String {
    let width = most.len();
    let mut alternatives = vec![format!("[1-9][0-9]{{0,{}}}", width - 2)];
    for (at, digit) in most.char_indices() {
        let least = if at == 0 { '1' } else { '0' };
        let Some(below) = digit.to_digit(10).and_then(|value| char::from_digit(value.checked_sub(1)?, 10))
        else {
            continue;
        };
        if below < least {
            continue;
        }
        let rest = width - at - 1;
        let tail = if rest == 0 { String::new() } else { format!("[0-9]{{{rest}}}") };
        alternatives.push(format!("{}[{least}-{below}]{tail}", &most[..at]));
    }
    alternatives.push(most.to_owned());
    alternatives.join("|")
}

fn enum_schema(documented: &Documented<'_, EnumDescriptorProto>) -> Value {
    let names: Vec<&str> = documented.item.value.iter().map(|value| value.name()).collect();
    let mut description = documented.comment.clone();
    for (name, comment) in names.iter().zip(&documented.members).filter(|(_, comment)| !comment.is_empty()) {
        description.push_str(&format!("\n- {name}: {comment}"));
    }
    json!({ "type": "string", "enum": names, "description": description.trim_start() })
}

fn map_entry<'a>(of: &'a DescriptorProto, field: &FieldDescriptorProto) -> Option<&'a DescriptorProto> {
    let name = short_name(field.type_name());
    of.nested_type.iter().find(|nested| {
        nested.name() == name && nested.options.as_ref().is_some_and(|options| options.map_entry())
    })
}

/// A full name as type references in descriptors write it: with a leading dot.
fn full_name(name: &str) -> String {
    format!(".{PACKAGE}.{name}")
}

fn short_name(full_name: &str) -> &str {
    full_name.rsplit('.').next().unwrap_or(full_name)
}

/// A comment's lines as one text.
fn flow(comment: &str) -> String {
    comment.lines().map(str::trim).filter(|line| !line.is_empty()).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pattern_of_a_bound_spells_it_out() {
        assert_eq!(up_to("4294967295").matches('|').count(), 11);
        assert!(up_to("42").starts_with("[1-9][0-9]{0,0}|[1-3][0-9]{1}|4[0-1]|42"));
    }
}
