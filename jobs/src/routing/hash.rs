//! The hash of the strategy `consistent_hash`, which all instances and all versions compute alike.
//!
//! It is rendezvous hashing ("highest random weight", Thaler and Ravishankar, 1998): each address gets a score from itself
//! and the key, and the highest score wins. When an executor leaves, only its own keys move, evenly to all others; when
//! one comes, it takes an even share of each. A ring with 100 virtual nodes per address, as XXL-JOB builds for each call,
//! spreads keys within about 10 % and would have to be kept per list; the scores need no state, spread keys as evenly as
//! chance, and give the order of fallbacks too. They cost about 30 ns per address.
//!
//! - `mix(x)` is the finaliser of SplitMix64: `x ^= x >> 30; x *= 0xbf58476d1ce4e5b9; x ^= x >> 27;
//!   x *= 0x94d049bb133111eb; x ^= x >> 31`, modulo 2^64.
//! - `hash(bytes)` starts with `h = mix(length + 0x9e3779b97f4a7c15)`. For each 8 bytes, read as a little-endian number
//!   with zeros after the last byte: `h = mix(h ^ number)`.
//! - The score is `mix(hash(address) ^ mix(hash(key)))`. The key without a routing key is the job's number in decimal. Of
//!   equal scores, the smaller address wins.

/// The finaliser of SplitMix64.
#[must_use]
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The hash of some bytes.
#[must_use]
pub fn hash(bytes: &[u8]) -> u64 {
    let mut state = mix((bytes.len() as u64).wrapping_add(0x9e37_79b9_7f4a_7c15));
    let (words, rest) = bytes.as_chunks();
    for word in words {
        state = mix(state ^ u64::from_le_bytes(*word));
    }
    if !rest.is_empty() {
        let mut word = [0; 8];
        word[..rest.len()].copy_from_slice(rest);
        state = mix(state ^ u64::from_le_bytes(word));
    }
    state
}

/// The score of an address for a key, whose hash is given.
#[must_use]
pub fn score(address: &str, key_hash: u64) -> u64 {
    mix(hash(address.as_bytes()) ^ mix(key_hash))
}
