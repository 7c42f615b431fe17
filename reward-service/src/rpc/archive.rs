//! The gRPC service `windfall.v1.Archive`.

use super::page::page_of;
use super::{ledger_mark, statement, status};
use crate::decide::rejection;
use crate::handle::RewardHandle;
use prost::Message;
use tonic::{Request, Response, Status};
use windfall_contract::accounts::{Status as StoredStatus, StoredOrder, Withdrawal};
use windfall_contract::rewards::Rejection;
use windfall_edge::Call;
use windfall_ledger::{ArchiveFilter, Archived, Awaits, HeldFor, Replay, ReservedOrder, StoredWithdrawal};
use windfall_proto::event::EventRef;
use windfall_proto::order::{check_text, check_trade_no};
use windfall_proto::v1;
use windfall_proto::v1::archive_server;

/// The number of entries that are read at once, with their payloads.
const READ_MAX: u32 = 100;
/// The bytes of a key, which is an order number and its activity, or an id and its user.
const AFTER_MAX_BYTES: usize = 256;
/// Above every activity and every user.
const LAST: char = '\u{7f}';
const REASON_MAX_BYTES: usize = 200;

/// The failure archive, the budgets, orders and withdrawals, and users' statements, for operators. Roles: observe, operate.
#[derive(Clone)]
pub struct ArchiveService {
    rewards: RewardHandle,
}

impl ArchiveService {
    /// Makes the service on this reward service.
    pub const fn new(rewards: RewardHandle) -> Self {
        Self { rewards }
    }

    /// One entry. An entry of another app counts as absent.
    async fn entry(&self, id: i64, tenant: &str) -> Result<Archived, Status> {
        let found = self.rewards.read(move |reader| reader.archived(id)).await;
        found
            .map_err(|error| status::of_call(&error))?
            .filter(|entry| is_visible(entry, tenant))
            .ok_or_else(|| status::no_entry(id))
    }
}

/// Whether an operator of this tenant may see an entry. An event belongs to its app; bytes that are no event, name no
/// app, or were refused because the service does not take their app, may be seen by any operator.
fn is_visible(entry: &Archived, tenant: &str) -> bool {
    entry.reason == Rejection::ForeignApp.to_string()
        || EventRef::parse(&entry.payload)
            .map_or(true, |event| event.app_id.is_empty() || event.app_id == tenant)
}

fn replay(replay: &Replay) -> v1::ArchiveReplay {
    let Replay { time_ms, actor, outcome } = replay;
    v1::ArchiveReplay { actor: actor.clone(), time_ms: *time_ms, outcome: outcome.clone() }
}

fn line(entry: &Archived) -> v1::ArchiveEntry {
    // A whole record reads as no event; nor does what has no order number.
    let event = EventRef::parse(&entry.payload)
        .is_ok_and(|event| !event.trade_no.is_empty())
        .then(|| v1::BonusEvent::decode(entry.payload.as_slice()).ok())
        .flatten();
    v1::ArchiveEntry {
        id: entry.id,
        trade_no: entry.trade_no.clone().unwrap_or_default(),
        reason: entry.reason.clone(),
        detail: entry.detail.clone(),
        time_ms: entry.time_ms,
        payload_bytes: u32::try_from(entry.payload.len()).unwrap_or(u32::MAX),
        event,
        replay: entry.replay.as_ref().map(replay),
    }
}

/// The key that a page begins behind: what `next_after` said, an order number or an id, or empty. A number stands for all
/// of its keys.
pub(super) fn after_of(after: &str) -> Result<String, Status> {
    check_text(after, AFTER_MAX_BYTES).map_err(|why| Status::invalid_argument(format!("after {why}")))?;
    Ok(if after.is_empty() || after.contains(' ') { after.to_owned() } else { format!("{after} {LAST}") })
}

/// What the next page begins behind. A key that is a number alone gets a space: it stands for itself.
pub(super) fn next_after(key: &str) -> String {
    if key.contains(' ') { key.to_owned() } else { format!("{key} ") }
}

fn reserved(one: ReservedOrder) -> v1::ReservedOrder {
    let ReservedOrder { order, awaits } = one;
    v1::ReservedOrder {
        trade_no: order.trade_no,
        user_id: order.user_id,
        activity: order.activity,
        scene: order.scene,
        bonus_type: order.bonus_type,
        amount: order.amount,
        reserved_ms: order.created_ms,
        awaits_event: awaits == Awaits::Event,
        payer: order.payer,
    }
}

