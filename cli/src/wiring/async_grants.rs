//! Queues the events of asynchronous grants: in a record in the queue of their route, acknowledged by a broker before
//! the caller is told, unless their scene says that the ledger's reservation is enough. And the task that writes those
//! again whose record was lost.

use super::background::{Background, Tasks};
use super::budgets::BudgetsReady;
use super::parts::Brokers;
use super::queues;
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::oneshot;
use tokio::time::Instant;
use windfall_config::LiveRules;
use windfall_contract::broker::Lag;
use windfall_contract::rules::Rules;
use windfall_proto::event::EventRef;
use windfall_proto::record::{self, Head};
use windfall_queue_virtual::{Fanout, PendingRecord, QueueId, Side, Undelivered};
use windfall_reward_service::{Again, AsyncGrants, EventQueue, NotQueued};
use windfall_signing::{QueueTag, SignError, Signer};

/// How long a record is offered to its queue's topics.
const PATIENCE: Duration = Duration::from_secs(3);
/// The lag above which a queue counts as behind.
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
    budgets: BudgetsReady,
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
        budgets: BudgetsReady,
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
        if !self.budgets.is_ready() {
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

/// Writes lost events again. While a queue is behind, an order is old because its event waits there, and a copy of it would only
/// make the queue longer; so the `lag` of each queue is asked for first, and what belongs to other queues goes on.
///
/// Where processes do not share the work, an order is due in the look that ends the period in which it came of age. The period
/// is the time since the last look that the ledger answered: asking brokers takes time, and a look that was left out must not
/// leave out its orders.
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
    let mut was_alone = false;
    loop {
        tokio::time::sleep(Duration::from_millis(again.every_ms)).await;
        let in_force = rules.current();
        let lag = queues::lag(&in_force, &brokers).await;
        // Taken after the brokers' answers, however late they came: ages are judged from here on.
        let began = Instant::now();
        let since = *looked.lock();
        let every_ms = u64::try_from((began - since).as_millis()).unwrap_or(u64::MAX);
        let outcome = grants.write_again(Again { every_ms, ..again }, |activity, scene, bonus_type| {
            is_behind(&in_force, &lag, [activity, scene, bonus_type])
        });
        let outcome = outcome.await;
        if outcome.is_ok() {
            *looked.lock() = began;
        }
        match outcome {
            Ok(done) => {
                if done.written > 0 || done.failed > 0 {
                    tracing::warn!(?done, "orders are reserved for long; their events are written again");
                }
                if done.is_alone && !was_alone {
                    tracing::error!(
                        "the tables order_copies and order_copies_listing are missing in the ledger, and its user may not \
                         make or use them: each process writes lost events again by itself. Grant the user CREATE on the \
                         ledger's schema once, or rights to these tables"
                    );
                }
                was_alone = done.is_alone;
            }
            Err(error) => tracing::warn!(%error, "the ledger did not say which orders are reserved"),
        }
    }
}

/// Whether the queue of an activity, a scene and a bonus type is behind. Queues that its events are requeued to are not
/// counted: rules often name each other's, and one that is behind would hold back all.
fn is_behind(rules: &Rules, lag: &BTreeMap<String, Option<Lag>>, key: [&str; 3]) -> bool {
    let [activity, scene, bonus_type] = key;
    let queue = rules.route(activity, scene, bonus_type).and_then(|route| rules.queues.get(&route.queue));
    let Some(queue) = queue else { return false };
    let topics = [&queue.master, &queue.backup];
    let records = topics.into_iter().filter_map(|topic| lag.get(topic).copied().flatten()).map(Lag::records);
    records.sum::<u64>() > LAG_MAX_RECORDS
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test may panic")]

    use super::*;
    use crate::services::dev;

    #[test]
    fn a_queue_that_is_behind_holds_back_its_own_events_alone() {
        let rules = windfall_config::parse_rules(dev::RULES, None).unwrap();
        let queue_of = |bonus_type: &str| rules.route("spring", "rain", bonus_type).unwrap().queue.clone();
        let (cash, coin) = (queue_of("cash"), queue_of("coin"));
        assert_ne!(cash, coin, "the rules have a queue for each");
        let lag_of = |records| Some(Lag { committed: 5, end: 5 + records });
        let lag = |topic: &String, records| BTreeMap::from([(topic.clone(), lag_of(records))]);
        let behind =
            |lag: &BTreeMap<_, _>, bonus_type| is_behind(&rules, lag, ["spring", "rain", bonus_type]);
        let backup = &rules.queues[&cash].backup;
        assert!(behind(&lag(backup, LAG_MAX_RECORDS + 1), "cash"));
        assert!(!behind(&lag(backup, LAG_MAX_RECORDS), "cash"));
        assert!(!behind(&lag(backup, LAG_MAX_RECORDS + 1), "coin"), "of another queue");
        assert!(!behind(&BTreeMap::from([(backup.clone(), None)]), "cash"), "its broker does not say");
    }
}
