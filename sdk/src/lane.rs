//! Lanes: events of one queue, side and type gather into packs there.

use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::time::Duration;
use windfall_proto::record::Head;
use windfall_proto::send::SendError;
use windfall_queue_virtual::{Place, QueueId, Shares, Side};
use windfall_signing::QueueTag;
use windfall_spool::{OpenPack, SealedPack, Spool, Stored};

/// The key of a lane: queue, side and type, which its packs have in common.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct LaneKey {
    pub(crate) queue_name: String,
    pub(crate) queue: QueueId,
    pub(crate) side: Side,
    pub(crate) bonus_type: String,
}

/// The label of a pack in the spool. It tells the next start which queue the pack was meant for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Label<'a> {
    pub(crate) queue: &'a str,
    pub(crate) side: Side,
}

impl<'a> Label<'a> {
    fn encode(self) -> Vec<u8> {
        let side = match self.side {
            Side::Master => "m",
            Side::Backup => "b",
        };
        format!("{side}{}", self.queue).into_bytes()
    }

    /// Reads a label; `None` if it is damaged.
    pub(crate) fn parse(bytes: &'a [u8]) -> Option<Self> {
        let text = std::str::from_utf8(bytes).ok()?;
        if let Some(queue) = text.strip_prefix('m') {
            return Some(Self { queue, side: Side::Master });
        }
        text.strip_prefix('b').map(|queue| Self { queue, side: Side::Backup })
    }
}

/// One lane. It exists as long as the SDK, so that no event is left behind in a lane that the rules dropped.
pub(crate) struct Lane {
    pub(crate) key: LaneKey,
    /// What signatures of its packs say of its queue.
    pub(crate) queue_tag: QueueTag,
    label: Vec<u8>,
    pack_events_max: u32,
    shards: Box<[Mutex<Shard>]>,
    /// Packs that are sealed and not yet freed.
    pub(crate) packs_in_flight: AtomicUsize,
    /// Whether its bonus type has priority 0 (cash).
    is_first: AtomicBool,
}

#[derive(Default)]
struct Shard {
    open: Option<Gathering>,
    /// Packs that gather no more, and whose last events the disk does not have yet (a spool that is synced).
    settling: Vec<Gathering>,
    events: u64,
}

struct Gathering {
    pack: OpenPack,
    place: Place,
    /// The first event's order number: the record's partition key.
    trade_no: Box<str>,
    /// The time before which none of it is to be granted, in Unix milliseconds; 0 for at once.
    not_before_ms: i64,
    opened_ns: u64,
}

/// An event to store.
pub(crate) struct NewEvent<'a> {
    pub(crate) framed: &'a [u8],
    pub(crate) trade_no: &'a str,
    /// Where it is not 0, the event has a pack of its own, whose head says so.
    pub(crate) not_before_ms: i64,
}

/// A pack that gathers no more.
pub(crate) struct ClosedPack {
    pub(crate) lane: Arc<Lane>,
    pub(crate) pack: SealedPack,
    pub(crate) trade_no: Box<str>,
    /// Its slot's place in the share of its queue; `None` for a pack that holds no slot of this spool.
    pub(crate) place: Option<Place>,
    /// The number of the key that it is signed with, for its lane's queue.
    pub(crate) signed_with: Option<u32>,
}

/// The context of an append: the spool, its shares, the queue of ready packs, whether the SDK is closed, and the shard.
pub(crate) struct AppendContext<'a> {
    pub(crate) spool: &'a Spool,
    pub(crate) shares: &'a Arc<Shares>,
    pub(crate) ready: &'a Ready,
    pub(crate) closed: &'a AtomicBool,
    pub(crate) shard: usize,
}

/// The sealed packs that wait for the pump. There are never more than the spool has slots.
#[derive(Default)]
pub(crate) struct Ready {
    packs: Mutex<VecDeque<ClosedPack>>,
    wake: Condvar,
}

impl Ready {
    pub(crate) fn push(&self, pack: ClosedPack) {
        self.packs.lock().push_back(pack);
        self.wake.notify_one();
    }

    pub(crate) fn pop(&self) -> Option<ClosedPack> {
        self.packs.lock().pop_front()
    }

    /// Waits for a pack, at most `wait`.
    pub(crate) fn wait(&self, wait: Duration) {
        let mut packs = self.packs.lock();
        if packs.is_empty() {
            self.wake.wait_for(&mut packs, wait);
        }
    }
}

impl Lane {
    pub(crate) fn new(key: LaneKey, shards: usize, pack_events_max: u32) -> Self {
        let label = Label { queue: &key.queue_name, side: key.side }.encode();
        let queue_tag = QueueTag::of(&key.queue_name);
        let shards = (0..shards.max(1)).map(|_| Mutex::default()).collect();
        let (packs_in_flight, is_first) = (AtomicUsize::new(0), AtomicBool::new(false));
        Self { key, queue_tag, label, pack_events_max, shards, packs_in_flight, is_first }
    }

    /// Whether its bonus type has priority 0 (cash): some of the room is kept for such lanes.
    pub(crate) fn is_first(&self) -> bool {
        self.is_first.load(Relaxed)
    }

    pub(crate) fn set_first(&self, is_first: bool) {
        self.is_first.store(is_first, Relaxed);
    }

