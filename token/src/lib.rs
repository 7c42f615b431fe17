//! Bonus tokens: seal, open, key ring
