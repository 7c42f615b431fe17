//! Reads parsed TOML as any type that serde can read, and says of every failure which key it is and where it stands.
//!
//! The toml crate parses, and derived code says what is wanted; this reader hands the one to the other, for live
//! rules and static options alike. The toml crate's own deserializer cannot do four things that are promised here: it
//! does not tell which keys a struct knows, its errors have no path, it stops at the first error, and a value
//! from the environment would not take the type that its field wants.

use std::fmt;
use std::iter::Enumerate;
use std::slice;

use serde::de::{
    self, DeserializeSeed, Deserializer, EnumAccess, Expected, IntoDeserializer, MapAccess, SeqAccess,
    Unexpected, VariantAccess, Visitor,
};
use serde::forward_to_deserialize_any;
use serde_spanned::de::{SpannedDeserializer, is_spanned};
use toml::de::{DeString, DeTable, DeValue};
use toml::{Spanned, map};

use crate::findings::{Findings, join};
use crate::nearest::{listed, nearest, shortened};
use crate::refusal::{Fault, PROBLEMS_MAX};

/// The origin of the values of one reading, and the handling of failures.
pub(crate) struct Source<'s> {
    /// Bytes of the text. What starts behind it is a value that a variable of the environment set.
    pub(crate) text_bytes: usize,
    /// With findings, failures are noted there, a struct reads on after an unknown key, and a field that is absent is
    /// read too, so that its type can say whether it must be there. Without them the first failure ends the reading.
    pub(crate) findings: Option<&'s Findings<'s>>,
}

/// A value that is being read into the type that is wanted.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a> {
    item: Item<'a>,
    /// The byte where it stands; the document itself stands nowhere.
    at: Option<usize>,
    /// Within a variable's value everything stands where the variable stands.
    is_in_variable: bool,
    path: Path<'a>,
    source: &'a Source<'a>,
}

#[derive(Clone, Copy)]
enum Item<'a> {
    /// A struct's field that the document does not have.
    Absent,
    Key(&'a str),
    /// A variable's value: it takes the type that it is read as.
    Word(&'a str),
    Value(&'a DeValue<'a>),
}

#[derive(Clone, Copy)]
struct Path<'a> {
    parent: Option<&'a Path<'a>>,
    step: Step<'a>,
}

#[derive(Clone, Copy)]
enum Step<'a> {
    Root,
    Key(&'a str),
    Index(usize),
}

/// Why a value does not fit, which one, and where it stands.
#[derive(Debug)]
pub(crate) struct Failure {
    pub(crate) key: String,
    /// The byte, as [`Source`] counts them; `None` for the document itself.
    pub(crate) at: Option<usize>,
    pub(crate) fault: Box<Fault>,
    is_placed: bool,
}

type Read<T> = Result<T, Failure>;

impl<'a> Reader<'a> {
    pub(crate) fn new(document: &'a DeValue<'a>, source: &'a Source<'a>) -> Self {
        let path = Path { parent: None, step: Step::Root };
        Self { item: Item::Value(document), at: None, is_in_variable: false, path, source }
    }

    fn place_of(&self, at: usize) -> Option<usize> {
        if self.is_in_variable { self.at } else { Some(at) }
    }

    fn step<'b>(&'b self, step: Step<'b>, item: Item<'b>, at: Option<usize>) -> Reader<'b> {
        Reader { item, at, path: Path { parent: Some(&self.path), step }, ..*self }
    }

    fn child<'b>(&'b self, step: Step<'b>, value: &'b Spanned<DeValue<'b>>) -> Reader<'b> {
        let at = value.span().start;
        let item = match value.get_ref() {
            DeValue::String(word) if !self.is_in_variable && at > self.source.text_bytes => Item::Word(word),
            other => Item::Value(other),
        };
        self.step(step, item, self.place_of(at))
    }

    /// What a variable's value is, where it is read as TOML.
    fn in_variable<'b>(&self, value: &'b DeValue<'b>) -> Reader<'b>
    where
        'a: 'b,
    {
        Reader { item: Item::Value(value), is_in_variable: true, ..*self }
    }

    /// Says where a failure happened, unless that is known: the innermost reader knows best.
    fn placed<T>(&self, read: Read<T>) -> Read<T> {
        read.map_err(|mut failure| {
            if !failure.is_placed {
                let path = self.path.to_string();
                // What is missing in a table has a name but no place; the table has one.
                failure.key = if failure.key.is_empty() { path } else { join(&path, &failure.key) };
                failure.at = self.at;
                failure.is_placed = true;
                if let Some(findings) = self.source.findings {
                    findings.note(failure.key.as_str(), failure.at, *failure.fault.clone());
                }
            }
            failure
        })
    }

    fn refused<T>(&self, fault: Fault) -> Read<T> {
        self.placed(Err(Failure::new(fault)))
    }

    fn integer<'de, V: Visitor<'de>>(self, digits: &str, radix: u32, visitor: V) -> Read<V::Value> {
        if let Ok(number) = u64::from_str_radix(digits, radix) {
            return self.placed(visitor.visit_u64(number));
        }
        if let Ok(number) = i64::from_str_radix(digits, radix) {
            return self.placed(visitor.visit_i64(number));
        }
        let found = format!("{}, which is no whole number of 64 bits", shortened(digits));
        self.refused(Fault::NotAllowed { found, allowed: plain(&visitor) })
    }

    /// A mistyped key would leave its default in force unseen, so no struct may ignore one.
    fn check_keys(&self, table: &DeTable<'_>, fields: &[&str]) -> Read<()> {
        let unknown = table.keys().filter(|key| !fields.contains(&key.get_ref().as_ref()));
        for key in unknown.take(PROBLEMS_MAX) {
            let at = self.place_of(key.span().start);
            let fault = Fault::unknown_key(key.get_ref(), fields);
            match self.source.findings {
                Some(findings) => findings.note(self.path.to_string(), at, fault),
                None => return self.step(Step::Key(key.get_ref()), Item::Absent, at).refused(fault),
            }
        }
        Ok(())
    }
}

