//! Queues the events of asynchronous grants: in a record in the queue of their route, acknowledged by a broker before
//! the caller is told, unless their scene says that the ledger's reservation is enough. And the task that writes those
//! again whose record was lost.

use super::background::{Background, Tasks};
use super::budgets::BudgetsGate;
use super::parts::Brokers;
use super::queues;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use windfall_config::LiveRules;
use windfall_contract::broker::Lag;
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};
use windfall_queue_virtual::{Fanout, PendingRecord, QueueId, Side, Undelivered};
use windfall_reward_service::{Again, AsyncGrants, EventQueue, NotQueued};
use windfall_signing::{QueueTag, SignError, Signer};

/// How long a record is offered to its queue's topics.
const PATIENCE: Duration = Duration::from_secs(3);
/// The lag above which queues count as behind.
const LAG_MAX_RECORDS: u64 = 1_000;
/// The least wait after a record that was not taken.
const RETRY_MS: u64 = 200;
/// The number of events, and of bytes, in a record at most, as in the SDK.
const PACK_EVENTS: usize = 256;
const PACK_BYTES: usize = 64 << 10;

/// Writes events to the queues of the rules in force.
pub struct AsyncGrantQueue {
    fanout: Arc<Fanout>,
    rules: LiveRules,
    budgets: BudgetsGate,
    /// Signs records; `None` where consumers take unsigned ones.
    signer: Option<Signer>,
}

/// The queue that events take, its side, and its name's tag for the signature.
type Way = (QueueId, Side, QueueTag);

/// One record to be: events of one type that take the same way.
struct Pack {
    way: Way,
    bonus_type: String,
    key: Vec<u8>,
    body: Vec<u8>,
    /// The indices of its events in the caller's batch.
    at: Vec<usize>,
}

impl AsyncGrantQueue {
    /// Over these queues; nothing is taken before the budgets are set.
    pub const fn new(
        fanout: Arc<Fanout>,
        rules: LiveRules,
        budgets: BudgetsGate,
        signer: Option<Signer>,
    ) -> Self {
        Self { fanout, rules, budgets, signer }
    }

    /// The record of a pack, signed if there is a signer.
    fn record(&self, pack: &Pack) -> Result<Vec<u8>, NotQueued> {
        let (.., tag) = pack.way;
        let record = pack.record();
        let Some(signer) = &self.signer else { return Ok(record) };
        let refused = |why: SignError| NotQueued { what: why.to_string(), after_ms: RETRY_MS };
        signer.sign_record(&record, tag).map_err(refused)
    }

    fn way(&self, event: &EventRef<'_>) -> Result<Way, NotQueued> {
        let refused = |what: String| NotQueued { what, after_ms: RETRY_MS };
        let rules = self.rules.current();
        let route = rules.route(event.activity, event.scene, event.bonus_type).ok_or_else(|| {
            refused(format!("no route takes {}/{}/{}", event.activity, event.scene, event.bonus_type))
        })?;
        let not_open = || refused(format!("queue {} is not open yet", route.queue));
        let queue = self.fanout.queue(&route.queue).ok_or_else(not_open)?;
        let side = self.fanout.side(queue, event.user_id).ok_or_else(not_open)?;
        Ok((queue, side, QueueTag::of(&route.queue)))
    }

    /// Gathers events into records; those that cannot go are answered at once.
    fn pack(&self, events: &[Bytes], answers: &mut [Result<(), NotQueued>]) -> Vec<Pack> {
        let mut packs: Vec<Pack> = Vec::new();
        for (at, bytes) in events.iter().enumerate() {
            let Ok(event) = EventRef::parse(bytes) else {
                answers[at] = Err(NotQueued { what: "no event".into(), after_ms: RETRY_MS });
                continue;
            };
            let way = match self.way(&event) {
                Ok(way) => way,
                Err(refused) => {
                    answers[at] = Err(refused);
                    continue;
                }
            };
            let fits = |pack: &&mut Pack| {
                pack.way == way
                    && pack.bonus_type == event.bonus_type
                    && pack.at.len() < PACK_EVENTS
                    && pack.body.len() + bytes.len() < PACK_BYTES
            };
            match packs.iter_mut().find(fits) {
                Some(pack) => {
                    record::push_event(&mut pack.body, bytes);
                    pack.at.push(at);
                }
                None => {
                    let mut body = Vec::new();
                    record::push_event(&mut body, bytes);
                    let (bonus_type, key) = (event.bonus_type.to_owned(), event.trade_no.as_bytes().to_vec());
                    packs.push(Pack { way, bonus_type, key, body, at: vec![at] });
                }
            }
        }
        packs
    }
}

