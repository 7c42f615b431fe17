//! Reads a [`Node`] as any type, and says where it failed.

use std::collections::btree_map;
use std::fmt;
use std::path::Path;
use std::slice;

use serde::de::value::StrDeserializer;
use serde::de::{
    DeserializeOwned, DeserializeSeed, Deserializer, EnumAccess, Error as _, IntoDeserializer, MapAccess,
    SeqAccess, Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;

use super::tree::{Node, Origin, Value};
use super::{OptionsError, Place};
use crate::document::join;
use crate::nearest::{listed, nearest};

pub(super) fn read<T: DeserializeOwned>(root: &Node) -> Result<T, Failure> {
    T::deserialize(Reader { node: root, path: "" })
}

/// Why a value does not fit, and which.
#[derive(Debug)]
pub(super) struct Failure {
    key: String,
    origin: Option<Origin>,
    message: String,
}

impl Failure {
    pub(super) fn new(key: String, origin: Origin, message: String) -> Self {
        Self { key, origin: Some(origin), message }
    }

    /// Says where, unless it is known: the innermost knows best.
    fn at(mut self, path: &str, origin: &Origin) -> Self {
        if self.origin.is_none() {
            // A missing field has a name and no place; what it is in has one.
            self.key = if self.key.is_empty() { path.to_owned() } else { join(path, &self.key) };
            self.origin = Some(origin.clone());
        }
        self
    }

    pub(super) fn told(self, path: Option<&Path>, prefix: &str) -> OptionsError {
        let place = self.origin.map_or(Place::Nowhere, |origin| origin.place(path));
        let mut message = self.message;
        if place == Place::Nowhere && !self.key.is_empty() {
            let variable = self.key.to_ascii_uppercase().replace('.', "__");
            message = format!("{message}; set it in the options file or as {prefix}_{variable}");
        }
        OptionsError::Key { place, key: self.key, message }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for Failure {}

impl serde::de::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self { key: String::new(), origin: None, message: message.to_string() }
    }

    fn missing_field(field: &'static str) -> Self {
        Self { key: field.to_owned(), origin: None, message: "is missing".to_owned() }
    }

    fn unknown_field(field: &str, expected: &'static [&'static str]) -> Self {
        Self::custom(format!("unknown key `{field}`; {}", hint(field, expected)))
    }

    fn unknown_variant(variant: &str, expected: &'static [&'static str]) -> Self {
        let known = listed(expected.iter().copied());
        let meant = nearest(variant, expected.iter().copied());
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        Self::custom(format!("is `{variant}`; it must be one of {known}{meant}"))
    }
}

fn hint(found: &str, known: &[&str]) -> String {
    match nearest(found, known.iter().copied()) {
        Some(meant) => format!("did you mean `{meant}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None => format!("there are {}", listed(known.iter().copied())),
    }
}

#[derive(Clone, Copy)]
struct Reader<'n> {
    node: &'n Node,
    path: &'n str,
}

impl<'n> Reader<'n> {
    fn wrong(self, unexpected: Unexpected<'_>, expected: &str) -> Failure {
        Failure::custom(format!("is {unexpected}; it must be {expected}")).at(self.path, &self.node.origin)
    }

    fn integer<'de, V: Visitor<'de>>(
        self,
        digits: &str,
        radix: u32,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let read = if let Ok(number) = u64::from_str_radix(digits, radix) {
            visitor.visit_u64(number)
        } else if let Ok(number) = i64::from_str_radix(digits, radix) {
            visitor.visit_i64(number)
        } else {
            return Err(self.wrong(Unexpected::Other(&format!("`{digits}`")), "a whole number of 64 bits"));
        };
        read.map_err(|failure: Failure| failure.at(self.path, &self.node.origin))
    }

    fn table<'de, V: Visitor<'de>>(
        self,
        entries: &'n std::collections::BTreeMap<String, Node>,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let entries = Entries { path: self.path, entries: entries.iter(), value: None };
        visitor.visit_map(entries).map_err(|failure| {
            // What is missing in a table that stands nowhere stands nowhere; else the table's line helps.
            failure.at(self.path, &self.node.origin)
        })
    }

    /// A list or a table in a variable is written as in TOML.
    fn word_as_toml<'de, V: Visitor<'de>>(
        self,
        word: &str,
        expected: &str,
        fits: fn(&Value) -> bool,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match Node::parse_word(word, &self.node.origin) {
            Some(node) if fits(&node.value) => {
                Reader { node: &node, path: self.path }.deserialize_any(visitor)
            }
            _ => Err(self.wrong(Unexpected::Str(word), expected)),
        }
    }
}

