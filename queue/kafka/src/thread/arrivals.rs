//! Partitions that come: where each is read from.

use super::{ASK, Member, start};
use crate::finished::{self, TopicId};
use crate::native;
use crate::start::Start;
use rdkafka::consumer::{CommitMode, Consumer};
use rdkafka::error::{KafkaError, KafkaResult};
use rdkafka::{Offset, TopicPartitionList};
use std::time::{Duration, Instant};

impl Member<'_> {
    /// Takes the assigned partitions, from the group's committed offsets on.
    pub(super) fn arrive(&mut self) {
        if self.arriving.is_empty() {
            return;
        }
        let asked = self.client.committed_offsets(self.list(&self.arriving), self.reader.request_timeout);
        let mut list = match asked {
            Ok(list) => list,
            Err(error) => return self.not_known(&error),
        };
        if let Some(error) = list.elements().iter().find_map(|place| place.error().err()) {
            // It is no answer that there is none: read from the beginning, everything would come again.
            return self.not_known(&error);
        }
        // After the positions: one of a topic that is deleted meanwhile is not taken for one of the next.
        let topic_id = self.ask_topic_id(self.reader.request_timeout);
        let mut starts = self.starts(&list, topic_id);
        self.ask_where_logs_begin(&mut starts);
        for (partition, first) in &starts {
            let theirs = i32::try_from(*partition).unwrap_or(i32::MAX);
            let at = match i64::try_from(first.next) {
                // Also at 0: a committed position below the log is out of range, which is reported.
                Ok(next) if first.is_committed => Offset::Offset(next),
                _ => start(first.next),
            };
            if let Err(error) = list.set_partition_offset(&self.reader.topic, theirs, at) {
                tracing::error!(topic = self.reader.topic, %error, "kafka: a start could not be set");
                return;
            }
        }
        // librdkafka keeps a pause of ours over a rebalance, also over one that took the partition away.
        if let Err(error) = self.client.resume(&self.list(&self.arriving)) {
            tracing::warn!(topic = self.reader.topic, %error, "kafka: could not resume what comes");
        }
        self.arriving.clear();
        if !self.assign(&list) {
            return;
        }
        let with_losses = starts.iter().filter(|(_, start)| !start.losses.is_empty());
        let with_losses: Vec<_> = with_losses.map(|(partition, start)| (*partition, start.next)).collect();
        for loss in starts.iter().flat_map(|(_, start)| &start.losses) {
            tracing::error!(topic = self.reader.topic, %loss, "kafka: records are lost");
        }
        let mut state = self.reader.shared.state.lock();
        for (partition, start) in starts {
            state.started(partition, start);
        }
        drop(state);
        self.store_starts(&with_losses, topic_id);
        if self.is_stalled {
            self.hold(true);
        }
        self.reader.shared.arrived.notify_one();
    }

    /// Where the partitions are read from, by what the group has committed.
    fn starts(&self, list: &TopicPartitionList, topic_id: Option<TopicId>) -> Vec<(u32, Start)> {
        let state = self.reader.shared.state.lock();
        let places = list.elements();
        let starts = places.iter().filter_map(|place| {
            let partition = u32::try_from(place.partition()).ok()?;
            let committed = match place.offset() {
                Offset::Offset(next) => Some(u64::try_from(next).unwrap_or(0)),
                // The group has never committed here.
                _ => None,
            };
            let metadata = native::metadata(list, &self.reader.topic, place.partition());
            let left = topic_id.and_then(|topic| state.left(partition, topic));
            Some((partition, Start::of(partition, committed, &metadata, topic_id, left)))
        });
        starts.collect()
    }

    /// Asks where the logs begin that are read from their beginning: what was deleted before is a loss. Without an answer
    /// in time the first record shows it.
    fn ask_where_logs_begin(&self, starts: &mut [(u32, Start)]) {
        let whole = starts.iter().filter(|(_, start)| !start.is_committed);
        let whole: Vec<u32> = whole.map(|(partition, _)| *partition).collect();
        if whole.is_empty() {
            return;
        }
        let lows = match self.lows(&whole) {
            Ok(lows) => lows,
            Err(error) => {
                tracing::warn!(topic = self.reader.topic, %error, "kafka: where the logs begin is not known");
                return;
            }
        };
        for (partition, start) in starts {
            if let Some((_, low)) = lows.iter().find(|(of, _)| *of == *partition) {
                start.log_begins_at(*partition, *low);
            }
        }
    }

    /// The first offsets that the logs of these partitions have, by one request to each broker. librdkafka passes the
    /// times that it is to look up as they are, and `Beginning` is the protocol's "earliest".
    fn lows(&self, partitions: &[u32]) -> KafkaResult<Vec<(u32, u64)>> {
        let mut list = self.list(partitions);
        list.set_all_offsets(Offset::Beginning)?;
        let found = self.client.offsets_for_times(list, ASK)?;
        let places = found.elements();
        let lows = places.iter().filter_map(|place| match (place.error(), place.offset()) {
            (Ok(()), Offset::Offset(low)) => {
                Some((u32::try_from(place.partition()).ok()?, u64::try_from(low).ok()?))
            }
            _ => None,
        });
        Ok(lows.collect())
    }

    /// Commits where reading begins after a loss that is reported now, so that it is not reported again with every
    /// assignment while no record comes. Nobody waits for the answer: without it the next owner reports the loss once
    /// more. Nothing is skipped (I3): before the start there is nothing that could be read.
    pub(super) fn store_starts(&self, starts: &[(u32, u64)], topic_id: Option<TopicId>) {
        if starts.is_empty() {
            return;
        }
        let text = topic_id.and_then(finished::topic_text);
        let mut list = TopicPartitionList::with_capacity(starts.len());
        for (partition, next) in starts {
            let place = (i32::try_from(*partition), i64::try_from(*next));
            let (Ok(partition), Ok(next)) = place else { continue };
            let mut place = list.add_partition(&self.reader.topic, partition);
            if let Err(error) = place.set_offset(Offset::Offset(next)) {
                tracing::warn!(topic = self.reader.topic, %error, "kafka: a start could not be stored");
                return;
            }
            if let Some(text) = &text {
                place.set_metadata(text);
            }
        }
        if let Err(error) = self.client.commit(&list, CommitMode::Async) {
            tracing::warn!(topic = self.reader.topic, %error, "kafka: a start could not be stored");
        }
    }

    /// Asks for the topic's id, and notes where it has changed. Without it, no map of finished offsets is committed or
    /// used.
    pub(super) fn ask_topic_id(&mut self, wait: Duration) -> Option<TopicId> {
        let found = native::topic_id(self.client.client(), &self.reader.topic, wait)?;
        let partitions = self.reader.shared.state.lock().topic_is(found);
        if !partitions.is_empty() {
            tracing::error!(
                topic = self.reader.topic,
                ?partitions,
                "kafka: the topic was deleted and created anew: what was not finished of it is lost, and the new log is \
                 read from its beginning"
            );
            self.created_anew = Some(Instant::now());
            self.reader.shared.arrived.notify_one();
        }
        Some(found)
    }

    /// Notes that the committed offsets are not known. They are asked for again in the next round; until then nothing
    /// is read, and nothing is lost.
    fn not_known(&self, error: &KafkaError) {
        tracing::warn!(topic = self.reader.topic, %error, "kafka: committed offsets are not known");
        self.reader.shared.state.lock().trouble = Some(error.to_string());
        self.reader.shared.arrived.notify_one();
    }

    pub(super) fn assign(&self, list: &TopicPartitionList) -> bool {
        let done = self.client.incremental_assign(list);
        if let Err(error) = &done {
            // The group has moved on: another rebalance follows.
            tracing::warn!(topic = self.reader.topic, %error, "kafka: an assignment came to nothing");
        }
        done.is_ok()
    }
}
