//! The activity service of the demo: some threads that call the typed helpers, and keep their own record.

use crate::check::journal::JournalWriter;
use anyhow::Result;
use hdrhistogram::Histogram;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use windfall_sdk::{Prize, RedPacketRain, Sdk, SendError, User};

/// The demo's campaign.
pub const ACTIVITY: &str = "spring-2027";
/// The bonus types, and their shares in per mille.
pub const SHARES: [(&str, u64); 6] = [
    ("cash", 700),
    ("coupon_tea", 60),
    ("coupon_taxi", 60),
    ("coupon_film", 60),
    ("coin", 110),
    ("badge", 10),
];
/// The number of intents that are written at once.
const GROUP: u64 = 32;
/// Rewards of one round; order numbers of a round lie side by side in the ledger.
const ROUND: u64 = 4_096;

/// The options of the rain.
#[derive(Debug, Clone, Copy)]
pub struct Plan {
    /// The number of rewards.
    pub rewards: u64,
    /// The number of users that they are spread over.
    pub users: u64,
    /// The seed by which rewards are given to users.
    pub seed: u64,
    /// Rewards per second over all threads; `None` for as fast as possible.
    pub rate_per_s: Option<f64>,
    /// Rewards that an earlier process has asked for: the rate counts from there.
    pub done: u64,
    /// The number of threads.
    pub threads: usize,
}

/// The counters that the live view shows of the rain.
#[derive(Debug, Default)]
pub struct Progress {
    /// Calls answered Ok.
    pub sent: AtomicU64,
    /// Calls refused for good.
    pub refused: AtomicU64,
    /// How often a call was repeated because the spool was full.
    pub waits: AtomicU64,
    /// Whether to stop before the end, on Ctrl-C.
    pub stop: AtomicBool,
}

/// One reward of the rain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reward {
    /// The user who gets it.
    pub user_id: i64,
    /// The index of its type in [`SHARES`].
    pub kind: usize,
    /// The amount in the smallest unit.
    pub amount: i64,
}

/// The reward of a number: the same for the same seed, so that a resumed rain goes on as it would have.
pub fn reward(plan: &Plan, number: u64) -> Reward {
    let random = mix(plan.seed.wrapping_mul(0x9E37_79B9).wrapping_add(number));
    let mut share = (random >> 20) % 1_000;
    let kind = SHARES.iter().position(|(_, per_mille)| match share.checked_sub(*per_mille) {
        Some(rest) => {
            share = rest;
            false
        }
        None => true,
    });
    let kind = kind.unwrap_or(0);
    let amount = match kind {
        0 => 1 + (random >> 40) % 20_000,
        4 => 1 + (random >> 40) % 500,
        _ => 1,
    };
    Reward { user_id: user_of(random, plan.users), kind, amount: amount.cast_signed() }
}

/// The user that a random number means.
pub fn user_of(random: u64, users: u64) -> i64 {
    (100_001 + random % users.max(1)).cast_signed()
}

/// SplitMix64 (Steele, Lea, Flood: "Fast splittable pseudorandom number generators", 2014).
pub const fn mix(state: u64) -> u64 {
    let mut z = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Makes it rain; returns when all is sent or `progress.stop` is set. `intended` are the numbers that an earlier
/// process has asked for already.
pub fn pour(
    sdk: &Sdk,
    data: &Path,
    plan: Plan,
    intended: &NumberSet,
    sampled: &BTreeSet<i64>,
    progress: &Arc<Progress>,
) -> Result<Histogram<u64>> {
    let next = AtomicU64::new(0);
    let started = Instant::now();
    let mut latencies_ns = Histogram::new(3)?;
    std::thread::scope(|scope| -> Result<()> {
        let threads: Vec<_> = (0..plan.threads)
            .map(|thread| {
                let cloud = Cloud { sdk, plan, intended, sampled, progress, next: &next, started };
                std::thread::Builder::new()
                    .name(format!("rain-{thread}"))
                    .spawn_scoped(scope, move || cloud.pour(data, thread))
            })
            .collect::<Result<_, _>>()?;
        for thread in threads {
            let own = thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
            latencies_ns.add(own)?;
        }
        Ok(())
    })?;
    Ok(latencies_ns)
}

/// One thread's view of the rain.
struct Cloud<'a> {
    sdk: &'a Sdk,
    plan: Plan,
    intended: &'a NumberSet,
    sampled: &'a BTreeSet<i64>,
    progress: &'a Progress,
    next: &'a AtomicU64,
    started: Instant,
}

