//! Grants that are taken now and done later: the budget is reserved, the event is on a queue, then the caller is told
//! ([`AsyncGrants`]).
//! The steps have this order so that a crash between two of them is mended by a repeated call, or by an operator. An
//! order that is reserved and not written is listed by [`RewardHandle::reserved`] until its caller asks again or an
//! operator ends it with [`RewardHandle::release`]. An event that is written while its caller got no answer is in the
//! queue, and a repeated call writes it once more at most, which credits nothing twice (I1).

use crate::decode::{self, event_of};
use crate::handle::{CallError, RewardHandle};
use crate::job::{Ask, Decision, How};
use crate::mark_check::check_mark;
use crate::payouts::STOPPED;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::accounts::{Reason, Status, StoredOrder};
use windfall_contract::rewards::{GrantReply, RetryReason};
use windfall_ledger::{
    ArchiveEntry, Attempt, Awaits, Finish, LedgerError, OrderId, Replay, ReservedOrder, Tx,
};

/// The queue in which events wait that are granted later.
#[async_trait]
pub trait EventQueue: Send + Sync {
    /// Whether an event can be queued now: a route takes it, and its queue is open. This is asked before its budget is
    /// reserved, since a budget that is reserved in vain stays reserved.
    fn check(&self, event: &Bytes) -> Result<(), NotQueued>;

    /// Writes events, given as bytes: one answer for each event, in order. With `strong`, Ok means that a broker has
    /// acknowledged the event. Otherwise it means that the event is being sent, and may be lost with this process.
    async fn enqueue(&self, events: &[Bytes], strong: bool) -> Vec<Result<(), NotQueued>>;
}

/// An event was not written, or nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the event was not written to a queue: {what}")]
pub struct NotQueued {
    /// Why it was not written.
    pub what: String,
    /// The least wait.
    pub after_ms: u64,
}

/// Whether the order store or the queue must answer before a grant goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AckMode {
    /// The grant waits for its answer.
    #[default]
    Strong,
    /// The grant goes on without its answer.
    Weak,
}

/// The acknowledgements that a scene asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SceneSteps {
    /// The order store. Strong: the budget is reserved durably. Weak: where the ledger does not answer in time, the
    /// grant goes on without a reservation, and may end rejected because the budget is exhausted. Default strong.
    pub store: AckMode,
    /// The queue. Strong: a broker has stored the event. Weak: it is being sent; the order store has its content, and
    /// it is written again if it is lost ([`AsyncGrants::write_again`]). A grant that went on without the order store
    /// always waits for its queue: one of both must hold it. Default strong.
    pub queue: AckMode,
}

/// Options of grants that are done later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsyncGrantOptions {
    /// The acknowledgements for scenes that `scenes` does not name.
    pub default: SceneSteps,
    /// The acknowledgements by activity and scene.
    pub scenes: BTreeMap<(String, String), SceneSteps>,
    /// How long a grant waits for a weak order store, 1 to 60,000 ms. Default 200.
    pub weak_store_ms: u64,
}

impl Default for AsyncGrantOptions {
    fn default() -> Self {
        Self { default: SceneSteps::default(), scenes: BTreeMap::new(), weak_store_ms: 200 }
    }
}

/// The answer to an event that is to be granted later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AsyncGrantReply {
    /// It will be granted: it ends credited, or archived.
    Accepted,
    /// It was decided at once, or the caller must ask again.
    Reply(GrantReply),
}

/// Takes grants that are done later, through a queue and the consumer that empties it.
#[derive(Clone)]
pub struct AsyncGrants {
    rewards: RewardHandle,
    queue: Arc<dyn EventQueue>,
    options: Arc<AsyncGrantOptions>,
}

/// The indices of a call's events, by the acknowledgements that their scenes ask for.
#[derive(Debug, Default)]
struct Places {
    strong: Vec<usize>,
    weak: Vec<usize>,
}

impl Places {
    fn of(&mut self, ack_mode: AckMode) -> &mut Vec<usize> {
        match ack_mode {
            AckMode::Strong => &mut self.strong,
            AckMode::Weak => &mut self.weak,
        }
    }
}

impl AsyncGrants {
    /// Makes it on this reward service and this queue.
    pub fn new(rewards: RewardHandle, queue: Arc<dyn EventQueue>, options: AsyncGrantOptions) -> Self {
        Self { rewards, queue, options: Arc::new(options) }
    }

    /// The reward service.
    pub const fn rewards(&self) -> &RewardHandle {
        &self.rewards
    }

    pub(crate) fn queue(&self) -> &dyn EventQueue {
        &*self.queue
    }

    /// The acknowledgements that an event's scene asks for. Bytes that are no event are decided, and archived, by the
    /// ledger.
    fn steps(&self, bonus_type: &str, event: &Bytes) -> SceneSteps {
        let Ok(order) = decode::order(event, Some(bonus_type), 0) else {
            return SceneSteps::default();
        };
        let key = (order.activity.to_owned(), order.scene.to_owned());
        self.options.scenes.get(&key).copied().unwrap_or(self.options.default)
    }

