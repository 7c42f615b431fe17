//! What a plan is asked for, and what is refused.

use crate::numbers::real;
use serde::Serialize;
use std::str::FromStr;

/// The most bonus types of one plan.
const TYPES_MAX: usize = 32;
/// The longest load in seconds: a week.
const FOR_S_MAX: u64 = 7 * 86_400;

/// The load, what takes it, and what is to be kept.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Inputs {
    /// Rewards per second over all types, at the peak. 1 to 100,000,000.
    pub rewards_per_s: u64,
    /// Seconds that the peak lasts. 1 to 604,800.
    pub for_s: u64,
    /// The bonus types. 1 to 32.
    pub types: Vec<TypeInput>,
    /// The limit of all types together, per second; `None` for none beyond the sum of the types.
    pub global_per_s: Option<u64>,
    /// Reads of wallets per second. At most 100,000,000.
    pub wallet_reads_per_s: u64,
    /// Orders that the ledger keeps, over the whole campaign; 0 means those of the peak alone.
    pub orders: u64,
    /// Days over which these orders come. 1 to 3,660.
    pub order_days: u64,
    /// Days for which the brokers keep records. 1 to 3,660.
    pub retention_days: u64,
    /// The number of ledgers; `None`: as many as the load needs. 1 to 10,000.
    pub ledgers: Option<u64>,
    /// Copies of each record in the brokers. 1 to 7.
    pub replication: u64,
    /// Timers that wait. At most 10^12.
    pub timers: u64,
    /// Days within which they are due, evenly. 1 to 3,660.
    pub timer_days: u64,
    /// Timers per second that are added at the peak, while as many fire.
    pub timers_per_s: u64,
    /// Processes that send.
    pub senders: u64,
    /// Seconds without any broker that the spools must bridge. At most 86,400.
    pub broker_outage_s: u64,
    /// Capacity ÷ need: 1.5 leaves a third of each part idle at the peak. 1 to 10.
    pub headroom: f64,
    /// The seed of the simulation.
    pub seed: u64,
}

/// A bonus type, and what takes it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct TypeInput {
    /// Its name.
    pub name: String,
    /// What its downstream takes per second; `None`: as much as comes.
    pub rate_per_s: Option<u64>,
    /// Its part of the rewards in per cent; `None`: an equal part of what the others leave.
    pub share_percent: Option<f64>,
    /// Its rank at the global limit; the lowest number goes first.
    pub priority: u8,
    /// A connector pays it, and not the ledger: two movements in the ledger per order.
    pub by_connector: bool,
}

/// Everything that is wrong with the inputs.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}", .0.join("; "))]
pub struct PlanError(pub Vec<String>);

impl Default for Inputs {
    fn default() -> Self {
        Self {
            rewards_per_s: 100_000,
            for_s: 180,
            types: Vec::new(),
            global_per_s: None,
            wallet_reads_per_s: 0,
            orders: 0,
            order_days: 7,
            retention_days: 30,
            ledgers: None,
            replication: 3,
            timers: 0,
            timer_days: 30,
            timers_per_s: 100_000,
            senders: 16,
            broker_outage_s: 30,
            headroom: 1.5,
            seed: 2027,
        }
    }
}

