//! The pump: seals packs whose linger is over and hands packs to the fan-out.

use crate::lane::{ClosedPack, Lane};
use crate::sdk::Shared;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use windfall_queue_virtual::{PendingRecord, Undelivered};
use windfall_spool::SealedPack;

/// Between two looks at the lanes.
const TICK_MS: u64 = 1;
/// Between two looks at packs that no queue took.
const SLOW_TICK_MS: u64 = 50;
/// With so many packs of a lane on their way, the next one gathers longer: brokers are behind, and few full
/// packs use the spool better than many small ones.
const LANE_PACKS_IN_FLIGHT: usize = 8;
/// How much longer.
const STRETCHED_LINGER_MS: u64 = 250;

/// Packs that the fan-out gave back. Never more than the spool has slots.
#[derive(Default)]
pub(crate) struct Returned {
    packs: Mutex<Vec<(ClosedPack, Undelivered)>>,
    /// How many ever came.
    pub(crate) count: AtomicU64,
}

/// Runs until the SDK is closed and all lanes are empty.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut slow_tick_ns = 0;
    let mut version = shared.plan.load().version;
    loop {
        // Read first: after `close` has set it, one more pass finds every event that got Ok.
        let closing = shared.closed.load(Relaxed);
        let now_ns = shared.clock.monotonic_ns();
        if now_ns.saturating_sub(slow_tick_ns) >= SLOW_TICK_MS * 1_000_000 {
            slow_tick_ns = now_ns;
            // Read before packs are put aside below: a version that comes in between is seen at the next tick.
            let version_now = shared.plan.load().version;
            if version_now != version {
                version = version_now;
                shared.place_unrouted();
            }
            let returned = std::mem::take(&mut *shared.returned.packs.lock());
            for (pack, why) in returned {
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

/// Hands a pack to the fan-out.
pub(crate) fn submit(shared: &Arc<Shared>, closed: ClosedPack) {
    let ClosedPack { lane, pack, trade_no } = closed;
    let candidates = [(lane.key.queue, lane.key.side)];
    let parcel = PackInFlight { lane, pack, trade_no, returned: Arc::clone(&shared.returned) };
    shared.fanout.submit(&candidates, Box::new(parcel));
}

/// A pack on its way. Its bytes stay in the spool until a broker has it.
struct PackInFlight {
    lane: Arc<Lane>,
    pack: SealedPack,
    trade_no: Box<str>,
    /// Not the whole SDK: that holds the fan-out, whose end must not come on a driver's thread.
    returned: Arc<Returned>,
}

impl PendingRecord for PackInFlight {
    fn key(&self) -> &[u8] {
        self.trade_no.as_bytes()
    }

    fn payload(&self) -> &[u8] {
        self.pack.payload()
    }

    fn delivered(self: Box<Self>) {
        // I2: only now. A pack that dies before this line is sent again, which is harmless (I1).
        self.pack.free();
        self.lane.left();
    }

    fn undelivered(self: Box<Self>, why: Undelivered) {
        let Self { lane, pack, trade_no, returned } = *self;
        returned.count.fetch_add(1, Relaxed);
        // Kept whatever the reason: rules may bring the queue back, brokers may recover. A closed fan-out takes
        // nothing more, and the pack's slot waits for the next start. // I2
        returned.packs.lock().push((ClosedPack { lane, pack, trade_no }, why));
    }
}