    /// Stores a framed event in the open pack; when this returns Ok it survives the process (I2). Packs that are
    /// full go to `context.ready`. The wait for a synced spool holds no lock.
    #[inline]
    pub(crate) fn append(
        self: &Arc<Self>,
        context: &AppendContext<'_>,
        event: &NewEvent<'_>,
        now_ns: impl Fn() -> u64,
    ) -> Result<(), SendError> {
        let own = &self.shards[context.shard % self.shards.len()];
        let stored = self.store(&mut own.lock(), context, event, now_ns)?;
        stored.wait().map_err(|_| {
            own.lock().events -= 1;
            SendError::SpoolFull
        })
    }

    fn store(
        self: &Arc<Self>,
        shard: &mut Shard,
        context: &AppendContext<'_>,
        event: &NewEvent<'_>,
        now_ns: impl Fn() -> u64,
    ) -> Result<Stored, SendError> {
        // Under the lock: once `close` has passed this shard, nothing comes in behind it.
        if context.closed.load(Relaxed) {
            return Err(SendError::Closed);
        }
        if event.not_before_ms > 0 {
            let (gathering, stored) = self.open(context, event, now_ns)?;
            shard.events += 1;
            self.close(shard, gathering, context.ready);
            return Ok(stored);
        }
        let stored = shard.open.as_mut().and_then(|open| open.pack.store(event.framed).ok());
        let stored = match stored {
            Some(stored) => stored,
            None => {
                self.seal(shard, context.ready);
                let (gathering, stored) = self.open(context, event, now_ns)?;
                shard.open = Some(gathering);
                stored
            }
        };
        shard.events += 1;
        if shard.open.as_ref().is_some_and(|open| open.pack.count() >= self.pack_events_max) {
            self.seal(shard, context.ready);
        }
        Ok(stored)
    }

    fn open(
        &self,
        context: &AppendContext<'_>,
        event: &NewEvent<'_>,
        now_ns: impl Fn() -> u64,
    ) -> Result<(Gathering, Stored), SendError> {
        let AppendContext { spool, shares, .. } = context;
        let place = shares.take(self.key.queue, self.is_first()).ok_or_else(|| {
            let queue = || self.key.queue_name.clone();
            if shares.is_full() { SendError::SpoolFull } else { SendError::QueueFull { queue: queue() } }
        })?;
        let mut pack = spool.claim(&self.label).map_err(|_| SendError::SpoolFull)?;
        // Every checked event fits an empty pack, so only a disk that cannot be synced is left.
        let stored = pack.store(event.framed).map_err(|_| SendError::SpoolFull)?;
        let (trade_no, not_before_ms) = (event.trade_no.into(), event.not_before_ms);
        Ok((Gathering { pack, place, trade_no, not_before_ms, opened_ns: now_ns() }, stored))
    }

    /// Seals the open pack of each shard that is `linger_ns` old, and packs that waited for the disk. It does not wait
    /// for the disk itself.
    pub(crate) fn seal_due(self: &Arc<Self>, now_ns: u64, linger_ns: u64, ready: &Ready) {
        for shard in &self.shards {
            let mut shard = shard.lock();
            if shard.open.as_ref().is_some_and(|open| now_ns.saturating_sub(open.opened_ns) >= linger_ns) {
                self.seal(&mut shard, ready);
            }
            for settled in shard.settling.extract_if(.., |waiting| waiting.pack.settle()) {
                self.hand_over(settled, ready);
                self.left();
            }
        }
    }

    /// The number of events that this lane has taken.
    pub(crate) fn events(&self) -> u64 {
        self.shards.iter().map(|shard| shard.lock().events).sum()
    }

    /// Notes that one of its packs has left, to a broker or to another lane.
    pub(crate) fn left(&self) {
        self.packs_in_flight.fetch_sub(1, Relaxed);
    }

    /// Makes a sealed pack from elsewhere (an earlier process, a queue that is gone) one of this lane's.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        pack: SealedPack,
        trade_no: Box<str>,
        mut place: Option<Place>,
    ) -> ClosedPack {
        self.packs_in_flight.fetch_add(1, Relaxed);
        if let Some(place) = &mut place {
            place.move_to(self.key.queue);
        }
        ClosedPack { lane: Arc::clone(self), pack, trade_no, place, signed_with: None }
    }

    fn seal(self: &Arc<Self>, shard: &mut Shard, ready: &Ready) {
        if let Some(open) = shard.open.take() {
            self.close(shard, open, ready);
        }
    }

    fn close(self: &Arc<Self>, shard: &mut Shard, mut open: Gathering, ready: &Ready) {
        if open.pack.settle() {
            self.hand_over(open, ready);
        } else {
            // Counted from here on, so that `close` never misses it.
            self.packs_in_flight.fetch_add(1, Relaxed);
            shard.settling.push(open);
        }
    }

    /// Hands a pack over to the pump, if the disk has taken any event of it.
    fn hand_over(self: &Arc<Self>, settled: Gathering, ready: &Ready) {
        let Gathering { pack, place, trade_no, not_before_ms, .. } = settled;
        if !pack.is_empty() {
            let head = encode_head(&self.key.bonus_type, pack.count(), not_before_ms);
            ready.push(self.adopt(pack.seal(&head), trade_no, Some(place)));
        }
    }
}

/// The head of a record that has just been packed.
pub(crate) fn encode_head(bonus_type: &str, count: u32, not_before_ms: i64) -> Vec<u8> {
    let head = Head { bonus_type, attempt: 0, failures: 0, not_before_ms, count };
    let mut bytes = Vec::with_capacity(head.encoded_len());
    head.encode(&mut bytes);
    bytes
}
