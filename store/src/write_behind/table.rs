//! The tokens between their senders and their store: which of them wait, which are being written, and which are not
//! wanted any more.

use super::chunks::{Full, Spilled, Text};
use super::spill::Slot;
use super::waiting::{Hashed, Waiting};
use bytes::Bytes;
use foldhash::quality::RandomState;
use hashbrown::HashTable;
use std::collections::BTreeMap;
use std::sync::Arc;
use windfall_contract::tokens::{StoredToken, TokenKey, TokenPut, name};

/// The limits of a table.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// Bytes of all waiting tokens, with what their places in the table take.
    pub(super) waiting_bytes: usize,
    /// Removals that wait for the store.
    pub(super) removals: usize,
    /// Credits that are remembered for puts that come late, in each of two generations.
    pub(super) remembered: usize,
}

/// The outcome of a put.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Taken {
    Waits,
    /// The reward of this token was credited before the token was put.
    Cancelled,
    /// There is no room now.
    Full,
}

/// Each token is in `young`, moves to `old` with all of them, from there to `writing`, and from there to the store.
/// A key may be in several of them, if it was put again; the youngest counts.
pub(super) struct Table {
    bounds: Bounds,
    hashing: RandomState,
    young: Waiting,
    old: Waiting,
    /// The tokens that the store is being given, sorted by key. It may have them already, or not.
    writing: Arc<Vec<TokenPut>>,
    removals: Vec<TokenKey>,
    credited: Remembered,
}

impl Table {
    pub(super) fn new(bounds: Bounds) -> Self {
        let hashing = RandomState::default();
        Self {
            bounds,
            young: Waiting::new(hashing.clone()),
            old: Waiting::new(hashing.clone()),
            hashing,
            writing: Arc::default(),
            removals: Vec::new(),
            credited: Remembered::new(bounds.remembered),
        }
    }

    pub(super) fn put(&mut self, put: &TokenPut) -> Taken {
        let key = Hashed::new(&self.hashing, put.user_id, &put.name);
        if self.credited.has(key.hash) {
            return Taken::Cancelled;
        }
        if self.bytes() >= self.bounds.waiting_bytes {
            return Taken::Full;
        }
        self.young.insert(key, put);
        Taken::Waits
    }

    /// Takes back a token whose reward was credited. Returns whether it was waiting, and whether the store will be told
    /// to remove it.
    pub(super) fn credited(&mut self, user_id: i64, activity: &str, trade_no: &str) -> (bool, bool) {
        let own = name(activity, trade_no);
        let key = Hashed::new(&self.hashing, user_id, &own);
        let [young, old] = [&mut self.young, &mut self.old].map(|waiting| waiting.remove(key));
        let is_cancelled = young || old;
        // It may be in the store, on its way there, have yet to come here, or come again: a writer whose batch was
        // taken in part repeats the whole of it.
        self.credited.add(key.hash);
        // Told in any case: an earlier put of the same order may be there.
        let is_told = self.removals.len() < self.bounds.removals;
        if is_told {
            self.removals.push(TokenKey { user_id, name: own });
        }
        (is_cancelled, is_told)
    }

