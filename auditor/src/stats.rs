//! What an auditor shows.

use std::collections::BTreeMap;
use windfall_contract::declare_metrics;
use windfall_contract::metrics::Each;
use windfall_ledger::AuditProgress;

declare_metrics! {
    /// How far an auditor has come. Absent before it has read the ledger for the first time.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct AuditStats {
        gauge "windfall_audit_transfers" "Transfers that the auditor has read, each once" {
            /// Transfers that were read.
            pub transfers: Option<u64>,
        }
        gauge "windfall_audit_unread" "Transfers that the auditor has not read yet, counted up to unread_rows_max" {
            /// Transfers that were not read.
            pub unread: Option<u64>,
        }
        gauge "windfall_audit_behind"
        "1 while more transfers are unread than balances are compared with: nothing is compared" {
            /// Whether nothing is compared.
            pub is_behind: Option<bool>,
        }
        gauge "windfall_audit_unread_age_seconds" "Age of the oldest transfer that the auditor has not read, 0 for none" {
            /// The age of the oldest unread transfer.
            pub unread_age_s: Option<u64>,
        }
        gauge "windfall_audit_age_seconds"
        "Seconds since the auditor compared the ledger last; before the first time, since it was started" {
            /// Seconds since something was compared.
            pub age_s: u64,
        }
        gauge "windfall_audit_sweeps" "Whole sweeps over all accounts, orders and withdrawals" {
            /// How often a sweep has seen all of them; `None` while the ledger has not been asked.
            pub sweeps: Option<u64>,
        }
        gauge "windfall_audit_sweep_age_seconds" "Seconds since the sweep began that goes on" {
            /// Seconds since the present sweep began.
            pub sweep_age_s: Option<u64>,
        }
        counter "windfall_audit_failures_total" "Rounds of the auditor that failed: the ledger was away, or cannot be audited" {
            /// Rounds that failed.
            pub failures: u64,
        }
        gauge "windfall_journal_unsealed"
        "Transfers that are in no seal, counted up to 100,000: windfall ledger seal has not come to them" {
            /// Transfers behind the last seal.
            pub unsealed: Option<u64>,
        }
        gauge "windfall_journal_unsealed_age_seconds" "Age of the oldest transfer that is in no seal, 0 for none" {
            /// The age of the oldest of them.
            pub unsealed_age_s: Option<u64>,
        }
    }
}

declare_metrics! {
    /// Differences that people have not resolved.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct AuditDifferences {
        gauge "windfall_audit_differences" ["kind"] ["state"]
        "Differences in the ledger that are not resolved, by kind, and whether a person has acknowledged them" {
            /// Nobody has said anything about them.
            pub open: BTreeMap<String, u64> = read_open,
            /// Somebody is at them.
            pub acknowledged: BTreeMap<String, u64> = read_acknowledged,
        }
    }
}

fn read_open(kinds: &BTreeMap<String, u64>, each: &mut Each<'_>) {
    kinds.iter().for_each(|(kind, count)| each(&[kind, "open"], *count));
}

fn read_acknowledged(kinds: &BTreeMap<String, u64>, each: &mut Each<'_>) {
    kinds.iter().for_each(|(kind, count)| each(&[kind, "acknowledged"], *count));
}

/// What a scrape is computed from.
#[derive(Debug, Clone, Default)]
pub(crate) struct Seen {
    pub started_ms: i64,
    pub progress: Option<AuditProgress>,
    pub failures: u64,
}

impl Seen {
    pub fn stats(&self, now_ms: i64) -> AuditStats {
        let age_s = |since_ms: i64| u64::try_from(now_ms.saturating_sub(since_ms)).unwrap_or(0) / 1_000;
        let Some(own) = &self.progress else {
            return AuditStats {
                age_s: age_s(self.started_ms),
                failures: self.failures,
                ..AuditStats::default()
            };
        };
        AuditStats {
            transfers: Some(own.transfers),
            unread: Some(own.tail),
            is_behind: Some(own.is_behind),
            unread_age_s: Some(own.oldest_unread_ms.map_or(0, age_s)),
            age_s: age_s(if own.compared_ms == 0 { self.started_ms } else { own.compared_ms }),
            sweeps: Some(own.sweeps),
            sweep_age_s: (own.sweep_began_ms != 0).then(|| age_s(own.sweep_began_ms)),
            failures: self.failures,
            unsealed: Some(own.unsealed),
            unsealed_age_s: Some(own.oldest_unsealed_ms.map_or(0, age_s)),
        }
    }

    pub fn differences(&self) -> AuditDifferences {
        let own = self.progress.clone().unwrap_or_default();
        AuditDifferences { open: own.open, acknowledged: own.acknowledged }
    }
}
