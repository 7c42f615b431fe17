//! Tokens that wait, in the order in which they came: their [chunks](super::chunks), one index that finds a token by its
//! key, and another that finds the tokens of a user.

use super::chunks::{Chunks, Full, Place, Spilled, Text};
use super::spill::Slot;
use bytes::Bytes;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::hash::BuildHasher;
use std::sync::Arc;
use windfall_contract::tokens::TokenPut;

/// Tokens by key, the oldest first. A token that is put again takes the place of the earlier one and is young again.
pub(super) struct Waiting {
    chunks: Chunks,
    by_key: HashTable<Indexed>,
    /// The youngest token of each user.
    by_user: HashTable<Place>,
    hashing: RandomState,
    bytes: usize,
}

/// A token in the index of keys, with a part of its key's hash: the index grows without a look at any token.
#[derive(Clone, Copy)]
struct Indexed {
    place: Place,
    hash: u32,
}

/// A token's key with its hash, so that it is hashed once, however often it is looked for.
#[derive(Clone, Copy)]
pub(super) struct Hashed<'a> {
    pub(super) user_id: i64,
    pub(super) name: &'a str,
    pub(super) hash: u64,
}

impl<'a> Hashed<'a> {
    pub(super) fn new(hashing: &RandomState, user_id: i64, name: &'a str) -> Self {
        Self { user_id, name, hash: key_hash(hashing, user_id, name.as_bytes()) }
    }
}