impl Inputs {
    /// Refuses nonsense, with all that is wrong.
    pub fn check(&self) -> Result<(), PlanError> {
        let mut wrong = Vec::new();
        let mut within = |name: &str, value: u64, least: u64, most: u64| {
            if !(least..=most).contains(&value) {
                wrong.push(format!("{name} is {value}, but only {least} to {most} is allowed"));
            }
        };
        within("rewards-per-s", self.rewards_per_s, 1, 100_000_000);
        within("for-s", self.for_s, 1, FOR_S_MAX);
        within("global", self.global_per_s.unwrap_or(1), 1, 100_000_000);
        within("ledgers", self.ledgers.unwrap_or(1), 1, 10_000);
        within("wallet-reads-per-s", self.wallet_reads_per_s, 0, 100_000_000);
        within("orders", self.orders, 0, 1_000_000_000_000_000);
        within("order-days", self.order_days, 1, 3_660);
        within("retention-days", self.retention_days, 1, 3_660);
        within("replication", self.replication, 1, 7);
        within("timers", self.timers, 0, 1_000_000_000_000);
        within("timer-days", self.timer_days, 1, 3_660);
        within("timers-per-s", self.timers_per_s, 1, 100_000_000);
        within("senders", self.senders, 1, 1_000_000);
        within("broker-outage-s", self.broker_outage_s, 0, 86_400);
        if !(1.0..=10.0).contains(&self.headroom) {
            wrong.push(format!("headroom is {}, but only 1 to 10 is allowed", self.headroom));
        }
        self.check_types(&mut wrong);
        let peak = self.rewards_per_s.saturating_mul(self.for_s);
        if self.orders != 0 && self.orders < peak {
            wrong.push(format!(
                "orders is {}, but {} rewards per second for {} s are {peak} orders already",
                self.orders, self.rewards_per_s, self.for_s
            ));
        }
        if wrong.is_empty() { Ok(()) } else { Err(PlanError(wrong)) }
    }

    fn check_types(&self, wrong: &mut Vec<String>) {
        if self.types.is_empty() || self.types.len() > TYPES_MAX {
            wrong.push(format!(
                "name 1 to {TYPES_MAX} bonus types with --downstream, not {}",
                self.types.len()
            ));
        }
        for (at, one) in self.types.iter().enumerate() {
            let name = &one.name;
            if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_-.".contains(&b)) {
                wrong
                    .push(format!("{name:?} is no name of a bonus type: letters, digits, _ - . are allowed"));
            }
            if self.types[..at].iter().any(|other| other.name == *name) {
                wrong.push(format!("the type {name} is named twice"));
            }
            if let Some(rate) = one.rate_per_s
                && !(1..=100_000_000).contains(&rate)
            {
                wrong.push(format!("{name} takes {rate} per second, but only 1 to 100000000 is allowed"));
            }
            if let Some(share) = one.share_percent
                && !(share > 0.0 && share <= 100.0)
            {
                wrong.push(format!("the share of {name} is {share} %, but only above 0 to 100 is allowed"));
            }
        }
        let given: f64 = self.types.iter().filter_map(|one| one.share_percent).sum();
        let open = self.types.iter().filter(|one| one.share_percent.is_none()).count();
        if given > 100.0 + 1e-6 {
            wrong.push(format!("the shares of the types make {given} %, which is more than 100"));
        } else if open == 0 && !self.types.is_empty() && given < 100.0 - 1e-6 {
            wrong.push(format!("the shares of the types make {given} %, and no type is left for the rest"));
        } else if open > 0 && given > 100.0 - 1e-6 {
            wrong
                .push("the shares of the types make 100 %, and nothing is left for those without one".into());
        }
    }

    /// The part of the rewards that each type has, 0 to 1. Only of inputs that were checked.
    pub(crate) fn shares(&self) -> Vec<f64> {
        let given: f64 = self.types.iter().filter_map(|one| one.share_percent).sum();
        let open = self.types.iter().filter(|one| one.share_percent.is_none()).count();
        let rest = (100.0 - given).max(0.0) / real(open.max(1) as u64);
        self.types.iter().map(|one| one.share_percent.unwrap_or(rest) / 100.0).collect()
    }
}

impl TypeInput {
    /// A type that the ledger pays as fast as it comes.
    pub fn new(name: &str) -> Self {
        Self { name: name.into(), rate_per_s: None, share_percent: None, priority: 1, by_connector: false }
    }
}

/// `cash=300000`, `badge=2000,share=1,priority=2,connector`, `coupon=all`.
impl FromStr for TypeInput {
    type Err = PlanError;

