//! Tokens that wait, in the order in which they came.
//!
//! Their texts lie in chunks, one after the other, so that a token costs no allocation of its own; one index finds a
//! token by its key, another the tokens of a user. A chunk is freed when the last of its tokens has left: tokens
//! leave about in the order in which they came, so that few chunks are kept for few tokens.

use crate::packing::{packed, unpacked};
use hashbrown::HashTable;
use std::collections::VecDeque;
use std::hash::{BuildHasher, RandomState};
use windfall_contract::tokens::TokenPut;

/// Tokens in one chunk.
const CHUNK_TOKENS: usize = 256;
/// The number at which the chunks' numbers begin at 0 again.
const CHUNK_NUMBERS: usize = 1 << 24;
/// The bytes of memory that a token takes beside its two texts: its head, and its part of the two indexes.
const TOKEN_BYTES: usize = size_of::<Head>() + 24;

/// Tokens by key, the oldest first. A token that is put again takes the place of the earlier one and is young again.
pub(super) struct Waiting {
    chunks: Chunks,
    by_key: HashTable<Place>,
    /// The youngest token of each user.
    by_user: HashTable<Place>,
    hashing: RandomState,
    bytes: usize,
}

/// Where a token lies: the number of its chunk times [`CHUNK_TOKENS`], and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

struct Chunks {
    /// The chunks, the oldest first. A freed one stays as an empty chunk until it is the oldest.
    list: VecDeque<Chunk>,
    /// The number of the oldest chunk.
    first: usize,
}

#[derive(Default)]
struct Chunk {
    heads: Vec<Head>,
    /// The order number and the packed token of each entry, one after the other.
    texts: Vec<u8>,
    live: usize,
    /// Tokens before this index have left.
    oldest: usize,
}

struct Head {
    user_id: i64,
    expires_at_ms: u64,
    text_at: usize,
    trade_no_bytes: usize,
    token_bytes: usize,
    /// The next older and younger tokens of the same user.
    older: Option<Place>,
    younger: Option<Place>,
    is_live: bool,
}

impl Waiting {
    pub(super) fn new() -> Self {
        Self {
            chunks: Chunks { list: VecDeque::new(), first: 0 },
            by_key: HashTable::new(),
            by_user: HashTable::new(),
            hashing: RandomState::new(),
            bytes: 0,
        }
    }

    /// The number of tokens.
    pub(super) fn len(&self) -> usize {
        self.by_key.len()
    }

    /// The memory that they take.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn insert(&mut self, put: &TokenPut) {
        self.remove(put.user_id, &put.trade_no);
        let token = packed(&put.token);
        self.bytes += TOKEN_BYTES + put.trade_no.len() + token.len();
        let place = self.chunks.append(put, &token);
        let Self { chunks, by_key, by_user, hashing, .. } = self;
        let key_hash = |place: &Place| chunks.key_hash(*place, hashing);
        by_key.insert_unique(key_hash(&place), place, key_hash);