impl Waiting {
    /// An empty one for keys that are hashed so.
    pub(super) fn new(hashing: RandomState) -> Self {
        Self { chunks: Chunks::new(), by_key: HashTable::new(), by_user: HashTable::new(), hashing, bytes: 0 }
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Puts a token in under its key.
    pub(super) fn insert(&mut self, key: Hashed<'_>, put: &TokenPut) {
        self.remove(key);
        let (place, bytes) = self.chunks.append(put);
        self.bytes += bytes;
        let Self { chunks, by_key, by_user, hashing, .. } = self;
        let indexed = Indexed { place, hash: part_of(key.hash) };
        by_key.insert_unique(index_hash(indexed.hash), indexed, |indexed| index_hash(indexed.hash));

        let user_hash = |place: &Place| hashing.hash_one(chunks.head(*place).user_id);
        let is_of_user = |place: &Place| chunks.head(*place).user_id == put.user_id;
        let older = match by_user.find_mut(user_hash(&place), is_of_user) {
            Some(newest) => Some(std::mem::replace(newest, place)),
            None => {
                by_user.insert_unique(user_hash(&place), place, user_hash);
                None
            }
        };
        self.chunks.head_mut(place).set_older(older);
        if let Some(older) = older {
            self.chunks.head_mut(older).set_younger(Some(place));
        }
    }

    /// Removes a token and returns whether it was there.
    pub(super) fn remove(&mut self, key: Hashed<'_>) -> bool {
        let found = self.find(key);
        if let Some(place) = found {
            self.take_out(place, key.hash);
        }
        found.is_some()
    }

    pub(super) fn get(&self, key: Hashed<'_>) -> Option<Text> {
        self.find(key).map(|place| self.chunks.text(place))
    }

    /// Order numbers and tokens of a user, the youngest first.
    pub(super) fn of_user(&self, user_id: i64) -> impl Iterator<Item = (&str, Place)> {
        let hash = self.hashing.hash_one(user_id);
        let is_of_user = |place: &Place| self.chunks.head(*place).user_id == user_id;
        let newest = self.by_user.find(hash, is_of_user).copied();
        let older = |place: &Place| self.chunks.head(*place).older();
        std::iter::successors(newest, older).map(|place| (self.chunks.name(place), place))
    }

    /// The token at a place that [`of_user`](Self::of_user) gave.
    pub(super) fn text(&self, place: Place) -> Text {
        self.chunks.text(place)
    }

    /// Takes out the oldest token. `None` where there is none, or where it is on disk: see
    /// [`to_recall`](Self::to_recall).
    pub(super) fn pop_oldest(&mut self) -> Option<TokenPut> {
        let place = self.chunks.oldest()?;
        let put = self.chunks.put(place)?;
        self.take_out(place, hash_at(&self.chunks, place, &self.hashing));
        Some(put)
    }

    /// Up to `max` full chunks whose tokens are in memory and may go to disk.
    pub(super) fn full(&self, max: usize) -> impl Iterator<Item = Full> {
        self.chunks.full(max)
    }

    /// Notes that the tokens of a chunk of these are on disk.
    pub(super) fn spilled(&mut self, full: &Full, slot: &Arc<Slot>) {
        self.bytes -= self.chunks.spilled(full, slot);
    }

    /// What must be read from disk before the oldest `tokens` tokens can be taken out.
    pub(super) fn to_recall(&self, tokens: usize) -> Vec<Spilled> {
        self.chunks.to_recall(tokens)
    }

    /// Takes back what was read, if it is still wanted.
    pub(super) fn recalled(&mut self, spilled: &Spilled, tokens: Bytes) {
        self.bytes += self.chunks.recalled(spilled, tokens);
    }

    /// Takes out the tokens of a chunk that cannot be read, and returns their number.
    pub(super) fn lose(&mut self, spilled: &Spilled) -> usize {
        let lost = self.chunks.places(spilled);
        for place in &lost {
            self.take_out(*place, hash_at(&self.chunks, *place, &self.hashing));
        }
        lost.len()
    }

    fn find(&self, key: Hashed<'_>) -> Option<Place> {
        let part = part_of(key.hash);
        let is_it = |found: &Indexed| {
            found.hash == part
                && self.chunks.head(found.place).user_id == key.user_id
                && self.chunks.order(found.place) == key.name.as_bytes()
        };
        self.by_key.find(index_hash(part), is_it).map(|found| found.place)
    }

    fn take_out(&mut self, place: Place, key_hash: u64) {
        let Self { chunks, by_key, by_user, hashing, .. } = self;
        let hash = index_hash(part_of(key_hash));
        if let Ok(entry) = by_key.find_entry(hash, |found| found.place == place) {
            entry.remove();
        }
        let head = chunks.head(place);
        let (user_id, older, younger) = (head.user_id, head.older(), head.younger());
        if let Some(older) = older {
            chunks.head_mut(older).set_younger(younger);
        }
        match (younger, older) {
            (Some(younger), _) => chunks.head_mut(younger).set_older(older),
            (None, _) => {
                if let Ok(mut newest) = by_user.find_entry(hashing.hash_one(user_id), |found| *found == place)
                {
                    match older {
                        Some(older) => *newest.get_mut() = older,
                        None => drop(newest.remove()),
                    }
                }
            }
        }
        self.bytes -= chunks.leave(place);
    }
}

fn hash_at(chunks: &Chunks, place: Place, hashing: &RandomState) -> u64 {
    key_hash(hashing, chunks.head(place).user_id, chunks.order(place))
}

/// The part of a key's hash that the index keeps.
const fn part_of(hash: u64) -> u32 {
    (hash >> 32) as u32
}

/// What the index goes by. The part stands twice, as a table takes the lowest bits for the place and the highest for a
/// first comparison.
const fn index_hash(part: u32) -> u64 {
    (part as u64) << 32 | part as u64
}

fn key_hash(hashing: &RandomState, user_id: i64, name: &[u8]) -> u64 {
    hashing.hash_one((user_id, name))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::write_behind::spill::SpillFile;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn put(user_id: i64, name: u8, token: u16) -> TokenPut {
        let name = format!("order-{name}").into();
        // Some are base64url, and some are not.
        let token = format!("token{token}").into();
        TokenPut { user_id, name, token, expires_at_ms: 7 }
    }

    impl Waiting {
        fn hashed<'a>(&self, user_id: i64, name: &'a str) -> Hashed<'a> {
            Hashed::new(&self.hashing, user_id, name)
        }

