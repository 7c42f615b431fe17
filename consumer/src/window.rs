//! The delivered and not yet committed records of one partition under one assignment.
//!
//! A linked list of fixed blocks, one bit per offset: 1 is "not finished". A block starts with every bit set and a
//! [`Ticket`] clears its own, so delivery writes nothing shared and finishing is one atomic instruction on any
//! thread. Offsets that were never delivered (compaction, transaction markers) are cleared when the next delivery
//! shows the gap; gaps wider than a block cost nothing. The position to commit is the first set bit below the
//! last delivered offset, or the offset after it.

use crate::sync::{Arc, AtomicBool, AtomicU64, Ordering};
use std::collections::LinkedList;
use windfall_contract::finished::{Finished, FinishedWords};

/// Offsets that one block covers.
pub const BLOCK_OFFSETS: u64 = 1024;
const WORDS: usize = 16;
const _: () = assert!(WORDS as u64 * 64 == BLOCK_OFFSETS);

/// A record that must not be taken: the window has its offset, or a later one, already.
///
/// Leave the record aside: the first delivery of the offset is in flight or finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("offset {offset} was delivered after offset {} already had been", .next.saturating_sub(1))]
pub struct NotAscending {
    /// The offset delivered.
    pub offset: u64,
    /// The lowest that could have been.
    pub next: u64,
}

/// Tickets that were dropped without being finished. Each pins its record until the partition is assigned anew.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Dropped {
    /// The number of dropped tickets.
    pub count: u64,
    /// The lowest offset among them.
    pub first_offset: u64,
}

/// The window of one partition under one assignment. One thread delivers and commits; any thread finishes.
///
/// Dropping it ends the assignment: what its tickets do afterwards has no effect.
#[derive(Debug)]
pub struct Window {
    /// Undelivered offsets of every block but the last are cleared; of the last, those below `next`.
    blocks: LinkedList<Arc<Block>>,
    /// The first word of the front block that may still hold a set bit.
    front_word: usize,
    /// One more than the last delivered offset.
    next: u64,
    assignment: Arc<Assignment>,
    /// A block whose records are all finished, kept for the next one.
    spare: Option<Arc<Block>>,
}

/// The duty to finish one record.
///
/// Dropped unfinished it pins its record and is reported by [`Window::dropped`].
#[derive(Debug)]
#[must_use = "a dropped ticket pins its record; finish it"]
pub struct Ticket {
    /// `None` once finished.
    block: Option<Arc<Block>>,
    slot: u16,
}

#[derive(Debug)]
struct Block {
    first: u64,
    unfinished: [AtomicU64; WORDS],
    assignment: Arc<Assignment>,
}

#[derive(Debug)]
struct Assignment {
    epoch: u32,
    over: AtomicBool,
    dropped: AtomicU64,
    first_dropped: AtomicU64,
}

impl Window {
    /// The window of an assignment that reads from `next_offset` on.
    pub fn new(epoch: u32, next_offset: u64) -> Self {
        let assignment = Assignment {
            epoch,
            over: AtomicBool::new(false),
            dropped: AtomicU64::new(0),
            first_dropped: AtomicU64::new(u64::MAX),
        };
        Self {
            blocks: LinkedList::new(),
            front_word: 0,
            next: next_offset,
            assignment: Arc::new(assignment),
            spare: None,
        }
    }

    /// Takes a delivered record into the window.
    ///
    /// # Errors
    /// [`NotAscending`]: the offset, or one above it, is here already.
    #[inline]
    pub fn deliver(&mut self, offset: u64) -> Result<Ticket, NotAscending> {
        let refused = NotAscending { offset, next: self.next };
        let after = offset.checked_add(1).ok_or(refused)?;
        if offset < self.next {
            return Err(refused);
        }
        if let Some(block) = self.blocks.back()
            && let Some(slot) = block.slot_of(offset)
        {
            if offset > self.next {
                block.clear(self.next - block.first, u64::from(slot));
            }
            self.next = after;
            return Ok(Ticket { block: Some(Arc::clone(block)), slot });
        }
        let block = self.append_block(offset);
        self.next = after;
        Ok(Ticket { block: Some(block), slot: 0 })
    }

    /// The offset to read next if this partition were assigned anew: every delivered record below it is finished
    /// (I3). Frees the blocks that it passes; costs a constant amount per record over the window's life.
    pub fn advance(&mut self) -> u64 {
        while let Some(block) = self.blocks.front() {
            let is_last = self.blocks.len() == 1;
            let delivered = if is_last { self.next - block.first } else { BLOCK_OFFSETS };
            while let Some(word) = block.unfinished.get(self.front_word) {
                let first = self.front_word as u64 * 64;
                if first >= delivered {
                    break;
                }
                // Acquire: whatever was done before the ticket was finished has happened before the commit.
                let unfinished = word.load(Ordering::Acquire) & mask_below(delivered - first);
                if unfinished != 0 {
                    return block.first + first + u64::from(unfinished.trailing_zeros());
                }
                if first + 64 > delivered {
                    break;
                }
                self.front_word += 1;
            }
            if is_last && delivered < BLOCK_OFFSETS {
                break;
            }
            self.front_word = 0;
            self.spare = self.blocks.pop_front();
        }
        self.next
    }

    /// Notes that offsets below `next_offset` that were not delivered will not be.
    pub fn pass(&mut self, next_offset: u64) {
        if next_offset <= self.next {
            return;
        }
        if let Some(last) = self.blocks.back() {
            last.clear(self.next - last.first, next_offset - last.first);
        }
        self.next = next_offset;
    }

