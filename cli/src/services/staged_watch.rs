//! Watches the staged change of the rules that this process tries: it is given up where a guard is exceeded, or where its
//! time is over.

use super::budget_burn::{BudgetBurn, EndsSoon};
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
use windfall_reward_service::{RewardHandle, SendToCredit};

/// The pause between two looks.
const EVERY: Duration = Duration::from_secs(1);
/// The looks over which failed grants are counted.
const LOOKS: usize = 10;
/// Fewer grants than this say nothing about the share of those that failed.
const GRANTS_MIN: u64 = 20;
/// Fewer credits than this have no hundredth part that may take longer.
const CREDITS_MIN: u64 = 100;

/// Reads the counters of the consumers that run.
type ReadCounters = Box<dyn Fn() -> Vec<(String, Arc<ConsumerStats>)> + Send + Sync>;

/// What is watched of a process.
pub struct Watched {
    /// Reads the counters of the consumers, where the process has some.
    pub counters: Option<ReadCounters>,
    /// The reward service, where the process has one.
    pub rewards: Option<RewardHandle>,
    /// The lag of topics and what budgets have left.
    pub polled: Arc<Mutex<Found>>,
}

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
    /// The times from send to credit, since the start.
    send_to_credit: SendToCredit,
}

/// The looks of the last seconds at one trial.
#[derive(Debug, Default)]
struct Looks {
    since_ms: u64,
    looks: VecDeque<Look>,
    burn: BudgetBurn,
}

/// Watches until it is dropped.
pub fn start(tasks: &Tasks, rules: LiveRules, watched: Watched, clock: Clock) -> Background {
    let watched = Arc::new(watched);
    tasks.spawn("staged rules", move || {
        let (rules, watched, clock) = (rules.clone(), Arc::clone(&watched), clock.clone());
        async move {
            let mut looks = Looks::default();
            loop {
                tokio::time::sleep(EVERY).await;
                let Some(document) = rules.staged_here() else { continue };
                let Some(staged) = document.staged.as_deref() else { continue };
                if looks.since_ms != staged.since_ms {
                    looks = Looks { since_ms: staged.since_ms, ..Looks::default() };
                }
                looks.add(watched.look(&rules.current()));
                if staged.guards.budget_lasts_min_ms.is_some() {
                    looks.add_budgets(&watched.polled.lock(), &document, clock.monotonic_ns() / 1_000_000);
                }
                let now_ms = clock.unix_ms();
                let over = (now_ms >= staged.until_ms).then(|| "its time is over".to_owned());
                if let Some(why) = over.or_else(|| looks.exceeded(&staged.guards)) {
                    rules.give_up_staged(staged.since_ms, why, now_ms);
                }
            }
        }
    })
}

impl Watched {
    fn look(&self, rules: &Rules) -> Look {
        let flows = |name: &str| rules.limits.types.get(name).is_some_and(|own| own.fuse == Fuse::Closed);
        let mut look = Look {
            lag_records: self.polled.lock().lag_records.values().copied().max().unwrap_or(0),
            send_to_credit: self.rewards.as_ref().map(RewardHandle::send_to_credit).unwrap_or_default(),
            ..Look::default()
        };
        for (_, stats) in self.counters.iter().flat_map(|read| read()) {
            look.granted += stats.granted();
            look.failed += stats.failed_grants.get();
            let types = stats.types();
            let ages = types.iter().filter(|own| flows(&own.name)).map(|own| own.oldest_ms.get());
            look.oldest_ms = look.oldest_ms.max(ages.max().unwrap_or(0));
        }
        look
    }
}

impl Looks {
    fn add(&mut self, look: Look) {
        self.looks.push_back(look);
        if self.looks.len() > LOOKS {
            self.looks.pop_front();
        }
    }

