//! The conversion of errors and answers to their form on the wire, all in this one place.

use crate::acknowledge::AcknowledgeError;
use crate::acts::ActError;
use crate::async_grant::{AsyncGrantReply, ReleaseError};
use crate::handle::CallError;
use crate::replay::ReplayError;
use tonic::{Code, Status};
use windfall_contract::accounts::AccountsError;
use windfall_contract::rewards::GrantReply;
use windfall_edge::retry_later;
use windfall_ledger::LedgerError;
use windfall_proto::v1;

/// The retry hint where no better one is known.
const RETRY_MS: u64 = 50;

/// The same where another page of a correction is carried out.
const BUSY_MS: u64 = 300;

/// The status of a failed call. The database's message goes to the log, not to the caller.
pub(super) fn of_call(error: &CallError) -> Status {
    match error {
        CallError::Busy => {
            retry_later(Code::ResourceExhausted, "too many calls wait for the ledger; try again", RETRY_MS)
        }
        CallError::Closed => {
            retry_later(Code::Unavailable, "the reward service is closing; try again", RETRY_MS)
        }
        CallError::Ledger(error) => of_ledger(error),
    }
}

fn of_ledger(error: &LedgerError) -> Status {
    match error {
        LedgerError::Invalid(what) => Status::invalid_argument(what),
        LedgerError::NotMigrated(what) => Status::failed_precondition(what),
        LedgerError::Damaged(_) | LedgerError::Poisoned | LedgerError::Sql(_) => {
            tracing::error!(%error, "a call to the ledger failed");
            Status::internal("the ledger failed; its log says why")
        }
        LedgerError::Busy
        | LedgerError::Contended(_)
        | LedgerError::Unavailable(_)
        | LedgerError::Unknown(_)
        | LedgerError::Full
        | LedgerError::ReadOnly => {
            tracing::warn!(%error, "a call to the ledger was not answered");
            retry_later(Code::Unavailable, "the ledger cannot answer; try again", RETRY_MS)
        }
    }
}

pub(super) fn of_replay(error: &ReplayError) -> Status {
    match error {
        ReplayError::NotFound(id) => no_entry(*id),
        ReplayError::NoActor => Status::invalid_argument("a replay needs the name of who asks for it"),
        ReplayError::NoReason => Status::invalid_argument("a replay despite the signature needs its reason"),
        ReplayError::Call(error) => of_call(error),
        // Without the hint that goes with what was not done at all.
        ReplayError::NotRecorded { error, .. } => {
            tracing::warn!(%error, "a replay was done and is not recorded");
            Status::unavailable(
                "the entry was replayed, and its outcome could not be recorded; replay it again",
            )
        }
    }
}

pub(super) fn of_accounts(error: AccountsError) -> Status {
    match error {
        AccountsError::Invalid(what) => Status::invalid_argument(what),
        AccountsError::Unavailable { what, after_ms } => {
            tracing::warn!(what, "a call about payouts was not answered");
            retry_later(
                Code::Unavailable,
                "the ledger cannot answer, or payouts are stopped; ask again",
                after_ms,
            )
        }
    }
}

pub(super) fn of_acknowledgement(error: AcknowledgeError) -> Status {
    match error {
        AcknowledgeError::Unknown => Status::not_found(error.to_string()),
        AcknowledgeError::OtherPayer(_) => Status::failed_precondition(error.to_string()),
        AcknowledgeError::Otherwise { .. } => Status::already_exists(error.to_string()),
        // Without the hint that goes with what was not done at all.
        AcknowledgeError::Accounts(AccountsError::Unavailable { what, .. }) => {
            tracing::warn!(what, "an acknowledgement was not answered");
            Status::unavailable(
                "nobody knows whether it is noted, or payouts are stopped; say the same again",
            )
        }
        AcknowledgeError::Accounts(AccountsError::Invalid(what)) => Status::invalid_argument(what),
    }
}

pub(super) fn of_act(error: &ActError) -> Status {
    match error {
        ActError::NotPossible(why) => Status::failed_precondition(why),
        ActError::Unknown(id) => Status::not_found(format!("there is no act {id}")),
        ActError::Busy(_) => retry_later(Code::Unavailable, error.to_string(), BUSY_MS),
        ActError::NotToCarryOut(..) => Status::failed_precondition(error.to_string()),
        ActError::TooMuch { .. } => Status::out_of_range(error.to_string()),
        ActError::Expired(id) => {
            Status::failed_precondition(format!("act {id} has expired: nobody approved it in time"))
        }
        ActError::SameOperator(id) => Status::permission_denied(format!(
            "act {id} was proposed with this key: another operator has to approve it"
        )),
        ActError::Call(error) => of_call(error),
    }
}

pub(super) fn of_release(error: &ReleaseError) -> Status {
    match error {
        ReleaseError::NotReserved(trade_no) => Status::not_found(format!("order {trade_no} is not reserved")),
        ReleaseError::Ambiguous { .. } | ReleaseError::WaitsForPayer { .. } => {
            Status::failed_precondition(error.to_string())
        }
        ReleaseError::NoActor => Status::invalid_argument("a release needs the name of who asks for it"),
        ReleaseError::Call(error) => of_call(error),
    }
}

pub(super) fn no_entry(id: i64) -> Status {
    Status::not_found(format!("the archive has no entry {id}"))
}

pub(super) fn later(later: &AsyncGrantReply) -> v1::GrantReply {
    match later {
        AsyncGrantReply::Accepted => {
            v1::GrantReply { outcome: v1::GrantOutcome::Accepted.into(), ..Default::default() }
        }
        AsyncGrantReply::Reply(decided) => reply(decided),
    }
}

pub(super) fn reply(reply: &GrantReply) -> v1::GrantReply {
    let of = |outcome: v1::GrantOutcome, reason: String, retry_after_ms| v1::GrantReply {
        outcome: outcome.into(),
        reason,
        retry_after_ms,
    };
    match reply {
        GrantReply::Credited => of(v1::GrantOutcome::Credited, String::new(), 0),
        GrantReply::AlreadyCredited => of(v1::GrantOutcome::AlreadyCredited, String::new(), 0),
        GrantReply::Conflict => of(v1::GrantOutcome::Conflict, "conflict".into(), 0),
        GrantReply::Rejected(rejection) => of(v1::GrantOutcome::Rejected, rejection.to_string(), 0),
        GrantReply::Retry { after_ms, reason } => of(v1::GrantOutcome::Retry, reason.to_string(), *after_ms),
    }
}
