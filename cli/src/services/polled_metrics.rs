//! Metrics that cost a question to a broker or to the ledger: polled every few seconds, read at each scrape.

use super::undecided::Undecided;
use crate::wiring::{Background, GROUP, Tasks};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};
use windfall_config::LiveRules;
use windfall_contract::broker::Broker;
use windfall_contract::declare_metrics;
use windfall_contract::metrics::Each;
use windfall_ledger::{Awaits, HeldFor};
use windfall_reward_service::RewardHandle;

/// The pause between two rounds.
const EVERY: Duration = Duration::from_secs(5);
/// The time without an answer after which a broker is left out of a round.
const PATIENCE: Duration = Duration::from_secs(3);

/// The age from which an order or a withdrawal counts as old.
const OLD_MS: u64 = 60_000;
/// The age from which a payout counts as not acknowledged in time, and a payer as one that does not decide.
const LATE_MS: u64 = 600_000;
/// The largest count; beyond it, it is enough to know that there are many.
pub const COUNTED_MAX: u32 = 1_000;
/// The number of orders at their payers that are followed at most.
const AT_PAYERS_MAX: u32 = 10_000;

declare_metrics! {
    /// The results of the last round.
    #[derive(Debug, Default)]
    pub struct Found {
        gauge "windfall_queue_lag_records" ["topic"]
        "Records written to a topic and not committed by the group; a topic that could not be asked is missing" {
            /// Records written and not committed by the group, by topic; a topic that could not be asked is missing.
            pub lag_records: BTreeMap<String, u64> = by_topic,
        }
        gauge "windfall_budget_left" ["activity"]["scene"]["type"] "What budgets have left, in the smallest unit" {
            /// The remaining amounts of budgets, by activity, scene and type.
            pub budget_left: Vec<([String; 3], u64)> = by_budget,
        }
        gauge "windfall_reserved_orders" "Orders that have held budget for a minute; counted up to 1,000" {
            /// Orders that are reserved for a minute; at most [`COUNTED_MAX`].
            pub reserved_orders: Option<u64>,
        }
        gauge "windfall_held_withdrawals"
        "Withdrawals whose payer has not answered for a minute; counted up to 1,000" {
            /// Withdrawals that are held for a downstream for a minute; at most [`COUNTED_MAX`].
            pub held_withdrawals: Option<u64>,
        }
        gauge "windfall_payouts_to_acknowledge"
        "Withdrawals that no front end has acknowledged for 10 minutes; counted up to 1,000" {
            /// Withdrawals that wait for a front end's acknowledgement for 10 minutes; at most [`COUNTED_MAX`].
            pub payouts_to_acknowledge: Option<u64>,
        }
        gauge "windfall_undecided_orders"
        "Orders that this process has seen wait for their payer for 10 minutes; counted up to 1,000" {
            /// Orders that are at their payer for 10 minutes; at most [`COUNTED_MAX`].
            pub undecided_orders: Option<u64>,
        }
        gauge "windfall_undecided_withdrawals"
        "Withdrawals whose payer has not answered for 10 minutes; counted up to 1,000" {
            /// Withdrawals that are at their payer for 10 minutes; at most [`COUNTED_MAX`].
            pub undecided_withdrawals: Option<u64>,
        }
        .. {
            /// The number of the round, from 1.
            pub round: u64,
        }
    }
}

fn by_topic(lag_records: &BTreeMap<String, u64>, each: &mut Each<'_>) {
    lag_records.iter().for_each(|(topic, lag)| each(&[topic], *lag));
}

fn by_budget(left: &[([String; 3], u64)], each: &mut Each<'_>) {
    for ([activity, scene, bonus_type], left) in left {
        each(&[activity, scene, bonus_type], *left);
    }
}

/// Polls until it is dropped.
pub struct PolledMetrics {
    found: Arc<Mutex<Found>>,
    _task: Background,
}

