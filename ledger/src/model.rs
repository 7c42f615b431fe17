//! The inputs of the ledger, and its answers.

use crate::error::LedgerError;
use crate::key::{OrderId, is_number};
use windfall_contract::accounts::{Reason, Status, StoredOrder};

/// One bonus to give. The caller has checked it: `trade_no` and names not empty, `amount` at least 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Order<'a> {
    /// The order number, the idempotency key within its activity.
    pub trade_no: &'a str,
    /// The user who gets it.
    pub user_id: i64,
    /// The campaign that pays.
    pub activity: &'a str,
    /// The scene within the campaign.
    pub scene: &'a str,
    /// The bonus type that moves.
    pub bonus_type: &'a str,
    /// The amount in the smallest unit, at least 1.
    pub amount: i64,
    /// The present time, in Unix milliseconds.
    pub time_ms: i64,
}

impl<'a> Order<'a> {
    /// Its name.
    pub const fn id(&self) -> OrderId<'a> {
        OrderId { activity: self.activity, trade_no: self.trade_no }
    }

    /// Checks the order. Orders are parsed at the edge, so this fails only where the calling code is wrong; the
    /// database must not be the first to notice.
    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        if self.amount < 1 || !is_number(self.trade_no) {
            return Err(LedgerError::Invalid(format!(
                "order {:?} of {}: the order number must not be empty, nor have a space or NUL, the amount at least 1",
                self.trade_no, self.amount
            )));
        }
        // The empty name stands for all.
        if self.activity.is_empty() || self.scene.is_empty() || self.bonus_type.is_empty() {
            return Err(LedgerError::Invalid(format!(
                "order {:?}: activity, scene and type must not be empty",
                self.trade_no
            )));
        }
        Ok(())
    }
}

/// How many handles may write a ledger at once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Writers {
    /// One, over all processes; any other would wait for its lock.
    One,
    /// Any number, each with a `Ledger` of its own.
    Many,
}

/// An order in the form that the independent check reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderLine {
    /// The campaign.
    pub activity: String,
    /// The order number.
    pub trade_no: String,
    /// The user whom it pays.
    pub user_id: i64,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount in the smallest unit.
    pub amount: i64,
    /// Where it stands.
    pub status: Status,
    /// The number of transfers that paid it, counted from the transfers themselves: 1 when credited and 0 otherwise, or
    /// something is wrong.
    pub credits: u32,
}

/// Indices of the first occurrence of each key of a batch, in the order of the keys: neighbours in the batch are then
/// neighbours in the tree.
pub(crate) fn first_of_each<K: Ord>(keys: &[K]) -> Vec<usize> {
    let mut firsts: Vec<usize> = (0..keys.len()).collect();
    // Stable, so that the first of equals comes first. Already sorted input costs one pass.
    firsts.sort_by(|a, b| keys[*a].cmp(&keys[*b]));
    firsts.dedup_by(|later, first| keys[*later] == keys[*first]);
    firsts
}

/// The outcome of an order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OrderOutcome {
    /// Credited by this transaction.
    Credited,
    /// Credited by an earlier one, with the same user, scene, type and amount.
    AlreadyCredited,
    /// Its budget is held, now or since before; a downstream decides, or its event is awaited. It ends by `post` or
    /// `release`, or by `apply` where its event is awaited.
    Reserved,
    /// The order number exists in this activity with another user, scene, type or amount; before schema version 6 also in
    /// another activity. Nothing moved.
    Conflict,
    /// Decided, now or before: it is not credited for this reason.
    Rejected(Reason),
}

/// The number that a reason is stored as: never renumber.
pub(crate) const fn reason_code(reason: Reason) -> i64 {
    match reason {
        Reason::BudgetExhausted => 1,
        Reason::DownstreamRefused => 2,
        Reason::Released => 3,
        Reason::Unbudgeted => 4,
        Reason::OverOrderCap => 5,
        Reason::OverTypeCap => 6,
        Reason::ActivityClosed => 7,
    }
}

