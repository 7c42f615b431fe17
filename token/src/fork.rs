//! Notices that this process is a copy of another one, so that a copied count of nonces is never gone on with.
//!
//! A page of memory carries a number, and the kernel hands a child a page of zeros in its place (`MADV_WIPEONFORK`),
//! whether it was made by `fork` or by a bare `clone`. To look costs one load, which a call of the system for each token
//! would not.

use std::sync::atomic::{AtomicU64, Ordering};

/// What distinguishes this process from those that it is a copy of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ProcessMark(u64);

impl ProcessMark {
    /// The mark of no process.
    pub(crate) const NONE: Self = Self(0);

    /// The mark of the process that runs this.
    #[inline]
    pub(crate) fn current() -> Self {
        match page::word() {
            Some(word) => match word.load(Ordering::Relaxed) {
                0 => renew(word),
                mark => Self(mark),
            },
            // A kernel that cannot wipe. A child has another number than each process that it descends from and that
            // still runs.
            None => Self(1 << 32 | u64::from(std::process::id())),
        }
    }
}

/// The first look in a process. The number goes on where that of its parent was, so it is none that a copied cache bears.
#[cold]
fn renew(word: &AtomicU64) -> ProcessMark {
    static MARKS: AtomicU64 = AtomicU64::new(0);
    let mark = 1 + MARKS.fetch_add(1, Ordering::Relaxed);
    match word.compare_exchange(0, mark, Ordering::Relaxed, Ordering::Relaxed) {
        Ok(_) => ProcessMark(mark),
        // Another thread looked first.
        Err(theirs) => ProcessMark(theirs),
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
#[allow(unsafe_code, reason = "no safe call makes a page that a fork wipes")]
mod page {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    use std::ptr::null_mut;
    use std::sync::OnceLock;
    use std::sync::atomic::AtomicU64;

    /// The kernel maps and wipes whole pages, whatever their size.
    const BYTES: usize = size_of::<AtomicU64>();

    /// The number on the page; `None` where the kernel cannot wipe it.
    #[inline]
    pub(super) fn word() -> Option<&'static AtomicU64> {
        static WORD: OnceLock<Option<&'static AtomicU64>> = OnceLock::new();
        *WORD.get_or_init(map)
    }

    #[cold]
    fn map() -> Option<&'static AtomicU64> {
        // SAFETY: a new mapping, which touches no memory that is there already.
        let at = unsafe {
            mmap_anonymous(null_mut(), BYTES, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE).ok()?
        };
        // SAFETY: the mapping was made above, nothing points into it yet, and the advice changes no byte of this process.
        if unsafe { madvise(at, BYTES, Advice::LinuxWipeOnFork) }.is_err() {
            // SAFETY: as above. Where it fails, an unused page stays mapped, which harms nothing.
            unsafe { munmap(at, BYTES) }.ok();
            return None;
        }
        // SAFETY: the page is aligned and as long as the process, holds zeros, and is used as this atomic alone. The kernel
        // changes it only in a child, before anything runs there.
        Some(unsafe { AtomicU64::from_ptr(at.cast()) })
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
mod page {
    use std::sync::atomic::AtomicU64;

    pub(super) const fn word() -> Option<&'static AtomicU64> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_mark_in_all_its_threads() {
        let own = ProcessMark::current();
        assert_ne!(own, ProcessMark::NONE);
        let theirs = std::thread::spawn(ProcessMark::current).join().unwrap();
        assert_eq!((own, ProcessMark::current()), (theirs, own));
    }
}
