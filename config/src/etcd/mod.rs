//! Live rules in etcd: one document for a fleet, applied within a second by every process.
//!
//! - [`EtcdSource`] follows the document: it reads and watches, and checks each second whether the watch is still
//!   right, so that a broken stream, a compaction, a frozen server or one that has lost its data is noticed.
//! - [`EtcdRulesStore`] changes it for an operator: document and history entry in one transaction, compared with what
//!   was read, so that one of two concurrent operators gets a conflict.
//!
//! Under [`EtcdOptions::prefix`] lie `current`, the document, and `changes/0000000000000007`, what made version 7:
//! who, why, before, after. `proposals/0000000000000003` is a change that waits for approval, and `proposals/next` the number
//! of the next one. Under `status/` each process reports what it runs; etcd forgets that of a silent one.
//! Other small values of the fleet may lie beside them ([`EtcdValue`]).
//!
//! **Versions only grow.** A process takes no document whose version is not above the one that it runs, whatever
//! happened to etcd; a rollback writes an old document under a new version. Where etcd has lost its data, put the
//! document back that the processes run, from any one's [`EtcdOptions::copy`].
//!
//! **Without etcd.** Every document that was taken is kept in [`EtcdOptions::copy`]. A process that starts while etcd
//! is away begins with that, says so in its status, with the time since etcd confirmed the copy, and follows when etcd
//! is back (I8). A document that does not validate changes nothing and is counted (I6).
//!
//! ```no_run
//! use windfall_config::etcd::{EtcdOptions, EtcdRulesStore, EtcdSource};
//! use windfall_config::ChangeRules as _;
//!
//! let options = EtcdOptions {
//!     endpoints: vec!["https://10.0.0.5:2379".into()],
//!     copy: Some("/var/lib/windfall/rules-copy.toml".into()),
//!     ..EtcdOptions::default()
//! };
//! let (live, source) = EtcdSource::open(options.clone(), None, || 0)?;
//! println!("version {}", live.current().version);
//!
//! let store = EtcdRulesStore::new(options, None)?;
//! store.rollback(7, "ann", "the new limits were too low", 1_800_000_000_000)?;
//! source.close();
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod connection;
mod key;
mod proposals;
mod source;
mod store;

pub use key::EtcdValue;
pub use source::EtcdSource;
pub use store::EtcdRulesStore;

use crate::refusal::Refusal;
use crate::status::file_name;
use serde::Deserialize;
use std::io;
use std::path::PathBuf;
use std::time::Duration;
pub use windfall_tls::TlsOptions;
use windfall_tls::{Security, TlsError};

/// How an endpoint asks for TLS.
const TLS_SCHEME: &str = "https://";
/// How it asks for plain text, which is what it does without a word, too.
const PLAIN_SCHEME: &str = "http://";

/// The place of the rules in etcd.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EtcdOptions {
    /// `host:port` of its members, also as `http://host:port`, or `https://host:port` for TLS. 1 to 16; default
    /// `127.0.0.1:2379`.
    pub endpoints: Vec<String>,
    /// TLS to all members. `https://` in `endpoints` alone is TLS with the defaults. Default: none, which only members on
    /// this machine are reached without.
    pub tls: Option<TlsOptions>,
    /// Whether plain text may leave this machine. Default false.
    pub plaintext: bool,
    /// The prefix of the keys; 1 to 512 bytes, default `/windfall/rules/`.
    pub prefix: String,
    /// User and password, where etcd asks for them. The password is never shown.
    pub user: Option<(String, String)>,
    /// The file that keeps the last good document, for starts without etcd; a file for each process. `None`: such
    /// starts fail.
    pub copy: Option<PathBuf>,
    /// How long a start waits for etcd, ms. 1 to 60,000; default 3,000.
    pub start_timeout_ms: u64,
    /// How long any one answer may take, ms. 1 to 60,000; default 2,000.
    pub call_timeout_ms: u64,
    /// How often the watch is checked, ms; an answer of a hundred bytes. 10 to 60,000; default 1,000.
    pub check_ms: u64,
}

impl Default for EtcdOptions {
    fn default() -> Self {
        Self {
            endpoints: vec!["127.0.0.1:2379".into()],
            tls: None,
            plaintext: false,
            prefix: "/windfall/rules/".into(),
            user: None,
            copy: None,
            start_timeout_ms: 3_000,
            call_timeout_ms: 2_000,
            check_ms: 1_000,
        }
    }
}

/// Rules in etcd could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenEtcdError {
    /// An option is out of its range; correct it.
    #[error("{0}")]
    Option(String),
    /// etcd gives no answer, or refuses the user, and there is no copy to begin with. Check endpoints and user.
    #[error("etcd at {place}: {what}; check endpoints and user, and that etcd runs")]
    Unreachable {
        /// The endpoints.
        place: String,
        /// What happened.
        what: String,
    },
    /// There is no document, and no copy. Set one first.
    #[error("etcd at {place} has no {key}; set the rules first (windfall rules set)")]
    Missing {
        /// The endpoints.
        place: String,
        /// The key that is missing.
        key: String,
    },
    /// The document does not validate, and there is no copy of an earlier one. Correct it.
    #[error("{key}: {refusal}")]
    Refused {
        /// The key.
        key: String,
        /// What is wrong.
        refusal: Refusal,
    },
    /// The watching thread could not be started. Retry when the system has threads again.
    #[error("the watcher of the rules cannot be started: {0}")]
    Thread(io::Error),
}

impl OpenEtcdError {
    /// Whether the same attempt may succeed later though nobody changes an option: etcd is away, or the rules are not
    /// set yet.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::Missing { .. })
    }
}

