//! Offsets that are finished although one below them is not, and how they travel in a commit's metadata.
//!
//! A broker keeps one position for each partition. While one record hangs, everything behind it that is finished would
//! be delivered again after a restart. So a [`Finished`] map is committed with the position
//! ([`Commit`](crate::broker::Commit)), and the next owner of the partition is not delivered what it names.
//!
//! # Format, version 1
//! | bytes | what |
//! |---|---|
//! | 1 | the version, 1 |
//! | 16 | the topic's id |
//! | varint | the first offset that the map speaks of |
//! | 1, then for each a varint and a varint | how many leader epochs, at most 8; where each begins, counted from the
//! one before (the first from the first offset), and its number |
//! | varint | how many offsets the map speaks of |
//! | any | one bit for each of them, 1 is finished, by an adaptive binary range coder |
//! | 4 | CRC-32C of all bytes before, little endian |
//!
//! Varints are LEB128. The coder is the one of LZMA with probabilities of 16 bits: one for each value of the eight
//! bits before, which begins at a half and moves by 1/32. Bytes after the end are 0, and its first byte, which is
//! always 0, is left out. Long runs and lanes that alternate cost next to nothing, and an even mix of two lanes one bit
//! for each record, which no format can beat.
//!
//! A map that is too long is cut at its end: what it does not name is delivered again, and nothing else happens.
//! A map is used only if it is complete and its checksum matches. It names records by topic, leader epoch and offset,
//! which together identify a record: an offset that is written again, after a topic was made anew or a log was
//! cut off, has another topic or a higher epoch.

mod coder;

use self::coder::{Decoder, Encoder, Model};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;

const VERSION: u8 = 1;
const CHECKSUM_BYTES: usize = 4;
/// The number of leader epochs that a map names at most. What was read under later ones is cut off.
const EPOCHS_MAX: usize = 8;
const BITS: u64 = 64;

/// A set of finished offsets, from some offset on. It is cheap to clone.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Finished {
    first: u64,
    /// Bit `i` is the offset `first + i`. The first bit is set, and the last word is never 0.
    words: Arc<[u64]>,
}

/// Builds a map word by word, in ascending order.
#[derive(Debug)]
pub struct FinishedWords {
    first: u64,
    words: Vec<u64>,
}

/// The log that the offsets of a map belong to.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Origin {
    /// The topic's id, which another topic of the same name would not have.
    pub topic: [u8; 16],
    /// Pairs of a first offset and the leader epoch under which the records from it on were written, both ascending.
    /// Empty where the broker has no leader epochs.
    pub epochs: Vec<(u64, u32)>,
}

impl Finished {
    /// The number of offsets that a map covers at most; a longer map is cut there.
    pub const SPAN_MAX: u64 = 1 << 18;

    /// The offsets that the bits name: bit `i` is `first + i`.
    pub fn new(first: u64, words: Vec<u64>) -> Self {
        let Some(skipped) = words.iter().position(|word| *word != 0) else { return Self::default() };
        let used = words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        let used = words.get(skipped..used).unwrap_or_default();
        // One form for each set: the first bit is set.
        let shift = used.first().map_or(0, |word| word.trailing_zeros());
        let mut moved: Vec<u64> = used.iter().map(|word| word >> shift).collect();
        if shift > 0 {
            for (word, next) in moved.iter_mut().zip(used.iter().skip(1)) {
                *word |= next << (64 - shift);
            }
        }
        moved.truncate(usize::try_from(Self::SPAN_MAX / BITS).unwrap_or(usize::MAX));
        while moved.last() == Some(&0) {
            moved.pop();
        }
        Self { first: first + skipped as u64 * BITS + u64::from(shift), words: moved.into() }
    }

    /// The offsets of these ranges.
    pub fn of(ranges: impl IntoIterator<Item = Range<u64>>) -> Self {
        let mut ranges = ranges.into_iter().filter(|range| !range.is_empty()).peekable();
        let Some(first) = ranges.peek().map(|range| range.start) else { return Self::default() };
        let mut words = Vec::new();
        for offset in ranges.flatten().take_while(|offset| offset.saturating_sub(first) < Self::SPAN_MAX) {
            put(&mut words, offset.saturating_sub(first), 1);
        }
        Self::new(first, words)
    }

    /// Whether the map names no offset.
    pub fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// One more than the last offset.
    pub fn end(&self) -> u64 {
        let Some(last) = self.words.last() else { return 0 };
        self.first + self.words.len() as u64 * BITS - u64::from(last.leading_zeros())
    }