    /// Takes events of one bonus type: one answer for each event, in order. Cancelled, its outcome is unknown: ask
    /// again with the same bytes.
    pub async fn accept(&self, bonus_type: &str, events: &[Bytes]) -> Vec<AsyncGrantReply> {
        let steps: Vec<SceneSteps> = events.iter().map(|event| self.steps(bonus_type, event)).collect();
        let retry = |failed: &NotQueued| {
            let reason = RetryReason::QueueUnavailable;
            AsyncGrantReply::Reply(GrantReply::Retry { after_ms: failed.after_ms, reason })
        };
        let mut answers = vec![AsyncGrantReply::Accepted; events.len()];
        let mut places = Places::default();
        for (at, steps) in steps.iter().enumerate() {
            match self.queue.check(&events[at]) {
                Ok(()) => places.of(steps.store).push(at),
                Err(failed) => {
                    tracing::info!(%failed, "an event cannot be granted later");
                    answers[at] = retry(&failed);
                }
            }
        }
        let of = |at: &[usize]| at.iter().map(|at| events[*at].clone()).collect::<Vec<Bytes>>();
        let patience = Duration::from_millis(self.options.weak_store_ms.clamp(1, 60_000));
        let (strong, weak) = tokio::join!(
            self.rewards.promise(bonus_type, of(&places.strong)),
            tokio::time::timeout(patience, self.rewards.promise(bonus_type, of(&places.weak)))
        );
        let mut write = Places::default();
        for (at, decision) in places.strong.iter().zip(strong) {
            match decision {
                Decision::Ask(_) => write.of(steps[*at].queue).push(*at),
                Decision::Reply(reply) => answers[*at] = AsyncGrantReply::Reply(reply),
            }
        }
        // There was no answer in time: it may be reserved or not, and both are correct.
        let weak = weak.unwrap_or_else(|_| vec![Decision::Ask(Ask::default()); places.weak.len()]);
        for (at, decision) in places.weak.iter().zip(weak) {
            match decision {
                // Only the queue holds it, for all we know (I2).
                Decision::Ask(_) => write.strong.push(*at),
                Decision::Reply(reply) if !reply.is_final() => write.strong.push(*at),
                Decision::Reply(reply) => answers[*at] = AsyncGrantReply::Reply(reply),
            }
        }
        let (strong, weak) =
            tokio::join!(self.write(events, &write.strong, true), self.write(events, &write.weak, false));
        for (at, failed) in strong.into_iter().chain(weak) {
            answers[at] = retry(&failed);
        }
        answers
    }

    /// Writes events. Returns those that were not taken.
    async fn write(&self, events: &[Bytes], at: &[usize], strong: bool) -> Vec<(usize, NotQueued)> {
        if at.is_empty() {
            return Vec::new();
        }
        let own: Vec<Bytes> = at.iter().map(|at| events[*at].clone()).collect();
        let mut written = self.queue.enqueue(&own, strong).await.into_iter();
        let lost = || Err(NotQueued { what: "no answer".into(), after_ms: 20 });
        at.iter()
            .filter_map(|at| match written.next().unwrap_or_else(lost) {
                Ok(()) => None,
                Err(failed) => {
                    tracing::warn!(%failed, "an event to be granted later stays reserved until it is asked for again");
                    Some((*at, failed))
                }
            })
            .collect()
    }
}