        let user_hash = |place: &Place| hashing.hash_one(chunks.head(*place).user_id);
        let is_of_user = |place: &Place| chunks.head(*place).user_id == put.user_id;
        let older = match by_user.find_mut(user_hash(&place), is_of_user) {
            Some(newest) => Some(std::mem::replace(newest, place)),
            None => {
                by_user.insert_unique(user_hash(&place), place, user_hash);
                None
            }
        };
        self.chunks.head_mut(place).older = older;
        if let Some(older) = older {
            self.chunks.head_mut(older).younger = Some(place);
        }
    }

    /// Removes a token and returns whether it was there.
    pub(super) fn remove(&mut self, user_id: i64, trade_no: &str) -> bool {
        let found = self.find(user_id, trade_no);
        if let Some(place) = found {
            self.take_out(place);
        }
        found.is_some()
    }

    pub(super) fn get(&self, user_id: i64, trade_no: &str) -> Option<Box<str>> {
        self.find(user_id, trade_no).map(|place| self.chunks.token(place))
    }

    /// Order numbers and tokens of a user, the youngest first.
    pub(super) fn of_user(&self, user_id: i64) -> impl Iterator<Item = (&str, Place)> {
        let hash = self.hashing.hash_one(user_id);
        let is_of_user = |place: &Place| self.chunks.head(*place).user_id == user_id;
        let newest = self.by_user.find(hash, is_of_user).copied();
        let older = |place: &Place| self.chunks.head(*place).older;
        std::iter::successors(newest, older).map(|place| (self.chunks.trade_no(place), place))
    }

    /// The token at a place that [`of_user`](Self::of_user) gave.
    pub(super) fn token(&self, place: Place) -> Box<str> {
        self.chunks.token(place)
    }

    /// Takes out the oldest token.
    pub(super) fn pop_oldest(&mut self) -> Option<TokenPut> {
        let place = self.chunks.oldest()?;
        let head = self.chunks.head(place);
        let put = TokenPut {
            user_id: head.user_id,
            trade_no: self.chunks.trade_no(place).into(),
            token: self.chunks.token(place),
            expires_at_ms: head.expires_at_ms,
        };
        self.take_out(place);
        Some(put)
    }

    fn find(&self, user_id: i64, trade_no: &str) -> Option<Place> {
        let hash = self.hashing.hash_one((user_id, trade_no));
        let is_it = |place: &Place| {
            self.chunks.head(*place).user_id == user_id && self.chunks.trade_no(*place) == trade_no
        };
        self.by_key.find(hash, is_it).copied()
    }

    fn take_out(&mut self, place: Place) {
        let Self { chunks, by_key, by_user, hashing, .. } = self;
        if let Ok(entry) = by_key.find_entry(chunks.key_hash(place, hashing), |found| *found == place) {
            entry.remove();
        }
        let &Head { user_id, older, younger, .. } = chunks.head(place);
        if let Some(older) = older {
            chunks.head_mut(older).younger = younger;
        }
        match (younger, older) {
            (Some(younger), _) => chunks.head_mut(younger).older = older,
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

impl Chunks {
    fn append(&mut self, put: &TokenPut, token: &[u8]) -> Place {
        if self.list.back().is_none_or(|chunk| chunk.heads.len() == CHUNK_TOKENS) {
            if let Some(full) = self.list.back_mut() {
                full.texts.shrink_to_fit();
            }
            self.list.push_back(Chunk::default());
        }
        let at = self.list.len() - 1;
        let chunk = &mut self.list[at];
        let place = Place::new(self.first.wrapping_add(at), chunk.heads.len());
        chunk.heads.push(Head {
            user_id: put.user_id,
            expires_at_ms: put.expires_at_ms,
            text_at: chunk.texts.len(),
            trade_no_bytes: put.trade_no.len(),
            token_bytes: token.len(),
            older: None,
            younger: None,
            is_live: true,
        });
        chunk.texts.extend_from_slice(put.trade_no.as_bytes());
        chunk.texts.extend_from_slice(token);
        chunk.live += 1;
        place
    }

    /// Notes that a token has left. Returns the bytes of memory that are free now: those of its chunk, if it was the
    /// last one there.
    fn leave(&mut self, place: Place) -> usize {
        let (at, index) = self.at(place);
        let chunk = &mut self.list[at];
        chunk.heads[index].is_live = false;
        chunk.live -= 1;
        if chunk.live > 0 {
            return 0;
        }
        let freed = chunk.heads.len() * TOKEN_BYTES + chunk.texts.len();
        *chunk = Chunk::default();
        while self.list.front().is_some_and(|oldest| oldest.live == 0) {
            self.list.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        freed
    }

    fn oldest(&mut self) -> Option<Place> {
        // The oldest chunk has a token, or it would be gone.
        let chunk = self.list.front_mut()?;
        while chunk.heads.get(chunk.oldest).is_some_and(|head| !head.is_live) {
            chunk.oldest += 1;
        }
        Some(Place::new(self.first, chunk.oldest))
    }

    /// Where a place is now: the chunk's place in the list, and the index in it.
    fn at(&self, place: Place) -> (usize, usize) {
        let place = place.0 as usize;
        ((place / CHUNK_TOKENS).wrapping_sub(self.first) % CHUNK_NUMBERS, place % CHUNK_TOKENS)
    }

    fn head(&self, place: Place) -> &Head {
        let (at, index) = self.at(place);
        &self.list[at].heads[index]
    }

    fn head_mut(&mut self, place: Place) -> &mut Head {
        let (at, index) = self.at(place);
        &mut self.list[at].heads[index]
    }

    fn trade_no(&self, place: Place) -> &str {
        let (at, index) = self.at(place);
        let Chunk { heads, texts, .. } = &self.list[at];
        let Head { text_at, trade_no_bytes, .. } = heads[index];
        // What was text when it was appended is text again.
        str::from_utf8(&texts[text_at..text_at + trade_no_bytes]).unwrap_or_default()
    }

    fn token(&self, place: Place) -> Box<str> {
        let (at, index) = self.at(place);
        let Chunk { heads, texts, .. } = &self.list[at];
        let Head { text_at, trade_no_bytes, token_bytes, .. } = heads[index];
        let packed = &texts[text_at + trade_no_bytes..][..token_bytes];
        // What was text when it was packed is text again.
        unpacked(packed).unwrap_or_default()
    }

    fn key_hash(&self, place: Place, hashing: &RandomState) -> u64 {
        hashing.hash_one((self.head(place).user_id, self.trade_no(place)))
    }
}

impl Place {
    fn new(chunk_number: usize, index: usize) -> Self {
        let place = chunk_number % CHUNK_NUMBERS * CHUNK_TOKENS + index;
        // Both factors together are 2^32.
        Self(u32::try_from(place).unwrap_or(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn put(user_id: i64, trade_no: u8, token: u16) -> TokenPut {
        let trade_no = format!("order-{trade_no}").into();
        // Some are base64url, and some are not.
        let token = format!("token{token}").into();
        TokenPut { user_id, trade_no, token, expires_at_ms: 7 }
    }

    #[derive(Debug, Clone)]
    enum Step {
        Put(i64, u8, u16),
        Remove(i64, u8),
        Pop(usize),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let user = || prop_oneof![4 => 0..3i64, 1 => -400..400i64];
        let step = prop_oneof![
            6 => (user(), any::<u8>(), any::<u16>()).prop_map(|(user, order, token)| Step::Put(user, order, token)),
            3 => (user(), any::<u8>()).prop_map(|(user, order)| Step::Remove(user, order)),
            1 => (0..40usize).prop_map(Step::Pop),
        ];
        prop::collection::vec(step, 0..3_000)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Against a list in the order of the puts.
        #[test]
        fn it_holds_what_a_list_would_hold(steps in steps(), first in any::<usize>()) {
            let mut waiting = Waiting::new();
            waiting.chunks.first = first;
            let mut model: Vec<TokenPut> = Vec::new();
            let is = |put: &TokenPut, user: i64, order: &str| put.user_id == user && &*put.trade_no == order;
            for step in steps {
                match step {
                    Step::Put(user, order, token) => {
                        let put = put(user, order, token);
                        waiting.insert(&put);
                        model.retain(|one| !is(one, user, &put.trade_no));
                        model.push(put);
                    }
                    Step::Remove(user, order) => {
                        let order = put(user, order, 0).trade_no;
                        let there = model.iter().any(|one| is(one, user, &order));
                        prop_assert_eq!(waiting.remove(user, &order), there);
                        model.retain(|one| !is(one, user, &order));
                    }
                    Step::Pop(tokens) => {
                        for _ in 0..tokens {
                            let oldest = (!model.is_empty()).then(|| model.remove(0));
                            prop_assert_eq!(waiting.pop_oldest(), oldest);
                        }
                    }
                }
                prop_assert_eq!(waiting.len(), model.len());
            }
            for put in &model {
                prop_assert_eq!(waiting.get(put.user_id, &put.trade_no), Some(put.token.clone()));
            }
            for user in -1..3 {
                let own: BTreeMap<_, _> =
                    waiting.of_user(user).map(|(order, place)| (order.to_owned(), waiting.token(place))).collect();
                let expected = model.iter().filter(|put| put.user_id == user);
                let expected: BTreeMap<_, _> =
                    expected.map(|put| (String::from(&*put.trade_no), put.token.clone())).collect();
                prop_assert_eq!(own, expected);
            }
            while waiting.pop_oldest().is_some() {}
            prop_assert_eq!((waiting.bytes(), waiting.len(), waiting.chunks.list.len()), (0, 0, 0));
        }
    }
}
