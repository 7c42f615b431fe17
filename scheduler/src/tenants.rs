//! Who may use the scheduler, how much of it, and how each target is treated.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The tenants by name.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Tenants(pub BTreeMap<String, TenantRules>);

/// What a tenant may do, and where its tasks go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TenantRules {
    /// How many of its tasks may wait at a time, over all instances. An instance refuses by what it has read a few
    /// seconds ago and added since, so several instances together may pass the figure by what they add meanwhile.
    pub waiting_max: u64,
    /// How many tasks it may add per second through each instance; 0 refuses every add.
    pub adds_per_s: u64,
    /// Which tenants' due tasks go before its own while there is more to fire than can be fired.
    #[serde(default)]
    pub class: Class,
    /// Its targets by name.
    #[serde(default)]
    pub targets: BTreeMap<String, TargetRules>,
}

/// A class of service. A class goes before the ones after it; each keeps a floor, so none ever starves.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Class {
    /// First.
    Urgent,
    /// Second.
    #[default]
    Normal,
    /// Last.
    Bulk,
}

/// How a target is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TargetRules {
    /// How often and when a task that failed is tried again. Default: exponential, 10 attempts, from 1 s to 5 min.
    pub retry: Retry,
    /// How many sub-batches each instance hands over side by side: 1 to 1,024. Default 8. While the target's tasks are
    /// on time, half of them is used.
    pub concurrency: usize,
    /// How many tasks the target gets per second from all instances together, 1 to 100,000,000; no limit if it is
    /// missing.
    pub rate_per_s: Option<u64>,
    /// In which order overdue tasks go out, for instance after the target was away for long. Default: the oldest first.
    pub catch_up: CatchUp,
    /// Whether its tasks become rewards.
    pub sends_rewards: bool,
}

/// In which order the overdue tasks of a target go out. Tasks that failed keep the times of their retries either way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CatchUp {
    /// What has waited for longest goes first, so what is due now waits until the backlog is gone.
    #[default]
    OldestFirst,
    /// What is due now goes first, and then the backlog, from its newest minute to its oldest one, by what the target's
    /// rate leaves.
    NewestFirst,
}

/// When a task that failed is tried again, and when it is given up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Retry {
    /// After the same time each time.
    Fixed {
        /// Attempts in all: 1 to 1,000.
        attempts_max: u32,
        /// The wait between two of them, at most a day.
        wait_ms: u64,
    },
    /// After a time that doubles.
    Exponential {
        /// Attempts in all: 1 to 1,000.
        attempts_max: u32,
        /// The wait after the first attempt, 1 ms to a day.
        first_ms: u64,
        /// The longest wait, at most a day.
        max_ms: u64,
    },
}

/// A tenant's rules cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("tenant `{tenant}`: {what}")]
pub struct InvalidTenant {
    /// Which one.
    pub tenant: String,
    /// What is wrong.
    pub what: String,
}

const DAY_MS: u64 = 86_400_000;
const NAME_MAX_BYTES: usize = 100;
const ATTEMPTS_MAX: u32 = 1_000;
const CONCURRENCY_MAX: usize = 1_024;
const RATE_PER_S_MAX: u64 = windfall_contract::rules::Limit::RATE_PER_S_MAX;

impl Tenants {
    /// Checks every name and every range.
    ///
    /// # Errors
    /// [`InvalidTenant`] names the first tenant that cannot be used.
    pub fn check(&self) -> Result<(), InvalidTenant> {
        for (tenant, rules) in &self.0 {
            let wrong = |what: String| InvalidTenant { tenant: tenant.clone(), what };
            check_name(tenant).map_err(wrong)?;
            for (target, rules) in &rules.targets {
                let wrong = |what: String| wrong(format!("target `{target}`: {what}"));
                check_name(target).map_err(wrong)?;
                rules.check().map_err(wrong)?;
            }
        }
        Ok(())
    }

    /// Whether a target catches up with the newest tasks first.
    pub(crate) fn has_newest_first(&self) -> bool {
        let mut targets = self.0.values().flat_map(|rules| rules.targets.values());
        targets.any(|rules| rules.catch_up == CatchUp::NewestFirst)
    }

    /// The rules of a target.
    pub fn target(&self, tenant: &str, target: &str) -> Option<&TargetRules> {
        self.0.get(tenant)?.targets.get(target)
    }
}

