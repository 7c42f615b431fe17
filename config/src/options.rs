//! Static options of a process: a TOML file with the environment laid over it.
//!
//! Each component has its own options struct in its own crate; this reads any of them. A value of the environment has
//! no type of its own, so it takes the one that its field wants: `5` is a number for a `u64` and a text for a
//! `String`. figment and config-rs guess the type instead (or take texts for numbers in files too), and neither
//! knows in which line of a file a value stands, nor which keys a struct without `deny_unknown_fields` has.

use std::borrow::Cow;
use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use crate::bounds::DOCUMENT_MAX_BYTES;
use crate::findings::line_of;
use crate::reader::{Failure, Reader, Source};
use crate::refusal::Fault;
use crate::watch::read_bounded;

/// Options could not be loaded. Nothing was started; correct what it names.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file cannot be read.
    #[error("the options file {path} cannot be read: {source}")]
    Read {
        /// The options file.
        path: PathBuf,
        /// The error of the operating system.
        source: io::Error,
    },
    /// The file is not text, is too long, or is not TOML.
    #[error("{path}{}: {message}", .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Document {
        /// The options file.
        path: PathBuf,
        /// The line, counted from 1, where it is known.
        line: Option<usize>,
        /// What is wrong.
        message: String,
    },
    /// A key is unknown or missing, or its value does not fit.
    #[error("{place}{key}: {message}")]
    Key {
        /// Where it was set.
        place: Place,
        /// The key's path, as `sdk.linger_ms`.
        key: String,
        /// What was found and what is allowed.
        message: String,
    },
}

/// Where an option was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// The option was set in the file.
    File {
        /// The options file.
        path: PathBuf,
        /// The line, counted from 1.
        line: usize,
    },
    /// The option was set by a variable of the environment.
    Environment {
        /// The variable's name.
        name: String,
    },
    /// The option was set nowhere, so it is missing.
    Nowhere,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { path, line } => write!(f, "{}, line {line}: ", path.display()),
            Self::Environment { name } => write!(f, "environment variable {name}: "),
            Self::Nowhere => Ok(()),
        }
    }
}

/// Loads options: the file's values, over them the environment's, and the type's defaults where neither sets a value.
/// Without a path, the environment and the defaults alone.
///
/// With the prefix `WINDFALL`, the variable `WINDFALL_SDK__LINGER_MS` sets the key `linger_ms` of the table
/// `sdk`: one `_` after the prefix, two between levels, lower case in the file. A list or a table is written
/// as in TOML (`["a", "b"]`). Keys of maps that have other characters than `a-z 0-9 _` can be set in the file
/// alone. Pass [`std::env::vars_os`]; variables without the prefix are left alone.
///
/// A key that no field reads is refused wherever the target is a struct, with or without
/// `#[serde(deny_unknown_fields)]`.
///
/// # Errors
/// [`OptionsError`] names the file and line, or the variable, and the key.
///
/// ```
/// # use serde::Deserialize;
/// #[derive(Deserialize)]
/// #[serde(default)]
/// struct Options {
///     linger_ms: u64,
/// }
/// impl Default for Options {
///     fn default() -> Self {
///         Self { linger_ms: 5 }
///     }
/// }
///
/// let env = [("WINDFALL_LINGER_MS", "7"), ("HOME", "/root")];
/// let options: Options = windfall_config::load(None, env, "WINDFALL")?;
/// assert_eq!(options.linger_ms, 7);
///
/// let mistyped = windfall_config::load::<Options, _, _>(None, [("WINDFALL_LINGR_MS", "7")], "WINDFALL");
/// assert!(mistyped.err().is_some_and(|error| error.to_string().contains("did you mean `linger_ms`?")));
/// # Ok::<(), windfall_config::OptionsError>(())
/// ```
pub fn load<T, K, V>(
    path: Option<&Path>,
    env: impl IntoIterator<Item = (K, V)>,
    prefix: &str,
) -> Result<T, OptionsError>
where
    T: DeserializeOwned,
    K: Into<OsString>,
    V: Into<OsString>,
{
    let text = path.map(read).transpose()?.unwrap_or_default();
    let mut file = File { path, text: &text, prefix, variables: Vec::new() };
    let mut root = file.parse()?;
    for (name, value) in env {
        // A name that is not text cannot begin with the prefix and be anybody's.
        let Ok(name) = name.into().into_string() else { continue };
        let Some(key) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) else { continue };
        let key = key.to_ascii_lowercase();
        let levels: Vec<&str> = key.split("__").collect();
        let start = file.add_variable(&name);
        let value = value.into().into_string();
        overlay(&mut root, &levels, start, value.ok(), text.len()).map_err(|message| OptionsError::Key {
            place: Place::Environment { name },
            key: levels.join("."),
            message,
        })?;
    }
    let source = Source { text_bytes: text.len(), findings: None };
    T::deserialize(Reader::new(&DeValue::Table(root), &source)).map_err(|failure| file.told(failure))
}

