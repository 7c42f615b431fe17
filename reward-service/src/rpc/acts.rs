//! The gRPC service `windfall.v1.Acts`.

use super::{page, status};
use crate::handle::RewardHandle;
use tonic::{Request, Response, Status};
use windfall_edge::{Call, Caller};
use windfall_ledger::{ActOutcome, Correction, Deed, Operator, Selection, StoredAct};
use windfall_proto::order::{AMOUNT_MAX, check_text, check_trade_no};
use windfall_proto::v1;
use windfall_proto::v1::act_deed::Deed as Wire;
use windfall_proto::v1::acts_server;

/// How long an act can be approved, in seconds.
const VALID_DEFAULT_S: u32 = 604_800;
const VALID_MIN_S: u32 = 60;
const VALID_MAX_S: u32 = 2_592_000;
const TEXT_MAX_BYTES: usize = 1_000;
/// The longest name of an activity, a scene or a bonus type that is looked for.
const NAME_MAX_BYTES: usize = 128;
/// The longest place from which a survey or a correction goes on: the key of an order.
const PLACE_MAX_BYTES: usize = 512;

/// Acts of two operators.
#[derive(Clone)]
pub struct ActsService {
    rewards: RewardHandle,
}

impl ActsService {
    /// Makes the service on this reward service.
    pub const fn new(rewards: RewardHandle) -> Self {
        Self { rewards }
    }

    fn act(&self, act: &StoredAct, about: String) -> v1::Act {
        let now_ms = self.rewards.acts_now_ms();
        let proposal = &act.proposal;
        let status = match act.end.as_ref().map(|end| end.outcome) {
            None if act.is_expired(now_ms) => v1::ActStatus::Expired,
            None => v1::ActStatus::Open,
            Some(ActOutcome::Done) => v1::ActStatus::Done,
            Some(ActOutcome::NotDone) => v1::ActStatus::NotDone,
            Some(ActOutcome::Refused) => v1::ActStatus::Refused,
        };
        let end = act.end.as_ref();
        v1::Act {
            id: act.id,
            status: status.into(),
            deed: Some(v1::ActDeed { deed: Some(to_wire(&proposal.deed)) }),
            reason: proposal.reason.clone(),
            evidence: proposal.evidence.clone(),
            proposed_by: who(&proposal.operator),
            proposed_ms: proposal.time_ms,
            expires_ms: proposal.expires_ms,
            ended_by: end.map(|end| who(&end.operator)).unwrap_or_default(),
            ended_ms: end.map_or(0, |end| end.time_ms),
            detail: end.map(|end| end.detail.clone()).unwrap_or_default(),
            amount: end.map_or(0, |end| end.amount),
            about,
            part_of: act.parent,
        }
    }
}

fn who(operator: &Operator) -> String {
    let Operator { name, actor } = operator;
    if actor.is_empty() { name.clone() } else { format!("{name}: {actor}") }
}

/// The operator of a call. The name comes from the edge, so nobody acts in another's name.
fn operator(caller: &Caller, actor: String) -> Result<Operator, Status> {
    Caller::check_actor(&actor)?;
    Ok(Operator { name: caller.name.to_string(), actor })
}

fn to_wire(deed: &Deed) -> Wire {
    match deed.clone() {
        Deed::SettleOrder { activity, trade_no, paid } => {
            Wire::SettleOrder(v1::SettleOrder { activity, trade_no, paid })
        }
        Deed::SettleWithdrawal { user_id, withdrawal, paid } => {
            Wire::SettleWithdrawal(v1::SettleWithdrawal { user_id, withdrawal_id: withdrawal, paid })
        }
        Deed::Release { activity, trade_no } => Wire::ReleaseOrder(v1::ReleaseOrder { activity, trade_no }),
        Deed::Reverse { activity, trade_no, take_what_is_there, keep } => {
            Wire::ReverseOrder(v1::ReverseOrder { activity, trade_no, take_what_is_there, keep })
        }
        Deed::Correct(Correction { selection, keep, take_what_is_there, max_orders, max_taken }) => {
            let Selection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } = selection;
            let orders =
                v1::OrderSelection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount };
            Wire::CorrectOrders(v1::CorrectOrders {
                orders: Some(orders),
                keep,
                take_what_is_there,
                max_orders,
                max_taken,
            })
        }
        Deed::Adjust { user_id, activity, scene, bonus_type, amount, to_user } => {
            Wire::AdjustAccount(v1::AdjustAccount { user_id, activity, scene, bonus_type, amount, to_user })
        }
        Deed::Freeze { user_id } => Wire::FreezeUser(v1::FreezeUser { user_id }),
        Deed::Thaw { user_id } => Wire::ThawUser(v1::ThawUser { user_id }),
    }
}