    /// How many offsets are finished.
    pub fn count(&self) -> u64 {
        self.words.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// Whether an offset is finished.
    pub fn contains(&self, offset: u64) -> bool {
        let Some(at) = offset.checked_sub(self.first) else { return false };
        let word = usize::try_from(at / BITS).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| (word >> (at % BITS)) & 1 == 1)
    }

    /// The finished offsets that lie within `offsets`.
    #[must_use]
    pub fn within(&self, offsets: Range<u64>) -> Self {
        if self.is_empty() || (offsets.start <= self.first && self.end() <= offsets.end) {
            return self.clone();
        }
        let mut words = self.words.to_vec();
        for (word, base) in words.iter_mut().zip((self.first..).step_by(64)) {
            let below = |end: u64| mask_below(end.saturating_sub(base));
            *word &= below(offsets.end) & !below(offsets.start);
        }
        Self::new(self.first, words)
    }

    /// The offsets that either map names; cut where they lie too far apart.
    #[must_use]
    pub fn and(&self, other: &Self) -> Self {
        if other.is_empty() {
            return self.clone();
        }
        if self.is_empty() {
            return other.clone();
        }
        let first = self.first.min(other.first);
        let mut words = Vec::new();
        for map in [self, other] {
            for (word, base) in map.words.iter().zip((map.first..).step_by(64)) {
                if base - first < Self::SPAN_MAX {
                    put(&mut words, base - first, *word);
                }
            }
        }
        Self::new(first, words)
    }

    /// Ranges of finished offsets, ascending and apart.
    pub fn ranges(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        let mut at = self.first;
        std::iter::from_fn(move || {
            while at < self.end() && !self.contains(at) {
                at += 1;
            }
            let start = at;
            while self.contains(at) {
                at += 1;
            }
            (start < at).then_some(start..at)
        })
    }

    /// The map as bytes, cut to what fits into `bytes_max`; `None` if nothing does.
    pub fn encode(&self, origin: &Origin, bytes_max: usize) -> Option<Vec<u8>> {
        let known = self.within(origin.known());
        if known.is_empty() {
            return None;
        }
        let first = known.first;
        let mut bytes = vec![VERSION];
        bytes.extend_from_slice(&origin.topic);
        put_varint(&mut bytes, first);
        let epochs = origin.from(first);
        bytes.push(u8::try_from(epochs.len()).ok()?);
        let mut before = first;
        for (from, epoch) in epochs {
            put_varint(&mut bytes, from - before);
            put_varint(&mut bytes, epoch.into());
            before = from;
        }
        let span_bytes_max = 3;
        let room = bytes_max.checked_sub(bytes.len() + span_bytes_max + CHECKSUM_BYTES)?;
        let mut encoder = Encoder::new(room);
        let mut model = Model::default();
        let mut span = 0;
        for offset in first..known.end().min(first + Self::SPAN_MAX) {
            if !encoder.has_room() {
                break;
            }
            encoder.put(&mut model, known.contains(offset));
            span += 1;
        }
        if span == 0 {
            return None;
        }
        put_varint(&mut bytes, span);
        bytes.extend_from_slice(&encoder.finish());
        bytes.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
        Some(bytes)
    }

    /// Reads what `encode` has made; `None` for anything else.
    pub fn decode(bytes: &[u8]) -> Option<(Origin, Self)> {
        let (content, checksum) = bytes.split_last_chunk::<CHECKSUM_BYTES>()?;
        if crc32c::crc32c(content) != u32::from_le_bytes(*checksum) {
            return None;
        }
        let (&version, mut rest) = content.split_first()?;
        if version != VERSION {
            return None;
        }
        let (topic, after) = rest.split_first_chunk::<16>()?;
        rest = after;
        let first = take_varint(&mut rest)?;
        let (&count, after) = rest.split_first()?;
        rest = after;
        if usize::from(count) > EPOCHS_MAX {
            return None;
        }
        let mut epochs = Vec::new();
        let mut from = first;
        for _ in 0..count {
            from = from.checked_add(take_varint(&mut rest)?)?;
            epochs.push((from, u32::try_from(take_varint(&mut rest)?).ok()?));
        }
        let span = take_varint(&mut rest)?;
        if span > Self::SPAN_MAX || first.checked_add(span).is_none() {
            return None;
        }
        let mut decoder = Decoder::new(rest);
        let mut model = Model::default();
        let mut words = Vec::new();
        for at in 0..span {
            if decoder.take(&mut model) {
                put(&mut words, at, 1);
            }
        }
        Some((Origin { topic: *topic, epochs }, Self::new(first, words)))
    }
}

