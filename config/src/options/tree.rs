//! The file's values and the environment's in one tree, each knowing where it was set.

use std::collections::BTreeMap;
use std::ops::Range;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::de::Failure;

/// Where a value was set.
#[derive(Debug, Clone)]
pub(super) enum Origin {
    Nowhere,
    /// A line of the file, from 1.
    Line(usize),
    /// An environment variable.
    Variable(String),
}

#[derive(Debug)]
pub(super) struct Node {
    pub(super) origin: Origin,
    pub(super) value: Value,
}

#[derive(Debug)]
pub(super) enum Value {
    Table(BTreeMap<String, Node>),
    Array(Vec<Node>),
    Text(String),
    Integer(String, u32),
    Float(String),
    Boolean(bool),
    /// From the environment: it takes the type that it is read as.
    Word(String),
}

impl Node {
    pub(super) fn empty() -> Self {
        Self { origin: Origin::Nowhere, value: Value::Table(BTreeMap::new()) }
    }

    /// The tree of a document, or the line and the message of what is not TOML in it.
    pub(super) fn parse(text: &str) -> Result<Self, (Option<usize>, String)> {
        let breaks: Vec<usize> = text.match_indices('\n').map(|(at, _)| at).collect();
        let line = |span: Range<usize>| 1 + breaks.partition_point(|at| *at < span.start);
        let root =
            DeTable::parse(text).map_err(|error| (error.span().map(line), error.message().to_owned()))?;
        let at = |span| Origin::Line(line(span));
        Ok(Self { origin: Origin::Nowhere, value: table(root.get_ref(), &at) })
    }

    /// The tree of one TOML value that stands in a variable.
    pub(super) fn parse_word(word: &str, origin: &Origin) -> Option<Self> {
        let value = DeValue::parse(word).ok()?;
        Some(node(&value, &|_| origin.clone()))
    }

    /// Sets `key` (levels divided by `__`) to a variable's value; `None` is one that is not UTF-8.
    pub(super) fn overlay(&mut self, key: &str, name: &str, value: Option<String>) -> Result<(), Failure> {
        let levels: Vec<&str> = key.split("__").collect();
        let origin = Origin::Variable(name.to_owned());
        let fail = |message: String| Err(Failure::new(levels.join("."), origin.clone(), message));
        let Some(value) = value else {
            return fail("its value is not UTF-8".to_owned());
        };
        let mut at = self;
        for level in &levels {
            let Value::Table(table) = &mut at.value else {
                return fail(format!("`{level}` cannot be set: what it is in has a value of its own"));
            };
            at = table
                .entry((*level).to_owned())
                .or_insert_with(|| Self { origin: origin.clone(), value: Value::Table(BTreeMap::new()) });
        }
        let set_before = match (&at.origin, &at.value) {
            (Origin::Variable(_), Value::Table(inner)) => !inner.is_empty(),
            (Origin::Variable(_), _) => true,
            _ => false,
        };
        if set_before {
            return fail("it is set by another variable as well".to_owned());
        }
        *at = Self { origin, value: Value::Word(value) };
        Ok(())
    }
}

fn table(own: &DeTable<'_>, at: &impl Fn(Range<usize>) -> Origin) -> Value {
    let entries = own.iter().map(|(key, value)| {
        // A key's line is where an operator looks, also for a table's header.
        (key.get_ref().to_string(), Node { origin: at(key.span()), value: inner(value.get_ref(), at) })
    });
    Value::Table(entries.collect())
}

fn node(value: &Spanned<DeValue<'_>>, at: &impl Fn(Range<usize>) -> Origin) -> Node {
    Node { origin: at(value.span()), value: inner(value.get_ref(), at) }
}

fn inner(value: &DeValue<'_>, at: &impl Fn(Range<usize>) -> Origin) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(integer) => Value::Integer(integer.as_str().to_owned(), integer.radix()),
        DeValue::Float(float) => Value::Float(float.as_str().to_owned()),
        DeValue::Boolean(boolean) => Value::Boolean(*boolean),
        // No option is a date; as text it can be refused, or parsed by who wants one.
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(items) => Value::Array(items.iter().map(|item| node(item, at)).collect()),
        DeValue::Table(own) => table(own, at),
    }
}
