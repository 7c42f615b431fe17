//! The journal's entries: which account each decision debits, and which it credits. Pure; every database stores what is
//! made here.

use std::borrow::Cow;
use windfall_contract::accounts::FlowKind;

/// The kind of a user's account; its holder is the user id.
pub(crate) const USER: i64 = 0;
/// The kind of an activity's funding account; its holder is the activity's name id. No balance of it is kept.
pub(crate) const FUNDING: i64 = 1;
/// The kind of a budget; its holder is the budget key. `budget_shards` has its balance.
pub(crate) const BUDGET: i64 = 2;
/// The kind of a bonus type's clearing account, which holds withdrawals that are not decided. In `accounts` its holder
/// is the number of a row, where many write at once.
pub(crate) const CLEARING: i64 = -1;
/// The kind of a bonus type's payout account, which receives what has left for good; its holder is as with clearing.
pub(crate) const PAYOUT: i64 = -2;
/// The kind of a payer's settlement account; its holder is the payer's name id, 0 for one without a name. In `accounts`
/// it may be spread over several rows, where many write at once: this kind and those below it.
pub(crate) const SETTLEMENT: i64 = -3;

/// What an entry does. Stored as a number: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Moves money.
    Direct,
    /// Holds money.
    Pending,
    /// Moves money that was held.
    Post,
    /// Gives up what was held.
    Void,
    /// Takes back what an earlier entry moved.
    Reversal,
}

impl Kind {
    pub const fn code(self) -> i64 {
        match self {
            Self::Direct => DIRECT,
            Self::Pending => PENDING,
            Self::Post => POST,
            Self::Void => VOID,
            Self::Reversal => REVERSAL,
        }
    }

    /// Whether it changes balances.
    pub const fn moves(self) -> bool {
        matches!(self, Self::Direct | Self::Post | Self::Reversal)
    }
}

/// `transfers.kind` of a direct transfer.
pub(crate) const DIRECT: i64 = 0;
/// `transfers.kind` of a pending one.
pub(crate) const PENDING: i64 = 1;
/// `transfers.kind` of one that posts a pending one.
pub(crate) const POST: i64 = 2;
/// `transfers.kind` of one that gives a pending one up.
pub(crate) const VOID: i64 = 3;
/// `transfers.kind` of one that takes back what an earlier one moved.
pub(crate) const REVERSAL: i64 = 4;

/// An account of one bonus type.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Account {
    pub kind: i64,
    pub holder: i64,
}

impl Account {
    pub const fn user(user_id: i64) -> Self {
        Self { kind: USER, holder: user_id }
    }

    pub const fn budget(budget_key: i64) -> Self {
        Self { kind: BUDGET, holder: budget_key }
    }

    pub const fn funding(activity: i64) -> Self {
        Self { kind: FUNDING, holder: activity }
    }

    const fn of_all(kind: i64) -> Self {
        Self { kind, holder: 0 }
    }
}

/// Who gets an order's money.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Payee {
    /// The user, from the ledger.
    User,
    /// The user, from a downstream: the ledger owes it to that payer, whose name has this number, 0 for none.
    Payer(i64),
}

/// A row of the journal: the form that an order has in it, or a withdrawal, or a budget that was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JournalEntry<'a> {
    pub id: i64,
    pub kind: Kind,
    pub bonus_type: i64,
    pub debit: Account,
    pub credit: Account,
    pub amount: i64,
    /// The entry before it in the user's statement; 0 for none.
    pub prev: i64,
    pub time_ms: i64,
    /// The order's key, or the withdrawal's; empty where a budget was set.
    pub reference: Cow<'a, str>,
    /// The user in whose statement it stands.
    pub user: Option<i64>,
}

