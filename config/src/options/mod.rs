//! Static options of a process: a TOML file with the environment laid over it.
//!
//! Each component has its own options struct in its own crate; this reads any of them. Environment values have
//! no type of their own, so they are read as what the field wants: `5` is a number for a `u64` and a text for
//! a `String`. That, and errors that name the key, its line and the nearest known one, is why this is a small
//! [`serde::Deserializer`] of our own.

mod de;
mod tree;

use std::ffi::OsString;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;

use crate::bounds::DOCUMENT_MAX_BYTES;
use crate::watch::read_bounded;
use tree::{Node, Origin};

/// Options could not be loaded. Nothing was started; correct what it names.
#[derive(Debug, thiserror::Error)]
pub enum OptionsError {
    /// The file cannot be read.
    #[error("the options file {path} cannot be read: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The file is no text, too long, or not TOML.
    #[error("{path}{}: {message}", .line.map(|line| format!(", line {line}")).unwrap_or_default())]
    Document {
        /// The file.
        path: PathBuf,
        /// Line, from 1, where it is known.
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
    /// In the file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: usize,
    },
    /// In the environment.
    Environment {
        /// The variable's name.
        name: String,
    },
    /// Nowhere: it is missing.
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

/// Loads options: the file's values, over them the environment's, and the type's defaults where neither says
/// anything. Without a path, the environment and the defaults alone.
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
    let mut root = match path {
        Some(path) => read(path)?,
        None => Node::empty(),
    };
    let told = |failure: de::Failure| failure.told(path, prefix);
    for (name, value) in env {
        // A name that is not text cannot begin with the prefix and be anybody's.
        let Ok(name) = name.into().into_string() else { continue };
        let Some(key) = name.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('_')) else { continue };
        let key = key.to_ascii_lowercase();
        let value = value.into().into_string();
        root.overlay(&key, &name, value.ok()).map_err(told)?;
    }
    de::read(&root).map_err(told)
}

fn read(path: &Path) -> Result<Node, OptionsError> {
    let bytes = read_bounded(path).map_err(|source| OptionsError::Read { path: path.to_owned(), source })?;
    let refuse = |line, message: String| OptionsError::Document { path: path.to_owned(), line, message };
    if bytes.len() > DOCUMENT_MAX_BYTES {
        return Err(refuse(None, format!("longer than {DOCUMENT_MAX_BYTES} bytes")));
    }
    let text = str::from_utf8(&bytes).map_err(|error| {
        let line = 1 + bytes.iter().take(error.valid_up_to()).filter(|byte| **byte == b'\n').count();
        refuse(Some(line), format!("byte {} is not UTF-8", error.valid_up_to()))
    })?;
    Node::parse(text).map_err(|(line, message)| refuse(line, format!("not TOML: {message}")))
}

impl Origin {
    fn place(&self, path: Option<&Path>) -> Place {
        match (self, path) {
            (Self::Line(line), Some(path)) => Place::File { path: path.to_owned(), line: *line },
            (Self::Variable(name), _) => Place::Environment { name: name.clone() },
            (Self::Nowhere | Self::Line(_), _) => Place::Nowhere,
        }
    }
}
