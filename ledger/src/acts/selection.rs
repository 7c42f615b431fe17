//! The orders that a correction is about, and what it has come to.

use serde::{Deserialize, Serialize};
use windfall_proto::order::AMOUNT_MAX;

/// Which credited orders: those of an activity and a bonus type that the ledger took in a span of time, of these amounts.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Selection {
    /// The campaign.
    pub activity: String,
    /// The scene; empty: every scene of the activity.
    pub scene: String,
    /// The bonus type.
    pub bonus_type: String,
    /// When the ledger took the first of them; Unix milliseconds.
    pub from_ms: i64,
    /// Before when it took the last of them. It lies in the past when a correction is proposed.
    pub to_ms: i64,
    /// The smallest amount, at least 1.
    pub min_amount: i64,
    /// The largest amount.
    pub max_amount: i64,
}

/// What is taken back.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Correction {
    /// From which orders.
    pub selection: Selection,
    /// How much of each order its user keeps: what would have been right. Above 0, orders that a payer paid are left alone: a
    /// payer's settlement is taken back as a whole or not at all.
    pub keep: i64,
    /// Whether less is taken where the user has less. Otherwise nothing is taken then.
    pub take_what_is_there: bool,
    /// The number of orders that it may take from at most.
    pub max_orders: i64,
    /// How much it may take at most, in all.
    pub max_taken: i64,
}

impl Selection {
    /// Why it selects nothing that could be; `None`: it may.
    pub(crate) fn wrong(&self, keep: i64) -> Option<String> {
        let Self { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } = self;
        if activity.is_empty() || bonus_type.is_empty() {
            return Some("a correction names an activity and a bonus type".into());
        }
        if [activity, scene, bonus_type].iter().any(|text| text.contains('\0')) {
            return Some("names are without NUL".into());
        }
        if from_ms >= to_ms {
            return Some("the time ends before it begins".into());
        }
        if *min_amount < 1 || min_amount > max_amount || *max_amount > AMOUNT_MAX {
            return Some(format!("amounts are 1 to {AMOUNT_MAX}, the smallest one first"));
        }
        if keep < 0 || keep >= *min_amount {
            return Some(format!(
                "of each order {keep} would be kept, which must be at least 0 and less than the smallest amount, {min_amount}"
            ));
        }
        None
    }
}

impl Correction {
    pub(crate) fn wrong(&self, now_ms: i64) -> Option<String> {
        if let Some(why) = self.selection.wrong(self.keep) {
            return Some(why);
        }
        if self.selection.to_ms > now_ms {
            return Some("the time of the orders must have ended: otherwise others would join them".into());
        }
        (self.max_orders < 1 || self.max_taken < 1).then(|| {
            "a correction says how many orders and how much it takes at most, each at least 1".into()
        })
    }
}

/// What a part of the ledger has of a selection.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Survey {
    /// The credited orders that a correction would take back.
    pub orders: i64,
    /// What it would take from them where everybody has it.
    pub amount: i64,
    /// The credited orders that a payer paid. They are among the others, and are taken from the payer's settlement; where a part of
    /// each order is kept, they are not, and are left alone.
    pub orders_of_payers: i64,
    /// The orders that a correction would take back and whose user has less than that, by the balance as it is now, each for itself.
    pub short_orders: i64,
    /// How much these users lack.
    pub short_amount: i64,
    /// The credited orders that were taken back before.
    pub orders_taken_back: i64,
    /// The orders that are reserved: they may be credited yet, and are not taken back until then.
    pub orders_reserved: i64,
    /// From where the next part goes on; `None`: there is none.
    pub next: Option<String>,
}

impl Survey {
    /// Adds what another part has.
    #[cfg_attr(not(feature = "postgres"), expect(dead_code, reason = "a file is surveyed row by row"))]
    pub(crate) fn add(&mut self, other: &Self) {
        self.orders += other.orders;
        self.amount = self.amount.saturating_add(other.amount);
        self.orders_of_payers += other.orders_of_payers;
        self.short_orders += other.short_orders;
        self.short_amount = self.short_amount.saturating_add(other.short_amount);
        self.orders_taken_back += other.orders_taken_back;
        self.orders_reserved += other.orders_reserved;
    }
}

/// What a correction has come to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The pages that decided anything.
    pub pages: i64,
    /// The orders that it took from.
    pub orders: i64,
    /// How much it took.
    pub taken: i64,
    /// The orders that it did not take as a whole, or not at all.
    pub short_orders: i64,
    /// How much of them it did not take.
    pub short_amount: i64,
}