impl FinishedWords {
    /// An empty builder whose map begins at `first`.
    pub const fn starting_at(first: u64) -> Self {
        Self { first, words: Vec::new() }
    }

    /// Adds a word of which bit `i` says whether `offset + i` is finished; `offset` must not be below `first`. Returns
    /// false where the map covers no more.
    pub fn add(&mut self, offset: u64, bits: u64) -> bool {
        match offset.checked_sub(self.first) {
            Some(at) if at < Finished::SPAN_MAX => {
                if bits != 0 {
                    put(&mut self.words, at, bits);
                }
                true
            }
            _ => false,
        }
    }
}

impl From<FinishedWords> for Finished {
    fn from(made: FinishedWords) -> Self {
        Self::new(made.first, made.words)
    }
}

impl Origin {
    /// The leader epoch of the record at an offset.
    pub fn epoch_at(&self, offset: u64) -> Option<u32> {
        self.epochs.iter().rev().find(|(from, _)| *from <= offset).map(|(_, epoch)| *epoch)
    }

    /// The offsets whose epochs are known, as far as a map may name them.
    fn known(&self) -> Range<u64> {
        match self.epochs.as_slice() {
            [] => 0..u64::MAX,
            [(from, _), ..] => *from..self.epochs.get(EPOCHS_MAX).map_or(u64::MAX, |(end, _)| *end),
        }
    }

    /// The epochs from an offset on.
    fn from(&self, offset: u64) -> Vec<(u64, u32)> {
        let at = self.epoch_at(offset).map(|epoch| (offset, epoch));
        let later = self.epochs.iter().copied().filter(|(from, _)| *from > offset);
        at.into_iter().chain(later).take(EPOCHS_MAX).collect()
    }
}

impl fmt::Debug for Finished {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(to, "Finished({} of {}..{})", self.count(), self.first, self.end())
    }
}

/// Sets the bits of a word at the distance `at` from the first offset.
fn put(words: &mut Vec<u64>, at: u64, bits: u64) {
    let (Ok(word), shift) = (usize::try_from(at / BITS), at % BITS) else { return };
    let beyond = if shift == 0 { 0 } else { bits >> (BITS - shift) };
    let needed = word + 1 + usize::from(beyond != 0);
    if words.len() < needed {
        words.resize(needed, 0);
    }
    words[word] |= bits << shift;
    if beyond != 0 {
        words[word + 1] |= beyond;
    }
}

const fn mask_below(bits: u64) -> u64 {
    if bits >= BITS { u64::MAX } else { (1 << bits) - 1 }
}

fn put_varint(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push((number & 0x7f) as u8 | 0x80);
        number >>= 7;
    }
    bytes.push((number & 0x7f) as u8);
}

