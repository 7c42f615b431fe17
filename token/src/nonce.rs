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
    /// Whether the prefix is new, so that the key derived from the last one is of no use any more.
    pub(crate) renewed: bool,
}

/// The source of one thread's nonces under one key.
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

    /// Whether the next nonce will have a new prefix. A clock that was set back counts like one that went on.
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

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    /// What one thread drew under one prefix: the counts are `first`, `first + 1`, … in the last 64 bits.
    struct Run {
        prefix: [u8; PREFIX_BYTES],
        nonces: u64,
        ended_by_clock: bool,
    }

    fn low(nonce: &Nonce) -> u64 {
        u64::from_be_bytes(nonce.count[4..].try_into().unwrap())
    }

    /// Draws `nonces` and checks that each run counts on by one; `clock` says what time the n-th is drawn at.
    fn draw(nonces: u64, clock: impl Fn(u64) -> u64) -> Vec<Run> {
        let mut source = NonceSource::new();
        let mut runs: Vec<Run> = Vec::new();
        let (mut high, mut last, mut born_ms) = ([0; 4], 0, 0);
        for n in 0..nonces {
            let now_ms = clock(n);
            let nonce = source.next(now_ms).unwrap();
            if nonce.renewed {
                if let Some(run) = runs.last_mut() {
                    run.ended_by_clock = run.nonces < u64::from(RENEW_AFTER_NONCES);
                    assert!(!run.ended_by_clock || now_ms - born_ms >= RENEW_AFTER_MS, "renewed early");
                }
                runs.push(Run { prefix: nonce.prefix, nonces: 0, ended_by_clock: false });
                born_ms = now_ms;
            } else {
                assert_eq!(low(&nonce), u64::wrapping_add(last, 1), "a count was repeated or left out");
                assert_eq!(nonce.count[..4], high);
                assert!(now_ms - born_ms < RENEW_AFTER_MS, "kept too long");
            }
            (high, last) = (nonce.count[..4].try_into().unwrap(), low(&nonce));
            let run = runs.last_mut().unwrap();
            assert_eq!(run.prefix, nonce.prefix);
            run.nonces += 1;
        }
        runs
    }

    /// Within a prefix each nonce is the last one plus one, for at most 2^20 of them; no two prefixes are the
    /// same: so no two of the 10^8 nonces are.
    #[test]
    #[cfg_attr(miri, ignore = "Miri would draw them for days")]
    fn a_hundred_million_nonces_on_four_threads_are_all_different() {
        let each = 25_000_000;
        let runs: Vec<Run> = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4)
                .map(|thread| match thread % 2 {
                    // The clock stands still: the count alone renews.
                    0 => scope.spawn(move || draw(each, |_| 1_800_000_000_000)),
                    // 500 nonces a millisecond: the clock alone renews, every 500,000.
                    _ => scope.spawn(move || draw(each, |n| 1_800_000_000_000 + n / 500)),
                })
                .collect();
            threads.into_iter().flat_map(|thread| thread.join().unwrap()).collect()
        });

        assert_eq!(runs.iter().map(|run| run.nonces).sum::<u64>(), 100_000_000);
        assert!(runs.iter().all(|run| run.nonces <= u64::from(RENEW_AFTER_NONCES)));
        assert_eq!(runs.iter().filter(|run| run.nonces == u64::from(RENEW_AFTER_NONCES)).count(), 2 * 23);
        assert_eq!(runs.iter().filter(|run| run.ended_by_clock).count(), 2 * 49);
        let prefixes: HashSet<_> = runs.iter().map(|run| run.prefix).collect();
        assert_eq!(prefixes.len(), runs.len(), "two sources drew the same prefix");
    }

    #[test]
    fn a_clock_set_back_renews_and_a_jitter_does_not() {
        let mut source = NonceSource::new();
        assert!(source.next(10_000).unwrap().renewed);
        assert!(!source.next(9_500).unwrap().renewed);
        assert!(source.next(9_000).unwrap().renewed);
        assert!(!source.next(9_999).unwrap().renewed);
        assert!(source.next(10_000).unwrap().renewed);
    }

    #[test]
    fn a_count_may_pass_the_end_of_its_range() {
        let mut source = NonceSource::new();
        source.next(0).unwrap();
        source.low = u64::MAX;
        let (last, first) = (source.next(0).unwrap(), source.next(0).unwrap());
        assert_eq!((low(&last), low(&first)), (u64::MAX, 0));
        assert_eq!((last.prefix, last.count[..4].to_vec()), (first.prefix, first.count[..4].to_vec()));
    }
}