        fn put_in(&mut self, put: &TokenPut) {
            self.insert(self.hashed(put.user_id, &put.name), put);
        }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(i64, u8, u16),
        Remove(i64, u8),
        Pop(usize),
        Spill(usize),
    }

    fn here(text: Text) -> Box<str> {
        match text {
            Text::Here(token) => token,
            Text::OnDisk(slot, range) => slot.read_text(range).unwrap(),
        }
    }

    /// Reads what is on disk, as the table does before it takes tokens to the store.
    fn recall(waiting: &mut Waiting, tokens: usize) {
        for spilled in waiting.to_recall(tokens) {
            let tokens = spilled.slot.read().unwrap();
            waiting.recalled(&spilled, tokens);
        }
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let user = || prop_oneof![4 => 0..3i64, 1 => -400..400i64];
        let step = prop_oneof![
            6 => (user(), any::<u8>(), any::<u16>()).prop_map(|(user, order, token)| Step::Put(user, order, token)),
            3 => (user(), any::<u8>()).prop_map(|(user, order)| Step::Remove(user, order)),
            1 => (0..40usize).prop_map(Step::Pop),
            1 => (0..3usize).prop_map(Step::Spill),
        ];
        prop::collection::vec(step, 0..3_000)
    }

    #[test]
    fn a_chunk_that_cannot_be_read_takes_its_own_tokens_along() {
        let mut waiting = Waiting::new(RandomState::default());
        for number in 0..600_u16 {
            let name = format!("order-{number}").into();
            waiting.put_in(&TokenPut { name, ..put(1, 0, number) });
        }
        let file = SpillFile::new(std::env::temp_dir());
        for full in waiting.full(1).collect::<Vec<_>>() {
            let slot = file.write(&full.tokens).unwrap();
            waiting.spilled(&full, &slot);
        }
        waiting.remove(waiting.hashed(1, "order-300"));
        let [spilled] = &waiting.to_recall(usize::MAX)[..] else { panic!("one chunk is on disk") };
        assert_eq!(waiting.lose(spilled), 254);
        assert_eq!((waiting.len(), file.slots_in_use()), (345, 1), "this test has the slot still");
        assert_eq!(waiting.of_user(1).count(), 345);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Against a list in the order of the puts.
        #[test]
        fn it_holds_what_a_list_would_hold(steps in steps(), first in any::<usize>()) {
            let mut waiting = Waiting::new(RandomState::default());
            waiting.chunks = Chunks::beginning_at(first);
            let file = SpillFile::new(std::env::temp_dir());
            let mut model: Vec<TokenPut> = Vec::new();
            let is = |put: &TokenPut, user: i64, order: &str| put.user_id == user && &*put.name == order;
            for step in steps {
                match step {
                    Step::Put(user, order, token) => {
                        let put = put(user, order, token);
                        waiting.put_in(&put);
                        model.retain(|one| !is(one, user, &put.name));
                        model.push(put);
                    }
                    Step::Remove(user, order) => {
                        let order = put(user, order, 0).name;
                        let there = model.iter().any(|one| is(one, user, &order));
                        prop_assert_eq!(waiting.remove(waiting.hashed(user, &order)), there);
                        model.retain(|one| !is(one, user, &order));
                    }
                    Step::Spill(chunks) => {
                        for full in waiting.full(chunks).collect::<Vec<_>>() {
                            let slot = file.write(&full.tokens).unwrap();
                            let before = waiting.bytes();
                            waiting.spilled(&full, &slot);
                            prop_assert_eq!(waiting.bytes(), before - full.tokens.len());
                        }
                    }
                    Step::Pop(tokens) => {
                        recall(&mut waiting, tokens);
                        for _ in 0..tokens {
                            let oldest = (!model.is_empty()).then(|| model.remove(0));
                            prop_assert_eq!(waiting.pop_oldest(), oldest);
                        }
                    }
                }
                prop_assert_eq!(waiting.len(), model.len());
            }
            for put in &model {
                let key = waiting.hashed(put.user_id, &put.name);
                prop_assert_eq!(waiting.get(key).map(here), Some(put.token.clone()));
            }
            for user in -1..3 {
                let own: BTreeMap<_, _> =
                    waiting.of_user(user).map(|(order, place)| (order.to_owned(), here(waiting.text(place)))).collect();
                let expected = model.iter().filter(|put| put.user_id == user);
                let expected: BTreeMap<_, _> =
                    expected.map(|put| (String::from(&*put.name), put.token.clone())).collect();
                prop_assert_eq!(own, expected);
            }
            recall(&mut waiting, usize::MAX);
            while waiting.pop_oldest().is_some() {}
            prop_assert_eq!((waiting.bytes(), waiting.len(), waiting.chunks.len()), (0, 0, 0));
            prop_assert_eq!(file.slots_in_use(), 0);
        }
    }
}
