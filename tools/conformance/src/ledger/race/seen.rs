//! What the answers of a race have said.

use super::number_of;
use std::collections::{BTreeMap, BTreeSet};
use windfall_contract::accounts::Reason;
use windfall_ledger::{ActOutcome, Deed, Ended, Finish, OrderOutcome, StoredAct};

/// What one sees who sees every answer, also those that are lost on their way; and what the payers have done.
#[derive(Debug, Default)]
pub(super) struct Seen {
    /// How often an order was credited, by its answers.
    pub credited: BTreeMap<u64, u32>,
    /// Orders that some answer has called credited.
    pub said: BTreeSet<u64>,
    /// How often a withdrawal was held.
    pub held: BTreeMap<u64, u32>,
    /// How often a withdrawal was ended, by a payer's word or by an act.
    pub ended: BTreeMap<u64, u32>,
    /// Whether a payer has paid an order. It decides when it is asked first, and then says the same for ever.
    pub paid_orders: BTreeMap<u64, bool>,
    /// Whether a payer has paid a withdrawal, likewise.
    pub paid_withdrawals: BTreeMap<u64, bool>,
    /// Acts that were proposed.
    pub acts: Vec<i64>,
    /// How often an act was ended.
    pub ended_acts: BTreeMap<i64, u32>,
}

impl Seen {
    pub fn tell_order(&mut self, order: u64, outcome: OrderOutcome, was_said: bool) {
        match outcome {
            OrderOutcome::Credited => *self.credited.entry(order).or_default() += 1,
            OrderOutcome::AlreadyCredited | OrderOutcome::Reserved => {}
            OrderOutcome::Rejected(
                Reason::BudgetExhausted | Reason::DownstreamRefused | Reason::Released,
            ) => {}
            other => panic!("order {order}: {other:?}"),
        }
        let is_credited = matches!(outcome, OrderOutcome::Credited | OrderOutcome::AlreadyCredited);
        assert!(
            !was_said || outcome == OrderOutcome::AlreadyCredited,
            "order {order} was credited: {outcome:?}"
        );
        if is_credited {
            self.said.insert(order);
        }
    }

    pub fn tell_paid(&mut self, order: u64, finish: Finish) {
        match finish {
            Finish::Done => *self.credited.entry(order).or_default() += 1,
            Finish::Before => {}
            other => panic!("order {order}, which its payer has paid: {other:?}"),
        }
        self.said.insert(order);
    }

    pub fn tell_end(&mut self, withdrawal: u64, finish: Finish, paid: bool) {
        match finish {
            Finish::Done => *self.ended.entry(withdrawal).or_default() += 1,
            Finish::Before => {}
            // An operator has had the payer refuse it before it was held.
            Finish::Unknown if !paid => {}
            other => panic!("withdrawal {withdrawal}, ended by its payer's word: {other:?}"),
        }
    }

    pub fn tell_act(&mut self, ended: &Ended, operator: &str) {
        match ended {
            Ended::Now(act) => {
                *self.ended_acts.entry(act.id).or_default() += 1;
                if act.end.as_ref().is_some_and(|end| end.outcome == ActOutcome::Done) {
                    self.tell_settled(act);
                }
            }
            Ended::Before(_) => {}
            Ended::SameOperator(act) => assert_eq!(act.proposal.operator.name, operator),
            Ended::Expired(_) | Ended::Unknown => panic!("{ended:?}"),
        }
    }

    fn tell_settled(&mut self, act: &StoredAct) {
        let number = |name: &str| number_of(name).expect("an act is about something of this race");
        match &act.proposal.deed {
            Deed::SettleOrder { trade_no, paid: true, .. } => self.tell_paid(number(trade_no), Finish::Done),
            Deed::SettleWithdrawal { withdrawal, paid, .. } => {
                self.tell_end(number(withdrawal), Finish::Done, *paid);
            }
            _ => {}
        }
    }

    pub fn was_said(&self, order: u64) -> bool {
        self.said.contains(&order)
    }
}