/// The orders of a correction, with their names checked. Whether there can be such orders is the ledger's to say.
fn selection(orders: Option<v1::OrderSelection>) -> Result<Selection, Status> {
    let v1::OrderSelection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount } =
        orders.ok_or_else(|| Status::invalid_argument("orders: it is missing"))?;
    for (field, text) in [("activity", &activity), ("scene", &scene), ("bonus_type", &bonus_type)] {
        check_text(text, NAME_MAX_BYTES).map_err(|why| Status::invalid_argument(format!("{field} {why}")))?;
    }
    let min_amount = if min_amount == 0 { 1 } else { min_amount };
    let max_amount = if max_amount == 0 { AMOUNT_MAX } else { max_amount };
    Ok(Selection { activity, scene, bonus_type, from_ms, to_ms, min_amount, max_amount })
}

/// The place from which a survey or a correction goes on.
fn place(after: &str) -> Result<(), Status> {
    check_text(after, PLACE_MAX_BYTES)
        .map(drop)
        .map_err(|why| Status::invalid_argument(format!("after {why}")))
}

/// The deed that is asked for, with its texts checked. An act that a newer client knows and this service does not reads as none.
fn of_wire(deed: Option<v1::ActDeed>) -> Result<Deed, Status> {
    let deed = deed
        .and_then(|deed| deed.deed)
        .ok_or_else(|| Status::invalid_argument("deed: it is missing, or this service does not know it"))?;
    let number = |field: &str, text: &str| {
        let checked = check_trade_no(text).map(drop);
        checked.map_err(|why| Status::invalid_argument(format!("{field} {why}")))
    };
    let name = |field: &str, text: &str| {
        let checked = check_text(text, NAME_MAX_BYTES).map(drop);
        checked.map_err(|why| Status::invalid_argument(format!("{field} {why}")))
    };
    Ok(match deed {
        Wire::SettleOrder(v1::SettleOrder { activity, trade_no, paid }) => {
            number("trade_no", &trade_no)?;
            name("activity", &activity)?;
            Deed::SettleOrder { activity, trade_no, paid }
        }
        Wire::SettleWithdrawal(v1::SettleWithdrawal { user_id, withdrawal_id, paid }) => {
            number("withdrawal_id", &withdrawal_id)?;
            Deed::SettleWithdrawal { user_id, withdrawal: withdrawal_id, paid }
        }
        Wire::ReleaseOrder(v1::ReleaseOrder { activity, trade_no }) => {
            number("trade_no", &trade_no)?;
            name("activity", &activity)?;
            Deed::Release { activity, trade_no }
        }
        Wire::ReverseOrder(v1::ReverseOrder { activity, trade_no, take_what_is_there, keep }) => {
            number("trade_no", &trade_no)?;
            name("activity", &activity)?;
            Deed::Reverse { activity, trade_no, take_what_is_there, keep }
        }
        Wire::CorrectOrders(v1::CorrectOrders {
            orders,
            keep,
            take_what_is_there,
            max_orders,
            max_taken,
        }) => {
            let selection = selection(orders)?;
            Deed::Correct(Correction { selection, keep, take_what_is_there, max_orders, max_taken })
        }
        Wire::AdjustAccount(v1::AdjustAccount { user_id, activity, scene, bonus_type, amount, to_user }) => {
            for (field, text) in [("activity", &activity), ("scene", &scene), ("bonus_type", &bonus_type)] {
                name(field, text)?;
            }
            Deed::Adjust { user_id, activity, scene, bonus_type, amount, to_user }
        }
        Wire::FreezeUser(v1::FreezeUser { user_id }) => Deed::Freeze { user_id },
        Wire::ThawUser(v1::ThawUser { user_id }) => Deed::Thaw { user_id },
    })
}