/// The options file, and the variables that were laid over it.
struct File<'f> {
    path: Option<&'f Path>,
    text: &'f str,
    prefix: &'f str,
    variables: Vec<String>,
}

impl<'f> File<'f> {
    fn parse(&self) -> Result<DeTable<'f>, OptionsError> {
        DeTable::parse(self.text).map(Spanned::into_inner).map_err(|error| OptionsError::Document {
            path: self.path.map(Path::to_owned).unwrap_or_default(),
            line: error.span().map(|span| line_of(self.text, span.start)),
            message: format!("not TOML: {}", error.message()),
        })
    }

    /// Where the variable's value stands: each has a place of its own behind the text.
    fn add_variable(&mut self, name: &str) -> usize {
        self.variables.push(name.to_owned());
        self.text.len() + self.variables.len()
    }

    fn told(&self, failure: Failure) -> OptionsError {
        let variable =
            |at: usize| at.checked_sub(self.text.len() + 1).and_then(|index| self.variables.get(index));
        let place = match (failure.at, failure.at.and_then(variable), self.path) {
            (_, Some(name), _) => Place::Environment { name: name.clone() },
            (Some(at), None, Some(path)) => {
                Place::File { path: path.to_owned(), line: line_of(self.text, at) }
            }
            _ => Place::Nowhere,
        };
        let mut message = said(&failure.key, &failure.fault);
        if place == Place::Nowhere && !failure.key.is_empty() {
            let variable = failure.key.to_ascii_uppercase().replace('.', "__");
            message = format!("{message}; set it in the options file or as {}_{variable}", self.prefix);
        }
        OptionsError::Key { place, key: failure.key, message }
    }
}

/// What is wrong, without what stands there where that may be a secret: errors go to logs, which more people read than the
/// options.
fn said(key: &str, fault: &Fault) -> String {
    match fault {
        // Of a text where a table is wanted, nobody knows what it is: it may be an address with a password. Where a number is
        // wanted, it is a mistyped one.
        Fault::WrongType { found, allowed }
            if found.starts_with("a string")
                && (!allowed.contains("number") || may_be_secret(key, found)) =>
        {
            format!("is a string; it must be {allowed}")
        }
        Fault::NotAllowed { found, allowed } if may_be_secret(key, found) => {
            format!("has a value that is not shown, since it may be a secret; it must be {allowed}")
        }
        // The reader's own words for a field that is not there.
        Fault::Unfit(what) if may_be_secret(key, what) && what != "is missing" => {
            "has a value that does not fit; it is not shown, since it may be a secret".to_owned()
        }
        other => other.to_string(),
    }
}

/// Whether the value of a key, or what was said of it, may hold a secret: by the key's name, or because it has an address.
fn may_be_secret(key: &str, text: &str) -> bool {
    let is_telling = |name: &str| {
        let names = ["password", "secret", "token", "bearer", "key", "user", "url", "endpoint", "credential"];
        // A file's name is no secret, and neither is a number of milliseconds.
        let is_plain = ["_file", "_ms", "_s", "_max", "_id"].iter().any(|end| name.ends_with(end));
        !is_plain && names.iter().any(|telling| name.contains(telling))
    };
    key.rsplit('.').next().is_some_and(is_telling) || text.contains("://")
}

fn read(path: &Path) -> Result<String, OptionsError> {
    let bytes = read_bounded(path).map_err(|source| OptionsError::Read { path: path.to_owned(), source })?;
    let refuse = |line, message: String| OptionsError::Document { path: path.to_owned(), line, message };
    if bytes.len() > DOCUMENT_MAX_BYTES {
        return Err(refuse(None, format!("longer than {DOCUMENT_MAX_BYTES} bytes")));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes().iter().take(at).filter(|byte| **byte == b'\n').count();
        refuse(Some(line), format!("byte {at} is not UTF-8"))
    })
}

/// Sets a key to a variable's value, which stands at `start`; `None` is one that is not UTF-8.
fn overlay(
    root: &mut DeTable<'_>,
    levels: &[&str],
    start: usize,
    value: Option<String>,
    text_bytes: usize,
) -> Result<(), String> {
    let value = value.ok_or("its value is not UTF-8")?;
    let span = || start..start;
    let key = |level: &str| Spanned::new(span(), Cow::Owned(level.to_owned()));
    let (last, tables) = levels.split_last().ok_or("it has no key")?;
    let mut table = root;
    for level in tables {
        let inner =
            table.entry(key(level)).or_insert_with(|| Spanned::new(span(), DeValue::Table(DeTable::new())));
        let DeValue::Table(inner) = inner.get_mut() else {
            return Err(format!("`{level}` has a value of its own, so nothing in it can be set"));
        };
        table = inner;
    }
    if let Some(before) = table.get(*last)
        && before.span().start > text_bytes
        && before.get_ref().as_table().is_none_or(|own| !own.is_empty())
    {
        return Err("it is set by another variable as well".to_owned());
    }
    table.insert(key(last), Spanned::new(span(), DeValue::String(Cow::Owned(value))));
    Ok(())
}