macro_rules! integers {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            match &self.node.value {
                Value::Word(word) => self.integer(word.trim(), 10, visitor),
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

macro_rules! floats {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
            let Value::Word(word) = &self.node.value else {
                return self.deserialize_any(visitor);
            };
            match word.trim().parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(self.wrong(Unexpected::Str(word), "a number")),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        let told = |failure: Failure| failure.at(self.path, &self.node.origin);
        match &self.node.value {
            Value::Table(entries) => self.table(entries, visitor),
            Value::Array(items) => {
                visitor.visit_seq(Items { path: self.path, items: items.iter(), index: 0 })
            }
            Value::Text(text) => visitor.visit_str(text),
            Value::Integer(digits, radix) => self.integer(digits, *radix, visitor),
            Value::Float(digits) => match digits.parse() {
                Ok(number) => visitor.visit_f64(number),
                Err(_) => Err(self.wrong(Unexpected::Str(digits), "a number")),
            },
            Value::Boolean(boolean) => visitor.visit_bool(*boolean),
            // Nobody says which type is wanted (a tagged enum buffers): what TOML takes it for, or else text.
            Value::Word(word) => match Node::parse_word(word, &self.node.origin) {
                Some(node) => Reader { node: &node, path: self.path }.deserialize_any(visitor),
                None => visitor.visit_str(word),
            },
        }
        .map_err(told)
    }

    integers! { deserialize_i8 deserialize_i16 deserialize_i32 deserialize_i64 deserialize_u8 deserialize_u16 deserialize_u32 deserialize_u64 }

    floats! { deserialize_f32 deserialize_f64 }

    fn deserialize_bool<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Word(word) => match word.trim() {
                "true" => visitor.visit_bool(true),
                "false" => visitor.visit_bool(false),
                _ => Err(self.wrong(Unexpected::Str(word), "`true` or `false`")),
            },
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_str<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Word(word) => {
                visitor.visit_str(word).map_err(|failure: Failure| failure.at(self.path, &self.node.origin))
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_string<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_str(visitor)
    }

    fn deserialize_char<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_str(visitor)
    }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        visitor.visit_some(self)
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        visitor: V,
    ) -> Result<V::Value, Failure> {
        visitor
            .visit_newtype_struct(self)
            .map_err(|failure: Failure| failure.at(self.path, &self.node.origin))
    }

    fn deserialize_seq<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Word(word) => {
                let fits = |value: &Value| matches!(value, Value::Array(_));
                self.word_as_toml(word, "a list as in TOML, `[\"a\", \"b\"]`", fits, visitor)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_map<V: Visitor<'de>>(self, visitor: V) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Word(word) => {
                let fits = |value: &Value| matches!(value, Value::Table(_));
                self.word_as_toml(word, "a table as in TOML, `{ a = 1 }`", fits, visitor)
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        let in_variable = match &self.node.value {
            Value::Word(word) => Node::parse_word(word, &self.node.origin),
            _ => None,
        };
        let reader = Reader { node: in_variable.as_ref().unwrap_or(self.node), path: self.path };
        // A mistyped key would leave its default in force unseen, so no struct may ignore one.
        if let Value::Table(entries) = &reader.node.value {
            for (key, node) in entries {
                if !fields.contains(&key.as_str()) {
                    return Err(Failure::unknown_field(key, fields).at(&join(self.path, key), &node.origin));
                }
            }
        }
        reader.deserialize_map(visitor)
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        _variants: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        match &self.node.value {
            Value::Text(text) | Value::Word(text) => visitor.visit_enum(text.as_str().into_deserializer()),
            Value::Table(entries) if entries.len() == 1 => match entries.iter().next() {
                Some((name, node)) => {
                    visitor.visit_enum(Variant { name, node, path: &join(self.path, name) })
                }
                None => Err(self.wrong(Unexpected::Map, "a table with one name")),
            },
            _ => {
                return Err(self.wrong(Unexpected::Other("another type"), "a name, or a table with one name"));
            }
        }
        .map_err(|failure: Failure| failure.at(self.path, &self.node.origin))
    }

    forward_to_deserialize_any! {
        i128 u128 bytes byte_buf unit unit_struct tuple tuple_struct identifier ignored_any
    }
}

/// A variant with fields: a table with its name alone, as `[spool.sized]`.
struct Variant<'n> {
    name: &'n str,
    node: &'n Node,
    path: &'n str,
}

impl<'n, 'de> EnumAccess<'de> for Variant<'n> {
    type Error = Failure;
    type Variant = Reader<'n>;

    fn variant_seed<V: DeserializeSeed<'de>>(self, seed: V) -> Result<(V::Value, Reader<'n>), Failure> {
        let name: StrDeserializer<'_, Failure> = self.name.into_deserializer();
        Ok((seed.deserialize(name)?, Reader { node: self.node, path: self.path }))
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = Failure;

    fn unit_variant(self) -> Result<(), Failure> {
        Err(self.wrong(Unexpected::Map, "the name alone, without fields"))
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Result<T::Value, Failure> {
        seed.deserialize(self)
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Result<V::Value, Failure> {
        self.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(
        self,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Result<V::Value, Failure> {
        self.deserialize_struct("", fields, visitor)
    }
}

struct Entries<'n> {
    path: &'n str,
    entries: btree_map::Iter<'n, String, Node>,
    value: Option<(&'n str, &'n Node)>,
}

impl<'de> MapAccess<'de> for Entries<'_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Result<Option<K::Value>, Failure> {
        let Some((key, node)) = self.entries.next() else {
            return Ok(None);
        };
        self.value = Some((key, node));
        let read = seed.deserialize(key.as_str().into_deserializer());
        read.map(Some).map_err(|failure: Failure| failure.at(&join(self.path, key), &node.origin))
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Result<V::Value, Failure> {
        let Some((key, node)) = self.value.take() else {
            return Err(Failure::custom("a value was asked for before its key"));
        };
        let path = join(self.path, key);
        seed.deserialize(Reader { node, path: &path }).map_err(|failure| failure.at(&path, &node.origin))
    }
}

struct Items<'n> {
    path: &'n str,
    items: slice::Iter<'n, Node>,
    index: usize,
}

impl<'de> SeqAccess<'de> for Items<'_> {
    type Error = Failure;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Result<Option<S::Value>, Failure> {
        let Some(node) = self.items.next() else {
            return Ok(None);
        };
        let path = format!("{}[{}]", self.path, self.index);
        self.index += 1;
        seed.deserialize(Reader { node, path: &path })
            .map(Some)
            .map_err(|failure| failure.at(&path, &node.origin))
    }
}