impl Cloud<'_> {
    fn pour(&self, data: &Path, thread: usize) -> Result<Histogram<u64>> {
        let mut journal = JournalWriter::open(data, thread)?;
        let mut latencies_ns = Histogram::new(3)?;
        let helpers = SHARES
            .iter()
            .map(|(bonus_type, _)| RedPacketRain::new(self.sdk, ACTIVITY, bonus_type))
            .collect::<Result<Vec<_>, _>>()?;
        while !self.progress.stop.load(Relaxed) {
            let first = self.next.fetch_add(GROUP, Relaxed);
            if first >= self.plan.rewards {
                break;
            }
            let group: Vec<u64> = (first..(first + GROUP).min(self.plan.rewards))
                .filter(|number| !self.intended.contains(*number))
                .collect();
            if group.is_empty() {
                continue;
            }
            self.wait_for(first);
            for number in &group {
                let Reward { user_id, kind, amount } = reward(&self.plan, *number);
                let trade_no = helpers[kind].trade_no(round(*number), user_id, packet(*number));
                journal.intent(*number, user_id, SHARES[kind].0, amount, &trade_no);
            }
            journal.flush()?;
            for number in &group {
                let reward = reward(&self.plan, *number);
                let answer = self.send(&helpers[reward.kind], *number, reward, &mut latencies_ns)?;
                match answer {
                    Ok(token) => {
                        self.progress.sent.fetch_add(1, Relaxed);
                        journal.answer(*number, Ok(()));
                        if self.sampled.contains(&reward.user_id) {
                            journal.token(*number, &token);
                        }
                    }
                    Err(error) => {
                        self.progress.refused.fetch_add(1, Relaxed);
                        journal.answer(*number, Err(&error.to_string()));
                    }
                }
            }
            journal.flush()?;
        }
        Ok(latencies_ns)
    }

    /// Sends one reward; as long as the spool is full it comes again with the same order number.
    fn send(
        &self,
        helper: &RedPacketRain,
        number: u64,
        reward: Reward,
        latencies_ns: &mut Histogram<u64>,
    ) -> Result<Result<String, SendError>> {
        loop {
            let called = Instant::now();
            let prize = Prize { amount: reward.amount, description: "red packet rain" };
            let answer = helper.send(round(number), User::id(reward.user_id), packet(number), prize);
            latencies_ns.record(u64::try_from(called.elapsed().as_nanos())?)?;
            match answer {
                Ok(reply) => return Ok(Ok(reply.token)),
                Err(SendError::SpoolFull | SendError::QueueFull { .. })
                    if !self.progress.stop.load(Relaxed) =>
                {
                    self.progress.waits.fetch_add(1, Relaxed);
                    std::thread::sleep(Duration::from_millis(2));
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Waits until a number's turn has come.
    fn wait_for(&self, number: u64) {
        let Some(rate_per_s) = self.plan.rate_per_s else { return };
        #[allow(clippy::cast_precision_loss)] // a demo's rewards are far below 2^52
        let due = Duration::from_secs_f64(number.saturating_sub(self.plan.done) as f64 / rate_per_s);
        while let Some(left) = due.checked_sub(self.started.elapsed()) {
            if self.progress.stop.load(Relaxed) {
                return;
            }
            std::thread::sleep(left.min(Duration::from_millis(50)));
        }
    }
}

fn round(number: u64) -> u32 {
    u32::try_from(number / ROUND).unwrap_or(u32::MAX)
}

fn packet(number: u64) -> u32 {
    u32::try_from(number % ROUND).unwrap_or(u32::MAX)
}

/// A set of reward numbers, with one bit per number.
#[derive(Debug, Clone, Default)]
pub struct NumberSet(Vec<u64>);

impl NumberSet {
    /// Adds a number.
    pub fn insert(&mut self, number: u64) {
        let word = usize::try_from(number / 64).unwrap_or(usize::MAX);
        if word >= self.0.len() {
            self.0.resize(word + 1, 0);
        }
        self.0[word] |= 1 << (number % 64);
    }

    /// Whether a number is in the set.
    pub fn contains(&self, number: u64) -> bool {
        let word = usize::try_from(number / 64).ok().and_then(|word| self.0.get(word));
        word.is_some_and(|word| word >> (number % 64) & 1 == 1)
    }

    /// The count of numbers in the set.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_and_users_come_out_as_said() {
        let plan = Plan { rewards: 100_000, users: 500, seed: 7, rate_per_s: None, done: 0, threads: 1 };
        let mut counts = [0_u64; SHARES.len()];
        for number in 0..plan.rewards {
            let reward = reward(&plan, number);
            counts[reward.kind] += 1;
            assert!((100_001..100_501).contains(&reward.user_id) && reward.amount >= 1);
        }
        for (count, (name, per_mille)) in counts.iter().zip(SHARES) {
            let expected = per_mille * 100;
            assert!(count.abs_diff(expected) < expected / 5 + 50, "{name}: {count} of {expected}");
        }
        assert_eq!(SHARES.iter().map(|(_, share)| share).sum::<u64>(), 1_000);
    }

    #[test]
    fn a_number_is_in_the_set_or_not() {
        let mut set = NumberSet::default();
        for number in [0, 63, 64, 1_000_000] {
            set.insert(number);
        }
        assert!(set.contains(64) && !set.contains(65) && !set.contains(u64::MAX));
        assert_eq!(set.len(), 4);
    }
}