/// The reason that a stored number means; `None` for a number that this build does not know.
pub(crate) const fn reason_of_code(code: i64) -> Option<Reason> {
    match code {
        1 => Some(Reason::BudgetExhausted),
        2 => Some(Reason::DownstreamRefused),
        3 => Some(Reason::Released),
        4 => Some(Reason::Unbudgeted),
        5 => Some(Reason::OverOrderCap),
        6 => Some(Reason::OverTypeCap),
        7 => Some(Reason::ActivityClosed),
        _ => None,
    }
}

/// [`Status::Reserved`] as it is stored: never renumber.
pub(crate) const RESERVED: i64 = 0;
/// [`Status::Credited`] as it is stored: never renumber.
pub(crate) const CREDITED: i64 = 1;
/// [`Status::Rejected`] as it is stored, its reason beside it: never renumber.
pub(crate) const REJECTED: i64 = 2;

/// The status that the two stored columns mean; `None` for numbers that this build does not know.
pub(crate) fn status_of_columns(status: i64, reason: i64) -> Option<Status> {
    match status {
        RESERVED => Some(Status::Reserved),
        CREDITED => Some(Status::Credited),
        REJECTED => reason_of_code(reason).map(Status::Rejected),
        _ => None,
    }
}

/// What a reserved order waits for. Stored in the column of the reason: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Awaits {
    /// A downstream, which may have paid it by now.
    Payer,
    /// Its event, with which the ledger itself pays it. It has not been paid.
    Event,
}

impl Awaits {
    pub(crate) const fn code(self) -> i64 {
        match self {
            Self::Payer => 0,
            Self::Event => 1,
        }
    }

    pub(crate) const fn of_code(code: i64) -> Self {
        if code == 1 { Self::Event } else { Self::Payer }
    }
}

/// A reserved order, as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReservedOrder {
    /// The order.
    pub order: StoredOrder,
    /// What it waits for.
    pub awaits: Awaits,
}

/// The outcome of setting the budgets of a version of the rules.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum BudgetsApplied {
    /// The budgets are set. Lists the totals that could not be lowered as far as asked.
    Set(Vec<BudgetRaised>),
    /// A newer version has set its budgets: nothing was changed.
    Stale {
        /// The newer version.
        newest: u64,
    },
}

impl BudgetsApplied {
    /// Whether the budgets are set.
    pub const fn is_set(&self) -> bool {
        matches!(self, Self::Set(_))
    }
}

/// Whether an order that was rejected before may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attempt {
    /// A rejection is final: a repeat gets the same answer.
    #[default]
    Normal,
    /// An operator's replay: a rejected order is decided anew.
    Replay,
}

/// The outcome of ending a reserved order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// It ended this way now.
    Done,
    /// It had ended this way before. Nothing moved.
    Before,
    /// It had ended the other way before: credited in place of rejected, or rejected in place of credited.
    /// Nothing moved.
    Otherwise,
    /// There is no such order. Nothing moved.
    Unknown,
}

/// A budget to set. Four kinds stand side by side:
/// - sharded, the usual one: of one activity, scene and type, split over rows so that writers do not queue;
/// - strict, with 0 `shards`: one row, which each transaction locks before it reads it, so that room is given out in
///   the exact order of arrival;
/// - combined, with `*` for the scene, the type or both: an order takes from its own budget and from every combined
///   one that covers it, from all or from none. Writers to budgets that one combined budget covers wait for each other
///   on it. In PostgreSQL all writers must know this kind (schema version 3) before the first is set;
/// - a cap of a type, with `*` for the activity and the scene: an order of that type takes from it as well, in whatever
///   activity, or is refused as `OverTypeCap`. It is no budget: an order that only a cap covers is unbudgeted. All
///   writers must know this kind before the first is set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BudgetSet<'a> {
    /// The campaign; `*` for all of them, in a cap.
    pub activity: &'a str,
    /// The scene; `*` for all of them.
    pub scene: &'a str,
    /// The bonus type; `*` for all of them, whatever their units.
    pub bonus_type: &'a str,
    /// The total in the smallest unit, 0 to [`BUDGET_MAX`].
    pub total: i64,
    /// The number of rows that it is split over: 1 to [`SHARDS_MAX`]; 0 for a strict budget.
    pub shards: u32,
}