impl std::fmt::Debug for EtcdOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("EtcdOptions")
            .field("endpoints", &self.endpoints)
            .field("prefix", &self.prefix)
            .field("user", &self.user.as_ref().map(|(name, _)| name))
            .field("copy", &self.copy)
            .finish_non_exhaustive()
    }
}

impl EtcdOptions {
    fn check(&self) -> Result<(), OpenEtcdError> {
        let number = |value: usize| u64::try_from(value).unwrap_or(u64::MAX);
        let ranges = [
            ("endpoints", number(self.endpoints.len()), 1, 16),
            ("prefix", number(self.prefix.len()), 1, 512),
            ("start_timeout_ms", self.start_timeout_ms, 1, 60_000),
            ("call_timeout_ms", self.call_timeout_ms, 1, 60_000),
            ("check_ms", self.check_ms, 10, 60_000),
        ];
        for (name, value, low, high) in ranges {
            if value < low || value > high {
                return Err(OpenEtcdError::Option(format!(
                    "{name}: {value}, but {low} to {high} is allowed"
                )));
            }
        }
        self.check_address()
    }

    /// Checks whether the members may be reached like this. Reads no files, and connects to nothing.
    ///
    /// # Errors
    /// [`OpenEtcdError::Option`].
    pub fn check_address(&self) -> Result<(), OpenEtcdError> {
        let security = self.security();
        Security::new(security.tls(), self.plaintext).map_err(refused)?;
        for endpoint in &self.endpoints {
            if Self::schemeless(endpoint).contains("://") {
                return Err(OpenEtcdError::Option(format!(
                    "endpoints: {endpoint}, but http://host:port is allowed, and https://host:port"
                )));
            }
            security.allow_address("etcd", endpoint).map_err(refused)?;
        }
        Ok(())
    }

    /// What protects the connections. [`EtcdOptions::check`] says whether the options are right.
    fn security(&self) -> Security {
        let by_address = || self.endpoints.iter().any(|endpoint| endpoint.starts_with(TLS_SCHEME));
        match &self.tls {
            Some(tls) => Security::Tls(tls.clone()),
            None if by_address() => Security::Tls(TlsOptions::default()),
            None if self.plaintext => Security::Plaintext,
            None => Security::Local,
        }
    }

    /// The endpoints as the client takes them: all of them by TLS, or none.
    fn urls(&self, security: &Security) -> Vec<String> {
        let scheme = if security.tls().is_some() { TLS_SCHEME } else { PLAIN_SCHEME };
        self.endpoints.iter().map(|endpoint| format!("{scheme}{}", Self::schemeless(endpoint))).collect()
    }

    fn schemeless(endpoint: &str) -> &str {
        let plain = endpoint.strip_prefix(TLS_SCHEME).or_else(|| endpoint.strip_prefix(PLAIN_SCHEME));
        plain.unwrap_or(endpoint)
    }

    fn current_key(&self) -> String {
        format!("{}current", self.prefix)
    }

    fn changes_prefix(&self) -> String {
        format!("{}changes/", self.prefix)
    }

    /// The prefix of the changes that wait for approval.
    fn proposals_prefix(&self) -> String {
        format!("{}proposals/", self.prefix)
    }

    /// The key of a proposal, which sorts like its number.
    fn proposal_key(&self, number: u64) -> String {
        format!("{}{number:016}", self.proposals_prefix())
    }

    /// The key of the number that the next proposal gets.
    fn next_proposal_key(&self) -> String {
        format!("{}next", self.proposals_prefix())
    }

    /// The key under which a process reports the version that it runs.
    fn status_key(&self, process: &str) -> String {
        format!("{}status/{}", self.prefix, file_name(process))
    }

    /// The key of a change, which sorts like its version.
    fn change_key(&self, version: u64) -> String {
        format!("{}{version:016}", self.changes_prefix())
    }

    /// The endpoints, as messages name them.
    fn place(&self) -> String {
        self.endpoints.join(", ")
    }

    fn call_timeout(&self) -> Duration {
        Duration::from_millis(self.call_timeout_ms)
    }
}

fn refused(error: TlsError) -> OpenEtcdError {
    OpenEtcdError::Option(error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn urls(endpoints: &[&str], tls: bool, plaintext: bool) -> Result<Vec<String>, String> {
        let endpoints = endpoints.iter().map(|one| (*one).to_owned()).collect();
        let options = EtcdOptions {
            endpoints,
            tls: tls.then(TlsOptions::default),
            plaintext,
            ..EtcdOptions::default()
        };
        options.check().map_err(|error| error.to_string())?;
        Ok(options.urls(&options.security()))
    }

    #[test]
    fn members_are_reached_by_tls_or_on_this_machine_or_by_name_in_plain_text() {
        let of = |urls: &[&str]| Ok(urls.iter().map(|one| (*one).to_owned()).collect::<Vec<_>>());
        assert_eq!(
            urls(&["127.0.0.1:1", "http://[::1]:2"], false, false),
            of(&["http://127.0.0.1:1", "http://[::1]:2"])
        );
        assert_eq!(urls(&["e1:1", "http://e2:2"], true, false), of(&["https://e1:1", "https://e2:2"]));
        assert_eq!(urls(&["https://e1:1", "e2:2"], false, false), of(&["https://e1:1", "https://e2:2"]));
        assert_eq!(urls(&["http://e1:1"], false, true), of(&["http://e1:1"]));
        let refused = urls(&["127.0.0.1:1", "http://e2:2"], false, false).unwrap_err();
        assert!(refused.starts_with("etcd at e2 is not on this machine"), "{refused}");
        assert!(urls(&["https://e1:1"], false, true).unwrap_err().contains("contradict"));
        assert!(urls(&["ftp://127.0.0.1:1"], false, false).unwrap_err().contains("https://host:port"));
    }
}
