//! The counters that are exported as metrics.

use crate::send_to_credit::SendToCredit;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use windfall_contract::declare_metrics;
use windfall_contract::rewards::{GrantReply, Rejection, RetryReason};

declare_metrics! {
    /// Decisions since the start, for one bonus type. They count when they are durable, whether their caller still
    /// waits for them or not.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
    pub struct TypeStats {
        counter "windfall_grants_total" ["answer"]
        "Decisions about grants, by bonus type and answer; they count when they are durable" {
            /// Credited by the call.
            pub credited: u64 as "credited",
            /// Credited before.
            pub already_credited: u64 as "already_credited",
            /// The order number exists with another user, activity, scene, type or amount.
            pub conflict: u64 as "conflict",
            /// Rejected as malformed.
            pub malformed: u64 as "malformed",
            /// Rejected since it is of an app that the service does not take.
            pub foreign_app: u64 as "foreign_app",
            /// Rejected for want of budget.
            pub budget_exhausted: u64 as "budget_exhausted",
            /// Rejected since no budget covers it.
            pub unbudgeted: u64 as "unbudgeted",
            /// Rejected since its amount is above the cap of one order.
            pub over_order_cap: u64 as "over_order_cap",
            /// Rejected since the cap of its type over all activities has no room.
            pub over_type_cap: u64 as "over_type_cap",
            /// Rejected since its activity is closed.
            pub activity_closed: u64 as "activity_closed",
            /// Rejected for any other reason.
            pub rejected: u64 as "rejected",
            /// To be asked again because of a downstream.
            pub retry_downstream: u64 as "retry_downstream",
            /// To be asked again since a downstream has no room, or is left alone for a while.
            pub retry_downstream_busy: u64 as "retry_downstream_busy",
            /// To be asked again since this process runs older rules than the ledger has seen.
            pub retry_old_rules: u64 as "retry_old_rules",
            /// To be asked again because of the service itself.
            pub retry_own: u64 as "retry_own",
        }
        .. {
            /// The times from send to credit of the orders that were credited.
            pub send_to_credit: SendToCredit,
        }
    }
}

impl TypeStats {
    fn count(&mut self, reply: &GrantReply) {
        let counter = match reply {
            GrantReply::Credited => &mut self.credited,
            GrantReply::AlreadyCredited => &mut self.already_credited,
            GrantReply::Conflict | GrantReply::Rejected(Rejection::Conflict) => &mut self.conflict,
            GrantReply::Rejected(Rejection::Malformed) => &mut self.malformed,
            GrantReply::Rejected(Rejection::ForeignApp) => &mut self.foreign_app,
            GrantReply::Rejected(Rejection::BudgetExhausted) => &mut self.budget_exhausted,
            GrantReply::Rejected(Rejection::Unbudgeted) => &mut self.unbudgeted,
            GrantReply::Rejected(Rejection::OverOrderCap) => &mut self.over_order_cap,
            GrantReply::Rejected(Rejection::OverTypeCap) => &mut self.over_type_cap,
            GrantReply::Rejected(Rejection::ActivityClosed) => &mut self.activity_closed,
            GrantReply::Rejected(_) => &mut self.rejected,
            GrantReply::Retry {
                reason: RetryReason::DownstreamRetry | RetryReason::DownstreamTimeout,
                ..
            } => &mut self.retry_downstream,
            GrantReply::Retry { reason: RetryReason::DownstreamBusy, .. } => &mut self.retry_downstream_busy,
            GrantReply::Retry { reason: RetryReason::OldRules, .. } => &mut self.retry_old_rules,
            GrantReply::Retry { .. } => &mut self.retry_own,
        };
        *counter += 1;
    }
}

