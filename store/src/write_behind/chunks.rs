//! Waiting tokens in chunks, one after the other, so that a token costs no allocation of its own.
//!
//! A chunk is freed when the last of its tokens has left: tokens leave about in the order in which they came, so that
//! few chunks are kept for few tokens. The tokens of a full chunk may lie [on disk](super::spill); what finds them stays
//! in memory.

use super::spill::{SLOT_BYTES, Slot};
use crate::packing::{packed, unpacked};
use bytes::Bytes;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use windfall_contract::tokens::TokenPut;

/// What the number of a chunk is multiplied with in a place.
const CHUNK_TOKENS: usize = 256;
/// Tokens in one chunk: one less, so that a number is left that is no place.
const CHUNK_FULL: usize = CHUNK_TOKENS - 1;
/// The number at which the chunks' numbers begin at 0 again.
const CHUNK_NUMBERS: usize = 1 << 24;
/// The bytes of memory that a token takes beside its two texts: its head, and its part of the two indexes.
const TOKEN_BYTES: usize = size_of::<Head>() + 32;

/// The chunks, the oldest first.
pub(super) struct Chunks {
    /// A freed chunk stays as an empty one until it is the oldest.
    list: VecDeque<Chunk>,
    /// The number of the oldest chunk.
    first: usize,
}

/// Where a token lies: the number of its chunk times [`CHUNK_TOKENS`], and its index there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place(u32);

/// The text of a token, or where it is on disk.
#[derive(Debug, Clone)]
pub(super) enum Text {
    Here(Box<str>),
    OnDisk(Arc<Slot>, Range<usize>),
}

/// The tokens of a full chunk, which are to be written to disk.
pub(super) struct Full {
    number: usize,
    pub(super) tokens: Bytes,
}

/// The tokens of a chunk on disk, which are to be read.
pub(super) struct Spilled {
    number: usize,
    pub(super) slot: Arc<Slot>,
}

#[derive(Default)]
struct Chunk {
    heads: Vec<Head>,
    /// The name of each token, one after the other.
    orders: Vec<u8>,
    tokens: Tokens,
    /// One bit for each token that has not left.
    live: [u64; CHUNK_TOKENS / 64],
    /// Tokens before this index have left.
    oldest: usize,
}

/// The packed tokens of a chunk, one after the other.
enum Tokens {
    Open(Vec<u8>),
    Full(Bytes),
    OnDisk(Arc<Slot>),
}

pub(super) struct Head {
    pub(super) user_id: i64,
    expires_at_ms: u64,
    /// Where its texts end; they begin where those of the token before it end.
    order_end: u32,
    token_end: u32,
    /// The next older and younger tokens of the same user.
    older: Link,
    younger: Link,
}

/// A place, or none. It takes half the memory of an `Option`.
#[derive(Clone, Copy)]
struct Link(u32);

impl Chunks {
    pub(super) fn new() -> Self {
        Self { list: VecDeque::new(), first: 0 }
    }

    /// Appends a token. Returns its place, and the bytes of memory that it takes.
    pub(super) fn append(&mut self, put: &TokenPut) -> (Place, usize) {
        if self.list.back().is_none_or(|chunk| chunk.heads.len() == CHUNK_FULL) {
            if let Some(chunk) = self.list.back_mut() {
                chunk.fill_up();
            }
            self.list.push_back(Chunk::default());
        }
        let at = self.list.len() - 1;
        let chunk = &mut self.list[at];
        let index = chunk.heads.len();
        let token = packed(&put.token);
        let Tokens::Open(tokens) = &mut chunk.tokens else {
            unreachable!("the youngest chunk is open until the next one is begun")
        };
        tokens.extend_from_slice(&token);
        chunk.orders.extend_from_slice(put.name.as_bytes());
        chunk.heads.push(Head {
            user_id: put.user_id,
            expires_at_ms: put.expires_at_ms,
            order_end: offset(chunk.orders.len()),
            token_end: offset(tokens.len()),
            older: Link::NONE,
            younger: Link::NONE,
        });
        chunk.live[index / 64] |= 1 << (index % 64);
        let place = Place::new(self.first.wrapping_add(at), index);
        (place, TOKEN_BYTES + put.name.len() + token.len())
    }

