//! The steps that acts need of a database, beside those of every transaction.

use super::decision::Standing;
use super::model::{ActEnd, ActFilter, ActOutcome, Deed, Operator, Proposal, StoredAct};
use super::selection::{Selection, Survey, Totals};
use crate::error::LedgerError;
use crate::journal::{Account, Kind, USER};
use crate::key::{OrderId, WithdrawalId};
use crate::withdrawal::StoredWithdrawal;
use std::collections::HashSet;
use windfall_contract::accounts::{Reason, StoredOrder};

/// A transfer that an act asks for, before it is an entry of the journal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Transfer<'a> {
    pub kind: Kind,
    /// The user in whose statement it stands.
    pub user_id: i64,
    pub bonus_type: i64,
    pub debit: Account,
    pub credit: Account,
    pub amount: i64,
    /// Whether less is moved where the user's account has less.
    pub take_what_is_there: bool,
    /// The budget key of the side that is a budget: what it has given out changes.
    pub budget: Option<i64>,
    pub reference: &'a str,
    pub time_ms: i64,
}

/// What became of a transfer that an act asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum TransferOutcome {
    /// So much was moved.
    Done(i64),
    /// The user's account lacks so much.
    Short(i64),
    /// The budget refuses to give it.
    NoRoom(Reason),
    /// The budget has given out less than it is to take back.
    NotGiven,
}

/// How an order was paid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Payment {
    pub bonus_type: i64,
    pub budget_key: i64,
    /// The account that got it: the user's, or a payer's settlement.
    pub payee: Account,
    pub amount: i64,
}

impl Payment {
    /// The transfer that takes it back, to its budget, all but what is kept.
    pub const fn reversal<'a>(
        &self,
        user_id: i64,
        order_key: &'a str,
        (keep, take_what_is_there): (i64, bool),
        time_ms: i64,
    ) -> Transfer<'a> {
        Transfer {
            kind: Kind::Reversal,
            user_id,
            bonus_type: self.bonus_type,
            debit: self.payee,
            credit: Account::budget(self.budget_key),
            amount: self.amount - keep,
            take_what_is_there: take_what_is_there && self.payee.kind == USER,
            budget: Some(self.budget_key),
            reference: order_key,
            time_ms,
        }
    }
}

/// A key of the budgets, by numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BudgetNumbers {
    pub id: i64,
    pub bonus_type: i64,
}

/// Why an order was or was not taken back: a part of a correction.
#[derive(Debug)]
pub(crate) struct Part {
    /// Its key among those of all acts: the correction's number and the order's key. Other keys have no space.
    pub key: String,
    pub deed: Deed,
    pub subject: String,
    pub outcome: ActOutcome,
    pub detail: String,
    pub amount: i64,
}

/// What a transaction does for acts.
pub(crate) trait ActSteps {
    /// Makes the tables where they are missing and may be made.
    fn make_act_tables(&mut self) -> Result<(), LedgerError>;

    /// The newest act of this key, with its number among those of the key.
    fn newest_act(&mut self, key: &str) -> Result<Option<(StoredAct, i64)>, LedgerError>;

    /// Inserts an act as the n-th of its key. `None`: another transaction was faster.
    fn insert_act(&mut self, key: &str, nth: i64, proposal: &Proposal) -> Result<Option<i64>, LedgerError>;

    /// The act of this number. Other transactions that would end it wait for the end of this one.
    fn lock_act(&mut self, id: i64) -> Result<Option<StoredAct>, LedgerError>;

    /// Ends an act that is locked.
    fn end_act(&mut self, id: i64, end: &ActEnd) -> Result<(), LedgerError>;

    /// The done acts of these kinds about this subject, newest first.
    fn done_acts(&mut self, subject: &str, kinds: &[&str]) -> Result<Vec<StoredAct>, LedgerError>;

