//! The problems that were found in a text, with the key's path and the line of each.

use std::borrow::Cow;
use std::cell::RefCell;

use crate::nearest::shortened;
use crate::refusal::{Fault, PROBLEMS_MAX, Problem};

/// Collects the problems of one text.
pub(crate) struct Findings<'t> {
    text: &'t str,
    problems: RefCell<Vec<Problem>>,
}

impl<'t> Findings<'t> {
    pub(crate) fn new(text: &'t str) -> Self {
        Self { text, problems: RefCell::default() }
    }

    /// Notes a problem at a key's path and a byte of the text. Problems past the limit are dropped, for the document
    /// is refused anyway.
    pub(crate) fn note(&self, key: impl Into<String>, at: Option<usize>, fault: Fault) {
        if !self.is_full() {
            let line = at.map(|at| line_of(self.text, at));
            self.problems.borrow_mut().push(Problem { key: key.into(), line, fault });
        }
    }

    /// Notes that a name refers to nothing.
    pub(crate) fn note_unknown<'k>(
        &self,
        key: &str,
        at: Option<usize>,
        what: &'static str,
        name: &str,
        known: impl IntoIterator<Item = &'k str> + Clone,
    ) {
        // The search for the nearest name costs more than all the rest, so it is not made for what will not be told.
        if !self.is_full() {
            self.note(key, at, Fault::unknown_name(what, name, known));
        }
    }

    pub(crate) fn into_problems(self) -> Vec<Problem> {
        self.problems.into_inner()
    }

    fn is_full(&self) -> bool {
        self.problems.borrow().len() >= PROBLEMS_MAX
    }
}

/// The line, counted from 1, in which a byte stands.
pub(crate) fn line_of(text: &str, at: usize) -> usize {
    1 + text.bytes().take(at).filter(|byte| *byte == b'\n').count()
}

/// `parent.key`, where the key is quoted as in TOML if it has to be.
pub(crate) fn join(parent: &str, key: &str) -> String {
    let bare = !key.is_empty() && key.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    let key = if bare { shortened(key) } else { Cow::Owned(format!("{:?}", shortened(key))) };
    if parent.is_empty() { key.into_owned() } else { format!("{parent}.{key}") }
}
