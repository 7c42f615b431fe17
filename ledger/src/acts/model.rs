//! What is asked for, and how it ended.

use super::selection::Correction;
use serde::{Deserialize, Serialize};
use std::fmt;

/// What is done. Stored as JSON: never rename.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Deed {
    /// Ends a reserved order whose payer never answers: it has paid, or it certainly has not and will not.
    SettleOrder {
        /// The campaign.
        activity: String,
        /// The order number.
        trade_no: String,
        /// Whether the payer has paid.
        paid: bool,
    },
    /// Ends a held withdrawal whose payer never answers.
    SettleWithdrawal {
        /// Whose it is.
        user_id: i64,
        /// Its id.
        withdrawal: String,
        /// Whether the payer has paid. Otherwise the money goes back to the user.
        paid: bool,
    },
    /// Gives up waiting for the payer of a reserved order, though nobody knows whether it paid: if it has, its answer is
    /// recorded when it comes.
    Release {
        /// The campaign.
        activity: String,
        /// The order number.
        trade_no: String,
    },
    /// Takes a credited order back: from the user, or from the settlement account of the payer that paid it, to the budget.
    /// The order stays credited, so it is never credited again.
    Reverse {
        /// The campaign.
        activity: String,
        /// The order number.
        trade_no: String,
        /// Whether less is taken where the user has less. Otherwise nothing is taken then.
        take_what_is_there: bool,
        /// How much of it the user keeps, less than its amount; 0 where a payer has paid it.
        #[serde(default, skip_serializing_if = "is_nothing")]
        keep: i64,
    },
    /// Takes many credited orders back, as [`Self::Reverse`] does one. Its approval moves nothing: it is carried out afterwards.
    Correct(Correction),
    /// Moves money between a user's account and a budget, or an activity's funding.
    Adjust {
        /// Whose account it is.
        user_id: i64,
        /// The campaign.
        activity: String,
        /// The scene of the budget; empty for the activity's funding.
        scene: String,
        /// The bonus type.
        bonus_type: String,
        /// How much, at least 1.
        amount: i64,
        /// Whether the user gets it. Otherwise it is taken from the user.
        to_user: bool,
    },
    /// From now on no withdrawal of this user is held; grants go on.
    Freeze {
        /// The user.
        user_id: i64,
    },
    /// Ends that.
    Thaw {
        /// The user.
        user_id: i64,
    },
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
const fn is_nothing(amount: &i64) -> bool {
    *amount == 0
}

impl Deed {
    /// Its word, as it is stored.
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::SettleOrder { .. } => "settle_order",
            Self::SettleWithdrawal { .. } => "settle_withdrawal",
            Self::Release { .. } => "release",
            Self::Reverse { .. } => "reverse",
            Self::Correct(_) => "correct",
            Self::Adjust { .. } => "adjust",
            Self::Freeze { .. } => "freeze",
            Self::Thaw { .. } => "thaw",
        }
    }

    /// What it is about.
    pub fn subject(&self) -> Subject<'_> {
        match self {
            Self::SettleOrder { activity, trade_no, .. }
            | Self::Release { activity, trade_no }
            | Self::Reverse { activity, trade_no, .. } => Subject::Order { activity, trade_no },
            Self::SettleWithdrawal { user_id, withdrawal, .. } => {
                Subject::Withdrawal { user_id: *user_id, id: withdrawal }
            }
            Self::Correct(correction) => Subject::Activity(&correction.selection.activity),
            Self::Adjust { user_id, .. } | Self::Freeze { user_id } | Self::Thaw { user_id } => {
                Subject::User(*user_id)
            }
        }
    }
}

/// What an act is about. Shown, it is as it is stored: neither an order number nor an id has a space.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Subject<'a> {
    /// An order.
    Order {
        /// The campaign.
        activity: &'a str,
        /// The order number.
        trade_no: &'a str,
    },
    /// A withdrawal.
    Withdrawal {
        /// Whose it is.
        user_id: i64,
        /// Its id.
        id: &'a str,
    },
    /// A user.
    User(i64),
    /// The orders of an activity.
    Activity(&'a str),
}