    /// Takes what the budgets that the change reaches have left, where they were read again.
    fn add_budgets(&mut self, found: &Found, document: &Rules, now_ms: u64) {
        if self.burn.is_new(found.round) {
            let all = found.budget_left.iter();
            let touched = all.filter(|([_, _, bonus_type], _)| document.staged_reaches(bonus_type)).cloned();
            self.burn.take(found.round, now_ms, touched.collect());
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
        let credited = last.send_to_credit.since(&first.send_to_credit);
        let p99_ms = credited.p99_ms().filter(|_| credited.count() >= CREDITS_MIN);
        if let (Some(p99_ms), Some(max)) = (p99_ms, guards.latency_p99_max_ms)
            && p99_ms > max
        {
            return Some(format!(
                "the p99 of the time from send to credit is {p99_ms} ms, of {} credits within ten seconds, and latency_p99_max_ms is {max}",
                credited.count()
            ));
        }
        if let Some(min) = guards.budget_lasts_min_ms
            && let Some(EndsSoon { budget, lasts_ms }) = self.burn.ends_within(min)
        {
            return Some(format!(
                "budget {budget} lasts for {lasts_ms} ms at the pace of the last minute, and budget_lasts_min_ms is {min}"
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
    use windfall_reward_service::SEND_TO_CREDIT_BOUNDS_MS;

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

    /// So many credits after 10 ms, and so many after 4 s, since the start.
    fn credits(quick: u64, slow: u64) -> Look {
        let mut send_to_credit = SendToCredit::default();
        for (ms, count) in [(10, quick), (4_000, slow)] {
            send_to_credit.buckets[SEND_TO_CREDIT_BOUNDS_MS.partition_point(|bound| *bound < ms)] = count;
        }
        Look { send_to_credit, ..Look::default() }
    }

    #[test]
    fn the_latency_is_that_of_ten_looks_and_of_a_hundred_credits_at_least() {
        let guards = Guards { latency_p99_max_ms: Some(1_000), ..Guards::default() };
        let before = credits(0, 500);
        assert_eq!(exceeded(&[before], guards), None, "what was before the trial is not its own");
        assert_eq!(exceeded(&[before, credits(99, 501)], guards), None, "one of a hundred");
        let why = exceeded(&[before, credits(98, 502)], guards).unwrap();
        assert!(
            why.contains("is 3500 ms, of 100 credits") && why.contains("latency_p99_max_ms is 1000"),
            "{why}"
        );
        assert_eq!(exceeded(&[before, credits(98, 502)], Guards::default()), None);
        let at_bound = Guards { latency_p99_max_ms: Some(3_500), ..guards };
        assert_eq!(exceeded(&[before, credits(98, 502)], at_bound), None, "at its bound");
        assert_eq!(exceeded(&[before, credits(0, 599)], guards), None, "too few");
        let mut old = vec![before, credits(0, 900)];
        old.extend([credits(0, 900); LOOKS]);
        assert_eq!(exceeded(&old, guards), None, "what was credited longer ago is over");
    }

    /// The sample, with another limit of badges that is tried.
    fn document() -> Rules {
        let sample = include_str!("../../../config/samples/rules.toml");
        let rules = windfall_config::parse_rules(sample, None).unwrap();
        let mut wanted = rules.clone();
        wanted.limits.types.get_mut("badge").unwrap().limit.rate_per_s = 1_500;
        let who = windfall_config::StageFor {
            processes: vec!["one".to_owned()],
            guards: Guards::default(),
            proven_after_ms: 1_000,
        };
        let text = windfall_config::stage(sample, &wanted, &who, 1_790_000_000_000).unwrap();
        windfall_config::parse_rules(&text, None).unwrap()
    }

    #[test]
    fn a_budget_that_the_change_reaches_lasts_long_enough_or_the_change_is_given_up() {
        let guards = Guards { budget_lasts_min_ms: Some(60_000), ..Guards::default() };
        let document = document();
        // Read every ten seconds, and looked at twice as often.
        let why_of = |bonus_type: &str, lefts: [u64; 5]| {
            let mut looks = Looks::default();
            looks.add(Look::default());
            for (at, left) in (0..).zip(lefts) {
                let budget_left = vec![(["spring".into(), "rain".into(), bonus_type.into()], left)];
                let found = Found { budget_left, round: at + 1, ..Found::default() };
                looks.add_budgets(&found, &document, at * 10_000);
                looks.add_budgets(&found, &document, at * 10_000 + 5_000);
            }
            looks.exceeded(&guards)
        };
        let falls = [900, 800, 700, 600, 500];
        let why = why_of("badge", falls).unwrap();
        assert!(why.contains("budget spring/rain/badge lasts for 50000 ms"), "{why}");
        assert!(why_of("*", falls).is_some());
        assert_eq!(why_of("cash", falls), None, "the change does not reach it");
        assert_eq!(why_of("badge", [1_000, 900, 800, 700, 600]), None, "at its bound");
        let mut looks = Looks::default();
        looks.add(Look::default());
        assert_eq!(looks.exceeded(&guards), None, "nothing is known yet");
    }
}
