//! Reads typed values out of parsed TOML. Notes every problem with its path and line, and goes on.

use std::borrow::Cow;
use std::collections::BTreeSet;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::bounds::Bound;
use crate::nearest::{listed, shortened};
use crate::refusal::{Fault, PROBLEMS_MAX, Problem};

/// The problems found so far in a text.
pub(super) struct Findings<'d> {
    text: &'d str,
    problems: Vec<Problem>,
}

impl<'d> Findings<'d> {
    pub(super) fn new(text: &'d str) -> Self {
        Self { text, problems: Vec::new() }
    }

    /// Notes a problem at a key's path and a byte of the text. Past the limit it is dropped: the document is
    /// refused anyway.
    pub(super) fn note(&mut self, key: impl Into<String>, at: Option<usize>, fault: Fault) {
        if self.problems.len() < PROBLEMS_MAX {
            let line = at.map(|at| line_of(self.text, at));
            self.problems.push(Problem { key: key.into(), line, fault });
        }
    }

    /// Notes a name that refers to nothing.
    pub(super) fn note_unknown<'k>(
        &mut self,
        key: &str,
        what: &'static str,
        name: Text<'_>,
        known: impl IntoIterator<Item = &'k str> + Clone,
    ) {
        // Looking for the nearest costs more than all the rest; not for what will not be told.
        if self.problems.len() < PROBLEMS_MAX {
            self.note(key, Some(name.at), Fault::unknown_name(what, name.text, known));
        }
    }

    pub(super) fn into_problems(self) -> Vec<Problem> {
        self.problems
    }
}

/// The line, from 1, of a byte.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// `parent.key`, the key quoted as in TOML where it has to be.
pub(crate) fn join(parent: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let key = if bare { shortened(key) } else { Cow::Owned(format!("{:?}", shortened(key))) };
    if parent.is_empty() { key.into_owned() } else { format!("{parent}.{key}") }
}

/// A string with the byte where it stands.
#[derive(Debug, Clone, Copy)]
pub(super) struct Text<'t> {
    pub(super) text: &'t str,
    pub(super) at: usize,
}

/// A table, where it stands, and how to call it.
pub(super) struct Section<'t, 'd> {
    path: String,
    at: usize,
    table: &'t DeTable<'d>,
}

impl<'t, 'd> Section<'t, 'd> {
    pub(super) fn root(table: &'t DeTable<'d>) -> Self {
        Self { path: String::new(), at: 0, table }
    }

    /// Where it begins.
    pub(super) fn at(&self) -> Option<usize> {
        // The document itself has no line.
        (!self.path.is_empty()).then_some(self.at)
    }

    pub(super) fn path(&self) -> &str {
        &self.path
    }

    /// The path of one of its keys.
    pub(super) fn path_of(&self, key: &str) -> String {
        join(&self.path, key)
    }

    pub(super) fn has(&self, key: &str) -> bool {
        self.table.contains_key(key)
    }