fn take_varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut number = 0u64;
    for shift in (0..64).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        let part = u64::from(byte & 0x7f);
        if (part << shift) >> shift != part {
            return None;
        }
        number |= part << shift;
        if byte < 0x80 {
            return Some(number);
        }
    }
    None
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "sets of ranges, some of which have one")]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn origin() -> Origin {
        Origin { topic: *b"0123456789abcdef", epochs: vec![(0, 7)] }
    }

    fn is_part(part: &Finished, whole: &Finished) -> bool {
        part.ranges().flatten().all(|offset| whole.contains(offset))
    }

    #[test]
    fn sets_of_offsets() {
        let map = Finished::of([10..20, 30..31, 100..300]);
        assert_eq!(map.ranges().collect::<Vec<_>>(), [10..20, 30..31, 100..300]);
        assert_eq!((map.count(), map.end()), (211, 300));
        assert!(map.contains(19) && !map.contains(20) && !map.contains(9) && !map.contains(300));
        assert_eq!(map.within(15..150).ranges().collect::<Vec<_>>(), [15..20, 30..31, 100..150]);
        assert_eq!(map.within(20..30), Finished::default());
        let other = Finished::of([0..3, 25..40]);
        assert_eq!(map.and(&other).ranges().collect::<Vec<_>>(), [0..3, 10..20, 25..40, 100..300]);
        assert_eq!(map.and(&Finished::default()), map);
        assert_eq!(Finished::of([]), Finished::default());
        assert!(Finished::of([5..5]).is_empty());
    }

    /// What fits into the 4,000 bytes that a broker keeps, as base64 where it must be text.
    #[test]
    fn a_hundred_thousand_records_behind_one() {
        let mut seed = 1u64;
        let mut random = move || {
            seed ^= seed << 13;
            seed ^= seed >> 7;
            seed ^= seed << 17;
            seed
        };
        let every = |of: u64| (0..100_000).filter(move |at| at % of != 0).map(|at| 1 + at..2 + at);
        let cases: [(&str, Finished, u64); 5] = [
            ("all of them", Finished::of(vec![1..100_001]), 100),
            ("one of two, in turn", Finished::of(every(2)), 100),
            ("four of five, in turn", Finished::of(every(5)), 100),
            (
                "one of two, at random",
                Finished::of((1..100_001).filter(|_| random() % 2 == 0).map(|at| at..at + 1)),
                20,
            ),
            (
                "nine of ten, at random",
                Finished::of((1..100_001).filter(|_| random() % 10 != 0).map(|at| at..at + 1)),
                45,
            ),
        ];
        for (name, map, percent) in cases {
            let bytes = map.encode(&origin(), 3_000).unwrap();
            let (from, kept) = Finished::decode(&bytes).unwrap();
            let part = kept.count() * 100 / map.count();
            println!(
                "{name}: {} of {} finished records in {} bytes, {part} %",
                kept.count(),
                map.count(),
                bytes.len()
            );
            assert!(bytes.len() <= 3_000 && part >= percent, "{name}: {part} %");
            assert!(is_part(&kept, &map));
            assert_eq!(from.epoch_at(60), Some(7));
        }
    }

    #[test]
    fn epochs_say_which_record_it_is_and_what_they_do_not_cover_is_cut_off() {
        let epochs = vec![(20, 1), (30, 4), (50, 5)];
        let map = Finished::of([10..40, 45..60]);
        let (from, kept) =
            Finished::decode(&map.encode(&Origin { epochs, ..origin() }, 4_000).unwrap()).unwrap();
        assert_eq!(kept.ranges().collect::<Vec<_>>(), [20..40, 45..60]);
        let at = [19, 20, 29, 30, 49, 50, 1_000].map(|offset| from.epoch_at(offset));
        assert_eq!(at, [None, Some(1), Some(1), Some(4), Some(4), Some(5), Some(5)]);
        let many = (0..20_u32).map(|number| (u64::from(number) * 10, number)).collect();
        let map = Finished::of(vec![0..200]);
        let (_, kept) =
            Finished::decode(&map.encode(&Origin { epochs: many, ..origin() }, 4_000).unwrap()).unwrap();
        assert_eq!(kept.ranges().collect::<Vec<_>>(), [0..80]);
        let none = Origin { epochs: vec![(500, 1)], ..origin() };
        assert_eq!(map.encode(&none, 4_000), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

        #[test]
        fn what_is_read_is_what_was_written_as_far_as_it_fits(
            first in 0u64..1 << 50,
            words in prop::collection::vec(prop_oneof![Just(0), Just(u64::MAX), any::<u64>()], 1..200),
            bytes_max in 0usize..3_000,
        ) {
            let map = Finished::new(first, words);
            match map.encode(&origin(), bytes_max) {
                None => prop_assert!(map.is_empty() || bytes_max < 100),
                Some(bytes) => {
                    prop_assert!(bytes.len() <= bytes_max);
                    let (from, kept) = Finished::decode(&bytes).unwrap();
                    prop_assert_eq!(from.topic, origin().topic);
                    prop_assert!(is_part(&kept, &map));
                    prop_assert_eq!(&kept, &map.within(0..kept.end()), "only its end is cut");
                    if bytes_max >= 2_900 {
                        prop_assert_eq!(kept, map);
                    }
                }
            }
        }

        #[test]
        fn what_is_not_whole_is_not_believed(
            words in prop::collection::vec(any::<u64>(), 1..20),
            at in any::<prop::sample::Index>(),
            flip in 1u8..,
        ) {
            let map = Finished::new(77, words);
            if let Some(bytes) = map.encode(&origin(), 4_000) {
                let mut damaged = bytes.clone();
                damaged[at.index(bytes.len())] ^= flip;
                prop_assert_eq!(Finished::decode(&damaged), None);
                prop_assert_eq!(Finished::decode(&bytes[..at.index(bytes.len())]), None);
            }
        }

        #[test]
        fn anything_may_be_read(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let mut sealed = bytes.clone();
            sealed.extend_from_slice(&crc32c::crc32c(&bytes).to_le_bytes());
            Finished::decode(&bytes);
            Finished::decode(&sealed);
        }
    }
}