    fn from_str(text: &str) -> Result<Self, PlanError> {
        let wrong = |what: String| PlanError(vec![what]);
        let (name, rest) = text.split_once('=').ok_or_else(|| {
            wrong(format!("{text:?} is no NAME=RATE: say for instance cash=300000, or coupon=all"))
        })?;
        let mut parts = rest.split(',');
        let rate = parts.next().unwrap_or_default();
        let mut one = Self::new(name);
        if rate != "all" {
            let rate = rate.replace('_', "");
            one.rate_per_s = Some(rate.parse().map_err(|_| {
                wrong(format!("{rate:?} is no rate of {name}: a whole number per second, or `all`"))
            })?);
        }
        for part in parts {
            let number = |value: &str| value.parse::<f64>().ok().filter(|number| number.is_finite());
            match part.split_once('=') {
                Some(("share", value)) => {
                    let share = number(value.trim_end_matches('%'));
                    one.share_percent = Some(
                        share.ok_or_else(|| wrong(format!("{value:?} is no share of {name} in per cent")))?,
                    );
                }
                Some(("priority", value)) => {
                    one.priority = value
                        .parse()
                        .map_err(|_| wrong(format!("{value:?} is no priority of {name}: 0 to 255")))?;
                }
                None if part == "connector" => one.by_connector = true,
                _ => {
                    return Err(wrong(format!(
                        "{part:?} says nothing of {name}: share=PERCENT, priority=N and connector are known"
                    )));
                }
            }
        }
        Ok(one)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn festival() -> Inputs {
        Inputs { types: vec!["cash=300000".parse().unwrap()], ..Inputs::default() }
    }

    #[test]
    fn types_are_read_as_they_are_written() {
        let badge: TypeInput = "badge=2_000,share=1,priority=2,connector".parse().unwrap();
        assert_eq!((badge.rate_per_s, badge.share_percent), (Some(2_000), Some(1.0)));
        assert!(badge.priority == 2 && badge.by_connector);
        assert_eq!("coupon=all".parse::<TypeInput>().unwrap().rate_per_s, None);
        for (text, what) in [
            ("cash", "NAME=RATE"),
            ("cash=many", "no rate of cash"),
            ("cash=1,share=x", "no share of cash"),
            ("cash=1,priority=900", "no priority of cash"),
            ("cash=1,fast", "says nothing of cash"),
        ] {
            let refused = text.parse::<TypeInput>().unwrap_err().to_string();
            assert!(refused.contains(what), "{text}: {refused}");
        }
    }

    #[test]
    fn every_mistake_is_named_at_once() {
        assert_eq!(festival().check(), Ok(()));
        let mut nonsense = Inputs {
            rewards_per_s: 0,
            replication: 9,
            headroom: f64::NAN,
            orders: 5,
            types: vec![TypeInput::new("cash"), TypeInput::new("cash")],
            ..festival()
        };
        nonsense.types[0].share_percent = Some(120.0);
        let refused = nonsense.check().unwrap_err();
        for what in ["rewards-per-s is 0", "replication is 9", "headroom", "named twice", "120 %"] {
            assert!(refused.to_string().contains(what), "{what}: {refused}");
        }
        let few = Inputs { orders: 5, ..festival() }.check().unwrap_err().to_string();
        assert!(few.contains("18000000 orders already"), "{few}");
    }

    #[test]
    fn shares_that_are_left_out_share_the_rest() {
        let types = ["cash=1,share=70", "badge=1,share=2", "coupon=all", "coin=all"];
        let inputs = Inputs { types: types.map(|one| one.parse().unwrap()).into(), ..festival() };
        inputs.check().unwrap();
        let shares = inputs.shares();
        assert!((shares[2] - 0.14).abs() < 1e-9 && (shares.iter().sum::<f64>() - 1.0).abs() < 1e-9);
        let over = Inputs { types: vec!["cash=1,share=60".parse().unwrap()], ..festival() };
        assert!(over.check().unwrap_err().to_string().contains("no type is left for the rest"));
    }
}
