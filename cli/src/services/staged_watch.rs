//! Watches the staged change of the rules that this process tries: it is given up where a guard is exceeded, or where its
//! time is over.

use super::polled_metrics::Found;
use crate::wiring::{Background, Tasks};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;
use windfall_config::LiveRules;
use windfall_consumer::ConsumerStats;
use windfall_contract::Clock;
use windfall_contract::rules::{Fuse, Guards, Rules};

/// The pause between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// The looks over which failed grants are counted.
const LOOKS: usize = 10;
/// Fewer grants than this say nothing about the share of those that failed.
const GRANTS_MIN: u64 = 20;

/// Reads the counters of the consumers that run.
type ReadCounters = Box<dyn Fn() -> Vec<(String, Arc<ConsumerStats>)> + Send + Sync>;

/// What is known of the consumers of a process at one look.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Look {
    /// Events that were granted, since the start.
    granted: u64,
    /// Grants that failed, since the start.
    failed: u64,
    /// The age of the oldest event in a lane that may flow, in ms.
    oldest_ms: u64,
    /// The largest lag of a topic, in records.
    lag_records: u64,
}

/// The looks of the last seconds at one trial.
#[derive(Debug, Default)]
struct Looks {
    since_ms: u64,
    looks: VecDeque<Look>,
}

/// Watches until it is dropped. `counters` reads the counters of the consumers, where the process has some.
pub fn start(
    tasks: &Tasks,
    rules: LiveRules,
    counters: Option<ReadCounters>,
    polled: Arc<Mutex<Found>>,
    clock: Clock,
) -> Background {
    let counters: Arc<ReadCounters> = Arc::new(counters.unwrap_or_else(|| Box::new(Vec::new)));
    tasks.spawn("staged rules", move || {
        let (rules, counters, polled, clock) =
            (rules.clone(), Arc::clone(&counters), Arc::clone(&polled), clock.clone());
        async move {
            let mut looks = Looks::default();
            loop {
                tokio::time::sleep(EVERY).await;
                let Some(staged) = rules.staged_here() else { continue };
                if looks.since_ms != staged.since_ms {
                    looks = Looks { since_ms: staged.since_ms, ..Looks::default() };
                }
                let lag_records = polled.lock().lag_records.values().copied().max().unwrap_or(0);
                looks.add(look(&counters(), &rules.current(), lag_records));
                let now_ms = clock.unix_ms();
                let over = (now_ms >= staged.until_ms).then(|| "its time is over".to_owned());
                if let Some(why) = over.or_else(|| looks.exceeded(&staged.guards)) {
                    rules.give_up_staged(staged.since_ms, why, now_ms);
                }
            }
        }
    })
}

fn look(counters: &[(String, Arc<ConsumerStats>)], rules: &Rules, lag_records: u64) -> Look {
    let flows = |name: &str| rules.limits.types.get(name).is_some_and(|own| own.fuse == Fuse::Closed);
    let mut look = Look { lag_records, ..Look::default() };
    for (_, stats) in counters {
        look.granted += stats.granted();
        look.failed += stats.failed_grants.get();
        let types = stats.types();
        let ages = types.iter().filter(|own| flows(&own.name)).map(|own| own.oldest_ms.get());
        look.oldest_ms = look.oldest_ms.max(ages.max().unwrap_or(0));
    }
    look
}

impl Looks {
    fn add(&mut self, look: Look) {
        self.looks.push_back(look);
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
    }

    /// The guard that is exceeded, as a part of a sentence.
    fn exceeded(&self, guards: &Guards) -> Option<String> {
        let (first, last) = (self.looks.front()?, self.looks.back()?);
        if let Some(max) = guards.oldest_max_ms.filter(|max| last.oldest_ms > *max) {
            return Some(format!(
                "an event has waited for {} ms, and oldest_max_ms is {max}",
                last.oldest_ms
            ));
        }
        if let Some(max) = guards.lag_max_records.filter(|max| last.lag_records > *max) {
            return Some(format!(
                "a topic's lag is {} records, and lag_max_records is {max}",
                last.lag_records
            ));
        }
        // A consumer that has ended takes its counters with it.
        let failed = last.failed.saturating_sub(first.failed);
        let asked = failed.saturating_add(last.granted.saturating_sub(first.granted));
        let max = guards.failed_max_percent?;
        (asked >= GRANTS_MIN && failed.saturating_mul(100) > asked.saturating_mul(max.into())).then(|| {
            format!("{failed} of {asked} grants failed within ten seconds, and failed_max_percent is {max}")
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exceeded(looks: &[Look], guards: Guards) -> Option<String> {
        let mut own = Looks::default();
        looks.iter().for_each(|look| own.add(*look));
        own.exceeded(&guards)
    }

    #[test]
    fn each_guard_is_exceeded_beyond_its_bound_and_not_at_it() {
        let at = |oldest_ms, lag_records| Look { oldest_ms, lag_records, ..Look::default() };
        let oldest = Guards { oldest_max_ms: Some(5000), ..Guards::default() };
        assert_eq!(exceeded(&[at(9000, 0), at(5000, 9)], oldest), None);
        assert!(exceeded(&[at(5001, 0)], oldest).unwrap().contains("waited for 5001 ms"));
        let lag = Guards { lag_max_records: Some(7), ..Guards::default() };
        assert_eq!(exceeded(&[at(9000, 7)], lag), None);
        assert!(exceeded(&[at(0, 8)], lag).unwrap().contains("lag is 8 records"));
        assert_eq!(exceeded(&[at(u64::MAX, u64::MAX)], Guards::default()), None);
    }

    #[test]
    fn failed_grants_count_over_ten_looks_and_where_there_are_some() {
        let at = |granted, failed| Look { granted, failed, ..Look::default() };
        let guards = Guards { failed_max_percent: Some(10), ..Guards::default() };
        assert_eq!(exceeded(&[at(100, 50)], guards), None, "what was before the trial is not its own");
        assert_eq!(exceeded(&[at(100, 50), at(190, 60)], guards), None);
        assert!(exceeded(&[at(100, 50), at(189, 61)], guards).unwrap().contains("11 of 100 grants failed"));
        assert_eq!(exceeded(&[at(0, 0), at(0, 19)], guards), None, "too few");
        let mut old = vec![at(0, 0), at(100, 90)];
        old.extend([at(100, 90); LOOKS]);
        assert_eq!(exceeded(&old, guards), None, "what failed longer ago is over");
        assert_eq!(exceeded(&[at(900, 900), at(10, 10)], guards), None, "a consumer has ended");
    }
}
