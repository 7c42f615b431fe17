//! Files of secret keys: a key ring on disk, whatever its keys are for.
//!
//! - [`read`] reads a file that its owner alone may read (or, if it is root's, a group), [`write_new`] and [`replace`] write one as a whole: a reader,
//!   or a crash, sees the old content or the new one.
//! - [`Lock`] keeps a second writer out.
//! - [`text`] frames the content: a title, a format number, and a digest of all that follows, so that a file that was cut
//!   or edited by hand is refused as a whole. [`Secret`] is a key of 32 bytes in it.
//!
//! - [`exposed_mode`] says of a secret in another kind of file that anybody may read it.
//!
//! Not here: what the keys are, which states they have, and who may change them. These stand with each ring.
//!
//! ```
//! use windfall_key_file::{self as key_file, Lock, text};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let folder = tempfile::tempdir()?;
//! # let path = folder.path().join("keys.toml");
//! const TITLE: &str = "# Keys of an example.\n";
//! let _lock = Lock::take(&path)?;
//! key_file::write_new(&path, &text::seal(TITLE, "\nkey = 1\n"))?;
//! let content = key_file::read(&path, "example new")?;
//! assert!(text::check(TITLE, &content).is_ok());
//! # Ok(())
//! # }
//! ```

mod disk;
mod error;
mod secret;
pub mod text;

pub use disk::{FILE_MAX_BYTES, Lock, exposed_mode, read, real_path, replace, write_new};
pub use error::KeyFileError;
pub use secret::{Secret, by_name, put_secret, random_secret};
