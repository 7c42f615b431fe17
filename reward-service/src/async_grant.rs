//! Grants that are taken now and done later: the budget is reserved, the event is on a queue, then the caller is told
//! ([`AsyncGrants`]).
//!
//! In this order, so that each death in between is mended by asking again, or by an operator: reserved and not
//! written, the order is listed by [`RewardHandle::reserved`] until its caller asks again or an operator ends it with
//! [`RewardHandle::release`]; written and not answered, the event is on its way, and a repeat writes it once more at
//! most, which credits nothing twice (I1).

use crate::decode;
use crate::handle::{CallError, RewardHandle};
use crate::job::{Decision, How};
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use windfall_contract::accounts::Reason;
use windfall_contract::rewards::{GrantReply, RetryReason};
use windfall_ledger::{ArchiveEntry, Attempt, Finish, Replay, ReservedOrder};
use windfall_proto::event::EventRef;

/// Where events that are granted later wait.
#[async_trait]
pub trait EventQueue: Send + Sync {
    /// Whether an event can go as things are: a route takes it, its queue is open. Asked before its budget is
    /// reserved, which would otherwise stay so.
    fn check(&self, event: &Bytes) -> Result<(), NotQueued>;

    /// Writes events, as the bytes say: one answer for each event, in order. `strong`: Ok says that a broker has
    /// acknowledged it. Else it says that it is on its way, and may be lost with this process.
    async fn enqueue(&self, events: &[Bytes], strong: bool) -> Vec<Result<(), NotQueued>>;
}

/// An event was not written, or nobody knows.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the event was not written to a queue: {what}")]
pub struct NotQueued {
    /// Why.
    pub what: String,
    /// The least wait.
    pub after_ms: u64,
}

/// Whether a part must answer before a grant goes on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AckMode {
    /// It must.
    #[default]
    Strong,
    /// It goes on without it.
    Weak,
}

/// What a scene asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SceneSteps {
    /// The order store. Strong: the budget is reserved, durably. Weak: where the ledger does not answer in time, the
    /// grant goes on without, and may end rejected for want of budget. Default strong.
    pub store: AckMode,
    /// The queue. Strong: a broker has the event. Weak: it is on its way there; the order store has what it says, and
    /// it is written again if it is lost ([`AsyncGrants::write_again`]). A grant that went on without the order store
    /// always waits for its queue: one of both must hold it. Default strong.
    pub queue: AckMode,
}

/// Options of grants that are done later.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AsyncGrantOptions {
    /// For scenes that `scenes` does not name.
    pub default: SceneSteps,
    /// By activity and scene.
    pub scenes: BTreeMap<(String, String), SceneSteps>,
    /// How long a weak order store is waited for, 1 to 60,000 ms. Default 200.
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
    /// Decided at once, or to be asked again.
    Reply(GrantReply),
}

/// Takes grants that are done later, through a queue and the consumer that empties it.
#[derive(Clone)]
pub struct AsyncGrants {
    rewards: RewardHandle,
    queue: Arc<dyn EventQueue>,
    options: Arc<AsyncGrantOptions>,
}

/// Places of a call's events, by what their scenes ask for.
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
    /// On this reward service and this queue.
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

    /// What its scene asks for. What is no event is decided, and archived, by the ledger.
    fn steps(&self, bonus_type: &str, event: &Bytes) -> SceneSteps {
        let Ok(order) = decode::order(event, Some(bonus_type), 0) else {
            return SceneSteps::default();
        };
        let key = (order.activity.to_owned(), order.scene.to_owned());
        self.options.scenes.get(&key).copied().unwrap_or(self.options.default)
    }

    /// Takes events of one bonus type: one answer for each event, in order. Cancelled, its outcome is unknown: ask again
    /// with the same bytes.
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
        // No answer in time: reserved or not, nobody knows, and either is well.
        let weak = weak.unwrap_or_else(|_| vec![Decision::Ask(String::new()); places.weak.len()]);
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

    /// Writes events. Answers those that were not taken.
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
    /// Nobody is named who asks for it.
    #[error("a release needs the name of who asks for it")]
    NoActor,
    /// The ledger could not be asked.
    #[error(transparent)]
    Call(#[from] CallError),
}

impl RewardHandle {
    /// Reserves orders that are paid later: for their event where the ledger pays them, else for their downstream.
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

    /// Orders that have been reserved for at least so long, by order number, only numbers after `after`; 1 to 10,000
    /// of them. Those that await their event: its caller died, or the event still waits in a queue. Those that await
    /// their payer: a downstream has not decided.
    ///
    /// # Errors
    /// [`CallError`].
    pub async fn reserved(
        &self,
        older_than_ms: u64,
        after: &str,
        limit: u32,
    ) -> Result<Vec<ReservedOrder>, CallError> {
        let age = i64::try_from(older_than_ms).unwrap_or(i64::MAX);
        let before_ms = self.inner.clock.wall_ms().saturating_sub(age);
        let after = after.to_owned();
        self.read(move |reader| reader.reserved(before_ms, &after, limit)).await
    }

    /// Ends a reserved order on behalf of `actor`: its budget is free again, and the archive has an entry, with which
    /// it can be replayed. If its event comes after all, it is rejected and archived as well. One that a downstream
    /// may have paid is asked for again by a replay, and credited then.
    ///
    /// # Errors
    /// [`ReleaseError`].
    pub async fn release(&self, trade_no: &str, actor: &str) -> Result<(), ReleaseError> {
        if actor.trim().is_empty() {
            return Err(ReleaseError::NoActor);
        }
        let (own, who, now_ms) = (trade_no.to_owned(), actor.to_owned(), self.inner.clock.wall_ms());
        let done = self.call(move |ledger| {
            ledger.transact(|tx| {
                let Some(order) = tx.order(&own)? else { return Ok(false) };
                if tx.release(&[(own.as_str(), Reason::Released)], now_ms)?.first() != Some(&Finish::Done) {
                    return Ok(false);
                }
                // All that is known of the event, so that a replay can grant it. In the transaction of the decision:
                // there is never one without the other (I2).
                let mut payload = Vec::new();
                let event = EventRef {
                    trade_no: &order.trade_no,
                    user_id: order.user_id,
                    activity: &order.activity,
                    scene: &order.scene,
                    bonus_type: &order.bonus_type,
                    amount: order.amount,
                    award_time_ms: order.created_ms,
                    first_sent_ms: order.created_ms,
                    ..EventRef::default()
                };
                event.encode([], &mut payload);
                let detail = format!("released by {who}; reserved at {} ms", order.created_ms);
                let reason = crate::decide::rejection(Reason::Released).to_string();
                let entry = ArchiveEntry {
                    trade_no: Some(&own),
                    payload: &payload,
                    reason: reason.as_str().into(),
                    detail: detail.into(),
                    time_ms: now_ms,
                };
                tx.archive(&[entry])?;
                // And the line of the audit: who ended it stands there if it has ended.
                if let Some(id) = tx.archived_as(&payload, &reason)? {
                    let replay = Replay { time_ms: now_ms, actor: who.clone(), outcome: "released".into() };
                    tx.mark_replayed(id, &replay)?;
                }
                Ok(true)
            })
        });
        if done.await? { Ok(()) } else { Err(ReleaseError::NotReserved(trade_no.to_owned())) }
    }
}
