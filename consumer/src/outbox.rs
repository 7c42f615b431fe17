//! Packs requeued events: events of one type with the same attempts, failures and due time are sent as one record.

use crate::in_flight::{InFlightRecord, Key};
use crate::requeue::RequeueRecord;
use crate::requeue_delay::{Jitter, delay_ms};
use crate::spill_log::RouteId;
use bytes::Bytes;
use std::sync::Arc;
use windfall_contract::rules::Pacing;
use windfall_proto::event::{self, EventRef};
use windfall_proto::record::{self, Head};

/// The number of events in one record at most, as the SDK packs them.
const EVENTS_MAX: usize = 256;
/// The bytes of events in one record at most; one event alone may be larger.
const EVENT_BYTES_MAX: usize = 64 << 10;
/// The number of records in progress that an event is compared with, the latest ones: records that are not due yet may
/// each have a past of their own, and a whole delay queue of them goes back at once when the consumer closes.
const OPEN_COMPARED: usize = 64;

/// The retry metadata of a requeued event: the head of the record that it came in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetryMetadata {
    pub bonus_type: Arc<str>,
    pub attempt: u32,
    pub failures: u32,
    /// The number of the key that its original was signed with; 0 where that is not known.
    pub origin: u32,
    pub not_before_ms: i64,
}

/// A record to be requeued, with events from any number of records in flight.
#[derive(Debug)]
pub(crate) struct PendingRequeue {
    bonus_type: Arc<str>,
    /// The attempt that it will have.
    attempt: u32,
    failures: u32,
    origin: u32,
    not_before_ms: i64,
    /// The least delay that the service or a downstream asked for.
    after_ms: u64,
    body: Body,
    /// The records that these events belong to, and the number of events of each.
    pub parts: Vec<(Key, u32)>,
}

#[derive(Debug)]
enum Body {
    Events(Vec<Bytes>),
    /// A malformed record as it came.
    Raw(Bytes),
}

/// Gathers events that go back until the end of the loop's turn.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    open: Vec<(PendingRequeue, usize)>,
    full: Vec<PendingRequeue>,
}

impl RetryMetadata {
    /// That of events of this record, which have so many failed grants by now.
    pub fn of(record: &InFlightRecord, bonus_type: Arc<str>, failures: u32, not_before_ms: i64) -> Self {
        Self { bonus_type, attempt: record.attempt, failures, origin: record.origin, not_before_ms }
    }
}

impl Outbox {
    /// Adds one event of a record. Its record stays unfinished until the event is stored elsewhere (I3).
    pub fn push(&mut self, metadata: &RetryMetadata, after_ms: u64, key: Key, event: Bytes) {
        let fits = |pending: &PendingRequeue| {
            pending.attempt == metadata.attempt.saturating_add(1)
                && pending.failures == metadata.failures
                && pending.origin == metadata.origin
                && pending.not_before_ms == metadata.not_before_ms
                && *pending.bonus_type == *metadata.bonus_type
        };
        let lately = self.open.len().saturating_sub(OPEN_COMPARED);
        let at = match self.open[lately..].iter().rposition(|(pending, _)| fits(pending)) {
            Some(at) => lately + at,
            None => {
                self.open.push((PendingRequeue::of(metadata), 0));
                self.open.len() - 1
            }
        };
        let (pending, bytes) = &mut self.open[at];
        pending.after_ms = pending.after_ms.max(after_ms);
        *bytes += event.len();
        let Body::Events(events) = &mut pending.body else { return };
        events.push(event);
        match pending.parts.last_mut() {
            Some((last, count)) if *last == key => *count += 1,
            _ => pending.parts.push((key, 1)),
        }
        if events.len() >= EVENTS_MAX || *bytes >= EVENT_BYTES_MAX {
            let (pending, _) = self.open.swap_remove(at);
            self.full.push(pending);
        }
    }

    /// Adds a malformed record, which goes back as it came.
    pub fn push_raw(&mut self, key: Key, record: Bytes) {
        self.full.push(PendingRequeue {
            bonus_type: "".into(),
            attempt: 0,
            failures: 0,
            origin: 0,
            not_before_ms: 0,
            after_ms: 0,
            body: Body::Raw(record),
            parts: vec![(key, 1)],
        });
    }

    /// Takes all records, with their due times set.
    pub fn take(&mut self, pacing: &Pacing, wall_ms: i64, jitter: &mut Jitter) -> Vec<PendingRequeue> {
        self.full.extend(self.open.drain(..).map(|(pending, _)| pending));
        for pending in &mut self.full {
            // What is not due yet keeps its due time, or it would be put off with every trip.
            if pending.not_before_ms > wall_ms {
                continue;
            }
            let delay_ms = jitter.of(delay_ms(pacing, pending.attempt)).max(pending.after_ms);
            let due_ms = wall_ms.saturating_add(i64::try_from(delay_ms).unwrap_or(i64::MAX));
            pending.not_before_ms = pending.not_before_ms.max(due_ms);
        }
        std::mem::take(&mut self.full)
    }

    pub fn is_empty(&self) -> bool {
        self.open.is_empty() && self.full.is_empty()
    }
}

impl PendingRequeue {
    fn of(metadata: &RetryMetadata) -> Self {
        Self {
            bonus_type: Arc::clone(&metadata.bonus_type),
            attempt: metadata.attempt.saturating_add(1),
            failures: metadata.failures,
            origin: metadata.origin,
            not_before_ms: metadata.not_before_ms,
            after_ms: 0,
            body: Body::Events(Vec::new()),
            parts: Vec::new(),
        }
    }

    /// The number of events in it; 1 for a malformed record.
    pub fn events(&self) -> u32 {
        match &self.body {
            Body::Events(events) => u32::try_from(events.len()).unwrap_or(u32::MAX),
            Body::Raw(_) => 1,
        }
    }

