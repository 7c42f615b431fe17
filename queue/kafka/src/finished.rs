//! The offsets of a partition that are finished beyond its committed offset, and the log that they belong to.
//!
//! It travels as text in the metadata of the group's commit, `wf:` and base64, within the 4,096 bytes that a broker
//! takes by default. Topic, leader epoch and offset name a record: a leader writes an offset once, and whoever writes
//! it again, after an unclean election, has a higher epoch. So the last owner's map is checked against each record that
//! is read, and from the first record on that is a different one, the map is ignored.
//!
//! A commit that has no map names the topic's id alone, `wf-topic:` and base64, so that a position in a topic that was
//! deleted is never taken for one in a topic that was created anew under its name.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use windfall_contract::finished::{Finished, Origin};

/// The bytes of a commit's metadata at most: the part of the map beyond is cut off and delivered again.
const TEXT_BYTES_MAX: usize = 4_000;
const MARK: &str = "wf:";
/// Versions before it take such metadata for that of another program.
const TOPIC_MARK: &str = "wf-topic:";
const BYTES_MAX: usize = (TEXT_BYTES_MAX - MARK.len()) / 4 * 3;

/// A topic's id.
pub(super) type TopicId = [u8; 16];

/// The text for a commit's metadata; `None` where there is nothing to say.
pub(super) fn to_text(finished: &Finished, origin: &Origin) -> Option<String> {
    let bytes = finished.encode(origin, BYTES_MAX)?;
    Some(format!("{MARK}{}", STANDARD.encode(bytes)))
}

/// The text for the metadata of a commit that has no map; `None` where the topic's id is not known.
pub(super) fn topic_text(topic: TopicId) -> Option<String> {
    (topic != [0; 16]).then(|| format!("{TOPIC_MARK}{}", STANDARD.encode(topic)))
}

/// The id of the topic that a committed position belongs to, where the commit's metadata names one.
pub(super) fn topic_of(text: &[u8]) -> Option<TopicId> {
    if let Some(id) = text.strip_prefix(TOPIC_MARK.as_bytes()) {
        return STANDARD.decode(id).ok()?.try_into().ok();
    }
    let bytes = STANDARD.decode(text.strip_prefix(MARK.as_bytes())?).ok()?;
    Finished::decode(&bytes).map(|(origin, _)| origin.topic)
}

/// The offsets that a commit's metadata names as finished in this topic. Metadata of other programs, and that of
/// another topic, names none.
pub(super) fn of_text(text: &[u8], topic: TopicId) -> Inherited {
    let known = || {
        let bytes = STANDARD.decode(text.strip_prefix(MARK.as_bytes())?).ok()?;
        Finished::decode(&bytes).filter(|(origin, _)| origin.topic == topic && !origin.epochs.is_empty())
    };
    known().map(|(origin, finished)| Inherited { origin, finished }).unwrap_or_default()
}

/// The offsets that earlier owners of a partition have finished.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Inherited {
    origin: Origin,
    finished: Finished,
}

impl Inherited {
    /// Whether a record that is read was finished, and is not to be brought. A different record at such an offset shows
    /// that the log was cut off: from there on the map is ignored.
    pub(super) fn has(&mut self, offset: u64, leader_epoch: Option<u32>) -> bool {
        if !self.finished.contains(offset) {
            return false;
        }
        let is_same = leader_epoch.is_some() && leader_epoch == self.origin.epoch_at(offset);
        if !is_same {
            self.finished = self.finished.within(0..offset);
        }
        is_same
    }

    /// Notes that the group has committed up to `next_offset`.
    pub(super) fn committed(&mut self, next_offset: u64) {
        if next_offset >= self.finished.end() {
            *self = Self::default();
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.finished.is_empty()
    }
}

/// The leader epochs of what was read of a partition under one assignment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Lineage {
    /// Pairs of a first offset and the leader epoch from it on, both ascending.
    epochs: Vec<(u64, u32)>,
}