impl PolledMetrics {
    /// Starts polling: brokers for lag, the ledger for budgets, where there are such.
    pub fn start(
        tasks: &Tasks,
        rules: LiveRules,
        brokers: BTreeMap<String, Arc<dyn Broker>>,
        rewards: Option<RewardHandle>,
    ) -> Self {
        let found = Arc::new(Mutex::new(Found::default()));
        let own = Arc::clone(&found);
        let _task = tasks.spawn("polled metrics", move || {
            let (rules, brokers, rewards, own) =
                (rules.clone(), brokers.clone(), rewards.clone(), Arc::clone(&own));
            async move {
                let (mut undecided, start) = (Undecided::default(), Instant::now());
                for round in 1.. {
                    let lag_records = lag(&rules, &brokers).await;
                    let budget_left = budgets(rewards.as_ref()).await;
                    let reserved_orders = reserved_orders(rewards.as_ref()).await;
                    let held_withdrawals = held_withdrawals(rewards.as_ref()).await;
                    let payouts_to_acknowledge = payouts_to_acknowledge(rewards.as_ref()).await;
                    let now_ms = u64::try_from(start.elapsed().as_millis()).unwrap_or(u64::MAX);
                    let at_payers = at_payers(rewards.as_ref()).await;
                    let undecided_orders = at_payers.map(|keys| {
                        let are_all = keys.len() < AT_PAYERS_MAX as usize;
                        undecided.look(keys, are_all, now_ms, LATE_MS).min(COUNTED_MAX.into())
                    });
                    let undecided_withdrawals = undecided_withdrawals(rewards.as_ref()).await;
                    *own.lock() = Found {
                        lag_records,
                        budget_left,
                        reserved_orders,
                        held_withdrawals,
                        payouts_to_acknowledge,
                        undecided_orders,
                        undecided_withdrawals,
                        round,
                    };
                    tokio::time::sleep(EVERY).await;
                }
            }
        });
        Self { found, _task }
    }

    /// The shared results of the last round.
    pub fn found(&self) -> Arc<Mutex<Found>> {
        Arc::clone(&self.found)
    }
}

async fn lag(rules: &LiveRules, brokers: &BTreeMap<String, Arc<dyn Broker>>) -> BTreeMap<String, u64> {
    let mut found = BTreeMap::new();
    for (name, topic) in &rules.current().topics {
        let Some(broker) = brokers.get(&topic.broker) else { continue };
        if let Ok(Ok(lag)) = tokio::time::timeout(PATIENCE, broker.lag(name, GROUP)).await {
            found.insert(name.clone(), lag.records());
        }
    }
    found
}

async fn budgets(rewards: Option<&RewardHandle>) -> Vec<([String; 3], u64)> {
    let Some(rewards) = rewards else { return Vec::new() };
    // Weak: a ledger that is down says so by other metrics.
    // Not every budget key: whoever may grant makes one by each new name.
    let Ok(states) = rewards.read(|reader| reader.set_budgets()).await else { return Vec::new() };
    let left = states.into_iter().filter_map(|state| {
        let left = state.total?.saturating_sub(state.used).saturating_sub(state.reserved);
        Some(([state.activity, state.scene, state.bonus_type], u64::try_from(left).unwrap_or(0)))
    });
    left.collect()
}

async fn reserved_orders(rewards: Option<&RewardHandle>) -> Option<u64> {
    Some(rewards?.reserved(None, OLD_MS, "", COUNTED_MAX).await.ok()?.len() as u64)
}

async fn held_withdrawals(rewards: Option<&RewardHandle>) -> Option<u64> {
    Some(rewards?.held(HeldFor::Downstream, OLD_MS, "", COUNTED_MAX).await.ok()?.len() as u64)
}

async fn payouts_to_acknowledge(rewards: Option<&RewardHandle>) -> Option<u64> {
    Some(rewards?.held(HeldFor::FrontEnd, LATE_MS, "", COUNTED_MAX).await.ok()?.len() as u64)
}

/// The keys of orders that are at their payers and are not new.
async fn at_payers(rewards: Option<&RewardHandle>) -> Option<Vec<String>> {
    let found = rewards?.reserved(Some(Awaits::Payer), OLD_MS, "", AT_PAYERS_MAX).await.ok()?;
    Some(found.into_iter().map(|one| one.order.key).collect())
}

async fn undecided_withdrawals(rewards: Option<&RewardHandle>) -> Option<u64> {
    Some(rewards?.held(HeldFor::Downstream, LATE_MS, "", COUNTED_MAX).await.ok()?.len() as u64)
}
