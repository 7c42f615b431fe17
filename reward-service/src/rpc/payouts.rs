//! The gRPC service `windfall.v1.Payouts`.

use super::archive::{after_of, next_after};
use super::page::page_of;
use super::status;
use crate::acknowledge::PaidOut;
use crate::handle::RewardHandle;
use tonic::{Request, Response, Status};
use windfall_contract::accounts::Withdrawal;
use windfall_edge::Call;
use windfall_ledger::StoredWithdrawal;
use windfall_proto::order::{check_text, check_trade_no};
use windfall_proto::v1;
use windfall_proto::v1::{PayoutResult, payouts_server};

/// The longest reason of a refusal.
const REASON_MAX_BYTES: usize = 200;

/// Withdrawals that a front end pays out elsewhere. Role: pay_out.
#[derive(Clone)]
pub struct PayoutsService {
    rewards: RewardHandle,
}

impl PayoutsService {
    /// Makes the service on this reward service.
    pub const fn new(rewards: RewardHandle) -> Self {
        Self { rewards }
    }
}

#[tonic::async_trait]
impl payouts_server::Payouts for PayoutsService {
    async fn list_to_pay_out(
        &self,
        request: Request<v1::ListToPayOutRequest>,
    ) -> Result<Response<v1::ListToPayOutReply>, Status> {
        Call::of(&request)?;
        let v1::ListToPayOutRequest { older_than_ms, after, page_size } = request.into_inner();
        let (page, after) = (page_of(page_size)?, after_of(&after)?);
        let found = self.rewards.to_pay_out(older_than_ms, &after, page).await;
        let found = found.map_err(status::of_accounts)?;
        let is_full = u32::try_from(found.len()).unwrap_or(u32::MAX) >= page;
        let last = found.last().filter(|_| is_full).map(|one| next_after(&one.key));
        let payouts = found.into_iter().map(to_make).collect();
        Ok(Response::new(v1::ListToPayOutReply { payouts, next_after: last.unwrap_or_default() }))
    }

    async fn acknowledge_payout(
        &self,
        request: Request<v1::AcknowledgePayoutRequest>,
    ) -> Result<Response<v1::AcknowledgePayoutReply>, Status> {
        let by = Call::of(&request)?.caller.name.clone();
        let request = request.into_inner();
        let result = result_of(&request)?;
        let v1::AcknowledgePayoutRequest { user_id, withdrawal_id, .. } = request;
        check_trade_no(&withdrawal_id)
            .map_err(|why| Status::invalid_argument(format!("withdrawal_id {why}")))?;
        let refused = matches!(result, PaidOut::Refused(_));
        let noted = self.rewards.acknowledge(user_id, &withdrawal_id, result).await;
        let is_new = noted.map_err(status::of_acknowledgement)?;
        tracing::info!(user_id, withdrawal_id, refused, is_new, %by, "a payout was acknowledged");
        Ok(Response::new(v1::AcknowledgePayoutReply { is_new }))
    }
}

fn to_make(one: StoredWithdrawal) -> v1::PayoutToMake {
    let StoredWithdrawal { withdrawal, payer_key, created_ms, .. } = one;
    let Withdrawal { id, user_id, bonus_type, amount } = withdrawal;
    v1::PayoutToMake { user_id, withdrawal_id: id, bonus_type, amount, payout_key: payer_key, created_ms }
}

/// The result that is said. A value that a newer client knows and this service does not is none: nothing is guessed.
fn result_of(request: &v1::AcknowledgePayoutRequest) -> Result<PaidOut, Status> {
    match (request.result(), request.reason.as_str()) {
        (PayoutResult::Unspecified, _) => {
            Err(Status::invalid_argument("result: it is missing, or this service does not know it"))
        }
        (PayoutResult::Paid, "") => Ok(PaidOut::Paid),
        (PayoutResult::Paid, _) => Err(Status::invalid_argument("reason: what was paid has none")),
        (PayoutResult::Refused, "") => Err(Status::invalid_argument("reason must not be empty")),
        (PayoutResult::Refused, reason) => {
            check_text(reason, REASON_MAX_BYTES)
                .map_err(|why| Status::invalid_argument(format!("reason {why}")))?;
            Ok(PaidOut::Refused(reason.to_owned()))
        }
    }
}