macro_rules! parsed_words {
    ($($method:ident $visit:ident $type:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
            if let Item::Word(word) = self.item
                && let Ok(value) = word.trim().parse::<$type>()
            {
                return self.placed(visitor.$visit(value));
            }
            self.deserialize_any(visitor)
        }
    )*};
}

macro_rules! texts {
    ($($method:ident)*) => {$(
        fn $method<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
            match self.item {
                Item::Word(word) => self.placed(visitor.visit_str(word)),
                _ => self.deserialize_any(visitor),
            }
        }
    )*};
}

impl<'de> Deserializer<'de> for Reader<'_> {
    type Error = Failure;

    fn deserialize_any<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        let value = match self.item {
            Item::Absent => return self.refused(Fault::Missing { allowed: plain(&visitor) }),
            Item::Key(key) => return self.placed(visitor.visit_str(key)),
            // Lists and tables are written as in TOML. Where nobody says which type is wanted (a tagged enum buffers),
            // a word is what TOML takes it for, or else text.
            Item::Word(word) => match DeValue::parse(word.trim()) {
                Ok(value) => {
                    return self.in_variable(value.get_ref()).deserialize_any(visitor);
                }
                Err(_) => return self.placed(visitor.visit_str(word)),
            },
            Item::Value(value) => value,
        };
        match value {
            DeValue::String(text) => self.placed(visitor.visit_str(text)),
            DeValue::Integer(integer) => self.integer(integer.as_str(), integer.radix(), visitor),
            DeValue::Float(float) => match float.as_str().parse() {
                Ok(number) => self.placed(visitor.visit_f64(number)),
                Err(_) => {
                    self.refused(Fault::NotAllowed { found: float.to_string(), allowed: plain(&visitor) })
                }
            },
            DeValue::Boolean(boolean) => self.placed(visitor.visit_bool(*boolean)),
            // No option is a date; as text it can be refused, or parsed by the field that wants one.
            DeValue::Datetime(time) if self.source.findings.is_none() => {
                self.placed(visitor.visit_str(&time.to_string()))
            }
            DeValue::Datetime(_) => self
                .refused(Fault::WrongType { found: "a date or time".to_owned(), allowed: plain(&visitor) }),
            DeValue::Array(items) => {
                self.placed(visitor.visit_seq(Items { of: &self, items: items.iter().enumerate() }))
            }
            DeValue::Table(table) => self.placed(visitor.visit_map(Entries::new(&self, table, &[]))),
        }
    }

    parsed_words! {
        deserialize_i8 visit_i64 i64
        deserialize_i16 visit_i64 i64
        deserialize_i32 visit_i64 i64
        deserialize_i64 visit_i64 i64
        deserialize_u8 visit_u64 u64
        deserialize_u16 visit_u64 u64
        deserialize_u32 visit_u64 u64
        deserialize_u64 visit_u64 u64
        deserialize_f32 visit_f64 f64
        deserialize_f64 visit_f64 f64
        deserialize_bool visit_bool bool
    }

    texts! { deserialize_str deserialize_string deserialize_char }

    fn deserialize_option<V: Visitor<'de>>(self, visitor: V) -> Read<V::Value> {
        match self.item {
            Item::Absent => self.placed(visitor.visit_none()),
            _ => self.placed(visitor.visit_some(self)),
        }
    }

    fn deserialize_newtype_struct<V: Visitor<'de>>(self, _name: &'static str, visitor: V) -> Read<V::Value> {
        self.placed(visitor.visit_newtype_struct(self))
    }

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        name: &'static str,
        fields: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        if is_spanned(name) {
            let at = self.at.unwrap_or_default();
            return self.placed(visitor.visit_map(SpannedDeserializer::new(self, at..at)));
        }
        if let Item::Word(word) = self.item
            && let Ok(value) = DeValue::parse(word.trim())
        {
            return self.in_variable(value.get_ref()).deserialize_struct(name, fields, visitor);
        }
        match self.item {
            Item::Value(DeValue::Table(table)) => {
                self.check_keys(table, fields)?;
                let absent = if self.source.findings.is_some() { fields } else { &[] };
                self.placed(visitor.visit_map(Entries::new(&self, table, absent)))
            }
            // Derived code would take its elements for the fields in turn.
            Item::Value(DeValue::Array(_)) => {
                self.refused(Fault::WrongType { found: "an array".to_owned(), allowed: plain(&visitor) })
            }
            _ => self.deserialize_any(visitor),
        }
    }

    fn deserialize_enum<V: Visitor<'de>>(
        self,
        _name: &'static str,
        variants: &'static [&'static str],
        visitor: V,
    ) -> Read<V::Value> {
        match self.item {
            Item::Word(name) => self.placed(visitor.visit_enum(name.into_deserializer())),
            Item::Value(DeValue::String(name)) => {
                self.placed(visitor.visit_enum(name.as_ref().into_deserializer()))
            }
            Item::Value(DeValue::Table(table)) if table.len() == 1 => {
                self.placed(visitor.visit_enum(Entries::new(&self, table, &[])))
            }
            _ => {
                let names = listed(variants.iter().copied());
                let allowed = format!("a name, or a table with one name, of {names}");
                self.refused(Fault::WrongType { found: "another type".to_owned(), allowed })
            }
        }
    }

    forward_to_deserialize_any! {
        i128 u128 bytes byte_buf unit unit_struct seq tuple tuple_struct map identifier ignored_any
    }
}