fn order(stored: StoredOrder) -> v1::LedgerOrder {
    let (status, reason) = match stored.status {
        StoredStatus::Reserved => (v1::OrderStatus::Reserved, String::new()),
        StoredStatus::Credited => (v1::OrderStatus::Credited, String::new()),
        StoredStatus::Rejected(reason) => (v1::OrderStatus::Rejected, rejection(reason).to_string()),
    };
    v1::LedgerOrder {
        trade_no: stored.trade_no,
        user_id: stored.user_id,
        activity: stored.activity,
        scene: stored.scene,
        bonus_type: stored.bonus_type,
        amount: stored.amount,
        status: status.into(),
        reason,
        payer: stored.payer,
        created_ms: stored.created_ms,
        decided_ms: stored.decided_ms.unwrap_or(0),
    }
}

fn held(one: StoredWithdrawal) -> v1::HeldWithdrawal {
    let StoredWithdrawal { withdrawal, created_ms, payer, .. } = one;
    let Withdrawal { id, user_id, bonus_type, amount } = withdrawal;
    v1::HeldWithdrawal { withdrawal_id: id, user_id, bonus_type, amount, held_ms: created_ms, payer }
}

#[tonic::async_trait]
impl archive_server::Archive for ArchiveService {
    async fn list_archive(
        &self,
        request: Request<v1::ListArchiveRequest>,
    ) -> Result<Response<v1::ListArchiveReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let v1::ListArchiveRequest { reason, trade_no, open, page_size, after } = request.into_inner();
        let page = page_of(page_size)?;
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        let mut filter =
            ArchiveFilter { reason: some(reason), trade_no: some(trade_no), open, after, limit: 0 };
        let (mut entries, mut left) = (Vec::new(), page);
        // In parts, so that the payloads of a page are never all in memory.
        while left > 0 {
            filter.limit = left.min(READ_MAX);
            let part = filter.clone();
            let found = self.rewards.read(move |reader| reader.archive_list(&part)).await;
            let found = found.map_err(|error| status::of_call(&error))?;
            let read = u32::try_from(found.len()).unwrap_or(u32::MAX);
            filter.after = found.last().map_or(filter.after, |entry| entry.id);
            entries.extend(found.iter().filter(|entry| is_visible(entry, &tenant)).map(line));
            left = left.saturating_sub(read);
            if read < filter.limit {
                return Ok(Response::new(v1::ListArchiveReply { entries, next_after: 0 }));
            }
        }
        Ok(Response::new(v1::ListArchiveReply { entries, next_after: filter.after }))
    }

    async fn get_archived(
        &self,
        request: Request<v1::GetArchivedRequest>,
    ) -> Result<Response<v1::GetArchivedReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let id = request.into_inner().id;
        let entry = self.entry(id, &tenant).await?;
        let replays = self.rewards.read(move |reader| reader.replays(id)).await;
        let replays = replays.map_err(|error| status::of_call(&error))?;
        Ok(Response::new(v1::GetArchivedReply {
            entry: Some(line(&entry)),
            payload: entry.payload,
            replays: replays.iter().map(replay).collect(),
        }))
    }

    async fn replay_archived(
        &self,
        request: Request<v1::ReplayArchivedRequest>,
    ) -> Result<Response<v1::ReplayArchivedReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::ReplayArchivedRequest { id, actor, despite_signature: reason } = request.into_inner();
        let actor = caller.acts_as(&actor)?;
        check_text(&reason, REASON_MAX_BYTES)
            .map_err(|why| Status::invalid_argument(format!("despite_signature {why}")))?;
        self.entry(id, &caller.tenant).await?;
        let replayed = if reason.is_empty() {
            self.rewards.replay(id, &actor).await
        } else {
            self.rewards.replay_despite_signature(id, &actor, &reason).await
        };
        let replayed = replayed.map_err(|error| status::of_replay(&error))?;
        Ok(Response::new(v1::ReplayArchivedReply { reply: Some(status::reply(&replayed.reply)) }))
    }

    async fn list_budgets(
        &self,
        request: Request<v1::ListBudgetsRequest>,
    ) -> Result<Response<v1::ListBudgetsReply>, Status> {
        Call::of(&request)?;
        let found = self.rewards.read(|reader| reader.budgets()).await;
        let budgets = found
            .map_err(|error| status::of_call(&error))?
            .into_iter()
            .map(|budget| v1::BudgetLine {
                activity: budget.activity,
                scene: budget.scene,
                bonus_type: budget.bonus_type,
                is_set: budget.total.is_some(),
                total: budget.total.unwrap_or(0),
                used: budget.used,
                reserved: budget.reserved,
            })
            .collect();
        Ok(Response::new(v1::ListBudgetsReply { budgets }))
    }

    async fn list_reserved(
        &self,
        request: Request<v1::ListReservedRequest>,
    ) -> Result<Response<v1::ListReservedReply>, Status> {
        Call::of(&request)?;
        let v1::ListReservedRequest { older_than_ms, after, page_size } = request.into_inner();
        let page = page_of(page_size)?;
        let after = after_of(&after)?;
        let found = self.rewards.reserved(None, older_than_ms, &after, page).await;
        let found = found.map_err(|error| status::of_call(&error))?;
        let is_full = u32::try_from(found.len()).unwrap_or(u32::MAX) >= page;
        let last = found.last().filter(|_| is_full).map(|one| next_after(&one.order.key));
        let orders = found.into_iter().map(reserved).collect();
        Ok(Response::new(v1::ListReservedReply { orders, next_after: last.unwrap_or_default() }))
    }

    async fn release_reserved(
        &self,
        request: Request<v1::ReleaseReservedRequest>,
    ) -> Result<Response<v1::ReleaseReservedReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::ReleaseReservedRequest { trade_no, actor, activity } = request.into_inner();
        check_trade_no(&trade_no).map_err(|why| Status::invalid_argument(format!("trade_no {why}")))?;
        let actor = caller.acts_as(&actor)?;
        let activity = Some(activity.as_str()).filter(|activity| !activity.is_empty());
        let released = self.rewards.release(activity, &trade_no, &actor).await;
        released.map_err(|error| status::of_release(&error))?;
        Ok(Response::new(v1::ReleaseReservedReply {}))
    }

    async fn get_order(
        &self,
        request: Request<v1::GetOrderRequest>,
    ) -> Result<Response<v1::GetOrderReply>, Status> {
        let tenant = std::sync::Arc::clone(&Call::of(&request)?.caller.tenant);
        let v1::GetOrderRequest { trade_no, activity } = request.into_inner();
        check_trade_no(&trade_no).map_err(|why| Status::invalid_argument(format!("trade_no {why}")))?;
        let found = self.rewards.read(move |reader| {
            let filter = ArchiveFilter {
                trade_no: Some(trade_no.clone()),
                limit: READ_MAX,
                ..ArchiveFilter::default()
            };
            Ok((reader.orders_of_number(&trade_no)?, reader.archive_list(&filter)?))
        });
        let (stored, archived) = found.await.map_err(|error| status::of_call(&error))?;
        let of_activity = |name: &str| activity.is_empty() || activity == name;
        // An entry that is no event belongs to no activity.
        let is_asked = |entry: &&Archived| {
            EventRef::parse(&entry.payload).map_or(true, |event| of_activity(event.activity))
        };
        let archived = archived.iter().filter(is_asked);
        let archived = archived.filter(|entry| is_visible(entry, &tenant)).map(line).collect();
        let mut orders = stored.into_iter().filter(|one| of_activity(&one.activity)).map(order);
        let (order, others) = (orders.next(), orders.collect());
        Ok(Response::new(v1::GetOrderReply { order, archived, others }))
    }

    async fn list_held(
        &self,
        request: Request<v1::ListHeldRequest>,
    ) -> Result<Response<v1::ListHeldReply>, Status> {
        Call::of(&request)?;
        let v1::ListHeldRequest { older_than_ms, after, page_size } = request.into_inner();
        let page = page_of(page_size)?;
        let after = after_of(&after)?;
        let found = self.rewards.held(HeldFor::Anybody, older_than_ms, &after, page).await;
        let found = found.map_err(|error| status::of_call(&error))?;
        let is_full = u32::try_from(found.len()).unwrap_or(u32::MAX) >= page;
        let last = found.last().filter(|_| is_full).map(|one| next_after(&one.key));
        let withdrawals = found.into_iter().map(held).collect();
        Ok(Response::new(v1::ListHeldReply { withdrawals, next_after: last.unwrap_or_default() }))
    }

    async fn get_ledger_mark(
        &self,
        request: Request<v1::GetLedgerMarkRequest>,
    ) -> Result<Response<v1::GetLedgerMarkReply>, Status> {
        Call::of(&request)?;
        ledger_mark::get(&self.rewards).map(Response::new)
    }

    async fn accept_ledger(
        &self,
        request: Request<v1::AcceptLedgerRequest>,
    ) -> Result<Response<v1::AcceptLedgerReply>, Status> {
        let caller = Call::of(&request)?.caller.clone();
        let v1::AcceptLedgerRequest { generation, reason, actor, lineage, beat } = request.into_inner();
        let actor = caller.acts_as(&actor)?;
        let shown = (generation, lineage.as_str(), beat);
        ledger_mark::accept(&self.rewards, shown, &reason, &actor).await.map(Response::new)
    }
    async fn get_statement(
        &self,
        request: Request<v1::GetStatementRequest>,
    ) -> Result<Response<v1::GetStatementReply>, Status> {
        Call::of(&request)?;
        statement::get(&self.rewards, request.into_inner()).await.map(Response::new)
    }

    async fn list_withdrawals(
        &self,
        request: Request<v1::ListWithdrawalsRequest>,
    ) -> Result<Response<v1::ListWithdrawalsReply>, Status> {
        Call::of(&request)?;
        statement::withdrawals(&self.rewards, request.into_inner()).await.map(Response::new)
    }
}