    /// Its keys, with where they stand.
    pub(super) fn keys(&self) -> impl Iterator<Item = Text<'t>> {
        self.table.keys().map(|key| Text { text: key.get_ref(), at: key.span().start })
    }

    /// Refuses every key but these.
    pub(super) fn only(&self, known: &[&str], findings: &mut Findings<'_>) {
        for key in self.keys().filter(|key| !known.contains(&key.text)).take(PROBLEMS_MAX) {
            findings.note(&self.path, Some(key.at), Fault::unknown_key(key.text, known));
        }
    }

    fn value(&self, key: &str) -> Option<&'t Spanned<DeValue<'d>>> {
        self.table.get(key)
    }

    fn wrong_type(
        &self,
        key: &str,
        value: &Spanned<DeValue<'d>>,
        allowed: &str,
        findings: &mut Findings<'_>,
    ) {
        let found = with_article(value.get_ref().type_str());
        let fault = Fault::WrongType { found, allowed: allowed.to_owned() };
        findings.note(self.path_of(key), Some(value.span().start), fault);
    }

    fn missing(&self, key: &str, allowed: impl Into<String>, findings: &mut Findings<'_>) {
        findings.note(self.path_of(key), self.at(), Fault::Missing { allowed: allowed.into() });
    }

    /// A table that may be missing.
    pub(super) fn section(&self, key: &str, findings: &mut Findings<'_>) -> Option<Self> {
        let value = self.value(key)?;
        let Some(table) = value.get_ref().as_table() else {
            self.wrong_type(key, value, "a table", findings);
            return None;
        };
        // A table that was never headed (`[queues]` of `[queues.cash]`) has the span of its first key.
        Some(Self { path: self.path_of(key), at: value.span().start, table })
    }

    /// A table of tables, each under its name; `what` says what they are if the table is missing.
    pub(super) fn named(
        &self,
        key: &str,
        what: &str,
        findings: &mut Findings<'_>,
    ) -> Vec<(Text<'t>, Option<Self>)> {
        let Some(section) = self.section(key, findings) else {
            if !self.has(key) {
                self.missing(key, format!("a table with at least one {what}"), findings);
            }
            return Vec::new();
        };
        if section.table.is_empty() {
            let fault = Fault::NotAllowed {
                found: "an empty table".to_owned(),
                allowed: format!("a table with at least one {what}"),
            };
            findings.note(section.path(), section.at(), fault);
        }
        section.keys().map(|name| (name, section.section(name.text, findings))).collect()
    }

    /// An array of tables, empty where the key is missing.
    pub(super) fn list(&self, key: &str, findings: &mut Findings<'_>) -> Vec<Self> {
        let Some(value) = self.value(key) else {
            return Vec::new();
        };
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, value, "an array of tables", findings);
            return Vec::new();
        };
        let mut sections = Vec::with_capacity(array.len());
        for (index, item) in array.iter().enumerate() {
            let path = format!("{}[{index}]", self.path_of(key));
            match item.get_ref().as_table() {
                Some(table) => sections.push(Self { path, at: item.span().start, table }),
                None => {
                    let found = with_article(item.get_ref().type_str());
                    let fault = Fault::WrongType { found, allowed: "a table".to_owned() };
                    findings.note(path, Some(item.span().start), fault);
                }
            }
        }
        sections
    }

    /// A string that may be missing.
    pub(super) fn text(&self, key: &str, allowed: &str, findings: &mut Findings<'_>) -> Option<Text<'t>> {
        let value = self.value(key)?;
        match value.get_ref().as_str() {
            Some(text) => Some(Text { text, at: value.span().start }),
            None => {
                self.wrong_type(key, value, allowed, findings);
                None
            }
        }
    }

    /// A string that must be there.
    pub(super) fn needed_text(
        &self,
        key: &str,
        allowed: &str,
        findings: &mut Findings<'_>,
    ) -> Option<Text<'t>> {
        if !self.has(key) {
            self.missing(key, allowed, findings);
        }
        self.text(key, allowed, findings)
    }

    /// An array of strings that may be missing; none twice, and none missing in it.
    pub(super) fn texts(
        &self,
        key: &str,
        allowed: &str,
        findings: &mut Findings<'_>,
    ) -> Option<Vec<Text<'t>>> {
        let value = self.value(key)?;
        let Some(array) = value.get_ref().as_array() else {
            self.wrong_type(key, value, allowed, findings);
            return None;
        };
        if array.is_empty() {
            let fault = Fault::NotAllowed { found: "empty".to_owned(), allowed: allowed.to_owned() };
            findings.note(self.path_of(key), Some(value.span().start), fault);
        }
        let mut texts: Vec<Text<'t>> = Vec::with_capacity(array.len());
        let mut seen = BTreeSet::new();
        for (index, item) in array.iter().enumerate() {
            let at = item.span().start;
            let path = format!("{}[{index}]", self.path_of(key));
            match item.get_ref().as_str() {
                Some(text) if !seen.insert(text) => {
                    findings.note(path, Some(at), Fault::Twice { found: format!("`{}`", shortened(text)) });
                }
                Some(text) => texts.push(Text { text, at }),
                None => {
                    let found = with_article(item.get_ref().type_str());
                    findings.note(path, Some(at), Fault::WrongType { found, allowed: "a string".to_owned() });
                }
            }
        }
        Some(texts)
    }

    /// One of a few words, or the first of them.
    pub(super) fn word(
        &self,
        key: &str,
        words: &[&'static str],
        findings: &mut Findings<'_>,
    ) -> &'static str {
        let first = words.first().copied().unwrap_or_default();
        let allowed = format!("one of {}", listed(words.iter().copied()));
        let Some(found) = self.text(key, &allowed, findings) else {
            return first;
        };
        match words.iter().find(|word| **word == found.text) {
            Some(word) => word,
            None => {
                let fault = Fault::NotAllowed { found: format!("`{}`", shortened(found.text)), allowed };
                findings.note(self.path_of(key), Some(found.at), fault);
                first
            }
        }
    }

    /// A whole number in its range, or its default. `None` after a problem was noted.
    pub(super) fn number(&self, key: &str, bound: Bound, findings: &mut Findings<'_>) -> Option<u64> {
        let allowed = format!("a whole number from {} to {}", bound.min, bound.max);
        let Some(value) = self.value(key) else {
            if bound.default.is_none() {
                self.missing(key, allowed, findings);
            }
            return bound.default;
        };
        let Some(integer) = value.get_ref().as_integer() else {
            self.wrong_type(key, value, &allowed, findings);
            return None;
        };
        let number = u64::from_str_radix(integer.as_str(), integer.radix()).ok();
        let fits = number.filter(|number| (bound.min..=bound.max).contains(number));
        if fits.is_none() {
            let fault = Fault::NotAllowed { found: shortened(&integer.to_string()).into_owned(), allowed };
            findings.note(self.path_of(key), Some(value.span().start), fault);
        }
        fits
    }

    /// Where a key's value stands, for a problem that is found later.
    pub(super) fn at_value(&self, key: &str) -> Option<usize> {
        self.value(key).map(|value| value.span().start).or(self.at())
    }
}

fn with_article(kind: &'static str) -> &'static str {
    match kind {
        "string" => "a string",
        "integer" => "an integer",
        "float" => "a float",
        "boolean" => "a boolean",
        "datetime" => "a date or time",
        "array" => "an array",
        "table" => "a table",
        other => other,
    }
}
