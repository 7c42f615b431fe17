//! Memory that many calls share, bounded in sum (I9).

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// So many bytes for all who take of them.
pub(crate) struct Room {
    used: AtomicUsize,
    bytes_max: usize,
}

/// Bytes that are taken from a room, and given back when this is dropped.
pub(crate) struct Taken {
    room: Arc<Room>,
    bytes: usize,
}

impl Room {
    pub(crate) fn new(bytes_max: usize) -> Arc<Self> {
        Arc::new(Self { used: AtomicUsize::new(0), bytes_max })
    }

    /// Whether nothing is left.
    pub(crate) fn is_full(&self) -> bool {
        self.used.load(Relaxed) >= self.bytes_max
    }

    /// Nothing yet.
    pub(crate) fn begin(self: &Arc<Self>) -> Taken {
        Taken { room: Arc::clone(self), bytes: 0 }
    }
}

impl Taken {
    /// Takes more, also where there is no room for it. Whether there was.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        self.room.used.fetch_add(bytes, Relaxed) + bytes <= self.room.bytes_max
    }

    /// All that it has, of which nothing is left here.
    pub(crate) fn split_off(&mut self) -> Self {
        Self { room: Arc::clone(&self.room), bytes: std::mem::take(&mut self.bytes) }
    }

    /// Has what another one of the same room had.
    pub(crate) fn absorb(&mut self, other: &mut Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }
}

impl Drop for Taken {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_given_back_once() {
        let room = Room::new(10);
        let (mut first, mut second) = (room.begin(), room.begin());
        assert!(first.grow(6) && second.grow(4));
        assert!(room.is_full());
        assert!(!second.grow(1));
        first.absorb(&mut second);
        drop(second);
        assert!(room.is_full());
        let rest = first.split_off();
        drop(first);
        assert!(room.is_full());
        drop(rest);
        assert!(!room.is_full() && room.begin().grow(10));
    }
}