impl<'de> IntoDeserializer<'de, Failure> for Reader<'_> {
    type Deserializer = Self;

    fn into_deserializer(self) -> Self {
        self
    }
}

/// The elements of an array.
struct Items<'b, 'a> {
    of: &'b Reader<'a>,
    items: Enumerate<slice::Iter<'a, Spanned<DeValue<'a>>>>,
}

impl<'de> SeqAccess<'de> for Items<'_, '_> {
    type Error = Failure;

    fn next_element_seed<S: DeserializeSeed<'de>>(&mut self, seed: S) -> Read<Option<S::Value>> {
        let Some((index, value)) = self.items.next() else {
            return Ok(None);
        };
        let item = self.of.child(Step::Index(index), value);
        item.placed(seed.deserialize(item)).map(Some)
    }
}

/// The entries of a table, and after them the fields that it does not have.
struct Entries<'b, 'a> {
    of: &'b Reader<'a>,
    table: &'a DeTable<'a>,
    entries: map::Iter<'a, Spanned<DeString<'a>>, Spanned<DeValue<'a>>>,
    absent: slice::Iter<'static, &'static str>,
    entry: Option<Reader<'b>>,
}

impl<'b, 'a> Entries<'b, 'a> {
    fn new(of: &'b Reader<'a>, table: &'a DeTable<'a>, absent: &'static [&'static str]) -> Self {
        Self { of, table, entries: table.iter(), absent: absent.iter(), entry: None }
    }
}

impl<'de> MapAccess<'de> for Entries<'_, '_> {
    type Error = Failure;

    fn next_key_seed<K: DeserializeSeed<'de>>(&mut self, seed: K) -> Read<Option<K::Value>> {
        let (name, at, entry) = if let Some((key, value)) = self.entries.next() {
            let name = key.get_ref().as_ref();
            (name, self.of.place_of(key.span().start), self.of.child(Step::Key(name), value))
        } else if let Some(name) = self.absent.find(|name| !self.table.contains_key(**name)) {
            (*name, self.of.at, self.of.step(Step::Key(name), Item::Absent, self.of.at))
        } else {
            return Ok(None);
        };
        self.entry = Some(entry);
        let key = Reader { item: Item::Key(name), at, ..entry };
        key.placed(seed.deserialize(key)).map(Some)
    }

    fn next_value_seed<V: DeserializeSeed<'de>>(&mut self, seed: V) -> Read<V::Value> {
        match self.entry.take() {
            Some(entry) => entry.placed(seed.deserialize(entry)),
            None => Err(de::Error::custom("a value was asked for before its key")),
        }
    }
}

