//! The pump: seals packs whose linger is over and hands packs to the fan-out.

use crate::lane::{ClosedPack, Lane};
use crate::sdk::Shared;
use crate::signing::{self, NotSigned};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use windfall_queue_virtual::{PendingRecord, Undelivered};

/// The pause between two looks at the lanes.
const TICK_MS: u64 = 1;
/// The pause between two looks at packs that no queue took.
const SLOW_TICK_MS: u64 = 50;
/// The number of a lane's packs in flight from which on the next one gathers longer: brokers are behind, and few full
/// packs use the spool better than many small ones.
const LANE_PACKS_IN_FLIGHT: usize = 8;
/// The longer time for which such a pack gathers events.
const STRETCHED_LINGER_MS: u64 = 250;

/// The packs that the fan-out gave back. There are never more than the spool has slots.
#[derive(Default)]
pub(crate) struct Returned {
    packs: Mutex<VecDeque<(ClosedPack, Undelivered)>>,
    /// The number of packs that were ever given back.
    pub(crate) count: AtomicU64,
}

impl Returned {
    fn push(&self, pack: ClosedPack, why: Undelivered) {
        self.count.fetch_add(1, Relaxed);
        self.packs.lock().push_back((pack, why));
    }
}

/// Runs until the SDK is closed and all lanes are empty.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut slow_tick_ns = 0;
    // None: what a run before this one has put aside is looked at once more.
    let mut version = None;
    loop {
        // Read first: after `close` has set it, one more pass finds every event that got Ok.
        let closing = shared.closed.load(Relaxed);
        let now_ns = shared.clock.monotonic_ns();
        if now_ns.saturating_sub(slow_tick_ns) >= SLOW_TICK_MS * 1_000_000 {
            slow_tick_ns = now_ns;
            // Read before packs are put aside below: a version that comes in between is seen at the next tick.
            let version_now = Some(shared.plan.load().version);
            if version_now != version {
                version = version_now;
                shared.place_unrouted();
            }
            // One by one: what this thread does not hold survives its panic.
            let count = shared.returned.packs.lock().len();
            for _ in 0..count {
                let Some((pack, why)) = shared.returned.packs.lock().pop_front() else { break };
                if let Some(pack) = shared.take_back(pack, why) {
                    submit(shared, pack);
                }
            }
        }
        for lane in shared.lanes.all() {
            let linger_ns = if closing { 0 } else { linger_ns(shared, &lane) };
            lane.seal_due(now_ns, linger_ns, &shared.ready);
        }
        while let Some(pack) = shared.ready.pop() {
            submit(shared, pack);
        }
        if closing {
            let done = shared.packs_in_flight() == 0 || shared.give_up.load(Relaxed);
            if done {
                return;
            }
        }
        shared.ready.wait(Duration::from_millis(TICK_MS));
    }
}

fn linger_ns(shared: &Shared, lane: &Lane) -> u64 {
    let stretched = lane.packs_in_flight.load(Relaxed) >= LANE_PACKS_IN_FLIGHT;
    let linger_ms = shared.options.linger_ms;
    (if stretched { linger_ms.max(STRETCHED_LINGER_MS) } else { linger_ms }) * 1_000_000
}

/// Hands a pack to the fan-out, signed if this sender has a key. I12: without the key that it should have it stays here.
pub(crate) fn submit(shared: &Arc<Shared>, pack: ClosedPack) {
    let signed = match &shared.signer {
        Some(signer) => signing::sign(signer, pack),
        None => Ok(pack),
    };
    let pack = match signed {
        Ok(pack) => pack,
        Err(refused) => {
            let NotSigned { pack, why } = *refused;
            // One line for all that wait.
            if shared.returned.packs.lock().is_empty() {
                tracing::error!(%why, queue = pack.lane.key.queue_name, "packs wait in the spool for a signing key");
            }
            return shared.returned.push(pack, Undelivered::Full);
        }
    };
    let candidates = [(pack.lane.key.queue, pack.lane.key.side)];
    let record = PackInFlight { pack: Some(pack), returned: Arc::clone(&shared.returned) };
    shared.fanout.submit(&candidates, Box::new(record));
}

/// A pack in flight. Its bytes stay in the spool until a broker has stored it.
struct PackInFlight {
    /// The pack; `None` once its delivery is reported.
    pack: Option<ClosedPack>,
    /// The packs given back. This is not the whole SDK, which holds the fan-out: that must not be dropped on a driver's
    /// thread.
    returned: Arc<Returned>,
}

impl PackInFlight {
    /// Keeps the pack whatever the reason: rules may bring the queue back, and brokers may recover. A closed fan-out
    /// takes nothing more, and the pack's slot waits for the next start. // I2
    fn give_back(&mut self, why: Undelivered) {
        if let Some(pack) = self.pack.take() {
            self.returned.push(pack, why);
        }
    }
}

impl PendingRecord for PackInFlight {
    fn key(&self) -> &[u8] {
        self.pack.as_ref().map_or(&[], |closed| closed.trade_no.as_bytes())
    }

    fn payload(&self) -> &[u8] {
        self.pack.as_ref().map_or(&[], |closed| closed.pack.payload())
    }

    fn is_first(&self) -> bool {
        self.pack.as_ref().is_some_and(|closed| closed.lane.is_first())
    }

    fn delivered(mut self: Box<Self>) {
        let Some(ClosedPack { lane, pack, place, .. }) = self.pack.take() else { return };
        // I2: only now. A pack that dies before this line is sent again, which is harmless (I1).
        pack.free();
        lane.left();
        // After the slot: the next taker of the place finds a free slot.
        drop(place);
    }

    fn undelivered(mut self: Box<Self>, why: Undelivered) {
        self.give_back(why);
    }
}

impl Drop for PackInFlight {
    /// Offers the pack again, like one that found no room, if the thread that held it panicked.
    fn drop(&mut self) {
        self.give_back(Undelivered::Full);
    }
}