impl Lineage {
    /// Notes a record that was read. Where the broker tells no epoch, or a lower one than before, nothing is noted that
    /// could be relied on.
    pub(super) fn read(&mut self, offset: u64, leader_epoch: Option<u32>) {
        match (leader_epoch, self.epochs.last()) {
            (Some(epoch), Some((_, last))) if *last == epoch => {}
            (Some(epoch), Some((_, last))) if *last < epoch => self.epochs.push((offset, epoch)),
            (Some(epoch), _) => self.epochs = vec![(offset, epoch)],
            (None, _) => self.epochs.clear(),
        }
    }

    /// Notes that the group has committed so far: offsets below are dropped from the map.
    pub(super) fn committed(&mut self, next_offset: u64) {
        while self.epochs.get(1).is_some_and(|(from, _)| *from <= next_offset) {
            self.epochs.remove(0);
        }
    }

    /// The map that goes with a commit: what the caller has finished of the records read below `read`, and what earlier
    /// owners had finished.
    pub(super) fn with(
        &self,
        topic: TopicId,
        finished: &Finished,
        inherited: &Inherited,
        next_offset: u64,
        read: u64,
    ) -> (Finished, Origin) {
        let known = self.epochs.first().map_or(u64::MAX, |(from, _)| *from);
        let mut all = finished.within(next_offset.max(known)..read);
        let mut epochs = self.epochs.clone();
        // What was not read yet is of the epochs that the last owner has seen; below, the two agree. Where ours are
        // later, the log has been written on since, and theirs are void.
        let theirs = inherited.finished.within(next_offset..u64::MAX);
        let last = epochs.last().map_or(0, |(_, epoch)| *epoch);
        let begins = read.max(theirs.ranges().next().map_or(u64::MAX, |range| range.start));
        match inherited.origin.epoch_at(begins) {
            Some(epoch) if !theirs.is_empty() && epoch >= last => {
                if epoch > last || epochs.is_empty() {
                    epochs.push((begins, epoch));
                }
                let later = inherited.origin.epochs.iter().copied();
                epochs.extend(later.filter(|(from, _)| *from > begins));
                let read_of_theirs = theirs.within(known.min(read)..read);
                all = all.and(&read_of_theirs).and(&theirs.within(begins..u64::MAX));
            }
            _ => all = all.and(&theirs.within(known.min(read)..read)),
        }
        (all, Origin { topic, epochs })
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "sets of ranges, some of which have one")]
mod tests {
    use super::*;

    const TOPIC: TopicId = [7; 16];

    fn inherited(
        epochs: Vec<(u64, u32)>,
        ranges: impl IntoIterator<Item = std::ops::Range<u64>>,
    ) -> Inherited {
        let text = to_text(&Finished::of(ranges), &Origin { topic: TOPIC, epochs }).unwrap();
        assert!(text.len() <= TEXT_BYTES_MAX);
        of_text(text.as_bytes(), TOPIC)
    }

    #[test]
    fn a_record_is_spared_only_if_it_is_the_same_one() {
        let mut map = inherited(vec![(0, 3), (50, 4)], [10..20, 40..60]);
        assert!(!map.has(9, Some(3)) && !map.has(20, Some(3)));
        assert!(map.has(10, Some(3)) && map.has(40, Some(3)) && map.has(50, Some(4)));
        // An unclean election: from 52 on the log is written anew.
        assert!(!map.has(52, Some(5)));
        assert!(!map.has(53, Some(4)), "nothing behind it is believed");
        let mut map = inherited(vec![(0, 3)], [10..20]);
        assert!(!map.has(10, None), "a broker that tells no epochs");
        let mut map = inherited(vec![(0, 3)], [10..20]);
        map.committed(19);
        assert!(!map.is_empty());
        map.committed(20);
        assert!(map.is_empty());
    }

