//! How fast a run goes: below its own rate and below half of each target's, and not into a target that is behind.

use crate::stats::DispatchStats;
use crate::tenants::Tenants;
use std::collections::BTreeMap;
use std::time::Duration;

/// Tasks that one step stores at most.
const STEP_TASKS_MAX: u64 = 1_000;
/// Due tasks of a target without a rate from which on a run waits.
const BEHIND_TASKS: u64 = 2_000;

pub(super) struct Pace<'a> {
    pub rate_per_s: u64,
    pub tenants: &'a Tenants,
    pub fired: &'a DispatchStats,
}

impl Pace<'_> {
    /// The rate at which a run may fire at a target: half of its own is left to what is due now.
    fn rate_per_s(&self, tenant: &str, target: &str) -> u64 {
        let own = self.tenants.target(tenant, target).and_then(|rules| rules.rate_per_s);
        own.map_or(self.rate_per_s, |rate| (rate / 2).max(1).min(self.rate_per_s))
    }

    /// Tasks that one step for this target stores at most: a tenth of a second's.
    pub fn step_tasks(&self, tenant: &str, target: &str) -> usize {
        let tasks = (self.rate_per_s(tenant, target) / 10).clamp(1, STEP_TASKS_MAX);
        usize::try_from(tasks).unwrap_or(1)
    }

    /// How long a step lasts that stored so many tasks of each target.
    pub fn pause(&self, stored: &BTreeMap<(String, String), u64>) -> Duration {
        let micros = |tasks: u64, rate_per_s: u64| tasks.saturating_mul(1_000_000) / rate_per_s.max(1);
        let all: u64 = stored.values().sum();
        let each =
            stored.iter().map(|((tenant, target), tasks)| micros(*tasks, self.rate_per_s(tenant, target)));
        Duration::from_micros(each.chain([micros(all, self.rate_per_s)]).max().unwrap_or(0))
    }

    /// Why no task of this target may be stored now.
    pub fn why_not(&self, tenant: &str, target: &str) -> Option<String> {
        let all = self.fired.targets();
        let stats = all.iter().find(|stats| stats.tenant == tenant && stats.target == target)?;
        let own = self.tenants.target(tenant, target).and_then(|rules| rules.rate_per_s);
        let behind = own.map_or(BEHIND_TASKS, |rate| (rate / 5).clamp(10, BEHIND_TASKS));
        match (stats.away.get(), stats.due.get()) {
            // Where nothing is due, nobody finds out whether it is still away: the first tasks of the run do.
            (1.., 1..) => Some(format!("the target {tenant}/{target}, which is away")),
            (_, due) if due > behind => Some(format!("the target {tenant}/{target}, which is behind")),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nobody tries a target for which nothing is due, so it would be away for ever.
    #[test]
    fn a_run_waits_for_a_target_that_is_away_only_while_somebody_tries_it() {
        let (fired, tenants) = (DispatchStats::default(), Tenants(BTreeMap::new()));
        let pace = Pace { rate_per_s: 100, tenants: &tenants, fired: &fired };
        let stats = fired.of_target("shop", "mail");
        for (away, due, waits) in [(0, 0, false), (1, 0, false), (1, 1, true), (0, BEHIND_TASKS, false)] {
            stats.away.set(away);
            stats.due.set(due);
            assert_eq!(pace.why_not("shop", "mail").is_some(), waits, "away {away}, due {due}");
        }
        stats.due.set(BEHIND_TASKS + 1);
        assert!(pace.why_not("shop", "mail").is_some());
    }
}
