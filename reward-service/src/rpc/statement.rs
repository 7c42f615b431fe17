//! A user's statement and withdrawals over gRPC, and the withdrawals of all users that are held.

use super::page::page_of;
use super::status;
use crate::handle::RewardHandle;
use std::str::FromStr;
use tonic::Status;
use windfall_contract::accounts::{FlowKind, FlowLine, Withdrawal};
use windfall_ledger::{
    HeldByTime, LedgerError, StatementCursor, StatementFrom, StatementLine, StoredWithdrawal,
    WithdrawalStatus,
};
use windfall_proto::order::check_text;
use windfall_proto::v1;

/// The bytes of a cursor: three numbers for each of a user's bonus types.
const CURSOR_MAX_BYTES: usize = 65_536;

fn check_user(user_id: i64) -> Result<(), Status> {
    if user_id < 1 {
        return Err(Status::invalid_argument(format!("user_id is {user_id}; it must be at least 1")));
    }
    Ok(())
}

/// The cursor of a request, where it has one.
fn cursor<T: FromStr<Err = LedgerError>>(after: &str) -> Result<Option<T>, Status> {
    if after.is_empty() {
        return Ok(None);
    }
    let wrong = |why: &dyn std::fmt::Display| Status::invalid_argument(format!("after {why}"));
    check_text(after, CURSOR_MAX_BYTES).map_err(|why| wrong(&why))?;
    after.parse::<T>().map(Some).map_err(|error: LedgerError| wrong(&error))
}

fn text(cursor: Option<&StatementCursor>) -> String {
    cursor.map(ToString::to_string).unwrap_or_default()
}

const fn kind(kind: FlowKind) -> v1::FlowKind {
    match kind {
        FlowKind::Credit => v1::FlowKind::Credit,
        FlowKind::Withdrawal => v1::FlowKind::Withdrawal,
        FlowKind::Return => v1::FlowKind::Return,
        FlowKind::Settled => v1::FlowKind::Settled,
        FlowKind::TakenBack => v1::FlowKind::TakenBack,
        FlowKind::SettledTakenBack => v1::FlowKind::SettledTakenBack,
    }
}

fn line(one: StatementLine) -> v1::StatementLine {
    let StatementLine { line, balance } = one;
    let FlowLine { transfer, kind: of, trade_no, bonus_type, activity, amount, time_ms } = line;
    v1::StatementLine {
        transfer,
        kind: kind(of).into(),
        reference: trade_no,
        bonus_type,
        amount,
        activity,
        time_ms,
        balance,
    }
}

/// A page of a user's statement.
pub(super) async fn get(
    rewards: &RewardHandle,
    request: v1::GetStatementRequest,
) -> Result<v1::GetStatementReply, Status> {
    let v1::GetStatementRequest { user_id, page_size, after, at_ms } = request;
    check_user(user_id)?;
    let page = page_of(page_size)?;
    if at_ms < 0 {
        return Err(Status::invalid_argument(format!("at_ms is {at_ms}; it must not be negative")));
    }
    if !after.is_empty() && at_ms != 0 {
        return Err(Status::invalid_argument("a page begins by one of after and at_ms at most"));
    }
    let cursor: Option<StatementCursor> = cursor(&after)?;
    let found = rewards.walk(move |reader| {
        let from = match &cursor {
            Some(cursor) => StatementFrom::After(cursor),
            None if at_ms != 0 => StatementFrom::At(at_ms),
            None => StatementFrom::Newest,
        };
        reader.statement(user_id, from, page)
    });
    let found = found.await.map_err(|error| status::of_call(&error))?;
    let balance = |(bonus_type, balance)| v1::StatementBalance { bonus_type, balance };
    Ok(v1::GetStatementReply {
        balances: found.balances.into_iter().map(balance).collect(),
        lines: found.lines.into_iter().map(line).collect(),
        next_after: text(found.next.as_ref()),
    })
}

