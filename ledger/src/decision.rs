//! What becomes of an order, given what is stored of it and what its budgets hold. Pure; every database decides by it.

#[cfg(feature = "postgres")]
use crate::budget::Take;
use crate::journal::Payee;
use crate::model::{Attempt, Awaits, Finish, Order, OrderOutcome};
use std::collections::BTreeMap;
use windfall_contract::accounts::{Reason, Status};

/// What is done with new orders.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Goal {
    /// The ledger pays them.
    Credit,
    /// They are reserved for a downstream.
    Reserve,
    /// They are reserved for their event.
    Promise,
}

impl Goal {
    /// How their budget is taken.
    #[cfg(feature = "postgres")]
    pub const fn take(self) -> Take {
        match self {
            Self::Credit => Take::Used,
            Self::Reserve | Self::Promise => Take::Reserved,
        }
    }

    /// Their status, where the budget has room.
    #[cfg(feature = "postgres")]
    pub const fn status(self) -> Status {
        match self {
            Self::Credit => Status::Credited,
            Self::Reserve | Self::Promise => Status::Reserved,
        }
    }

    /// What they wait for, where they are reserved.
    pub const fn awaits(self) -> Awaits {
        match self {
            Self::Promise => Awaits::Event,
            Self::Credit | Self::Reserve => Awaits::Payer,
        }
    }

    /// Who gets what is held for them; `payer` is the downstream's number.
    pub fn payee(self, payer: Option<i64>) -> Payee {
        match self {
            Self::Credit | Self::Promise => Payee::User,
            Self::Reserve => Payee::Payer(payer.unwrap_or(0)),
        }
    }
}

/// What is stored of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Known {
    pub user_id: i64,
    /// The budget key that pays: its activity, scene and bonus type.
    pub budget_key: i64,
    pub amount: i64,
    pub status: Status,
    /// Whether it is reserved for its event, with which the ledger pays it.
    pub promised: bool,
    /// The number of the downstream's name; `None` where none was named.
    pub payer: Option<i64>,
}

impl Known {
    /// The answer to an order under this number, of this budget key, which is one activity, scene and bonus type (I1).
    pub fn answer(&self, order: &Order<'_>, budget_key: i64) -> OrderOutcome {
        if (self.user_id, self.amount, self.budget_key) != (order.user_id, order.amount, budget_key) {
            return OrderOutcome::Conflict;
        }
        match self.status {
            Status::Reserved => OrderOutcome::Reserved,
            Status::Credited => OrderOutcome::AlreadyCredited,
            Status::Rejected(reason) => OrderOutcome::Rejected(reason),
        }
    }

    /// Who gets what is held for it.
    pub fn payee(&self) -> Payee {
        if self.promised { Payee::User } else { Payee::Payer(self.payer.unwrap_or(0)) }
    }
}

/// What to do with an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    /// It is decided.
    Answer(OrderOutcome),
    /// It asks for budget: it is new, or was rejected and is replayed.
    Ask,
    /// The event that it was reserved for has come: it is credited from what is held for it (I1, I4).
    Keep,
    /// It is reserved, and belongs to the downstream of this call: from now on that one may have paid, and no other is
    /// asked (I1).
    HandOver,
}

/// Decides on an order as it comes.
pub(crate) fn step(
    known: Option<&Known>,
    order: &Order<'_>,
    budget_key: i64,
    goal: Goal,
    attempt: Attempt,
) -> Step {
    let Some(known) = known else { return Step::Ask };
    match known.answer(order, budget_key) {
        OrderOutcome::Rejected(_) if attempt == Attempt::Replay => Step::Ask,
        OrderOutcome::Reserved if goal == Goal::Credit && known.promised => Step::Keep,
        // Version 1 did not note whom it was about to ask.
        OrderOutcome::Reserved if goal == Goal::Reserve && (known.promised || known.payer.is_none()) => {
            Step::HandOver
        }
        decided => Step::Answer(decided),
    }
}

/// Whether an order is beyond what one order of its type may be.
pub(crate) fn is_over_order_cap(largest: &BTreeMap<String, i64>, order: &Order<'_>) -> bool {
    largest.get(order.bonus_type).is_some_and(|largest| order.amount > *largest)
}

