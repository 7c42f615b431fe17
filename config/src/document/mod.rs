//! The rules document: reads TOML into [`Rules`], and writes it.

mod check;
mod edit;
mod limits;
mod raw;
mod revoke;
mod staged;
mod value;
mod write;

use serde::Deserialize as _;
use toml::de::{DeTable, DeValue};
use windfall_contract::rules::{DrainingTopic, Rules, Staged};

use crate::bounds::DOCUMENT_MAX_BYTES;
use crate::findings::{Findings, line_of};
use crate::reader::{Reader, Source};
use crate::refusal::{Fault, PROBLEMS_MAX, Problem, Refusal};
use raw::RawDocument;

pub use edit::{Bucket, EditError, RulesEdit};
pub(crate) use staged::{with_staged_for_all, with_staged_later, without_staged};
pub(crate) use value::Number;

/// The table that ends every document, so that half of one is never taken for a whole.
const END: &str = "end";

/// Reads a document and checks it as a whole. `samples/rules.toml` describes every key.
///
/// `known_brokers` are the brokers of the static options; without them, any broker's name is taken.
///
/// # Errors
/// [`Refusal`] with every problem that could be found (at most 50), each with its key, its line, what was
/// found and what is allowed.
pub fn parse_rules(text: &str, known_brokers: Option<&[&str]>) -> Result<Rules, Refusal> {
    let refuse = |fault| Err(Refusal::of(Problem { key: String::new(), line: None, fault }));
    if text.len() > DOCUMENT_MAX_BYTES {
        return refuse(Fault::TooLarge { max: DOCUMENT_MAX_BYTES });
    }
    if text.lines().all(is_blank) {
        return refuse(Fault::Empty);
    }
    let root = parse_toml(text)?;
    let findings = Findings::new(text);
    let unfinished = check_end(text, &root);
    let source = Source { text_bytes: text.len(), findings: Some(&findings) };
    let rules = RawDocument::deserialize(Reader::new(&DeValue::Table(root), &source))
        .ok()
        .map(|document| check::check(&document, known_brokers, &findings));
    let mut problems = findings.into_problems();
    problems.extend(unfinished);
    match rules {
        Some(rules) if problems.is_empty() => Ok(rules),
        _ => Err(Refusal::new(problems)),
    }
}

/// [`parse_rules`] of a file's bytes, which may not be text at all.
///
/// # Errors
/// [`Refusal`], as [`parse_rules`].
pub fn parse_rules_bytes(bytes: &[u8], known_brokers: Option<&[&str]>) -> Result<Rules, Refusal> {
    match str::from_utf8(bytes) {
        Ok(text) => parse_rules(text, known_brokers),
        Err(error) => {
            let at = error.valid_up_to();
            let line = Some(1 + bytes.iter().take(at).filter(|byte| **byte == b'\n').count());
            Err(Refusal::of(Problem { key: String::new(), line, fault: Fault::NotUtf8 { at } }))
        }
    }
}

/// The document that reads back as these rules, every default written out.
pub fn rules_text(rules: &Rules) -> String {
    write::write(rules)
}
/// The version that a document carries; `None` where it is no document.
pub(crate) fn version_of(text: &str) -> Option<u64> {
    let root = DeTable::parse(text).ok()?;
    let version = root.get_ref().get("version")?.get_ref().as_integer()?;
    u64::from_str_radix(version.as_str(), version.radix()).ok()
}

/// The same document with another version; `None` where it has none that could be replaced.
pub(crate) fn with_version(text: &str, version: u64) -> Option<String> {
    let root = DeTable::parse(text).ok()?;
    let span = root.get_ref().get("version")?.span();
    let (before, after) = (text.get(..span.start)?, text.get(span.end..)?);
    Some(format!("{before}{version}{after}"))
}

/// The same document with more topics that are read until they are empty; `None` where it has no end.
pub(crate) fn with_draining(text: &str, topics: &[DrainingTopic]) -> Option<String> {
    let at = end_of(text)?;
    Some(format!("{}{}{}", text.get(..at)?, write::draining_text(topics), text.get(at..)?))
}

/// The same document with a change that some processes try; `rules` are what it says without. `None` where it has no end.
pub(crate) fn with_staged(text: &str, rules: &Rules, staged: &Staged) -> Option<String> {
    let at = end_of(text)?;
    // Remarks about the end stay with it, also when the change goes again.
    let remarks = text.get(..at)?.split_inclusive('\n').rev().take_while(|line| is_blank(line)).map(str::len);
    let at = at - remarks.sum::<usize>();
    Some(format!("{}\n{}{}", text.get(..at)?, staged::staged_text(rules, staged), text.get(at..)?))
}

/// The byte at which the line of the last table's head begins.
fn end_of(text: &str) -> Option<usize> {
    let root = DeTable::parse(text).ok()?;
    let (key, _) = root.get_ref().get_key_value(END)?;
    Some(text.get(..key.span().start)?.rfind('\n').map_or(0, |newline| newline + 1))
}

fn parse_toml(text: &str) -> Result<DeTable<'_>, Refusal> {
    let (root, errors) = DeTable::parse_recoverable(text);
    if errors.is_empty() {
        return Ok(root.into_inner());
    }
    let problems = errors.into_iter().take(PROBLEMS_MAX).map(|error| Problem {
        key: String::new(),
        line: error.span().map(|span| line_of(text, span.start)),
        fault: Fault::Syntax(error.message().to_owned()),
    });
    Err(Refusal::new(problems.collect()))
}

fn is_blank(line: &str) -> bool {
    let line = line.trim();
    line.is_empty() || line.starts_with('#')
}

// I6: a prefix of a document is TOML as often as not, and would run with defaults where the rest was.
fn check_end(text: &str, root: &DeTable<'_>) -> Option<Problem> {
    let problem = |line, fault| Some(Problem { key: END.to_owned(), line, fault });
    let Some((key, value)) = root.get_key_value(END) else {
        return problem(None, Fault::Unfinished);
    };
    let rest =
        text.get(key.span().end..).and_then(|rest| rest.trim_start_matches([' ', '\t']).strip_prefix(']'));
    let last = rest.is_some_and(|rest| rest.lines().all(is_blank));
    if last && value.get_ref().as_table().is_some_and(DeTable::is_empty) {
        return None;
    }
    problem(Some(line_of(text, key.span().start)), Fault::AfterEnd)
}