impl TargetRules {
    fn check(&self) -> Result<(), String> {
        if !(1..=CONCURRENCY_MAX).contains(&self.concurrency) {
            return Err(format!(
                "concurrency is {}, but only 1 to {CONCURRENCY_MAX} is allowed",
                self.concurrency
            ));
        }
        if let Some(rate) = self.rate_per_s.filter(|rate| !(1..=RATE_PER_S_MAX).contains(rate)) {
            return Err(format!("rate_per_s is {rate}, but only 1 to {RATE_PER_S_MAX} is allowed"));
        }
        let (attempts_max, first_ms, max_ms) = match self.retry {
            Retry::Fixed { attempts_max, wait_ms } => (attempts_max, wait_ms.max(1), wait_ms),
            Retry::Exponential { attempts_max, first_ms, max_ms } => (attempts_max, first_ms, max_ms),
        };
        if !(1..=ATTEMPTS_MAX).contains(&attempts_max) {
            return Err(format!("attempts_max is {attempts_max}, but only 1 to {ATTEMPTS_MAX} is allowed"));
        }
        if first_ms == 0 || first_ms > DAY_MS || max_ms > DAY_MS {
            return Err(format!(
                "a wait between attempts may last up to {DAY_MS} ms, and an exponential one begins at 1 ms"
            ));
        }
        Ok(())
    }
}

impl Retry {
    /// Attempts in all.
    pub const fn attempts_max(&self) -> u32 {
        match self {
            Self::Fixed { attempts_max, .. } | Self::Exponential { attempts_max, .. } => *attempts_max,
        }
    }

    /// The wait after this many failed attempts, without jitter.
    pub fn wait_ms(&self, failed_attempts: u32) -> u64 {
        match *self {
            Self::Fixed { wait_ms, .. } => wait_ms,
            Self::Exponential { first_ms, max_ms, .. } => {
                let doublings = failed_attempts.saturating_sub(1).min(63);
                let doubled = 1_u64.checked_shl(doublings).and_then(|factor| first_ms.checked_mul(factor));
                doubled.unwrap_or(u64::MAX).min(max_ms)
            }
        }
    }
}

impl Default for TargetRules {
    fn default() -> Self {
        let retry = Retry::Exponential { attempts_max: 10, first_ms: 1_000, max_ms: 300_000 };
        Self { retry, concurrency: 8, rate_per_s: None, catch_up: CatchUp::default(), sends_rewards: false }
    }
}

fn check_name(name: &str) -> Result<(), String> {
    let is_plain =
        name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'));
    match name.len() {
        1..=NAME_MAX_BYTES if is_plain => Ok(()),
        _ => Err(format!("a name has 1 to {NAME_MAX_BYTES} letters, digits, `-`, `_` or `.`")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(name: &str, rules: TargetRules) -> Tenants {
        let targets = [(name.to_owned(), rules)].into();
        let tenant = TenantRules { waiting_max: 10, adds_per_s: 10, class: Class::Normal, targets };
        Tenants([("shop".to_owned(), tenant)].into())
    }

    #[test]
    fn each_figure_of_a_target_has_a_range_and_the_defaults_are_in_it() {
        assert_eq!(with("hook", TargetRules::default()).check(), Ok(()));
        let wrong =
            with("hook", TargetRules { concurrency: 0, ..TargetRules::default() }).check().unwrap_err();
        assert_eq!(
            wrong.to_string(),
            "tenant `shop`: target `hook`: concurrency is 0, but only 1 to 1024 is allowed"
        );
        let default = TargetRules::default();
        for (name, rules) in [
            ("", default),
            ("a b", default),
            ("hook", TargetRules { rate_per_s: Some(0), ..default }),
            ("hook", TargetRules { retry: Retry::Fixed { attempts_max: 0, wait_ms: 1 }, ..default }),
            ("hook", TargetRules { retry: Retry::Fixed { attempts_max: 1, wait_ms: DAY_MS + 1 }, ..default }),
            (
                "hook",
                TargetRules {
                    retry: Retry::Exponential { attempts_max: 1, first_ms: 0, max_ms: 1 },
                    ..default
                },
            ),
        ] {
            assert!(with(name, rules).check().is_err(), "{name} {rules:?}");
        }
    }

    #[test]
    fn waits_double_up_to_the_longest_and_never_overflow() {
        let retry = Retry::Exponential { attempts_max: 9, first_ms: 100, max_ms: 60_000 };
        let waits = [1, 2, 3, 10, 11, 64, u32::MAX].map(|failed| retry.wait_ms(failed));
        assert_eq!(waits, [100, 200, 400, 51_200, 60_000, 60_000, 60_000]);
        assert_eq!(Retry::Fixed { attempts_max: 9, wait_ms: 7 }.wait_ms(5), 7);
    }
}