    /// Notes that a token has left. Returns the bytes of memory that are free now: those of its chunk, if it was the
    /// last one there.
    pub(super) fn leave(&mut self, place: Place) -> usize {
        let (at, index) = self.at(place);
        let chunk = &mut self.list[at];
        chunk.live[index / 64] &= !(1 << (index % 64));
        if !chunk.is_empty() {
            return 0;
        }
        let freed = chunk.heads.len() * TOKEN_BYTES + chunk.orders.len() + chunk.tokens.bytes();
        *chunk = Chunk::default();
        while self.list.front().is_some_and(Chunk::is_empty) {
            self.list.pop_front();
            self.first = self.first.wrapping_add(1);
        }
        freed
    }

    pub(super) fn oldest(&mut self) -> Option<Place> {
        // The oldest chunk has a token, or it would be gone.
        let chunk = self.list.front_mut()?;
        while chunk.oldest < chunk.heads.len() && !chunk.is_live(chunk.oldest) {
            chunk.oldest += 1;
        }
        Some(Place::new(self.first, chunk.oldest))
    }

    /// Up to `max` full chunks whose tokens are in memory, the youngest first: the oldest ones go to the store next.
    pub(super) fn full(&self, max: usize) -> impl Iterator<Item = Full> {
        let full = self.list.iter().enumerate().rev().filter_map(|(at, chunk)| match &chunk.tokens {
            Tokens::Full(tokens) if tokens.len() <= SLOT_BYTES => {
                Some(Full { number: self.first.wrapping_add(at), tokens: tokens.clone() })
            }
            _ => None,
        });
        full.take(max)
    }

    /// Notes that the tokens of a chunk are on disk, if it still has them. Returns the bytes of memory that are free now.
    pub(super) fn spilled(&mut self, full: &Full, slot: &Arc<Slot>) -> usize {
        let Some(chunk) = self.numbered(full.number) else { return 0 };
        match &chunk.tokens {
            Tokens::Full(tokens) if is_same(tokens, &full.tokens) => {
                chunk.tokens = Tokens::OnDisk(Arc::clone(slot));
                full.tokens.len()
            }
            _ => 0,
        }
    }

    /// The chunks on disk of which one of the oldest `tokens` tokens is a part.
    pub(super) fn to_recall(&self, tokens: usize) -> Vec<Spilled> {
        let mut seen = 0;
        let mut wanted = Vec::new();
        for (at, chunk) in self.list.iter().enumerate() {
            if seen >= tokens {
                break;
            }
            seen += chunk.live.iter().map(|word| word.count_ones() as usize).sum::<usize>();
            if let Tokens::OnDisk(slot) = &chunk.tokens {
                wanted.push(Spilled { number: self.first.wrapping_add(at), slot: Arc::clone(slot) });
            }
        }
        wanted
    }

    /// Notes that the tokens of a chunk are in memory again. Returns the bytes of memory that they take.
    pub(super) fn recalled(&mut self, spilled: &Spilled, tokens: Bytes) -> usize {
        match self.on_disk(spilled) {
            Some(chunk) => {
                let bytes = tokens.len();
                chunk.tokens = Tokens::Full(tokens);
                bytes
            }
            None => 0,
        }
    }

    /// The places of the tokens of a chunk on disk.
    pub(super) fn places(&mut self, spilled: &Spilled) -> Vec<Place> {
        let number = spilled.number;
        self.on_disk(spilled).map_or_else(Vec::new, |chunk| {
            let live = (0..chunk.heads.len()).filter(|index| chunk.is_live(*index));
            live.map(|index| Place::new(number, index)).collect()
        })
    }

    pub(super) fn head(&self, place: Place) -> &Head {
        let (at, index) = self.at(place);
        &self.list[at].heads[index]
    }

    pub(super) fn head_mut(&mut self, place: Place) -> &mut Head {
        let (at, index) = self.at(place);
        &mut self.list[at].heads[index]
    }

    pub(super) fn name(&self, place: Place) -> &str {
        // What was text when it was appended is text again.
        str::from_utf8(self.order(place)).unwrap_or_default()
    }

    /// The bytes of the name.
    pub(super) fn order(&self, place: Place) -> &[u8] {
        let (at, index) = self.at(place);
        let chunk = &self.list[at];
        &chunk.orders[chunk.range(index, |head| head.order_end)]
    }

