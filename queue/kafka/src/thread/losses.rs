//! Positions that are in no log any more, and topics that were created anew.

use super::{ASK, LOOK_AGAIN, Member, start};
use rdkafka::consumer::Consumer;
use std::time::Instant;
use windfall_contract::broker::PollError;

impl Member<'_> {
    /// librdkafka says that a position is out of range, but not which. What lies outside of its log has lost records,
    /// and begins anew at the first one that is kept: where the log was cut off, nobody can say which of its records
    /// were written since, so all of them are delivered again. If no position lies outside, a log was cut off and
    /// has grown since, and that may be any of them.
    pub(super) fn find_lost(&mut self) {
        if self.astray.is_none_or(|due| due > Instant::now()) || self.is_giving_back() {
            return;
        }
        self.astray = Some(Instant::now() + LOOK_AGAIN);
        // In a topic that was created anew no position counts, and no log was cut off.
        self.ask_topic_id(ASK);
        let positions = self.reader.shared.state.lock().positions();
        let mut ranges = Vec::new();
        for (partition, read) in positions {
            let theirs = i32::try_from(partition).unwrap_or(i32::MAX);
            let timeout = self.reader.request_timeout;
            match self.client.fetch_watermarks(&self.reader.topic, theirs, timeout) {
                Ok((low, high)) => {
                    let (low, high) = (u64::try_from(low).unwrap_or(0), u64::try_from(high).unwrap_or(0));
                    ranges.push((partition, read, low, high));
                }
                Err(error) => {
                    self.reader.shared.state.lock().trouble = Some(error.to_string());
                    self.reader.shared.arrived.notify_one();
                    return;
                }
            }
        }
        self.astray = None;
        // One that has read nothing yet begins at the beginning once more, wherever that is now.
        let is_outside =
            |&(_, read, low, high): &(u32, u64, u64, u64)| read < low || read > high || read == 0;
        let nowhere = !ranges.iter().any(is_outside);
        for (partition, read, low, high) in ranges.into_iter().filter(|range| nowhere || is_outside(range)) {
            let lost = |from, to, what| PollError::Lost { partition, from, to, resumes_at: low, what };
            let loss = if read < low {
                Some(lost(read, low, "the broker deleted them before they were read".to_owned()))
            } else if read == 0 {
                None
            } else {
                Some(lost(high.min(read), read, format!("the log was cut off, and ends at {high} now")))
            };
            self.begin_again(partition, low, loss);
        }
        self.reader.shared.arrived.notify_one();
    }

    /// Reads a partition from the first offset that its log has.
    fn begin_again(&mut self, partition: u32, low: u64, loss: Option<PollError>) {
        if !self.seek(partition, low) {
            self.astray = Some(Instant::now() + LOOK_AGAIN);
            return;
        }
        if let Some(loss) = loss {
            tracing::error!(topic = self.reader.topic, %loss, "kafka: records are lost");
            self.reader.shared.state.lock().lost(partition, low, loss);
        }
        self.settle(partition);
    }

    /// Begins partitions of a topic that was created anew at the beginning of its log. librdkafka goes on at the old
    /// position, if the new log reaches so far; what it fetches there until now was thrown away.
    pub(super) fn begin_new_log(&mut self) {
        if self.created_anew.is_none_or(|due| due > Instant::now()) || self.is_giving_back() {
            return;
        }
        self.created_anew = None;
        let partitions = self.reader.shared.state.lock().void_partitions();
        let mut begun = Vec::new();
        for partition in partitions {
            if !self.seek(partition, 0) {
                self.created_anew = Some(Instant::now() + LOOK_AGAIN);
                continue;
            }
            self.reader.shared.state.lock().begun_anew(partition);
            self.settle(partition);
            begun.push((partition, 0));
        }
        let topic_id = self.reader.shared.state.lock().topic_id;
        self.store_starts(&begun, topic_id);
        self.reader.shared.arrived.notify_one();
    }

    /// Whether a rebalance waits until partitions are given back. librdkafka would take a partition that is begun anew for
    /// them, and go on with the rebalance.
    fn is_giving_back(&self) -> bool {
        !self.releasing.is_empty() || self.reader.shared.state.lock().is_giving_back()
    }

    /// Has librdkafka fetch a partition from an offset on; what it has fetched before is dropped. Fails while a rebalance
    /// is under way, which says whose the partition is.
    fn seek(&self, partition: u32, from: u64) -> bool {
        let mut list = self.list(&[partition]);
        let theirs = i32::try_from(partition).unwrap_or(i32::MAX);
        let begun = self
            .client
            .incremental_unassign(&list)
            .and_then(|()| list.set_partition_offset(&self.reader.topic, theirs, start(from)))
            .and_then(|()| self.client.incremental_assign(&list));
        if let Err(error) = &begun {
            tracing::warn!(topic = self.reader.topic, %error, partition, "kafka: could not begin anew");
        }
        begun.is_ok()
    }

    /// Has librdkafka bring a partition's records, or not, as it is wanted now.
    fn settle(&self, partition: u32) {
        let list = self.list(&[partition]);
        let is_held = self.is_stalled || self.reader.shared.state.lock().is_parked(partition);
        let held = if is_held { self.client.pause(&list) } else { self.client.resume(&list) };
        if let Err(error) = held {
            tracing::warn!(topic = self.reader.topic, %error, "kafka: could not pause or resume");
        }
    }
}
