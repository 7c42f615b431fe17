//! The pace of an auditor.

use serde::Deserialize;
use windfall_ledger::AuditLimits;

/// The options of an auditor.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AuditorOptions {
    /// Whether `windfall serve` audits its ledger, too. A process of the role `auditor` always does. Default false.
    pub enabled: bool,
    /// The pause between two rounds, ms. 100 to 3,600,000; default 10,000. A round reads all transfers that are final by now, compares
    /// what is small, and sweeps. It reads for no longer than this before it compares; where more is left, the next round begins at once.
    pub every_ms: u64,
    /// How long a round sweeps accounts, orders and withdrawals, ms: the part of the time that the database works for this. 0 to
    /// 3,600,000; default 2,000.
    pub sweep_ms: u64,
    /// The pause between two steps of a round, ms, in which others have the database. 0 to 60,000; default 20.
    pub step_pause_ms: u64,
    /// The number of transfers of a step. 1,000 to 1,000,000; default 100,000; at most 10,000
    /// in a file.
    pub increment_rows: u32,
    /// Balances are compared while at most so many transfers are not read yet. 1,000 to 10,000,000; default 500,000;
    /// at most 50,000 in a file.
    pub unread_rows_max: u32,
}

impl Default for AuditorOptions {
    fn default() -> Self {
        let AuditLimits { increment_rows, tail_rows_max, .. } = AuditLimits::default();
        Self {
            enabled: false,
            every_ms: 10_000,
            sweep_ms: 2_000,
            step_pause_ms: 20,
            increment_rows,
            unread_rows_max: tail_rows_max,
        }
    }
}

/// An option is out of its range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("auditor.{name} is {value}, but only {min} to {max} is allowed")]
pub struct BadOptions {
    name: &'static str,
    value: u64,
    min: u64,
    max: u64,
}

impl AuditorOptions {
    /// Refuses values out of their ranges.
    ///
    /// # Errors
    /// [`BadOptions`] names the first.
    pub fn check(&self) -> Result<(), BadOptions> {
        let ranges = [
            ("every_ms", self.every_ms, 100, 3_600_000),
            ("sweep_ms", self.sweep_ms, 0, 3_600_000),
            ("step_pause_ms", self.step_pause_ms, 0, 60_000),
            ("increment_rows", u64::from(self.increment_rows), 1_000, 1_000_000),
            ("unread_rows_max", u64::from(self.unread_rows_max), 1_000, 10_000_000),
        ];
        let bad = ranges.into_iter().find(|(_, value, min, max)| value < min || value > max);
        bad.map_or(Ok(()), |(name, value, min, max)| Err(BadOptions { name, value, min, max }))
    }

    pub(crate) fn limits(&self) -> AuditLimits {
        let AuditLimits { account_rows, order_rows, .. } = AuditLimits::default();
        AuditLimits {
            increment_rows: self.increment_rows,
            tail_rows_max: self.unread_rows_max,
            // No step is longer than an increment may be.
            account_rows: account_rows.min(self.increment_rows),
            order_rows: order_rows.min(self.increment_rows),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_out_of_its_range_is_named() {
        assert_eq!(AuditorOptions::default().check(), Ok(()));
        let bad = AuditorOptions { every_ms: 99, ..AuditorOptions::default() }.check().unwrap_err();
        assert_eq!(bad.to_string(), "auditor.every_ms is 99, but only 100 to 3600000 is allowed");
    }
}