/// The name that stands for all scenes or types.
pub(crate) const ALL: &str = "*";

/// The name under which all activities, scenes or types are stored: no order has it, while one may have a scene called
/// `*`.
const STORED_ALL: &str = "";

impl BudgetSet<'_> {
    pub(crate) fn check(&self) -> Result<(), LedgerError> {
        let Self { activity, scene, bonus_type, total, shards } = *self;
        if !(0..=BUDGET_MAX).contains(&total) || shards > SHARDS_MAX {
            return Err(LedgerError::Invalid(format!(
                "budget {activity}/{scene}/{bonus_type}: the total must be 0 to {BUDGET_MAX}, the shards 0 to \
                 {SHARDS_MAX}"
            )));
        }
        if [activity, scene, bonus_type].contains(&STORED_ALL) {
            return Err(LedgerError::Invalid(format!(
                "budget {activity}/{scene}/{bonus_type}: names must not be empty"
            )));
        }
        if activity == ALL && (scene != ALL || bonus_type == ALL) {
            return Err(LedgerError::Invalid(format!(
                "budget {activity}/{scene}/{bonus_type}: what covers all activities covers all scenes, and one type"
            )));
        }
        Ok(())
    }

    /// Whether it covers more than one budget key.
    pub(crate) fn is_combined(&self) -> bool {
        self.scene == ALL || self.bonus_type == ALL
    }

    /// Whether it is a cap of a type over all activities.
    pub(crate) fn is_cap(&self) -> bool {
        self.activity == ALL
    }

    /// Activity, scene and type as they are stored.
    pub(crate) fn stored(&self) -> [&str; 3] {
        [self.activity, self.scene, self.bonus_type].map(|name| if name == ALL { STORED_ALL } else { name })
    }

    /// The number of rows that it is split over.
    pub(crate) fn rows(&self) -> u32 {
        self.shards.max(1)
    }
}

/// The largest total of a budget: 2^58, so that no sum of a few of them leaves 64 bits. Spending without
/// a budget is limited to it as well.
pub const BUDGET_MAX: i64 = 1 << 58;
/// The most shards of a budget.
pub const SHARDS_MAX: u32 = 64;

/// A budget as it stands, summed over its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetState {
    /// The campaign; `*` where it is a cap over all of them.
    pub activity: String,
    /// The scene; `*` where it is combined over all of them.
    pub scene: String,
    /// The bonus type; `*` where it is combined over all of them.
    pub bonus_type: String,
    /// The total that may ever be given out; `None` where no budget was set.
    pub total: Option<i64>,
    /// The amount credited.
    pub used: i64,
    /// The amount held for orders that a downstream decides, or whose event is awaited.
    pub reserved: i64,
    /// The number of rows that it is split over; 0 for a strict budget.
    pub shards: u32,
}

/// Which budgets are read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WhichBudgets {
    /// Every activity, scene and type that ever had an order or a budget.
    All,
    /// Those that have a total.
    Set,
}

/// What downstreams have paid, and the ledger owes them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settlement {
    /// The downstream's name; empty for one that was never named.
    pub payer: String,
    /// The bonus type.
    pub bonus_type: String,
    /// The amount in the smallest unit.
    pub amount: i64,
}

/// A total that could not be lowered as far as asked: that much is given out or held already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BudgetRaised {
    /// The campaign.
    pub activity: String,
    /// The place in it.
    pub scene: String,
    /// The bonus type.
    pub bonus_type: String,
    /// The total that was asked for.
    pub asked: i64,
    /// The total that holds: used + reserved.
    pub total: i64,
}

/// What happens to orders of an activity, scene and type for which no budget was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Unbudgeted {
    /// They are rejected as `Unbudgeted`. A budget that is set later, and a replay, credit them.
    #[default]
    Refuse,
    /// They are credited, and counted, so that a budget set later counts what was given out before.
    Allow,
}