fn withdrawal(one: StoredWithdrawal) -> v1::LedgerWithdrawal {
    let Withdrawal { id, user_id, bonus_type, amount } = one.withdrawal;
    let status = match one.status {
        WithdrawalStatus::Held => v1::WithdrawalStatus::Held,
        WithdrawalStatus::Paid => v1::WithdrawalStatus::Paid,
        WithdrawalStatus::Refused => v1::WithdrawalStatus::Refused,
    };
    v1::LedgerWithdrawal {
        withdrawal_id: id,
        user_id,
        bonus_type,
        amount,
        status: status.into(),
        payer: one.payer,
        reason: one.reason,
        held_ms: one.created_ms,
        decided_ms: one.decided_ms.unwrap_or(0),
    }
}

/// A page of the withdrawals of all users that are held, by time.
async fn held_of_all(
    rewards: &RewardHandle,
    status: Option<WithdrawalStatus>,
    request: &v1::ListWithdrawalsRequest,
) -> Result<v1::ListWithdrawalsReply, Status> {
    if status != Some(WithdrawalStatus::Held) {
        return Err(Status::invalid_argument(
            "without user_id the withdrawals that are held can be listed, and no others: name that status, or a user",
        ));
    }
    let v1::ListWithdrawalsRequest { from_ms, to_ms, .. } = *request;
    if from_ms < 0 || to_ms < 0 || (to_ms != 0 && to_ms <= from_ms) {
        return Err(Status::invalid_argument(format!("from_ms {from_ms} to to_ms {to_ms} is no period")));
    }
    let which = HeldByTime {
        from_ms,
        to_ms: if to_ms == 0 { i64::MAX } else { to_ms },
        newest_first: !request.oldest_first,
        after: cursor(&request.after)?,
        limit: page_of(request.page_size)?,
    };
    let found = rewards.walk(move |reader| reader.held_page(&which)).await;
    let found = found.map_err(|error| status::of_call(&error))?;
    let next_after = found.next.map(|next| next.to_string()).unwrap_or_default();
    let withdrawals = found.withdrawals.into_iter().map(withdrawal).collect();
    Ok(v1::ListWithdrawalsReply { withdrawals, next_after })
}

/// A page of a user's withdrawals, or of those of all users that are held.
pub(super) async fn withdrawals(
    rewards: &RewardHandle,
    request: v1::ListWithdrawalsRequest,
) -> Result<v1::ListWithdrawalsReply, Status> {
    let asked = v1::WithdrawalStatus::try_from(request.status).map_err(|_| {
        Status::invalid_argument(format!("status is {}, which is the number of none", request.status))
    })?;
    let asked = match asked {
        v1::WithdrawalStatus::Unspecified => None,
        v1::WithdrawalStatus::Held => Some(WithdrawalStatus::Held),
        v1::WithdrawalStatus::Paid => Some(WithdrawalStatus::Paid),
        v1::WithdrawalStatus::Refused => Some(WithdrawalStatus::Refused),
    };
    if request.user_id == 0 {
        return held_of_all(rewards, asked, &request).await;
    }
    check_user(request.user_id)?;
    if request.oldest_first || request.from_ms != 0 || request.to_ms != 0 {
        return Err(Status::invalid_argument(
            "oldest_first, from_ms and to_ms are for the list of all users' withdrawals",
        ));
    }
    let page = page_of(request.page_size)?;
    let cursor: Option<StatementCursor> = cursor(&request.after)?;
    let user_id = request.user_id;
    let found = rewards.walk(move |reader| reader.withdrawals_of(user_id, asked, cursor.as_ref(), page));
    let found = found.await.map_err(|error| status::of_call(&error))?;
    let withdrawals = found.withdrawals.into_iter().map(withdrawal).collect();
    Ok(v1::ListWithdrawalsReply { withdrawals, next_after: text(found.next.as_ref()) })
}