    /// An order, under whichever key it is stored, which stays as it is until this transaction ends.
    fn lock_order(&mut self, id: OrderId<'_>) -> Result<Option<Standing>, LedgerError>;

    /// The orders with this number, of every activity.
    fn orders_of_number(&mut self, trade_no: &str) -> Result<Vec<StoredOrder>, LedgerError>;

    /// The transfer that paid the credited order that is stored under this key.
    fn payment(&mut self, key: &str) -> Result<Option<Payment>, LedgerError>;

    /// The numbers of a budget key. Missing ones are made.
    fn budget_numbers(
        &mut self,
        activity: &str,
        scene: &str,
        bonus_type: &str,
    ) -> Result<BudgetNumbers, LedgerError>;

    /// The numbers of an activity and a bonus type; `None` where either is unknown.
    fn name_numbers(&mut self, activity: &str, bonus_type: &str) -> Result<Option<(i64, i64)>, LedgerError>;

    /// Moves money, and takes it from the budget or gives it back to it.
    fn move_money(&mut self, transfer: &Transfer<'_>) -> Result<TransferOutcome, LedgerError>;

    /// Freezes or thaws a user. False where the user is so already. A withdrawal that is held at the same time is held
    /// before, or not at all.
    fn set_frozen(&mut self, user_id: i64, frozen: bool, act: i64, time_ms: i64)
    -> Result<bool, LedgerError>;

    /// A withdrawal as this transaction sees it.
    fn withdrawal(&mut self, id: WithdrawalId<'_>) -> Result<Option<StoredWithdrawal>, LedgerError>;

    /// The withdrawals with this id, of every user.
    fn withdrawals_of_id(&mut self, id: &str) -> Result<Vec<StoredWithdrawal>, LedgerError>;
}

/// What is read of acts.
pub(crate) trait ActReads {
    fn acts(&self, filter: &ActFilter) -> Result<Vec<StoredAct>, LedgerError>;

    fn act(&self, id: i64) -> Result<Option<StoredAct>, LedgerError>;

    /// The act that froze a user, and when; `None`: the user is not frozen.
    fn frozen(&self, user_id: i64) -> Result<Option<(i64, i64)>, LedgerError>;
}

/// What a transaction does for corrections, beside that.
pub(crate) trait CorrectionSteps {
    /// Locks an act as [`ActSteps::lock_act`] does, unless somebody else has: then false.
    fn try_lock_act(&mut self, id: i64) -> Result<bool, LedgerError>;

    /// The keys of orders of a selection that were credited before a time: so many at most, from behind a place of their table on,
    /// and the place behind which the next ones are. An order may be left out, or come twice, if it changes meanwhile.
    fn select_orders(
        &mut self,
        which: &Selection,
        credited_before_ms: i64,
        after: &str,
        limit: usize,
    ) -> Result<(Vec<String>, Option<String>), LedgerError>;

    /// Locks the orders with these keys, as [`Self::lock_order`] does.
    fn lock_orders(&mut self, keys: &[String]) -> Result<(), LedgerError>;

    /// Those of these subjects that were reversed, by any act, or that a correction has decided.
    fn decided_parts(&mut self, correction: i64, subjects: &[String])
    -> Result<HashSet<String>, LedgerError>;

    /// The users and the payments of orders, by key: one answer for each, in order; `None` where it is not credited.
    fn payments(&mut self, keys: &[String]) -> Result<Vec<Option<(i64, Payment)>>, LedgerError>;

    /// Moves money back to budgets: one answer for each transfer, in order.
    fn take_back(&mut self, transfers: &[Transfer<'_>]) -> Result<Vec<TransferOutcome>, LedgerError>;

    /// What a correction has come to.
    fn totals(&mut self, correction: i64) -> Result<Totals, LedgerError>;

    /// Inserts what a correction has come to with a page, and who carried the page out.
    fn insert_page(
        &mut self,
        correction: i64,
        totals: &Totals,
        by: &Operator,
        now_ms: i64,
    ) -> Result<(), LedgerError>;

    /// Inserts parts of a correction with their ends: proposed by who proposed it, approved by who approved it.
    fn insert_parts(
        &mut self,
        correction: &StoredAct,
        approved: &ActEnd,
        parts: &[Part],
        now_ms: i64,
    ) -> Result<(), LedgerError>;
}

/// What is read for corrections.
pub(crate) trait CorrectionReads {
    /// What a part of the ledger has of a selection, from a place of its orders on.
    fn survey(&self, which: &Selection, keep: i64, after: &str) -> Result<Survey, LedgerError>;
}
