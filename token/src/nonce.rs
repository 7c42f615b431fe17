//! Nonces that never repeat under one derived key, with no state that survives a restart.
//!
//! A source draws 24 random bytes. The first 12 pick the derived key; the other 12 are where it starts to count.
//! After [`RENEW_AFTER_MS`] or [`RENEW_AFTER_NONCES`] it draws anew. Two sources collide only if they draw the
//! same 96-bit prefix and their counts, random in 96 bits too, overlap.

use crate::xaes::{COUNT_BYTES, NONCE_BYTES, PREFIX_BYTES};

/// A source draws anew after this long.
pub(crate) const RENEW_AFTER_MS: u64 = 1000;
/// A source draws anew after this many nonces: far below the 2^32 where AES-GCM's bounds begin to wear.
pub(crate) const RENEW_AFTER_NONCES: u32 = 1 << 20;

/// One nonce.
pub(crate) struct Nonce {
    pub(crate) prefix: [u8; PREFIX_BYTES],
    pub(crate) count: [u8; COUNT_BYTES],
    /// The prefix is new: what was derived from the last one is of no use any more.
    pub(crate) renewed: bool,
}

/// Where one thread's nonces under one key come from.
pub(crate) struct NonceSource {
    prefix: [u8; PREFIX_BYTES],
    high: [u8; 4],
    low: u64,
    left: u32,
    born_ms: u64,
}

impl NonceSource {
    /// A source that draws at its first use.
    pub(crate) const fn new() -> Self {
        Self { prefix: [0; PREFIX_BYTES], high: [0; 4], low: 0, left: 0, born_ms: 0 }
    }

    /// The next nonce. After an error nothing has changed; ask again.
    #[inline]
    pub(crate) fn next(&mut self, now_ms: u64) -> Result<Nonce, getrandom::Error> {
        let renewed = self.is_spent(now_ms);
        if renewed {
            self.draw(now_ms)?;
        }
        self.left -= 1;
        let mut count = [0; COUNT_BYTES];
        count[..4].copy_from_slice(&self.high);
        count[4..].copy_from_slice(&self.low.to_be_bytes());
        // Wrapping is no repeat: 2^20 steps never come round 2^64.
        self.low = self.low.wrapping_add(1);
        Ok(Nonce { prefix: self.prefix, count, renewed })
    }

    /// The next nonce will be of a new prefix. A clock that was set back counts like one that went on.
    #[inline]
    pub(crate) const fn is_spent(&self, now_ms: u64) -> bool {
        self.left == 0 || now_ms.abs_diff(self.born_ms) >= RENEW_AFTER_MS
    }

    #[cold]
    fn draw(&mut self, now_ms: u64) -> Result<(), getrandom::Error> {
        let mut random = [0_u8; NONCE_BYTES];
        getrandom::fill(&mut random)?;
        let (prefix, count) = random.split_at(PREFIX_BYTES);
        let (high, low) = count.split_at(4);
        self.prefix.copy_from_slice(prefix);
        self.high.copy_from_slice(high);
        self.low = low.iter().fold(0, |number, byte| number << 8 | u64::from(*byte));
        self.left = RENEW_AFTER_NONCES;
        self.born_ms = now_ms;
        Ok(())
    }
}
