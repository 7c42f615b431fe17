//! Decides how much is fetched: as much as the lanes can take, and a little more where one of them must not block
//! another that could flow now.

use crate::lanes::Lanes;
use crate::options::Options;
use crate::units::NS_PER_MS;
use windfall_contract::rules::Pacing;

/// The number of records that a poll brings when a full lane must not hide what lies behind it.
const FETCH_RECORDS_MIN: usize = 8;
/// The number of records of the first poll, when nothing is known of them.
const FETCH_RECORDS_FIRST: usize = 64;
/// The pause before the next look for another type, where all copies that came round were of full lanes.
const LOOK_AGAIN_NS: u64 = 30_000 * NS_PER_MS;
/// The numbers of copies in a row that end the first look and each later one. A copy carries up to 256 events.
const LOOK_COPIES: u32 = 64;
const LOOK_COPIES_AGAIN: u32 = 4;
/// Churn that may be owed before the fetch waits.
const CHURN_AHEAD_NS: u64 = 50 * NS_PER_MS;
/// The most that the fetch waits for churn.
const CHURN_OWED_MAX_NS: u64 = 1_000 * NS_PER_MS;

/// What was fetched lately, and how much of it was requeued in vain.
#[derive(Debug)]
pub(crate) struct Pace {
    fetch_records_max: usize,
    churn_each_ns: u64,
    churn_until_ns: u64,
    /// Copies that came round to a full lane since events of a type that flows came.
    came_round: u32,
    /// The time before which no fetch looks behind a full lane.
    look_at_ns: u64,
    /// The number of records fetched lately; a moving sum over the last polls.
    recent_records: u64,
    /// The number of events fetched lately, by lane.
    recent_events: Vec<u64>,
}

impl Pace {
    pub fn new(options: &Options) -> Self {
        Self {
            fetch_records_max: options.fetch_records_max,
            churn_each_ns: 1_000 * NS_PER_MS / options.churn_per_s.max(1),
            churn_until_ns: 0,
            came_round: 0,
            look_at_ns: 0,
            recent_records: 0,
            recent_events: Vec::new(),
        }
    }

    /// Notes that a poll has brought so many records.
    pub fn polled(&mut self, records: usize) {
        if records > 0 {
            self.recent_records = self.recent_records * 3 / 4 + records as u64;
            self.recent_events.iter_mut().for_each(|events| *events = *events * 3 / 4);
        }
    }

    /// Notes that due events came to a lane, whether it took them or not.
    #[inline]
    pub fn came(&mut self, lane: usize, events: u32) {
        if self.recent_events.len() <= lane {
            self.recent_events.resize(lane + 1, 0);
        }
        self.recent_events[lane] += u64::from(events);
    }

    /// Notes that events of a type that flows came.
    #[inline]
    pub fn found_others(&mut self) {
        self.came_round = 0;
    }

    /// Notes that a copy came round and found its lane as full as before. Where many do and nothing else comes, nothing
    /// else is there: it is no use to look behind the full lane again soon, and then a shorter look will do.
    pub fn came_round(&mut self, now_ns: u64) {
        self.came_round += 1;
        if self.came_round >= LOOK_COPIES {
            self.came_round = LOOK_COPIES - LOOK_COPIES_AGAIN;
            self.look_at_ns = now_ns + LOOK_AGAIN_NS;
        }
    }

    /// Notes that a record is requeued because there is no room for it: this counts against `churn_per_s`. A lane that
    /// is emptied at once does not stop the fetch for longer than `CHURN_OWED_MAX_NS`.
    pub fn churned(&mut self, now_ns: u64) {
        let until_ns = self.churn_until_ns.max(now_ns) + self.churn_each_ns;
        self.churn_until_ns = until_ns.min(now_ns + CHURN_OWED_MAX_NS);
    }

    /// The number of records that the lanes can take. A lane that is a quarter of what comes, or more, counts: the
    /// fetch waits until a quarter of it is free, and brings no more than fits even if all of it is for that lane. Room
    /// opens as fast as the lanes pass, so the fetch follows them. Smaller lanes take more than passes within
    /// `hold_max`.
    pub fn records_to_fetch(&self, lanes: &Lanes, pacing: &Pacing, now_ns: u64) -> usize {
        if self.churn_until_ns > now_ns + CHURN_AHEAD_NS || must_wait(lanes, now_ns) {
            return 0;
        }
        let most = self.fetch_records_max;
        let recent: u64 = self.recent_events.iter().sum();
        if recent == 0 || self.recent_records == 0 {
            return FETCH_RECORDS_FIRST.min(most);
        }
        let events_per_record = (recent / self.recent_records).max(1);
        let hold_max_ns = pacing.hold_max_ms.saturating_mul(NS_PER_MS);
        let large =
            lanes.iter().enumerate().zip(&self.recent_events).filter(|(_, came)| **came * 4 >= recent);
        let fit = large.map(|((at, lane), _)| match lane.records_that_fit(events_per_record) {
            // A type that could flow may wait behind what a limit, a fuse or a downstream holds back. What only waits
            // for its turn with a busy downstream paces its topic.
            0 if now_ns >= self.look_at_ns
                && lane.is_held_back(hold_max_ns, now_ns)
                && lanes.does_another_starve(at, now_ns) =>
            {
                FETCH_RECORDS_MIN
            }
            records => usize::try_from(records).unwrap_or(most),
        });
        fit.min().unwrap_or(most).min(most)
    }
}

/// Whether a lane is full and no other type could flow, so that nothing is gained by a fetch.
fn must_wait(lanes: &Lanes, now_ns: u64) -> bool {
    let mut full = lanes.iter().enumerate().filter(|(_, lane)| lane.is_full());
    full.any(|(at, _)| !lanes.could_another_flow(at, now_ns))
}