impl fmt::Display for Subject<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Order { activity, trade_no } => write!(f, "order {trade_no} {activity}"),
            Self::Withdrawal { user_id, id } => write!(f, "withdrawal {id} {user_id}"),
            Self::User(user_id) => write!(f, "user {user_id}"),
            Self::Activity(activity) => write!(f, "activity {activity}"),
        }
    }
}

/// A person, as the audit names them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Operator {
    /// The name that was authenticated. Of the two operators of an act these differ.
    pub name: String,
    /// What the call adds to it; may be empty.
    pub actor: String,
}

/// An act that is asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Proposal {
    /// What is done.
    pub deed: Deed,
    /// Why the act is asked for.
    pub reason: String,
    /// What proves it: a ticket, a line of a payer's statement. The same deed with the same reason and evidence is the same
    /// act, so what is asked twice is done once.
    pub evidence: String,
    /// Who asks.
    pub operator: Operator,
    /// Now; Unix milliseconds.
    pub time_ms: i64,
    /// From when on nobody can approve it any more.
    pub expires_ms: i64,
}

/// How an act ended. Stored as a number: never renumber.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ActOutcome {
    /// It was approved, and done.
    Done,
    /// It was approved, and could not be done any more: its subject had changed.
    NotDone,
    /// An operator refused it.
    Refused,
}

impl ActOutcome {
    pub(crate) const fn code(self) -> i64 {
        match self {
            Self::Done => 1,
            Self::NotDone => 2,
            Self::Refused => 3,
        }
    }

    pub(crate) const fn of_code(code: i64) -> Option<Self> {
        match code {
            1 => Some(Self::Done),
            2 => Some(Self::NotDone),
            3 => Some(Self::Refused),
            _ => None,
        }
    }
}

/// The end of an act.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActEnd {
    /// How it ended.
    pub outcome: ActOutcome,
    /// What was done, or why not.
    pub detail: String,
    /// The amount that was moved, 0 for none.
    pub amount: i64,
    /// Who approved or refused it.
    pub operator: Operator,
    /// When; Unix milliseconds.
    pub time_ms: i64,
}

/// An act as it is stored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredAct {
    /// Its number.
    pub id: i64,
    /// What was asked for.
    pub proposal: Proposal,
    /// The correction that it is a part of; 0 for none.
    pub parent: i64,
    /// `None`: nobody has approved or refused it.
    pub end: Option<ActEnd>,
}

impl StoredAct {
    /// Whether nobody can approve it any more, though nobody has ended it.
    pub const fn is_expired(&self, now_ms: i64) -> bool {
        self.end.is_none() && now_ms >= self.proposal.expires_ms
    }
}

/// Which acts to list.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ActFilter {
    /// The correction whose parts are listed; 0: acts that are no part of any.
    pub parent: i64,
    /// Only those that can be approved at this time.
    pub open_at_ms: Option<i64>,
    /// Only larger numbers.
    pub after: i64,
    /// How many at most.
    pub limit: u32,
}

/// The answer to a proposal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Proposed {
    /// It waits for another operator from now on.
    Now(StoredAct),
    /// It was proposed before, and is open or done.
    Before(StoredAct),
    /// It could not be done as things are now, for this reason. Nothing was kept.
    NotPossible(String),
}

/// The answer to an approval or a refusal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ended {
    /// It ended by this call, as its end says.
    Now(StoredAct),
    /// It had ended before, as its end says. This call did nothing.
    Before(StoredAct),
    /// Nobody approved it in time. Nothing was done.
    Expired(StoredAct),
    /// Who proposed it cannot approve it.
    SameOperator(StoredAct),
    /// There is no such act.
    Unknown,
}