    /// The offsets that are finished beyond the position, as far as a map covers them. It walks that part of the
    /// window, so it is for commits and not for each record.
    pub fn finished_beyond(&mut self) -> Finished {
        let position = self.advance();
        let Some(front) = self.blocks.front() else { return Finished::default() };
        let start = front.first + self.front_word as u64 * 64;
        let mut words = FinishedWords::starting_at(start);
        for (at, block) in self.blocks.iter().enumerate() {
            let is_last = at + 1 == self.blocks.len();
            let delivered = if is_last { self.next - block.first } else { BLOCK_OFFSETS };
            for (word, first) in block.unfinished.iter().zip((0..BLOCK_OFFSETS).step_by(64)) {
                let offset = block.first + first;
                let mask = mask_below(delivered.saturating_sub(first))
                    & !mask_below(position.saturating_sub(offset));
                // Acquire: whatever was done before the ticket was finished has happened before the commit.
                if mask != 0 && !words.add(offset, !word.load(Ordering::Acquire) & mask) {
                    return words.into();
                }
            }
        }
        words.into()
    }

    /// The assignment's epoch.
    pub fn epoch(&self) -> u32 {
        self.assignment.epoch
    }

    /// One more than the last delivered offset; where none was, the offset that the assignment began with.
    pub fn next_offset(&self) -> u64 {
        self.next
    }

    /// Records delivered and not finished. It walks the whole window, so it is for reports and not for each record.
    pub fn in_flight(&self) -> u64 {
        let mut sum = 0;
        for (at, block) in self.blocks.iter().enumerate() {
            let is_last = at + 1 == self.blocks.len();
            let delivered = if is_last { self.next - block.first } else { BLOCK_OFFSETS };
            for (word, first) in block.unfinished.iter().zip((0..BLOCK_OFFSETS).step_by(64)) {
                let mask = mask_below(delivered.saturating_sub(first));
                sum += u64::from((word.load(Ordering::Relaxed) & mask).count_ones());
            }
        }
        sum
    }

    /// Blocks in use.
    pub fn blocks(&self) -> usize {
        self.blocks.len()
    }

    /// Tickets dropped unfinished so far, `None` where there were none.
    pub fn dropped(&self) -> Option<Dropped> {
        let count = self.assignment.dropped.load(Ordering::Acquire);
        (count > 0)
            .then(|| Dropped { count, first_offset: self.assignment.first_dropped.load(Ordering::Acquire) })
    }

    #[cold]
    fn append_block(&mut self, first: u64) -> Arc<Block> {
        if let Some(last) = self.blocks.back() {
            last.clear(self.next - last.first, BLOCK_OFFSETS);
        }
        // A ticket that has just cleared its bit may hold on to the block for a moment longer; then it is freed
        // there and a new one is made here.
        let recycled = self.spare.take().and_then(|mut spare| {
            let block = Arc::get_mut(&mut spare)?;
            block.first = first;
            for word in &block.unfinished {
                word.store(u64::MAX, Ordering::Relaxed);
            }
            Some(spare)
        });
        let block = recycled.unwrap_or_else(|| Arc::new(Block::new(first, Arc::clone(&self.assignment))));
        self.blocks.push_back(Arc::clone(&block));
        block
    }
}

impl Drop for Window {
    fn drop(&mut self) {
        self.assignment.over.store(true, Ordering::Release);
    }
}

impl Ticket {
    /// Finishes the record, which is credited, archived or stored elsewhere, so that the commit may pass it. Any thread
    /// may call it; it takes O(1).
    #[inline]
    pub fn finish(mut self) {
        if let Some(block) = self.block.take() {
            let bit = 1_u64 << (self.slot % 64);
            block.unfinished[usize::from(self.slot / 64)].fetch_and(!bit, Ordering::Release);
        }
    }

    /// The epoch of the assignment it was delivered under.
    pub fn epoch(&self) -> Option<u32> {
        self.block.as_ref().map(|block| block.assignment.epoch)
    }
}

impl Drop for Ticket {
    #[inline]
    fn drop(&mut self) {
        if let Some(block) = self.block.take() {
            block.report_dropped(self.slot);
        }
    }
}

impl Block {
    fn new(first: u64, assignment: Arc<Assignment>) -> Self {
        Self { first, unfinished: std::array::from_fn(|_| AtomicU64::new(u64::MAX)), assignment }
    }

    #[inline]
    fn slot_of(&self, offset: u64) -> Option<u16> {
        let slot = offset - self.first;
        u16::try_from(slot).ok().filter(|&slot| u64::from(slot) < BLOCK_OFFSETS)
    }

    /// Notes that the offsets `from..to` of this block will not be delivered.
    #[cold]
    fn clear(&self, from: u64, to: u64) {
        for (word, first) in self.unfinished.iter().zip((0..BLOCK_OFFSETS).step_by(64)) {
            let gap = mask_below(to.saturating_sub(first)) & !mask_below(from.saturating_sub(first));
            if gap != 0 {
                word.fetch_and(!gap, Ordering::Relaxed);
            }
        }
    }

    #[cold]
    fn report_dropped(&self, slot: u16) {
        if !self.assignment.over.load(Ordering::Acquire) {
            self.assignment.first_dropped.fetch_min(self.first + u64::from(slot), Ordering::AcqRel);
            self.assignment.dropped.fetch_add(1, Ordering::AcqRel);
        }
    }
}

/// The lowest `bits` bits, all 64 from 64 on.
#[inline]
const fn mask_below(bits: u64) -> u64 {
    if bits >= 64 { u64::MAX } else { (1 << bits) - 1 }
}