/// A variant with fields is a table with its name alone, as `[spool.sized]`.
impl<'b, 'de> EnumAccess<'de> for Entries<'b, '_> {
    type Error = Failure;
    type Variant = Reader<'b>;

    fn variant_seed<V: DeserializeSeed<'de>>(mut self, seed: V) -> Read<(V::Value, Reader<'b>)> {
        match (self.next_key_seed(seed)?, self.entry) {
            (Some(variant), Some(entry)) => Ok((variant, entry)),
            _ => Err(de::Error::custom("a variant needs a name")),
        }
    }
}

impl<'de> VariantAccess<'de> for Reader<'_> {
    type Error = Failure;

    fn unit_variant(self) -> Read<()> {
        let allowed = "the name alone, without fields".to_owned();
        self.refused(Fault::WrongType { found: "a table".to_owned(), allowed })
    }

    fn newtype_variant_seed<T: DeserializeSeed<'de>>(self, seed: T) -> Read<T::Value> {
        self.placed(seed.deserialize(self))
    }

    fn tuple_variant<V: Visitor<'de>>(self, _len: usize, visitor: V) -> Read<V::Value> {
        self.deserialize_seq(visitor)
    }

    fn struct_variant<V: Visitor<'de>>(self, fields: &'static [&'static str], visitor: V) -> Read<V::Value> {
        self.deserialize_struct("", fields, visitor)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parent = self.parent.map(Self::to_string).unwrap_or_default();
        match self.step {
            Step::Root => Ok(()),
            Step::Key(key) => f.write_str(&join(&parent, key)),
            Step::Index(index) => write!(f, "{parent}[{index}]"),
        }
    }
}

impl Failure {
    fn new(fault: Fault) -> Self {
        Self { key: String::new(), at: None, fault: Box::new(fault), is_placed: false }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.fault.fmt(f)
    }
}

impl std::error::Error for Failure {}

impl de::Error for Failure {
    fn custom<T: fmt::Display>(message: T) -> Self {
        Self::new(Fault::Unfit(message.to_string()))
    }

    fn invalid_type(found: Unexpected<'_>, allowed: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Bool(_) => "a boolean".to_owned(),
            Unexpected::Unsigned(_) | Unexpected::Signed(_) => "an integer".to_owned(),
            Unexpected::Float(_) => "a float".to_owned(),
            Unexpected::Str(text) => format!("a string, {:?}", shortened(text)),
            Unexpected::Seq => "an array".to_owned(),
            Unexpected::Map => "a table".to_owned(),
            other => other.to_string(),
        };
        Self::new(Fault::WrongType { found, allowed: plain(allowed) })
    }

    fn invalid_value(found: Unexpected<'_>, allowed: &dyn Expected) -> Self {
        let found = match found {
            Unexpected::Unsigned(number) => number.to_string(),
            Unexpected::Signed(number) => number.to_string(),
            Unexpected::Str(text) => format!("{:?}", shortened(text)),
            other => other.to_string(),
        };
        Self::new(Fault::NotAllowed { found, allowed: plain(allowed) })
    }

    fn unknown_variant(found: &str, known: &'static [&'static str]) -> Self {
        let meant = nearest(found, known.iter().copied());
        let meant = meant.map(|meant| format!("; did you mean `{meant}`?")).unwrap_or_default();
        let allowed = format!("one of {}{meant}", listed(known.iter().copied()));
        Self::new(Fault::NotAllowed { found: format!("`{}`", shortened(found)), allowed })
    }

    fn unknown_field(found: &str, known: &'static [&'static str]) -> Self {
        Self::new(Fault::unknown_key(found, known))
    }

    fn missing_field(field: &'static str) -> Self {
        Self { key: field.to_owned(), ..Self::custom("is missing") }
    }
}

/// What a type expects, in the words of TOML.
fn plain(expected: &dyn Expected) -> String {
    match expected.to_string().as_str() {
        "a boolean" => "`true` or `false`".to_owned(),
        "a sequence" => "an array of values, a list as in TOML: `[\"a\", \"b\"]`".to_owned(),
        table if table == "a map" || table.starts_with("struct ") => {
            "a table as in TOML, `{ a = 1 }`".to_owned()
        }
        number @ ("i8" | "i16" | "i32" | "i64" | "u8" | "u16" | "u32" | "u64") => {
            format!("a whole number ({number})")
        }
        "f32" | "f64" => "a number".to_owned(),
        other => other.to_owned(),
    }
}