impl JournalEntry<'_> {
    /// The amount by which it changes the balance of this side, whose kind is `kind`.
    pub fn change_of(&self, kind: i64) -> i64 {
        let part = |account: Account| if account.kind == kind { self.amount } else { 0 };
        if self.kind.moves() { part(self.credit) - part(self.debit) } else { 0 }
    }

    /// The accounts that it moves whose balances are kept in `accounts`, other than the user's, with the changes.
    pub fn others(&self) -> impl Iterator<Item = (Account, i64)> + use<> {
        let sides = [(self.debit, -self.amount), (self.credit, self.amount)];
        let moves = self.kind.moves();
        sides.into_iter().filter(move |(account, _)| moves && account.kind < USER)
    }

    pub fn into_owned(self) -> JournalEntry<'static> {
        let Self { id, kind, bonus_type, debit, credit, amount, prev, time_ms, user, .. } = self;
        let reference = Cow::Owned(self.reference.into_owned());
        JournalEntry { id, kind, bonus_type, debit, credit, amount, prev, time_ms, reference, user }
    }
}

/// What an entry between accounts of these kinds is to the user in whose statement it stands.
pub(crate) const fn flow_kind(debit: i64, credit: i64) -> FlowKind {
    match (debit, credit) {
        (USER, BUDGET | FUNDING) => FlowKind::TakenBack,
        (SETTLEMENT, BUDGET) => FlowKind::SettledTakenBack,
        (USER, _) => FlowKind::Withdrawal,
        (CLEARING, _) => FlowKind::Return,
        (_, SETTLEMENT) => FlowKind::Settled,
        _ => FlowKind::Credit,
    }
}

/// The money of an order: what its entries in the journal are made of. It is kept nowhere.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Money<'a> {
    pub key: &'a str,
    pub user_id: i64,
    pub budget_key: i64,
    pub bonus_type: i64,
    pub amount: i64,
}

impl<'a> Money<'a> {
    /// The ledger pays.
    pub fn direct(&self, id: i64, time_ms: i64) -> JournalEntry<'a> {
        self.entry(Kind::Direct, Payee::User, id, time_ms)
    }

    /// It is held.
    pub fn pending(&self, to: Payee, id: i64, time_ms: i64) -> JournalEntry<'a> {
        self.entry(Kind::Pending, to, id, time_ms)
    }

    /// What is held is paid.
    pub fn post(&self, to: Payee, id: i64, time_ms: i64) -> JournalEntry<'a> {
        self.entry(Kind::Post, to, id, time_ms)
    }

    /// What is held is given up.
    pub fn void(&self, to: Payee, id: i64, time_ms: i64) -> JournalEntry<'a> {
        self.entry(Kind::Void, to, id, time_ms)
    }

    fn entry(&self, kind: Kind, to: Payee, id: i64, time_ms: i64) -> JournalEntry<'a> {
        let credit = match to {
            Payee::User => Account::user(self.user_id),
            Payee::Payer(payer) => Account { kind: SETTLEMENT, holder: payer },
        };
        JournalEntry {
            id,
            kind,
            bonus_type: self.bonus_type,
            debit: Account::budget(self.budget_key),
            credit,
            amount: self.amount,
            prev: 0,
            time_ms,
            reference: Cow::Borrowed(self.key),
            // The user sees what a payer paid as well, though no balance contains it.
            user: kind.moves().then_some(self.user_id),
        }
    }
}

/// The money of a withdrawal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Payout<'a> {
    pub key: &'a str,
    pub user_id: i64,
    pub bonus_type: i64,
    pub amount: i64,
}

