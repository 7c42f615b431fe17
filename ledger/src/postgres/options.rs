//! The options of a ledger in PostgreSQL.

use crate::error::OpenError;
use crate::model::Unbudgeted;
use std::time::Duration;
use windfall_tls::TlsOptions;

/// Options of a ledger in PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresOptions {
    /// What happens to orders of an activity, scene and type for which no budget was set. Default: they
    /// are refused.
    pub unbudgeted: Unbudgeted,
    /// The schema that holds the tables; made where it is missing. Letters, digits and `_`, at most 63. Default
    /// `windfall`.
    pub schema: String,
    /// TLS to the server: its certificate must lead to a trusted authority and bear the host's name (`verify-full`), and no
    /// connection falls back to plain text. `sslmode=verify-full` or `require` in the address alone is TLS with the
    /// defaults. Default: none, which only servers on this machine are reached without.
    pub tls: Option<TlsOptions>,
    /// Whether plain text may leave this machine. Default false.
    pub plaintext: bool,
    /// The time after which a connection that is not ready for use has failed, 1 to 600,000 ms. Default 5,000.
    pub connect_timeout_ms: u64,
    /// The time after which the server cancels a statement, 1 to 600,000 ms. Default 10,000. A server that
    /// has not answered a second later counts as gone.
    pub statement_timeout_ms: u64,
    /// How long a statement waits for another transaction's rows at most, 1 to 600,000 ms. Default 5,000.
    pub lock_timeout_ms: u64,
    /// The idle time after which the server ends a transaction of this client, because it holds rows that others need.
    /// 1 to 600,000 ms. Default 10,000.
    pub idle_in_transaction_timeout_ms: u64,
    /// The time that a reader's statement, and a pause between two, may take: readers may compare and count everything.
    /// 1 to 86,400,000 ms. Default 600,000.
    pub read_timeout_ms: u64,
    /// The longest pause between two attempts to connect; the first is 50 ms, each next one twice as long. 50 to
    /// 60,000 ms. Default 1,000.
    pub backoff_max_ms: u64,
    /// Whether an address may name several hosts although their server waits for no synchronous standby. A fail-over
    /// then loses rewards that were answered as credited. Default false: a new ledger, and one without a mark, is refused.
    pub failover_without_synchronous_standby: bool,
}

impl Default for PostgresOptions {
    fn default() -> Self {
        Self {
            unbudgeted: Unbudgeted::Refuse,
            schema: "windfall".into(),
            tls: None,
            plaintext: false,
            connect_timeout_ms: 5_000,
            statement_timeout_ms: 10_000,
            lock_timeout_ms: 5_000,
            idle_in_transaction_timeout_ms: 10_000,
            read_timeout_ms: 600_000,
            backoff_max_ms: 1_000,
            failover_without_synchronous_standby: false,
        }
    }
}

impl PostgresOptions {
    pub(crate) fn check(&self) -> Result<(), OpenError> {
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if self.schema.is_empty() || self.schema.len() > 63 || !self.schema.bytes().all(plain) {
            return Err(OpenError::Invalid(format!(
                "schema {:?}: 1 to 63 letters, digits and _ are allowed",
                self.schema
            )));
        }
        let ranges = [
            ("connect_timeout_ms", self.connect_timeout_ms, 1, 600_000),
            ("statement_timeout_ms", self.statement_timeout_ms, 1, 600_000),
            ("lock_timeout_ms", self.lock_timeout_ms, 1, 600_000),
            ("idle_in_transaction_timeout_ms", self.idle_in_transaction_timeout_ms, 1, 600_000),
            ("read_timeout_ms", self.read_timeout_ms, 1, 86_400_000),
            ("backoff_max_ms", self.backoff_max_ms, 50, 60_000),
        ];
        for (name, value, min, max) in ranges {
            if !(min..=max).contains(&value) {
                return Err(OpenError::Invalid(format!("{name} is {value}; it must be {min} to {max}")));
            }
        }
        Ok(())
    }

    /// The time without an answer after which a server counts as gone.
    pub(crate) fn answer_timeout(&self) -> Duration {
        Duration::from_millis(self.statement_timeout_ms + 1_000)
    }

    pub(crate) fn read_timeout(&self) -> Duration {
        Duration::from_millis(self.read_timeout_ms + 1_000)
    }
}