#[tonic::async_trait]
impl acts_server::Acts for ActsService {
    async fn propose_act(
        &self,
        request: Request<v1::ProposeActRequest>,
    ) -> Result<Response<v1::ProposeActReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::ProposeActRequest { deed, reason, evidence, actor, valid_s } = request.into_inner();
        let deed = of_wire(deed)?;
        for (field, text) in [("reason", &reason), ("evidence", &evidence)] {
            check_text(text, TEXT_MAX_BYTES)
                .map_err(|why| Status::invalid_argument(format!("{field} {why}")))?;
        }
        let valid_s = if valid_s == 0 { VALID_DEFAULT_S } else { valid_s };
        if !(VALID_MIN_S..=VALID_MAX_S).contains(&valid_s) {
            return Err(Status::invalid_argument(format!(
                "valid_s is {valid_s}; it must be {VALID_MIN_S} to {VALID_MAX_S}"
            )));
        }
        let by = operator(&caller, actor)?;
        let done = self.rewards.propose_act(deed, (reason, evidence), by, i64::from(valid_s) * 1_000).await;
        let done = done.map_err(|error| status::of_act(&error))?;
        let (act, about) = self.rewards.act(done.act.id).await.map_err(|error| status::of_act(&error))?;
        Ok(Response::new(v1::ProposeActReply { act: Some(self.act(&act, about)), is_repeat: done.is_repeat }))
    }

    async fn list_acts(
        &self,
        request: Request<v1::ListActsRequest>,
    ) -> Result<Response<v1::ListActsReply>, Status> {
        Call::of(&request)?;
        let v1::ListActsRequest { open, after, page_size, part_of } = request.into_inner();
        let page = page::page_of(page_size)?;
        let found =
            self.rewards.acts(part_of, open, after, page).await.map_err(|error| status::of_call(&error))?;
        let is_full = u32::try_from(found.len()).unwrap_or(u32::MAX) >= page;
        let next_after = found.last().filter(|_| is_full).map_or(0, |act| act.id);
        let acts = found.iter().map(|act| self.act(act, String::new())).collect();
        Ok(Response::new(v1::ListActsReply { acts, next_after }))
    }

    async fn get_act(
        &self,
        request: Request<v1::GetActRequest>,
    ) -> Result<Response<v1::GetActReply>, Status> {
        Call::of(&request)?;
        let found = self.rewards.act(request.into_inner().id).await;
        let (act, about) = found.map_err(|error| status::of_act(&error))?;
        Ok(Response::new(v1::GetActReply { act: Some(self.act(&act, about)) }))
    }

    async fn approve_act(
        &self,
        request: Request<v1::ApproveActRequest>,
    ) -> Result<Response<v1::ApproveActReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::ApproveActRequest { id, actor } = request.into_inner();
        let by = operator(&caller, actor)?;
        let done = self.rewards.approve_act(id, by).await.map_err(|error| status::of_act(&error))?;
        let act = Some(self.act(&done.act, String::new()));
        Ok(Response::new(v1::ApproveActReply { act, was_ended: done.is_repeat }))
    }

    async fn refuse_act(
        &self,
        request: Request<v1::RefuseActRequest>,
    ) -> Result<Response<v1::RefuseActReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::RefuseActRequest { id, actor, reason } = request.into_inner();
        check_text(&reason, TEXT_MAX_BYTES)
            .map_err(|why| Status::invalid_argument(format!("reason {why}")))?;
        let by = operator(&caller, actor)?;
        let done = self.rewards.refuse_act(id, by, reason).await.map_err(|error| status::of_act(&error))?;
        let act = Some(self.act(&done.act, String::new()));
        Ok(Response::new(v1::RefuseActReply { act, was_ended: done.is_repeat }))
    }
    async fn survey_orders(
        &self,
        request: Request<v1::SurveyOrdersRequest>,
    ) -> Result<Response<v1::SurveyOrdersReply>, Status> {
        Call::of(&request)?;
        let v1::SurveyOrdersRequest { orders, keep, after } = request.into_inner();
        place(&after)?;
        let found = self.rewards.survey(selection(orders)?, keep, after).await;
        let found = found.map_err(|error| status::of_call(&error))?;
        Ok(Response::new(v1::SurveyOrdersReply {
            orders: found.orders,
            amount: found.amount,
            orders_of_payers: found.orders_of_payers,
            short_orders: found.short_orders,
            short_amount: found.short_amount,
            orders_taken_back: found.orders_taken_back,
            orders_reserved: found.orders_reserved,
            next: found.next.unwrap_or_default(),
        }))
    }

    async fn carry_out_act(
        &self,
        request: Request<v1::CarryOutActRequest>,
    ) -> Result<Response<v1::CarryOutActReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::CarryOutActRequest { id, after, actor } = request.into_inner();
        let by = operator(&caller, actor)?;
        place(&after)?;
        let page = self.rewards.carry_out_act(id, after, by).await;
        let page = page.map_err(|error| status::of_act(&error))?;
        Ok(Response::new(v1::CarryOutActReply {
            orders: page.orders,
            taken: page.taken,
            short_orders: page.short_orders,
            short_amount: page.short_amount,
            next: page.next.unwrap_or_default(),
            all_orders: page.all.orders,
            all_taken: page.all.taken,
            all_short_orders: page.all.short_orders,
            all_short_amount: page.all.short_amount,
        }))
    }
}
