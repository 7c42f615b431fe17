//! Why a rules document was refused.

use std::fmt;

use crate::nearest::{listed, nearest, shortened};

/// The number of problems that are reported at once, at most: enough to correct a document in one go, and bounded (I9).
pub(crate) const PROBLEMS_MAX: usize = 50;

/// A rules document that was refused as a whole (I6). Correct what it names and offer the document again;
/// nothing has changed.
///
/// Its text has one line for each problem.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", self.text())]
pub struct Refusal {
    problems: Vec<Problem>,
}

impl Refusal {
    pub(crate) fn new(mut problems: Vec<Problem>) -> Self {
        // In the order of the document, so that an operator can mend from top to bottom.
        problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        problems.truncate(PROBLEMS_MAX);
        Self { problems }
    }

    pub(crate) fn of(problem: Problem) -> Self {
        Self { problems: vec![problem] }
    }

    /// What is wrong with it: at least one problem, at most 50, in the document's order.
    pub fn problems(&self) -> &[Problem] {
        &self.problems
    }

    fn text(&self) -> String {
        let lines: Vec<String> = self.problems.iter().map(Problem::to_string).collect();
        match lines.as_slice() {
            [one] => format!("the rules are refused: {one}"),
            many => format!("the rules are refused, {} problems:\n  {}", many.len(), many.join("\n  ")),
        }
    }
}

/// One thing that is wrong with a document.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The key's path, as `queues.cash.ratio` or `routes[2].queue`; empty for the document itself.
    pub key: String,
    /// The line, counted from 1, where it is known.
    pub line: Option<usize>,
    /// What is wrong.
    pub fault: Fault,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(line) = self.line {
            write!(f, "line {line}: ")?;
        }
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        self.fault.fmt(f)
    }
}

/// What is wrong, with what was found and what is allowed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// The document has nothing but white space and comments.
    #[error("the document is empty")]
    Empty,
    /// The document is too long.
    #[error("the document has more than {max} bytes; at most {max} are allowed")]
    TooLarge {
        /// The limit in bytes.
        max: usize,
    },
    /// The document is not text.
    #[error("byte {at} is not UTF-8; the document must be UTF-8 text")]
    NotUtf8 {
        /// Offset of the first byte that does not fit.
        at: usize,
    },
    /// The document is not TOML.
    #[error("not TOML: {0}")]
    Syntax(String),
    /// The document does not end with `[end]`.
    #[error("the document is half written: its last line must be `[end]`")]
    Unfinished,
    /// Something stands after `[end]`, as when a longer document was partly overwritten.
    #[error("`[end]` must be the last line and have no keys; nothing but comments may follow")]
    AfterEnd,
    /// A key is not known, so nothing would read it.
    #[error("unknown key `{found}`; {}", hint(.nearest.as_deref(), .known))]
    UnknownKey {
        /// The key.
        found: String,
        /// The known key that it resembles.
        nearest: Option<String>,
        /// The keys that may stand there.
        known: String,
    },
    /// A key that must be there is missing.
    #[error("is missing; it must be {allowed}")]
    Missing {
        /// What it must be.
        allowed: String,
    },
    /// The value is of another type than the key's.
    #[error("is {found}; it must be {allowed}")]
    WrongType {
        /// The type that stands there, and the value where it is a string.
        found: String,
        /// What it must be.
        allowed: String,
    },
    /// The value is not allowed.
    #[error("is {found}; it must be {allowed}")]
    NotAllowed {
        /// The value that stands there.
        found: String,
        /// What it must be.
        allowed: String,
    },
    /// The type of a static option refuses the value, in its own words.
    #[error("{0}")]
    Unfit(String),
    /// The value refers to something that is not there.
    #[error("names the unknown {what} `{found}`; {}", hint(.nearest.as_deref(), .known))]
    UnknownName {
        /// What it should name: `topic`, `queue`, `type`, `broker`.
        what: &'static str,
        /// The name.
        found: String,
        /// The known name that it resembles.
        nearest: Option<String>,
        /// The names that are there.
        known: String,
    },
    /// The same thing stands there twice.
    #[error("{found} stands there twice; once is allowed")]
    Twice {
        /// What stands there twice.
        found: String,
    },
    /// Two values that are fine alone do not fit together.
    #[error("{found}; {allowed}")]
    Clash {
        /// What was found.
        found: String,
        /// What is allowed.
        allowed: &'static str,
    },
    /// No route takes a bonus type, so its events would have no queue.
    #[error("no route takes the type `{found}`; add one, or remove the type")]
    Unreachable {
        /// The bonus type.
        found: String,
    },
    /// The document is not newer than the version that is running, and has other content.
    #[error(
        "is {found}, but version {running} is running with other content; a change needs a higher version"
    )]
    StaleVersion {
        /// The document's version.
        found: u64,
        /// The version that is running.
        running: u64,
    },
}

impl Fault {
    pub(crate) fn unknown_key(found: &str, known: &[&str]) -> Self {
        Self::UnknownKey {
            found: shortened(found).into_owned(),
            nearest: nearest(found, known.iter().copied()),
            known: listed(known.iter().copied()),
        }
    }

    pub(crate) fn unknown_name<'k>(
        what: &'static str,
        found: &str,
        known: impl IntoIterator<Item = &'k str> + Clone,
    ) -> Self {
        Self::UnknownName {
            what,
            found: shortened(found).into_owned(),
            nearest: nearest(found, known.clone()),
            known: listed(known),
        }
    }
}

fn hint(nearest: Option<&str>, known: &str) -> String {
    match nearest {
        Some(nearest) => format!("did you mean `{nearest}`?"),
        None if known.is_empty() => "there are none".to_owned(),
        None => format!("there are {known}"),
    }
}