impl<'a> Payout<'a> {
    /// It leaves the user's account.
    pub fn hold(&self, id: i64, prev: i64, time_ms: i64) -> JournalEntry<'a> {
        let (debit, credit) = (Account::user(self.user_id), Account::of_all(CLEARING));
        self.entry(debit, credit, id, prev, time_ms)
    }

    /// It has left for good.
    pub fn pay(&self, id: i64, time_ms: i64) -> JournalEntry<'a> {
        self.entry(Account::of_all(CLEARING), Account::of_all(PAYOUT), id, 0, time_ms)
    }

    /// It is back.
    pub fn give_back(&self, id: i64, prev: i64, time_ms: i64) -> JournalEntry<'a> {
        let (debit, credit) = (Account::of_all(CLEARING), Account::user(self.user_id));
        self.entry(debit, credit, id, prev, time_ms)
    }

    fn entry(&self, debit: Account, credit: Account, id: i64, prev: i64, time_ms: i64) -> JournalEntry<'a> {
        let user = [debit, credit].iter().any(|one| one.kind == USER).then_some(self.user_id);
        let (kind, reference) = (Kind::Direct, Cow::Borrowed(self.key));
        let (bonus_type, amount) = (self.bonus_type, self.amount);
        JournalEntry { id, kind, bonus_type, debit, credit, amount, prev, time_ms, reference, user }
    }
}

/// A budget whose total changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Funded {
    pub budget_key: i64,
    pub activity: i64,
    pub bonus_type: i64,
    /// The new total less the old one; 0 where no budget was set.
    pub change: i64,
}

impl Funded {
    /// `None` where nothing changes.
    pub fn entry(self, id: i64, time_ms: i64) -> Option<JournalEntry<'static>> {
        let Self { budget_key, activity, bonus_type, change } = self;
        let amount = change.checked_abs().filter(|amount| *amount != 0)?;
        let (budget, funding) = (Account::budget(budget_key), Account::funding(activity));
        let (debit, credit) = if change > 0 { (funding, budget) } else { (budget, funding) };
        let (kind, reference) = (Kind::Direct, Cow::Borrowed(""));
        Some(JournalEntry {
            id,
            kind,
            bonus_type,
            debit,
            credit,
            amount,
            prev: 0,
            time_ms,
            reference,
            user: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MONEY: Money<'_> = Money { key: "a", user_id: 7, budget_key: 3, bonus_type: 5, amount: 10 };

    #[test]
    fn what_a_payer_paid_is_in_no_users_balance() {
        let paid = MONEY.post(Payee::Payer(9), 1, 1_000);
        assert_eq!((paid.change_of(USER), paid.user), (0, Some(7)));
        assert_eq!(paid.others().collect::<Vec<_>>(), [(Account { kind: SETTLEMENT, holder: 9 }, 10)]);
    }

    #[test]
    fn what_is_held_moves_nothing() {
        for to in [Payee::User, Payee::Payer(9)] {
            for held in [MONEY.pending(to, 1, 1_000), MONEY.void(to, 2, 1_000)] {
                assert_eq!((held.change_of(USER), held.user, held.others().count()), (0, None, 0));
            }
        }
        assert_eq!(MONEY.post(Payee::User, 1, 1_000).change_of(USER), 10);
    }

    #[test]
    fn a_withdrawal_goes_to_clearing_and_on_or_back() {
        let out = Payout { key: "w", user_id: 7, bonus_type: 5, amount: 4 };
        let (hold, pay, back) = (out.hold(1, 0, 1_000), out.pay(2, 1_000), out.give_back(3, 1, 1_000));
        assert_eq!([&hold, &pay, &back].map(|one| one.change_of(USER)), [-4, 0, 4]);
        assert_eq!([&hold, &pay, &back].map(|one| one.change_of(CLEARING)), [4, -4, -4]);
        assert_eq!(pay.user, None);
    }

    #[test]
    fn a_budget_is_funded_and_defunded() {
        let set = |change| Funded { budget_key: 3, activity: 1, bonus_type: 5, change }.entry(1, 1_000);
        assert_eq!(set(0), None);
        assert_eq!(set(10).map(|one| (one.debit.kind, one.credit.kind)), Some((FUNDING, BUDGET)));
        assert_eq!(set(-10).map(|one| (one.debit.kind, one.amount)), Some((BUDGET, 10)));
    }
}