    #[test]
    fn metadata_of_others_says_nothing() {
        let origin = Origin { topic: TOPIC, epochs: vec![(0, 3)] };
        let text = to_text(&Finished::of([10..20]), &origin).unwrap();
        assert!(of_text(text.as_bytes(), [8; 16]).is_empty(), "the topic was made anew");
        for strange in
            ["", "wf:", "wf:!", "hello", "\u{1F327}", &text[..text.len() - 4], &text.replace("wf:", "wg:")]
        {
            assert!(of_text(strange.as_bytes(), TOPIC).is_empty(), "{strange}");
        }
        assert!(of_text(b"\xff\xfe", TOPIC).is_empty());
    }

    #[test]
    fn each_commit_names_its_topic() {
        let origin = Origin { topic: TOPIC, epochs: vec![(0, 3)] };
        let map = to_text(&Finished::of([10..20]), &origin).unwrap();
        let plain = topic_text(TOPIC).unwrap();
        assert_eq!((topic_of(map.as_bytes()), topic_of(plain.as_bytes())), (Some(TOPIC), Some(TOPIC)));
        assert!(of_text(plain.as_bytes(), TOPIC).is_empty(), "it is no map");
        assert_eq!(topic_text(Origin::default().topic), None, "the id is not known");
        for strange in ["", "hello", "wf:", "wf-topic:", "wf-topic:AAAA", "wf-topic:!"] {
            assert_eq!(topic_of(strange.as_bytes()), None, "{strange}");
        }
        assert_eq!(topic_of(b"\xff\xfe"), None);
    }

    #[test]
    fn a_commit_says_what_is_finished_and_what_was_spared() {
        let said = |lineage: &Lineage, finished: &[std::ops::Range<u64>], inherited: &Inherited, read| {
            let (all, origin) = lineage.with(TOPIC, &Finished::of(finished.to_vec()), inherited, 0, read);
            (all.ranges().collect::<Vec<_>>(), origin.epochs)
        };
        let none = Inherited::default();
        let mut lineage = Lineage::default();
        assert_eq!(said(&lineage, &[1..5], &none, 10).0, [], "nothing is known of its epochs");
        (0..10).for_each(|offset| lineage.read(offset, Some(3)));
        assert_eq!(said(&lineage, &[1..5, 8..20], &none, 10), (vec![1..5, 8..10], vec![(0, 3)]));
        // The last owner finished 4..30; so far 0..10 is read again.
        let before = inherited(vec![(0, 3), (20, 4)], [4..30]);
        assert_eq!(said(&lineage, &[1..3], &before, 10), (vec![1..3, 4..30], vec![(0, 3), (20, 4)]));
        (10..40).for_each(|offset| lineage.read(offset, Some(if offset < 20 { 3 } else { 4 })));
        assert_eq!(said(&lineage, &[1..3], &before, 40), (vec![1..3, 4..30], vec![(0, 3), (20, 4)]));
        // Nothing is read yet.
        let fresh = Lineage::default();
        assert_eq!(said(&fresh, &[], &before, 0), (vec![4..30], vec![(4, 3), (20, 4)]));
        // Read on under a later epoch than theirs: what of theirs was not read yet is of a log that is no more.
        let mut later = Lineage::default();
        later.read(0, Some(9));
        assert_eq!(said(&later, &[0..1], &before, 1), (vec![0..1], vec![(0, 9)]));
    }

    #[test]
    fn epochs_that_go_back_begin_anew() {
        let mut lineage = Lineage::default();
        lineage.read(0, Some(3));
        lineage.read(5, Some(4));
        lineage.read(6, Some(2));
        assert_eq!(lineage.epochs, [(6, 2)]);
        lineage.read(7, None);
        assert_eq!(lineage.epochs, []);
        lineage.read(8, Some(4));
        lineage.read(20, Some(5));
        lineage.read(30, Some(6));
        lineage.committed(25);
        assert_eq!(lineage.epochs, [(20, 5), (30, 6)]);
    }
}