#[async_trait]
impl EventQueue for AsyncGrantQueue {
    fn check(&self, event: &Bytes) -> Result<(), NotQueued> {
        if !self.budgets.is_open() {
            let what = "the budgets of the rules are not set yet".into();
            return Err(NotQueued { what, after_ms: RETRY_MS });
        }
        // What is no event is for the ledger to decide, and to archive.
        EventRef::parse(event).map_or(Ok(()), |event| self.way(&event).map(drop))
    }

    async fn enqueue(&self, events: &[Bytes], strong: bool) -> Vec<Result<(), NotQueued>> {
        let mut answers = vec![Ok(()); events.len()];
        let mut written = Vec::new();
        for pack in self.pack(events, &mut answers) {
            let payload = match self.record(&pack) {
                Ok(payload) => payload,
                Err(refused) => {
                    pack.at.iter().for_each(|at| answers[*at] = Err(refused.clone()));
                    continue;
                }
            };
            let (done, stored) = oneshot::channel();
            let (queue, side, _) = pack.way;
            let pending = PendingAsyncGrant { payload, key: pack.key, done };
            self.fanout.submit(&[(queue, side)], Box::new(pending));
            written.push((pack.at, stored));
        }
        if !strong {
            return answers;
        }
        for (at, stored) in written {
            // An acknowledgement that is lost leaves the event written; it is then written twice, and credited once.
            if !stored.await.unwrap_or(false) {
                let failed = NotQueued { what: "no broker took it in time".into(), after_ms: RETRY_MS };
                at.into_iter().for_each(|at| answers[at] = Err(failed.clone()));
            }
        }
        answers
    }
}

/// Writes lost events again. While the queues are behind, an order is old because its event waits there, and a copy of
/// it would only make them longer; so their `lag` is asked for first.
///
/// An order is due in the look that ends the period in which it came of age. The period is the time since the last look
/// that the ledger answered: asking brokers takes time, and a look that was left out must not leave out its orders.
pub fn write_again(
    tasks: &Tasks,
    grants: AsyncGrants,
    again: Again,
    rules: LiveRules,
    brokers: Brokers,
) -> Background {
    // Kept beside the task: one that is started again must not leave out what came of age meanwhile.
    let looked = Arc::new(Mutex::new(Instant::now()));
    tasks.spawn("lost events", move || {
        look_for_lost(grants.clone(), again, rules.clone(), brokers.clone(), Arc::clone(&looked))
    })
}

async fn look_for_lost(
    grants: AsyncGrants,
    again: Again,
    rules: LiveRules,
    brokers: Brokers,
    looked: Arc<Mutex<Instant>>,
) {
    loop {
        tokio::time::sleep(Duration::from_millis(again.every_ms)).await;
        let lag = queues::lag(&rules.current(), &brokers).await;
        // Taken after the brokers' answers, however late they came: ages are judged from here on.
        let began = Instant::now();
        let since = *looked.lock();
        let every_ms = u64::try_from((began - since).as_millis()).unwrap_or(u64::MAX);
        let behind = lag.into_values().flatten().map(Lag::records).sum::<u64>() > LAG_MAX_RECORDS;
        // Queues that never empty must not keep a lost event lost.
        if behind && every_ms < again.after_ms {
            continue;
        }
        let outcome = grants.write_again(Again { every_ms, ..again }).await;
        if outcome.is_ok() {
            *looked.lock() = began;
        }
        match outcome {
            Ok(done) if done.written > 0 || done.failed > 0 => {
                tracing::warn!(?done, "orders are reserved for long; their events are written again");
            }
            Ok(_) => {}
            Err(error) => tracing::warn!(%error, "the ledger did not say which orders are reserved"),
        }
    }
}

impl Pack {
    fn record(&self) -> Vec<u8> {
        let count = u32::try_from(self.at.len()).unwrap_or(u32::MAX);
        let head = Head { bonus_type: &self.bonus_type, attempt: 0, failures: 0, not_before_ms: 0, count };
        let mut bytes = Vec::with_capacity(self.body.len() + 64);
        head.encode(&mut bytes);
        bytes.extend_from_slice(&self.body);
        bytes
    }
}

struct PendingAsyncGrant {
    key: Vec<u8>,
    payload: Vec<u8>,
    done: oneshot::Sender<bool>,
}

impl PendingRecord for PendingAsyncGrant {
    fn key(&self) -> &[u8] {
        &self.key
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }

    fn patience(&self) -> Option<Duration> {
        Some(PATIENCE)
    }

    fn delivered(self: Box<Self>) {
        // The caller may have gone.
        self.done.send(true).ok();
    }

    fn undelivered(self: Box<Self>, _why: Undelivered) {
        self.done.send(false).ok();
    }
}