declare_metrics! {
    /// A snapshot of the counters.
    #[derive(Debug, Clone, PartialEq, Eq, Default)]
    pub struct RewardStats {
        counter "windfall_ledger_commits_total" ["outcome"] "Transactions of the ledger, by outcome" {
            /// Transactions committed.
            pub commits: u64 as "committed",
            /// Transactions that failed; their calls were answered `StoreUnavailable`.
            pub failed_commits: u64 as "failed",
        }
        counter "windfall_archived_events_total" "New entries of the failure archive" {
            /// Entries that are new in the failure archive.
            pub archived: u64,
        }
        counter "windfall_late_answers_total"
        "Answers of payers that contradict what two operators had settled; each is an entry of the archive" {
            /// Answers of payers that contradict what two operators had settled.
            pub late_answers: u64,
        }
        gauge "windfall_ledger_waiting_events" "Events that wait for the ledger's writer" {
            /// Events that wait for the writer.
            pub queued_events: usize,
        }
        gauge "windfall_ledger_rules_version"
        "The newest version of the live rules that the ledger has shown to this process" {
            /// The newest version of the rules that the ledger has shown.
            pub rules_version: u64,
        }
        gauge "windfall_ledger_rules_behind"
        "1 while this process runs older rules than the ledger has seen, and grants nothing" {
            /// Whether it runs older rules than the ledger has seen, and so grants nothing.
            pub is_behind_rules: bool,
        }
        gauge "windfall_ledger_closed" "1 when the ledger's writer has ended: the process must be restarted" {
            /// Whether it takes no calls any more: it was closed, or its writer has panicked and the process must be
            /// restarted.
            pub is_closed: bool,
        }
        .. {
            /// The decisions by bonus type, as the calls named it.
            pub types: BTreeMap<String, TypeStats>,
        }
    }
}

/// The number of types that are counted one by one; those beyond are counted under [`OTHER`], so that invalid names
/// cannot fill memory.
const TYPES_MAX: usize = 256;
/// The name of all types beyond the first 256.
pub const OTHER: &str = "(other)";

#[derive(Debug, Default)]
pub(crate) struct Counters {
    types: Mutex<BTreeMap<String, TypeStats>>,
    pub commits: AtomicU64,
    pub failed_commits: AtomicU64,
    pub archived: AtomicU64,
    pub late_answers: AtomicU64,
}

/// The decisions of this type, or of all types beyond those that are counted one by one.
fn of_type<'t>(types: &'t mut BTreeMap<String, TypeStats>, bonus_type: &str) -> Option<&'t mut TypeStats> {
    let name = if types.contains_key(bonus_type) || types.len() < TYPES_MAX { bonus_type } else { OTHER };
    if !types.contains_key(name) {
        types.insert(name.to_owned(), TypeStats::default());
    }
    types.get_mut(name)
}

impl Counters {
    pub fn count<'r>(&self, bonus_type: &str, replies: impl IntoIterator<Item = &'r GrantReply>) {
        if let Some(stats) = of_type(&mut self.types.lock(), bonus_type) {
            replies.into_iter().for_each(|reply| stats.count(reply));
        }
    }

    /// Counts the times of orders that were credited at `now_ms`, by the moments from which on each counts.
    pub fn count_times(&self, bonus_type: &str, from_ms: &[i64], now_ms: i64) {
        let times = SendToCredit::of(from_ms, now_ms);
        if let Some(stats) = of_type(&mut self.types.lock(), bonus_type) {
            stats.send_to_credit.add(&times);
        }
    }

    pub fn send_to_credit(&self) -> SendToCredit {
        let mut all = SendToCredit::default();
        self.types.lock().values().for_each(|own| all.add(&own.send_to_credit));
        all
    }

    pub fn snapshot(&self, queued_events: usize, is_closed: bool, fence: (u64, bool)) -> RewardStats {
        let (rules_version, is_behind_rules) = fence;
        RewardStats {
            types: self.types.lock().clone(),
            commits: self.commits.load(Ordering::Relaxed),
            failed_commits: self.failed_commits.load(Ordering::Relaxed),
            archived: self.archived.load(Ordering::Relaxed),
            late_answers: self.late_answers.load(Ordering::Relaxed),
            queued_events,
            rules_version,
            is_behind_rules,
            is_closed,
        }
    }
}