/// Why an order gets no room; `short` has one value for each budget that has too little of it: whether it is a cap.
pub(crate) fn refusal(short: impl IntoIterator<Item = bool>) -> Option<Reason> {
    let mut refused = None;
    for is_cap in short {
        if !is_cap {
            return Some(Reason::BudgetExhausted);
        }
        refused = Some(Reason::OverTypeCap);
    }
    refused
}

/// The outcome of ending an order of this status: credited, or rejected.
pub(crate) const fn finish(status: Status, credited: bool) -> Finish {
    match (status, credited) {
        (Status::Reserved, _) => Finish::Done,
        (Status::Credited, true) | (Status::Rejected(_), false) => Finish::Before,
        _ => Finish::Otherwise,
    }
}

/// The payer to store with an order that has been decided; `None` leaves what is stored. `is_new`: the order was not
/// known before.
pub(crate) const fn payer_of(status: Status, asked: &str, is_new: bool) -> Option<&str> {
    match (status, is_new) {
        // It is asked next, or nobody is.
        (Status::Reserved, _) => Some(asked),
        // The ledger has paid it, whoever was asked before and refused.
        (Status::Credited, _) => Some(""),
        (Status::Rejected(_), true) => Some(""),
        // The downstream that was asked before is kept for those who look into it.
        (Status::Rejected(_), false) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ORDER: Order<'_> = Order {
        trade_no: "a",
        user_id: 7,
        activity: "spring",
        scene: "rain",
        bonus_type: "cash",
        amount: 10,
        time_ms: 1,
    };

    fn known(status: Status, promised: bool, payer: Option<i64>) -> Known {
        Known { user_id: 7, budget_key: 3, amount: 10, status, promised, payer }
    }

    #[test]
    fn only_a_rejected_order_asks_again_and_only_by_a_replay() {
        let goals = [Goal::Credit, Goal::Reserve, Goal::Promise];
        let refused = Status::Rejected(Reason::BudgetExhausted);
        for goal in goals {
            assert_eq!(step(None, &ORDER, 3, goal, Attempt::Normal), Step::Ask);
            for status in [Status::Reserved, Status::Credited, refused] {
                for (promised, payer) in [(false, Some(9)), (false, None), (true, None)] {
                    let own = known(status, promised, payer);
                    for attempt in [Attempt::Normal, Attempt::Replay] {
                        let asks = step(Some(&own), &ORDER, 3, goal, attempt) == Step::Ask;
                        assert_eq!(asks, status == refused && attempt == Attempt::Replay);
                        // Another order under the number moves nothing, whatever has become of it.
                        let conflict = Step::Answer(OrderOutcome::Conflict);
                        for other in [Order { user_id: 8, ..ORDER }, Order { amount: 11, ..ORDER }] {
                            assert_eq!(step(Some(&own), &other, 3, goal, attempt), conflict);
                        }
                        assert_eq!(step(Some(&own), &ORDER, 4, goal, attempt), conflict);
                    }
                }
            }
        }
    }

    #[test]
    fn an_order_that_somebody_may_have_paid_is_nobody_elses() {
        let asked = known(Status::Reserved, false, Some(9));
        for goal in [Goal::Credit, Goal::Reserve, Goal::Promise] {
            let answer = step(Some(&asked), &ORDER, 3, goal, Attempt::Replay);
            assert_eq!(answer, Step::Answer(OrderOutcome::Reserved));
        }
        let promised = known(Status::Reserved, true, None);
        assert_eq!(step(Some(&promised), &ORDER, 3, Goal::Credit, Attempt::Normal), Step::Keep);
        assert_eq!(step(Some(&promised), &ORDER, 3, Goal::Reserve, Attempt::Normal), Step::HandOver);
        assert_eq!((asked.payee(), promised.payee()), (Payee::Payer(9), Payee::User));
    }

    #[test]
    fn an_empty_budget_weighs_more_than_a_cap() {
        assert_eq!(refusal([]), None);
        assert_eq!(refusal([true]), Some(Reason::OverTypeCap));
        assert_eq!(refusal([true, false]), Some(Reason::BudgetExhausted));
    }
}