    /// Takes a token back without a word to the store. One that is being written must be waited for first.
    pub(super) fn forget(&mut self, key: &TokenKey) {
        let key = Hashed::new(&self.hashing, key.user_id, &key.name);
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(super) fn take_removals(&mut self, max: usize) -> Vec<TokenKey> {
        let rest = self.removals.split_off(self.removals.len().min(max));
        std::mem::replace(&mut self.removals, rest)
    }

    pub(super) fn put_back_removals(&mut self, mut removals: Vec<TokenKey>) {
        removals.append(&mut self.removals);
        self.removals = removals;
    }

    /// Moves the young tokens to the old ones, if no old one is left.
    pub(super) fn turn(&mut self) -> bool {
        let turns = self.old.len() == 0 && self.young.len() > 0;
        if turns {
            std::mem::swap(&mut self.young, &mut self.old);
        }
        turns
    }

    /// Whether tokens have to go to disk: when a quarter of the memory is in use.
    pub(super) fn is_to_spill(&self) -> bool {
        self.bytes() >= self.bounds.waiting_bytes / 4
    }

    /// Up to `max` chunks of tokens that may go to disk. [`Self::spilled`] follows where one has got there.
    pub(super) fn full(&self, max: usize) -> Vec<Full> {
        self.young.full(max).chain(self.old.full(max)).take(max).collect()
    }

    /// Notes where the tokens of a chunk are on disk.
    pub(super) fn spilled(&mut self, full: &Full, slot: &Arc<Slot>) {
        // It may have turned old meanwhile.
        self.young.spilled(full, slot);
        self.old.spilled(full, slot);
    }

    /// What must be read from disk before as many old tokens can be taken.
    pub(super) fn to_recall(&self, max: usize) -> Vec<Spilled> {
        self.old.to_recall(max)
    }

    /// Takes back a chunk from disk, or takes out its tokens where it could not be read. Returns how many tokens are lost.
    pub(super) fn recalled(&mut self, spilled: &Spilled, tokens: Option<Bytes>) -> usize {
        match tokens {
            Some(tokens) => {
                self.old.recalled(spilled, tokens);
                0
            }
            None => self.old.lose(spilled),
        }
    }

    /// Takes old tokens to be written, as far as they are in memory. [`Self::written_all`] or [`Self::put_back`] must
    /// follow.
    pub(super) fn take_old(&mut self, max: usize) -> Arc<Vec<TokenPut>> {
        let mut batch = Vec::with_capacity(max.min(self.old.len()));
        while batch.len() < max
            && let Some(put) = self.old.pop_oldest()
        {
            batch.push(put);
        }
        // A store writes neighbours more cheaply, and `written` searches in this order.
        batch.sort_unstable_by(|a, b| (a.user_id, &a.name).cmp(&(b.user_id, &b.name)));
        self.writing = Arc::new(batch);
        Arc::clone(&self.writing)
    }

    pub(super) fn written_all(&mut self) {
        self.writing = Arc::default();
    }

    /// Puts the tokens back that the store did not take, or not all of them: they wait again, except for those that
    /// were credited meanwhile.
    pub(super) fn put_back(&mut self) {
        for put in std::mem::take(&mut self.writing).iter() {
            let key = Hashed::new(&self.hashing, put.user_id, &put.name);
            if !self.credited.has(key.hash) {
                self.old.insert(key, put);
            }
        }
    }

    pub(super) fn get(&self, key: &TokenKey) -> Option<Text> {
        let hashed = Hashed::new(&self.hashing, key.user_id, &key.name);
        let waiting = self.young.get(hashed).or_else(|| self.old.get(hashed));
        waiting.or_else(|| self.written(key).map(|put| Text::Here(put.token.clone())))
    }

    /// The tokens of a user's page that are not in the store yet, by name; at most `limit` from the beginning.
    pub(super) fn list(&self, user_id: i64, after: Option<&str>, limit: usize) -> BTreeMap<Box<str>, Text> {
        let first = TokenKey { user_id, name: after.unwrap_or_default().into() };
        let is_before = |put: &TokenPut| match (put.user_id, &*put.name).cmp(&(user_id, &first.name)) {
            std::cmp::Ordering::Equal => after.is_some(),
            order => order.is_lt(),
        };
        let start = self.writing.partition_point(is_before);
        let written = self.writing[start..].iter().take_while(|put| put.user_id == user_id).take(limit);
        let written = written.map(|put| (put.name.clone(), Text::Here(put.token.clone())));
        let mut page: BTreeMap<_, _> = written.collect();
        for waiting in [&self.old, &self.young] {
            let own = waiting.of_user(user_id).filter(|(order, _)| after.is_none_or(|after| *order > after));
            for (name, place) in own {
                let is_in_page = page.len() < limit
                    || page.contains_key(name)
                    || page.last_key_value().is_some_and(|(last, _)| name < &**last);
                if is_in_page {
                    page.insert(name.into(), waiting.text(place));
                }
                if page.len() > limit {
                    page.pop_last();
                }
            }
        }
        page
    }

    /// Tokens that the store does not have yet.
    pub(super) fn waiting(&self) -> usize {
        self.young.len() + self.old.len() + self.writing.len()
    }

    /// Whether there is nothing to be done, now or later.
    pub(super) fn is_idle(&self) -> bool {
        self.waiting() == 0 && self.removals.is_empty()
    }

    /// Whether it is half full: then tokens are written whatever their age.
    pub(super) fn is_pressed(&self) -> bool {
        self.bytes() >= self.bounds.waiting_bytes / 2
    }

    fn bytes(&self) -> usize {
        self.young.bytes() + self.old.bytes()
    }

    fn written(&self, key: &TokenKey) -> Option<&TokenPut> {
        let order = |put: &TokenPut| (put.user_id, &put.name).cmp(&(key.user_id, &key.name));
        self.writing.binary_search_by(order).ok().and_then(|at| self.writing.get(at))
    }
}

/// The latest credits, by the hashes of their keys: between one and two generations of them.
struct Remembered {
    now: HashTable<u64>,
    before: HashTable<u64>,
    generation: usize,
}

impl Remembered {
    fn new(generation: usize) -> Self {
        Self { now: HashTable::new(), before: HashTable::new(), generation }
    }

    fn add(&mut self, hash: u64) {
        if self.now.len() >= self.generation {
            std::mem::swap(&mut self.now, &mut self.before);
            self.now.clear();
        }
        self.now.entry(hash, |known| *known == hash, |known| *known).or_insert(hash);
    }

    fn has(&self, hash: u64) -> bool {
        [&self.now, &self.before].iter().any(|known| known.find(hash, |known| *known == hash).is_some())
    }
}

/// The first `limit` of a page whose younger part is `waiting`.
pub(super) fn merge(
    stored: Vec<StoredToken>,
    mut waiting: BTreeMap<Box<str>, Box<str>>,
    limit: usize,
) -> Vec<StoredToken> {
    for StoredToken { name, token } in stored {
        waiting.entry(name).or_insert(token);
    }
    waiting.into_iter().take(limit).map(|(name, token)| StoredToken { name, token }).collect()
}
