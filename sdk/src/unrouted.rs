//! Finds a lane for a sealed pack that has none: one that an earlier process left, or whose queue the rules dropped.
//! Its label names the queue that it was meant for. Where that is gone, its events are routed anew; where no route
//! takes them it waits in memory (its bytes in the spool) until the rules change. // I2

use crate::lane::{ClosedPack, Label, Lane, LaneKey, encode_head};
use crate::sdk::{Inherited, Shared};
use std::sync::Arc;
use windfall_proto::event::{self, EventRef};
use windfall_proto::{record, wire};
use windfall_queue_virtual::{Place, Undelivered};
use windfall_spool::{RecoveredPack, SealedPack};

/// A pack that no queue takes now.
pub(crate) struct UnroutedPack {
    pack: SealedPack,
    trade_no: Box<str>,
    place: Option<Place>,
}

impl Shared {
    /// Sends a pack of an earlier process again.
    pub(crate) fn inherit(&self, recovered: RecoveredPack, inherited: &mut Inherited) {
        let first = first_event(recovered.events());
        let Some((trade_no, head)) = first.map(|event| {
            // Such an event is alone in its pack, and says itself when it is due.
            let not_before_ms =
                first_bytes(recovered.events()).and_then(|bytes| event::not_before_ms(bytes).ok());
            let head = encode_head(event.bonus_type, recovered.count(), not_before_ms.unwrap_or(0));
            (Box::from(event.trade_no), head)
        }) else {
            // It checked, so it is what was written: by another release. Its slot stays as it is.
            inherited.set_aside.push(format!("{recovered:?}: holds no event that this release reads"));
            return;
        };
        inherited.packs += 1;
        inherited.events += u64::from(recovered.count());
        let place = recovered.holds_slot().then(|| self.shares.hold(None));
        let pack = recovered.seal(&head);
        let lane = self.labelled_lane(&pack).or_else(|| self.routed_lane(&pack));
        if !self.place(lane, pack, trade_no, place) {
            inherited.waiting += 1;
        }
    }

    /// Takes a pack that the fan-out gave back. Returns one that is to be offered again as it is.
    pub(crate) fn take_back(&self, closed: ClosedPack, why: Undelivered) -> Option<ClosedPack> {
        match why {
            Undelivered::NoQueue | Undelivered::TooLarge => {}
            Undelivered::Full | Undelivered::Closed | Undelivered::PatienceOver => return Some(closed),
        }
        let ClosedPack { lane: old, pack, trade_no, place, .. } = closed;
        // The same topics would find it too large again: other rules may bring others.
        let lane = if why == Undelivered::NoQueue { self.routed_lane(&pack) } else { None };
        if !self.place(lane, pack, trade_no, place) {
            tracing::warn!(%why, queue = old.key.queue_name, "a pack waits in the spool for rules that take it");
        }
        // After it was counted where it is now, so that `close` never misses it.
        old.left();
        None
    }

    /// Looks for lanes for all packs that wait for one: the rules have changed.
    pub(crate) fn place_unrouted(&self) {
        let count = self.unrouted.lock().len();
        for _ in 0..count {
            // One by one: what this thread does not hold survives its panic.
            let Some(UnroutedPack { pack, trade_no, place }) = self.unrouted.lock().pop_front() else {
                return;
            };
            let lane = self.routed_lane(&pack).or_else(|| self.labelled_lane(&pack));
            self.place(lane, pack, trade_no, place);
        }
    }

    fn place(
        &self,
        lane: Option<Arc<Lane>>,
        pack: SealedPack,
        trade_no: Box<str>,
        place: Option<Place>,
    ) -> bool {
        match lane {
            Some(lane) => {
                self.ready.push(lane.adopt(pack, trade_no, place));
                true
            }
            None => {
                self.unrouted.lock().push_back(UnroutedPack { pack, trade_no, place });
                false
            }
        }
    }

    /// The lane that the pack was meant for, if the rules still have its queue.
    fn labelled_lane(&self, pack: &SealedPack) -> Option<Arc<Lane>> {
        let Label { queue: name, side } = Label::parse(pack.label())?;
        let queue = self.fanout.queue(name)?;
        // `None` where the rules no longer have it.
        self.fanout.side(queue, 0)?;
        let bonus_type = first_event(pack.events())?.bonus_type.to_owned();
        Some(self.lanes.lane(LaneKey { queue_name: name.to_owned(), queue, side, bonus_type }))
    }

    /// The lane of the pack's first event that has a route.
    fn routed_lane(&self, pack: &SealedPack) -> Option<Arc<Lane>> {
        let plan = self.plan.load();
        let (_, events) = record::split(pack.payload()).ok()?;
        events
            .flatten()
            .filter_map(|range| EventRef::parse(&pack.payload()[range]).ok())
            .find_map(|event| plan.lane(event.activity, event.scene, event.bonus_type, event.user_id))
            .map(Arc::clone)
    }
}

fn first_event(framed: &[u8]) -> Option<EventRef<'_>> {
    EventRef::parse(first_bytes(framed)?).ok()
}

fn first_bytes(framed: &[u8]) -> Option<&[u8]> {
    let (_, first) = wire::Reader::new(framed).field().ok()?;
    wire::blob(first, 0).ok()
}
