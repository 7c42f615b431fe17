//! The bytes of a spool, mapped or on the heap. The only file with pointers in it.
#![allow(unsafe_code, reason = "the bytes of a mapped file are written and read in place")]

use memmap2::MmapRaw;
use std::io;
use std::ops::Range;
use std::ptr;
use std::sync::atomic::AtomicU64;

/// A fixed stretch of memory, aligned to 8, that several owners write disjoint parts of.
pub(crate) struct Region {
    base: *mut u8,
    len: usize,
    backing: Backing,
}

enum Backing {
    Mapped(MmapRaw),
    /// Memory on the heap, as words for their alignment. It is owned, and freed in `drop`.
    Heap(*mut [u64]),
}

// SAFETY: `base` points into `backing`, which lives as long as the region and does not move. Every access goes
// through an atomic, or through a method whose caller promises that no other thread writes those bytes.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// A shared mapping. The file must be at least as long as it was when mapped for as long as it is mapped:
    /// its instance's lock keeps other processes of ours away.
    pub fn mapped(map: MmapRaw) -> Self {
        Self { base: map.as_mut_ptr(), len: map.len(), backing: Backing::Mapped(map) }
    }

    /// Zeroed memory that nothing survives.
    pub fn heap(bytes: usize) -> Self {
        let words = Box::into_raw(vec![0_u64; bytes.div_ceil(8)].into_boxed_slice());
        Self { base: words.cast::<u8>(), len: words.len() * 8, backing: Backing::Heap(words) }
    }

    /// The word at `at`, little-endian.
    pub fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.len, "a word within the region");
        // SAFETY: in bounds and aligned (the base is page- or word-aligned); words are only ever accessed as
        // atomics: `write` and `bytes` are not used for them.
        unsafe { AtomicU64::from_ptr(self.base.add(at).cast::<u64>()) }
    }

    /// Copies `bytes` to `at`.
    ///
    /// # Safety
    /// Nobody else reads or writes those bytes meanwhile, nor holds a slice of them, and none of them is one
    /// that [`Region::word`] is used for.
    pub unsafe fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at <= self.len && bytes.len() <= self.len - at, "a write within the region");
        // SAFETY: in bounds; `bytes` cannot overlap, as the caller promises that nobody holds a slice there.
        unsafe { ptr::copy_nonoverlapping(bytes.as_ptr(), self.base.add(at), bytes.len()) }
    }

    /// The bytes in `range`.
    ///
    /// # Safety
    /// Nobody writes those bytes for as long as the slice lives, and none of them is one that [`Region::word`]
    /// is used for.
    pub unsafe fn bytes(&self, range: Range<usize>) -> &[u8] {
        assert!(range.start <= range.end && range.end <= self.len, "a read within the region");
        // SAFETY: in bounds and initialised; not written meanwhile, as the caller promises.
        unsafe { std::slice::from_raw_parts(self.base.add(range.start), range.len()) }
    }

    /// Waits until the pages of `range` are on disk. Memory has nothing to wait for.
    pub fn sync(&self, range: Range<usize>) -> io::Result<()> {
        match &self.backing {
            Backing::Mapped(map) => map.flush_range(range.start, range.len()),
            Backing::Heap(_) => Ok(()),
        }
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        if let Backing::Heap(words) = self.backing {
            // SAFETY: made by `Box::into_raw` in `heap`, given back once, here; no slice outlives the region.
            drop(unsafe { Box::from_raw(words) });
        }
    }
}