/// An order could not be released.
#[derive(Debug, thiserror::Error)]
pub enum ReleaseError {
    /// There is no such order, or it has ended.
    #[error("order {0} is not reserved")]
    NotReserved(String),
    /// Several activities have an order with this number, and one of those is not meant, whether it is reserved or has ended.
    #[error("several activities have an order {trade_no}: {}; name the one that is meant", activities.join(", "))]
    Ambiguous {
        /// The order number.
        trade_no: String,
        /// The activities.
        activities: Vec<String>,
    },
    /// It waits for its payer, which may have paid it: two operators release it.
    #[error(
        "order {trade_no} waits for its payer {payer:?}, which may have paid it: two operators have to release or settle it"
    )]
    WaitsForPayer {
        /// The order.
        trade_no: String,
        /// Its payer; empty where version 1 of the schema did not store its name.
        payer: String,
    },
    /// The call names no actor.
    #[error("a release needs the name of who asks for it")]
    NoActor,
    /// The ledger could not be asked.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl RewardHandle {
    /// Reserves orders that are paid later: for their event where the ledger pays them, otherwise for their downstream.
    async fn promise(&self, bonus_type: &str, events: Vec<Bytes>) -> Vec<Decision> {
        if events.is_empty() {
            return Vec::new();
        }
        let how = match self.how(bonus_type, Attempt::Normal) {
            How::Credit(attempt) => How::Promise(attempt),
            how => how,
        };
        self.decide(&Arc::from(bonus_type), events, how).await
    }

    /// Orders that have been reserved for at least this long, sorted by their keys: those after the key `after`, 1 to 10,000
    /// of them; `awaits` asks for those that wait for this alone. An order that awaits its event has a caller that died, or an event that still waits in a queue. An
    /// order that awaits its payer has a downstream that has not decided.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn reserved(
        &self,
        awaits: Option<Awaits>,
        older_than_ms: u64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ReservedOrder>, CallError> {
        let age = i64::try_from(older_than_ms).unwrap_or(i64::MAX);
        let before_ms = self.inner.clock.wall_ms().saturating_sub(age);
        let after = after.to_owned();
        self.read(move |reader| reader.reserved(awaits, before_ms, &after, limit)).await
    }

    /// Ends a reserved order on behalf of `actor`: its budget is free again, and the archive has an entry, with which
    /// it can be replayed. If its event comes after all, it is rejected and archived as well. One that waits for a downstream,
    /// which may have paid it, takes two operators: [`RewardHandle::propose_act`]. `activity` may be left out where only one
    /// has an order with this number, whatever became of it.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub async fn release(
        &self,
        activity: Option<&str>,
        trade_no: &str,
        actor: &str,
    ) -> Result<(), ReleaseError> {
        if actor.trim().is_empty() {
            return Err(ReleaseError::NoActor);
        }
        let activity = match activity {
            Some(activity) => activity.to_owned(),
            None => self.activity_of_reserved(trade_no).await?,
        };
        let (own, who, now_ms) = (trade_no.to_owned(), actor.to_owned(), self.inner.clock.wall_ms());
        let guard = self.inner.guard.clone();
        let done = self.call(move |ledger| {
            ledger.transact(|tx| {
                // A downstream may have paid it, and the entry would be gone where the server with everything comes back.
                check_mark(tx, guard.as_deref())?;
                let id = OrderId { activity: &activity, trade_no: &own };
                // Under its lock: a payer that is about to be asked has the order before, or finds it ended.
                let Some((order, awaits)) = tx.lock_order(id)? else { return Ok(Released::NotReserved) };
                // A payer may have paid it, whether its name is stored or not: giving that up takes two operators.
                if order.status == Status::Reserved && awaits != Awaits::Event {
                    return Ok(Released::WaitsForPayer(order.payer));
                }
                if tx.release(&[(id, Reason::Released)], now_ms)?.first() != Some(&Finish::Done) {
                    return Ok(Released::NotReserved);
                }
                let detail = format!("released by {who}; reserved at {} ms", order.created_ms);
                archive_released(tx, &order, &who, detail, now_ms)?;
                Ok(Released::Done)
            })
        });
        match done.await? {
            Released::Done => Ok(()),
            Released::NotReserved => Err(ReleaseError::NotReserved(trade_no.to_owned())),
            Released::WaitsForPayer(payer) => {
                Err(ReleaseError::WaitsForPayer { trade_no: trade_no.to_owned(), payer })
            }
        }
    }

    /// The one activity that has an order with this number, which has to be reserved. Orders that have ended count too: a
    /// release whose answer was lost is asked for again, and must not hit another activity's order.
    async fn activity_of_reserved(&self, trade_no: &str) -> Result<String, ReleaseError> {
        // A ledger that went back in time says nothing about what is reserved.
        if self.payouts_stopped() {
            return Err(CallError::Ledger(LedgerError::Unavailable(STOPPED.into())).into());
        }
        let own = trade_no.to_owned();
        let mut found = self.read(move |reader| reader.orders_of_number(&own)).await?;
        match (found.pop(), found.is_empty()) {
            (Some(order), true) if order.status == Status::Reserved => Ok(order.activity),
            (None, _) | (Some(_), true) => Err(ReleaseError::NotReserved(trade_no.to_owned())),
            (Some(last), false) => {
                found.push(last);
                let activities = found.into_iter().map(|order| order.activity).collect();
                Err(ReleaseError::Ambiguous { trade_no: trade_no.to_owned(), activities })
            }
        }
    }
}

/// What a release came to.
enum Released {
    Done,
    NotReserved,
    WaitsForPayer(String),
}

/// Archives an order that was given up, with all that is known of its event, so that a replay can grant it. In the transaction
/// of the decision: there is never one without the other (I2).
pub(crate) fn archive_released(
    tx: &mut Tx<'_>,
    order: &StoredOrder,
    who: &str,
    detail: String,
    now_ms: i64,
) -> Result<(), LedgerError> {
    let payload = event_of(order);
    let reason = crate::decide::rejection(Reason::Released).to_string();
    let entry = ArchiveEntry {
        trade_no: Some(&order.trade_no),
        payload: &payload,
        reason: reason.as_str().into(),
        detail: detail.into(),
        time_ms: now_ms,
    };
    tx.archive(&[entry])?;
    // The audit's line goes with it: it names the actor if the order has ended.
    if let Some(id) = tx.archived_as(&payload, &reason)? {
        let replay = Replay { time_ms: now_ms, actor: who.to_owned(), outcome: "released".into() };
        tx.mark_replayed(id, &replay)?;
    }
    Ok(())
}
