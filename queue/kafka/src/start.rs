//! Where a partition that is assigned is read from, and what is gone before anything is read.
//!
//! A committed position says nothing of a topic that was deleted and created anew: its offsets name other records. So
//! each commit's metadata names the topic's id, and a position under another id is not followed. librdkafka itself only
//! notices such a topic by a position that is out of range.

use super::finished::{self, Inherited, TopicId};
use windfall_contract::broker::PollError;

/// What the group, or this member before, has left behind for a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Left {
    /// The first offset that was not committed.
    pub(super) committed: u64,
    /// The offset after the last one that was seen.
    pub(super) seen: u64,
}

/// The start of one assignment.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Start {
    /// The first offset that is read; 0 is the beginning of the log, wherever that is.
    pub(super) next: u64,
    /// What earlier owners have finished beyond it.
    pub(super) inherited: Inherited,
    /// The id of the topic that `next` belongs to, where it is known.
    pub(super) topic: Option<TopicId>,
    /// Whether the group's committed position is followed. Else the whole log is read.
    pub(super) is_committed: bool,
    /// What is gone. It is reported once.
    pub(super) losses: Vec<PollError>,
}

impl Start {
    /// Where the group goes on, by its committed position and that commit's metadata. `topic` is the topic's id now, and
    /// `left` is what this member left behind under an earlier id.
    pub(super) fn of(
        partition: u32,
        committed: Option<u64>,
        metadata: &[u8],
        topic: Option<TopicId>,
        left: Option<Left>,
    ) -> Self {
        let named = finished::topic_of(metadata);
        let left = match committed {
            Some(next) if named.is_none() || topic.is_none() || named == topic => {
                let inherited = topic.map(|topic| finished::of_text(metadata, topic)).unwrap_or_default();
                let topic = named.or(topic);
                return Self { next, inherited, topic, is_committed: true, losses: Vec::new() };
            }
            Some(committed) => Some(Left { committed, seen: committed }),
            // Kafka forgets a group's positions when it deletes a topic.
            None => left,
        };
        let losses = left.map(|left| created_anew(partition, left)).into_iter().collect();
        Self { topic, losses, ..Self::default() }
    }

    /// Notes the first offset that the log has. It concerns only who reads the whole log.
    pub(super) fn log_begins_at(&mut self, partition: u32, low: u64) {
        if !self.is_committed && low > self.next {
            self.next = low;
            self.losses.push(deleted_before_the_first_read(partition, low));
        }
    }
}

/// The loss of what an earlier topic of the same name still held. Nobody can say where that log ended, so the range
/// ends at what was seen, and has one offset at least: a loss that counts as nothing would raise no alert.
pub(super) fn created_anew(partition: u32, left: Left) -> PollError {
    PollError::Lost {
        partition,
        from: left.committed,
        to: left.seen.max(left.committed.saturating_add(1)),
        resumes_at: 0,
        what: "the topic was deleted and created anew; its old log may have had more records than these, and nobody \
               can say how many"
            .to_owned(),
    }
}

/// The loss of a log's first records, where the group has no position. They may have been read all the same: the group
/// may be new, or its positions forgotten.
pub(super) fn deleted_before_the_first_read(partition: u32, low: u64) -> PollError {
    PollError::Lost {
        partition,
        from: 0,
        to: low,
        resumes_at: low,
        what: "the log does not begin at 0, and the group has committed nothing of it: its first records may have been \
               read before, by another group or before the group's offsets were forgotten"
            .to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::finished::{to_text, topic_text};
    use windfall_contract::finished::{Finished, Origin};

    const OLD: TopicId = [7; 16];
    const NEW: TopicId = [8; 16];

    fn range(loss: &PollError) -> Option<(u64, u64, u64)> {
        match loss {
            PollError::Lost { from, to, resumes_at, .. } => Some((*from, *to, *resumes_at)),
            _ => None,
        }
    }

    fn ranges(start: &Start) -> Vec<(u64, u64, u64)> {
        start.losses.iter().filter_map(range).collect()
    }

    #[test]
    fn a_position_is_followed_in_its_own_topic() {
        let text = topic_text(OLD).unwrap();
        for (metadata, topic) in [(text.as_str(), Some(OLD)), ("", Some(OLD)), (text.as_str(), None)] {
            let start = Start::of(0, Some(5), metadata.as_bytes(), topic, None);
            assert_eq!((start.next, start.is_committed, ranges(&start)), (5, true, Vec::new()), "{metadata}");
            assert_eq!(
                start.topic,
                Some(OLD),
                "what the metadata says is known, also where nobody else says it"
            );
        }
        assert_eq!(Start::of(0, Some(5), b"", None, None).topic, None);
        let mut start = Start::of(0, Some(5), b"", Some(OLD), None);
        start.log_begins_at(0, 9);
        assert_eq!(start.next, 5, "a position below the log is reported when it is read from");
    }

    #[test]
    fn a_position_of_another_topic_is_a_loss_and_not_followed() {
        let origin = Origin { topic: OLD, epochs: vec![(0, 3)] };
        let map = to_text(&Finished::of(std::iter::once(7..9)), &origin).unwrap();
        for metadata in [topic_text(OLD).unwrap(), map] {
            let start = Start::of(0, Some(5), metadata.as_bytes(), Some(NEW), None);
            assert_eq!((start.next, start.is_committed, start.topic), (0, false, Some(NEW)));
            assert_eq!(ranges(&start), [(5, 6, 0)]);
            assert!(start.inherited.is_empty());
        }
    }

    #[test]
    fn what_a_member_left_behind_counts_where_kafka_has_forgotten_the_position() {
        let left = Some(Left { committed: 5, seen: 20 });
        assert_eq!(ranges(&Start::of(0, None, b"", Some(NEW), left)), [(5, 20, 0)]);
        // Another member has begun the new log, and has reported it.
        assert_eq!(ranges(&Start::of(0, Some(3), topic_text(NEW).unwrap().as_bytes(), Some(NEW), left)), []);
        assert_eq!(ranges(&Start::of(0, None, b"", Some(NEW), None)), []);
    }

    #[test]
    fn a_log_that_does_not_begin_at_0_is_a_loss_for_who_has_no_position() {
        let mut start = Start::of(3, None, b"", Some(OLD), None);
        start.log_begins_at(3, 0);
        assert_eq!((start.next, ranges(&start)), (0, Vec::new()));
        start.log_begins_at(3, 12);
        assert_eq!((start.next, ranges(&start)), (12, vec![(0, 12, 12)]));
        assert!(start.losses[0].to_string().contains("may have been read before"), "{}", start.losses[0]);
    }
}