    pub(super) fn text(&self, place: Place) -> Text {
        let (at, index) = self.at(place);
        let chunk = &self.list[at];
        let range = chunk.range(index, |head| head.token_end);
        match &chunk.tokens {
            Tokens::Open(tokens) => Text::Here(text(&tokens[range])),
            Tokens::Full(tokens) => Text::Here(text(&tokens[range])),
            Tokens::OnDisk(slot) => Text::OnDisk(Arc::clone(slot), range),
        }
    }

    /// The token with its name, or `None` where its text is on disk.
    pub(super) fn put(&self, place: Place) -> Option<TokenPut> {
        let Text::Here(token) = self.text(place) else { return None };
        let Head { user_id, expires_at_ms, .. } = *self.head(place);
        Some(TokenPut { user_id, name: self.name(place).into(), token, expires_at_ms })
    }

    fn numbered(&mut self, number: usize) -> Option<&mut Chunk> {
        self.list.get_mut(number.wrapping_sub(self.first))
    }

    fn on_disk(&mut self, spilled: &Spilled) -> Option<&mut Chunk> {
        self.numbered(spilled.number)
            .filter(|chunk| matches!(&chunk.tokens, Tokens::OnDisk(slot) if Arc::ptr_eq(slot, &spilled.slot)))
    }

    /// Where a place is now: the chunk's place in the list, and the index in it.
    fn at(&self, place: Place) -> (usize, usize) {
        let place = place.0 as usize;
        ((place / CHUNK_TOKENS).wrapping_sub(self.first) % CHUNK_NUMBERS, place % CHUNK_TOKENS)
    }

    #[cfg(test)]
    pub(super) fn beginning_at(first: usize) -> Self {
        Self { list: VecDeque::new(), first }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.list.len()
    }
}

impl Chunk {
    fn is_empty(&self) -> bool {
        self.live == [0; CHUNK_TOKENS / 64]
    }

    fn is_live(&self, index: usize) -> bool {
        self.live[index / 64] & 1 << (index % 64) != 0
    }

    /// No token comes any more.
    fn fill_up(&mut self) {
        self.orders.shrink_to_fit();
        if let Tokens::Open(tokens) = &mut self.tokens {
            self.tokens = Tokens::Full(std::mem::take(tokens).into_boxed_slice().into());
        }
    }

    fn range(&self, index: usize, end: impl Fn(&Head) -> u32) -> Range<usize> {
        let begin = index.checked_sub(1).map_or(0, |before| end(&self.heads[before]));
        begin as usize..end(&self.heads[index]) as usize
    }
}

impl Tokens {
    /// The memory that they take.
    fn bytes(&self) -> usize {
        match self {
            Self::Open(tokens) => tokens.len(),
            Self::Full(tokens) => tokens.len(),
            Self::OnDisk(_) => 0,
        }
    }
}

impl Default for Tokens {
    fn default() -> Self {
        Self::Open(Vec::new())
    }
}

impl Head {
    pub(super) fn older(&self) -> Option<Place> {
        self.older.place()
    }

    pub(super) fn younger(&self) -> Option<Place> {
        self.younger.place()
    }

    pub(super) fn set_older(&mut self, place: Option<Place>) {
        self.older = Link::to(place);
    }

    pub(super) fn set_younger(&mut self, place: Option<Place>) {
        self.younger = Link::to(place);
    }
}

impl Link {
    /// No chunk has a token at its last index.
    const NONE: Self = Self(u32::MAX);

    fn to(place: Option<Place>) -> Self {
        place.map_or(Self::NONE, |place| Self(place.0))
    }

    fn place(self) -> Option<Place> {
        (self.0 != u32::MAX).then_some(Place(self.0))
    }
}

impl Place {
    fn new(chunk_number: usize, index: usize) -> Self {
        let place = chunk_number % CHUNK_NUMBERS * CHUNK_TOKENS + index;
        // Both factors together are below 2^32.
        Self(u32::try_from(place).unwrap_or(u32::MAX))
    }
}

/// A token's text from its packed bytes.
pub(super) fn text(packed: &[u8]) -> Box<str> {
    // What was text when it was packed is text again.
    unpacked(packed).unwrap_or_default()
}

fn is_same(one: &Bytes, other: &Bytes) -> bool {
    one.as_ptr() == other.as_ptr() && one.len() == other.len()
}

/// A place in a chunk's texts, which are far shorter than 4 GiB: a name has less than 64 KiB, and so has a
/// token.
fn offset(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
