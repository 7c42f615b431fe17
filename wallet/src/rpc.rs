//! The gRPC service `windfall.v1.Wallet` over a [`Wallet`].

use crate::look::{Balance, Line, LineKind, LookError};
use crate::options::{FLOW_DEFAULT, FLOW_MAX};
use crate::wallet::{User, Wallet};
use crate::withdraw::{Receipt, WithdrawError};
use async_trait::async_trait;
use tonic::{Code, Request, Response, Status};
use windfall_contract::accounts::{AccountsError, Withdrawal, WithdrawalOutcome};
use windfall_edge::{Call, refused_for, retry_later};
use windfall_proto::v1::{
    FlowKind, FlowLine, GetWalletReply, GetWalletRequest, WalletBalance, WithdrawOutcome, WithdrawReply,
    WithdrawRequest, wallet_server,
};

/// The reason of a FAILED_PRECONDITION that is not about the balance. Clients compare it.
const USER_FROZEN: &str = "user_frozen";

/// The service. Mount it as `WalletServer::new(WalletService::new(wallet))`.
#[derive(Debug, Clone)]
pub struct WalletService {
    wallet: Wallet,
}

impl WalletService {
    /// The service over this wallet.
    pub const fn new(wallet: Wallet) -> Self {
        Self { wallet }
    }
}

#[async_trait]
impl wallet_server::Wallet for WalletService {
    async fn get_wallet(
        &self,
        request: Request<GetWalletRequest>,
    ) -> Result<Response<GetWalletReply>, Status> {
        let call = Call::of(&request)?;
        let user = User { tenant: &call.caller.tenant, user_id: call.user()? };
        let GetWalletRequest { tokens, flow_limit, flow_after } = request.get_ref();
        let flow_limit = match usize::try_from(*flow_limit) {
            Ok(0) => FLOW_DEFAULT,
            Ok(limit) => limit,
            Err(_) => FLOW_MAX + 1,
        };
        let view = self.wallet.look(user, tokens, flow_after, flow_limit).await.map_err(look_status)?;
        Ok(Response::new(GetWalletReply {
            balances: view.balances.into_iter().map(balance).collect(),
            flow: view.flow.into_iter().map(line).collect(),
            tokens_complete: view.tokens_complete,
            flow_next: view.flow_next,
        }))
    }

    async fn withdraw(&self, request: Request<WithdrawRequest>) -> Result<Response<WithdrawReply>, Status> {
        let call = Call::of(&request)?.clone();
        let user_id = call.user()?;
        let WithdrawRequest { withdrawal_id, bonus_type, amount, tokens } = request.into_inner();
        let withdrawal = Withdrawal { id: withdrawal_id, user_id, bonus_type, amount };
        let receipt = self.wallet.withdraw(&call.caller.tenant, &withdrawal, &tokens).await;
        Ok(Response::new(reply(receipt.map_err(withdraw_status)?, amount)?))
    }
}

fn balance(balance: Balance) -> WalletBalance {
    let Balance { bonus_type, credited, pending, total } = balance;
    WalletBalance { bonus_type, credited, pending, total }
}

fn line(line: Line) -> FlowLine {
    let kind = match line.kind {
        LineKind::Credit => FlowKind::Credit,
        LineKind::Pending => FlowKind::Pending,
        LineKind::Withdrawal => FlowKind::Withdrawal,
        LineKind::Return => FlowKind::Return,
        LineKind::Settled => FlowKind::Settled,
        LineKind::TakenBack => FlowKind::TakenBack,
        LineKind::SettledTakenBack => FlowKind::SettledTakenBack,
    };
    FlowLine {
        kind: kind.into(),
        reference: line.reference,
        bonus_type: line.bonus_type,
        amount: line.amount,
        activity: line.activity,
        time_ms: line.time_ms,
    }
}

/// The reply, or the status that stands for it on the wire where nothing was kept.
fn reply(receipt: Receipt, amount: i64) -> Result<WithdrawReply, Status> {
    let (outcome, reason, retry_after_ms) = match receipt.outcome {
        WithdrawalOutcome::Paid => (WithdrawOutcome::Paid, String::new(), 0),
        WithdrawalOutcome::AlreadyPaid => (WithdrawOutcome::AlreadyPaid, String::new(), 0),
        WithdrawalOutcome::ToPayOut => (WithdrawOutcome::ToPayOut, String::new(), 0),
        WithdrawalOutcome::PaidOut => (WithdrawOutcome::PaidOut, String::new(), 0),
        WithdrawalOutcome::Pending { after_ms } => (WithdrawOutcome::Pending, String::new(), after_ms),
        WithdrawalOutcome::Refused(reason) => (WithdrawOutcome::Refused, reason, 0),
        WithdrawalOutcome::Short { balance } => {
            let message = format!("the balance is {balance}, too little for {amount}");
            return Err(Status::failed_precondition(message));
        }
        WithdrawalOutcome::Frozen => {
            let message = "operators have frozen the user's withdrawals; nothing was kept";
            return Err(refused_for(Code::FailedPrecondition, message, USER_FROZEN));
        }
        WithdrawalOutcome::Conflict => {
            let message = "the withdrawal id was used for another user, type or amount";
            return Err(Status::already_exists(message));
        }
    };
    Ok(WithdrawReply {
        outcome: outcome.into(),
        reason,
        retry_after_ms,
        credited_tokens: receipt.credited_tokens,
        balance: receipt.balance,
    })
}

fn look_status(error: LookError) -> Status {
    match error {
        LookError::FlowLimit(_) | LookError::FlowAfter(_) | LookError::Tokens(_) => {
            Status::invalid_argument(error.to_string())
        }
        LookError::Overflow { .. } => {
            tracing::error!(%error, "a wallet cannot be summed");
            Status::out_of_range(error.to_string())
        }
        LookError::Ledger(AccountsError::Invalid(what)) => Status::invalid_argument(what),
        LookError::Ledger(AccountsError::Unavailable { what, after_ms }) => {
            // What exactly happened is for operators.
            tracing::warn!(what, "the ledger was asked in vain");
            retry_later(Code::Unavailable, "the ledger cannot answer; ask again", after_ms)
        }
    }
}

fn withdraw_status(error: WithdrawError) -> Status {
    match &error {
        WithdrawError::Invalid { .. } | WithdrawError::Tokens(_) | WithdrawError::Refused(_) => {
            Status::invalid_argument(error.to_string())
        }
        WithdrawError::Unanswered { what, after_ms } => {
            tracing::warn!(what, "a withdrawal has no answer yet");
            let message = "the withdrawal has no answer yet; ask again with the same id";
            retry_later(Code::Unavailable, message, *after_ms)
        }
    }
}
