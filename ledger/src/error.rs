//! The ledger's errors, and what to do about each.

use rusqlite::ErrorCode;

/// The ledger could not be opened. Nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// Another writer has it open: close that one, or wait for it.
    #[error("{path} is in use by another writer; close it first")]
    InUse {
        /// The ledger's file or address.
        path: String,
    },
    /// The file or its directory may not be written: change its permissions, or open it with `LedgerReader`.
    #[error("{path} is read-only; make the file and its directory writable")]
    ReadOnly {
        /// The ledger's file or address.
        path: String,
    },
    /// A newer version of Windfall wrote it: use that one.
    #[error("{path} has schema version {found}; this build reads up to {known}")]
    Newer {
        /// The ledger's file or address.
        path: String,
        /// The version found.
        found: i64,
        /// The newest that is understood.
        known: i64,
    },
    /// It is no ledger, or it is damaged: restore it from a copy.
    #[error("{path} is not a ledger or is damaged: {what}")]
    Damaged {
        /// The ledger's file or address.
        path: String,
        /// What is wrong.
        what: String,
    },
    /// No server answers there in time: start it, or correct the address.
    #[error("{path} cannot be reached: {what}; start the server or correct the address")]
    Unreachable {
        /// Where the ledger should be.
        path: String,
        /// The system's answer.
        what: String,
    },
    /// The user, the password or the rights are wrong.
    #[error("{path} refuses: {what}")]
    Denied {
        /// Where the ledger should be.
        path: String,
        /// What was refused, and what to grant.
        what: String,
    },
    /// The server cannot be trusted, refuses this client's certificate, or takes no TLS: correct certificates or options.
    #[error("{path} cannot be spoken to by TLS: {what}")]
    Untrusted {
        /// Where the ledger should be.
        path: String,
        /// What is wrong, and the remedy.
        what: String,
    },
    /// There is no such database: create it, or correct the address.
    #[error("{path}: there is no such database; create it, or correct the address")]
    NoDatabase {
        /// Where the ledger should be.
        path: String,
    },
    /// The address, an option or the server's version cannot be used: correct it.
    #[error("{0}")]
    Invalid(String),
    /// The operating system refused.
    #[error("{path}: {what}")]
    Io {
        /// The ledger's file or address.
        path: String,
        /// The system's answer.
        what: String,
    },
}

/// A transaction did not happen, or nobody knows whether its commit did. Repeat the whole batch: what was
/// credited answers `AlreadyCredited`.
#[derive(Debug, thiserror::Error)]
pub enum LedgerError {
    /// Another connection holds the write lock: try again.
    #[error("the ledger is locked by another connection; try again")]
    Busy,
    /// Another transaction was in the way (deadlock, lock time-out, serialization): repeat this one at once.
    /// Nothing of it was stored.
    #[error("another transaction was in the way: {0}; repeat this one")]
    Contended(String),
    /// The database does not answer, or answers too late: try again. Nothing was stored.
    #[error("the ledger's database is unavailable: {0}; try again")]
    Unavailable(String),
    /// The answer to a commit was lost: stored or not, nobody knows. Ask again; an order that was credited answers so.
    #[error("nobody knows whether a commit happened: {0}; ask again")]
    Unknown(String),
    /// No space is left, or `max_bytes` is reached: make room, then try again.
    #[error("the ledger's disk or size limit is full; make room, then try again")]
    Full,
    /// The file may not be written any more: restore its permissions, then try again.
    #[error("the ledger has become read-only; restore its permissions, then try again")]
    ReadOnly,
    /// The file is damaged: stop, and restore it from a copy.
    #[error("the ledger is damaged: {0}")]
    Damaged(String),
    /// An earlier statement of this transaction failed, so it cannot be committed.
    #[error("a statement of this transaction failed; nothing of it was stored")]
    Poisoned,
    /// A number is out of its range: correct the call.
    #[error("{0}")]
    Invalid(String),
    /// The tables are of a version that lacks what was asked for: migrate the ledger.
    #[error("{0}")]
    NotMigrated(String),
    /// The database answered something else.
    #[error("the ledger failed: {0}")]
    Sql(String),
}

impl From<rusqlite::Error> for LedgerError {
    fn from(error: rusqlite::Error) -> Self {
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::Busy,
            Some(ErrorCode::DiskFull) => Self::Full,
            Some(ErrorCode::ReadOnly) => Self::ReadOnly,
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => Self::Damaged(error.to_string()),
            _ => Self::Sql(error.to_string()),
        }
    }
}

impl OpenError {
    /// Whether the same attempt may succeed later though nobody changes an option: the server is away, or it is a
    /// standby that may become the master.
    pub const fn may_pass(&self) -> bool {
        matches!(self, Self::Unreachable { .. } | Self::ReadOnly { .. })
    }

    pub(crate) fn of_sql(path: &std::path::Path, error: &rusqlite::Error) -> Self {
        let path = path.display().to_string();
        match error.sqlite_error_code() {
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Self::InUse { path },
            Some(ErrorCode::ReadOnly | ErrorCode::PermissionDenied) => Self::ReadOnly { path },
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                Self::Damaged { path, what: error.to_string() }
            }
            _ => Self::Io { path, what: error.to_string() },
        }
    }
}