    /// The route that it takes.
    pub fn route(&self) -> RouteId {
        let first = match &self.body {
            Body::Events(events) => events.first().map(|event| &event[..]).unwrap_or_default(),
            Body::Raw(_) => &[],
        };
        let view = EventRef::parse(first).unwrap_or_default();
        RouteId::named(view.activity, view.scene, &self.bonus_type)
    }

    /// The record to write.
    pub fn build(&self) -> RequeueRecord {
        let events = match &self.body {
            Body::Events(events) => events,
            Body::Raw(record) => return raw(record),
        };
        let head = Head {
            bonus_type: &self.bonus_type,
            attempt: self.attempt,
            failures: self.failures,
            not_before_ms: self.not_before_ms,
            count: self.events(),
        };
        let payload = record::build_copy(head, self.origin, events.iter().map(|event| &event[..]));
        let first = events.first().map(|event| &event[..]).unwrap_or_default();
        // An event that cannot be read still goes back; the reward service archives it when it is its turn.
        let view = EventRef::parse(first).unwrap_or_default();
        let trade_no = event::trade_no(first).unwrap_or_default();
        RequeueRecord {
            bonus_type: self.bonus_type.to_string(),
            activity: view.activity.to_owned(),
            scene: view.scene.to_owned(),
            first_user_id: view.user_id,
            key: format!("{trade_no}{}", self.attempt).into_bytes(),
            payload,
            events: self.events(),
        }
    }
}

fn raw(record: &Bytes) -> RequeueRecord {
    RequeueRecord {
        bonus_type: String::new(),
        activity: String::new(),
        scene: String::new(),
        first_user_id: 0,
        key: crc32c::crc32c(record).to_be_bytes().to_vec(),
        payload: record.to_vec(),
        events: 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::in_flight::InFlightTable;
    use crate::in_flight::tests::record_in;

    fn pacing() -> Pacing {
        Pacing {
            hold_max_ms: 1_000,
            deadline_ms: 30_000,
            requeue_delay_ms: 100,
            requeue_delay_max_ms: 60_000,
            max_failures: 5,
            grant_batch: 256,
            in_hand_max: 4096,
            lane_events_max: 10_000,
            lane_bytes_max: 8 << 20,
        }
    }

    #[test]
    fn events_of_one_past_travel_together_and_split_at_the_size_of_a_pack() {
        let mut outbox = Outbox::default();
        let mut table = InFlightTable::default();
        let keys: Vec<_> = (0..3).map(|n| table.insert(record_in(n))).collect();
        let past =
            RetryMetadata { bonus_type: "cash".into(), attempt: 2, failures: 1, origin: 7, not_before_ms: 0 };
        for n in 0..300_u32 {
            outbox.push(&past, n.into(), keys[n as usize / 100], Bytes::from_static(b"e"));
        }
        outbox.push(&RetryMetadata { failures: 2, ..past.clone() }, 0, keys[0], Bytes::from_static(b"f"));
        // Of another sender, who answers for its own events alone.
        outbox.push(&RetryMetadata { origin: 8, ..past }, 0, keys[0], Bytes::from_static(b"g"));
        let records = outbox.take(&pacing(), 1_000_000, &mut Jitter::new(1));
        assert_eq!(records.iter().map(PendingRequeue::events).collect::<Vec<_>>(), [256, 44, 1, 1]);
        assert_eq!(records[0].parts, [(keys[0], 100), (keys[1], 100), (keys[2], 56)]);
        assert_eq!((records[1].attempt, records[1].failures), (3, 1));
        // Attempt 3 is delayed by 200 to 400 ms, and by the 299 ms that somebody asked for at least.
        assert!((1_000_299..=1_000_400).contains(&records[1].not_before_ms));
        let built = records[1].build();
        let (head, events) = record::split(&built.payload).unwrap();
        assert_eq!((head.attempt, head.failures, head.count), (3, 1, 44));
        let origins = records.iter().map(|own| record::signed_parts(&own.build().payload).unwrap().origin);
        assert_eq!(origins.collect::<Vec<_>>(), [7, 7, 7, 8]);
        assert_eq!(events.filter(Result::is_ok).count(), 44);
    }

    #[test]
    fn an_attempt_at_the_end_of_its_range_stays_there_and_travels_packed() {
        let mut outbox = Outbox::default();
        let key = InFlightTable::default().insert(record_in(0));
        let (bonus_type, attempt) = ("cash".into(), u32::MAX);
        let past = RetryMetadata { bonus_type, attempt, failures: 0, origin: 0, not_before_ms: 0 };
        (0..2).for_each(|_| outbox.push(&past, 0, key, Bytes::from_static(b"e")));
        let records = outbox.take(&pacing(), 0, &mut Jitter::new(1));
        assert_eq!(
            records.iter().map(|record| (record.attempt, record.events())).collect::<Vec<_>>(),
            [(attempt, 2)]
        );
    }

    #[test]
    fn a_delay_queue_full_of_different_pasts_goes_back_at_once() {
        let mut outbox = Outbox::default();
        let key = InFlightTable::default().insert(record_in(0));
        let began = std::time::Instant::now();
        for not_before_ms in 0..500_000 {
            let bonus_type = "cash".into();
            let past = RetryMetadata { bonus_type, attempt: 1, failures: 0, origin: 0, not_before_ms };
            outbox.push(&past, 0, key, Bytes::from_static(b"e"));
        }
        // Compared with each other they take 10^11 steps, which are minutes on any machine.
        assert!(began.elapsed().as_secs() < 60, "{:?}", began.elapsed());
        assert_eq!(outbox.take(&pacing(), 0, &mut Jitter::new(1)).len(), 500_000);
    }
}
